"""Figures of loss results: a tidy frame goes in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from llmprobe.results.figures.style import (
    length_axis,
    mark_trained,
    marker_of,
    palette,
    prompts_of,
    series_legend,
    styled_axes,
)

UNITS = {"loss": "nats per token", "bits_per_byte": "bits per byte"}
_POSITION = "position in the prompt (up to token N)"
_CONTEXT = "context (tokens)"


def draw_positions(
    frame: pd.DataFrame, what: str, *, trained: int | None, ax: Axes | None = None
) -> Axes:
    """Loss between consecutive lengths, with its confidence interval."""
    with styled_axes(ax) as ax:
        _curve(ax, frame, what, color=next(palette(1)))
        length_axis(ax, frame.length, label=_POSITION)
        mark_trained(ax, frame.length, trained)
        ax.set_ylabel(f"{UNITS[what]}, mean over\n{prompts_of(frame)} prompts, 95 % CI")
    return ax


def draw_context(
    frame: pd.DataFrame, *, n_targets: int, trained: int | None, ax: Axes | None = None
) -> Axes:
    """Loss of the same last tokens by context: of all of them, and of key tokens."""
    with styled_axes(ax, legend=True) as ax:
        colors = palette(2)
        _curve(ax, frame, "context_loss", color=next(colors), label=f"last {n_targets} tokens")
        if frame.key_loss.notna().any():
            share = frame.key_share.iloc[-1]
            _curve(ax, frame, "key_loss", color=next(colors), label=f"key tokens ({share:.1%})")
        length_axis(ax, frame.length, label=_CONTEXT)
        mark_trained(ax, frame.length, trained)
        ax.set_ylabel(f"nats per token,\n{prompts_of(frame)} prompts, 95 % CI")
        series_legend(ax)
    return ax


def draw_gain(
    frame: pd.DataFrame, *, n_targets: int, trained: int | None, ax: Axes | None = None
) -> Axes:
    """What context buys: the loss with the shortest one minus that with each, paired."""
    with styled_axes(ax) as ax:
        _curve(ax, frame, "context_gain", color=next(palette(1)))
        ax.axhline(0, color="0.55", lw=1, ls=":", zorder=1)
        length_axis(ax, frame.length, label=_CONTEXT)
        mark_trained(ax, frame.length, trained)
        ax.set_ylabel(
            f"nats saved against {frame.length.iloc[0]} tokens,\nthe same {n_targets} tokens of "
            f"{prompts_of(frame)} prompts"
        )
    return ax


def draw_comparison(frames: Mapping[str, pd.DataFrame], what: str, *, ax: Any = None) -> Axes:
    """Several results in one figure."""
    with styled_axes(ax) as ax:
        for (name, frame), color in zip(frames.items(), palette(len(frames)), strict=False):
            _curve(ax, frame, what, color=color, label=name)
        length_axis(ax, (n for frame in frames.values() for n in frame.length), label=_POSITION)
        ax.set_ylabel(f"{UNITS[what]}, 95 % CI over prompts")
        series_legend(ax, above=True)
    return ax


def _curve(
    ax: Axes, frame: pd.DataFrame, what: str, *, color: Any, label: str | None = None
) -> None:
    ax.plot(frame.length, frame[what], color=color, marker=marker_of(frame) or ".", label=label)
    ax.fill_between(
        frame.length, frame[f"{what}_low"], frame[f"{what}_high"], color=color, alpha=0.2, lw=0
    )
