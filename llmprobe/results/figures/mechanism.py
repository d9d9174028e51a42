"""Figures of what repairs accuracy on larger sets: frames go in, Axes come out."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from llmprobe.results.figures.accuracy import (
    GRAY,
    draw_band,
    legend_above,
    legend_over,
    span,
    variants,
)
from llmprobe.results.figures.style import COLUMN_WIDTH, length_axis, palette, styled_axes


def draw_repair(summary: pd.DataFrame, *, longest: int, ax: Any = None) -> NDArray[Any]:
    """Accuracy against length under each change, with 95 % bands; a panel for each variant.

    The frame is `MechanismResult.summary_frame()`.
    """
    names = list(dict.fromkeys(summary.condition))
    shown = list(dict.fromkeys(summary.variant))
    width = COLUMN_WIDTH * min(2, 0.6 + 0.5 * len(shown))
    with styled_axes(
        ax, n_panels=len(shown), panels=True, width=width, height=2.2 + 0.12 * len(names)
    ) as axes:
        for panel, variant in zip(axes, shown, strict=True):
            part = summary[summary.variant == variant]
            panel.axvline(longest, color=GRAY, lw=0.8, ls=":", label="_longest in training")
            for rows, look in variants(part.assign(variant=part.condition), names):
                draw_band(rows, panel, scale=100, **look)
            length_axis(panel, part.length, label="set size N (items)", n_ticks=4)
            panel.set_ylim(-2, 102)
            panel.set_title(variant)
            panel.tick_params(labelleft=panel is axes[0])
        axes[0].set_ylabel(f"accuracy (%), mean over\n{span(summary.n_seeds)} seeds, 95 % band")
        legend_over(axes, names)
    return np.asarray(axes)


def draw_predictors(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Spearman's ρ of each predictor with being right, with 95 % intervals.

    The frame is `MechanismResult.predictor_frame()`.
    """
    series = list(dict.fromkeys(zip(frame.scope, frame.variant, strict=True)))
    predictors = list(dict.fromkeys(frame.predictor))
    offsets = (np.arange(len(series)) - (len(series) - 1) / 2) * 0.7 / max(len(series), 1)
    words = {"sets": "{}, over sets", "networks": "over networks"}
    names = [words[scope].format(variant) for scope, variant in series]
    height = 1.2 + 0.12 * len(predictors) * max(len(series), 2) + 0.12 * len(series)
    with styled_axes(ax, height=height) as ax:
        ax.axvline(0, color=GRAY, lw=0.8, ls="--", label="_none")
        looks = zip(series, names, palette(len(series)), offsets, strict=False)
        for (scope, variant), name, color, offset in looks:
            part = frame[(frame.scope == scope) & (frame.variant == variant)]
            for row in part.to_dict("records"):
                y = predictors.index(row["predictor"]) + offset
                ax.plot([row["low"], row["high"]], [y, y], color=color, lw=1.2, label="_interval")
                ax.plot([row["rho"]], [y], color=color, marker="o", ms=3, ls="", label="_rho")
            ax.plot([], [], color=color, marker="o", ms=3, lw=1.2, label=name)
        labels = [name.replace("_", "\n", 1).replace("_", " ") for name in predictors]
        ax.set_yticks(range(len(predictors)), labels)
        ax.set_ylim(len(predictors) - 0.5, -0.5)
        ax.set_xlim(-1, 1)
        ax.grid(False, axis="y")
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("Spearman's ρ with being right,\nwithin lengths, 95 % CI")
        ax.set_axisbelow(True)
        legend_above(ax, names)
    return ax
