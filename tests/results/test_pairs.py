"""The same layers and heads of two results."""

import dataclasses

import numpy as np
import pytest
from checkout import shown_text as text
from samples import make_variance_result

from llmprobe.results.pairs import pair_frame, pair_table
from llmprobe.results.variance import VarianceResult


def other(result, slope, half=0.05):
    ends = {"slope_low": slope - half, "slope_high": slope + half}
    return dataclasses.replace(result, slope=slope, **ends)


def test_pairs_are_the_series_that_both_have():
    first = make_variance_result()
    second = other(first, np.linspace(-0.6, 0.1, 6)).select(layer=1)
    pairs = pair_frame(first.decay_frame(), second.decay_frame())
    assert pairs[["layer", "head"]].values.tolist() == [[1, 0], [1, 1], [1, 2]]
    np.testing.assert_allclose(pairs.difference, second.slope + 0.5)
    half = np.hypot(0.1, 0.05)
    np.testing.assert_allclose(pairs.difference_high - pairs.difference, half)
    np.testing.assert_allclose(pairs.difference - pairs.difference_low, half)


def test_many_pairs_are_ranked_by_the_size_of_the_difference():
    first = make_variance_result(n_heads=15)
    second = other(first, np.linspace(-0.9, 0.2, 30))
    pairs = pair_frame(first.decay_frame(), second.decay_frame())
    lines = text(pair_table(pairs)).splitlines()
    assert lines[2].split()[:5] == ["1", "14", "−0.50", "+0.20", "+0.70"]
    told = " ".join(" ".join(lines[-4:]).split())
    assert "and 10 more pairs" in told
    below, above = (pairs.difference_high < 0).sum(), (pairs.difference_low > 0).sum()
    assert f"{below} of 30 slopes are lower in 2, {above} are higher" in told


def test_whole_layers_are_paired_too():
    first = make_variance_result(n_heads=1)
    first = dataclasses.replace(first, head=np.array([-1, -1]), at="output")
    table, _ = VarianceResult.compare({"a": first, "b": other(first, np.array([-0.1, -0.2]))})
    assert "slope 1  slope 2  2 − 1" in text(table)
    assert "head " not in text(table)
    document = VarianceResult.compare_document({"a": first, "b": first})
    assert [row["head"] for row in document["pairs"]] == [None, None]
    assert [result["name"] for result in document["results"]] == ["a", "b"]


def test_what_cannot_be_compared_is_refused():
    one = make_variance_result()
    with pytest.raises(ValueError, match="compare heads with heads"):
        VarianceResult.compare({"a": one, "b": dataclasses.replace(one, at="output")})
    with pytest.raises(ValueError, match="different lengths"):
        VarianceResult.compare({"a": one, "b": make_variance_result(lengths=(16, 64, 128))})


def test_three_results_are_listed_without_pairs():
    named = dict.fromkeys("abc", make_variance_result())
    table, _ = VarianceResult.compare(named)
    assert "1: a\n" in "\n".join(line.rstrip() for line in text(table).splitlines())
    assert "same layers" not in text(table)
    assert VarianceResult.compare_document(named)["pairs"] == []
