"""Differences are paired, shams are told apart, and slopes of differences are differences."""

import numpy as np
import pytest
import scipy.stats

from llmprobe.probes.remedy_scores import compare_treatments, with_slopes
from llmprobe.probes.treatments import treatments

EVERY = treatments(["logn", "restore"], [0.5, 1.0])


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return rng.normal(size=(9, 3, 1 + len(EVERY))) + np.arange(1 + len(EVERY))


def test_changes_are_paired_over_prompts(values):
    found = compare_treatments(values, EVERY)
    assert found["change"].shape == (len(EVERY), 3)
    for number in range(len(EVERY)):
        difference = values[:, :, 1 + number] - values[:, :, 0]
        np.testing.assert_allclose(found["change"][number], difference.mean(axis=0))
        expected = scipy.stats.ttest_1samp(difference, 0)
        np.testing.assert_allclose(found["p"][number], expected.pvalue)
        ends = expected.confidence_interval(0.95)
        np.testing.assert_allclose(found["change_low"][number], ends.low)
        np.testing.assert_allclose(found["change_high"][number], ends.high)
    np.testing.assert_allclose(found["baseline"], values[..., 0].mean(axis=0))
    assert found["n_prompts"].tolist() == [9, 9, 9]


def test_a_remedy_is_held_against_the_sham_of_its_dose(values):
    found = compare_treatments(values, EVERY)
    at = {(x.remedy, x.dose, x.arm): n for n, x in enumerate(EVERY)}
    for (remedy, dose, arm), number in at.items():
        if arm == "remedy":
            sham = at[remedy, dose, "shuffled"]
            expected = (values[..., 1 + number] - values[..., 1 + sham]).mean(axis=0)
            np.testing.assert_allclose(found["versus_sham"][number], expected)
        else:
            assert np.isnan(found["versus_sham"][number]).all()


def test_sums_over_tokens_are_divided_by_all_of_them():
    every = treatments(["logn"], [1.0])
    sums = np.array([[[2.0, 3.0, 2.0]], [[8.0, 8.0, 9.0]], [[0.0, 0.0, 0.0]]])
    found = compare_treatments(sums, every, per=np.array([[1.0], [4.0], [0.0]]))
    assert found["baseline"].tolist() == [2.0]
    assert found["change"][:, 0].tolist() == pytest.approx([0.2, 0.2])


def test_slopes_are_measured_at_the_dose_next_to_one():
    found = with_slopes(treatments(["logn", "restore"], [0.25, 0.75, 2.0]))
    assert [(x.remedy, x.dose, x.arm) for x in found] == [
        ("logn", 0.75, "remedy"),
        ("restore", 0.75, "remedy"),
    ]
