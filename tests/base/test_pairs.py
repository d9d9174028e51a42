"""One number a seed: intervals, paired tests and Holm's procedure, against scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from llmprobe.base.intervals import Estimate, estimate, holm, paired_p


@given(st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=40))
def test_an_estimate_is_scipys_mean_and_interval(values):
    found = estimate(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-9)
    if found.sd:
        interval = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        np.testing.assert_allclose([found.low, found.high], interval, rtol=1e-9, atol=1e-9)
    else:
        assert found.low == found.high == found.mean


def test_what_is_not_finite_is_left_out_and_not_counted():
    assert estimate([1.0, np.nan, 3.0, np.inf, -np.inf]) == estimate([1.0, 3.0])
    assert estimate([1.0, np.nan, 3.0]).n == 2


def test_one_seed_has_a_mean_and_no_interval_and_none_has_nothing():
    one = estimate([0.25, np.nan])
    assert (one.mean, one.n) == (0.25, 1)
    assert np.isnan([one.sd, one.low, one.high]).all()
    none = estimate([np.nan])
    assert none.n == 0
    assert np.isnan(none[:4]).all()
    assert np.isnan([paired_p(one), paired_p(none)]).all()


def test_a_spread_of_rounding_is_none():
    values = np.array([0.1 + 0.2, 0.3, 0.6 / 2])
    assert len(set(values.tolist())) > 1
    found = estimate(values)
    assert found.sd == 0
    assert found.low == found.high == found.mean
    assert np.isnan(paired_p(found))
    assert estimate([1.0, 1.0 + 1e-9]).sd > 0


def test_p_is_that_of_scipys_paired_test():
    rng = np.random.default_rng(0)
    for n in (2, 5, 32):
        a, b = rng.normal(0.1, 1, n), rng.normal(0, 1, n)
        assert paired_p(estimate(a - b)) == pytest.approx(stats.ttest_rel(a, b).pvalue)
        assert paired_p(estimate(b - a)) == pytest.approx(paired_p(estimate(a - b)))
    assert paired_p(Estimate(0.0, 1.0, -1.0, 1.0, 8)) == 1


def test_p_is_below_the_level_exactly_where_the_interval_leaves_out_zero():
    rng = np.random.default_rng(2)
    found = [estimate(rng.normal(0.5, 1, size=8)) for _ in range(300)]
    outside = [not one.low <= 0 <= one.high for one in found]
    assert outside == [paired_p(one) < 0.05 for one in found]
    assert 0 < np.mean(outside) < 1


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = [
        found.low <= 0.3 <= found.high
        for found in (estimate(rng.normal(0.3, 0.1, size=5)) for _ in range(2000))
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def plain_holm(p, level):
    """As in Holm's paper: the smallest p first, until one is too large."""
    rejected, left = [False] * len(p), sorted(range(len(p)), key=lambda i: p[i])
    while left and p[left[0]] <= level / len(left):
        rejected[left.pop(0)] = True
    return rejected


def test_holm_is_the_plain_procedure_and_ignores_what_was_not_tested():
    rng = np.random.default_rng(0)
    for _ in range(300):
        p = rng.random(rng.integers(1, 12)) ** 4
        assert holm(p).tolist() == plain_holm(p.tolist(), 0.05)
        with_gaps = np.insert(p, 0, np.nan)
        assert holm(with_gaps).tolist() == [False, *plain_holm(p.tolist(), 0.05)]
    assert holm([]).tolist() == []
    assert holm([np.nan, np.nan]).tolist() == [False, False]


def test_holm_has_a_false_alarm_as_seldom_as_it_says():
    p = np.random.default_rng(3).random((4000, 6))
    assert np.mean([holm(row).any() for row in p]) == pytest.approx(0.05, abs=0.012)
    assert np.mean([holm(row, level=0.2).any() for row in p]) == pytest.approx(0.19, abs=0.03)
