"""The capture equals brute force in every family, and is never in anyone's way."""

import copy
import gc

import psutil
import pytest
import torch
from devices import DEVICE
from encoders import ENCODERS, encoder, plain
from families import FAMILIES, batch, reference, tiny
from torch import nn

from llmprobe import (
    CaptureError,
    UnsupportedModelError,
    attention_layers,
    capture_attention,
    capture_rows,
    load_model,
)
from llmprobe.base import machine

WANTED = [0, 5, -1]


def check_close(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_heads_equal_brute_force_and_change_no_logit(family):
    model, inputs = tiny(family), batch(family, (12, 12))
    expected = reference(family, inputs)
    plain = model(**inputs, use_cache=False).logits
    with capture_attention(model) as outputs, capture_attention(model, at="heads") as heads:
        assert torch.equal(model(**inputs, use_cache=False).logits, plain)
    assert list(outputs) == list(heads) == list(expected.outputs)
    for layer in attention_layers(model):
        check_close(outputs[layer.layer], expected.outputs[layer.layer])
        check_close(heads[layer.layer], expected.heads[layer.layer])
        # What the projection makes of the heads is the output: no residual, nothing else in it.
        projection = model.get_submodule(layer.projection)
        check_close(projection(heads[layer.layer].flatten(-2)), outputs[layer.layer])


@pytest.mark.parametrize("family", ENCODERS)
def test_heads_and_rows_of_encoders_equal_brute_force(family):
    model, tokens = encoder(family), torch.arange(3, 27, device=DEVICE).reshape(2, 12)
    expected, weights = plain(family, tokens)
    with capture_attention(model, at="heads") as heads:
        model(tokens)
    with capture_rows(model, positions=WANTED, weights=True) as rows:
        model(tokens)
    for layer in (0, 1):
        check_close(heads[layer], expected[layer])
        check_close(rows[layer].weights, weights[layer].transpose(1, 2)[:, WANTED])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at", ["output", "heads"])
def test_stopping_early_with_few_positions_gives_the_same(family, at):
    model, inputs = tiny(family), batch(family, (12, 12))
    expected = reference(family, inputs)
    with capture_attention(model, positions=WANTED, at=at, stop=True) as captured:
        assert model(**inputs, use_cache=False) is None
    whole = expected.outputs if at == "output" else expected.heads
    for layer in captured:
        check_close(captured[layer], whole[layer][:, [0, 5, 11]])
    # Where the family allows it, only the wanted queries were computed in the deepest layer.
    # (Llama 4 records router logits by default, and so has hooks of transformers on it.)
    assert captured._narrow == attention_layers(model)[-1].interface or family == "llama4_text"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("stop", [False, True])
def test_a_padded_batch_equals_each_prompt_alone(family, side, stop):
    model, lengths, wanted = tiny(family), (5, 9, 12), [0, 3, -1]
    inputs = batch(family, lengths, side)
    with capture_attention(model, positions=wanted, stop=stop) as together:
        model(**inputs, use_cache=False)
    for row in range(len(lengths)):
        tokens = inputs["input_ids"][row, inputs["attention_mask"][row].bool()]
        with capture_attention(model, positions=wanted) as alone:
            model(tokens[None], use_cache=False)
        for layer in together:
            check_close(together[layer][row], alone[layer][0])


def test_forwards_append_along_the_batch():
    model = tiny("llama")
    first, second = batch("llama", (6, 6)), batch("llama", (9, 9, 9))
    with capture_attention(model, positions=-1) as captured:
        model(**first)
        model(**second)
    assert captured[0].shape == (5, 1, 32)
    with capture_attention(model) as captured:
        model(**first)
        model(**second)
    with pytest.raises(CaptureError, match="lengths 6, 9; give `positions`"):
        _ = captured[0]


def test_stopping_works_for_many_forwards_and_for_inner_models():
    model, inputs = tiny("llama"), batch("llama", (6, 6))
    with capture_attention(model, layers=0, stop=True) as captured:
        assert model(**inputs) is None
        assert model.model(**inputs) is None
        reached = True
    assert reached
    assert captured[0].shape == (4, 6, 32)
    assert model(**inputs) is not None


def test_nothing_runs_after_the_deepest_module():
    model, inputs = tiny("llama"), batch("llama", (6,))
    ran = []
    handles = [
        module.register_forward_pre_hook(lambda m, args, name=name: ran.append(name))
        for name, module in model.named_modules()
    ]
    with capture_attention(model, layers=0, stop=True):
        model(**inputs)
    for handle in handles:
        handle.remove()
    assert ran[-1] == "model.layers.0.self_attn.o_proj"
    assert not [name for name in ran if "lm_head" in name or "mlp" in name or "layers.1" in name]


def test_into_reduces_in_the_hook_and_keeps_nothing():
    model, inputs = tiny("llama"), batch("llama", (6, 6))
    seen = {}
    with capture_attention(model, positions=[0, -1], into=seen.__setitem__) as captured:
        model(**inputs)
    with capture_attention(model, positions=[0, -1]) as kept:
        model(**inputs)
    assert all(torch.equal(seen[layer], kept[layer]) for layer in kept)
    with pytest.raises(CaptureError, match="went to `into`"):
        _ = captured[0]


def test_what_is_kept_are_clones():
    model, inputs = tiny("llama"), batch("llama", (6, 6))
    whole = {}
    handle = model.model.layers[0].self_attn.register_forward_hook(
        lambda m, a, output: whole.update(x=output[0])
    )
    for positions in (None, -1, [0, 1]):
        with capture_attention(model, positions=positions, device="cpu") as captured:
            model(**inputs)
        kept = captured[0].untyped_storage()
        assert kept.data_ptr() != whole["x"].untyped_storage().data_ptr()
        assert kept.nbytes() == captured[0].nelement() * 4
    handle.remove()


def test_inference_mode_gradients_and_autograd_are_left_alone():
    model, inputs = tiny("llama"), batch("llama", (6,))
    with torch.inference_mode(), capture_attention(model, positions=-1, stop=True) as captured:
        model(**inputs)
    with capture_attention(model, positions=-1) as again:
        model(**inputs)
    check_close(captured[1], again[1])
    model.requires_grad_(True)
    with capture_attention(model) as graph:
        model(**inputs).logits.sum().backward()
    assert not graph[0].requires_grad
    assert model.lm_head.weight.grad is not None
    model.requires_grad_(False)
    model.zero_grad(set_to_none=True)


def test_hooks_of_others_survive_and_see_whole_outputs():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    attention = model.get_submodule(attention_layers(model)[1].path)
    shapes = []
    handle = attention.register_forward_hook(lambda m, a, output: shapes.append(output[0].shape))
    model(**inputs, output_hidden_states=True)  # transformers puts its own hooks in
    with capture_attention(model, positions=-1, stop=True) as captured:
        model(**inputs)
    with capture_attention(model, positions=-1) as plain:
        outputs = model(**inputs, output_hidden_states=True)
    check_close(captured[1], plain[1])
    assert set(shapes) == {(1, 12, 32)}
    assert len(outputs.hidden_states) == 3
    handle.remove()


def test_captures_nest_in_any_mixture():
    model, inputs = tiny("llama"), batch("llama", (12,))
    with capture_attention(model, at="heads") as plain_heads, capture_attention(model) as plain:
        model(**inputs)
    with (
        capture_attention(model, layers=1, positions=[0, -1], stop=True) as outer,
        capture_attention(model, positions=[3]) as inner,
        capture_attention(model, positions=[3], at="heads") as heads,
    ):
        assert model(**inputs) is None
    check_close(outer[1], plain[1][:, [0, -1]])
    for layer in (0, 1):
        check_close(inner[layer], plain[layer][:, [3]])
        check_close(heads[layer], plain_heads[layer][:, [3]])


def test_an_error_in_the_block_goes_through_and_leaves_nothing():
    model, inputs = tiny("llama"), batch("llama", (6,))
    count = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    hooks, forward = count(), "forward" in vars(model)
    with pytest.raises(ZeroDivisionError), capture_attention(model, positions=-1, stop=True):
        model(**inputs)
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), capture_attention(model, into=lambda *_: 1 / 0):
        model(**inputs)
    assert (count(), "forward" in vars(model)) == (hooks, forward)
    assert model.config._attn_implementation == "sdpa"
    with capture_attention(model, positions=-1) as captured:
        model(**inputs)
    assert captured[1].shape == (1, 1, 32)


