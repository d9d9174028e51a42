"""Ready-made edits are their formulas."""

import copy

import numpy as np
import pytest
import torch
from devices import DEVICE
from families import batch, tiny

from llmprobe import capture_attention, capture_rows, edit_attention
from llmprobe.base.temperatures import entropy_scaling
from llmprobe.capture.edits import (
    LengthMoments,
    ablate,
    adapt_temperature,
    restore_moments,
    restore_norms,
    restore_slopes,
    scale_outputs,
)


def heads_of(model, inputs):
    with capture_attention(model, 0, at="heads") as captured:
        model(**inputs, use_cache=False)
    return captured[0]


@pytest.fixture
def moments():
    generator = torch.Generator().manual_seed(0)
    mean, std = (torch.rand(3, 4, 8, generator=generator) + 0.1 for _ in range(2))
    return LengthMoments((2, 8, 32), mean, std)


def test_moments_between_lengths_are_interpolated_over_the_logarithm(moments):
    n = torch.tensor([[1, 2, 3, 5, 8], [9, 16, 31, 32, 1000]])
    mean, std = moments.at(n)
    assert mean.shape == (2, 5, 4, 8)
    at, knots = np.log(n.numpy()), np.log(moments.lengths)
    for head in range(4):
        for feature in range(8):
            own, wide = (x[:, head, feature].numpy() for x in (moments.mean, moments.std))
            expected = np.interp(at, knots, own)
            np.testing.assert_allclose(mean[..., head, feature], expected, rtol=1e-5)
            expected = np.exp(np.interp(at, knots, np.log(wide)))
            np.testing.assert_allclose(std[..., head, feature], expected, rtol=1e-5)


def test_moments_of_one_length_hold_everywhere(moments):
    one = LengthMoments((8,), moments.mean[:1], moments.std[:1])
    mean, std = one.at(torch.tensor([1, 8, 50]))
    for got, own in ((mean, one.mean), (std, one.std)):
        torch.testing.assert_close(got, own.expand(3, -1, -1))


@pytest.mark.parametrize("dose", [0.0, 0.5, 1.0])
def test_restored_outputs_have_the_moments_of_the_reference(moments, dose):
    model, inputs = tiny("llama"), batch("llama", (12,))
    plain = heads_of(model, inputs)
    with edit_attention(model, 0, outputs=restore_moments({0: moments}, reference=4, dose=dose)):
        got = heads_of(model, inputs)
    assert torch.equal(got[:, :4], plain[:, :4])
    if dose == 0:
        assert torch.equal(got, plain)
        return
    for n in range(5, 13):
        (mean, std), (usual, width) = (moments.at(torch.tensor(x, device=DEVICE)) for x in (n, 4))
        expected = mean + dose * (usual - mean) + (plain[:, n - 1] - mean) * (width / std) ** dose
        torch.testing.assert_close(got[:, n - 1], expected, atol=1e-5, rtol=1e-4)


def test_a_feature_that_does_not_vary_keeps_its_width(moments):
    flat = LengthMoments(moments.lengths, moments.mean, torch.zeros_like(moments.std))
    model, inputs = tiny("llama"), batch("llama", (12,))
    with edit_attention(model, 0, outputs=restore_moments({0: flat}, reference=2)):
        assert heads_of(model, inputs).isfinite().all()


@pytest.mark.parametrize("reference", [1, 2, 4, 8, 40])
def test_moments_one_after_the_other_restore_as_both_in_turn(moments, reference):
    generator = torch.Generator().manual_seed(1)
    mean, std = (torch.rand(3, 4, 8, generator=generator) + 0.1 for _ in range(2))
    left = LengthMoments(moments.lengths, mean, std)
    x, n = torch.randn(5, 3, 4, 8, generator=generator), torch.tensor([2, 8, 32])[None, :, None]
    expected = x
    for one in (moments, left):
        edited = restore_moments({0: one}, reference=reference)(0, expected, n)
        expected = expected if edited is None else edited
    both = restore_moments({0: moments.then(left, reference)}, reference=reference)(0, x, n)
    torch.testing.assert_close(x if both is None else both, expected)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "mistral"])
