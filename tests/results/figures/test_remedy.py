"""Figures of remedy results draw the frame's own numbers."""

import dataclasses

import numpy as np
import pytest
from samples import make_remedy_result


def test_doses_have_a_panel_for_each_remedy_with_its_shams():
    result = make_remedy_result()
    panels = result.plot("doses")
    shown = [panel for panel in panels if panel.get_visible()]
    assert [panel.get_title() for panel in shown] == ["logn", "adaptive", "restore"]
    lines = {line.get_label(): line for line in shown[2].get_lines()}
    assert lines["restore, remedy"].get_xdata().tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(lines["restore, remedy"].get_ydata(), [0, -0.1, -0.2])
    np.testing.assert_allclose(lines["restore, shuffled"].get_ydata(), [0, 0.05, 0.1])


def test_lengths_are_drawn_at_the_best_dose():
    axes = make_remedy_result().plot("lengths")
    labels = axes.get_legend_handles_labels()[1]
    assert labels[:3] == ["logn, dose 0.5", "adaptive, dose 0.5", "restore, dose 1"]
    assert labels[3] == "trained context"
    np.testing.assert_allclose(axes.get_lines()[2].get_ydata(), [0, 0, -0.2])


def test_slopes_are_drawn_before_against_after():
    result = make_remedy_result()
    panels = result.plot("slopes")
    assert [panel.get_title() for panel in panels] == ["logn, dose 1", "restore, dose 1"]
    for panel, treated in zip(panels, result.slope[1:], strict=True):
        line = panel.get_lines()[0]
        np.testing.assert_allclose(list(line.get_xdata()), result.slope[0])
        np.testing.assert_allclose(list(line.get_ydata()), treated)
    none = {name: np.empty((0, 4)) for name in vars(result) if name.startswith("slope")}
    without = dataclasses.replace(result, **none | {"slope_of": np.empty(0, dtype=np.int64)})
    with pytest.raises(ValueError, match="measured none; use another figure"):
        without.plot("slopes")
