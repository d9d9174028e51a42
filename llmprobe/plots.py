"""Figures: a tidy frame goes in, Axes come out. Nothing is computed here, shown or saved.

One style serves a notebook and a paper: colors that the color-blind tell apart, lengths on a scale
of powers of two, the statistic, its axis and the number of prompts in the labels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

COLUMN_WIDTH = 3.5
"""Inches: one column of a two-column paper."""
_MAX_LABELED = 9
MAX_PANELS = 8
_LINES = {"full": "-", "sliding": "-.", "linear": (0, (1, 1))}

_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.4,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.4,
    "axes.grid": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "figure.dpi": 150,
    "axes.prop_cycle": cycler(color=sns.color_palette("colorblind")),
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Figures that are made in this block look like those of llmprobe."""
    with plt.rc_context(_STYLE):
        yield
        # A notebook's backend turns this on with the first figure, inside the context.
        interactive = plt.isinteractive()
    matplotlib.interactive(interactive)


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
        series = _series(frame)
        kinds = types or ["full"] * len(series)
        for number, ((name, part), color) in enumerate(
            zip(series.items(), palette(len(series)), strict=False)
        ):
            kind = kinds[number]
            label = name if kind == "full" else f"{name}, {kind}"
            label += "" if slopes is None else f" ({slopes[number]:+.2f})"
            style: dict[str, Any] = {"ls": _LINES[kind], "marker": _marker(part)}
            ax.plot(part.length, part.std_median, color=color, label=label, **style)
            if len(series) <= _MAX_LABELED:  # more bands would hide each other
                low, high = part.std_q25, part.std_q75
                ax.fill_between(part.length, low, high, color=color, alpha=0.15, lw=0)
            if component is not None and len(series) <= _MAX_LABELED:
                ax.plot(part.length, part.component_std, color=color, lw=0.8, ls="--")
        _draw_reference_slope(frame, ax)
        length_axis(ax, frame.length)
        ax.set_yscale("log")
        ax.set_ylabel(f"standard deviation over {_prompts(frame)} prompts")
        if component is not None and len(series) <= _MAX_LABELED:
            ax.plot([], [], color="0.3", lw=0.8, ls="--", label=f"feature {component}")
        if len(series) <= _MAX_LABELED:
            ax.fill_between([], [], color="0.3", alpha=0.15, lw=0, label="quartiles over features")
        what = "layer" if frame["head"].isna().all() else "layer and head"
        _legend(ax, len(series), title=None if slopes is None else f"{what} (slope)")
    return ax


def draw_comparison(frames: Mapping[str, pd.DataFrame], *, ax: Axes | None = None) -> Axes:
    """The median standard deviations of several results against length, one color a result."""
    with styled_axes(ax, legend=True) as ax:
        for (name, frame), color in zip(frames.items(), palette(len(frames)), strict=False):
            series = _series(frame)
            width = 1.4 if len(series) == 1 else 0.8
            for number, part in enumerate(series.values()):
                label = name if number == 0 else None
                ax.plot(part.length, part.std_median, color=color, lw=width, alpha=0.8, label=label)
        joined = pd.concat(frames.values())
        _draw_reference_slope(joined, ax)
        length_axis(ax, joined.length)
        ax.set_yscale("log")
        ax.set_ylabel(f"standard deviation over {_prompts(joined)} prompts,\nmedian over features")
        _legend(ax, len(frames))
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
                "label": f"slope of log std over log N,\n{_prompts(rows)} prompts, {span}",
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
        series = _series(frame)
        for (name, part), color in zip(series.items(), palette(len(series)), strict=False):
            axes[0].plot(part.length, part.mean_drift, color=color, label=name)
            axes[1].plot(part.length, part.global_variance, color=color, label=name)
        for panel in axes:
            length_axis(panel, frame.length)
        axes[0].axhline(0, color="0.55", lw=0.8, ls=":")
        axes[0].set_ylabel(f"(global mean − that at {reference}) /\nglobal variance at {reference}")
        axes[1].set_yscale("log")
        axes[1].set_ylabel(f"global variance (over features),\nmean over {_prompts(frame)} prompts")
        _legend(axes[1], len(series))
    return axes


def draw_violins(frame: pd.DataFrame, ax: Axes, *, legend: bool = True) -> None:
    """A violin for each length and feature; `frame` has one row a value."""
    sns.violinplot(
        frame.assign(feature=frame.feature.astype(str)),
        x="length",
        y="value",
        hue="feature",
        palette="colorblind",
        density_norm="width",
        inner=None,
        linewidth=0.3,
        cut=0,
        legend=legend,
        ax=ax,
    )


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


