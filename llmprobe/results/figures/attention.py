"""Figures of attention results: a tidy frame goes in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.patches import Patch
from numpy.typing import NDArray

from llmprobe.base.lengths import spread
from llmprobe.base.signs import signed
from llmprobe.results.figures.style import (
    COLUMN_WIDTH,
    MAX_PANELS,
    by_series,
    draw_series,
    last_of,
    length_axis,
    log_axis,
    prompts_of,
    scale,
    series_legend,
    styled_axes,
)

_TERM_COLORS = dict(
    zip(("dispersion", "values", "coherence"), ("#4c90c0", "#e8a33d", "#5fb28d"), strict=True)
)
_MAX_NAMED = 36
"""Heads whose names fit below a figure."""


def draw_dispersion(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Effective tokens 1/Σa² of the last query against length; uniform attention has N."""
    with styled_axes(ax, legend=True) as ax:
        series = by_series(frame)
        draw_series(
            ax, series, "effective", ranks=last_of(series, "effective"), ends=("fewest", "most")
        )
        lengths = np.array(sorted(set(frame.length)), dtype=float)
        ax.plot(lengths, lengths, color="0.55", lw=1, ls=":", label="uniform: N", zorder=1)
        length_axis(ax, frame.length)
        ax.set_yscale("log", base=2)
        ax.set_ylabel(f"effective tokens 1/Σa²,\nmean over {prompts_of(frame)} prompts")
        series_legend(ax)
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
            draw_series(panel, series, column, ranks=last_of(series, "entropy_share"))
            length_axis(panel, frame.length, label="length N", n_ticks=3)
            panel.set_ylabel(label)
        for panel in axes[:2]:
            panel.set_ylim(0, 1.05)
        log_axis(axes[-1])
        axes[-1].axhline(1, color="0.55", lw=1, ls=":", label="dispersed above 1", zorder=1)
        axes[0].set_title(f"mean over {prompts_of(frame)} prompts", loc="left")
        series_legend(axes[-1])
    return axes


def draw_terms(frame: pd.DataFrame, rows: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Slopes of dispersion, values and coherence as a stack for each head, and their sum.

    `frame` is `AttentionResult.head_frame()`, `rows` its `to_frame()`. Terms above 0 are stacked up
    and those below 0 down. Where heads are too many to name they are ordered by their slope.
    """
    known = _with_terms("terms", frame)
    named = len(known) <= _MAX_NAMED
    known = known if named else known.sort_values("slope_total")
    places = np.arange(len(known))
    with styled_axes(ax, width=2 * COLUMN_WIDTH, legend=True) as ax:
        up, down = np.zeros(len(known)), np.zeros(len(known))
        for name, color in _TERM_COLORS.items():
            slopes = known[f"slope_{name}"].to_numpy()
            bottom = np.where(slopes > 0, up, down)
            width = 0.8 if named else 1.0
            ax.bar(places, slopes, width, bottom=bottom, color=color, lw=0, label=name)
            up, down = up + np.maximum(slopes, 0), down + np.minimum(slopes, 0)
        total = known.slope_total.to_numpy()
        reach = np.abs([total - known.slope_total_low, known.slope_total_high - total])
        limits = ax.get_ylim()
        style: Any = {"color": "black", "ms": 3 if named else 1.2}
        style["elinewidth"] = 0.8 if named else 0.3
        ax.errorbar(places, total, reach, fmt="o", label="sum, 95 % CI", **style)
        if not named:  # one wide interval would flatten all the others
            ax.set_ylim(limits)
        ax.axhline(0, color="0.3", lw=0.6)
        ax.set_axisbelow(True)
        ax.grid(False, axis="x")
        span = f"{rows.length.min()} to {rows.length.max()} tokens"
        ax.set_ylabel(f"slope of log std over log N,\n{prompts_of(rows)} prompts, {span}")
        if named:
            pairs = zip(known.layer, known["head"], strict=True)
            names = [f"{layer}.{int(head)}" for layer, head in pairs]
            ax.set_xticks(places, names, rotation=90 if len(known) > 12 else 0)
            ax.set_xlabel("layer.head")
        else:
            ax.set_xticks([])
            ax.set_xlabel(f"{len(known)} heads, ordered by their slope")
        ax.margins(x=0.01)
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def draw_decisions(frame: pd.DataFrame, rows: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """A map of heads by layer, colored by the term that decides the slope; the slope is written.

    `frame` is `AttentionResult.head_frame()`, `rows` its `to_frame()`.
    """
    import seaborn as sns  # brings scipy.stats, which takes long

    known = _with_terms("map", frame)
    colors = {**_TERM_COLORS, "": "0.92"}
    place = {name: number for number, name in enumerate(colors)}
    cells = known.assign(place=known.decides.map(place)).pivot(
        index="layer", columns="head", values="place"
    )
    slopes = known.pivot(index="layer", columns="head", values="slope_total")
    n_layers, n_heads = cells.shape
    width, height = max(2.4, 1.2 + 0.3 * n_heads), max(2.4, 0.9 + 0.2 * n_layers)
    written = n_heads <= 16 and n_layers <= 40
    with styled_axes(ax, width=width, height=height + 0.75) as ax:
        sns.heatmap(
            cells.astype(float),
            ax=ax,
            cmap=ListedColormap(list(colors.values())),
            vmin=-0.5,
            vmax=len(colors) - 0.5,
            annot=slopes if written else False,
            fmt="+.2f",
            annot_kws={"size": 5, "color": "black"},
            cbar=False,
            linewidths=0.3,
            linecolor="white",
        )
        for text in ax.texts:
            text.set_text(signed(float(text.get_text())))
        ax.grid(False)
        ax.set(xlabel="head", ylabel="layer")
        ax.tick_params(axis="y", rotation=0)
        counts = known.decides.value_counts()
        labels = {name: name or "CI includes 0" for name in colors}
        patches = [
            Patch(color=color, label=f"{labels[name]}: {counts.get(name, 0)}")
            for name, color in colors.items()
        ]
        span = f"{rows.length.min()} to {rows.length.max()} tokens"
        title = (
            f"what decides the slope of log std over\nlog N ({prompts_of(rows)} prompts, {span})"
        )
        # Above, so that a map of few heads is no narrower than its legend.
        ax.legend(
            handles=patches,
            title=title,
            alignment="left",
            loc="lower left",
            bbox_to_anchor=(-0.1, 1),
            ncols=2,
            columnspacing=1,
            borderpad=0.2,
        )
    return ax


def _with_terms(kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    known = frame[frame.slope_coherence.notna()]
    if known.empty:
        raise ValueError(
            f"{kind}: there are no terms here: the model does not show its values, there is one "
            "length, or the result is older than these columns; use another figure"
        )
    return known


def draw_prediction(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Measured variance of head outputs against the values' variance times E[Σa²].

    They are equal where all tokens vary alike and independently of the weights.
    """
    with styled_axes(ax, legend=True) as ax:
        known = frame[frame.predicted_variance.notna()]
        if known.empty:
            raise ValueError("prediction: this model does not show its values; use another figure")
        lengths = sorted(set(known.length))
        for length, color in zip(lengths, scale(len(lengths)), strict=True):
            part = known[known.length == length]
            ax.scatter(
                part.predicted_variance, part.measured_variance, s=8, color=color, label=f"{length}"
            )
        ends = [known.predicted_variance.min(), known.predicted_variance.max()]
        ax.plot(ends, ends, color="0.55", lw=1, ls=":", label="equal", zorder=1)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("variance of values over all tokens × E[Σa²]")
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
