"""Figures of attention results: a tidy frame goes in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from numpy.typing import NDArray

from llmprobe.base.lengths import spread
from llmprobe.results.figures.style import (
    COLUMN_WIDTH,
    MAX_PANELS,
    by_series,
    length_axis,
    marker_of,
    palette,
    prompts_of,
    series_legend,
    styled_axes,
)


def draw_dispersion(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Effective tokens 1/Σa² of the last query against length; uniform attention has N."""
    with styled_axes(ax, legend=True) as ax:
        series = by_series(frame)
        for (name, part), color in zip(series.items(), palette(len(series)), strict=False):
            ax.plot(part.length, part.effective, color=color, marker=marker_of(part), label=name)
        lengths = np.array(sorted(set(frame.length)), dtype=float)
        ax.plot(lengths, lengths, color="0.55", lw=1, ls=":", label="uniform: N", zorder=1)
        length_axis(ax, frame.length)
        ax.set_yscale("log", base=2)
        ax.set_ylabel(f"effective tokens 1/Σa²,\nmean over {prompts_of(frame)} prompts")
        series_legend(ax, len(series))
    return ax


def draw_rows(frame: pd.DataFrame, *, ax: Any = None) -> NDArray[Any]:
    """Entropy with and without the first token, logit spread and Λ of rows against length."""
    if frame.n_keys.isna().all():
        raise ValueError("rows: this result is older than these columns; probe again")
    shown = {
        "entropy_share": "entropy / ln n",
        "entropy_share_rest": "the same without\nthe first token",
        "spread": "logit spread",
        "lambda": "Λ, geometric mean",
    }
    frame = frame.assign(**{"lambda": np.exp(frame.log_lambda)})
    with styled_axes(
        ax, n_panels=len(shown), panels=True, width=2.2 * COLUMN_WIDTH, height=2.2, legend=True
    ) as axes:
        series = by_series(frame)
        for panel, (column, label) in zip(axes, shown.items(), strict=True):
            for (name, part), color in zip(series.items(), palette(len(series)), strict=False):
                style = {"color": color, "marker": marker_of(part), "label": name}
                panel.plot(part.length, part[column], **style)
            length_axis(panel, frame.length, label="length N", n_ticks=3)
            panel.set_ylabel(label)
        for panel in axes[:2]:
            panel.set_ylim(0, 1.05)
        axes[-1].set_yscale("log")
        axes[-1].axhline(1, color="0.55", lw=1, ls=":", label="dispersed above 1", zorder=1)
        axes[0].set_title(f"mean over {prompts_of(frame)} prompts", loc="left")
        series_legend(axes[-1], len(series))
    return axes


def draw_prediction(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Measured variance of head outputs against what dispersion alone predicts."""
    with styled_axes(ax, legend=True) as ax:
        known = frame[frame.predicted_variance.notna()]
        if known.empty:
            raise ValueError("prediction: this model does not show its values; use another figure")
        lengths = sorted(set(known.length))
        for length, color in zip(lengths, sns.color_palette("viridis", len(lengths)), strict=True):
            part = known[known.length == length]
            ax.scatter(
                part.predicted_variance, part.measured_variance, s=8, color=color, label=f"{length}"
            )
        ends = [known.predicted_variance.min(), known.predicted_variance.max()]
        ax.plot(ends, ends, color="0.55", lw=1, ls=":", label="equal", zorder=1)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("predicted: variance of values × E[Σa²]")
        ax.set_ylabel(f"variance over {prompts_of(frame)} prompts,\nmean over features")
        ax.legend(title="tokens", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def draw_weights(
    top: NDArray[Any], lengths: Sequence[int], *, title: str, ax: Any = None
) -> NDArray[Any]:
    """The largest attention weights (lengths, prompts, rank) as a heat map a length (Figure 4)."""
    shown = spread(range(len(lengths)), MAX_PANELS)
    with styled_axes(
        ax, n_panels=len(shown), panels=True, width=2 * COLUMN_WIDTH, height=2.2
    ) as axes:
        for panel, number in zip(axes, shown, strict=True):
            scale = LogNorm(vmin=1e-4, vmax=1, clip=True)
            image = panel.imshow(top[number], norm=scale, cmap="viridis", aspect="auto")
            panel.set_title(f"N = {lengths[number]}")
            panel.grid(False)
            panel.set_xticks([0, top.shape[-1] - 1], ["1", f"{top.shape[-1]}"])
            panel.set_yticks([])
        axes[0].set_ylabel(f"{top.shape[1]} prompts ({title})")
        axes[len(shown) // 2].set_xlabel("rank of the weight")
        axes[0].figure.colorbar(image, ax=list(axes), label="attention weight", fraction=0.03)
    return axes
