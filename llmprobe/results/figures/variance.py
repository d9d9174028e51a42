"""Figures of variance results: a tidy frame goes in, Axes come out.

Nothing is computed here, shown or saved.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from llmprobe.base.signs import signed
from llmprobe.results.figures.style import (
    COLUMN_WIDTH,
    MAX_LABELED,
    by_series,
    draw_series,
    draw_violins,
    last_of,
    length_axis,
    log_axis,
    palette,
    prompts_of,
    series_legend,
    series_name,
    styled_axes,
)

_BAR = 0.08
"""Inches: the width of a color bar."""
_ENDS = ("lowest", "highest")
_GRAYS: tuple[dict[str, Any], ...] = (
    {"color": "0.55", "ls": ":"},
    {"color": "0.35", "ls": (0, (5, 1, 1, 1, 1, 1))},
)
"""Of lines to compare with: one dash each, and none that a series has."""
_LINES = {"full": "-", "sliding": "-.", "linear": (0, (1, 1))}


def draw_decay(
    frame: pd.DataFrame,
    *,
    component: int | None = None,
    slopes: Sequence[float] | None = None,
    types: Sequence[str] | None = None,
    references: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Standard deviation over prompts against length, log-log (Figure 1 of the paper).

    `frame` has the columns of `VarianceResult.to_frame()`. For each series the total standard
    deviation with its 95 % CI, which `slopes` are about, and dashed the part within queries if
    several are fixed. Results of older versions have no total: they show the median over features
    with its quartiles, and the chosen feature dashed. Gray lines have the
    slopes of `references`, by name, or else the −1/2 of attention that disperses. `slopes` and
    `types` (full, sliding, linear), one for each series, stand in the legend; lines of other types
    than full are broken.
    """
    (std, low, high), has_total = _columns_of(frame)
    dashed, words = "component_std", f"feature {component}"
    if has_total:
        dashed, words = "std_within", "within a query"
        component = 0 if frame.std_within.notna().any() else None
    with styled_axes(ax, legend=True) as ax:
        series = by_series(frame)
        kinds, few = types or ["full"] * len(series), len(series) <= MAX_LABELED
        drawn = {
            (name if kind == "full" else f"{name}, {kind}")
            + ("" if slopes is None or not few else f" ({signed(slopes[number])})"): part
            for number, ((name, part), kind) in enumerate(zip(series.items(), kinds, strict=True))
        }
        draw_series(
            ax,
            drawn,
            std,
            ranks=last_of(series, std) if slopes is None else slopes,
            ends=_ENDS if slopes is None else _ends(slopes),
            with_ranks=slopes is not None,
            styles=[{"ls": _LINES[kind]} for kind in kinds],
        )
        if few:  # more bands would hide each other
            for part, color in zip(series.values(), palette(len(series)), strict=False):
                ax.fill_between(part.length, part[low], part[high], color=color, alpha=0.15, lw=0)
                if component is not None:
                    ax.plot(part.length, part[dashed], color=color, lw=0.8, ls="--")
        _draw_reference_slopes(frame, std, references or {}, ax)
        length_axis(ax, frame.length)
        log_axis(ax)
        ax.set_ylabel(f"standard deviation\nover {prompts_of(frame)} prompts")
        if few and component is not None:
            ax.plot([], [], color="0.3", lw=0.8, ls="--", label=words)
        if few:
            band = "95 % CI" if has_total else "quartiles"
            ax.fill_between([], [], color="0.3", alpha=0.15, lw=0, label=band)
        what = "layer" if frame["head"].isna().all() else "head"
        series_legend(ax, title=None if slopes is None else f"{what} (slope)")
    return ax


def _columns_of(frame: pd.DataFrame) -> tuple[tuple[str, str, str], bool]:
    """The standard deviation that slopes are about with its band, and whether it is the total."""
    if frame.std_total.notna().any():
        return ("std_total", "std_total_low", "std_total_high"), True
    return ("std_median", "std_q25", "std_q75"), False


def _ends(slopes: Sequence[float]) -> tuple[str, str]:
    """Words for the lowest and the highest slope."""
    return "steepest", "rising" if any(slope > 0.05 for slope in slopes) else "flattest"


def draw_comparison(frames: Mapping[str, pd.DataFrame], *, ax: Axes | None = None) -> Axes:
    """The standard deviations of several results against length, one color a result."""
    shown = {name: _columns_of(frame) for name, frame in frames.items()}
    has_total = all(total for _, total in shown.values())
    frames = {name: frame.assign(std=frame[shown[name][0][0]]) for name, frame in frames.items()}
    with styled_axes(ax) as ax:
        for (name, frame), color in zip(frames.items(), palette(len(frames)), strict=False):
            series = by_series(frame)
            width = 1.4 if len(series) == 1 else 0.8
            for number, part in enumerate(series.values()):
                label = name if number == 0 else None
                ax.plot(part.length, part["std"], color=color, lw=width, alpha=0.8, label=label)
        joined = pd.concat(frames.values())
        _draw_reference_slopes(joined, "std", {}, ax)
        length_axis(ax, joined.length)
        log_axis(ax)
        which = "" if has_total else ", median over features"
        ax.set_ylabel(f"standard deviation over {prompts_of(joined)}\nprompts{which}")
        series_legend(ax, above=True)
    return ax


