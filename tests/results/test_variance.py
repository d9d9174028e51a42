"""Variance results: tables, readings, figures, and refusal of what does not fit."""

import dataclasses

import numpy as np
import pytest
from checkout import shown_text as text
from samples import make_variance_result

from llmprobe.results.base import Result
from llmprobe.results.series import SeriesResult
from llmprobe.results.variance import VarianceResult, compare_table


def test_kinds_are_registered_and_the_base_is_none():
    assert set(Result.kinds) >= {"variance", "attention"}
    assert SeriesResult not in Result.kinds.values()


def test_every_figure_can_be_saved_and_has_its_width(tmp_path, variance_result):
    for kind in VarianceResult.plots:
        for ending in ("png",):
            variance_result.save_figure(tmp_path / f"{kind}.{ending}", kind, width=4)
            assert (tmp_path / f"{kind}.{ending}").stat().st_size > 1000


def test_the_table_has_a_row_for_each_head_with_its_slope_and_interval(variance_result):
    lines = text(variance_result.table()).splitlines()
    assert lines[1].split()[:5] == ["layer", "head", "16", "64", "256"]
    assert len(lines) == 2 + 6
    assert lines[2].endswith("-0.50  -0.60 to -0.40  0.90")


def test_remarks_have_the_share_of_right_answers_before_the_reading(variance_result):
    assert variance_result.remarks() == [variance_result.reading()]
    answered = dataclasses.replace(variance_result, accuracy=(1.0, 0.75, 0.5))
    assert answered.remarks()[0].endswith("by length: 16: 100%, 64: 75%, 256: 50%")
    assert answered.remarks()[1] == variance_result.reading()


def test_a_comparison_names_each_result(variance_result):
    shown = text(compare_table([("a", variance_result), ("b", variance_result)]))
    cells = " ".join(shown.splitlines()[2].split())
    assert cells == "a heads 0..1 16..256 64 6 -0.50 -0.50 -0.50"
    unknown = dataclasses.replace(variance_result, slope=np.full(6, np.nan))
    assert text(compare_table([("a", unknown)])).split()[-3:] == ["–"] * 3


def test_the_reading_says_what_the_slopes_say():
    one = make_variance_result(n_heads=1)
    single = dataclasses.replace(
        one,
        **{
            name: getattr(one, name)[:1]
            for name in (*VarianceResult.by_length, *VarianceResult.by_series)
        },
        layer_type=("full",),
        **{name: getattr(one, name)[:1] for name in ("layer", "head", "n_prompts", "nonfinite")},
    )
    assert "changes as N^-0.50 (95 % CI -0.60 to -0.40)" in single.reading()
    many = make_variance_result()
    assert "6 of 6 heads lose variance from 16 to 256 tokens" in many.reading()
    flat = dataclasses.replace(many, slope_high=np.full(6, 0.1))
    assert "0 of 6 heads lose variance" in flat.reading()
    unknown = dataclasses.replace(many, slope_low=np.full(6, np.nan))
    assert "no confidence interval" in unknown.reading()
    steep = dataclasses.replace(many, slope_low=np.full(6, -2.1), slope_high=np.full(6, -1.9))
    rule = "(lower end of the CI at most -0.4, upper end from -0.6 to -0.3)"
    assert f" 0 are consistent with full dispersion, N^-0.50 {rule}" in steep.reading()
    assert f" 6 are consistent with full dispersion, N^-0.50 {rule}" in many.reading()
    assert "No slope" in dataclasses.replace(unknown, slope=np.full(6, np.nan)).reading()


def test_a_document_has_the_rows_and_no_nan(variance_result):
    spoiled = dataclasses.replace(variance_result, r2=np.full(6, np.nan))
    document = spoiled.to_document()
    assert document["decay"][0]["r2"] is None
    assert len(document["rows"]) == 18
    assert document["warnings"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"component": "x"},
        {"reference": 17},
        {"warnings": (1, 2)},
        {"lengths": ()},
        {"feature_values": np.zeros((1, 3, 4, 2), dtype=np.float32)},
    ],
)
def test_what_does_not_fit_is_refused(variance_result, change):
    with pytest.raises((ValueError, TypeError)):
        dataclasses.replace(variance_result, **change)
