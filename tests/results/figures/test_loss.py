"""Figures of loss results draw the frame's own numbers with their intervals."""

import numpy as np
import pytest
from samples import make_loss_result

FIGURES = {"position": "loss", "bytes": "bits_per_byte", "gain": "context_gain"}


@pytest.mark.parametrize("kind", FIGURES)
def test_a_curve_has_its_numbers_and_its_interval(kind):
    result, name = make_loss_result(), FIGURES[kind]
    axes = result.plot(kind)
    np.testing.assert_array_equal(axes.get_lines()[0].get_ydata(), getattr(result, name))
    band = axes.collections[0].get_paths()[0].vertices
    low, high = getattr(result, f"{name}_low"), getattr(result, f"{name}_high")
    assert (band[:, 1].min(), band[:, 1].max()) == (low.min(), high.max())


def test_the_trained_context_is_marked_where_prompts_go_beyond_it():
    axes = make_loss_result().plot("position")
    assert [line.get_xdata()[0] for line in axes.get_lines()[1:]] == [128]
    assert len(make_loss_result((16, 64, 100)).plot("position").get_lines()) == 1


def test_context_has_all_targets_and_key_tokens():
    axes = make_loss_result().plot("context")
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["last 8 tokens", "key tokens (2.0%)"]


def test_without_same_targets_there_is_no_context_to_draw():
    for kind in ("context", "gain"):
        with pytest.raises(ValueError, match="had no same_targets; use another figure"):
            make_loss_result(same_targets=None).plot(kind)
