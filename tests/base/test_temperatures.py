"""Each scaling is its paper's formula, and does nothing where it should not."""

import math

import numpy as np
import pytest
import torch

from llmprobe.base.temperatures import (
    dosed,
    entropy_scaling,
    floor_scaling,
    information_scaling,
    log_scaling,
    yarn_scaling,
)

L, D = 2048, 64
N = torch.tensor([1, 2, 100, L - 1, L, L + 1, 2 * L, 8 * L])
BY_LENGTH = {
    "log": lambda n: log_scaling(n, trained=L),
    "floor": lambda n: floor_scaling(n, trained=L),
    "information": lambda n: information_scaling(n, trained=L, head_size=D),
}


@pytest.mark.parametrize("name", BY_LENGTH)
def test_up_to_the_trained_length_nothing_changes(name):
    scale = BY_LENGTH[name](N)
    assert torch.equal(scale[N <= L], torch.ones(5, dtype=torch.float64))
    assert (scale[N > L].diff() >= 0).all()
    assert scale[-1] > 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("log", math.log(8 * L) / math.log(L)),
        ("floor", 1 + 0.1 * math.log(1 + (8 * L - 1) // L)),
        ("information", math.sqrt((1 - (8 * L) ** (-2 / D)) / (1 - L ** (-2 / D)))),
    ],
)
def test_beyond_it_the_formula_holds(name, expected):
    assert float(BY_LENGTH[name](N)[-1]) == pytest.approx(expected, rel=1e-12)


def test_yarn_is_one_constant_for_all_positions():
    assert yarn_scaling(8) == pytest.approx((0.1 * math.log(8) + 1) ** 2)
    assert yarn_scaling(1) == yarn_scaling(0.5) == 1


def test_published_sizes_of_the_remedies_at_eight_times_the_context():
    """Of the same lengths the papers' remedies differ much: the dose is what to sweep."""
    at = N[-1:]
    got = [
        float(log_scaling(at, trained=L)),
        yarn_scaling(8),
        float(information_scaling(at, trained=L, head_size=D)),
    ]
    assert got == pytest.approx([1.27, 1.46, 1.11], abs=0.01)


def test_a_dose_multiplies_the_logarithm():
    scale = log_scaling(N, trained=L)
    assert torch.equal(dosed(scale, 0), torch.ones_like(scale))
    assert torch.equal(dosed(scale, 1), scale)
    torch.testing.assert_close(dosed(scale, 2).log(), 2 * scale.log())


@pytest.mark.parametrize("n", [2, 5, 50, 5000])
@pytest.mark.parametrize("size", [0.0, 1.0, 3.0, 10.0])
def test_the_adaptive_scaling_is_the_papers_polynomial(n, size):
    """arXiv 2410.01104: the highest power first, at least one, and one up to an entropy of 0.5."""
    generator = torch.Generator().manual_seed(n)
    logits = size * torch.randn(6, n, generator=generator, dtype=torch.float64)
    weights = logits.softmax(dim=-1)
    h = torch.special.entr(weights).sum(-1).numpy()
    beta = np.maximum(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h), 1.0)
    expected = np.where(h > 0.5, beta, 1.0)
    # 1e-9 within the logarithm moves the entropy a little.
    np.testing.assert_allclose(entropy_scaling(weights)[..., 0].numpy(), expected, rtol=1e-4)
