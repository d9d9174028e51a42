"""Figures of the lab: frames go in, Axes come out. Nothing is computed here, shown or saved.

One color and one kind of dashes a variant in all figures, the first one's first: later lines have
gaps, so that those that coincide are all seen. Lengths are sizes of sets, on a scale of powers of
two. The legend stands above, so that a figure keeps its width in a paper's column.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from llmprobe.base.lengths import spread
from llmprobe.results.figures.style import (
    COLUMN_WIDTH,
    MAX_PANELS,
    draw_violins,
    length_axis,
    log_axis,
    palette,
    styled_axes,
)

_LENGTH = "set size N (items)"
_MAX_ROWS = 4
_LEGEND_LINE = 0.15
"""Inches."""
GRAY = "0.45"
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (6, 2)),
    (0, (2, 2)),
    (0, (6, 2, 1, 2)),
    (0, (3, 4)),
    (0, (1, 3)),
)


def draw_accuracy(
    summary: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    train_lengths: tuple[int, int],
    chance: float,
    n_sets: Sequence[int],
    ax: Axes | None = None,
) -> Axes:
    """Accuracy against length, mean over seeds with its 95 % band.

    The frames are `SyntheticResult.summary_frame()` and `compare_frame()`. Stars above mark lengths
    with a significant difference, full where the variant is better than the reference.
    """
    names = list(dict.fromkeys(summary.variant))
    stars = comparisons[comparisons.significant.astype(bool)]
    starred = list(dict.fromkeys(stars.variant))
    height = 0.72 * COLUMN_WIDTH + 0.1 * (len(names) + len(starred))
    with styled_axes(ax, height=height) as ax:
        ax.axvspan(*train_lengths, color="0.9", lw=0, zorder=0, label="training lengths")
        ax.axhline(100 * chance, color=GRAY, lw=0.8, ls=":", label="chance")
        for part, look in variants(summary, names):
            draw_band(part, ax, scale=100, **look)
            name, color = look["label"], look["color"]
            for row in stars[stars.variant == name].to_dict("records"):
                level = 105 + 6 * starred.index(name)
                _draw_star(row["length"], level, ax, color=color, better=row["difference"] > 0)
        for better, word in ((True, "better"), (False, "worse")):
            if ((stars.difference > 0) == better).any():
                label = f"{word} (Holm, 5 %)"
                _draw_star([], [], ax, color=GRAY, better=better, label=label)
        length_axis(ax, summary.length, label=_LENGTH)
        ends = [*train_lengths, *summary.length]
        ax.set_xlim(min(ends) / 1.15, max(ends) * 1.15)
        ax.set_ylim(-2, 102 + 6 * len(starred))
        ax.set_yticks(range(0, 101, 20))
        ax.set_ylabel(
            f"accuracy (%) on {span(n_sets)} sets,\n"
            f"mean over {span(summary.n_seeds)} seeds, 95 % band"
        )
        legend_above(ax, names)
    return ax


def draw_shift(
    frame: pd.DataFrame,
    drift: pd.DataFrame,
    *,
    reference: int,
    n_sets: Sequence[int],
    ax: Any = None,
) -> NDArray[Any]:
    """Drift of the global mean, global variance, variance of single features (Figure 3).

    The frames are `SyntheticResult.shift_frame()` and `drift_frame()`. The drift has either sign,
    so its root mean square over seeds is drawn, above what test sets alone would give (dotted). The
    gray line in the last panel falls as 1/N.
    """
    drift = drift[drift.length != reference].rename(columns={"rms": "mean"})
    names = list(dict.fromkeys(frame.variant))
    n_columns = _legend_columns([*names, "slope −1"], 2 * COLUMN_WIDTH)
    height = 2.3 + _LEGEND_LINE * -(-(len(names) + 1) // n_columns)
    labels = {
        "drift": f"|global mean − that at {reference}|\n/ global variance at {reference}, rms",
        "global_variance": "global variance over\nfeatures, mean over sets",
        "feature_variance": "variance of a feature over\nsets, mean over features",
    }
    with styled_axes(ax, n_panels=3, panels=True, width=2 * COLUMN_WIDTH, height=height) as axes:
        for panel, (statistic, label) in zip(axes, labels.items(), strict=True):
            rows = drift if statistic == "drift" else frame[frame.statistic == statistic]
            for part, look in variants(rows, names):
                draw_band(part, panel, **look)
                if statistic == "drift":
                    dots: dict[str, Any] = {"color": look["color"], "lw": 0.8, "ls": ":"}
                    panel.plot(part.length, part.noise, **dots, label=f"_noise {look['label']}")
            length_axis(panel, frame.length, label=_LENGTH, n_ticks=4)
            panel.set_ylabel(label)
            if (rows["mean"] > 0).any():
                log_axis(panel)
        _draw_guide(rows[rows.variant == names[0]], reference, axes[-1])
        axes[0].set_xlim(axes[1].get_xlim())
        noise = "; dotted: noise of the sets" if drift.noise.notna().any() else ""
        axes[1].set_xlabel(
            f"{_LENGTH}\nmeans over {span(frame.n_seeds)} seeds with 95 % bands (geometric for "
            f"variances); {span(n_sets)} sets{noise}"
        )
        legend_over(axes, names, n_columns)
    return np.asarray(axes)


def draw_features(frame: pd.DataFrame, *, seed: int, ax: Any = None) -> NDArray[Any]:
    """Distributions of single features by length, a row for each of the first variants (Figure 2).

    `frame` is `SyntheticResult.feature_frame()`. Each row has its own scale.
    """
    names = list(dict.fromkeys(frame.variant))
    shown = names[:_MAX_ROWS]
    height = 0.6 + 1.25 * len(shown)
    with styled_axes(
        ax, n_rows=len(shown), panels=True, width=2 * COLUMN_WIDTH, height=height
    ) as axes:
        for panel, name in zip(axes, shown, strict=True):
            draw_violins(frame[frame.variant == name], panel, legend=panel is axes[0])
            panel.set(xlabel="", ylabel="feature value", axisbelow=True)
            panel.yaxis.set_major_locator(MaxNLocator(4))
            panel.set_title(name, loc="left")
            panel.tick_params(labelbottom=name == shown[-1])
        if len(shown) < len(names):
            axes[0].set_title(f"{names[0]} ({len(shown)} of {len(names)} variants)", loc="left")
        axes[-1].set_xlabel(f"{_LENGTH}; {frame.set.nunique()} sets a length, seed {seed}")
        # Above the panel, where no violin is.
        axes[0].legend(
            title="feature",
            alignment="right",
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=frame.feature.nunique(),
            columnspacing=1,
            handlelength=1,
            borderpad=0,
        )
    return np.asarray(axes)


def draw_weights(
    top: NDArray[Any],
    lengths: Sequence[int],
    *,
    variants: Sequence[str],
    seed: int,
    ax: Any = None,
) -> NDArray[Any]:
    """Heat maps of the largest weights (variants, lengths, examples, rank), a row a variant
    (Figure 4).

    The color scale is common and ends at 1. What is smaller than it shows, or negative, has its
    lowest color; ranks that a small set does not have stay white.
    """
    shown = _spread(len(lengths))
    n_rows, n_ranks = len(variants), top.shape[-1]
    height = 0.65 + 0.85 * n_rows
    scale = LogNorm(vmin=1e-4, vmax=1, clip=True)
    with styled_axes(
        ax,
        n_panels=len(shown),
        n_rows=n_rows,
        panels=True,
        width=2 * COLUMN_WIDTH,
        height=height,
    ) as axes:
        grid = np.asarray(axes).reshape(n_rows, len(shown))
        for row, variant in enumerate(variants):
            for panel, number in zip(grid[row], shown, strict=True):
                there = np.arange(n_ranks) < lengths[number]
                weights = np.where(there, top[row, number], np.nan)
                image = panel.imshow(weights, norm=scale, cmap="viridis", aspect="auto")
                panel.grid(False)
                panel.set_xticks([0, n_ranks - 1], ["1", f"{n_ranks}"])
                panel.set_yticks([])
                panel.tick_params(bottom=row == n_rows - 1, labelbottom=row == n_rows - 1)
            grid[row, 0].set_ylabel(variant.replace("+", "+\n"))
        for panel, number in zip(grid[0], shown, strict=True):
            panel.set_title(f"N = {lengths[number]}")
        grid[-1, len(shown) // 2].set_xlabel(
            f"rank of the weight, largest first; down: {top.shape[2]} sets, seed {seed}"
        )
        above = "both" if (top > 1).any() else "min"
        grid[0, 0].figure.colorbar(
            image,
            ax=list(grid.ravel()),
            label="attention weight",
            fraction=0.03,
            aspect=7 * n_rows,
            extend=above,
            extendfrac=0.02,
        )
    return grid.ravel()


def variants(
    frame: pd.DataFrame, names: Sequence[str]
) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The rows of each variant, and how its line looks: label, color and dashes."""
    for name, color, dashes in zip(names, palette(len(names)), cycle(_DASHES), strict=False):
        yield frame[frame.variant == name], {"label": name, "color": color, "ls": dashes}