def draw_slopes(
    frame: pd.DataFrame, rows: pd.DataFrame, *, tested: str = "total", ax: Axes | None = None
) -> Axes:
    """A map of slopes by layer and head.

    `frame` is `VarianceResult.decay_frame()`, `rows` its `to_frame()`. `tested` names the slope:
    within (queries), or the total; older results have features only. White is a head that keeps
    its variance, orange one that loses it, full at the −1/2 of attention that disperses. A dot
    marks slopes whose CI includes 0.
    """
    import seaborn as sns  # brings scipy.stats, which takes long

    slope = "slope_within" if tested == "within" else "slope"
    frame = frame.assign(**{f"slope{end}": frame[f"{slope}{end}"] for end in ("", "_low", "_high")})
    heads = frame.assign(head=frame["head"].fillna(0)).pivot(
        index="layer", columns="head", values="slope"
    )
    what = "std within a query\n" if tested == "within" else "std "  # or it is longer than the map
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
                "label": f"slope of log {what}over log N,\n{prompts_of(rows)} prompts, {span}",
                "extend": "both",
                "extendfrac": 0.03,
                "aspect": height / _BAR,
                "pad": 0.02,
            },
            linewidths=0.3,
            linecolor="0.8",
        )
        for text in ax.texts:  # seaborn writes in white on middle tones
            background = ax.collections[0].to_rgba(np.array(float(text.get_text())))
            text.set_color("white" if sns.utils.relative_luminance(background) < 0.2 else "black")
            text.set_text(signed(float(text.get_text()), ".2f"))
        _mark_uncertain(frame, heads, ax)
        ax.grid(False)
        ax.set_ylabel("layer")
        if frame["head"].notna().any():
            ax.set_xlabel("head")
        else:
            ax.set(xlabel="whole layer", xticks=[])
        ax.tick_params(axis="y", rotation=0)
    return ax


def _mark_uncertain(frame: pd.DataFrame, heads: pd.DataFrame, ax: Axes) -> None:
    """A dot in the corner of cells whose CI includes 0, and what it means above the map."""
    unsure = frame[(frame.slope_low <= 0) & (frame.slope_high >= 0)]
    x = heads.columns.get_indexer(pd.Index(unsure["head"].fillna(0))) + 0.87
    y = heads.index.get_indexer(pd.Index(unsure["layer"])) + 0.16
    ax.scatter(x, y, s=3, color="0.15", lw=0, zorder=3)
    ax.set_title("dot: 95 % CI includes 0" if len(unsure) else "", loc="left", pad=3)


def draw_drift(frame: pd.DataFrame, *, reference: int, ax: Any = None) -> NDArray[Any]:
    """Drift of the global mean, and the global variance, against length (Figure 3)."""
    with styled_axes(ax, n_panels=2, panels=True, width=2 * COLUMN_WIDTH, legend=True) as axes:
        series = by_series(frame)
        for panel, column in zip(axes, ("mean_drift", "global_variance"), strict=True):
            draw_series(panel, series, column, ranks=last_of(series, "global_variance"))
        for panel in axes:
            length_axis(panel, frame.length)
        axes[0].axhline(0, color="0.55", lw=0.8, ls=":")
        axes[0].set_ylabel(f"(global mean − that at {reference}) /\nglobal variance at {reference}")
        log_axis(axes[1])
        axes[1].set_ylabel(
            f"global variance (over features),\nmean over {prompts_of(frame)} prompts"
        )
        series_legend(axes[1])
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


def _draw_reference_slopes(
    frame: pd.DataFrame, column: str, slopes: Mapping[str, float], ax: Axes
) -> None:
    """Gray lines from the highest value at the first length; −1/2 where no slope is known."""
    start = frame[frame.length == frame.length.min()][column].max()
    if not start > 0:
        return
    lengths = np.array(sorted(set(frame.length)), dtype=float)
    named = {f"{name}\n(slope {signed(slope)})": slope for name, slope in slopes.items()}
    for (label, slope), style in zip((named or {"slope −1/2": -0.5}).items(), _GRAYS, strict=False):
        line = start * (lengths / lengths[0]) ** slope
        ax.plot(lengths, line, lw=1.2, label=label, zorder=1, **style)
