"""Figures of `answers`: frames go in, Axes come out. Nothing is computed here, shown or saved.

They look like the lab's other figures: one color and dashes a variant, the first one's first, the
legend above. Lengths of training are gray.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from llmprobe.base.visible import visible
from llmprobe.results.figures.accuracy import GRAY, draw_band, legend_above, span, variants
from llmprobe.results.figures.style import COLUMN_WIDTH, palette, styled_axes

_SPREAD = 0.16
"""Of the dots of seeds around their variant."""


def draw_answers(
    summary: pd.DataFrame,
    *,
    name: str,
    counted: str,
    train_lengths: tuple[int, int],
    n_examples: Sequence[int],
    chance: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A share in % against length, mean over seeds with its 95 % band.

    `summary` is `AnswersResult.summary_frame()`; `chance` has a share for each length.
    """
    names = list(dict.fromkeys(summary.variant))
    lengths = list(dict.fromkeys(summary.length))
    with styled_axes(ax, height=0.72 * COLUMN_WIDTH + 0.1 * len(names)) as ax:
        first, last = train_lengths
        ax.axvspan(first - 0.5, last + 0.5, color="0.9", lw=0, zorder=0, label="training lengths")
        for part, look in variants(summary, names):
            draw_band(part, ax, scale=100, **look)
        if chance is not None:
            marker = "o" if len(lengths) == 1 else None  # a line of one point would not be seen
            shares = 100 * np.asarray(chance)
            ax.plot(lengths, shares, color=GRAY, lw=0.8, ls=":", marker=marker, label="chance")
        ends = [*train_lengths, *lengths]
        ax.set_xlim(min(ends) - 1, max(ends) + 1)
        ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
        ax.set_xlabel(f"length ({counted})")
        ax.set_ylim(-2, 102)
        ax.set_ylabel(
            f"{name} (%) on {span(n_examples)} examples,\n"
            f"mean over {span(summary.n_seeds)} seeds, 95 % band"
        )
        legend_above(ax, names)
    return ax


def draw_solved(
    solved: ArrayLike, frame: pd.DataFrame, *, longest: float, ax: Axes | None = None
) -> Axes:
    """The longest length solved over the longest of training: a dot a seed, a bar for their mean.

    `solved` is `AnswersResult.longest_solved`, `frame` its `solved_frame()`. The dashed line is the
    longest length that was tested.
    """
    rows: Any = np.asarray(solved)
    names = list(frame.variant)
    with styled_axes(ax, height=0.9 + 0.28 * len(names)) as ax:
        for at, (own, color) in enumerate(zip(rows, palette(len(names)), strict=False)):
            offsets = np.linspace(-_SPREAD, _SPREAD, len(own)) if len(own) > 1 else np.zeros(1)
            ax.plot(own, at + offsets, "o", color=color, ms=3, mew=0, alpha=0.8)
            ax.plot(frame["mean"].iloc[at], at, "|", color=color, ms=14, mew=2)
        ax.axvline(1, color=GRAY, lw=0.8, ls=":")
        ax.axvline(longest, color=GRAY, lw=0.8, ls="--")
        ax.set_yticks(range(len(names)), [visible(name) for name in names], parse_math=False)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlim(left=-0.05 * longest)
        ax.set_xlabel(
            "longest length solved (90 % exact) / longest of training,\n"
            f"{span(frame.n_seeds)} seeds; bar: mean; dashed: longest tested"
        )
    return ax
