"""Figures of retrieval results: tidy frames go in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from llmprobe.results.figures.style import (
    length_axis,
    mark_trained,
    palette,
    prompts_of,
    series_legend,
    series_name,
    styled_axes,
)


def draw_accuracy(answers: pd.DataFrame, *, trained: int | None, ax: Axes | None = None) -> Axes:
    """Share of right answers with its interval, and what answers without looking would give."""
    with styled_axes(ax, legend=True) as ax:
        color = next(palette(1))
        ax.plot(answers.length, answers.accuracy, color=color, marker=".", label="model")
        low, high = answers.accuracy_low, answers.accuracy_high
        ax.fill_between(answers.length, low, high, color=color, alpha=0.2, lw=0)
        ax.plot(answers.length, answers.chance, color="0.4", ls=":", label="chance")
        if answers.blind.notna().any():
            ax.plot(
                answers.length, answers.blind, color="0.4", ls="--", label="most frequent\nvalue"
            )
        length_axis(ax, answers.length)
        mark_trained(ax, answers.length, trained)
        if answers.n_pairs.notna().all():
            first, last = (f"{answers.n_pairs.iloc[at]:.0f}" for at in (0, -1))
            ax.set_xlabel(f"prompt length N (tokens): {first} to {last} pairs")
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_ylim(bottom=min(0, *ax.get_ylim()))
        ax.set_ylabel(f"right answers, {prompts_of(answers)} prompts,\n95 % CI")
        series_legend(ax)
    return ax


def draw_source(parts: Sequence[pd.DataFrame], *, ax: Axes | None = None) -> Axes:
    """Attention of the last query on the source, a line for each head."""
    with styled_axes(ax, legend=True) as ax:
        for part, color in zip(parts, palette(len(parts)), strict=False):
            name = series_name(part.layer.iloc[0], part["head"].iloc[0])
            ax.plot(part.length, part.source, color=color, marker=".", label=name)
            ax.fill_between(
                part.length, part.source_low, part.source_high, color=color, alpha=0.15, lw=0
            )
        length_axis(ax, parts[0].length)
        ax.set_ylabel(f"weight on the source, mean over\n{prompts_of(parts[0])} prompts, 95 % CI")
        series_legend(ax)
    return ax


def draw_links(links: pd.DataFrame, *, n_prompts: int, ax: Axes | None = None) -> Axes:
    """Rank correlation of the answer's loss and attention on the source, against the latter."""
    with styled_axes(ax) as ax:
        known = links[links.loss_source.notna() & (links.source > 0)]
        if known.empty:
            raise ValueError("links: nothing varies over prompts; use another figure")
        ends = [
            known.loss_source - known.loss_source_low,
            known.loss_source_high - known.loss_source,
        ]
        below, above = known.loss_source_high < 0, known.loss_source_low > 0
        colors = palette(2)
        for chosen, color, label in (
            (~below & ~above, "0.7", None),
            (below, next(colors), "CI below 0"),
            (above, next(colors), "CI above 0"),
        ):
            part = known[chosen]
            if part.empty:  # its name would stand in the legend
                continue
            ax.errorbar(
                part.source,
                part.loss_source,
                yerr=[end[chosen].clip(lower=0) for end in ends],
                fmt=".",
                ms=4,
                lw=0.5,
                color=color,
                label=label,
            )
        ax.axhline(0, color="0.55", lw=1, ls=":", zorder=1)
        ax.set_xscale("log")
        ax.set_xlabel("weight on the source, mean over lengths")
        ax.set_ylabel(
            f"ρ of the answer's loss and weight on\nthe source, {n_prompts} prompts, 95 % CI"
        )
        if (below | above).any():
            ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0.2)
    return ax
