"""Figures of a search over sets draw the frames' own numbers."""

import numpy as np
import pytest
from search_samples import make_set_search_result

from llmprobe.results.set_search import SetSearchResult


@pytest.fixture(scope="module")
def result():
    return make_set_search_result()


def lines(ax, label):
    return [line for line in ax.lines if line.get_label() == label]


def test_effects_show_every_setting_the_means_and_their_intervals(result):
    ax = result.plot("effects")
    effects = result.effect_frame()
    means, intervals = lines(ax, "_mean"), lines(ax, "_interval")
    np.testing.assert_allclose([x.get_ydata()[0] for x in means], 100 * effects.difference)
    ends = [tuple(x.get_ydata()) for x in intervals]
    np.testing.assert_allclose(ends, 100 * effects[["low", "high"]].to_numpy())
    filled = [x.get_markerfacecolor() != "white" for x in means]
    assert filled == effects.significant.tolist()
    pairs = result.pairs_frame()
    for variant, dots in zip(result.variants, ax.collections, strict=True):
        change = pairs[pairs.variant == variant].change
        np.testing.assert_allclose(np.asarray(dots.get_offsets())[:, 1], 100 * change)
    assert " of 16 to 32 settings" in ax.get_ylabel()


def test_correlations_have_a_row_for_each_setting(result):
    ax = result.plot("settings")
    found = result.correlation_frame()
    np.testing.assert_allclose([x.get_xdata()[0] for x in lines(ax, "_rho")], found.rho)
    ends = [tuple(x.get_xdata()) for x in lines(ax, "_interval")]
    np.testing.assert_allclose(ends, found[["low", "high"]].to_numpy())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[:2] == ["n steps", "learning rate"]
    assert len(names) == 10


@pytest.mark.parametrize("kind", SetSearchResult.plots)
def test_no_text_leaves_the_figure_at_the_width_of_a_column(result, kind):
    figure = result.plot(kind).figure
    figure.set_size_inches(3.25, 3.25 * figure.get_figheight() / figure.get_figwidth())
    figure.canvas.draw()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()
