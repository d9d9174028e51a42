"""The look of all figures, and the parts that several of them share."""

from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import pytest
import seaborn as sns
from samples import make_variance_result

from llmprobe.results.figures import style


def test_a_figure_goes_into_the_axes_given_and_changes_no_setting(variance_result):
    before = dict(plt.rcParams)
    _, ax = plt.subplots()
    assert variance_result.plot(ax=ax) is ax
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("n_lengths", range(1, 25))
@pytest.mark.parametrize("n_ticks", [4, 7])
def test_the_first_and_the_last_length_have_their_ticks(n_lengths, n_ticks):
    lengths = [2**n for n in range(n_lengths)]
    _, ax = plt.subplots()
    style.length_axis(ax, lengths, n_ticks=n_ticks)
    ticks = sorted(ax.get_xticks())
    assert (ticks[0], ticks[-1]) == (lengths[0], lengths[-1])
    assert set(ticks) <= set(lengths)
    assert len(ticks) <= n_ticks + 1
    plt.close(ax.figure)


def test_a_few_series_get_colors_of_their_own():
    ax = make_variance_result(n_heads=5).plot()
    drawn = [line for line in ax.get_lines() if str(line.get_label()).startswith("L")]
    assert len({line.get_color() for line in drawn}) == 10


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
    with style.paper_style():
        _, ax = plt.subplots()
        assert not ax.spines["top"].get_visible()
        first = ax.plot([0, 1])[0].get_color()
    assert first == next(style.palette(2))
    assert dict(plt.rcParams) == before


def test_a_figure_is_written_with_its_width_and_closed(tmp_path, variance_result):
    for kind in ("decay", "drift"):  # one panel, and several
        style.write_figure(variance_result.plot(kind), tmp_path / f"{kind}.png", width=3)
        assert plt.imread(tmp_path / f"{kind}.png").shape[1] == 600
    assert not plt.get_fignums()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decay.png", "drift.png"]


def test_a_figure_that_cannot_be_written_leaves_nothing(tmp_path, variance_result):
    with pytest.raises(ValueError, match="poem"):
        style.write_figure(variance_result.plot(), tmp_path / "figure.poem")
    assert not plt.get_fignums()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n", [1, 3, 10, 11, 30])
def test_colors_are_those_of_seaborn(n):
    expected = sns.color_palette("colorblind" if n <= style.MAX_LABELED else "viridis", n)
    got = list(islice(style.palette(n), n))
    np.testing.assert_allclose(got, expected)
