"""Figures of `legality` draw the frames' own numbers; tests read the artists, not the pixels."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
from cases import thorough
from drawn import pixels
from legal_samples import make_legality_result
from samples import NAMES
from scipy import stats

from llmprobe.results.legality import METRICS, OTHER, LegalityResult
from llmprobe.results.opening import load_result

METRIC = {"illegal": "illegal_top1", "mass": "illegal_mass", "kl": "kl", "gap": "gap"}
METRIC |= {"entropy": "entropy"}
GAMES = tuple(range(1, 60))


@pytest.fixture(scope="module")
def result():
    return make_legality_result(3)


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_every_metric_has_its_figure():
    assert list(METRIC) == list(LegalityResult.plots)
    assert list(METRIC.values()) == [*METRICS, *OTHER]


@pytest.mark.parametrize("kind", LegalityResult.plots)
def test_every_figure_is_labeled_and_redraws_the_same_from_its_folder(result, kind, tmp_path):
    ax = result.plot(kind)
    unit = {"kl": "(nats)", "gap": "(logits)", "entropy": "(nats)"}.get(kind, "(%)")
    n = "256 sequences" if kind == "entropy" else "4096 sequences"
    assert ax.get_xlabel() == "tokens given"
    for words in ((METRICS | OTHER)[METRIC[kind]], unit, n, "8 seeds", "95 % band"):
        assert words in ax.get_ylabel()
    loaded = load_result(result.save(tmp_path / "run"))
    assert pixels(loaded.plot(kind)) == pixels(ax)


@pytest.mark.parametrize("kind", LegalityResult.plots)
@pytest.mark.parametrize(
    "case",
    ["all dead", "two seeds", *thorough("one of each", "a dead variant", "a zero", "all zero")],
)
def test_hard_cases_draw_without_a_warning(kind, case):
    if case == "one of each":
        result = make_legality_result(1, (16,), n_seeds=1)
    else:
        result = make_legality_result(2, n_seeds=2)
        changed = {name: getattr(result, name).copy() for name in METRICS | OTHER}
        for array in changed.values():
            if case != "two seeds":
                array[... if "all" in case else 1] = np.nan if "dead" in case else 0.0
        result = dataclasses.replace(result, **changed)
    pixels(result.plot(kind))


@pytest.mark.parametrize("kind", LegalityResult.plots)
def test_means_and_bands_are_the_frames(result, kind):
    ax = result.plot(kind)
    scale = 100 if kind in ("illegal", "mass") else 1
    summary = result.summary_frame(METRIC[kind])
    for name in result.variants:
        rows = summary[summary.variant == name]
        np.testing.assert_array_equal(lines(ax)[name].get_ydata(), scale * rows["mean"])
        assert lines(ax)[name].get_xdata().tolist() == list(result.lengths)
    band = ax.collections[0].get_paths()[0].vertices
    first = summary[summary.variant == "baseline"]
    for low, high in zip(first.low, first.high, strict=True):
        assert np.isclose(band[:, 1], scale * low).any()
        assert np.isclose(band[:, 1], scale * high).any()
    assert len({str(lines(ax)[name]._dash_pattern) for name in result.variants}) == 3
    assert texts(ax)[:3] == list(NAMES[:3])
    assert "training lengths" in texts(ax)
    shade = next(patch for patch in ax.patches if patch.get_label() == "training lengths")
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0.5, 8.5)
    for line in ax.get_lines():
        assert line.get_marker() in (None, "None"), "no stars"


@pytest.mark.parametrize("kind", ["illegal", "mass"])
def test_chance_is_a_line_that_changes_with_the_length(result, kind):
    ax = result.plot(kind)
    chance = lines(ax)["chance"]
    np.testing.assert_array_equal(chance.get_ydata(), 100 * result.uniform_mass)
    assert chance.get_linestyle() == ":"
    assert ax.get_yscale() == "linear"
    assert ax.get_ylim()[1] > 100


@pytest.mark.parametrize("kind", ["kl", "gap"])
def test_what_is_no_share_has_no_chance_and_a_log_scale(result, kind):
    ax = result.plot(kind)
    assert not any("chance" in label for label in texts(ax))
    assert ax.get_yscale() == "log"


def test_small_shares_are_seen_and_the_legend_says_where_chance_is():
    result = make_legality_result(2, GAMES, task="othello")
    ax = result.plot()
    highest = 100 * result.summary_frame().high.max()
    assert highest < ax.get_ylim()[1] < 1.2 * highest
    assert texts(ax)[-1] == "chance: 84 to 90 %"
    assert ax.get_xlabel() == "moves given"
    assert "1000 to 4096 sequences" in ax.get_ylabel()
    rising = make_legality_result()  # here chance starts in the picture and leaves it
    few = dataclasses.replace(rising, illegal_top1=rising.illegal_top1 / 5).plot("illegal")
    assert few.get_ylim()[1] < 20
    assert texts(few)[-1] == "chance"


@pytest.mark.parametrize(
    ("kind", "longest", "scale"),
    [("illegal", 31, "linear"), ("kl", 128, "linear"), ("mass", 129, "log"), ("gap", 31, "log")],
)
def test_the_axis_is_even_up_to_128_tokens_but_for_the_gap(kind, longest, scale):
    result = make_legality_result(1, tuple(range(1, longest + 1)), n_seeds=2)
    ax = result.plot(kind)
    assert ax.get_xscale() == scale
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert low < 1
    assert high > longest
    assert 4 <= len(ticks) <= 9
    if scale == "log":
        assert all(np.log2(tick).is_integer() for tick in ticks)


def test_lengths_that_are_no_powers_of_two_have_their_ticks_too():
    ax = make_legality_result(1, (3, 6, 12, 24), n_seeds=2).plot("gap")
    assert sorted(ax.get_xticks()) == [3, 6, 12, 24]


def test_the_guide_falls_as_one_over_length_from_the_first_gap(result):
    guide = lines(result.plot("gap"))["slope −1"]
    x, y = np.asarray(guide.get_xdata()), np.asarray(guide.get_ydata())
    assert x.tolist() == list(result.lengths)
    assert y[0] == pytest.approx(result.gap[0, :, 0].mean())
    np.testing.assert_allclose(x * y, x[0] * y[0])
    gap = result.gap.copy()
    gap[:, :, 0] = np.nan
    later = lines(dataclasses.replace(result, gap=gap).plot("gap"))["slope −1"]
    assert later.get_xdata()[0] == 2
    negative = dataclasses.replace(result, gap=-result.gap).plot("gap")
    assert "slope −1" not in texts(negative)


@pytest.mark.parametrize("low", [1e-9, 0.0, -3.0])
def test_the_foot_of_a_band_does_not_stretch_a_log_scale(low):
    result = make_legality_result(2, n_seeds=2)
    kl = result.kl.copy()
    half = (1 - low) / stats.t.ppf(0.975, 1)  # two seeds around 1 whose interval begins at `low`
    kl[:, 0], kl[:, 1] = 1 - half, 1 + half
    ax = dataclasses.replace(result, kl=kl).plot("kl")
    assert 0.5 <= ax.get_ylim()[0] < 1


def test_a_figure_goes_into_the_axes_given_and_changes_no_setting(result):
    before = dict(plt.rcParams)
    for kind in LegalityResult.plots:
        _, ax = plt.subplots()
        assert result.plot(kind, ax=ax) is ax
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("kind", ["illegal", "gap"])
@pytest.mark.parametrize("n_variants", [2, 9, *thorough(1, 3, 6)])
@pytest.mark.parametrize("task", ["set-complement", "othello"])
def test_legend_and_labels_stay_inside_a_column(kind, n_variants, task):
    ax = make_legality_result(n_variants, GAMES, task=task).plot(kind)
    figure = ax.figure
    figure.canvas.draw()
    for artist in (ax.get_legend(), ax.yaxis.label, ax.xaxis.label):
        box = artist.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
