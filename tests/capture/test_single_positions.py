"""An attention module that runs for a few positions gives what the whole module gives there."""

import copy
from contextlib import ExitStack

import pytest
import torch
from families import FAMILIES, batch, tiny
from slicing import in_slices
from torch import nn

from llmprobe import attention_layers, capture_attention
from llmprobe.capture.calls import listening
from llmprobe.capture.single_positions import FewPositions, _known

SEPARATE = ("llama", "qwen2", "gemma2", "gemma3_text", "mistral", "phi", "gpt_oss")
RUN_AS_A_WHOLE = (
    *("bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "xglm", "llama4_text"),
    "glm_moe_dsa",
)
"""Families whose attention gets tensors that cannot be cut to some positions."""
WITH_ALL_QUERIES = ("gpt2", "gpt_neox", "gpt_bigcode", "opt", "phi3", "stablelm", "qwen3_next")
"""Families that are cut, but where no child makes the queries alone: all of them are computed."""
WITH_A_MASK = ("gpt2", "gemma2", "mistral", "gpt_oss")
"""Families whose deepest attention gets a mask, as for a window: it is not cut into slices."""
WITH_FEW_QUERIES = [f for f in FAMILIES if f not in (*RUN_AS_A_WHOLE, *WITH_ALL_QUERIES)]


def deepest(model):
    return model.get_submodule(attention_layers(model)[-1].path)


def rows_through(child, model, inputs, **options):
    """How many positions the child of the deepest attention sees, call by call."""
    seen = []

    def hook(module, args, output):
        seen.append(args[0].shape[1])

    capture = capture_attention(model, positions=[0, -1], stop=True, **options)
    with ExitStack() as stack, capture:
        # Hooks of others mean whole outputs: this one is passed off as the capture's own.
        capture.own(stack, lambda: child.register_forward_hook(hook))
        model(**inputs, use_cache=False)
    return seen


@pytest.mark.parametrize("family", SEPARATE)
def test_queries_and_projection_are_of_the_wanted_positions_alone(family):
    model, inputs = tiny(family), batch(family, (12, 12))
    with capture_attention(model, positions=[0, -1], stop=True):
        model(**inputs, use_cache=False)  # the trial is over
    way, module = _known[deepest(model)], deepest(model)
    assert way.queries is module.q_proj
    assert rows_through(module.q_proj, model, inputs) == [1, 2]
    assert rows_through(module.k_proj, model, inputs) == [12, 2]
    projection = model.get_submodule(attention_layers(model)[-1].projection)
    assert rows_through(projection, model, inputs) == [2]


def way_of(family):
    """Whether the family was run for a few positions, and the child that makes its queries."""
    model, inputs = tiny(family), batch(family, (12, 12))
    with capture_attention(model, positions=-1, stop=True) as captured:
        model(**inputs, use_cache=False)
    assert captured[-1].isfinite().all()
    way = _known.get(deepest(model))
    assert captured._narrow == (way is not None)
    return captured._narrow, way and way.queries


@pytest.mark.parametrize("family", RUN_AS_A_WHOLE)
def test_a_family_that_cannot_be_cut_runs_as_a_whole(family):
    assert way_of(family) == (False, None)


@pytest.mark.parametrize("family", WITH_ALL_QUERIES)
def test_a_family_without_a_child_for_queries_is_cut_all_the_same(family):
    assert way_of(family) == (True, None)


@pytest.mark.parametrize("family", WITH_FEW_QUERIES)
def test_no_child_is_taken_for_the_queries_that_makes_anything_else(family):
    narrow, queries = way_of(family)
    assert narrow
    assert queries is not None
    model, inputs = tiny(family), batch(family, (12, 12))
    # Whatever the child makes, keys and values do not feel it.
    seen = []
    handle = queries.register_forward_hook(lambda m, args, output: output * 0)
    with listening([deepest(model)], lambda call: seen.append((call.key, call.value))):
        model(**inputs, use_cache=False)
        handle.remove()
        model(**inputs, use_cache=False)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("family", [*WITH_ALL_QUERIES, *WITH_FEW_QUERIES])
def test_slices_of_positions_and_prefixes_give_the_same(family, monkeypatch):
    model, tokens = tiny(family), batch(family, (40, 40))["input_ids"]
    shown, sizes = FewPositions._shown, []

    def counting(few, forward, arguments):
        sizes.append(arguments["hidden_states"].shape[1])
        return shown(few, forward, arguments)

    def heads():
        capture = capture_attention(model, positions=[1, 20, 27, -1], at="heads", stop=True)
        with torch.inference_mode(), capture:
            model(tokens, use_cache=False)
        return capture[-1]

    expected = heads()
    monkeypatch.setattr(FewPositions, "_shown", counting)
    with in_slices(deepest(model), 2 * 7):
        got = heads()
    # Slices are for the caches of a CPU.
    whole = family in WITH_A_MASK or tokens.device.type != "cpu"
    assert sizes == ([40] if whole else [7, 7, 7, 7, 7, 5])
    error, scale = ((x.square().mean().sqrt()) for x in (got - expected, expected))
    assert error <= 1e-6 * scale


def test_a_module_that_cannot_be_cut_runs_as_a_whole():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12, 12))
    module = deepest(model)
    whole = module.forward

    def strange(hidden_states, **kwargs):
        """Says another thing of a position where there are fewer of them."""
        output, weights = whole(hidden_states=hidden_states, **kwargs)
        return output * hidden_states.shape[1], weights

    with capture_attention(model, positions=[2, -1]) as expected:
        model(**inputs, use_cache=False)
    module.forward = strange
    with capture_attention(model, positions=[2, -1], stop=True) as captured:
        model(**inputs, use_cache=False)
    del module.forward
    assert _known.pop(module) is None
    assert not captured._narrow
    torch.testing.assert_close(captured[-1], expected[-1] * 12)


def test_a_module_in_training_runs_as_a_whole_and_is_tried_later():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12, 12))
    for mode in (True, False):
        model.train(mode)
        with capture_attention(model, positions=[2, -1], stop=True) as captured:
            model(**inputs, use_cache=False)
        assert captured._narrow is not mode


def test_memory_that_runs_out_in_the_trial_is_no_verdict(monkeypatch):
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12, 12))

    def full(*_):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(FewPositions, "_with_queries", full)
        with capture_attention(model, positions=[2, -1], stop=True):
            model(**inputs, use_cache=False)
    assert deepest(model) not in _known


def test_a_hook_of_others_on_any_child_gets_the_whole():
    model, inputs = tiny("llama"), batch("llama", (12, 12))
    seen = []
    handle = deepest(model).q_proj.register_forward_hook(lambda m, a, out: seen.append(out.shape))
    with capture_attention(model, positions=[2, -1], stop=True) as captured:
        model(**inputs, use_cache=False)
    handle.remove()
    assert seen == [(2, 12, 32)]
    assert not captured._narrow


def test_tensors_of_unknown_meaning_are_not_cut():
    few = FewPositions(deepest(tiny("llama")))
    hidden, angles = torch.randn(2, 5, 32), (torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    assert few.arguments(hidden, angles, attention_mask=torch.ones(2, 1, 5, 5)) is not None
    assert few.arguments(hidden, angles, other=torch.ones(5)) is None
    assert few.arguments(hidden, tuple(x[:, :4] for x in angles)) is None
    assert few.arguments(hidden, angles, position_ids=torch.arange(5)) is None
    assert few.arguments(nn.Identity(), angles) is None