def draw_dispersion(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Effective tokens 1/Σa² of the last query against length; uniform attention has N."""
    with styled_axes(ax, legend=True) as ax:
        series = _series(frame)
        for (name, part), color in zip(series.items(), palette(len(series)), strict=False):
            ax.plot(part.length, part.effective, color=color, marker=_marker(part), label=name)
        lengths = np.array(sorted(set(frame.length)), dtype=float)
        ax.plot(lengths, lengths, color="0.55", lw=1, ls=":", label="uniform: N", zorder=1)
        length_axis(ax, frame.length)
        ax.set_yscale("log", base=2)
        ax.set_ylabel(f"effective tokens 1/Σa²,\nmean over {_prompts(frame)} prompts")
        _legend(ax, len(series))
    return ax


def draw_prediction(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Measured variance of head outputs against what dispersion alone predicts."""
    with styled_axes(ax, legend=True) as ax:
        known = frame[frame.predicted_variance.notna()]
        if known.empty:
            raise ValueError("prediction: this model does not show its values, so there is none")
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
        ax.set_ylabel(f"variance over {_prompts(frame)} prompts,\nmean over features")
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


def series_name(layer: Any, head: Any) -> str:
    """How a series is called in legends."""
    return f"layer {layer}" if pd.isna(head) else f"layer {layer} head {head}"


def _series(frame: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    groups = frame.groupby(["layer", "head"], dropna=False, sort=False)
    return {series_name(*key): part for key, part in groups}


def spread(items: Sequence[int], n: int) -> list[int]:
    """At most n of the items, evenly, the first and the last among them."""
    if len(items) <= n:
        return list(items)
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def _marker(part: pd.DataFrame) -> str | None:
    return "o" if len(part) == 1 else None  # a line of one point would not be seen


def _draw_reference_slope(frame: pd.DataFrame, ax: Axes) -> None:
    start = frame[frame.length == frame.length.min()].std_median.max()
    if not start > 0:
        return
    lengths = np.array(sorted(set(frame.length)), dtype=float)
    line = start * (lengths / lengths[0]) ** -0.5
    ax.plot(lengths, line, color="0.55", lw=1.2, ls=":", label="slope −1/2", zorder=1)


def _legend(ax: Axes, n_series: int, *, title: str | None = None) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if n_series > _MAX_LABELED:  # too many to name: the first, the last, and what is not a series
        chosen = [0, n_series - 1, *range(n_series, len(labels))]
        handles, labels = [handles[i] for i in chosen], [labels[i] for i in chosen]
    # Beside the lines: inside, it would cover some of them.
    place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    ax.legend(handles, labels, title=title, alignment="left", **place)


def length_axis(
    ax: Axes,
    lengths: Iterable[int],
    *,
    label: str = "prompt length N (tokens)",
    n_ticks: int = 7,
) -> None:
    """Powers of two across, with ticks at the lengths, or at some of them, both ends included."""
    ticks = sorted(set(lengths))
    ax.set_xscale("log", base=2)
    ax.set_xlabel(label)
    step = 1 + (len(ticks) - 1) // n_ticks
    chosen = ticks[::-step]
    if 2 * ((len(ticks) - 1) % step) < step:  # too near to the first, or the first itself
        chosen.pop()
    chosen = sorted({ticks[0], *chosen})
    ax.xaxis.set_major_locator(FixedLocator([float(n) for n in chosen]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))


def palette(n: int) -> Iterator[tuple[float, ...]]:
    """Colors for n series: told apart by all where they are few, a scale where they are many."""
    few = n <= _MAX_LABELED
    return cycle(sns.color_palette("colorblind", n) if few else sns.color_palette("viridis", n))


def _prompts(frame: pd.DataFrame) -> str:
    low, high = frame.n_prompts.min(), frame.n_prompts.max()
    return f"{low}" if low == high else f"{low} to {high}"


@contextmanager
def styled_axes(
    ax: Any,
    *,
    n_panels: int = 1,
    n_rows: int = 1,
    panels: bool = False,
    width: float = COLUMN_WIDTH,
    height: float = 0.72 * COLUMN_WIDTH,
    legend: bool = False,
) -> Iterator[Any]:
    """The caller's Axes as they are, or new ones in our style, with room for a legend beside."""
    with paper_style():
        if ax is None:
            size = (width + (1.1 if legend else 0), height)
            _, grid = plt.subplots(
                n_rows, n_panels, figsize=size, layout="constrained", squeeze=not panels
            )
            ax = grid.ravel() if panels else grid
        yield ax
