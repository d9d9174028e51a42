"""Charts hold the numbers of the frames, and link what belongs together."""

import json

import numpy as np
import pytest
from samples import (
    make_attention_result,
    make_synthetic_result,
    make_variance_result,
    spoil,
)
from search_samples import make_search_result

from llmprobe.results.report.charts import explore, line_charts


def datasets(chart) -> list[list[dict]]:
    return list(chart.to_dict()["datasets"].values())


def rows_with(chart, column: str) -> list[dict]:
    [found] = [rows for rows in datasets(chart) if column in rows[0]]
    return found


def test_the_curves_are_the_frame():
    result = make_variance_result()
    frame = result.to_frame()
    rows = rows_with(explore([("toy", result)]), "std_median")
    assert [(row["layer"], row["head"], row["length"]) for row in rows] == list(
        zip(frame.layer, frame["head"], frame.length, strict=True)
    )
    np.testing.assert_allclose([row["std_median"] for row in rows], frame.std_median, rtol=1e-5)


def test_results_of_one_model_are_linked_by_one_choice():
    chart = explore([("toy", make_variance_result()), ("toy", make_attention_result())])
    document = chart.to_dict()
    assert [p["name"] for p in document["params"]] == ["picked"]
    assert rows_with(chart, "effective")
    filters = json.dumps(document).count('{"filter": {"param": "picked"')
    assert filters >= len(make_variance_result().views)


def test_models_stand_side_by_side_on_one_scale():
    steep = make_variance_result()
    flat = spoil(steep, "slope", slice(None), -0.1)
    text = json.dumps(explore([("a", steep), ("b", flat)]).to_dict())
    assert text.count('"domain": [-0.5, 0.5]') == 2


def test_a_whole_layer_is_one_cell():
    result = spoil(make_variance_result(n_heads=1), "head", slice(None), -1)
    rows = rows_with(explore([("toy", result)]), "slope")
    assert [(row["layer"], row["head"]) for row in rows] == [(0, -1), (1, -1)]


def test_what_is_not_finite_is_null_and_no_zero_has_a_logarithm():
    result = spoil(make_variance_result(), "std_median", (0, 0), np.nan)
    result = spoil(result, "std_median", (0, 1), 0.0)
    rows = rows_with(explore([("toy", result)]), "std_median")
    assert [row["std_median"] for row in rows[:2]] == [None, None]
    json.dumps(rows, allow_nan=False)


def test_there_is_no_band_where_no_interval_is_known():
    text = json.dumps(explore([("toy", make_variance_result())]).to_dict())
    assert '"std_total"' in text
    assert text.count('"type": "area"') == 1  # that of the quartiles


@pytest.mark.thorough
def test_more_rows_than_altair_likes():
    result = make_variance_result(n_heads=420, lengths=tuple(2**n for n in range(4, 10)))
    assert len(rows_with(explore([("toy", result)]), "std_median")) == 5040


def test_lines_of_the_lab_are_their_means():
    result = make_synthetic_result(3)
    chart = line_charts([("argmax", result)])
    rows = rows_with(chart, "mean")
    frame = result.summary_frame()
    np.testing.assert_allclose([row["mean"] for row in rows], frame["mean"], rtol=1e-5)
    assert {row["variant"] for row in rows} == set(result.variants)


def test_lines_that_cannot_be_told_apart_are_left_to_the_map(monkeypatch):
    monkeypatch.setattr("llmprobe.results.report.charts._MOST_LINES", 2)
    assert line_charts([("argmax", make_synthetic_result(4))]) is None


def test_a_result_without_charts_says_so():
    result = make_search_result()
    assert explore([("x", result)]) is None
    assert line_charts([("x", result)]) is None
    with pytest.raises(ValueError, match="no chart; use plot"):
        result.explore()


def test_a_notebook_gets_the_same_linked_chart():
    document = make_variance_result().explore().to_dict()
    assert [p["name"] for p in document["params"]] == ["picked"]
