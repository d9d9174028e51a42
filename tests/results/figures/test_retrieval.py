"""Figures of retrieval results draw the frames' own numbers."""

import dataclasses

import numpy as np
import pytest
from samples import make_retrieval_result


def test_accuracy_has_chance_and_the_blind_answer():
    result = make_retrieval_result()
    axes = result.plot("accuracy")
    drawn = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    np.testing.assert_array_equal(drawn["model"], result.accuracy)
    np.testing.assert_array_equal(drawn["chance"], result.chance)
    np.testing.assert_array_equal(drawn["most frequent\nvalue"], result.blind)
    assert axes.get_xlabel().endswith("8 to 32 pairs")
    other = dataclasses.replace(result, n_pairs=np.full(3, np.nan), blind=np.full(3, np.nan))
    axes = other.plot("accuracy")
    assert "pairs" not in axes.get_xlabel()
    assert axes.get_legend_handles_labels()[1] == ["model", "chance"]


def test_source_has_the_heads_with_most_attention_there():
    result = make_retrieval_result()
    axes = result.plot("source")
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels[0] == "layer 1 head 5"
    assert len(labels) == 8
    np.testing.assert_array_equal(axes.get_lines()[0].get_ydata(), result.source[-1])


def test_links_have_every_head_and_need_some():
    result = make_retrieval_result()
    axes = result.plot("links")
    points = sum(len(bars.lines[0].get_xdata()) for bars in axes.containers)
    assert points == 12
    unknown = dataclasses.replace(result, loss_source=np.full(12, np.nan))
    with pytest.raises(ValueError, match="nothing varies over prompts"):
        unknown.plot("links")