def test_a_hundred_captures_leave_memory_flat_and_no_hook():
    model, inputs = tiny("llama"), batch("llama", (32,) * 4)
    process = psutil.Process()

    def capture():
        with capture_attention(model, positions=[0, -1], stop=True) as captured:
            model(**inputs)
        return captured[0]

    for _ in range(10):
        capture()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(100):
        capture()
    gc.collect()
    assert process.memory_info().rss - before < 8 * 2**20
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_forward_that_breaks_off_leaves_nothing_of_itself():
    model, inputs = tiny("llama"), batch("llama", (6, 6))

    def fail(module, args):
        raise torch.OutOfMemoryError("on purpose")

    with capture_attention(model, positions=-1) as captured:
        handle = model.model.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(torch.OutOfMemoryError):
            model(**inputs)
        handle.remove()
        model(**inputs)
    assert {layer: len(captured[layer]) for layer in captured} == {0: 2, 1: 2}


def test_sessions_may_be_left_in_any_order():
    model, inputs = tiny("llama"), batch("llama", (12,))
    first = capture_attention(model, positions=-1, stop=True, layers=0)
    second = capture_attention(model, positions=-1, layers=0)
    first.__enter__()
    second.__enter__()
    model(**inputs)
    first.__exit__(None, None, None)
    assert model(**inputs) is not None
    second.__exit__(None, None, None)
    assert len(second[0]) == 2
    assert model.config._attn_implementation == "sdpa"
    assert "forward" not in vars(model)


