"""Figures draw the frame's own numbers; the tests read the artists, not the pixels."""

import dataclasses

import numpy as np
import pytest
from samples import make_variance_result
from seaborn.utils import relative_luminance

from llmprobe.results.figures.variance import draw_comparison


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def test_decay_draws_every_series_of_the_frame(variance_result):
    ax = variance_result.plot()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    line = lines(ax)["L1H2 (−0.50)"]
    assert line.get_xdata().tolist() == [16, 64, 256]
    np.testing.assert_allclose(line.get_ydata(), variance_result.total_variance[5] ** 0.5)
    assert "64 prompts" in ax.get_ylabel()
    assert "tokens" in ax.get_xlabel()
    assert ax.get_legend().get_title().get_text() == "head (slope)"


def test_folders_from_before_show_the_median_feature_and_several_queries_their_part(
    variance_result,
):
    nothing = np.full_like(variance_result.std_median, np.nan)
    old = dataclasses.replace(variance_result, total_variance=nothing).plot()
    np.testing.assert_array_equal(
        lines(old)["L1H2 (−0.50)"].get_ydata(), variance_result.std_median[5]
    )
    assert {"feature 0", "quartiles"} <= {x.get_text() for x in old.get_legend().get_texts()}
    within = variance_result.total_variance / 2
    both = dataclasses.replace(variance_result, within_variance=within).plot()
    dashed = [line.get_ydata() for line in both.get_lines() if line.get_linestyle() == "--"]
    np.testing.assert_allclose(dashed[:6], np.sqrt(within))
    assert {"within a query", "95 % CI"} <= {x.get_text() for x in both.get_legend().get_texts()}


def falls(line):
    """The slope of a line from 16 to 256."""
    y = line.get_ydata()
    return np.log(y[-1] / y[0]) / np.log(256 / 16)


def test_decay_shows_uniform_attention_for_comparison_or_the_rate_of_dispersion(variance_result):
    known = dataclasses.replace(variance_result, slope_uniform=np.full(6, -0.47))
    line = lines(known.plot())["uniform attention\n(slope −0.47)"]
    assert falls(line) == pytest.approx(-0.47)
    assert line.get_ydata()[0] == pytest.approx(known.root("std_total")[:, 0].max())
    mixed = dataclasses.replace(
        known,
        layer_type=("full",) * 2 + ("sliding",) * 4,
        slope_uniform=np.array([-0.47, -0.47, -0.1, -0.1, -0.1, -0.1]),
    )
    assert "uniform attention\n(slope −0.47)" in lines(mixed.plot())
    unknown = dataclasses.replace(variance_result, slope_uniform=np.full(6, np.nan))
    assert falls(lines(unknown.plot())["slope −1/2"]) == pytest.approx(-0.5)


def test_decay_has_a_line_for_the_null_model_if_there_is_one(variance_result):
    assert len(variance_result.references()) == 1
    told = dataclasses.replace(variance_result.provenance, arguments={"null": "untrained"})
    against = dataclasses.replace(
        variance_result,
        provenance=told,
        slope_null=np.array([-0.5, -0.4, -0.3, -0.2, 0, np.nan]),
        p_null=np.full(6, 0.5),
    )
    drawn = lines(against.plot())
    null = drawn["untrained, median\n(slope −0.30)"]
    assert falls(null) == pytest.approx(-0.3)
    uniform = drawn["uniform attention\n(slope −0.50)"]
    assert null.get_ydata()[0] == uniform.get_ydata()[0]
    assert null.get_linestyle() != uniform.get_linestyle()
    one = against.select(layer=0, head=1).plot()
    assert falls(lines(one)["untrained model\n(slope −0.40)"]) == pytest.approx(-0.4)
    one.get_figure().draw_without_rendering()
    assert one.get_legend().get_window_extent().width < one.get_figure().bbox.width / 3


def test_layers_of_other_types_are_kept_apart(variance_result):
    mixed = dataclasses.replace(variance_result, layer_type=("full",) * 3 + ("sliding",) * 3)
    drawn = lines(mixed.plot())
    assert drawn["L0H0 (−0.50)"].get_linestyle() == "-"
    assert drawn["L1H0, sliding (−0.50)"].get_linestyle() == "-."