def draw_band(part: pd.DataFrame, ax: Axes, *, color: Any, scale: float = 1, **look: Any) -> None:
    marker = "o" if len(part) == 1 else None  # a line of one point would not be seen
    ax.plot(part.length, scale * part["mean"], color=color, lw=1.1, marker=marker, **look)
    low, high = scale * part.low, scale * part.high
    ax.fill_between(part.length, low, high, color=color, alpha=0.18, lw=0)
    ax.set_axisbelow(True)


def _draw_star(x: Any, y: Any, ax: Axes, *, color: Any, better: bool, label: str = "") -> None:
    face = color if better else "white"
    ax.plot(x, y, marker="*", ls="", ms=5, mfc=face, mec=color, mew=0.6, label=label or "_star")


def _draw_guide(part: pd.DataFrame, reference: int, ax: Axes) -> None:
    beyond = part[part.length >= reference]
    start = float(beyond["mean"].iloc[0])
    if len(beyond) > 1 and start > 0:
        line = start * reference / beyond.length
        ax.plot(beyond.length, line, color="0.6", lw=1.2, ls=":", label="slope −1", zorder=1)


def legend_above(ax: Axes, names: Sequence[str]) -> None:
    """Where it hides nothing: over the right end of a figure of one column."""
    handles, labels = _legend_handles(ax, names)
    ax.legend(
        handles,
        labels,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=_legend_columns(labels, COLUMN_WIDTH - 0.2),  # half a tick label stands out
        columnspacing=1,
        borderpad=0.2,
    )


