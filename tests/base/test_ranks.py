"""Rank correlations within lengths: scipy's for one length, free of length for several."""

import numpy as np
import pytest
from scipy import stats

from llmprobe.base.ranks import correlate_ranks


def test_at_one_length_it_is_spearmans():
    rng = np.random.default_rng(0)
    y, x = rng.integers(0, 2, size=(40, 1)).astype(float), rng.normal(size=(40, 1, 3))
    x[:, 0, 0] += y[:, 0]
    rho, low, high = correlate_ranks(y, x)
    wanted = [stats.spearmanr(y[:, 0], x[:, 0, n]).statistic for n in range(3)]
    np.testing.assert_allclose(rho, wanted, atol=1e-12)
    assert (low < rho).all()
    assert (rho < high).all()


def test_what_all_lengths_share_does_not_correlate():
    """Longer prompts are harder and have smaller weights; within a length nothing goes together."""
    rng = np.random.default_rng(1)
    hard = np.array([0.0, 10.0, 20.0])
    y, x = rng.normal(size=(400, 3)) + hard, rng.normal(size=(400, 3, 1)) + hard[:, None]
    assert stats.spearmanr(y.ravel(), x.ravel()).statistic > 0.8
    rho, low, high = correlate_ranks(y, x)
    assert low[0] < 0 < high[0]
    assert abs(rho[0]) < 0.1


def test_lengths_at_which_the_answers_do_not_vary_have_no_say():
    rng = np.random.default_rng(2)
    y, x = rng.normal(size=(30, 2)), rng.normal(size=(30, 2, 2))
    y[:, 1] = 1
    np.testing.assert_allclose(correlate_ranks(y, x), correlate_ranks(y[:, :1], x[:, :1]))


def test_the_interval_covers_no_correlation_as_often_as_it_says():
    rng = np.random.default_rng(3)
    y, x = rng.integers(0, 2, size=(48, 2)).astype(float), rng.normal(size=(48, 2, 1000))
    _, low, high = correlate_ranks(y, x)
    assert 0.92 < ((low <= 0) & (high >= 0)).mean() < 0.98


def test_copies_of_a_row_make_no_interval_narrower():
    rng = np.random.default_rng(4)
    y, x = rng.normal(size=(20, 2)), rng.normal(size=(20, 2, 1000))
    alone = correlate_ranks(y, x, units=np.arange(20))
    copies, units = (np.tile(y, (4, 1)), np.tile(x, (4, 1, 1))), np.tile(np.arange(20), 4)
    found = correlate_ranks(*copies, units=units)
    np.testing.assert_allclose(found, alone, atol=1e-12)
    naive = correlate_ranks(*copies)
    assert (naive[2] - naive[1]).mean() < 0.6 * (found[2] - found[1]).mean()
    order = rng.permutation(80)
    moved = correlate_ranks(copies[0][order], copies[1][order], units=units[order])
    np.testing.assert_allclose(moved, found, atol=1e-12)


@pytest.mark.parametrize("n_units", [6, 8, 16])
def test_intervals_over_few_units_cover_as_often_as_they_say(n_units):
    """Four variants of each seed, which are alike, at five lengths."""
    rng = np.random.default_rng(n_units)
    covered = []
    for _ in range(600):
        units = np.tile(np.arange(n_units), 4)
        y, x = (
            rng.normal(size=(n_units, 1, *more))[units] + rng.normal(size=(4 * n_units, 5, *more))
            for more in ((), (1,))
        )
        _, low, high = correlate_ranks(y, x, units=units)
        covered.append(low[0] <= 0 <= high[0])
    assert 0.92 < np.mean(covered) < 0.99


def test_few_units_have_a_correlation_and_no_interval():
    rng = np.random.default_rng(5)
    y, x = rng.normal(size=(20, 2)), rng.normal(size=(20, 2, 3))
    rho, low, high = correlate_ranks(y, x, units=np.arange(20) % 5)
    np.testing.assert_allclose(rho, correlate_ranks(y, x)[0], atol=1e-12)
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("n_prompts", [3, 40])
def test_few_prompts_or_nothing_that_varies_gives_nan(n_prompts):
    y = np.ones((n_prompts, 2)) if n_prompts > 6 else np.arange(2.0 * n_prompts).reshape(-1, 2)
    found = correlate_ranks(y, np.random.default_rng(0).normal(size=(n_prompts, 2, 3)))
    assert np.isnan(found).all()