def test_a_mask_of_another_shape_is_refused_where_positions_depend_on_it():
    model, inputs = tiny("llama"), batch("llama", (6,))
    square = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    with (
        pytest.raises(CaptureError, match=r"\(batch, tokens\)"),
        capture_attention(model, positions=0),
    ):
        model(inputs["input_ids"], attention_mask=square)


def test_silent_layers_and_positions_beyond_the_prompt_are_named():
    model, inputs = tiny("llama"), batch("llama", (5, 9), "left")
    with pytest.raises(CaptureError, match=r"layer 0, 1 did not run"), capture_attention(model):
        pass
    with pytest.raises(CaptureError, match="layer 1 did not run"):  # noqa: SIM117
        with capture_attention(model), capture_attention(model, layers=0, stop=True):
            model(**inputs)
    for position in (5, -6, [0, 5]):
        with (
            pytest.raises(CaptureError, match=r"position -?[56] is beyond prompt 0, which has 5"),
            capture_attention(model, positions=position),
        ):
            model(**inputs)
    holes = {
        "input_ids": torch.ones(1, 4, dtype=int, device=DEVICE),
        "attention_mask": torch.tensor([[1, 0, 1, 1]], device=DEVICE),
    }
    with pytest.raises(CaptureError, match="holes"), capture_attention(model, positions=-1):
        model(**holes)


