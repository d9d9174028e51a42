"""Laws of the softmax and its rivals."""

import math

import pytest
import torch
from devices import DEVICE

from llmprobe.synthetic.set_network import PARTS
from llmprobe.synthetic.softmaxes import (
    DifferentialSoftmax,
    NormalizedScores,
    RandomItems,
    ScalableSoftmax,
    Softmax,
)

SEEDS, BATCH, HEADS, SIZE = 2, 3, 4, 8
KINDS = [Softmax, *(part.build for part in PARTS.values() if part.place == "softmax")]
every_kind = pytest.mark.parametrize("kind", KINDS)


def logits(n, *, maps=1, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(n)
    shape = (SEEDS * BATCH, maps * HEADS, n)
    return scale * torch.randn(shape, generator=generator, dtype=dtype).to(DEVICE)


def build(kind):
    return kind(SEEDS, HEADS, SIZE).double().to(DEVICE)


def randomize(module):
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data += 0.3 * noise.to(DEVICE)
    return module


def entropy(weights):
    return -(weights * weights.clamp(min=1e-300).log()).sum(dim=-1)


@every_kind
@pytest.mark.parametrize("n", [1, 2, 9, 300])
def test_shape_order_and_a_constant_in_all_logits(kind, n):
    softmax = randomize(build(kind))
    x = logits(n, maps=softmax.maps)
    weights = softmax(x)
    assert weights.shape == (SEEDS * BATCH, HEADS, n)
    assert weights.isfinite().all()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    if kind is not RandomItems:  # which items, is a lot that their places draw
        torch.testing.assert_close(softmax(x[..., order]), weights[..., order])
    shift = logits(1, maps=softmax.maps)
    torch.testing.assert_close(softmax(x + shift), weights)


@every_kind
def test_a_seed_gets_what_its_parameters_say(kind):
    softmax = randomize(build(kind))
    x = logits(5, maps=softmax.maps)
    for seed in range(SEEDS):
        one = kind(1, HEADS, SIZE).double().to(DEVICE)
        one.load_state_dict({k: v[seed : seed + 1] for k, v in softmax.state_dict().items()})
        part = slice(seed * BATCH, (seed + 1) * BATCH)
        torch.testing.assert_close(one(x[part]), softmax(x)[part])


@pytest.mark.parametrize("kind", [Softmax, ScalableSoftmax])
@pytest.mark.parametrize("cold", [False, True])
def test_weights_are_positive_and_sum_to_one(kind, cold):
    softmax = randomize(build(kind))
    softmax.cold = cold
    for n in (1, 7, 500):
        weights = softmax(logits(n))
        assert (weights >= 0).all()
        sums = weights.sum(dim=-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_ssmax_begins_as_the_softmax_of_ten_items():
    softmax = build(ScalableSoftmax)
    torch.testing.assert_close(softmax(logits(10)), logits(10).softmax(dim=-1))
    for n in (3, 1000):
        colder = (logits(n) * math.log(n) / math.log(10)).softmax(dim=-1)
        torch.testing.assert_close(softmax(logits(n)), colder)


def test_ssmax_does_not_disperse():
    """One logit above equal ones by more than 1 / s keeps its weight however many there are."""
    plain, scalable = [], []
    for n in (10, 1000, 100_000):
        x = torch.zeros(SEEDS, HEADS, n, dtype=torch.float64, device=DEVICE)
        x[..., 0] = 4.0
        plain.append(build(Softmax)(x)[0, 0, 0].item())
        scalable.append(build(ScalableSoftmax)(x)[0, 0, 0].item())
    assert plain[0] > 0.8
    assert plain[-1] < 0.001
    assert scalable == sorted(scalable)


def test_differential_weights_sum_to_one_minus_lambda():
    softmax = build(DifferentialSoftmax)
    assert softmax.start == pytest.approx(0.2)  # of the first layer: 0.8 − 0.6
    # With all vectors zero, λ is λ_init.
    sums = softmax(logits(6, maps=2)).sum(dim=-1)
    torch.testing.assert_close(sums, torch.full_like(sums, 0.8))
    for seed in range(SEEDS):
        softmax.draw(seed, torch.Generator().manual_seed(seed))
    sums = softmax(logits(6, maps=2)).sum(dim=-1)
    q1, k1, q2, k2 = softmax.vectors[1]
    strength = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + 0.2
    torch.testing.assert_close(sums[BATCH:], (1 - strength).expand(BATCH, HEADS))


def test_differential_pairs_the_first_maps_with_the_second():
    x = logits(6, maps=2)
    weights = build(DifferentialSoftmax)(x)
    for head in range(HEADS):
        expected = x[:, head].softmax(dim=-1) - 0.2 * x[:, HEADS + head].softmax(dim=-1)
        torch.testing.assert_close(weights[:, head], expected)


def test_normalized_scores_have_their_gain_as_deviation_and_their_shift_as_mean():
    softmax = randomize(build(NormalizedScores))
    weights = softmax(logits(400, scale=5.0))
    gain, shift = (p.repeat_interleave(BATCH, dim=0) for p in (softmax.gain, softmax.shift))
    torch.testing.assert_close(weights.mean(dim=-1), shift)
    torch.testing.assert_close(weights.std(dim=-1, correction=0), gain.abs(), rtol=1e-5, atol=1e-8)


def test_a_cold_softmax_changes_nothing_up_to_an_entropy_of_a_half():
    softmax = build(Softmax)
    peaked, spread = logits(16, scale=40.0), logits(300)
    peaked = peaked[(entropy(softmax(peaked)) <= 0.5).all(dim=-1)]
    assert len(peaked) > 0
    warm = softmax(peaked), softmax(spread)
    softmax.cold = True
    assert torch.equal(softmax(peaked), warm[0])
    assert (entropy(softmax(spread)) < entropy(warm[1]) - 0.1).all()
