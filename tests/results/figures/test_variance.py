"""Figures draw the frame's own numbers; the tests read the artists, not the pixels."""

import dataclasses

import numpy as np
import pytest
from samples import make_variance_result
from seaborn.utils import relative_luminance


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def test_decay_draws_every_series_of_the_frame(variance_result):
    ax = variance_result.plot()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    line = lines(ax)["layer 1 head 2 (-0.50)"]
    assert line.get_xdata().tolist() == [16, 64, 256]
    np.testing.assert_array_equal(line.get_ydata(), variance_result.std_median[5])
    assert "64 prompts" in ax.get_ylabel()
    assert "tokens" in ax.get_xlabel()
    assert ax.get_legend().get_title().get_text() == "layer and head (slope)"


def test_decay_shows_the_rate_of_dispersion_for_comparison(variance_result):
    reference = lines(variance_result.plot())["slope −1/2"]
    ratio = reference.get_ydata()[-1] / reference.get_ydata()[0]
    assert ratio == pytest.approx((256 / 16) ** -0.5)


def test_layers_of_other_types_are_kept_apart(variance_result):
    mixed = dataclasses.replace(variance_result, layer_type=("full",) * 3 + ("sliding",) * 3)
    drawn = lines(mixed.plot())
    assert drawn["layer 0 head 0 (-0.50)"].get_linestyle() == "-"
    assert drawn["layer 1 head 0, sliding (-0.50)"].get_linestyle() == "-."


def test_slopes_drift_and_features_draw_their_own_numbers(variance_result):
    heat = variance_result.plot("heads").collections[0]
    np.testing.assert_array_equal(heat.get_array().ravel(), variance_result.slope)
    assert "64 prompts, 16 to 256 tokens" in heat.colorbar.ax.get_ylabel()
    drift, variance = variance_result.plot("drift")
    np.testing.assert_array_equal(
        lines(drift)["layer 0 head 1"].get_ydata(), variance_result.mean_drift[1]
    )
    np.testing.assert_array_equal(
        lines(variance)["layer 0 head 1"].get_ydata(), variance_result.global_variance[1]
    )
    features = variance_result.plot("features")
    assert [text.get_text() for text in features.get_legend().get_texts()] == list("01234")
    assert len(features.collections) == 5 * 3


def test_the_map_tells_heads_that_rise_from_those_that_stay_and_its_numbers_can_be_read():
    slopes = np.array([-0.5, -0.25, 0, 0.2, 0.94, np.nan])
    ax = dataclasses.replace(make_variance_result(), slope=slopes).plot("heads")
    heat = ax.collections[0]
    assert (heat.norm.vmin, heat.norm.vmax) == (-0.5, 0.5)
    colors = [heat.to_rgba(slope) for slope in slopes[:5]]
    assert len(set(colors)) == 5
    assert min(colors[2][:3]) > 0.9, "what stays is white"
    for text, color in zip(ax.texts, colors, strict=True):
        light = sorted(map(relative_luminance, (color, text.get_color())))
        assert (light[1] + 0.05) / (light[0] + 0.05) > 4.5
