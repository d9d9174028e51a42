"""Figures of a random search over sets: frames go in, Axes come out. Nothing is computed here."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from llmprobe.results.figures.accuracy import GRAY, legend_above, span
from llmprobe.results.figures.style import COLUMN_WIDTH, length_axis, palette, styled_axes

_SPREAD = 0.5
"""Of the parts at one length, as a share of the distance to the next."""


def draw_effects(pairs: pd.DataFrame, effects: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Change of accuracy against length: small dots are settings, marks means with 95 % intervals.

    The frames are `SetSearchResult.pairs_frame()` and `effect_frame()`. A mean is filled where it
    is significant.
    """
    names = list(dict.fromkeys(effects.variant))
    lengths = sorted(set(effects.times))
    steps = np.diff(np.log(lengths)) if len(lengths) > 1 else np.array([1.0])
    offsets = (np.arange(len(names)) - (len(names) - 1) / 2) * _SPREAD / max(len(names), 1)
    height = 0.72 * COLUMN_WIDTH + 0.1 * len(names)
    with styled_axes(ax, height=height) as ax:
        ax.axhline(0, color=GRAY, lw=0.8, ls="--", label="_no change")
        for name, color, offset in zip(names, palette(len(names)), offsets, strict=False):
            shift = float(np.exp(offset * steps.min()))
            dots = pairs[pairs.variant == name]
            look: dict[str, Any] = {"color": color, "alpha": 0.35, "lw": 0, "s": 5}
            ax.scatter(dots.times * shift, 100 * dots.change, **look, label=f"_settings {name}")
            part = effects[effects.variant == name]
            for row in part.to_dict("records"):
                x = row["times"] * shift
                ends = [100 * row["low"], 100 * row["high"]]
                ax.plot([x, x], ends, color=color, lw=1.4, label="_interval")
                face = color if row["significant"] else "white"
                mark: dict[str, Any] = {
                    "marker": "D",
                    "ms": 3.5,
                    "mfc": face,
                    "mec": color,
                    "ls": "",
                }
                ax.plot([x], [100 * row["difference"]], **mark, label="_mean")
            ax.plot([], [], color=color, marker="D", ms=3.5, lw=1.4, label=name)
        length_axis(ax, lengths, label="set size / longest in training")
        ax.set_xlim(min(lengths) / 1.7, max(lengths) * 1.7)
        ax.set_ylabel(
            "accuracy with minus without (points),\n"
            f"mean of {span(effects.n_settings)} settings, 95 % CI\n(filled: Holm, 5 %)"
        )
        ax.set_axisbelow(True)
        legend_above(ax, names)
    return ax


def draw_correlations(correlations: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Spearman's ρ of each setting with the effect of each part, with its 95 % interval.

    The frame is `SetSearchResult.correlation_frame()`. A mark is filled where it is significant.
    """
    names = list(dict.fromkeys(correlations.variant))
    parameters = list(dict.fromkeys(correlations.parameter))
    offsets = (np.arange(len(names)) - (len(names) - 1) / 2) * 0.75 / max(len(names), 1)
    height = 0.9 + 0.1 * len(parameters) * max(len(names), 2)
    with styled_axes(ax, height=height) as ax:
        ax.axvline(0, color=GRAY, lw=0.8, ls="--", label="_none")
        for name, color, offset in zip(names, palette(len(names)), offsets, strict=False):
            for row in correlations[correlations.variant == name].to_dict("records"):
                y = parameters.index(row["parameter"]) + offset
                ax.plot([row["low"], row["high"]], [y, y], color=color, lw=1.1, label="_interval")
                face = color if row["significant"] else "white"
                mark: dict[str, Any] = {"marker": "o", "ms": 3, "mfc": face, "mec": color}
                ax.plot([row["rho"]], [y], ls="", **mark, label="_rho")
            ax.plot([], [], color=color, marker="o", ms=3, lw=1.1, label=name)
        ax.set_yticks(range(len(parameters)), [name.replace("_", " ") for name in parameters])
        ax.set_ylim(len(parameters) - 0.5, -0.5)
        ax.set_xlim(-1, 1)
        ax.grid(False, axis="y")
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(
            "Spearman's ρ with a part's effect\n"
            f"on accuracy, {span(correlations.n_settings)} settings,\n95 % CI (filled: Holm, 5 %)"
        )
        ax.set_axisbelow(True)
        legend_above(ax, names)
    return ax
