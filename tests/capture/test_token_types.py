"""The first attention by token types gives what it gives without, or is not offered."""

import copy
from contextlib import ExitStack

import pytest
import torch
from devices import DEVICE
from families import FAMILIES, tiny
from slicing import in_slices

from llmprobe import attention_layers, capture_attention
from llmprobe.capture.token_types import NotServed, TokenTypes, _captured

AS_A_WHOLE = ("bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "xglm", "llama4_text")
"""Families that cannot be run for a few positions."""
WITH_POSITIONS = ("gpt2", "gpt_bigcode", "opt", "biogpt", "bert")
"""Families that add a learned position to each token."""
NOT_FIRST = ("lfm2", "jamba", "qwen3_next")
"""Families whose first attention comes behind a layer that mixes tokens."""
WITHOUT_TYPES = (*AS_A_WHOLE, *WITH_POSITIONS, *NOT_FIRST, "glm_moe_dsa")
POSITIONS = [3, 11, 29]


def tokens_for(n=2, length=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 97, (n, length), generator=generator).to(DEVICE)


def first(model):
    return attention_layers(model)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_types_give_the_same_numbers_or_there_are_none(family):
    model = tiny(family)
    types = TokenTypes.found(model, first(model), tokens_for())
    assert (types is None) == (family in WITHOUT_TYPES)
    if types is None:
        return
    for seed, at in ((1, "output"), (2, "heads")):
        tokens = tokens_for(3, seed=seed)
        expected, got = outputs(model, tokens, at), outputs(model, tokens, at, types)
        scale = expected.square().mean().sqrt().item()
        torch.testing.assert_close(got, expected, atol=1e-6 * scale, rtol=0)
        with in_slices(types.module, 3 * 7):  # these round differently
            error = outputs(model, tokens, at, types) - expected
        assert error.square().mean().sqrt() <= 1e-6 * scale


def outputs(model, tokens, at, types=None):
    capture = capture_attention(model, 0, positions=POSITIONS, at=at, stop=True)
    with torch.inference_mode(), capture, ExitStack() as stack:
        if types is not None:
            stack.enter_context(types.serving(capture, tokens))
        model(tokens, use_cache=False)
    return capture[0]


def test_only_the_first_attention_is_offered():
    model = tiny("llama")
    assert TokenTypes.found(model, attention_layers(model)[1], tokens_for()) is None


def test_projections_run_once_for_each_distinct_token():
    model = tiny("llama")
    types = TokenTypes.found(model, first(model), tokens_for())
    projection, seen = model.model.layers[0].self_attn.k_proj, []
    handle = projection.register_forward_hook(lambda m, args, out: seen.append(out.shape[:2]))
    rows = types._rows(tokens_for(seed=3))
    assert types._rows(tokens_for(seed=3)).equal(rows)
    handle.remove()
    assert seen == [(16, 64)]
    assert types._n_rows == len(torch.cat([tokens_for(), tokens_for(seed=3)]).unique())


def test_a_row_has_the_same_bits_whatever_was_computed_before():
    model = tiny("llama")
    whole, parts = (TokenTypes.found(model, first(model), tokens_for()) for _ in range(2))
    every = torch.arange(3, 97, device=DEVICE)[None]
    for start in range(0, 94, 7):
        parts._rows(every[:, start : start + 7].flip(1))
    rows = [types._rows(every) for types in (whole, parts)]
    for a, b in zip(whole._tables, parts._tables, strict=True):
        assert a[rows[0]].equal(b[rows[1]])


def test_the_table_grows_beyond_what_was_learned():
    model = tiny("llama")
    types = TokenTypes.found(model, first(model), tokens_for()[:, :8])
    there = types._n_rows
    types.learn(torch.arange(3, 23, device=DEVICE))
    assert there < types._n_rows <= there + 20
    assert len(types._tables[0]) == there + 20
    assert types.holds(first(model), tokens_for(seed=4))
    assert len(types._tables[0]) >= types._n_rows > there + 20
    assert types.row_bytes == 2 * 16 * 4


def spread(module, args, output):
    return output + output.mean(dim=1, keepdim=True)


def later(start):
    """Depends on the position, but only beyond those of a trial."""

    def hook(module, args, output):
        return output + (torch.arange(output.shape[1], device=output.device) >= start)[:, None]

    return hook


def test_an_input_that_depends_on_other_tokens_is_found_out():
    model = copy.deepcopy(tiny("llama"))
    model.model.layers[0].input_layernorm.register_forward_hook(spread)
    assert TokenTypes.found(model, first(model), tokens_for()) is None


@pytest.mark.parametrize(("start", "length"), [(64, 100), (3000, 3010)])
def test_an_input_that_depends_on_late_positions_is_found_out_on_long_prompts(start, length):
    model = copy.deepcopy(tiny("llama"))
    handle = model.model.embed_tokens.register_forward_hook(later(start))
    types = TokenTypes.found(model, first(model), tokens_for())
    assert types is not None
    assert not types.holds(first(model), tokens_for(1, length))
    handle.remove()
    assert types.holds(first(model), tokens_for(1, length))


def test_a_capture_that_needs_all_positions_is_refused():
    model, tokens = tiny("llama"), tokens_for()
    types = TokenTypes.found(model, first(model), tokens)
    capture = capture_attention(model, 0, positions=list(range(30)), stop=True)
    with torch.inference_mode(), pytest.raises(NotServed), capture, types.serving(capture, tokens):
        model(tokens, use_cache=False)
    before, _ = _captured(model, first(model), tokens, POSITIONS)
    after, _ = _captured(model, first(model), tokens, POSITIONS, types)
    torch.testing.assert_close(after, before)


def test_nothing_is_left_on_the_model():
    model = tiny("llama")
    before = [sorted(vars(part)) for part in model.modules()]
    assert TokenTypes.found(model, first(model), tokens_for()) is not None
    assert [sorted(vars(part)) for part in model.modules()] == before
