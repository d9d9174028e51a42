"""Figures of the lab draw the frames' own numbers; the tests read the artists, not the pixels."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
from cases import thorough
from drawn import pixels
from samples import NAMES, make_synthetic_result

from llmprobe import load_result
from llmprobe.results.accuracy import SyntheticResult

SMALL = (8, 64, 1024, 16384)


@pytest.fixture(scope="module")
def result():
    return make_synthetic_result(3, SMALL)


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


@pytest.mark.parametrize("kind", SyntheticResult.plots)
def test_every_figure_is_labeled_and_redraws_the_same_from_its_folder(result, kind, tmp_path):
    drawn = result.plot(kind)
    panels = np.atleast_1d(drawn)
    words = [panel.get_xlabel() for panel in panels]
    assert any(word in text for text in words for word in ("N", "rank", "training steps"))
    assert any(panel.get_ylabel() for panel in panels)
    words = " ".join(panel.get_xlabel() + panel.get_ylabel() for panel in panels)
    assert "sets" in words
    assert "seed" in words
    loaded = load_result(result.save(tmp_path / "run"))
    assert pixels(loaded.plot(kind)) == pixels(drawn)


@pytest.mark.parametrize("kind", SyntheticResult.plots)
@pytest.mark.parametrize("case", ["no finite seed", *thorough("one of each", "a constant")])
def test_hard_cases_draw_without_a_warning(kind, case):
    if case == "one of each":
        result = make_synthetic_result(1, (16,), n_seeds=1)
    else:
        result = make_synthetic_result(2, SMALL, n_seeds=2)
        spoiled = np.nan if case == "no finite seed" else 0.0
        names = (*SyntheticResult.by_length, "feature_values", "top_weights")
        changed = {name: getattr(result, name).copy() for name in names}
        for array in changed.values():
            array[1] = spoiled
        result = dataclasses.replace(result, **changed)
    pixels(result.plot(kind))


def test_accuracy_shows_means_bands_training_chance_and_stars(result):
    ax = result.plot()
    assert ax.get_xscale() == "log"
    summary = result.summary_frame()
    drawn = lines(ax)
    for name in result.variants:
        rows = summary[summary.variant == name]
        np.testing.assert_array_equal(drawn[name].get_ydata(), 100 * rows["mean"])
        assert drawn[name].get_xdata().tolist() == list(SMALL)
    assert list(drawn["chance"].get_ydata()) == [10, 10]
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[:3] == list(NAMES[:3])
    assert "training lengths" in texts
    band = ax.collections[0].get_paths()[0].vertices
    first = summary[summary.variant == "baseline"]
    for low, high in zip(first.low, first.high, strict=True):
        assert np.isclose(band[:, 1], 100 * low).any()
        assert np.isclose(band[:, 1], 100 * high).any()
    assert "8 seeds" in ax.get_ylabel()
    assert "1024 to 4096 sets" in ax.get_ylabel()


@pytest.mark.parametrize("kind", ["accuracy", "shift"])
def test_variants_that_coincide_are_told_apart_by_their_dashes(kind):
    panel = np.atleast_1d(make_synthetic_result(6, SMALL).plot(kind))[-1]
    drawn = [str(lines(panel)[name]._dash_pattern) for name in NAMES[:6]]
    assert len(set(drawn)) == 6
    assert lines(panel)[NAMES[0]].get_linestyle() == "-"


def test_stars_stand_where_the_frame_says_and_are_hollow_where_the_variant_is_worse():
    result = make_synthetic_result(2, SMALL)
    accuracy = result.accuracy.copy()
    rng = np.random.default_rng(3)
    accuracy[:, :, :] = 0.5 + 0.01 * rng.normal(size=accuracy.shape)
    accuracy[1, :, 1] += 0.2
    accuracy[1, :, 3] -= 0.2
    result = dataclasses.replace(result, accuracy=accuracy)
    assert result.compare_frame().significant.tolist() == [False, True, False, True]
    ax = result.plot()
    stars = [line for line in ax.get_lines() if line.get_label() == "_star"]
    assert [float(np.ravel(star.get_xdata())[0]) for star in stars] == [64, 16384]
    assert [star.get_markerfacecolor() == "white" for star in stars] == [False, True]
    assert all(np.ravel(star.get_ydata())[0] > 100 for star in stars)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[-2:] == ["better (Holm, 5 %)", "worse (Holm, 5 %)"]


def test_shift_has_the_frames_means_and_a_guide_that_falls_as_one_over_n(result):
    panels = result.plot("shift")
    frame = result.shift_frame()
    for panel, name in zip(panels[1:], ("global_variance", "feature_variance"), strict=True):
        for variant in result.variants:
            rows = frame[(frame.statistic == name) & (frame.variant == variant)]
            np.testing.assert_array_equal(lines(panel)[variant].get_ydata(), rows["mean"])
    assert [panel.get_yscale() for panel in panels] == ["log"] * 3
    guide = lines(panels[2])["slope −1"]
    x, y = guide.get_xdata(), guide.get_ydata()
    np.testing.assert_allclose(np.asarray(x) * np.asarray(y), x[0] * y[0])
    assert "at 8|" in panels[0].get_ylabel()


def test_the_drift_is_drawn_without_its_sign_above_the_noise_of_the_sets(result):
    drift = result.drift_frame()
    panel = result.plot("shift")[0]
    for variant in result.variants:
        rows = drift[(drift.variant == variant) & (drift.length != result.reference)]
        assert len(rows) == len(SMALL) - 1
        np.testing.assert_array_equal(lines(panel)[variant].get_ydata(), rows.rms)
        np.testing.assert_array_equal(lines(panel)[f"_noise {variant}"].get_ydata(), rows.noise)
    assert "dotted: noise" in result.plot("shift")[1].get_xlabel()
    old = dataclasses.replace(result, global_mean_error=None)
    assert "dotted" not in old.plot("shift")[1].get_xlabel()


def test_features_have_a_row_a_variant_up_to_four_and_say_so(result):
    panels = result.plot("features")
    assert [panel.get_title(loc="left") for panel in panels] == list(NAMES[:3])
    assert [len(panel.collections) for panel in panels] == [5 * len(SMALL)] * 3
    texts = [text.get_text() for text in panels[0].get_legend().get_texts()]
    assert texts == list("01234")
    many = make_synthetic_result(5, (16, 64)).plot("features")
    assert len(many) == 4
    assert many[0].get_title(loc="left") == "baseline (4 of 5 variants)"


def test_weights_have_one_color_scale_a_row_a_variant_and_at_most_eight_lengths(result):
    panels = result.plot("weights").reshape(3, 4)
    images = [panel.images[0] for panel in panels.ravel()]
    assert len({(image.norm.vmin, image.norm.vmax) for image in images}) == 1
    np.testing.assert_array_equal(images[1].get_array(), result.top_weights[0, 1])
    # A set of 8 items has no more than 8 weights.
    assert np.ma.getmaskarray(images[0].get_array())[:, 8:].all()
    assert [panel.get_ylabel() for panel in panels[:, 0]] == list(NAMES[:3])
    for n_lengths, n_shown in ((11, 6), (8, 8), (12, 8)):
        long = make_synthetic_result(1, tuple(2**k for k in range(3, 3 + n_lengths)))
        titles = [panel.get_title() for panel in long.plot("weights")]
        assert len(titles) == n_shown
        assert (titles[0], titles[-1]) == ("N = 8", f"N = {long.lengths[-1]}")


def test_weights_that_are_no_distribution_are_drawn_too(result):
    odd = np.linspace(3, -3, 16, dtype=np.float32)
    wild = dataclasses.replace(
        result, top_weights=np.broadcast_to(odd, result.top_weights.shape).copy()
    )
    pixels(wild.plot("weights"))


def test_a_figure_goes_into_the_axes_given_and_changes_no_setting(result):
    before = dict(plt.rcParams)
    _, ax = plt.subplots()
    assert result.plot(ax=ax) is ax
    _, row = plt.subplots(1, 3)
    assert result.plot("shift", ax=row)[1] is row[1]
    _, grid = plt.subplots(3, 4)
    assert result.plot("weights", ax=grid)[5] is grid[1, 1]
    _, column = plt.subplots(3, 1)
    assert result.plot("features", ax=column)[2] is column[2]
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("n_variants", [2, 3, 6, 9])
def test_a_legend_is_no_wider_than_a_column(n_variants):
    ax = make_synthetic_result(n_variants).plot()
    figure = ax.figure
    figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
