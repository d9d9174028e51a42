"""A layer of many seeds does for each of them what torch's own layer does."""

import pytest
import torch
from devices import DEVICE
from torch import nn
from torch.nn import functional as F

from llmprobe.synthetic.layers import (
    INITIAL,
    SeedDropout,
    SeedEmbedding,
    SeedLinear,
    SeedMlp,
    SeedNorm,
    by_seed,
    no_drop,
)

SEEDS, BATCH = 3, 4


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def randomize(module):
    generator = rng(9)
    for parameter in module.parameters():
        parameter.data.normal_(generator=generator)
    return module.to(DEVICE)


def rows(*shape):
    return torch.randn(SEEDS * BATCH, *shape, generator=rng(1)).to(DEVICE)


def test_a_batch_holds_one_seed_after_another():
    x = torch.arange(6)
    assert by_seed(x, 2).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map_equals_that_of_each_seed(bias):
    layer = randomize(SeedLinear(SEEDS, 5, 7, bias=bias))
    x = rows(2, 5)
    expected = []
    for seed, part in enumerate(by_seed(x, SEEDS)):
        shift = layer.bias[seed] if bias else None
        expected.append(F.linear(part, layer.weight[seed].T, shift))
    torch.testing.assert_close(layer(x), torch.cat(expected))
    # Also of what is not contiguous.
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(layer(turned), torch.cat(expected))


def test_an_mlp_is_two_maps_with_a_gelu_between():
    layer = randomize(SeedMlp(SEEDS, 5, 6, 2))
    x = rows(1, 5)
    expected = []
    for seed, part in enumerate(by_seed(x, SEEDS)):
        inner = part @ layer.first.weight[seed] + layer.first.bias[seed]
        normal = torch.distributions.Normal(0.0, 1.0)
        expected.append(inner * normal.cdf(inner) @ layer.second.weight[seed])
        expected[-1] = expected[-1] + layer.second.bias[seed]
    torch.testing.assert_close(layer(x), torch.cat(expected))


def test_initial_values_are_distributed_as_those_of_torch_and_a_seed_has_its_own():
    layer = SeedLinear(2, 25, 4000)
    layer.draw(0, rng(0))
    torch_layer = nn.Linear(25, 4000)
    for mine, its in ((layer.weight, torch_layer.weight), (layer.bias, torch_layer.bias)):
        assert mine[0].std().item() == pytest.approx(its.std().item(), rel=0.05)
        assert mine[0].abs().max().item() == pytest.approx(0.2, rel=0.01)
        assert mine[1].abs().max() == 0  # not drawn yet
    layer.draw(1, rng(0))
    assert torch.equal(layer.weight[0], layer.weight[1])
    layer.draw(1, rng(1))
    assert not torch.equal(layer.weight[0], layer.weight[1])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("gain", "bias"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)])
def test_a_norm_equals_that_of_each_seed(center, gain, bias, shape):
    layer = randomize(SeedNorm(SEEDS, 6, gain=gain, bias=bias, center=center))
    x = 3 * rows(*shape) + 2
    expected = []
    for seed, part in enumerate(by_seed(x, SEEDS)):
        if center:
            part = part - part.mean(dim=-1, keepdim=True)
        part = part / (part.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        part = part * layer.gain[seed] if gain else part
        expected.append(part + layer.bias[seed] if bias else part)
    torch.testing.assert_close(layer(x), torch.cat(expected))


def test_an_embedding_equals_that_of_each_seed_and_so_does_its_gradient():
    layer = randomize(SeedEmbedding(SEEDS, 11, 5))
    tokens = torch.randint(11, (SEEDS * BATCH, 7), generator=rng(2)).to(DEVICE)
    answer, weight = layer(tokens), rows(7, 5)
    assert answer.shape == (SEEDS * BATCH, 7, 5)
    (answer * weight).sum().backward()
    for seed, part in enumerate(by_seed(tokens, SEEDS)):
        alone = nn.Embedding(11, 5, device=DEVICE)
        alone.weight.data.copy_(layer.weight.data[seed])
        own = alone(part)
        assert torch.equal(by_seed(answer, SEEDS)[seed], own)
        (own * by_seed(weight, SEEDS)[seed]).sum().backward()
        torch.testing.assert_close(layer.weight.grad[seed], alone.weight.grad)


def test_an_embedding_draws_each_seed_on_its_own():
    layer = SeedEmbedding(2, 300, 100)
    layer.draw(1, rng(3))
    assert layer.weight[0].abs().max() == 0
    assert layer.weight[1].std().item() == pytest.approx(INITIAL, rel=0.02)
    layer.draw(0, rng(3))
    assert torch.equal(layer.weight[0], layer.weight[1])


def dropout(rates, seeds=None):
    generators = [torch.Generator(DEVICE) for _ in rates]
    for generator, seed in zip(generators, seeds or range(len(rates)), strict=True):
        generator.manual_seed(seed)
    return SeedDropout(rates, generators)


@pytest.mark.parametrize("shape", [(2000,), (20, 100), (2, 10, 100)])
def test_dropout_keeps_its_share_and_the_mean(shape):
    rates = (0.1, 0.3, 0.75)
    x = torch.ones(SEEDS * BATCH, *shape, device=DEVICE)
    dropped = by_seed(dropout(rates)(x), SEEDS)
    for rate, own in zip(rates, dropped, strict=True):
        kept = own != 0
        assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.025)
        torch.testing.assert_close(own[kept], torch.full_like(own[kept], 1 / (1 - rate)))
        assert own.mean().item() == pytest.approx(1, abs=0.08)
        assert kept.flatten(1).unique(dim=0).shape[0] == BATCH  # each example has its own mask


def test_what_dropout_keeps_is_x_scaled_in_the_type_of_x():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = rows(6).to(dtype)
        dropped = dropout((0.5, 0.5, 0.5))(x)
        assert dropped.dtype == dtype
        assert torch.equal(dropped, torch.where(dropped != 0, 2 * x, 0))


def test_a_seeds_mask_does_not_depend_on_its_neighbors():
    x = rows(5, 8)
    together = dropout((0.2, 0.4, 0.0), seeds=(7, 8, 9))
    alone = dropout((0.4,), seeds=(8,))
    turned = dropout((0.9, 0.4), seeds=(1, 8))
    for _ in range(3):  # step after step
        middle = by_seed(together(x), SEEDS)[1]
        assert torch.equal(middle, alone(by_seed(x, SEEDS)[1]))
        assert torch.equal(middle, by_seed(turned(x[: 2 * BATCH]), 2)[1])
        assert not torch.equal(middle, by_seed(x, SEEDS)[1])


def test_masks_differ_from_call_to_call_and_from_seed_to_seed():
    drop, x = dropout((0.5, 0.5, 0.5)), torch.ones(SEEDS * BATCH, 50, device=DEVICE)
    first, second = by_seed(drop(x), SEEDS), by_seed(drop(x), SEEDS)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_without_a_rate_x_stays_as_it_is():
    x = rows(2, 6)
    assert torch.equal(dropout((0.0, 0.0, 0.0))(x), x)
    mixed = by_seed(dropout((0.0, 0.9, 0.0))(x), SEEDS)
    assert torch.equal(mixed[[0, 2]], by_seed(x, SEEDS)[[0, 2]])
    assert no_drop(x) is x


def test_dropout_leaves_the_global_generator_alone_and_passes_gradients_by_its_mask():
    state = torch.random.get_rng_state()
    x = rows(6).requires_grad_()
    dropped = dropout((0.5, 0.1, 0.0))(x)
    assert torch.equal(torch.random.get_rng_state(), state)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), dropped.detach())
