"""The result of an ablation: its frame, its reading, its folder."""

import dataclasses

import numpy as np
import pytest
from samples import check_same, make_ablation_result

from llmprobe import load_result


def test_it_comes_back_from_its_folder(tmp_path):
    result = make_ablation_result()
    result.save(tmp_path / "run")
    check_same(load_result(tmp_path / "run"), result)


def test_the_frame_has_a_row_for_each_class_and_length():
    frame = make_ablation_result().to_frame()
    assert len(frame) == 9
    assert frame.n_heads.tolist() == [2] * 6 + [1] * 3
    assert frame.start.tolist()[:3] == [1, 16, 64]


def test_the_reading_names_clear_changes_first():
    text = make_ablation_result().reading()
    assert "dispersing (2 heads) +0.200 [+0.195, +0.205]; +0.190 [+0.180, +0.200]" in text
    assert "flat (1 head) −0.001" in text
    assert text.count("no clear change") == 1
    assert "random 1" not in text


def test_controls_pay_for_no_correction():
    assert make_ablation_result().key_frame().significant.tolist() == [True, False, False]


def test_the_figure_has_classes_and_dashed_controls():
    axes = make_ablation_result().plot()
    styles = [line.get_linestyle() for line in axes.get_lines()]
    assert styles.count("--") == 1
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["dispersing (2)", "flat (1)"]


@pytest.mark.parametrize(
    "change",
    [
        {"control_of": (-1, 5, -1)},
        {"heads": ("0.0", "0.1", "x")},
        {"classes": ("a",)},
        {"lengths": (1, 2, 3)},
        {"p": np.ones(3)},
    ],
)
def test_forged_fields_are_refused(change):
    with pytest.raises(ValueError, match=r"classes|lengths|shape"):
        dataclasses.replace(make_ablation_result(), **change)


def test_single_heads_make_a_map():
    frame = make_ablation_result().head_frame()
    assert frame[["layer", "head", "change"]].values.tolist() == [[1, 0, -0.001]]


@pytest.mark.parametrize(
    ("classes", "heads", "heading"),
    [
        (("0.0", "0.1", "1.0"), ("0.0", "0.1", "1.0"), "layer.head"),
        (("early", "early, random 1", "late"), ("0.0", "0.1", "1.0"), "class (heads)"),
        (("0.0,1.1", "0.0,1.1, random 1", "1.0"), ("0.0,1.1", "0.1,1.2", "1.0"), "class (heads)"),
    ],
)
def test_only_single_heads_without_a_name_are_called_heads(classes, heads, heading):
    result = dataclasses.replace(make_ablation_result(), classes=classes, heads=heads)
    assert result.table().columns[0].header == heading
