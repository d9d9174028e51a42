"""The figure of an ablation: a tidy frame goes in, Axes come out."""

import pandas as pd
from matplotlib.axes import Axes

from llmprobe.results.figures.style import (
    length_axis,
    palette,
    prompts_of,
    series_legend,
    styled_axes,
)

_MOST = 8
"""Classes that are drawn: those that change the loss most at the longest length."""


def draw_changes(
    frame: pd.DataFrame, *, same_targets: int | None = None, ax: Axes | None = None
) -> Axes:
    """Change of the loss by position: classes as lines with their CI, controls dashed.

    With `same_targets`, of so many last tokens by the length of the prompt.
    """
    classes = (frame.n_heads > 1).any()  # else single heads
    with styled_axes(ax, legend=True) as ax:
        last = frame[~frame.is_control & (frame.length == frame.length.max())]
        order = last.change.abs().sort_values(ascending=False).index[:_MOST]
        names = [name for name in last["class"] if name in set(last.loc[order, "class"])]
        for name, color in zip(names, palette(len(names)), strict=False):
            part = frame[frame["class"] == name]
            label = f"{name} ({part.n_heads.iloc[0]})" if classes else name
            ax.plot(part.length, part.change, color=color, marker=".", label=label)
            ax.fill_between(
                part.length, part.change_low, part.change_high, color=color, alpha=0.2, lw=0
            )
            drawn = frame[frame.is_control & frame["class"].str.startswith(f"{name}, random")]
            for _, control in drawn.groupby("class", sort=False):
                ax.plot(control.length, control.change, color=color, ls="--", lw=0.9)
        ax.axhline(0, color="0.55", lw=1, ls=":", zorder=1)
        where = "position in the prompt (up to token N)"
        if same_targets is not None:
            where = f"prompt length N (tokens), its last {same_targets} predicted"
        length_axis(ax, frame.length, label=where)
        ax.set_ylabel(f"change of the loss (nats per token),\n{prompts_of(frame)} prompts, 95 % CI")
        title = "without (heads)" if classes else "without head"
        series_legend(ax, title=f"{title};\ndashed: random" if frame.is_control.any() else title)
    return ax