def test_wrong_arguments_are_refused():
    model = tiny("llama")
    for wrong, said in [
        ({"at": "middle"}, "accepted: output, heads"),
        ({"positions": []}, "got \\[\\]"),
    ]:
        with pytest.raises(ValueError, match=said):
            capture_attention(model, **wrong)
    with capture_attention(model, layers=0) as captured:
        with pytest.raises(CaptureError, match="no forward has run yet"):
            _ = captured[0]
        model(**batch("llama", (4,)))
    with pytest.raises(KeyError, match="layer 1 was not captured"):
        _ = captured[1]
    assert torch.equal(captured[-1], captured[0])
    assert "(1, 4, 32)" in repr(captured)


@pytest.mark.parametrize("capture", [capture_attention, capture_rows])
def test_a_capture_takes_a_name_a_module_or_a_loaded_model(capture):
    loaded, tokens = load_model("builtin"), torch.arange(12, device=DEVICE).reshape(2, 6)
    with capture(loaded.model, [0, 4], positions=-1) as expected:
        loaded.model(tokens)
    with capture(loaded, "0,-1", positions=-1) as by_loaded:
        loaded.model(tokens)
    with capture("builtin", "0,-1", positions=-1) as by_name:
        by_name.model(tokens)
    assert isinstance(by_name.model, nn.Module)
    assert by_loaded.model is loaded.model
    for captured in (by_loaded, by_name):
        assert list(captured) == [0, 4]
        for layer in captured:
            got, wanted = captured[layer], expected[layer]
            if capture is capture_rows:
                got, wanted = got.top, wanted.top
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("capture", [capture_attention, capture_rows])
def test_a_capture_leaves_the_memory_allocator_alone(capture, monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "_mallopt", lambda: lambda *given: asked.append(given))
    model = tiny("llama")
    with capture(model, positions=-1, stop=True):
        model(**batch("llama", (6,)))
    assert asked == []
    with machine.memory_kept():  # what would have been seen
        pass
    assert asked


def test_a_shared_module_that_runs_twice_is_refused():
    model = copy.deepcopy(tiny("llama"))
    layers = model.model.layers
    kept = layers[1]
    layers[1] = layers[0]
    try:
        with pytest.raises(UnsupportedModelError, match="more than once"):
            capture_attention(model)
    finally:
        layers[1] = kept


def test_a_model_wrapped_by_peft():
    from peft import LoraConfig, get_peft_model

    plain, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    with capture_attention(plain, at="heads") as before:
        plain(**inputs)
    wrapped = get_peft_model(plain, LoraConfig(target_modules=["q_proj", "o_proj"], r=2)).eval()
    for stop in (False, True):
        with capture_attention(wrapped, at="heads", positions=[-1], stop=stop) as captured:
            wrapped(**inputs)
        check_close(captured[1], before[1][:, [-1]])  # a fresh adapter changes nothing
        assert captured[1].shape == (1, 1, 4, 8)


def test_a_model_placed_by_accelerate():
    from accelerate import dispatch_model

    plain, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    with capture_attention(plain, positions=[-1]) as before:
        plain(**inputs)
    placed = dispatch_model(plain, {"": DEVICE}, force_hooks=True)
    hooked = {name for name, module in placed.named_modules() if "forward" in vars(module)}
    assert hooked
    for stop in (False, True):
        with capture_attention(placed, positions=[-1], stop=stop) as captured:
            placed(**inputs)
        check_close(captured[1], before[1])
    assert hooked == {name for name, module in placed.named_modules() if "forward" in vars(module)}


def test_generate_runs_as_ever():
    model, inputs = tiny("llama"), batch("llama", (6,))
    plain = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    with capture_attention(model, positions=-1) as captured:
        hooked = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert torch.equal(plain, hooked)
    assert captured[0].shape == (3, 1, 32)


class Nothing(nn.Module):
    def forward(self, x):
        return x


def test_a_module_that_is_no_language_model_is_refused_in_one_line():
    with pytest.raises(Exception, match="Nothing") as caught:
        capture_attention(Nothing())
    assert "\n" not in str(caught.value)
