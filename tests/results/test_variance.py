"""Variance results: tables, readings, figures, and refusal of what does not fit."""

import dataclasses

import numpy as np
import pytest
from checkout import shown_text as text
from samples import make_variance_result

from llmprobe import load_result
from llmprobe.results.base import Result
from llmprobe.results.pairs import compare_table
from llmprobe.results.series import SeriesResult
from llmprobe.results.variance import VarianceResult

ENDS = {"_low": 1 / 4, "_high": 4}


def test_kinds_are_registered_and_the_base_is_none():
    assert set(Result.kinds) >= {"variance", "attention"}
    assert SeriesResult not in Result.kinds.values()


def test_every_figure_can_be_saved_and_has_its_width(tmp_path, variance_result):
    for kind in VarianceResult.plots:
        for ending in ("png",):
            variance_result.save_figure(tmp_path / f"{kind}.{ending}", kind, width=4)
            assert (tmp_path / f"{kind}.{ending}").stat().st_size > 1000


def test_standard_deviations_are_roots_in_the_frame_and_the_table(variance_result):
    within = variance_result.total_variance / 4
    ends = {f"total_variance{end}": x * variance_result.total_variance for end, x in ENDS.items()}
    result = dataclasses.replace(variance_result, within_variance=within, **ends)
    frame = result.to_frame()
    np.testing.assert_allclose(frame.std_total**2, frame.total_variance)
    np.testing.assert_allclose(frame.std_total_low, frame.std_total / 2)
    np.testing.assert_allclose(frame.std_total_high, frame.std_total * 2)
    np.testing.assert_allclose(frame.std_within, frame.std_total / 2)
    assert f"{frame.std_total[0]:.3g}" in text(result.table()).splitlines()[2].split()


def test_the_table_has_a_row_for_each_head_with_its_slope_and_interval(variance_result):
    lines = text(variance_result.table()).splitlines()
    assert lines[1].split()[:5] == ["layer", "head", "16", "64", "256"]
    assert len(lines) == 2 + 6
    assert lines[2].endswith("−0.50  −0.60 to −0.40  0.90  dispersing")
    within = {f"slope_within{end}": np.full(6, -0.3) for end in ("", "_low", "_high")}
    split = text(dataclasses.replace(variance_result, **within).table()).splitlines()
    assert split[2].endswith("−0.50  −0.60 to −0.40   −0.30  −0.30 to −0.30  0.90  dispersing")


def test_remarks_have_the_share_of_right_answers_before_the_reading(variance_result):
    assert variance_result.remarks() == [variance_result.reading()]
    answered = dataclasses.replace(variance_result, accuracy=(1.0, 0.75, 0.5))
    assert answered.remarks()[0].endswith("by length: 16: 100%, 64: 75%, 256: 50%")
    assert answered.remarks()[1] == variance_result.reading()
    against = dataclasses.replace(answered, accuracy_chance=(0.5, 0.25, 0.125))
    assert against.remarks()[0].endswith(
        "; a random value of the prompt would be right in 50%, 25%, 12%"
    )


def test_a_comparison_names_each_result(variance_result):
    shown = text(compare_table([("a", variance_result), ("b", variance_result)]))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "slopes of log std over log N, heads, 16..256 tokens"
    assert lines[1:3] == ["1: a", "2: b"]
    assert lines[4] == "1 0..1 64 6 total −0.50 −0.50 −0.50"
    unknown = dataclasses.replace(variance_result, slope=np.full(6, np.nan))
    assert text(compare_table([("a", unknown)])).split()[-3:] == ["–"] * 3


def changed(result, **values):
    return dataclasses.replace(result, **{name: np.full(6, v) for name, v in values.items()})


def as_old(result):
    """As a folder of an older version opens: without the columns that came later."""
    there = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    for field in dataclasses.fields(result):
        if "shape" in field.metadata:
            del there[field.name]
    return VarianceResult(**there)


def test_labels_are_tests_in_their_order():
    many = make_variance_result()
    assert many.labels().tolist() == ["dispersing"] * 6
    assert (changed(many, p_uniform=0.02).labels() == "falling").all()  # 6 heads: not below 0.05/6
    rises = changed(many, p_uniform=1, slope_total=0.5)
    assert (rises.labels() == "rising").all()
    assert (changed(many, p_uniform=1, p_flat=1e-4).labels() == "flat").all()
    assert (changed(many, p_uniform=1, p_zero=0.5).labels() == "undecided").all()
    # Uniform attention that does not fall either, as through a window, is no sign of dispersion.
    window = changed(many, slope_uniform=-0.05, p_flat=1e-4)
    assert (window.labels() == "flat").all()
    assert many.decay_frame().label.tolist() == ["dispersing"] * 6


def test_labels_are_about_the_slope_within_queries_where_there_is_one():
    many = make_variance_result()
    assert many.tested == "total"
    split = changed(many, p_uniform=1, slope_within=0.2, slope_within_low=0.1)
    assert split.tested == "within"
    assert (split.labels() == "rising").all()
    assert "standard deviation over prompts with the same query" in split.reading()


def test_a_result_from_before_has_the_slopes_of_features_and_no_labels(tmp_path):
    old = as_old(make_variance_result())
    assert old.tested == "features"
    assert np.isnan(old.slope_total).all()
    np.testing.assert_array_equal(old.slope_features_high, old.slope_high)
    assert (old.labels() == "undecided").all()
    assert old.reading().startswith("6 of 6 heads lose variance from 16 to 256 tokens")
    assert "label" not in text(old.table())
    assert text(compare_table([("a", old)])).split()[-4:] == ["features", *["−0.50"] * 3]
    np.testing.assert_array_equal(load_result(old.save(tmp_path / "x")).slope, old.slope)


def test_queries_are_named_wherever_the_result_is_shown(variance_result):
    assert variance_result.query_tokens == ()
    assert variance_result.query_text() == ""
    arguments = {"query_tokens": [[262, "' the'"], [7, ""]]}
    told = dataclasses.replace(variance_result.provenance, arguments=arguments)
    named = dataclasses.replace(variance_result, provenance=told)
    assert named.query_tokens == ((262, "' the'"), (7, ""))
    assert named.remarks()[0] == "2 query tokens: ' the', id:7"
    assert named.to_document()["query_tokens"][0] == {"id": 262, "text": "' the'"}
    forged = dataclasses.replace(told, arguments={"query_tokens": [1, "x"]})
    assert dataclasses.replace(variance_result, provenance=forged).query_tokens == ()


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
