"""Results as tables for a terminal."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from llmprobe.results.accuracy import SyntheticResult
from llmprobe.results.attention import AttentionResult
from llmprobe.results.base import Result
from llmprobe.results.figures.style import spread
from llmprobe.results.legality import METRICS, LegalityResult
from llmprobe.results.search import SearchResult
from llmprobe.results.series import SeriesResult
from llmprobe.results.variance import VarianceResult

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


_MAX_LENGTHS = 12


def lab_table(result: Result) -> Group:
    """The tables of a result of the lab, whatever its kind."""
    if isinstance(result, SyntheticResult):
        return synthetic_table(result)
    if isinstance(result, LegalityResult):
        return legality_table(result)
    assert isinstance(result, SearchResult), "the only other kind"
    return search_table(result)


def synthetic_table(result: SyntheticResult) -> Group:
    """A table for each variant against the first one, a row a length, and how the tails fall.

    One table for all would be wider than a terminal from the third variant on.
    """
    summary, comparisons = result.summary_frame(), result.compare_frame()
    first, *others = result.variants
    parts: list[Table | Text] = []
    for name in others or [first]:
        parts += [_against(name, summary, comparisons[comparisons.variant == name]), Text()]
    seeds, sets = _range(summary.n_seeds), _range(result.n_sets)
    about = (
        f"accuracy in %, mean ± standard deviation over {_count(seeds, 'seed')}; "
        f"{_count(sets, 'set')} a length, the same for all seeds"
    )
    if others:
        about += (
            f"; difference in points, paired over {_count(_range(comparisons.n_seeds), 'seed')}, "
            "with its 95 % interval over seeds on these sets; p of the paired t test; * "
            "significant at 0.05 after Holm's correction over the lengths"
        )
    parts.append(Text(about, style="italic"))
    if len(tail := result.tail_frame()):
        parts += [Text(), _tails(tail, result)]
    return Group(*parts)


def _tails(tail: pd.DataFrame, result: SyntheticResult) -> Table:
    """A row a variant: the slope of the variance of single features."""
    title = (
        f"variance of a feature over sets, slope of log over log N for N ≥ {tail.first_length[0]}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("variant", overflow="fold")
    for name in ("slope", "95 % interval", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    ratio = f"{result.lengths[-1]} / {result.reference}"
    table.add_column(f"global variance\n{ratio}", justify="right")
    for row in tail.to_dict("records"):
        table.add_row(
            Text(row["variant"]),
            f"{row['slope']:+.2f}",
            _interval(row, "{:+.2f} to {:+.2f}"),
            f"{row['n_seeds']}",
            f"{row['global_variance_ratio']:.2g}",
        )
    return table


def _against(variant: str, summary: pd.DataFrame, comparisons: pd.DataFrame) -> Table:
    """A row a length: accuracy of the reference and of the variant, and their difference."""
    table = Table(box=None, pad_edge=False)
    table.add_column("length", justify="right", no_wrap=True)
    shown = list(dict.fromkeys([*comparisons.reference, variant]))
    for name in shown:
        table.add_column(escape(name).replace("+", "+\n"), justify="right")
    for name in ("difference", "95 % interval", "p") if len(shown) > 1 else ():
        table.add_column(name, justify="left" if name == "p" else "right", no_wrap=True)
    accuracy = summary.set_index(["variant", "length"])[["mean", "sd"]] * 100
    ends = {row["length"]: _difference(row) for row in comparisons.to_dict("records")}
    for length in dict.fromkeys(summary.length):
        means = (accuracy.loc[(name, length)] for name in shown)
        table.add_row(
            f"{length}", *(_mean(m["mean"], m["sd"]) for m in means), *ends.get(length, ())
        )
    return table


def _mean(mean: float, sd: float) -> str:
    return f"{mean:.1f}" if np.isnan(sd) else f"{mean:.1f} ± {sd:.1f}"


def _interval(row: Mapping[Any, Any], form: str, scale: float = 1) -> str:
    low, high = scale * row["low"], scale * row["high"]
    return "–" if np.isnan(low) else form.format(low, high)


def _difference(row: Mapping[Any, Any]) -> tuple[str, str, str]:
    p = _p(row["p"])
    return (
        f"{100 * row['difference']:+.1f}",
        _interval(row, "[{:+.1f}, {:+.1f}]", scale=100),
        f"{p} *" if row["significant"] else p,
    )


def _count(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


def _range(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def legality_table(result: LegalityResult) -> Group:
    """The main metric by length, and each variant against the first one beyond training."""
    cells = {
        (row["variant"], row["length"]): _mean(100 * row["mean"], 100 * row["sd"])
        for row in result.summary_frame(result.main_metric).to_dict("records")
    }
    by_length = _titled(f"{METRICS[result.main_metric]}, in %")
    by_length.add_column("given", justify="right", no_wrap=True)
    for variant in result.variants:
        by_length.add_column(escape(variant).replace("+", "+\n"), justify="right")
    by_length.add_column("chance", justify="right")
    for length in spread(result.lengths, _MAX_LENGTHS):
        guess = 100 * result.uniform_mass[result.lengths.index(length)]
        row = (cells[variant, length] for variant in result.variants)
        by_length.add_row(f"{length}", *row, f"{guess:.0f}")
    n = _count(_range(result.summary_frame(result.main_metric).n_seeds), "seed")
    sequences = _range(result.n_sequences)
    about = Text(
        f"mean ± standard deviation over {n}; {sequences} sequences, the same for all seeds; "
        f"trained on {result.train_lengths[0]} to {result.train_lengths[1]} given",
        style="italic",
    )
    parts: list[Table | Text] = [by_length, about]
    if len(beyond := result.beyond_frame()):
        parts += [Text(), _beyond(beyond, result)]
    if result.task == "set-complement" and len(slopes := result.gap_frame()):
        parts += [Text(), _gaps(slopes)]
    return Group(*parts)


def _beyond(frame: pd.DataFrame, result: LegalityResult) -> Table:
    """A row for each metric and variant: its mean beyond training, paired with the first."""
    table = _titled(
        f"beyond training (more than {result.train_lengths[1]} given): mean over "
        f"{_count(_range(frame.n_lengths), 'length')}, then over seeds; paired differences to "
        f"{result.variants[0]} with 95 % intervals and p, not corrected for their number"
    )
    for name in ("metric", "variant"):
        table.add_column(name, overflow="fold")
    for name in ("mean", "difference", "95 % interval", "p", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        share = 100 if row["metric"].startswith("illegal") else 1
        ends = {"low": row["difference_low"], "high": row["difference_high"]}
        compared = not np.isnan(row["difference"])
        table.add_row(
            METRICS[row["metric"]] + " (%)" * (share > 1),
            Text(row["variant"]),
            f"{share * row['mean']:.4g}",
            f"{share * row['difference']:+.3g}" if compared else "",
            _interval(ends, "[{:+.3g}, {:+.3g}]", scale=share) if compared else "",
            _p(row["p"]) if compared else "",
            f"{row['n_pairs'] if compared else row['n_seeds']}",
        )
    return table


def _gaps(frame: pd.DataFrame) -> Table:
    table = _titled("slope of log gap over log s; dispersion of a balanced displacement gives −1")
    table.add_column("variant", overflow="fold")
    for name in ("slope", "95 % interval", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        interval = _interval(row, "{:+.3f} to {:+.3f}")
        slope = f"{row['slope']:+.3f}"
        table.add_row(Text(row["variant"]), slope, interval, f"{row['n_seeds']}")
    return table


def search_table(result: SearchResult) -> Group:
    """What matters: the paired effects, the rank correlations, and the words for them."""
    effects = _titled(
        f"KL {result.region}, with / without: geometric mean over settings, 95 % interval, share "
        "of settings that it helps, p of Wilcoxon's test (* significant after Holm's correction)"
    )
    for name in ("effect", "in"):
        effects.add_column(name)
    for name in ("ratio", "95 % interval", "helps", "p", "settings"):
        effects.add_column(name, justify="right", no_wrap=True)
    for row in result.effect_frame().to_dict("records"):
        p = _p(row["p"])
        effects.add_row(
            row["effect"],
            row["where"],
            f"{row['effect_size']:.3f}",
            _interval(row, "{:.3f} to {:.3f}"),
            f"{row['helps']:.0%}",
            f"{p} *" if row["significant"] else p,
            f"{row['n_settings']}",
        )
    ranks = _titled(
        "Spearman's rank correlation with KL, bootstrap interval over "
        f"{_count(_range(result.correlation_frame().n_settings), 'setting')}"
    )
    for name in ("parameter", "drawn from", "KL of"):
        ranks.add_column(name)
    for name in ("rho", "95 % interval", "p"):
        ranks.add_column(name, justify="right", no_wrap=True)
    for row in result.correlation_frame().to_dict("records"):
        drawn = Text(result.ranges[row["parameter"]])
        interval = _interval(row, "{:+.2f} to {:+.2f}")
        rho = "–" if np.isnan(row["rho"]) else f"{row['rho']:+.2f}"
        ranks.add_row(row["parameter"], drawn, row["outcome"], rho, interval, _p(row["p"]))
    return Group(effects, Text(), ranks, Text(), Text(result.reading()))


def _titled(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False)


def _p(p: float) -> str:
    return "–" if np.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
