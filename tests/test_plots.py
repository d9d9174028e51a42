"""Figures draw the frame's own numbers; the tests read the artists, not the pixels."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
from samples import make_variance_result

from llmprobe import plots


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


def test_decay_shows_the_rate_of_dispersion_for_comparison(variance_result):
    reference = lines(variance_result.plot())["slope −1/2"]
    ratio = reference.get_ydata()[-1] / reference.get_ydata()[0]
    assert ratio == pytest.approx((256 / 16) ** -0.5)


def test_a_figure_goes_into_the_axes_given_and_changes_no_setting(variance_result):
    before = dict(plt.rcParams)
    _, ax = plt.subplots()
    assert variance_result.plot(ax=ax) is ax
    assert dict(plt.rcParams) == before


def test_layers_of_other_types_are_kept_apart(variance_result):
    mixed = dataclasses.replace(variance_result, layer_type=("full",) * 3 + ("sliding",) * 3)
    drawn = lines(mixed.plot())
    assert drawn["layer 0 head 0 (-0.50)"].get_linestyle() == "-"
    assert drawn["layer 1 head 0, sliding (-0.50)"].get_linestyle() == "-."


def test_slopes_drift_and_features_draw_their_own_numbers(variance_result):
    heat = variance_result.plot("heads").collections[0]
    np.testing.assert_array_equal(heat.get_array().ravel(), variance_result.slope)
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


def test_many_series_get_colors_of_their_own():
    ax = make_variance_result(n_heads=10).plot()
    drawn = [line for label, line in lines(ax).items() if str(label).startswith("layer")]
    assert len({line.get_color() for line in drawn}) == 20


def test_a_figure_leaves_a_notebook_interactive(variance_result, monkeypatch):
    """The inline backend switches to interactive while the first figure is made."""
    made = plt.subplots

    def switching(*arguments, **options):
        plt.ion()
        return made(*arguments, **options)

    monkeypatch.setattr(plt, "subplots", switching)
    try:
        variance_result.plot()
        assert plt.isinteractive()
    finally:
        plt.ioff()


def test_the_style_is_there_in_its_block_and_nowhere_else():
    before = dict(plt.rcParams)
    with plots.paper_style():
        _, ax = plt.subplots()
        assert not ax.spines["top"].get_visible()
        first = ax.plot([0, 1])[0].get_color()
    assert first == next(plots.palette(2))
    assert dict(plt.rcParams) == before
