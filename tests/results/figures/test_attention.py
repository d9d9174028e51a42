"""Figures of attention results draw the frame's own numbers."""

import dataclasses

import numpy as np
import pytest
from samples import make_attention_result


def test_dispersion_draws_effective_tokens_and_the_uniform_line():
    result = make_attention_result()
    drawn = {line.get_label(): line.get_ydata() for line in result.plot("dispersion").get_lines()}
    np.testing.assert_array_equal(drawn["layer 1 head 0"], result.effective[2])
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
