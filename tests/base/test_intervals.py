"""Laws of slopes, means, paired tests, Holm's procedure and rank correlations, against scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from llmprobe import fit_decay
from llmprobe.base.intervals import (
    VERDICTS,
    Estimate,
    divide,
    estimate,
    geometric_estimate,
    holm,
    independent_difference,
    log_interval,
    log_positive,
    magnitude,
    paired_p,
    positive_ratio,
    proportion_estimate,
    rank_correlation,
    ratio_estimate,
    signed_rank_p,
    typical_std,
    verdict,
)
from llmprobe.base.jackknife import jackknife

LENGTHS = (16, 32, 64, 128, 256)


def simulate(rng, n=64, lengths=LENGTHS, slope=-0.5, features=32):
    """Outputs (prompts, lengths, features) of std N^slope; lengths share part of their noise."""
    shared = rng.normal(size=(n, 1, features))
    noise = np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.normal(size=(n, len(lengths), features))
    return noise * (np.array(lengths)[:, None] / lengths[0]) ** slope


def fit(outputs, size=4, lengths=LENGTHS):
    labels = np.arange(len(outputs)) // size
    without = [_std(outputs[labels != group]) for group in range(labels.max() + 1)]
    return fit_decay(lengths, _std(outputs), without=without, sizes=np.bincount(labels).tolist())


def _std(outputs):
    return typical_std(outputs.std(axis=0, ddof=1))


def test_slope_and_r2_equal_scipys():
    std = np.exp(np.random.default_rng(0).normal(size=(3, 2, 5)))
    got = fit_decay(LENGTHS, std)
    for index in np.ndindex(3, 2):
        expected = scipy_stats.linregress(np.log(LENGTHS), np.log(std[index]))
        assert got.slope[index] == pytest.approx(expected.slope, rel=1e-12)
        assert got.r2[index] == pytest.approx(expected.rvalue**2, rel=1e-10)


def test_the_typical_std_decays_with_the_mean_of_the_features_slopes():
    std = np.exp(np.random.default_rng(0).normal(size=(3, 5, 7)))
    slopes = fit_decay(LENGTHS, std.swapaxes(-1, -2)).slope
    np.testing.assert_allclose(fit_decay(LENGTHS, typical_std(std)).slope, slopes.mean(axis=-1))


def test_features_that_do_not_vary_have_no_say():
    std = np.exp(np.random.default_rng(0).normal(size=(5, 7)))
    dead = std.copy()
    dead[2, 3] = 0
    np.testing.assert_allclose(typical_std(dead), typical_std(np.delete(std, 3, axis=1)))
    assert typical_std(np.zeros((5, 7))).tolist() == [0] * 5
    dead[2, 3] = np.nan
    np.testing.assert_allclose(typical_std(dead), typical_std(np.delete(std, 3, axis=1)))
    assert np.isnan(typical_std(np.full((5, 7), np.nan))).all()


def test_an_exact_power_law_is_found_exactly():
    got = fit_decay(LENGTHS, 3 * np.array(LENGTHS, dtype=float) ** -0.5)
    assert got.slope == pytest.approx(-0.5)
    assert got.r2 == pytest.approx(1)


def test_the_interval_is_that_of_the_jackknife():
    rng = np.random.default_rng(1)
    std, without = np.exp(rng.normal(size=5)), np.exp(rng.normal(size=(6, 5)) * 0.1)
    got = fit_decay(LENGTHS, std, without=without, sizes=[4, 4, 4, 3, 3, 3])
    slopes = np.array([fit_decay(LENGTHS, w).slope for w in without])
    low, high = jackknife(got.slope, slopes, [4, 4, 4, 3, 3, 3]).ends()
    assert (got.slope_low, got.slope_high) == pytest.approx((low, high), rel=1e-12)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(2)
    # Equal groups, and a last one of two; one feature, and many.
    for n, features in [(64, 1), (66, 64)]:
        fits = [fit(simulate(rng, n, features=features)) for _ in range(400)]
        covered = np.mean([f.slope_low <= -0.5 <= f.slope_high for f in fits])
        assert 0.92 <= covered <= 0.98, covered


def test_zero_variance_gives_nan_and_says_where():
    std = np.ones((2, 5))
    std[1, 2] = 0
    got = fit_decay(LENGTHS, std, without=np.ones((4, 2, 5)))
    assert got.slope[0] == 0
    assert np.isnan(got.r2[0])  # a flat line explains nothing, there is nothing to explain
    assert np.isnan([got.slope[1], got.slope_low[1], got.r2[1]]).all()
    assert got.reason.tolist() == ["a constant: R² is undefined", "zero variance at length 64"]
    assert fit_decay(LENGTHS, np.full(5, np.nan)).reason == "no finite variance at length 16"


def test_zero_variance_in_a_replicate_leaves_the_slope_and_takes_the_interval():
    without = np.ones((4, 5))
    without[2, 0] = 0
    got = fit_decay(LENGTHS, np.ones(5), without=without)
    assert got.slope == 0
    assert np.isnan(got.slope_low)
    assert "left out" in str(got.reason)


def test_one_group_or_none_gives_no_interval_and_says_so():
    for without in (None, np.ones((1, 5))):
        got = fit_decay(LENGTHS, np.arange(1.0, 6), without=without)
        assert np.isnan([got.slope_low, got.slope_high]).all()
        assert got.reason == "fewer than two groups: no interval"


def test_two_lengths_have_a_slope_and_no_r2():
    got = fit_decay((16, 64), [1.0, 0.5], without=[[1.0, 0.5], [1.1, 0.5]])
    assert got.slope == pytest.approx(-0.5)
    assert np.isnan(got.r2)
    assert got.slope_low < -0.5 < got.slope_high
    assert got.reason == "two lengths: R² is undefined"


@pytest.mark.parametrize(
    ("lengths", "std", "options"),
    [
        ((16,), [1.0], {}),
        ((16, 16), [1.0, 1.0], {}),
        ((0, 16), [1.0, 1.0], {}),
        (LENGTHS, np.ones(4), {}),
        (LENGTHS, np.ones(5), {"without": np.ones((3, 4))}),
        (LENGTHS, np.ones(5), {"without": np.ones((3, 5)), "sizes": [1, 2]}),
        (LENGTHS, np.ones(5), {"without": np.ones((3, 5)), "sizes": [1, 2, 0]}),
        (LENGTHS, np.ones(5), {"level": 95}),
    ],
)
def test_input_that_cannot_be_fitted_is_refused(lengths, std, options):
    with pytest.raises(ValueError, match="fit_decay: "):
        fit_decay(lengths, std, **options)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "zero variance at length 64"), (np.nan, "no finite variance at length 64")],
)
def test_a_missing_slope_names_the_length_that_is_the_cause(value, said):
    std = np.ones((3, 7))
    std[2] = value
    std[:, 1] = 0  # a dead feature is none of it
    got = fit_decay((16, 32, 64), typical_std(std))
    assert np.isnan(got.slope)
    assert got.reason == said


@pytest.mark.parametrize("value", [0, np.nan])
def test_where_each_feature_fails_at_another_length_none_of_them_is_blamed(value):
    std = np.ones((3, 3))
    np.fill_diagonal(std, value)
    got = fit_decay((16, 32, 64), typical_std(std))
    assert np.isnan(got.slope)
    assert got.reason == "nothing varies at every length"


@given(st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=40))
def test_an_estimate_is_scipys_mean_and_interval(values):
    found = estimate(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-9)
    if found.sd:
        interval = scipy_stats.t.interval(
            0.95, len(values) - 1, np.mean(values), scipy_stats.sem(values)
        )
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
        assert paired_p(estimate(a - b)) == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
        assert paired_p(estimate(b - a)) == pytest.approx(paired_p(estimate(a - b)))
    assert paired_p(Estimate(0.0, 1.0, -1.0, 1.0, 8)) == 1


def test_p_is_below_the_level_exactly_where_the_interval_leaves_out_zero():
    rng = np.random.default_rng(2)
    found = [estimate(rng.normal(0.5, 1, size=8)) for _ in range(300)]
    outside = [not one.low <= 0 <= one.high for one in found]
    assert outside == [paired_p(one) < 0.05 for one in found]
    assert 0 < np.mean(outside) < 1


def test_the_interval_of_a_mean_covers_the_truth_as_often_as_it_says():
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


def test_ratios_and_logarithms_are_nan_where_there_is_none():
    a, b = np.array([1.0, -1.0, 1.0, 0.0, np.nan, 2.0]), np.array([2.0, 2.0, 0.0, 2.0, 1.0, np.nan])
    np.testing.assert_array_equal(divide(a, b), [0.5, -0.5, np.nan, 0, np.nan, np.nan])
    np.testing.assert_array_equal(positive_ratio(a, b), [0.5, *[np.nan] * 5])
    nothing = np.isnan(log_positive(np.array([1.0, 0.0, -1.0, np.nan, np.inf])))
    assert nothing.tolist() == [False, True, True, True, True]


def test_a_geometric_mean_is_the_mean_of_logarithms():
    values = np.exp(np.random.default_rng(0).normal(size=9))
    found, logs = geometric_estimate([*values, 0, -1, np.nan, np.inf]), estimate(np.log(values))
    assert found.mean == pytest.approx(scipy_stats.gmean(values))
    assert found.sd == pytest.approx(scipy_stats.gstd(values))
    np.testing.assert_allclose(np.log([found.low, found.high]), [logs.low, logs.high])
    assert found.n == 9
    assert geometric_estimate([1e-300, 1e300]).high == np.inf


def test_the_signed_rank_test_is_scipys_and_needs_six():
    values = np.random.default_rng(0).normal(0.5, 1, size=9)
    assert signed_rank_p(values) == scipy_stats.wilcoxon(values).pvalue
    assert np.isnan([signed_rank_p(values[:5]), signed_rank_p(np.zeros(9))]).all()


def test_the_rank_correlation_is_scipys_in_its_interval_whatever_the_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    rho, low, high, p = found = rank_correlation(x, y)
    assert (rho, p) == tuple(scipy_stats.spearmanr(x, y))
    assert low < rho < high
    assert p < 0.05
    assert low > 0
    order = rng.permutation(40)
    assert rank_correlation(x[order], y[order]) == pytest.approx(found)
    assert np.isnan([rank_correlation(x[:5], y[:5]), rank_correlation(x, np.ones(40))]).all()


def test_a_ratio_of_sums_has_the_interval_of_a_jackknife():
    rng = np.random.default_rng(0)
    below = rng.uniform(1, 3, size=400)
    above = 2 * below + rng.normal(size=400)
    found = ratio_estimate(above, below)
    assert found.mean == pytest.approx(above.sum() / below.sum())
    without = (above.sum() - above) / (below.sum() - below)
    half = 1.9659 * np.sqrt(399 / 400 * ((without - without.mean()) ** 2).sum())
    assert found.high - found.mean == pytest.approx(half, rel=0.01)
    assert found.mean - found.low == pytest.approx(half, rel=0.01)


def test_the_interval_of_a_ratio_holds_the_true_one_as_often_as_it_says():
    rng = np.random.default_rng(1)
    below = rng.uniform(1, 3, size=(1000, 16))
    above = 2 * below + rng.normal(size=below.shape)
    found = [ratio_estimate(a, b) for a, b in zip(above, below, strict=True)]
    assert 0.92 < np.mean([x.low <= 2 <= x.high for x in found]) < 0.98


def test_a_ratio_without_anything_below_is_unknown():
    assert np.isnan(ratio_estimate([1.0, 2.0], [0.0, 0.0]).mean)
    one = ratio_estimate([3.0, 0.0, np.nan], [2.0, 0.0, 1.0])
    assert one.mean == 1.5
    assert np.isnan(one.low)
    assert one.n == 2


def test_a_log_interval_is_the_jackknife_of_logarithms():
    rng = np.random.default_rng(0)
    data = np.exp(rng.uniform(size=(24, 3)))  # light tails: all degrees of freedom
    values = np.exp(np.log(data).mean(axis=0))  # its logarithm is a mean: the interval is t's
    without = np.exp([np.delete(np.log(data), i, axis=0).mean(axis=0) for i in range(24)])
    low, high = log_interval(values, without, [1] * 24)
    for column in range(3):
        expected = geometric_estimate(data[:, column])
        assert (low[column], high[column]) == pytest.approx((expected.low, expected.high))
    for nothing in (None, without[:1]):
        assert np.isnan(log_interval(values, nothing, [1])).all()
    assert np.isnan(log_interval(np.zeros(3), without, [1] * 24)).all()


def test_the_magnitude_of_numbers_of_either_sign_does_not_cancel():
    found = magnitude([3.0, -3.0, 3.0, -3.0, np.nan], [1.0, 1.0, 1.0, 1.0, np.nan])
    assert (found.rms, found.noise, found.n) == (3, 1, 4)
    assert found.low < 3 < found.high
    assert found.p == pytest.approx(scipy_stats.chi2.sf(36, 4))
    assert np.isnan(magnitude([3.0, -3.0], [np.nan, 1.0]).p)
    assert np.isnan(magnitude([3.0, -3.0], [0.0, 1.0]).p)
    one, none = magnitude([-2.0], [1.0]), magnitude([], [])
    assert (one.rms, one.n, none.n) == (2, 1, 0)
    assert np.isnan([one.low, one.p, none.rms, none.low]).all()


def test_the_interval_of_a_magnitude_covers_and_its_test_errs_as_often_as_it_says():
    rng = np.random.default_rng(0)
    drawn = 2 * rng.normal(size=(2000, 8))
    found = [magnitude(values, np.full(8, 2.0)) for values in drawn]
    assert np.mean([one.low < 2 < one.high for one in found]) == pytest.approx(0.95, abs=0.015)
    assert np.mean([one.p < 0.05 for one in found]) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.02, 0.05, "confirmed"),
        (0.005, 0.05, "confirmed"),  # it may not matter, but it is there
        (-0.05, -0.02, "reversed"),
        (0.001, 0.005, "equivalent"),  # it is there, but it does not matter
        (-0.005, -0.001, "equivalent"),
        (-0.005, 0.009, "equivalent"),
        (0.0, 0.0, "equivalent"),
        (-0.005, 0.02, "undecided"),
        (-0.3, 0.3, "undecided"),
        (np.nan, np.nan, "undecided"),
    ],
)
def test_a_verdict_is_by_the_interval_and_the_margin(low, high, word):
    assert word in VERDICTS
    assert verdict(low, high, margin=0.01) == word
    turned = {"confirmed": "reversed", "reversed": "confirmed"}
    assert verdict(low, high, margin=0.01, claim=-1) == turned.get(word, word)
    assert verdict(-high, -low, margin=0.01, claim=-1) == word
    unsure = "equivalent" if word == "equivalent" else "undecided"
    assert verdict(low, high, margin=0.01, significant=False) == unsure
    assert verdict(low, high, margin=0) != "equivalent"


@pytest.mark.parametrize("wrong", [{"claim": 0}, {"margin": -1}, {"margin": np.nan}])
def test_a_verdict_needs_a_direction_and_a_margin(wrong):
    with pytest.raises(ValueError, match=r"verdict: got claim .* accepted"):
        verdict(0, 1, **({"margin": 0.01} | wrong))


def test_false_verdicts_are_as_rare_as_the_interval_says():
    rng = np.random.default_rng(1)
    for truth, wrong in ((0.0, {"confirmed", "reversed"}), (0.01, {"equivalent"})):
        found = [estimate(truth + 0.008 * rng.normal(size=12)) for _ in range(1000)]
        words = [verdict(one.low, one.high, margin=0.01) for one in found]
        assert np.mean([word in wrong for word in words]) < 0.065


def test_the_interval_of_a_share_is_wilsons_and_stays_between_0_and_1():
    for n_right in (0, 3, 20):
        found = proportion_estimate(np.arange(20.0) < n_right)
        wanted = scipy_stats.binomtest(n_right, 20).proportion_ci(method="wilson")
        assert found.mean == n_right / 20
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert np.isnan(proportion_estimate([np.nan]).mean)


def test_the_interval_of_a_difference_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    x, y = rng.normal(0.3, 0.2, 20_000), rng.normal(0.1, 0.05, 20_000)
    _, low, high = independent_difference(
        [x, x - 1.96 * 0.2, x + 1.96 * 0.2], [y, y - 1.96 * 0.05, y + 1.96 * 0.05]
    )
    assert np.mean((low < 0.2) & (high > 0.2)) == pytest.approx(0.95, abs=0.006)
