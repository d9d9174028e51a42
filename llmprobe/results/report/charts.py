"""Charts to explore, of the views that results declare: Vega-Lite, by Altair.

    explore([("SmolLM2", result)])      # maps and curves of heads, linked: a click chooses a head
    line_charts([("argmax", trained)])  # a chart for each view that needs no choice of a head

Altair was taken because a linked view is one specification, a page needs no server, and
`vl-convert-python` ships the browser's part.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmprobe.base.visible import visible
from llmprobe.results.views import HeadMap, Lines, Viewed

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

_WIDTH, _NARROW, _HEIGHT = 300, 235, 180
_MAP_WIDTH = 620
"""Pixels that the maps of all results share."""
_MOST_LINES = 16
"""More in one chart look alike; single heads have a map."""
_BESIDE = 16
"""Heads across all maps, at most, for curves to stand next to the maps and not below."""
# Okabe and Ito's colors: told apart by the color-blind, on light and on dark ground.
_COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442"]
_WHOLE = -1
"""Stands for the head of a series that is a whole layer: a selection cannot hold NaN."""

Named = Sequence[tuple[str, Viewed]]
"""Results by name. Those of one name are linked; a name has one result of each kind."""


def explore(results: Named) -> Any:
    """Maps of heads and the curves of the head that is chosen in them, in one linked chart.

    Results of several kinds are linked by layer and head. None if no result has a map.
    """
    import altair as alt

    mapped = [
        (name, view, frame)
        for name, result in results
        for view in result.views
        if isinstance(view, HeadMap) and (frame := _rows([(name, result)], view)) is not None
    ]
    if not mapped:
        return None
    picked, several = _choice(mapped), len({name for name, _, _ in mapped}) > 1
    widest = max(frame["head"].nunique() for _, _, frame in mapped)
    beside = len(mapped) * widest <= _BESIDE
    maps = [
        _map(
            view,
            frame,
            picked,
            limits=_typical(f[view.value] for _, v, f in mapped if v == view),
            width=_MAP_WIDTH / (2 if beside else 1) / len(mapped),
            name=name if several else "",
        )
        for name, view, frame in mapped
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Automatically deduplicated")  # one choice for all: meant
        chart: Any = alt.hconcat(*maps, spacing=24).resolve_scale(color="independent")
    curves = [
        _lines(view, rows, picked=picked, width=_NARROW if beside else _WIDTH)
        for view in _views(results)
        if not view.by and (rows := _rows(results, view)) is not None
    ]
    if curves:
        # Next to a narrow map, below a wide one.
        grid = alt.concat(*curves, columns=2, spacing=28).resolve_scale(color="independent")
        chart = (alt.hconcat if beside else alt.vconcat)(chart, grid, spacing=28)
    return chart


def stacked(charts: Sequence[Any]) -> Any:
    """Several charts as one, below each other."""
    import altair as alt

    return alt.vconcat(*charts, spacing=36)


def line_charts(results: Named) -> Any:
    """The views that tell their lines apart themselves; the same view of several results in a row.

    None if there is none.
    """
    import altair as alt

    charts = []
    for view in _views(results):
        if view.by == "result" and (rows := _rows(results, view)) is not None:
            charts.append(_lines(view, rows))
        if view.by in ("", "result"):
            continue
        parts = {
            name: found
            for name, result in results
            if view in result.views
            if (found := _rows([(name, result)], view)) is not None
            if found[view.by].nunique() <= _MOST_LINES
        }
        if parts:
            # The same scale, so that results can be compared by eye.
            ends = [c for c in (view.y, view.low, view.high) if c]
            limits = _limits(frame[c] for frame in parts.values() for c in ends)
            charts += [
                _lines(view, frame, limits=limits, name=name if len(results) > 1 else "")
                for name, frame in parts.items()
            ]
    if not charts:
        return None
    return alt.concat(*charts, columns=2, spacing=28).resolve_scale(color="independent")


def _views(results: Named) -> list[Lines]:
    """Every view of lines once, in the order of the results."""
    return list(
        dict.fromkeys(
            view for _, result in results for view in result.views if isinstance(view, Lines)
        )
    )


def _rows(results: Named, view: Lines | HeadMap) -> "pd.DataFrame | None":
    """The columns of a view, of all results that have it; None where nothing is finite."""
    import pandas as pd

    parts = []
    for name, result in results:
        if view not in result.views:
            continue
        frame = getattr(result, view.frame)()
        y = view.y if isinstance(view, Lines) else view.value
        wanted = [y, view.low, view.high, "n_prompts", "n_seeds"]
        if isinstance(view, HeadMap) or not view.by:
            wanted += ["layer", "head", "label"]
        if isinstance(view, Lines):
            wanted += [view.x, view.by]
        chosen = frame[[column for column in dict.fromkeys(wanted) if column in frame]].copy()
        if "head" in chosen:
            chosen["head"] = chosen["head"].fillna(_WHOLE).astype(int)
        chosen.insert(0, "result", visible(name))
        chosen = chosen.replace([np.inf, -np.inf], np.nan)
        if isinstance(view, Lines) and view.log_y:  # a logarithm has no zero
            for column in (y, view.low, view.high):
                if column:
                    chosen[column] = chosen[column].where(chosen[column] > 0)
        if chosen[y].notna().any():
            parts.append(chosen)
    return pd.concat(parts, ignore_index=True) if parts else None


def _data(frame: "pd.DataFrame") -> "alt.InlineData":
    """The rows themselves, not the frame: Altair would refuse more than 5,000."""
    import altair as alt

    def plain(value: Any) -> Any:
        return None if value != value else float(f"{value:.6g}")

    columns = {
        str(name): [plain(x) for x in column] if column.dtype.kind == "f" else column.tolist()
        for name, column in frame.items()
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return alt.InlineData(values=rows)


def _choice(mapped: Sequence[tuple[str, HeadMap, "pd.DataFrame"]]) -> "alt.Parameter":
    """The chosen head: by a click in a map, or with the keyboard by the lists below the chart.

    At first the head that stands out: with the lowest number of the first map.
    """
    import altair as alt

    _, view, frame = mapped[0]
    lowest = int(np.nanargmin(frame[view.value]))
    start = [{name: int(frame[name].iloc[lowest]) for name in ("layer", "head")}]
    lists = {
        name: alt.binding_select(
            options=sorted({int(n) for _, _, f in mapped for n in f[name]}), name=f"{name} "
        )
        for name in ("layer", "head")
        if any((f[name] != _WHOLE).any() for _, _, f in mapped)
    }
    # Lists turn clicks off unless they are named. One beside the cells chooses nothing.
    return alt.selection_point(
        name="picked",
        fields=["layer", "head"],
        value=start,
        bind=lists,
        on="rect:click",
        clear=False,
        toggle=False,
        empty=False,
    )


def _typical(columns: Iterable["pd.Series[float]"]) -> tuple[float, float]:
    """Limits without the most extreme cells, which would make all others pale."""
    values = np.concatenate([column.to_numpy(dtype=float) for column in columns])
    low, high = np.nanquantile(values, [0.01, 0.99])
    return float(low), float(high)


def _limits(columns: Iterable["pd.Series[float]"]) -> tuple[float, float]:
    values = np.concatenate([column.to_numpy(dtype=float) for column in columns])
    values = values[np.isfinite(values)]
    return float(values.min()), float(values.max())


def _map(
    view: HeadMap,
    frame: "pd.DataFrame",
    picked: "alt.Parameter",
    *,
    limits: tuple[float, float],
    width: float,
    name: str,
) -> Any:
    import altair as alt

    n_heads, n_layers = frame["head"].nunique(), frame["layer"].nunique()
    step = max(7.0, min(24.0, width / n_heads))
    height = max(5.0, min(step, 560 / n_layers))
    low, high = limits
    if view.diverging:
        most = max(abs(low), abs(high)) or 1.0
        scale = alt.Scale(
            scheme="purpleorange", domain=[-most, most], domainMid=0, reverse=True, clamp=True
        )
    else:
        scale = alt.Scale(scheme="viridis", domain=[low, high], clamp=True)
    whole = bool((frame["head"] == _WHOLE).all())
    axis = alt.Axis(labelExpr="'output'") if whole else alt.Axis(labelAngle=0, labelOverlap=True)
    told = _told(frame, ["result"])
    base = alt.Chart(_data(frame)).encode(
        x=alt.X("head:O", title="" if whole else "head", axis=axis),
        y=alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(labelOverlap=True)),
    )
    cells = (
        base.mark_rect(cursor="pointer", stroke="currentColor")
        .encode(
            color=alt.Color(
                f"{view.value}:Q",
                scale=scale,
                legend=alt.Legend(
                    title=None,
                    orient="bottom",
                    gradientThickness=8,
                    gradientLength=120,
                    tickCount=3,
                ),
            ),
            strokeWidth=alt.condition(picked, alt.value(2.5), alt.value(0)),
            tooltip=told,
        )
        .add_params(picked)
    )
    layers = [cells]
    if view.low and view.high and {view.low, view.high} <= set(frame):
        unsure = f"datum['{view.low}'] <= 0 && datum['{view.high}'] >= 0"
        layers.append(
            base.transform_filter(unsure).mark_point(
                size=max(4.0, step * height / 14), filled=True, color="black", opacity=0.7
            )
        )
    return alt.layer(*layers).properties(
        title=_title(view, name), width=alt.Step(step), height=alt.Step(height)
    )


def _title(view: Lines | HeadMap, name: str) -> Any:
    """What is asked, and below it what is drawn, of which result."""
    import altair as alt

    below = [view.axis] + ([visible(name)] if name else [])
    return alt.TitleParams(text=view.title, subtitle=below)


def _lines(
    view: Lines,
    frame: "pd.DataFrame",
    *,
    picked: "alt.Parameter | None" = None,
    limits: tuple[float, float] | None = None,
    name: str = "",
    width: int = _WIDTH,
) -> Any:
    import altair as alt

    by = view.by or "result"
    base = alt.Chart(_data(frame))
    if picked is not None and "layer" in frame:
        base = base.transform_filter(picked)
    points = sorted(frame[view.x].unique().tolist())
    x_scale = alt.Scale(type="log", base=2, nice=False) if view.log_x else alt.Scale(nice=False)
    ticks = alt.Axis(values=_ticks(points), format="~g" if points[0] < 1 else "d", grid=False)
    x = alt.X(f"{view.x}:Q", title=view.x_axis, scale=x_scale, axis=ticks)
    y_scale = alt.Scale(
        type="log" if view.log_y else "linear",
        base=2 if view.log_y else alt.Undefined,
        zero=alt.Undefined if view.log_y else False,
        domain=alt.Undefined if limits is None else list(limits),
    )
    form = alt.Axis(format=".0%" if view.percent else ".4~r", tickCount=5, title=None)
    names = list(dict.fromkeys(frame[by].tolist()))
    many = len(names) > 1
    color = alt.Color(
        f"{by}:N",
        scale=alt.Scale(domain=names, range=[_COLORS[i % 8] for i in range(len(names))]),
        legend=alt.Legend(title=None, orient="top", columns=2, symbolOpacity=1) if many else None,
    )
    layers = []
    ends = [view.low, view.high]
    if all(ends) and {*ends} <= set(frame) and frame[ends].notna().any().all():
        layers.append(
            base.mark_area(opacity=0.22).encode(
                x=x, y=alt.Y(f"{view.low}:Q", scale=y_scale), y2=f"{view.high}:Q", color=color
            )
        )
    layers.append(
        base.mark_line(point=alt.OverlayMarkDef(size=28, filled=True)).encode(
            x=x,
            y=alt.Y(f"{view.y}:Q", scale=y_scale, axis=form),
            color=color,
            tooltip=_told(frame, [] if many else ["result", by]),
        )
    )
    return alt.layer(*layers).properties(title=_title(view, name), width=width, height=_HEIGHT)


def _told(frame: "pd.DataFrame", left_out: Sequence[str]) -> list[Any]:
    """What a mark says when it is pointed at."""
    import altair as alt

    kinds = {"f": {"type": "quantitative", "format": ".4g"}, "i": {"type": "quantitative"}}
    return [
        alt.Tooltip(field=str(name), **kinds.get(column.dtype.kind, {"type": "nominal"}))
        for name, column in frame.items()
        if name not in left_out
    ]


def _ticks(points: Sequence[float]) -> list[float]:
    """At most seven of the points, both ends among them."""
    step = math.ceil(len(points) / 7)
    return sorted({points[0], *points[::-step]})


def inked(chart: Any, ink: str) -> Any:
    """The chart in the look of ours, in one color of ink."""
    return (
        chart.configure(background="transparent", font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=ink,
            titleColor=ink,
            domainColor=ink,
            tickColor=ink,
            titleFontWeight="normal",
            gridColor=ink,
            gridOpacity=0.15,
        )
        .configure_legend(labelColor=ink, titleColor=ink, titleLimit=260, labelLimit=260)
        .configure_title(color=ink, subtitleColor=ink, fontSize=13, anchor="start", frame="group")
    )
