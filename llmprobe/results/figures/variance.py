"""Figures of variance results: a tidy frame goes in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from numpy.typing import NDArray

from llmprobe.results.figures.style import (
    COLUMN_WIDTH,
    MAX_LABELED,
    by_series,
    draw_violins,
    length_axis,
    marker_of,
    palette,
    prompts_of,
    series_legend,
    series_name,
    styled_axes,
)

_LINES = {"full": "-", "sliding": "-.", "linear": (0, (1, 1))}


def draw_decay(
    frame: pd.DataFrame,
    *,
    component: int | None = None,
    slopes: Sequence[float] | None = None,
    types: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Standard deviation over prompts against length, log-log (Figure 1 of the paper).

    `frame` has the columns of `VarianceResult.to_frame()`. For each series the median over features
    with its quartile band, and the chosen feature dashed; the gray line falls with slope −1/2, the
    rate of attention that disperses. `slopes` and `types` (full, sliding, linear), one for each
    series, stand in the legend; lines of other types than full are broken.
    """
    with styled_axes(ax, legend=True) as ax:
        series = by_series(frame)
        kinds = types or ["full"] * len(series)
        for number, ((name, part), color) in enumerate(
            zip(series.items(), palette(len(series)), strict=False)
        ):
            kind = kinds[number]
            label = name if kind == "full" else f"{name}, {kind}"
            label += "" if slopes is None else f" ({slopes[number]:+.2f})"
            style: dict[str, Any] = {"ls": _LINES[kind], "marker": marker_of(part)}
            ax.plot(part.length, part.std_median, color=color, label=label, **style)
            if len(series) <= MAX_LABELED:  # more bands would hide each other
                low, high = part.std_q25, part.std_q75
                ax.fill_between(part.length, low, high, color=color, alpha=0.15, lw=0)
            if component is not None and len(series) <= MAX_LABELED:
                ax.plot(part.length, part.component_std, color=color, lw=0.8, ls="--")
        _draw_reference_slope(frame, ax)
        length_axis(ax, frame.length)
        ax.set_yscale("log")
        ax.set_ylabel(f"standard deviation over {prompts_of(frame)} prompts")
        if component is not None and len(series) <= MAX_LABELED:
            ax.plot([], [], color="0.3", lw=0.8, ls="--", label=f"feature {component}")
        if len(series) <= MAX_LABELED:
            ax.fill_between([], [], color="0.3", alpha=0.15, lw=0, label="quartiles over features")
        what = "layer" if frame["head"].isna().all() else "layer and head"
        series_legend(ax, len(series), title=None if slopes is None else f"{what} (slope)")
    return ax


def draw_comparison(frames: Mapping[str, pd.DataFrame], *, ax: Axes | None = None) -> Axes:
    """The median standard deviations of several results against length, one color a result."""
    with styled_axes(ax, legend=True) as ax:
        for (name, frame), color in zip(frames.items(), palette(len(frames)), strict=False):
            series = by_series(frame)
            width = 1.4 if len(series) == 1 else 0.8
            for number, part in enumerate(series.values()):
                label = name if number == 0 else None
                ax.plot(part.length, part.std_median, color=color, lw=width, alpha=0.8, label=label)
        joined = pd.concat(frames.values())
        _draw_reference_slope(joined, ax)
        length_axis(ax, joined.length)
        ax.set_yscale("log")
        ax.set_ylabel(
            f"standard deviation over {prompts_of(joined)} prompts,\nmedian over features"
        )
        series_legend(ax, len(frames))
    return ax


def draw_slopes(frame: pd.DataFrame, rows: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """A map of slopes by layer and head.

    `frame` is `VarianceResult.decay_frame()`, `rows` its `to_frame()`. White is a head that keeps
    its variance, orange one that loses it, full at the −1/2 of attention that disperses.
    """
    heads = frame.assign(head=frame["head"].fillna(0)).pivot(
        index="layer", columns="head", values="slope"
    )
    n_layers, n_heads = heads.shape
    width, height = max(2.4, 1.2 + 0.3 * n_heads), max(2.4, 0.9 + 0.2 * n_layers)
    span = f"{rows.length.min()} to {rows.length.max()} tokens"
    with styled_axes(ax, width=width, height=height) as ax:
        sns.heatmap(
            heads.astype(float),
            ax=ax,
            cmap="PuOr",  # told apart by the color-blind too
            vmin=-0.5,
            vmax=0.5,
            annot=n_heads <= 16 and n_layers <= 40,
            fmt=".2f",
            annot_kws={"size": 5},
            cbar_kws={
                "label": f"slope of log std over log N,\n{prompts_of(rows)} prompts, {span}",
                "extend": "both",
                "extendfrac": 0.03,
            },
            linewidths=0.3,
            linecolor="0.8",
        )
        for text in ax.texts:  # seaborn writes in white on middle tones
            background = ax.collections[0].to_rgba(np.array(float(text.get_text())))
            text.set_color("white" if sns.utils.relative_luminance(background) < 0.2 else "black")
        ax.grid(False)
        ax.set_ylabel("layer")
        if frame["head"].notna().any():
            ax.set_xlabel("head")
        else:
            ax.set(xlabel="whole layer", xticks=[])
        ax.tick_params(axis="y", rotation=0)
    return ax


def draw_drift(frame: pd.DataFrame, *, reference: int, ax: Any = None) -> NDArray[Any]:
    """Drift of the global mean, and the global variance, against length (Figure 3)."""
    with styled_axes(ax, n_panels=2, panels=True, width=2 * COLUMN_WIDTH, legend=True) as axes:
        series = by_series(frame)
        for (name, part), color in zip(series.items(), palette(len(series)), strict=False):
            axes[0].plot(part.length, part.mean_drift, color=color, label=name)
            axes[1].plot(part.length, part.global_variance, color=color, label=name)
        for panel in axes:
            length_axis(panel, frame.length)
        axes[0].axhline(0, color="0.55", lw=0.8, ls=":")
        axes[0].set_ylabel(f"(global mean − that at {reference}) /\nglobal variance at {reference}")
        axes[1].set_yscale("log")
        axes[1].set_ylabel(
            f"global variance (over features),\nmean over {prompts_of(frame)} prompts"
        )
        series_legend(axes[1], len(series))
    return axes


def draw_features(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Distributions of single features by length (Figure 2); `frame` has one row a value."""
    with styled_axes(ax, width=2 * COLUMN_WIDTH, legend=True) as ax:
        draw_violins(frame, ax)
        n = frame.prompt.nunique()
        name = series_name(frame.layer.iloc[0], frame["head"].iloc[0])
        ax.set_xlabel("prompt length N (tokens)")
        ax.set_ylabel(f"feature values of {n} prompts\n({name})")
        ax.legend(title="feature", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def _draw_reference_slope(frame: pd.DataFrame, ax: Axes) -> None:
    start = frame[frame.length == frame.length.min()].std_median.max()
    if not start > 0:
        return
    lengths = np.array(sorted(set(frame.length)), dtype=float)
    line = start * (lengths / lengths[0]) ** -0.5
    ax.plot(lengths, line, color="0.55", lw=1.2, ls=":", label="slope −1/2", zorder=1)