def test_slopes_drift_and_features_draw_their_own_numbers(variance_result):
    heat = variance_result.plot("heads").collections[0]
    np.testing.assert_array_equal(heat.get_array().ravel(), variance_result.slope)
    assert "64 prompts, 16 to 256 tokens" in heat.colorbar.ax.get_ylabel()
    drift, variance = variance_result.plot("drift")
    np.testing.assert_array_equal(lines(drift)["L0H1"].get_ydata(), variance_result.mean_drift[1])
    np.testing.assert_array_equal(
        lines(variance)["L0H1"].get_ydata(), variance_result.global_variance[1]
    )
    features = variance_result.plot("features")
    assert [text.get_text() for text in features.get_legend().get_texts()] == list("01234")
    assert len(features.collections) == 5 * 3


def test_the_map_of_several_queries_is_about_what_labels_are_about(variance_result):
    inside = variance_result.slope - 0.1
    several = dataclasses.replace(
        variance_result, slope_within=inside, total_variance=variance_result.std_median**2
    )
    heat = several.plot("heads").collections[0]
    np.testing.assert_array_equal(heat.get_array().ravel(), inside)
    assert "std within a query" in heat.colorbar.ax.get_ylabel()


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


def test_many_series_are_a_bundle_with_three_of_them_named():
    many = make_variance_result(n_heads=15)
    slopes = np.linspace(0, -0.5, 30)
    ax = dataclasses.replace(many, slope=slopes).plot()
    drawn = lines(ax)
    assert len([line for line in ax.get_lines() if line.get_color() == "0.6"]) == 31
    for name, index in {
        "steepest:\nL1H14 (−0.50)": 29,
        "median:\nL0H14 (−0.24)": 14,
        "flattest:\nL0H0 (0.00)": 0,
    }.items():
        np.testing.assert_allclose(drawn[name].get_ydata(), many.total_variance[index] ** 0.5)
    rising = dataclasses.replace(many, slope=-slopes).plot()
    assert "rising:\nL1H14 (+0.50)" in lines(rising)
    unknown = dataclasses.replace(many, slope=np.full(30, np.nan)).plot()
    assert "uniform attention\n(slope −0.50)" in lines(unknown)


@pytest.mark.parametrize("n_heads", [3, 15, 135])
def test_a_legend_takes_less_than_a_third_of_a_column(n_heads):
    ax = make_variance_result(n_heads=n_heads).plot()
    figure = ax.get_figure()
    figure.set_size_inches(3.5, 3.5 * figure.get_figheight() / figure.get_figwidth())
    figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    assert box.width < figure.bbox.width / 3
    assert box.x1 <= figure.bbox.width
    label = ax.yaxis.label.get_window_extent()
    assert label.y0 >= 0
    assert label.y1 <= figure.bbox.height


def test_the_map_marks_slopes_whose_interval_includes_zero():
    result = make_variance_result()
    high = np.array([-0.4, 0.1, -0.4, -0.4, -0.4, 0.0])
    ax = dataclasses.replace(result, slope_high=high).plot("heads")
    places = np.floor(ax.collections[-1].get_offsets()).astype(int).tolist()
    assert places == [[1, 0], [2, 1]]
    assert ax.get_title(loc="left") == "dot: 95 % CI includes 0"
    assert result.plot("heads").get_title(loc="left") == ""
    bar = ax.collections[0].colorbar.ax
    ax.get_figure().draw_without_rendering()
    assert bar.get_window_extent().width < 0.1 * ax.get_figure().dpi


def test_long_names_of_a_comparison_stand_above_the_lines():
    frame = make_variance_result().to_frame()
    names = ("variance-builtin-heads-layers-all", "variance-builtin-heads-layers-all-seed-1")
    ax = draw_comparison(dict.fromkeys(names, frame))
    figure = ax.get_figure()
    figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1
    assert ax.get_window_extent().width > figure.bbox.width / 2
