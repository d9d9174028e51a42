"""What results by layer, head and length share."""

import dataclasses

import numpy as np
import pytest
import seaborn as sns
from checkout import shown_text as text
from samples import make_attention_result, make_variance_result

from llmprobe.results.base import Result
from llmprobe.results.series import SeriesResult


def whole_layers(result):
    return dataclasses.replace(result, head=np.full(len(result.head), -1))


def test_the_base_of_series_is_no_kind():
    assert SeriesResult not in Result.kinds.values()


def test_a_frame_has_a_row_for_each_layer_head_and_length():
    result = make_variance_result(n_heads=3, lengths=(16, 64, 256))
    frame = result.to_frame()
    assert len(frame) == 2 * 3 * 3
    assert frame[["layer", "head", "length"]].drop_duplicates().shape == (18, 3)


def test_a_type_is_needed_for_every_series():
    with pytest.raises(ValueError, match="layer"):
        dataclasses.replace(make_variance_result(), layer_type=("full",))


@pytest.mark.parametrize("result", [make_variance_result(n_heads=14), make_attention_result()])
def test_a_frame_has_only_plain_numbers(result):
    for one in (result, whole_layers(result)):
        frame = one.to_frame()
        assert {str(dtype) for dtype in frame.dtypes} <= {"int64", "float64"}
        assert frame["head"].isna().all() == (one is not result)
    assert result.to_frame()["head"].dtype == np.int64


def test_seaborn_draws_a_line_for_each_of_fourteen_heads():
    frame = make_variance_result(n_heads=14).to_frame()
    first = frame[frame.layer == 0]
    ax = sns.lineplot(first, x="length", y="std_median", hue="head", legend=False)
    assert len(ax.lines) == 14
    drawn = sorted(tuple(line.get_ydata()) for line in ax.lines)
    assert drawn == sorted(tuple(part.std_median) for _, part in first.groupby("head"))


def test_seaborn_takes_whole_layers_too():
    result = make_variance_result(n_heads=1)
    frame = whole_layers(result).to_frame()
    sns.lineplot(frame, x="length", y="std_median", hue="head")
    ax = sns.relplot(frame, x="length", y="std_median", hue="layer", kind="line").ax
    assert sorted(tuple(line.get_ydata()) for line in ax.lines[:2]) == sorted(
        map(tuple, result.std_median)
    )


def test_a_document_has_whole_numbers_for_heads_and_null_for_whole_layers():
    result = make_variance_result()
    some = dataclasses.replace(result, head=np.array([0, 1, -1, 2, -1, 5]))
    for one, heads in (
        (result, [0, 1, 2] * 2),
        (whole_layers(result), [None] * 6),
        (some, [0, 1, None, 2, None, 5]),
    ):
        document = one.to_document()
        assert [row["head"] for row in document["decay"]] == heads
        assert [row["head"] for row in document["rows"][::3]] == heads
        assert all(type(row["head"]) in (int, type(None)) for row in document["rows"])


def test_types_are_shown_where_they_differ_and_long_tables_are_cut():
    assert "40 more rows in the saved" in text(make_variance_result(n_heads=30).table())
    mixed = dataclasses.replace(make_variance_result(), layer_type=("full",) * 3 + ("sliding",) * 3)
    assert "sliding" in text(mixed.table())
    assert "head" not in text(whole_layers(mixed).table())


def test_a_narrow_terminal_gets_fewer_lengths_and_is_told():
    result = make_variance_result(lengths=tuple(2**k for k in range(4, 15)))
    shown = text(result.table(width=80))
    assert shown.splitlines()[1].split()[2:5] == ["16", "512", "16384"]
    assert shown.splitlines()[2].split()[3] == f"{result.total_variance[0, 5] ** 0.5:.3g}"
    assert "8 more lengths" in shown


def test_many_series_are_ranked_and_a_few_are_in_the_order_of_layers():
    slopes = np.array([0.1, -0.5, np.nan, -0.2] * 3)
    many = dataclasses.replace(make_variance_result(n_heads=6), slope=slopes)
    assert slopes[many.order()].tolist()[:6] == [-0.5] * 3 + [-0.2] * 3
    assert np.isnan(slopes[many.order()][-3:]).all()
    assert many.order("layer").tolist() == list(range(12))
    few = make_variance_result(n_heads=5)
    assert few.order().tolist() == list(range(10))
    first = text(many.table()).splitlines()[2].split()[:2]
    assert first == ["0", "1"]
    assert len(text(many.table(rows=2)).splitlines()) == 2 + 2 + 1
    nothing = np.full(4, np.nan)
    attention = dataclasses.replace(make_attention_result(), slope_coherence=nothing)
    assert attention.order().tolist() == list(range(4))
    with pytest.raises(ValueError, match="attention results have none; use layer"):
        attention.order("slope")


@pytest.mark.parametrize("width", [60, 80, 100, 132])
@pytest.mark.parametrize("make", [make_variance_result, make_attention_result])
def test_no_cell_is_cut_in_a_terminal(make, width):
    wide = text(make().table(), width=400)
    narrow = text(make().table(width=80), width=80)
    assert "…" not in narrow
    assert set(narrow.split()) - {"and", "more", "lengths", "in", "the", "saved", "result"} <= set(
        wide.split()
    ) | {"1", "2", "3"}


def test_series_are_selected_by_layer_head_and_rank():
    slopes = np.array([-0.1, -0.5, np.nan, -0.3, 0.2, -0.2])
    result = dataclasses.replace(make_variance_result(), slope=slopes)
    one = result.select(layer=1, head=2)
    assert (one.layer.tolist(), one.head.tolist()) == ([1], [2])
    np.testing.assert_array_equal(one.std_median, result.std_median[5:])
    assert result.select(layer=1).head.tolist() == [0, 1, 2]
    assert result.select(heads="steepest:2").slope.tolist() == [-0.5, -0.3]
    assert result.select(heads="flattest:9").slope.tolist() == [0.2, -0.1, -0.2, -0.3, -0.5]
    assert result.select(layer=1, heads="steepest:1").slope.tolist() == [-0.3]
    assert one.plot().get_legend() is not None
    with pytest.raises(ValueError, match="kept of the first heads only"):
        one.plot("features")
    result.select(layer=0, head=0).plot("features")
    make_attention_result().select(layer=1).plot("weights")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"layer": 2}, "layer: got 2, accepted: 0 to 1"),
        ({"head": -1}, "head: got -1, accepted: 0 to 2"),
        ({"heads": "best:3"}, "accepted: steepest:6, flattest:6"),
        ({"heads": "steepest:0"}, "accepted: steepest:6"),
    ],
)
def test_series_that_are_not_there_are_refused(choice, words):
    with pytest.raises(ValueError, match=words):
        make_variance_result().select(**choice)
    with pytest.raises(ValueError, match="whole layers"):
        whole_layers(make_variance_result()).select(head=0)


@pytest.mark.parametrize("make", [make_variance_result, make_attention_result])
def test_every_array_is_by_series_or_kept_of_some(make):
    result = make()
    named = {"layer", "head", "n_prompts", "nonfinite", "features", result.kept}
    for field in dataclasses.fields(result):
        if isinstance(getattr(result, field.name), np.ndarray):
            assert field.name in named | {*result.by_length} | {*result.by_series}, field.name