def test_the_adaptive_temperature_is_that_of_each_rows_entropy(family):
    model, inputs = tiny(family), batch(family, (7, 12), "left")
    positions = [0, 3, 6]
    with capture_rows(model, 0, positions=positions, weights=True) as plain:
        model(**inputs, use_cache=False)
    for dose in (0.0, 1.0, 2.0):
        with (
            edit_attention(model, 0, queries=adapt_temperature(dose)),
            capture_rows(model, 0, positions=positions, weights=True) as got,
        ):
            model(**inputs, use_cache=False)
        weights = plain[0].weights
        if dose == 0:
            assert torch.equal(got[0].weights, weights)
            continue
        beta = entropy_scaling(weights) ** dose
        assert (beta > 1).any()
        if family == "gpt_oss":  # a learned sink keeps its logit
            got_weights = got[0].weights / got[0].weights.sum(-1, keepdim=True)
        else:
            got_weights = got[0].weights
        expected = (weights.log() * beta).softmax(-1)
        torch.testing.assert_close(got_weights, expected, atol=1e-5, rtol=1e-4)


def test_outputs_can_be_replaced_by_means():
    model, inputs = tiny("llama"), batch("llama", (12,))
    mean = heads_of(model, inputs).mean(dim=(0, 1))
    with edit_attention(model, 0, heads=1, outputs=ablate({0: mean})):
        got = heads_of(model, inputs)
    assert torch.equal(got[:, :, 1], mean[1].expand(1, 12, -1))
    assert torch.equal(got[:, :, 2], heads_of(model, inputs)[:, :, 2])


def test_gains_in_half_precision_are_multiplied_in_float32():
    model, inputs = copy.deepcopy(tiny("llama")).bfloat16(), batch("llama", (12,))
    plain = heads_of(model, inputs)
    with edit_attention(model, 0, outputs=scale_outputs(lambda n: n.double() ** 0.1)):
        got = heads_of(model, inputs)
    n = torch.arange(1, 13, device=DEVICE)[None, :, None, None]
    assert torch.equal(got, (plain.float() * n.float() ** 0.1).bfloat16())


def test_slopes_are_given_back_as_a_power_of_the_keys():
    model, inputs = tiny("llama"), batch("llama", (12,))
    plain, slopes = heads_of(model, inputs).cpu(), torch.tensor([-0.5, -0.25, 0.0, 0.1])
    with edit_attention(model, 0, outputs=restore_slopes({0: slopes}, reference=4, dose=2.0)):
        got = heads_of(model, inputs)
    n = torch.arange(1, 13).clamp(min=4)[None, :, None]
    torch.testing.assert_close(got.cpu(), plain * ((n / 4) ** (-2 * slopes))[..., None])


def test_norms_are_given_back_and_can_be_kept(moments):
    model, inputs = tiny("llama"), batch("llama", (12,))
    plain, usual = heads_of(model, inputs), torch.arange(1.0, 5.0)
    with edit_attention(model, 0, outputs=restore_norms({0: usual}, reference=4)):
        got = heads_of(model, inputs)
    assert torch.equal(got[:, :4], plain[:, :4])
    torch.testing.assert_close(got[:, 4:].norm(dim=-1).cpu(), usual.expand(1, 8, -1))
    same = torch.cosine_similarity(got, plain, dim=-1)
    torch.testing.assert_close(same, torch.ones_like(same))
    control = restore_moments({0: moments}, reference=4, keep_norm=True)
    with edit_attention(model, 0, outputs=control):
        kept = heads_of(model, inputs)
    torch.testing.assert_close(kept.norm(dim=-1), plain.norm(dim=-1))
    assert (torch.cosine_similarity(kept, plain, dim=-1)[:, 4:] < 0.999).all()
