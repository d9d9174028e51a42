"""A layer of many seeds does for each of them what torch's own layer does."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from llmprobe.synthetic.layers import SeedLinear, SeedMlp, SeedNorm, by_seed

SEEDS, BATCH = 3, 4


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def randomize(module):
    generator = rng(9)
    for parameter in module.parameters():
        parameter.data.normal_(generator=generator)
    return module


def rows(*shape):
    return torch.randn(SEEDS * BATCH, *shape, generator=rng(1))


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
