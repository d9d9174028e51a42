"""Figures of remedy results: a tidy frame goes in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from llmprobe.results.figures.style import (
    length_axis,
    palette,
    prompts_of,
    series_legend,
    styled_axes,
)

_STYLES = {"remedy": "-", "shuffled": "--", "norm kept": ":"}
_COLUMNS = 4


def draw_doses(frame: pd.DataFrame, span: str, *, ax: Any = None) -> Any:
    """Change of the loss at the longest prompts against the dose: a panel a remedy, with shams."""
    names = list(dict.fromkeys(frame.remedy))
    arms = [arm for arm in _STYLES if (frame.arm == arm).any()]
    with _panels(len(names), ax, legend=True) as axes:
        panels = np.atleast_1d(axes).ravel()
        for panel, name, color in zip(panels, names, palette(len(names)), strict=False):
            part = frame[frame.remedy == name]
            for arm in arms:
                own = part[part.arm == arm]
                if len(own):
                    untreated = own.iloc[:1].assign(dose=0.0, change=0.0)
                    untreated = untreated.assign(change_low=0.0, change_high=0.0)
                    label = f"{name}, {arm}"
                    both = pd.concat([untreated, own])
                    _line(panel, both, "dose", color=color, arm=arm, label=label)
            panel.axhline(0, color="0.55", lw=1, ls=":", zorder=1)
            panel.set_title(name)
            panel.set_xlabel("dose")
        words = {arm: arm if arm == "remedy" else f"sham: {arm}" for arm in arms}
        handles = [Line2D([], [], color="0.3", ls=_STYLES[arm], label=words[arm]) for arm in arms]
        panels[min(_COLUMNS, len(names)) - 1].legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1, 1)
        )
        what = f"change of the loss (nats)\nat {span} tokens,\n"
        if len(names) > _COLUMNS:  # panels in two rows are high enough for two lines
            what = what.replace("\n", " ", 1)
        what += f"{prompts_of(frame)} prompts, 95 % CI"
        panels[0].figure.supylabel(what, fontsize="medium")
    return axes


def draw_lengths(frame: pd.DataFrame, *, trained: int, ax: Axes | None = None) -> Axes:
    """Change of the loss by length, each remedy at the dose that it has in the frame."""
    with styled_axes(ax, legend=True) as ax:
        own = frame[frame.arm == "remedy"]
        names = list(dict.fromkeys(own.remedy))
        for name, color in zip(names, palette(len(names)), strict=False):
            part = own[own.remedy == name]
            label = f"{name}, dose {part.dose.iloc[0]:g}"
            _line(ax, part, "length", color=color, arm="remedy", label=label)
        ax.axhline(0, color="0.55", lw=1, ls=":", zorder=1)
        length_axis(ax, frame.length, label="position in the prompt (up to token N)")
        if frame.length.min() < trained < frame.length.max():
            ax.axvline(trained, color="0.55", lw=1, ls="--", zorder=1, label="trained context")
        ax.set_ylabel(
            f"change of the loss (nats),\nbest dose, {prompts_of(frame)} prompts, 95 % CI"
        )
        series_legend(ax)
    return ax


def _line(ax: Axes, part: pd.DataFrame, across: str, *, color: Any, arm: str, label: str) -> None:
    part = part.sort_values(across)
    ax.plot(part[across], part.change, color=color, ls=_STYLES[arm], marker=".", label=label)
    ax.fill_between(part[across], part.change_low, part.change_high, color=color, alpha=0.15, lw=0)


def draw_slopes(frame: pd.DataFrame, *, ax: Any = None) -> Any:
    """Slopes of the standard deviation by head: untreated across, treated up, a panel a remedy."""
    before = frame[frame.remedy == "untreated"]
    treated = frame[frame.remedy != "untreated"]
    names = list(dict.fromkeys(treated.remedy))
    with _panels(len(names), ax) as axes:
        panels = np.atleast_1d(axes).ravel()
        for panel, name, color in zip(panels, names, palette(len(names)), strict=False):
            part = treated[treated.remedy == name]
            panel.errorbar(
                before.slope,
                part.slope,
                yerr=[part.slope - part.slope_low, part.slope_high - part.slope],
                color=color,
                fmt=".",
                ms=3,
                lw=0.5,
                label=f"{name}, dose {part.dose.iloc[0]:g}",
            )
            panel.axline((0, 0), slope=1, color="0.55", lw=1, ls=":", zorder=1)
            panel.axhline(0, color="0.55", lw=1, ls=":", zorder=1)
            panel.set_title(f"{name}, dose {part.dose.iloc[0]:g}")
        figure = panels[0].figure
        what = f"slope of log std over log N, {len(before)} heads"
        figure.supxlabel(f"{what}: untreated; dotted: no change, and 0", fontsize="medium")
        figure.supylabel("treated, 95 % CI", fontsize="medium")
    return axes


@contextmanager
def _panels(n: int, ax: Any, *, legend: bool = False) -> Iterator[Any]:
    """Panels in rows of four; those that are left over stay empty."""
    n_columns = min(_COLUMNS, n)
    n_rows = -(-n // n_columns)
    size = {"width": 1.6 * n_columns + 0.5, "height": 1.6 * n_rows + 0.3}
    with styled_axes(
        ax, n_panels=n_columns, n_rows=n_rows, panels=True, legend=legend, **size
    ) as axes:
        for panel in np.atleast_1d(axes).ravel()[n:]:
            panel.set_visible(False)
        yield axes
