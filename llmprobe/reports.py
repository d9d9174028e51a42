"""Results of the probes as tables for a terminal; those of the lab are in `synthetic.tables`."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from llmprobe.kinds import AttentionResult, SeriesResult, VarianceResult

_MAX_ROWS = 40
_COLUMN = 10
_OTHER_COLUMNS = 46
"""Characters: of a column with numbers, and of layer, head, slope, interval and R² together."""


def table_of(result: SeriesResult, *, width: int | None = None) -> Table:
    """A row for each layer or head: the statistic by length, and what was fitted to it.

    In a narrow terminal of `width` columns some of the lengths are left out, and that is said.
    """
    shown = _fitting(len(result.lengths), width)
    if isinstance(result, VarianceResult):
        title = "standard deviation over prompts, median over features"
        table, values = _start(result, title, shown), result.std_median
        for name in ("slope", "95 % interval", "R²"):
            table.add_column(name, justify="right", no_wrap=True)
        interval = zip(result.slope_low, result.slope_high, strict=True)
        ends = [
            [f"{slope:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{r2:.2f}"]
            for slope, (low, high), r2 in zip(result.slope, interval, result.r2, strict=True)
        ]
    else:
        assert isinstance(result, AttentionResult), "the only other kind"
        title = "effective tokens 1/Σa², mean over prompts"
        table, values = _start(result, title, shown), result.effective
        for name in ("entropy", "first token", "variance / predicted"):
            table.add_column(name, justify="right", no_wrap=True)
        share = result.measured_variance[:, -1] / result.predicted_variance[:, -1]
        ends = [
            [f"{entropy:.2f}", f"{first:.2f}", f"{ratio:.2f}"]
            for entropy, first, ratio in zip(
                result.entropy[:, -1], result.first[:, -1], share, strict=True
            )
        ]
    _fill(table, result, values, ends, shown)
    return table


def compare_table(results: Iterable[tuple[str, VarianceResult]]) -> Table:
    """A row for each result: where its slopes lie."""
    table = Table(
        title="slopes of log std over log N", title_justify="left", box=None, pad_edge=False
    )
    for name in ("result", "at", "layers", "lengths", "prompts", "series"):
        table.add_column(name, justify="left" if name == "result" else "right")
    for name in ("median slope", "lowest", "highest"):
        table.add_column(name, justify="right")
    for name, result in results:
        layers = sorted(set(result.layer.tolist()))
        table.add_row(
            name,
            result.at,
            f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}..{layers[-1]}",
            f"{min(result.lengths)}..{max(result.lengths)}",
            f"{result.n_prompts.min()}",
            f"{len(result.slope)}",
            *(_signed(f, result.slope) for f in (np.median, np.min, np.max)),
        )
    return table


def _signed(function: Callable[..., float], slopes: NDArray[np.float64]) -> str:
    known = slopes[np.isfinite(slopes)]
    return f"{function(known):+.2f}" if len(known) else "–"


def _start(result: SeriesResult, title: str, shown: list[int]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("layer", justify="right")
    if (result.head >= 0).any():
        table.add_column("head", justify="right")
    if set(result.layer_type) != {"full"}:
        table.add_column("type")
    for number in shown:
        table.add_column(f"{result.lengths[number]}", justify="right", no_wrap=True)
    return table


def _fill(
    table: Table,
    result: SeriesResult,
    values: NDArray[np.float64],
    ends: list[list[str]],
    shown: list[int],
) -> None:
    for row in range(min(len(result.layer), _MAX_ROWS)):
        cells = [f"{result.layer[row]}"]
        if (result.head >= 0).any():
            cells.append(f"{result.head[row]}")
        if set(result.layer_type) != {"full"}:
            cells.append(result.layer_type[row])
        table.add_row(*cells, *(f"{values[row, number]:.3g}" for number in shown), *ends[row])
    more = []
    if len(result.layer) > _MAX_ROWS:
        more.append(f"{len(result.layer) - _MAX_ROWS} more rows")
    if len(shown) < len(result.lengths):
        more.append(f"{len(result.lengths) - len(shown)} more lengths")
    if more:
        table.caption = f"and {' and '.join(more)} in the saved result"


def _fitting(n_lengths: int, width: int | None) -> list[int]:
    """Which lengths have room: all, or a few spread evenly with the first and the last."""
    room = n_lengths if width is None else max(2, (width - _OTHER_COLUMNS) // _COLUMN)
    if room >= n_lengths:
        return list(range(n_lengths))
    return [round(i * (n_lengths - 1) / (room - 1)) for i in range(room)]
