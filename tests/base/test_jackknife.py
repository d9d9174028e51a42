"""Laws of the jackknife: the textbook's for equal groups, fewer degrees of freedom for tails."""

import numpy as np
import pytest
from scipy import stats

from llmprobe.base.jackknife import jackknife


def of_means(x, n_groups, **options):
    """The jackknife of a mean, prompt i in group i mod n_groups."""
    group = np.arange(len(x)) % n_groups
    left_out = np.stack([x[group != g].mean(axis=0) for g in range(n_groups)])
    return jackknife(x.mean(axis=0), left_out, np.bincount(group), **options)


def test_the_error_of_a_mean_is_the_textbooks():
    x = np.random.default_rng(0).normal(size=(12, 3))
    found = of_means(x, 12)
    np.testing.assert_allclose(found.value, x.mean(axis=0))
    np.testing.assert_allclose(found.se, stats.sem(x), rtol=1e-12)


def test_degrees_of_freedom_are_by_satterthwaite_and_never_more_than_groups_allow():
    x = np.random.default_rng(1).standard_t(3, size=(16, 200))
    excess = stats.kurtosis(x, bias=False)
    expected = np.minimum(2 / (excess / 16 + 2 / 15), 15)
    np.testing.assert_allclose(of_means(x, 16).df, np.where(excess > 0, expected, 15), rtol=1e-9)
    assert (of_means(x[:3], 3).df == 2).all()  # too few for a kurtosis
    assert (of_means(np.ones((16, 2)), 16).df == 15).all()


def test_series_of_the_same_prompts_have_no_lighter_tails_than_their_mean():
    x = np.random.default_rng(6).standard_t(3, size=(16, 40, 3))
    own, joint = (of_means(x, 16, together=together) for together in (False, True))
    excess = stats.kurtosis(x, bias=False)
    np.testing.assert_allclose(joint.kurtosis, excess, rtol=1e-9)
    tails = np.maximum(np.maximum(excess, excess.mean(axis=0)), 0)
    np.testing.assert_allclose(joint.df, 2 / (tails / 16 + 2 / 15), rtol=1e-9)
    np.testing.assert_array_equal(joint.se, own.se)
    assert (joint.df <= own.df).all()
    assert (joint.df < own.df).any()
    # Light tails gain nothing and lose nothing; what is not known says nothing.
    light = np.random.default_rng(7).uniform(size=(16, 40))
    assert (of_means(light, 16, together=True).df <= 15).all()
    assert np.median(of_means(light, 16, together=True).df) == 15
    spoiled = x.copy()
    spoiled[:, 0], spoiled[:, 1] = np.nan, 1.0
    rest = of_means(x[:, 2:], 16, together=True)
    np.testing.assert_allclose(of_means(spoiled, 16, together=True).df[2:], rest.df)


def test_one_group_has_no_interval():
    with np.errstate(divide="ignore", invalid="ignore"):
        found = jackknife(np.ones(2), np.full((1, 2), np.nan), together=True)
    assert np.isnan(found.ends()).all()


def test_unequal_groups_give_nearly_what_equal_ones_do():
    x = np.random.default_rng(2).normal(size=(400, 500))
    equal, unequal = of_means(x, 16), of_means(x[:393], 16)
    assert np.median(unequal.se) == pytest.approx(np.median(equal.se), rel=0.05)


def test_ends_and_tests_agree():
    found = of_means(np.random.default_rng(3).normal(size=(16, 300)), 16)
    low, high = found.ends(0.95)
    outside = (low > 0) | (high < 0)
    np.testing.assert_array_equal(found.p_differs(0) < 0.05, outside)
    np.testing.assert_array_equal(found.p_differs(0.5), found.p_differs(np.full(300, 0.5)))
    # Two one-sided tests at 5 % are the 90 % interval inside the margin.
    low, high = found.ends(0.9)
    inside = (low > 0.1 - 0.6) & (high < 0.1 + 0.6)
    np.testing.assert_array_equal(found.p_within(0.1, 0.6) < 0.05, inside)
    assert inside.any()
    assert not inside.all()


def test_the_equivalence_test_is_wrong_in_at_most_5_of_100_cases():
    """At the margin itself, where equivalence is only just false."""
    x = np.random.default_rng(4).normal(loc=0.1, scale=0.1, size=(64, 4000))
    wrong = np.mean(of_means(x, 16).p_within(0, 0.1) < 0.05)
    assert 0.03 < wrong < 0.065, wrong


@pytest.mark.parametrize("draw", ["normal", "laplace", "standard_exponential"])
def test_the_interval_covers_with_light_and_heavy_tails(draw):
    rng = np.random.default_rng(5)
    x = getattr(rng, draw)(size=(32, 4000))
    low, high = of_means(x, 16).ends()
    truth = 1.0 if draw == "standard_exponential" else 0.0
    assert 0.93 <= np.mean((low <= truth) & (truth <= high)) <= 0.975


def test_what_does_not_vary_has_no_p():
    found = of_means(np.ones((16, 2)), 16)
    assert np.isnan(found.p_differs(0)).all()
    assert (found.ends()[0] == 1).all()
