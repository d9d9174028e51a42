"""Figures of a random search: frames go in, Axes come out. Nothing is computed here.

A small dot is one setting. Dark marks are means over settings with their 95 % intervals.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from numpy.typing import NDArray

from llmprobe.base.signs import minus
from llmprobe.results.figures.accuracy import GRAY, span
from llmprobe.results.figures.style import COLUMN_WIDTH, length_axis, log_axis, palette, styled_axes

_LABELS = {
    "learning_rate": "learning rate",
    "dropout": "dropout rate",
    "ema_decay": "decay of the EMA",
    "width": "width",
    "depth": "depth",
}
_TICKS = {
    1.25: (0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15),
    1.7: (0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6),
    4: (0.3, 0.5, 0.7, 1, 1.5, 2, 3),
    20: (0.1, 0.2, 0.5, 1, 2, 5, 10),
}
"""Of an axis of ratios that reaches so far from 1; beyond, powers of ten."""
_JITTER = 0.618034
"""Multiples of the golden ratio spread evenly, however many: jitter without a random number."""


def draw_effects(
    pairs: pd.DataFrame, effects: pd.DataFrame, *, outcome: str, ax: Axes | None = None
) -> Axes:
    """The ratio of each setting, a row for each comparison, with geometric means.

    The frames are `SearchResult.pairs_frame()` and `effect_frame()`, of ratios. A mean is filled
    where it is significant.
    """
    names = list(dict.fromkeys(effects.effect))
    colors = dict(zip(names, palette(len(names)), strict=False))
    height = 0.85 + 0.33 * len(effects)
    with styled_axes(ax, height=height) as ax:
        ax.set_xscale("log")
        ax.axvline(1, color=GRAY, lw=0.8, ls="--", label="no change")
        for level, row in enumerate(effects.to_dict("records")):
            part = pairs[(pairs.effect == row["effect"]) & (pairs["where"] == row["where"])]
            y = level + 0.56 * (part.setting * _JITTER % 1 - 0.5)
            dots = {"color": colors[row["effect"]], "alpha": 0.45, "lw": 0, "s": 9}
            ax.scatter(part.change, y, **dots, label=f"_settings {level}")
            # An interval may be endless; the axis ends where the settings do.
            low, high = np.clip([row["low"], row["high"]], 1e-99, 1e99)
            ax.plot([low, high], [level] * 2, color="0.1", lw=1.6, label=f"_interval {level}")
            face = "0.1" if row["significant"] else "white"
            style: dict[str, Any] = {"marker": "D", "ms": 3, "mfc": face, "mec": "0.1", "ls": ""}
            ax.plot([row["effect_size"]], [level], **style, label=f"_mean {level}")
        _ratio_axis(ax, pd.concat([pairs.change, effects.effect_size]))
        ax.set_ylim(len(effects) - 0.5, -0.5)
        labels = (effects.effect + ",\n" + effects["where"]).map(_words)
        ax.set_yticks(range(len(effects)), list(labels))
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        ax.set_axisbelow(True)
        ax.set_xlabel(
            f"{outcome}, with / without;\n{_settings(effects)}, geometric mean,\n"
            "95 % interval (filled: Holm, 5 %)"
        )
        for x, text, side in (
            (0, "← better", "left"),
            (0.5, "no change", "center"),
            (1, "worse →", "right"),
        ):
            place: dict[str, Any] = {"transform": ax.transAxes, "ha": side, "va": "bottom"}
            ax.text(x, 1.01, text, fontsize=7, color="0.3", **place)
    return ax


def draw_settings(
    frame: pd.DataFrame, correlations: pd.DataFrame, *, outcome: str, ax: Any = None
) -> NDArray[Any]:
    """The outcome against each hyper-parameter, with Spearman's ρ and its 95 % interval.

    The frames are `SearchResult.scatter_frame()` and `correlation_frame()`. Panels of the outcome
    itself share their axis and come first; those of a remedy's paired effect have their own.
    """
    paired = frame.groupby("parameter").scale.first() != "value"
    found = sorted(correlations.to_dict("records"), key=lambda row: paired[row["parameter"]])
    outcomes = list(dict.fromkeys(correlations.outcome))
    colors = dict(zip(outcomes, palette(len(outcomes)), strict=False))
    shown = frame.kl[(frame.kl > 0) & (frame.scale == "value")]
    limits = (shown.min() / 1.4, shown.max() * 1.4) if len(shown) else (0.1, 1)
    with styled_axes(
        ax, n_panels=len(found), panels=True, width=2 * COLUMN_WIDTH, height=2.4
    ) as axes:
        for panel, row in zip(axes, found, strict=True):
            part = frame[frame.parameter == row["parameter"]]
            decay = row["parameter"] == "ema_decay"
            x = 1 - part.value if decay else part.value
            panel.scatter(
                x, part.kl.where(part.kl > 0), color=colors[row["outcome"]], alpha=0.6, lw=0, s=10
            )
            _value_axis(panel, x, row["parameter"])
            panel.tick_params(labelleft=panel is axes[0])
            if paired[row["parameter"]]:
                _effect_axis(panel, part.kl)
            else:
                panel.set_ylim(limits)
                log_axis(panel)
            panel.set_axisbelow(True)
            words = _words(row["outcome"]).replace(", ", ",\n").replace("s with", "s\nwith")
            panel.set_xlabel(f"{_LABELS[row['parameter']]}\n({words})")
            panel.set_title(_correlation(row["rho"], row["low"], row["high"]))
        axes[0].set_ylabel(f"{outcome} (nats)\n{_settings(correlations)}")
    return np.asarray(axes)


def _ratio_axis(ax: Axes, ratios: pd.Series) -> None:
    """As far to the left of 1 as to the right, in logarithms."""
    farthest = np.log(ratios.dropna()).abs().max() if ratios.notna().any() else 0
    reach = np.exp(max(1.08 * farthest, 0.1))
    ax.set_xlim(1 / reach, reach)
    ticks = next((ticks for end, ticks in _TICKS.items() if reach <= end), None)
    ax.xaxis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(numticks=7))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())


def _effect_axis(ax: Axes, ratios: pd.Series) -> None:
    """Ratios on their own scale, around a line at 1."""
    known = ratios[ratios > 0]
    low, high = (min(known.min(), 1), max(known.max(), 1)) if len(known) else (1, 1)
    ax.set_yscale("log")
    ax.set_ylim(low / 1.05, high * 1.05)
    ax.axhline(1, color=GRAY, lw=0.8, ls="--", label="no change")
    log_axis(ax)
    if high < 2 * low:
        ax.yaxis.set_major_locator(MaxNLocator(4))
    ax.tick_params(labelleft=True)
    ax.set_ylabel("with / without", labelpad=1)


def _value_axis(ax: Axes, values: pd.Series, parameter: str) -> None:
    if parameter in ("learning_rate", "ema_decay"):
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        subs = (1,) if high > 20 * low else (1, 2, 5)
        ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=4))
        ax.xaxis.set_minor_formatter(NullFormatter())
    if parameter == "ema_decay":  # a log scale of 1 − decay, turned so that the decay rises
        ax.xaxis.set_inverted(True)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{1 - x:.6g}"))
    elif parameter == "width":
        length_axis(ax, values, n_ticks=4)
    elif parameter == "depth":
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _correlation(rho: float, low: float, high: float) -> str:
    if np.isnan(rho):
        return "no ρ"
    return minus(f"ρ = {rho:+.2f}\n[{low:+.2f}, {high:+.2f}]")


def _words(text: str) -> str:
    return text.replace("bema", "BEMA").replace("ema", "EMA")


def _settings(frame: pd.DataFrame) -> str:
    n = span(frame.n_settings)
    return f"{n} setting{'s' * (n != '1')}"
