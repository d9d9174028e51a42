"""Every kind of result: tables, readings, figures, and refusal of what does not fit."""

import dataclasses

import numpy as np
import pytest
from samples import make_variance_result

from llmprobe import load_result
from llmprobe.results.base import Result
from llmprobe.results.series import SeriesResult
from llmprobe.results.variance import VarianceResult


def test_kinds_are_registered_and_the_base_is_none():
    assert set(Result.kinds) >= {"variance", "attention"}
    assert SeriesResult not in Result.kinds.values()


def test_every_figure_can_be_saved_and_has_its_width(tmp_path, variance_result):
    for kind in VarianceResult.plots:
        for ending in ("png",):
            variance_result.save_figure(tmp_path / f"{kind}.{ending}", kind, width=4)
            assert (tmp_path / f"{kind}.{ending}").stat().st_size > 1000


def test_figures_stand_beside_the_numbers(tmp_path, variance_result):
    folder = variance_result.save(tmp_path / "run", figures=("png", "pdf"))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["arrays.npz", "result.json", "variance.pdf", "variance.png"]
    assert load_result(folder).headline() == variance_result.headline()


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
    assert "changes as N^-0.50 (95 % interval -0.60 to -0.40)" in single.reading()
    many = make_variance_result()
    assert "Of 6 heads, 6 fall" in many.reading()
    flat = dataclasses.replace(many, slope_high=np.full(6, 0.1))
    assert "Of 6 heads, 0 fall" in flat.reading()
    unknown = dataclasses.replace(many, slope_low=np.full(6, np.nan))
    assert "no interval" in unknown.reading()
    steep = dataclasses.replace(many, slope_low=np.full(6, -2.1), slope_high=np.full(6, -1.9))
    assert " 0 of them near" in steep.reading()
    rule = "(interval reaching -0.4, its upper end from -0.6 to -0.3)"
    assert f"near the N^-0.50 of attention that disperses {rule}" in steep.reading()
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
