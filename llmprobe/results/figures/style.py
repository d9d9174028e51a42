"""The look of all figures, and the parts that several of them share.

One style serves a notebook and a paper: colors that the color-blind tell apart, lengths on a scale
of powers of two, the statistic, its axis and the number of prompts in the labels.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from llmprobe.base.files import replacing
from llmprobe.base.signs import signed
from llmprobe.base.visible import visible

COLUMN_WIDTH = 3.5
"""Inches: one column of a two-column paper."""
MAX_LABELED = 10
"""More series are drawn as a bundle, with three of them named."""
MAX_PANELS = 8
_DPI = 200
"""Of figures that are written."""
_NARROW = 50
"""A log axis that spans less, from its lowest to its highest number, has plain numbers."""
# Those of seaborn, which takes longer to import than most figures to draw: it brings scipy.stats.
_COLORBLIND = tuple(
    to_rgb(f"#{color}")
    for color in (
        *("0173B2", "DE8F05", "029E73", "D55E00", "CC78BC"),
        *("CA9161", "FBAFE4", "949494", "ECE133", "56B4E9"),
    )
)
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
    "figure.dpi": 150,
    "axes.prop_cycle": cycler(color=_COLORBLIND),
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Figures that are made in this block look like those of llmprobe."""
    with plt.rc_context(_STYLE):
        yield
        # A notebook's backend turns this on with the first figure, inside the context.
        interactive = plt.isinteractive()
    matplotlib.interactive(interactive)


def draw_violins(frame: pd.DataFrame, ax: Axes, *, legend: bool = True) -> None:
    """A violin for each length and feature; `frame` has one row a value."""
    import seaborn as sns

    sns.violinplot(
        frame.assign(feature=frame.feature.astype(str)),
        x="length",
        y="value",
        hue="feature",
        palette="colorblind",
        density_norm="width",
        inner=None,
        linewidth=0.3,
        cut=0,
        legend=legend,
        ax=ax,
    )


def series_name(layer: Any, head: Any) -> str:
    """How a series is called in titles."""
    return f"layer {layer}" if pd.isna(head) else f"layer {layer} head {int(head)}"


