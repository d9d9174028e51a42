"""One pass for all lengths, or chunks, only where the model gives what it gives for each alone."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from devices import DEVICE
from families import tiny
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llmprobe import probe_attention, probe_variance
from llmprobe.base.lengths import lengths_to_check
from llmprobe.probes import request
from llmprobe.probes.agreement import thresholds

ORIGINAL = 32
"""Positions that the tiny models pretend to be trained for, before scaling."""
SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "longrope": {
        "short_factor": [1.0] * 4,
        "long_factor": [2.0, 4.0, 6.0, 8.0],
        "original_max_position_embeddings": ORIGINAL,
        "factor": 4.0,
    },
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
RANGES = {
    "within": (4, 16, 32),
    "just beyond": (8, 31, 32, 33, 34),
    "two beyond": (8, 24, 64, 100),
    "all beyond": (40, 64, 100),
}


def test_every_type_of_scaling_is_here():
    assert SCALINGS.keys() >= ROPE_INIT_FUNCTIONS.keys()


def make(scaling, family="llama"):
    configs = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "phi3": (Phi3Config, Phi3ForCausalLM),
    }
    make_config, make_model = configs[family]
    # Dynamic scaling begins where the model's positions end; the others have a field for it.
    longest = ORIGINAL if scaling == "dynamic" else 4 * ORIGINAL
    own = {"original_max_position_embeddings": ORIGINAL} if family == "phi3" else {}
    config = make_config(
        **own,
        vocab_size=97,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        rope_parameters={"rope_type": scaling, "rope_theta": 100.0, **SCALINGS[scaling]},
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_model(config).eval().requires_grad_(False).to(DEVICE)


def temper(model, *, beyond=0):
    """Attention whose temperature grows with the length of the whole input, past a threshold."""

    def before(module, args, kwargs):
        hidden = args[0] if args else kwargs["hidden_states"]
        n = hidden.shape[1]
        scale = 1 + 0.3 * max(0, np.log(n / beyond)) if beyond else 1 + 0.1 * np.log(n)
        module.scaling = module.head_dim**-0.5 * float(scale)

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(before, with_kwargs=True)
    return model


MODELS = {
    **{name: (make, name) for name in SCALINGS},
    "longrope phi3": (make, "longrope", "phi3"),
    "tempered": (lambda: temper(make("default")),),
    "tempered beyond": (lambda: temper(make("default"), beyond=ORIGINAL),),
    "one tempered layer": (lambda: temper_last(make("default")),),
}


def temper_last(model):
    """Only the last layer depends on the length, and its outputs are the smallest."""
    temper(model)
    for layer in model.model.layers[:-1]:
        layer.self_attn._forward_pre_hooks.clear()
        layer.self_attn._forward_pre_hooks_with_kwargs.clear()
        layer.self_attn.v_proj.weight.data *= 1000
    return model


def numbers(result):
    """The numbers of a result, by column."""
    return result.to_frame().select_dtypes("number")


def assert_close(got, expected):
    """Λ is one over a gap of logits: between near ties rounding is a large part of it."""
    loose = [name for name in got if name.startswith(("log_lambda", "lambda"))]
    pd.testing.assert_frame_equal(got[loose], expected[loose], rtol=1e-2, atol=1e-2)
    rest = [name for name in got if name not in loose]
    pd.testing.assert_frame_equal(got[rest], expected[rest], rtol=1e-4, atol=1e-5)


def alone(monkeypatch, model, lengths, probe=probe_variance, **options):
    """The reference: one pass per length, of a model that has seen nothing before."""
    with monkeypatch.context() as patch:
        patch.setattr(request, "prefixes_agree", lambda *_, **__: False)
        return numbers(probe(copy.deepcopy(model), lengths, layers=None, n_prompts=4, **options))


@pytest.mark.parametrize(
    "range_",
    # Those on both sides of a threshold are where one pass can be wrong.
    [pytest.param(r, marks=[pytest.mark.slow] if "beyond" not in r else []) for r in RANGES],
)
@pytest.mark.parametrize("name", MODELS)
def test_every_length_has_the_numbers_that_it_has_alone(name, range_, monkeypatch):
    build, *arguments = MODELS[name]
    model, lengths = build(*arguments), RANGES[range_]
    result = probe_variance(copy.deepcopy(model), lengths, layers=None, n_prompts=4)
    assert_close(numbers(result), alone(monkeypatch, model, lengths))
    noted = any("one pass per length" in note for note in result.warnings)
    static = name.split()[0] in ("default", "linear", "yarn", "llama3", "proportional")
    assert not (static and noted)  # one pass where one pass is right


@pytest.mark.parametrize("name", MODELS)
def test_fixed_queries_have_the_numbers_that_they_have_alone(name, monkeypatch):
    """They are branches of the longest prompts where the model allows that."""
    build, *arguments = MODELS[name]
    model, lengths = build(*arguments), RANGES["two beyond"]
    fixed = {"query": "id:5"}  # of several, the variance between them is a small difference
    result = probe_variance(copy.deepcopy(model), lengths, layers=None, n_prompts=4, **fixed)
    assert_close(numbers(result), alone(monkeypatch, model, lengths, **fixed))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_ran_before_changes_no_bit(scaling):
    model = make(scaling)
    for lengths in ((8, 24, 64, 100), (16, 32), (32,), (48,), (40, 64)):
        fresh = probe_variance(make(scaling), lengths, layers=None, n_prompts=4)
        for long in (None, 128):
            if long is not None:
                model(torch.ones(1, long, dtype=int, device=DEVICE))
            again = probe_variance(model, lengths, layers=None, n_prompts=4)
            assert again.to_frame().equals(fresh.to_frame()), (lengths, long)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rows_have_the_numbers_that_they_have_alone(scaling, monkeypatch):
    model, lengths = make(scaling), (8, 24, 64, 100)
    result = probe_attention(copy.deepcopy(model), lengths, layers=None, n_prompts=4)
    assert_close(numbers(result), alone(monkeypatch, model, lengths, probe_attention))


@pytest.mark.parametrize("scaling", [*SCALINGS, "tempered"])
@pytest.mark.parametrize("original", [ORIGINAL, 150])
def test_chunks_give_the_same_numbers_or_are_refused(scaling, original, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ORIGINAL", original)
    settings = {
        k: original if k == "original_max_position_embeddings" else v
        for k, v in SCALINGS.get(scaling, {}).items()
    }
    monkeypatch.setitem(SCALINGS, scaling, settings)
    model = temper(make("default")) if scaling == "tempered" else make(scaling)
    lengths = (8, 200)
    whole = probe_variance(copy.deepcopy(model), lengths, layers=None, n_prompts=4)
    try:
        cut = probe_variance(model, lengths, layers=None, n_prompts=4, chunk=40)
    except ValueError as error:
        assert "gives other numbers in chunks" in str(error)  # noqa: PT017
        assert scaling in ("dynamic", "longrope", "tempered")
    else:
        assert_close(numbers(cut), numbers(whole))


def test_many_lengths_are_found_out_too(monkeypatch):
    model, lengths = make("longrope"), (*range(4, 100, 4), 100)
    result = probe_variance(copy.deepcopy(model), lengths, layers=None, n_prompts=4)
    assert_close(numbers(result), alone(monkeypatch, model, lengths))


def test_a_deep_layer_is_found_out_where_the_config_names_no_threshold(monkeypatch):
    """Then long prompts are compared in the first layers only, and short ones in all."""
    monkeypatch.setattr("llmprobe.probes.agreement._DEEP", 48)
    monkeypatch.setattr("llmprobe.probes.agreement.thresholds", lambda model: [])
    lengths = (4, 16, 64)
    for model, found in ((temper_last(make("default")), True), (make("default"), False)):
        result = probe_variance(copy.deepcopy(model), lengths, layers=None, n_prompts=4)
        assert_close(numbers(result), alone(monkeypatch, model, lengths))
        assert any("one pass per length" in note for note in result.warnings) == found


@pytest.mark.parametrize("step", [1, 3, 10, 64])
@pytest.mark.parametrize("bound", [1, 60, 61, 100, 511, 512, 900])
def test_lengths_next_to_a_bound_are_checked_and_the_rest_is_cheap(step, bound):
    lengths = [*range(4, 512, step), 512]
    chosen = lengths_to_check(lengths, [bound])
    assert set(chosen) < set(lengths)
    assert {lengths[0], lengths[-2]} <= set(chosen)
    assert sum(chosen) <= 4 * 512
    below = [n for n in lengths if n < bound]
    above = [n for n in lengths if bound < n < 512]
    if bound in range(5, 512):
        assert {*below[-1:], *above[:1], *(n for n in lengths[:-1] if n == bound)} <= set(chosen)


def test_doubling_lengths_are_all_checked():
    lengths = [16 * 2**n for n in range(11)]
    assert lengths_to_check(lengths, [100, 4096]) == lengths[:-1]
    assert lengths_to_check([8, 9], []) == [8]


def test_thresholds_are_what_the_config_says_of_tokens():
    assert ORIGINAL in thresholds(make("longrope"))
    assert ORIGINAL in thresholds(make("dynamic"))
    assert 4 in thresholds(tiny("mistral"))  # the window
    assert 4 in thresholds(tiny("llama4_text"))  # the chunk
    assert 97 not in thresholds(tiny("llama"))  # the vocabulary
    assert thresholds(torch.nn.Linear(1, 1)) == []
