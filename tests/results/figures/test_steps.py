"""The figure by steps draws the frame's own numbers."""

import dataclasses

import numpy as np
from samples import make_synthetic_result

from llmprobe.results.figures.steps import draw_steps


def test_a_panel_has_a_line_for_each_variant_with_all_steps():
    result = make_synthetic_result()
    early = np.stack([0.5 * result.accuracy], axis=2)
    result = dataclasses.replace(result, score_steps=(1000,), step_accuracy=early)
    frame = result.step_frame()
    panels = draw_steps(frame, longest=16, n_sets=result.n_sets)
    assert [panel.get_title() for panel in panels] == [f"{n} items" for n in (64, 256, 4096, 16384)]
    for panel, length in zip(panels, (64, 256, 4096, 16384), strict=True):
        for line, variant in zip(panel.lines, result.variants, strict=True):
            part = frame[(frame.length == length) & (frame.variant == variant)]
            assert list(line.get_xdata()) == [1000, 8000]
            np.testing.assert_allclose(line.get_ydata(), 100 * part["mean"])


def test_a_result_within_training_has_all_of_its_lengths():
    result = make_synthetic_result(lengths=(4, 8))
    assert len(draw_steps(result.step_frame(), longest=16, n_sets=result.n_sets)) == 2
