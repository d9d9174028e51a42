"""Figures of what repairs accuracy draw the frames' own numbers."""

import numpy as np
import pytest
from mechanism_samples import make_mechanism_result

from llmprobe.results.mechanism import CONDITIONS, MechanismResult


@pytest.fixture(scope="module")
def result():
    return make_mechanism_result()


def test_a_panel_has_a_line_for_each_condition(result):
    panels = result.plot("repair")
    assert [panel.get_title() for panel in panels] == list(result.variants)
    summary = result.summary_frame()
    for panel, variant in zip(panels, result.variants, strict=True):
        lines = {line.get_label(): line for line in panel.lines}
        for condition in CONDITIONS:
            part = summary[(summary.variant == variant) & (summary.condition == condition)]
            np.testing.assert_allclose(lines[condition].get_ydata(), 100 * part["mean"])


def test_predictors_have_a_mark_for_each_scope(result):
    ax = result.plot("predictors")
    marks = [line.get_xdata()[0] for line in ax.lines if line.get_label() == "_rho"]
    np.testing.assert_allclose(sorted(marks), sorted(result.predictor_frame().rho))


@pytest.mark.parametrize(("kind", "width"), [("repair", 5.2), ("predictors", 3.25)])
def test_no_text_leaves_the_figure(result, kind, width):
    figure = np.atleast_1d(result.plot(kind))[0].figure
    figure.set_size_inches(width, width * figure.get_figheight() / figure.get_figwidth())
    figure.canvas.draw()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()
    assert set(MechanismResult.plots) == {"repair", "predictors"}