def legend_over(axes: Any, names: Sequence[str], n_columns: int | None = None) -> None:
    """One legend for several panels, above all of them."""
    handles, labels = _legend_handles(axes[-1], names)
    figure = axes[0].get_figure(root=True)
    n_columns = n_columns or _legend_columns(labels, figure.get_figwidth())
    figure.legend(handles, labels, loc="outside upper center", ncols=n_columns)


def _legend_handles(ax: Axes, names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """What a legend shows: the variants first, whatever was drawn first."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] not in names)
    return [handles[i] for i in order], [labels[i] for i in order]


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """The most columns in which a legend is no wider than the figure; it fills them downwards."""
    for n_columns in range(len(labels), 1, -1):
        n_lines = -(-len(labels) // n_columns)
        columns = [labels[i : i + n_lines] for i in range(0, len(labels), n_lines)]
        inches = sum(0.4 + 0.055 * max(map(len, column)) for column in columns)
        if inches <= width and len(columns) == n_columns:
            return n_columns
    return 1


def _spread(n: int) -> list[int]:
    """At most `MAX_PANELS` of n lengths, in equal steps where that leaves enough of them."""
    even = (c for c in range(MAX_PANELS, MAX_PANELS // 2, -1) if (n - 1) % (c - 1) == 0)
    return spread(range(n), next(even, MAX_PANELS))


def span(numbers: Any) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
