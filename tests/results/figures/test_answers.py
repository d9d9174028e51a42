"""Figures of `answers` draw the frames' own numbers; tests read the artists, not the pixels."""

import dataclasses

import numpy as np
import pytest
from answer_samples import make_answers_result
from drawn import pixels
from samples import NAMES

from llmprobe.results.answers import METRICS, AnswersResult
from llmprobe.results.opening import load_result

METRIC = {"exact": "exact", "tokens": "token_accuracy"}


@pytest.fixture(scope="module")
def result():
    return make_answers_result(3)


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


@pytest.mark.parametrize("kind", METRIC)
def test_means_and_bands_are_the_frames(result, kind):
    ax = result.plot(kind)
    summary = result.summary_frame(METRIC[kind])
    for name in result.variants:
        rows = summary[summary.variant == name]
        np.testing.assert_array_equal(lines(ax)[name].get_ydata(), 100 * rows["mean"])
        assert lines(ax)[name].get_xdata().tolist() == list(result.lengths)
    band = ax.collections[0].get_paths()[0].vertices
    first = summary[summary.variant == "baseline"]
    assert np.isclose(band[:, 1], 100 * first.low.iloc[-1]).any()
    shade = next(patch for patch in ax.patches if patch.get_label() == "training lengths")
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (4.5, 10.5)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[:3] == list(NAMES[:3])
    assert ("chance" in legend) == (kind == "exact")
    if kind == "exact":
        np.testing.assert_array_equal(lines(ax)["chance"].get_ydata(), 100 * result.chance)


@pytest.mark.parametrize("kind", AnswersResult.plots)
def test_every_figure_is_labeled_and_redraws_the_same_from_its_folder(result, kind, tmp_path):
    ax = result.plot(kind)
    words = ax.get_ylabel() + ax.get_xlabel()
    assert "8 seeds" in words
    if kind in METRIC:
        assert ax.get_xlabel() == "length (digits)"
        for expected in (METRICS[METRIC[kind]], "256 examples", "95 % band"):
            assert expected in words
    loaded = load_result(result.save(tmp_path / "run"))
    assert pixels(loaded.plot(kind)) == pixels(ax)


def test_a_dot_is_a_seed_and_a_bar_their_mean(result):
    ax = result.plot("solved")
    drawn = ax.get_lines()
    for v in range(3):
        dots, bar = drawn[2 * v], drawn[2 * v + 1]
        np.testing.assert_array_equal(dots.get_xdata(), result.longest_solved[v])
        assert np.abs(dots.get_ydata() - v).max() < 0.5
        assert bar.get_xdata()[0] == result.solved_frame()["mean"][v]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(NAMES[:3])
    assert {line.get_xdata()[0] for line in drawn[-2:]} == {1, 3.0}


@pytest.mark.parametrize("kind", ["exact", "solved"])
@pytest.mark.parametrize("case", ["one of each", "a dead variant", "all dead", "all zero"])
def test_hard_cases_draw_without_a_warning(kind, case):
    if case == "one of each":
        result = make_answers_result(1, (16,), n_seeds=1)
    else:
        result = make_answers_result(2, n_seeds=2)
        changed = {name: getattr(result, name).copy() for name in METRICS}
        for array in changed.values():
            array[... if "all" in case else 1] = np.nan if "dead" in case else 0.0
        result = dataclasses.replace(result, **changed)
    pixels(result.plot(kind))
