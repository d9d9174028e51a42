"""Figures of `legality`: frames go in, Axes come out. Nothing is computed here, shown or saved.

They look like the lab's other figures: one color and dashes a variant, the first one's first, the
legend above. Lengths are close together here, so their axis is even where they are few.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from llmprobe.results.figures.accuracy import (
    GRAY,
    draw_band,
    legend_above,
    span,
    variants,
)
from llmprobe.results.figures.style import COLUMN_WIDTH, length_axis, log_axis, styled_axes

_MAX_EVEN = 128
"""The longest length of an even axis."""
_ZOOM = 3
"""Chance may leave the picture where it gets so many times higher than all variants."""


def draw_metric(
    summary: pd.DataFrame,
    *,
    name: str,
    given: str,
    train_lengths: tuple[int, int],
    n_sequences: Sequence[int],
    chance: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A metric against length, mean over seeds with its 95 % band.

    `summary` is `LegalityResult.summary_frame()` of it. With `chance`, a share for each length, the
    metric is a share and drawn in %; without it is in nats, on a log scale.
    """
    with styled_axes(ax, height=_height(summary)) as ax:
        _draw_variants(summary, ax, train_lengths, scale=1 if chance is None else 100)
        if chance is None:
            _log_scale(summary, ax)
        else:
            _draw_chance(summary, 100 * np.asarray(chance), ax)
        if summary.length.max() <= _MAX_EVEN:
            ends = [*train_lengths, *summary.length]
            ax.set_xlim(min(ends) - 1, max(ends) + 1)
            ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
            ax.set_xlabel(given)
        else:
            _log_lengths(summary, ax, train_lengths, given)
        unit = "nats" if chance is None else "%"
        _finish(summary, ax, f"{name} ({unit})", n_sequences)
    return ax


def draw_gap(
    summary: pd.DataFrame,
    *,
    name: str,
    given: str,
    train_lengths: tuple[int, int],
    n_sequences: Sequence[int],
    guide: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """The gap between logits against length, log-log; `guide`: next to a line of slope −1."""
    with styled_axes(ax, height=_height(summary)) as ax:
        _draw_variants(summary, ax, train_lengths)
        first = summary[summary.variant == summary.variant.iloc[0]]
        first = first[first["mean"] > 0]
        if guide and len(first) > 1:
            line = first["mean"].iloc[0] * first.length.iloc[0] / first.length
            # On top: theory and data may agree.
            ax.plot(first.length, line, color="0.6", lw=1.2, ls=":", label="slope −1", zorder=3)
        _log_scale(summary, ax)
        _log_lengths(summary, ax, train_lengths, given)
        _finish(summary, ax, f"{name} (logits)", n_sequences)
    return ax


def _height(summary: pd.DataFrame) -> float:
    return 0.72 * COLUMN_WIDTH + 0.1 * summary.variant.nunique()


def _draw_variants(
    summary: pd.DataFrame, ax: Axes, train_lengths: tuple[int, int], scale: float = 1
) -> None:
    first, last = train_lengths
    ax.axvspan(first - 0.5, last + 0.5, color="0.9", lw=0, zorder=0, label="training lengths")
    for part, look in variants(summary, list(dict.fromkeys(summary.variant))):
        draw_band(part, ax, scale=scale, **look)


def _draw_chance(summary: pd.DataFrame, chance: NDArray[Any], ax: Axes) -> None:
    """In %. Where the variants would lie flat at the bottom, the axis ends above them instead."""
    highest = 100 * float(np.nanmax(summary[["mean", "high"]].to_numpy(), initial=0))
    top = 1.05 * highest if 0 < _ZOOM * highest < chance.max() else 102
    label = "chance"
    if chance.min() > top:
        label = f"chance: {span(np.round(chance).astype(int))} %"
    lengths = list(dict.fromkeys(summary.length))
    marker = "o" if len(lengths) == 1 else None  # a line of one point would not be seen
    ax.plot(lengths, chance, color=GRAY, lw=0.8, ls=":", marker=marker, ms=3, label=label)
    ax.set_ylim(-0.02 * top, top)


def _log_scale(summary: pd.DataFrame, ax: Axes) -> None:
    """Logarithms down to the lowest mean: the foot of a band may be anywhere, even below 0."""
    positive = summary["mean"][summary["mean"] > 0]
    if not positive.empty:
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(ax.get_ylim()[0], positive.min() / 2))
        log_axis(ax)
        low, high = ax.get_ylim()
        if high < 100 * low:  # one power of ten, or none, would stand alone
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter("{x:.3g}")


def _log_lengths(
    summary: pd.DataFrame, ax: Axes, train_lengths: tuple[int, int], given: str
) -> None:
    """Ticks at powers of two alone: at the upper end of a dense axis others would collide."""
    lengths = list(dict.fromkeys(summary.length))
    powers = [length for length in lengths if length & (length - 1) == 0]
    length_axis(ax, powers if len(powers) > 1 else lengths, label=given, n_ticks=9)
    ends = [*train_lengths, *lengths]
    ax.set_xlim(min(ends) / 1.15, max(ends) * 1.15)


def _finish(summary: pd.DataFrame, ax: Axes, label: str, n_sequences: Sequence[int]) -> None:
    ax.set_ylabel(
        f"{label},\nmean over {span(summary.n_seeds)} seeds, 95 % band,\n"
        f"{span(n_sequences)} sequences"
    )
    legend_above(ax, list(dict.fromkeys(summary.variant)))
