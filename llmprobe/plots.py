"""Figures: a tidy frame goes in, Axes come out. Nothing is computed here, shown or saved.

One style serves a notebook and a paper: colours that the colour-blind tell apart, lengths on a
scale of powers of two, the statistic, its axis and the number of prompts in the labels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

COLUMN_WIDTH = 3.5
"""Inches: one column of a two-column paper."""
_MAX_LABELED = 8

_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.4,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.4,
    "axes.grid": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "savefig.bbox": "tight",
    "figure.dpi": 150,
}


def draw_decay(frame: pd.DataFrame, *, component: int, ax: Axes | None = None) -> Axes:
    """Standard deviation over prompts against length, log-log (Figure 1 of the paper).

    `frame` has the columns of `VarianceResult.to_frame()`. For each layer, or head, the median
    over features with its quartile band, and the chosen feature dashed; the grey line falls with
    slope −1/2, the rate of attention that disperses.
    """
    with _axes(ax) as ax:
        series = list(frame.groupby(["layer", "head"], dropna=False, sort=False))
        for (key, part), color in zip(series, _palette(len(series)), strict=False):
            ax.plot(part.length, part.std_median, color=color, label=_name(*key))
            ax.fill_between(part.length, part.std_q25, part.std_q75, color=color, alpha=0.15, lw=0)
            if len(series) <= _MAX_LABELED:
                ax.plot(part.length, part.component_std, color=color, lw=0.9, ls="--")
        _draw_reference_slope(frame, ax)
        _length_axis(ax, sorted(set(frame.length)))
        ax.set_yscale("log")
        ax.set_ylabel(f"standard deviation over {_prompts(frame)} prompts")
        _legend(ax, len(series), component)
    return ax


def _draw_reference_slope(frame: pd.DataFrame, ax: Axes) -> None:
    start = frame[frame.length == frame.length.min()].std_median.max()
    if not start > 0:
        return
    lengths = np.array(sorted(set(frame.length)), dtype=float)
    line = start * (lengths / lengths[0]) ** -0.5
    ax.plot(lengths, line, color="0.55", lw=1, ls=":", label="slope −1/2", zorder=1)


def _legend(ax: Axes, n_series: int, component: int) -> None:
    if n_series > _MAX_LABELED:
        return
    ax.plot([], [], color="0.3", lw=0.9, ls="--", label=f"feature {component}")
    ax.fill_between([], [], color="0.3", alpha=0.15, lw=0, label="quartiles over features")
    # Beside the lines: inside, it would cover some of them.
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _length_axis(ax: Axes, lengths: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xlabel("prompt length N (tokens)")
    step = 1 + (len(lengths) - 1) // 8
    ax.xaxis.set_major_locator(FixedLocator([float(n) for n in lengths[::step]]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))


def _palette(n: int) -> Iterator[tuple[float, ...]]:
    return cycle(sns.color_palette("colorblind") if n <= 8 else sns.color_palette("viridis", n))


def _name(layer: Any, head: Any) -> str:
    return f"layer {layer}" if pd.isna(head) else f"layer {layer} head {head}"


def _prompts(frame: pd.DataFrame) -> str:
    low, high = frame.n_prompts.min(), frame.n_prompts.max()
    return f"{low}" if low == high else f"{low} to {high}"


@contextmanager
def _axes(ax: Axes | None) -> Iterator[Axes]:
    """The caller's Axes as they are, or new ones with room for a legend, in our style."""
    with plt.rc_context(_STYLE):
        if ax is None:
            _, ax = plt.subplots(
                figsize=(1.3 * COLUMN_WIDTH, 0.75 * COLUMN_WIDTH), layout="constrained"
            )
        yield ax
