"""Figures of attention results draw the frame's own numbers."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from samples import make_attention_result

from llmprobe.results.figures.attention import draw_terms


def test_dispersion_draws_effective_tokens_and_the_uniform_line():
    result = make_attention_result()
    drawn = {line.get_label(): line.get_ydata() for line in result.plot("dispersion").get_lines()}
    np.testing.assert_array_equal(drawn["L1H0"], result.effective[2])
    assert drawn["uniform: N"].tolist() == [16, 64, 256]


def test_prediction_leaves_out_heads_whose_values_are_not_known():
    result = make_attention_result()
    points = [c.get_offsets() for c in result.plot("prediction").collections]
    assert [len(p) for p in points] == [2, 2, 2]
    np.testing.assert_allclose(points[0][:, 1], result.measured_variance[:2, 0])
    unknown = dataclasses.replace(result, predicted_variance=np.full((4, 3), np.nan))
    with pytest.raises(ValueError, match="does not show its values"):
        unknown.plot("prediction")


def test_weights_have_a_heat_map_for_each_length():
    result = make_attention_result()
    panels = result.plot("weights")
    assert [panel.get_title() for panel in panels] == ["N = 16", "N = 64", "N = 256"]
    np.testing.assert_array_equal(panels[1].images[0].get_array(), result.top[0, 1])


def test_rows_have_a_panel_for_each_statistic():
    result = make_attention_result()
    panels = result.plot("rows")
    drawn = [panel.get_lines()[3].get_ydata() for panel in panels]
    expected = (result.entropy_share, result.entropy_share_rest, result.spread)
    for got, values in zip(drawn, (*expected, np.exp(result.log_lambda)), strict=True):
        np.testing.assert_allclose(got, values[3])
    with pytest.raises(ValueError, match="older than these columns"):
        dataclasses.replace(result, n_keys=None).plot("rows")


def test_terms_are_stacked_to_the_slope_of_each_head():
    result = make_attention_result()
    ax = result.plot("terms")
    bars = {c.get_label(): c.patches for c in ax.containers if hasattr(c, "patches")}
    assert [len(patches) for patches in bars.values()] == [2, 2, 2]  # two heads have no terms
    for head in range(2):
        parts = [patches[head] for patches in bars.values()]
        assert sum(p.get_height() for p in parts) == pytest.approx(result.slope_total[head])
    # Above 0 values, then coherence on top of them; dispersion below 0.
    assert bars["coherence"][1].get_y() == pytest.approx(result.slope_values[1])
    assert bars["values"][1].get_y() == 0
    (line,) = [x for x in ax.get_lines() if x.get_marker() == "o"]
    np.testing.assert_allclose(line.get_ydata(), result.slope_total[:2])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.0", "0.1"]


def test_many_heads_are_ordered_by_their_slope():
    frame = make_attention_result().head_frame()
    many = pd.concat([frame[:2].assign(layer=layer) for layer in range(30)], ignore_index=True)
    ax = draw_terms(many, make_attention_result().to_frame())
    (line,) = [x for x in ax.get_lines() if x.get_marker() == "o"]
    assert len(line.get_ydata()) == 60
    assert (np.diff(line.get_ydata()) >= 0).all()


def test_the_map_colors_heads_by_what_decides():
    result = make_attention_result()
    ax = result.plot("map")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        *("dispersion: 1", "values: 1", "coherence: 0", "CI includes 0: 0")
    ]
    colors = [patch.get_facecolor() for patch in ax.get_legend().get_patches()]
    mesh = ax.collections[0]
    mesh.update_scalarmappable()
    np.testing.assert_allclose(mesh.get_facecolors(), colors[:2])
    assert [text.get_text() for text in ax.texts] == ["−0.47", "+0.13"]


@pytest.mark.parametrize("kind", ["terms", "map"])
def test_without_terms_there_is_nothing_to_draw(kind):
    result = dataclasses.replace(make_attention_result(), slope_coherence=None)
    with pytest.raises(ValueError, match=f"{kind}: there are no terms here"):
        result.plot(kind)
