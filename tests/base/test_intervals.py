"""Laws of the decay fit."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from llmprobe import fit_decay
from llmprobe.base.intervals import typical_std

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


def test_the_unequal_jackknife_is_the_ordinary_one_for_equal_groups():
    rng = np.random.default_rng(1)
    std, without = np.exp(rng.normal(size=5)), np.exp(rng.normal(size=(6, 5)) * 0.1)
    got = fit_decay(LENGTHS, std, without=without)
    slopes = np.array([fit_decay(LENGTHS, w).slope for w in without])
    pseudo = 6 * got.slope - 5 * slopes
    error = pseudo.std(ddof=1) / np.sqrt(6)
    half = scipy_stats.t.ppf(0.975, 5) * error
    # The ordinary form centers on the mean of the pseudo-values, and so does this one.
    assert got.slope_high - got.slope == pytest.approx(half, rel=1e-12)
    assert got.slope - got.slope_low == pytest.approx(half, rel=1e-12)


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
