"""Figures of a search draw the frames' own numbers; the tests read the artists, not the pixels."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
from cases import thorough
from drawn import pixels
from search_samples import make_search_result

from llmprobe import load_result
from llmprobe.results.search import SearchResult


@pytest.fixture(scope="module")
def result():
    return make_search_result()


def artists(ax):
    return {artist.get_label(): artist for artist in (*ax.lines, *ax.collections)}


@pytest.mark.parametrize("kind", SearchResult.plots)
def test_every_figure_is_labeled_and_redraws_the_same_from_its_folder(result, kind, tmp_path):
    drawn = result.plot(kind)
    panels = np.atleast_1d(drawn)
    words = " ".join(panel.get_xlabel() + panel.get_ylabel() for panel in panels)
    assert "KL beyond training" in words
    assert "64 settings" in words
    loaded = load_result(result.save(tmp_path / "run"))
    assert pixels(loaded.plot(kind)) == pixels(drawn)


@pytest.mark.parametrize("kind", SearchResult.plots)
@pytest.mark.parametrize(
    "case", ["all NaN", *thorough("one", "two far apart", "some NaN", "a constant")]
)
def test_hard_cases_draw_without_a_warning(kind, case):
    result = make_search_result({"one": 1, "two far apart": 2}.get(case, 64))
    kl = result.kl.copy()
    if case == "two far apart":
        kl[0, 1] *= 1e60
    elif case == "some NaN":
        kl[::3, 1] = np.nan
    elif case == "all NaN":
        kl[:] = np.nan
    elif case == "a constant":
        kl[:] = 0.1
    pixels(dataclasses.replace(result, kl=kl).plot(kind))


def test_effects_show_every_setting_the_means_and_their_intervals(result):
    ax = result.plot("effects")
    pairs, effects = result.pairs_frame(), result.effect_frame()
    drawn = artists(ax)
    for level, row in enumerate(effects.to_dict("records")):
        part = pairs[(pairs.effect == row["effect"]) & (pairs["where"] == row["where"])]
        dots = np.asarray(drawn[f"_settings {level}"].get_offsets())
        np.testing.assert_array_equal(dots[:, 0], part.change)
        assert np.abs(dots[:, 1] - level).max() < 0.5
        assert list(drawn[f"_mean {level}"].get_xdata()) == [row["effect_size"]]
        assert list(drawn[f"_interval {level}"].get_xdata()) == [row["low"], row["high"]]
    assert list(drawn["no change"].get_xdata()) == [1, 1]
    assert drawn["no change"].get_linestyle() == "--"
    assert ax.get_xscale() == "log"
    low, high = ax.get_xlim()
    assert low * high == pytest.approx(1)
    assert low < pairs.change.min()
    assert high > pairs.change.max()
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0] == "dropout,\nraw weights"
    assert labels[-1] == "BEMA,\nwith dropout"
    assert [text.get_text() for text in ax.texts] == ["← better", "no change", "worse →"]
    assert ax.get_xlabel().startswith("KL beyond training, with / without")


def test_a_mean_is_filled_where_it_is_significant():
    result = make_search_result(dropout=0.7, averaging=1.0)
    marks = artists(result.plot("effects"))
    significant = result.effect_frame().significant
    assert significant.any()
    assert not significant.all()
    for level, is_significant in enumerate(significant):
        assert (marks[f"_mean {level}"].get_markerfacecolor() != "white") == is_significant


def test_settings_have_a_panel_a_parameter_on_one_scale_of_outcomes(result):
    panels = result.plot("settings")
    frame, correlations = result.scatter_frame(), result.correlation_frame()
    assert len(panels) == 5
    order = ["learning_rate", "width", "depth", "dropout", "ema_decay"]
    found = correlations.set_index("parameter", drop=False).loc[order]
    for panel, row in zip(panels, found.to_dict("records"), strict=True):
        part = frame[frame.parameter == row["parameter"]]
        dots = np.asarray(panel.collections[0].get_offsets())
        decay = row["parameter"] == "ema_decay"
        np.testing.assert_array_equal(dots[:, 0], 1 - part.value if decay else part.value)
        np.testing.assert_array_equal(dots[:, 1], part.kl)
        assert f"{row['rho']:+.2f}".replace("-", "−") in panel.get_title()
        assert f"{row['high']:+.2f}]".replace("-", "−") in panel.get_title()
        assert panel.get_yscale() == "log"
        effect = row["parameter"] in ("dropout", "ema_decay")
        assert (panel.get_ylabel() == "with / without") == effect
        if effect:
            low, high = panel.get_ylim()
            assert low < min(part.kl.min(), 1) <= max(part.kl.max(), 1) < high
        else:
            assert panel.get_ylim() == panels[0].get_ylim()
    assert [panel.get_xscale() for panel in panels] == ["log", "log", "linear", "linear", "log"]
    assert panels[3].get_xlabel() == "dropout rate\n(dropout,\nraw weights)"


def test_the_decay_rises_to_the_right_as_its_correlation_says(result):
    panel = result.plot("settings")[4]
    panel.figure.canvas.draw()
    assert panel.xaxis_inverted()
    labels = {label.get_text(): label.get_position()[0] for label in panel.get_xticklabels()}
    assert {"0.99", "0.999"} <= set(labels)
    for text, place in labels.items():
        assert float(text) == pytest.approx(1 - place)


def test_a_figure_goes_into_the_axes_given_and_changes_no_setting(result):
    before = dict(plt.rcParams)
    _, ax = plt.subplots()
    assert result.plot(ax=ax) is ax
    _, row = plt.subplots(1, 5, sharey=True)
    assert result.plot("settings", ax=row)[1] is row[1]
    assert result.plot("settings", ax=row)[4].xaxis_inverted()  # drawn a second time
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(("kind", "width"), [("effects", 3.25), ("settings", 6.75)])
@pytest.mark.parametrize("n_settings", [1, 8, 64])
def test_no_text_leaves_the_figure_at_the_width_of_a_paper(kind, width, n_settings):
    result = make_search_result(n_settings)
    kl = result.kl.copy()
    kl[: n_settings // 3, 1] = np.nan  # "43 to 64 settings" is the longest label
    figure = np.atleast_1d(dataclasses.replace(result, kl=kl).plot(kind))[0].figure
    figure.set_size_inches(width, width * figure.get_figheight() / figure.get_figwidth())
    figure.canvas.draw()
    box = figure.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()
