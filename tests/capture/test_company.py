"""A model may have several users at once: each gets its own numbers, and leaves it as it was."""

import asyncio
import contextlib
import copy
import sys
import threading

import pytest
import torch
from families import batch, state, tiny
from torch import nn

from llmprobe import (
    CaptureError,
    UnsupportedModelError,
    attention_layers,
    capture_attention,
    capture_rows,
)
from llmprobe.capture.calls import _inside

LENGTHS = {"a": (12,), "b": (9, 9), "c": (20,)}
FAMILIES = ["llama", "gpt2", "gemma2"]
"""sdpa for all three; gpt2 computes queries, keys and values in one product."""


def heads(captured):
    return [captured[n] for n in captured]


def entropies(captured):
    return [captured[n].entropy for n in captured]


def whole(model, inputs):
    with capture_attention(model) as captured:
        model(**inputs, use_cache=False)
    return heads(captured)


def stopped(model, inputs):
    with capture_attention(model, positions=[0, -1], at="heads", stop=True) as captured:
        assert model(**inputs, use_cache=False) is None
    return heads(captured)


def first_layer(model, inputs):
    with capture_attention(model, 0, positions=3, stop=True) as captured:
        assert model(**inputs, use_cache=False) is None
    return heads(captured)


def rows(model, inputs):
    with capture_rows(model, positions=[2, -1]) as captured:
        model(**inputs, use_cache=False)
    return entropies(captured)


def both(model, inputs):
    with capture_rows(model) as captured, capture_attention(model, 1, positions=-1) as inner:
        model(**inputs, use_cache=False)
    return entropies(captured) + heads(inner)


def plain(model, inputs):
    return [model(**inputs, use_cache=False).logits]


def failing(model, inputs):
    def fail(layer, x):
        raise ZeroDivisionError

    # On an error torch walks over the hooks, and may find that another thread changes them.
    errors = (ZeroDivisionError, RuntimeError)
    with pytest.raises(errors), capture_attention(model, 1, stop=True, into=fail):
        model(**inputs, use_cache=False)
    return []


USERS = [whole, stopped, first_layer, rows, both, plain, failing]


def equal(got, expected):
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