def by_series(frame: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """The rows of each series by its short name for legends: L3 a layer, L3H5 a head of it."""
    groups = frame.groupby(["layer", "head"], dropna=False, sort=False)
    return {_short_name(*key): part for key, part in groups}


def _short_name(layer: Any, head: Any) -> str:
    return f"L{layer}" if pd.isna(head) else f"L{layer}H{int(head)}"


def marker_of(part: pd.DataFrame) -> str | None:
    return "o" if len(part) == 1 else None  # a line of one point would not be seen


def draw_series(
    ax: Axes,
    series: Mapping[str, pd.DataFrame],
    column: str,
    *,
    ranks: Sequence[float],
    ends: tuple[str, str] = ("lowest", "highest"),
    with_ranks: bool = False,
    styles: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """A line for each series: a color each if they are few, else a bundle with three named.

    Named are the series with the lowest, the median and the highest of `ranks`, in the words of
    `ends`; `with_ranks` tells the numbers too.
    """
    few = len(series) <= MAX_LABELED
    colors = palette(len(series)) if few else cycle(["0.6"])
    faint: dict[str, Any] = {} if few else {"lw": 0.5, "alpha": max(0.15, 6 / len(series))}
    more: Sequence[Mapping[str, Any]] = [{}] * len(series) if styles is None else styles
    for (name, part), color, style in zip(series.items(), colors, more, strict=False):
        how = {"color": color, "marker": marker_of(part), **style, **faint}
        ax.plot(part.length, part[column], **how, label=name if few else None)
    if few:
        return
    order = [i for i in np.argsort(ranks, kind="stable") if np.isfinite(ranks[i])]
    if not order:
        return
    chosen = {ends[0]: order[0], "median": order[len(order) // 2], ends[1]: order[-1]}
    for (word, index), color in zip(chosen.items(), palette(3), strict=False):
        name, part = list(series.items())[index]
        told = f" ({signed(ranks[index])})" if with_ranks else ""
        how = {"color": color, "marker": marker_of(part), **more[index]}
        ax.plot(part.length, part[column], **how, label=f"{word}:\n{name}{told}", zorder=3)
    ax.plot([], [], color="0.6", lw=0.5, label=f"all {len(series)}")


def last_of(series: Mapping[str, pd.DataFrame], column: str) -> list[float]:
    """The value at the longest length, to rank series by."""
    return [float(part[column].iloc[-1]) for part in series.values()]


def series_legend(ax: Axes, *, title: str | None = None, above: bool = False) -> None:
    """A narrow legend next to the lines, where it covers none; `above` them if names are long."""
    ax.legend(
        title=title,
        alignment="left",
        loc="lower left" if above else "upper left",
        bbox_to_anchor=(0, 1) if above else (1, 1),
        handlelength=1.2,
        handletextpad=0.5,
        borderaxespad=0.3,
    )


def length_axis(
    ax: Axes,
    lengths: Iterable[int],
    *,
    label: str = "prompt length N (tokens)",
    n_ticks: int = 7,
) -> None:
    """Powers of two across, with ticks at the lengths, or at some of them, both ends included."""
    ticks = sorted(set(lengths))
    ax.set_xscale("log", base=2)
    ax.set_xlabel(label)
    step = 1 + (len(ticks) - 1) // n_ticks
    chosen = ticks[::-step]
    if 2 * ((len(ticks) - 1) % step) < step:  # too near to the first, or the first itself
        chosen.pop()
    chosen = sorted({ticks[0], *chosen})
    ax.xaxis.set_major_locator(FixedLocator([float(n) for n in chosen]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))


def log_axis(ax: Axes) -> None:
    """A log scale up, with plain numbers where powers of ten alone would be too few to be read."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < _NARROW * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:.3g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def mark_trained(ax: Axes, lengths: Collection[int], trained: int | None) -> None:
    """A line where the context that the model was trained for ends, if prompts go beyond it."""
    if trained is not None and min(lengths) < trained < max(lengths):
        ax.axvline(trained, color="0.55", lw=1, ls="--", zorder=1)
        ax.annotate(
            "trained context",
            (trained, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            fontsize=6,
            color="0.4",
        )


def palette(n: int) -> Iterator[tuple[float, ...]]:
    """Colors for n series: easy to tell apart where they are few, a scale where they are many."""
    few = n <= MAX_LABELED
    return cycle(_COLORBLIND[:n] if few else scale(n))


def scale(n: int) -> list[tuple[float, ...]]:
    """Colors for n ordered series, without the ends of the scale."""
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 1, n + 2)[1:-1])
    return [tuple(color) for color in colors[:, :3].tolist()]


def prompts_of(frame: pd.DataFrame) -> str:
    low, high = frame.n_prompts.min(), frame.n_prompts.max()
    return f"{low}" if low == high else f"{low} to {high}"


def write_figure(axes: Any, *paths: Path, width: float | None = None) -> None:
    """Write the figure that Axes are in to files and close it; `width` is in inches.

    A file is written next to its place and renamed: it is whole or not there, and a link at its
    place is replaced, not followed.
    """
    with _written(axes, width=width) as figure:
        for path in paths:
            with replacing(path) as file:
                figure.savefig(file, dpi=_DPI, format=path.suffix.removeprefix(".") or None)


def write_image(axes: Any, file: BinaryIO) -> None:
    """Write the figure that Axes are in to an open file, as PNG, and close it."""
    with _written(axes) as figure:
        figure.savefig(file, dpi=_DPI, format="png")


@contextmanager
def _written(axes: Any, *, width: float | None = None) -> Iterator[Figure]:
    """The figure that Axes are in; it is closed behind the block."""
    figure = np.atleast_1d(axes).ravel()[0].get_figure(root=True)
    if width is not None:
        figure.set_size_inches(width, width * figure.get_figheight() / figure.get_figwidth())
    try:
        yield figure
    finally:
        plt.close(figure)


@contextmanager
def styled_axes(
    ax: Any,
    *,
    n_panels: int = 1,
    n_rows: int = 1,
    panels: bool = False,
    width: float = COLUMN_WIDTH,
    height: float = 0.72 * COLUMN_WIDTH,
    legend: bool = False,
) -> Iterator[Any]:
    """The caller's Axes as they are, or new ones in our style with room for a legend."""
    with paper_style():
        if ax is None:
            size = (width + (1.1 if legend else 0), height)
            _, grid = plt.subplots(
                n_rows, n_panels, figsize=size, layout="constrained", squeeze=not panels
            )
            ax = grid.ravel() if panels else grid
        figure = np.atleast_1d(ax).ravel()[0].get_figure(root=True)
        before = {id(text): text.get_text() for text in figure.findobj(Text)}
        yield ax
        _show_as_written(figure, before)


def _show_as_written(figure: Any, before: Mapping[int, str]) -> None:
    """Names may have dollar signs or control characters: the words that were added are no code.

    Ticks stay: matplotlib writes powers of ten as mathematics.
    """
    ticks = {
        id(text) for axes in figure.axes for text in (*_ticks(axes.xaxis), *_ticks(axes.yaxis))
    }
    for text in figure.findobj(Text):
        words = text.get_text()
        if id(text) not in ticks and before.get(id(text), "") != words:
            text.set_parse_math(False)
            text.set_text("\n".join(map(visible, words.split("\n"))))


def _ticks(axis: Any) -> Iterator[Text]:
    yield axis.get_offset_text()
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        yield from (tick.label1, tick.label2)
