"""Dispersion × values × coherence is the measured variance, and each factor is what it says."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import DEVICE
from families import no_positions, tiny

from llmprobe import attention_layers, load_model, probe_attention
from llmprobe.capture.calls import listening
from llmprobe.probes.prompts import make_prompts
from llmprobe.results.attention import FACTORS

STORIES = Path(__file__).resolve().parents[3] / "shared/data/stories260K"


def rows_and_values(model, prompts, lengths):
    """By layer: weights and values in float64, (prompts, heads, keys[, size]) for each length.

    All lengths from one forward, as float32 softmaxes of some families round by the number of keys.
    """
    layers = attention_layers(model)
    calls, found = [], {}
    with listening([model.get_submodule(layer.path) for layer in layers], calls.append):
        tokens = prompts.batch(range(prompts.n_prompts), lengths[-1]).to(DEVICE)
        model(input_ids=tokens, use_cache=False)
    index = torch.tensor([[length - 1 for length in lengths]] * prompts.n_prompts).to(DEVICE)
    for layer, call in zip(layers, calls, strict=True):
        (weights,) = (rows.double().cpu().numpy() for rows in call.rows(index))
        n_shared = layer.n_heads // call.value.shape[1]
        values = call.value.repeat_interleave(n_shared, dim=1).double().cpu().numpy()
        found[layer.layer] = [
            (weights[:, :, column, :length], values[:, :, :length])
            for column, length in enumerate(lengths)
        ]
    return found


def by_brute_force(weights, values):
    """Factors, measured variance and shares of each head: two passes, every token by itself."""
    n_prompts = len(weights)
    # A token of value zero has the mass that is missing.
    a = np.concatenate([weights, 1 - weights.sum(-1, keepdims=True)], axis=-1)
    v = np.concatenate([values, np.zeros_like(values[:, :, :1])], axis=2)
    o = np.einsum("phk,phkd->phd", a, v)
    w = v - o.mean(axis=0)[None, :, None]
    np.testing.assert_allclose(  # the identity that the missing token is there for
        np.einsum("phk,phkd->phd", a, w), o - o.mean(axis=0), atol=1e-12
    )
    squares, moved = a**2, a**2 * (w**2).mean(axis=-1)
    total, attended = squares.sum(-1).mean(0), moved.sum(-1).mean(0)
    variance = ((o - o.mean(axis=0)) ** 2).mean(axis=-1).sum(axis=0) / (n_prompts - 1)
    found = {
        "dispersion": total,
        "value_variance": attended / total,
        "coherence": variance / attended,
        "measured_variance": variance,
    }
    for name, key in (("first", 0), ("query", -2), ("missing", -1)):
        found[f"dispersion_{name}"] = squares[..., key].mean(0) / total
        found[f"values_{name}"] = moved[..., key].mean(0) / attended
    return found


def in_float64(model):
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("eager")  # the function that the rows come from
    model.set_experts_implementation("eager")  # the others have no float64
    return model


def check_against_brute_force(model, lengths, n_prompts, rtol):
    result = probe_attention(model, lengths, layers=None, n_prompts=n_prompts)
    vocab = model.config.vocab_size
    prompts = make_prompts("random", n_prompts=n_prompts, lengths=lengths, vocab_size=vocab)
    for layer, pairs in rows_and_values(model, prompts, lengths).items():
        heads = result.layer == layer
        for column, pair in enumerate(pairs):
            for name, values in by_brute_force(*pair).items():
                got = getattr(result, name)[heads, column]
                np.testing.assert_allclose(got, values, rtol=rtol, atol=1e-12, err_msg=name)
    product = np.prod([getattr(result, name) for name in FACTORS], axis=0)
    np.testing.assert_allclose(product, result.measured_variance, rtol=1e-12)
    terms = result.slope_dispersion + result.slope_values + result.slope_coherence
    np.testing.assert_allclose(terms, result.slope_total, rtol=1e-9, atol=1e-12)
    return result


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma2"])
def test_factors_equal_brute_force_and_multiply_to_the_variance(family):
    result = check_against_brute_force(in_float64(tiny(family)), (4, 9, 16), 12, rtol=1e-9)
    missing = result.dispersion_missing
    assert (missing > 1e-4).all() if family == "gpt_oss" else (missing < 1e-9).all()


@pytest.mark.skipif(not STORIES.is_dir(), reason="stories260K is not there")
def test_factors_of_all_heads_of_a_trained_model():
    model = load_model(STORIES, dtype="float32").model
    result = check_against_brute_force(in_float64(model), (8, 24, 64), 16, rtol=1e-9)
    assert np.isfinite(result.slope_coherence_low).all()


def test_half_as_precise_outputs_give_the_same_factors():
    """In float32 and by sdpa, as models are mostly run."""
    fine = probe_attention(in_float64(tiny("gpt_oss")), (4, 16), n_prompts=12)
    coarse = probe_attention(tiny("gpt_oss"), (4, 16), n_prompts=12)
    for name in FACTORS:
        np.testing.assert_allclose(getattr(coarse, name), getattr(fine, name), rtol=1e-4)


def test_intervals_are_a_jackknife_of_the_whole_computation():
    n_prompts, lengths = 32, (4, 8, 16)
    result = probe_attention(tiny("llama"), lengths, n_prompts=n_prompts)
    prompts = make_prompts("random", n_prompts=n_prompts, lengths=lengths, vocab_size=97)
    pairs = rows_and_values(tiny("llama"), prompts, lengths)[0]

    def slopes(chosen):
        """(terms, heads), of the roots of the factors."""
        factors = [by_brute_force(*(x[chosen] for x in pair)) for pair in pairs]
        x = np.log(lengths)
        return np.array(
            [np.polyfit(x, 0.5 * np.log([f[name] for f in factors]), 1)[0] for name in FACTORS]
        )

    groups = np.arange(n_prompts) % 16
    without = np.array([slopes(groups != group) for group in range(16)])
    error = np.sqrt(15 / 16 * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    for row, term in enumerate(("dispersion", "values", "coherence")):
        low, high = (getattr(result, f"slope_{term}_{end}") for end in ("low", "high"))
        ratio = (high - low) / 2 / error[row]
        assert (ratio > 2.1).all()  # t of at most 15 degrees of freedom
        np.testing.assert_allclose((low + high) / 2, slopes(groups >= 0)[row], rtol=1e-3, atol=1e-4)
    for name in FACTORS:
        value, low, high = (getattr(result, name + end) for end in ("", "_low", "_high"))
        assert ((low < value) & (value < high)).all()
        np.testing.assert_allclose(np.sqrt(low * high), value, rtol=1e-9)


def test_of_a_head_that_disperses_nothing_but_dispersion_has_a_slope():
    result = probe_attention(no_positions(), "32..512", query="fixed", n_prompts=128)
    np.testing.assert_allclose(result.slope_dispersion, -0.5, atol=0.01)
    np.testing.assert_allclose(result.slope_values, 0, atol=0.02)
    assert (np.abs(result.coherence - 1) < 0.3).all()
    assert (np.abs(result.slope_coherence) < 0.06).all()
    assert set(result.decides()) == {"dispersion"}


def test_tokens_that_cannot_vary_make_a_head_incoherent():
    """Behind BOS and before a fixed query one token of three varies, among sixteen fourteen do."""
    options = {"query": "id:5", "bos": "yes", "n_prompts": 64}
    result = probe_attention(no_positions(), (3, 16), **options)
    fixed = result.dispersion_first + result.dispersion_query
    np.testing.assert_allclose(fixed, [[2 / 3, 2 / 16]] * 4, rtol=0.05)
    assert (result.coherence[:, 0] < 0.7).all()
    assert (result.coherence[:, 0] < result.coherence[:, 1]).all()


def test_where_there_are_no_terms_it_is_said_why():
    unseen = probe_attention(tiny("bloom"), (4, 8), layers=None, n_prompts=6)
    assert any("layers 0, 1: modules do not show their values" in x for x in unseen.warnings)
    gated = probe_attention(tiny("qwen3_next"), (4, 8), layers=None, n_prompts=6)
    assert any("layer 1: outputs of heads are not Σ a v" in note for note in gated.warnings)
    for result in (unseen, gated):
        assert np.isnan(result.coherence).all()
        assert np.isnan(result.values_first).all()
        assert np.isfinite(result.slope_total_high).all()  # of the outputs alone
        assert set(result.decides()) == {""}
        with pytest.raises(ValueError, match=r"does not show its values, .* use another figure"):
            result.plot("terms")


def test_one_length_has_no_slopes_and_two_prompts_have_no_intervals():
    result = probe_attention(tiny("llama"), 8, n_prompts=6)
    assert np.isfinite(result.coherence_high).all()
    assert np.isnan(result.slope_total).all()
    two = probe_attention(tiny("llama"), (4, 8), n_prompts=2)
    assert np.isfinite(two.coherence).all()
    assert np.isnan(two.coherence_low).all()  # without one group a single prompt is left