@pytest.fixture
def _switching():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("users", [USERS, [plain, stopped], [stopped, stopped, first_layer]])
def test_threads_get_what_each_gets_alone(family, users):
    model = copy.deepcopy(tiny(family))
    jobs = [(user, batch(family, n)) for user in users for n in LENGTHS.values()]
    expected = [user(model, inputs) for user, inputs in jobs]
    before, wrong = state(model), []

    def work(number):
        try:
            for turn in range(4):
                at = (number + 5 * turn) % len(jobs)
                user, inputs = jobs[at]
                if not equal(user(model, inputs), expected[at]):
                    wrong.append((user.__name__, "other numbers"))
        except BaseException as error:
            wrong.append((user.__name__, repr(error)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert state(model) == before


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("capture", [capture_attention, capture_rows])
def test_a_forward_of_another_thread_is_neither_recorded_nor_stopped(capture, stop):
    model, inputs, other = tiny("llama"), batch("llama", (12,)), batch("llama", (7, 7))
    expected, got = model(**other).logits, []
    with capture(model, positions=-1, stop=stop) as captured:
        thread = threading.Thread(target=lambda: got.append(model(**other).logits))
        thread.start()
        thread.join()
        model(**inputs)
    assert torch.equal(got[0], expected)
    values = heads(captured) if capture is capture_attention else entropies(captured)
    assert {len(x) for x in values} == {1}
    with pytest.raises(CaptureError, match=r"did not run.*thread"), capture(model, positions=-1):
        thread = threading.Thread(target=lambda: model(**other))
        thread.start()
        thread.join()


@pytest.mark.parametrize("capture", [capture_attention, capture_rows])
def test_a_thread_that_takes_over_the_context_has_no_part_in_its_captures(capture):
    model, inputs, other = tiny("llama"), batch("llama", (12,)), batch("llama", (7, 7))
    expected = model(**other).logits

    async def work():
        with capture(model, positions=-1, stop=True) as captured:
            result = await asyncio.to_thread(lambda: model(**other))  # it copies the context
            model(**inputs)
        return result, captured

    result, captured = asyncio.run(work())
    assert torch.equal(result.logits, expected)
    values = heads(captured) if capture is capture_attention else entropies(captured)
    assert {len(x) for x in values} == {1}


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_get_what_each_gets_alone(family):
    model = copy.deepcopy(tiny(family))
    jobs = [(user, batch(family, n)) for user in (whole, stopped, rows) for n in LENGTHS.values()]
    expected = [user(model, inputs) for user, inputs in jobs]
    before = state(model)

    async def work(user, inputs):
        options = {"positions": [0, -1], "at": "heads", "stop": True} if user is stopped else {}
        if user is rows:
            capture, options = capture_rows, {"positions": [2, -1]}
        else:
            capture = capture_attention
        with capture(model, **options) as captured:
            await asyncio.sleep(0)
            model(**inputs, use_cache=False)
            await asyncio.sleep(0)
        return entropies(captured) if user is rows else heads(captured)

    async def all_of_them():
        return await asyncio.gather(*(work(*job) for job in jobs))

    for got, wanted in zip(asyncio.run(all_of_them()), expected, strict=True):
        assert equal(got, wanted)
    assert state(model) == before


class Fault:
    """Raises an error once it is armed: making a capture runs the model too."""

    def __init__(self, error):
        self.error, self.armed = error, False

    def __call__(self, *args, **kwargs):
        if self.armed:
            raise self.error

    def before(self, function):
        return lambda *args, **kwargs: (self(), function(*args, **kwargs))[1]


def in_into(model, fault):
    return {"into": fault}


def in_a_hook(model, fault):
    model.model.layers[0].self_attn.register_forward_hook(fault)
    return {}


def in_a_forward(model, fault):
    mlp = model.model.layers[0].mlp
    mlp.forward = fault.before(mlp.forward)
    return {}


def in_the_models_own_forward(model, fault):
    model.forward = fault.before(model.forward)
    return {}


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", [in_into, in_a_hook, in_a_forward, in_the_models_own_forward])
def test_whatever_is_raised_the_model_is_left_as_it_was(where, kind, elsewhere):
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    fault = Fault(kind("on purpose"))
    options, before, caught, left = where(model, fault), state(model), [], []

    def use(capture):
        try:
            with capture(model, 1, positions=-1, stop=True, **options):
                fault.armed = True
                model(**inputs, use_cache=False)
        except kind as raised:
            caught.append(raised)
        fault.armed = False

    def work():
        for capture in (capture_attention, capture_rows):
            use(capture)
            with contextlib.suppress(kind), capture_rows(model):  # one inside another
                use(capture)
                raise fault.error
        left.append(_inside.get())

    if elsewhere:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert caught == [fault.error] * 4
    assert left == [frozenset()]  # no owner stays in the context
    assert state(model) == before
    assert model(**inputs).logits.isfinite().all()


def test_a_thread_that_is_interrupted_spoils_nothing_for_the_others():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    expected, before = stopped(model, inputs), state(model)
    inside, go_on, wrong = threading.Event(), threading.Event(), []

    def interrupted():
        def wait(layer, x):
            inside.set()
            go_on.wait(60)
            raise KeyboardInterrupt

        try:
            with capture_attention(model, stop=True, positions=-1, into=wait):
                model(**inputs, use_cache=False)
        except KeyboardInterrupt:
            wrong.append(len(expected) - len(stopped(model, inputs)))

    thread = threading.Thread(target=interrupted)
    thread.start()
    assert inside.wait(60)
    # While the other is in the middle of its forward, and then while it leaves.
    got = [stopped(model, inputs)]
    go_on.set()
    got += [stopped(model, inputs) for _ in range(5)]
    thread.join()
    assert wrong == [0]
    assert all(equal(one, expected) for one in got)
    assert state(model) == before


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_captures_may_be_left_in_any_order(order):
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    model.model.forward = model.model.forward  # one of its own, as accelerate puts there
    plain_logits, before = model(**inputs).logits, state(model)
    captures = [
        capture_attention(model, positions=-1, stop=True),
        capture_rows(model, stop=True),
        capture_attention(model, 0, positions=[0, -1], at="heads", stop=True),
    ]
    for capture in captures:
        capture.__enter__()
    for n in order:
        captures[n]._complete = True  # which of them stops the others is not the question here
        model(**inputs)
        captures[n].__exit__(None, None, None)
    assert torch.equal(model(**inputs).logits, plain_logits)
    assert state(model) == before


def test_a_wrapper_that_someone_else_puts_on_survives():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    calls = []
    with capture_attention(model, positions=-1, stop=True):
        forward = model.forward
        model.forward = lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs)
        model(**inputs)
    assert model(**inputs) is not None
    with capture_attention(model, positions=-1, stop=True) as captured:
        assert model(**inputs) is None
    assert model(**inputs) is not None
    assert len(calls) == 4
    assert captured[0].shape == (1, 1, 32)


def test_a_capture_is_entered_once_at_a_time():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    before = state(model)
    capture = capture_attention(model, positions=-1)
    with capture:
        model(**inputs)
        with pytest.raises(CaptureError, match="entered twice at once"), capture:
            pass
        model(**inputs)
    with capture:
        model(**inputs)
    assert capture[0].shape[0] == 3
    assert state(model) == before


@pytest.mark.parametrize("capture", [capture_attention, capture_rows])
def test_inside_generate_positions_that_have_no_meaning_are_refused(capture):
    model, inputs = tiny("llama"), batch("llama", (5,))
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    before = state(model)
    expected = model.generate(**inputs, **options)
    with capture(model, positions=-1) as captured:
        assert torch.equal(model.generate(**inputs, **options), expected)
    once = {"input_ids": expected[:, :-1]}
    with capture(model, positions=[4, 5, 6]) as again:
        model(**once)
    values = heads if capture is capture_attention else entropies
    for got, wanted in zip(values(captured), values(again), strict=True):
        torch.testing.assert_close(got[:, 0], wanted[0], atol=1e-4, rtol=1e-4)
    for wrong in (0, 4, -2, [-1, 0]):
        with (
            pytest.raises(CaptureError, match=r"generate\(\) runs one new token at a time"),
            capture(model, positions=wrong),
        ):
            model.generate(**inputs, **options)
    with (
        pytest.raises(CaptureError, match="stop=True ends every forward"),
        capture(model, positions=-1, stop=True),
    ):
        model.generate(**inputs, **options)
    assert state(model) == before


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda model: torch.compile(model, backend="eager"), "compiled._orig_mod"),
        (compiled_in_place, "compiled"),
        (nn.DataParallel, "model.module"),
        (lambda model: model.to("meta"), "meta device"),
    ],
)
@pytest.mark.parametrize("use", [attention_layers, capture_attention, capture_rows])
def test_what_does_not_run_its_own_forward_is_refused_in_one_line(use, wrap, said):
    wrapped = wrap(copy.deepcopy(tiny("llama")))
    with pytest.raises(UnsupportedModelError, match=said) as caught:
        use(wrapped)
    assert "\n" not in str(caught.value)
