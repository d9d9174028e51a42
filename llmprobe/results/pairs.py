"""Variance results side by side: their slopes, and the same layers and heads of two of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmprobe.base.intervals import independent_difference
from llmprobe.base.signs import minus
from llmprobe.results.tables import MANY, MAX_ROWS, titled

if TYPE_CHECKING:
    import pandas as pd


def pair_frame(first: "pd.DataFrame", second: "pd.DataFrame") -> "pd.DataFrame":
    """A row for each layer and head that both have: both slopes, and second − first with its CI.

    Both are frames of slopes, as `VarianceResult.decay_frame()` gives them.
    """
    columns = ["slope", "slope_low", "slope_high"]
    both = first[["layer", "head", *columns]].merge(
        second[["layer", "head", *columns]], on=["layer", "head"], suffixes=("_1", "_2")
    )
    first_three, second_three = (
        both[[f"{name}_{number}" for name in columns]].to_numpy(dtype=np.float64).T
        for number in (1, 2)
    )
    difference, low, high = independent_difference(second_three, first_three)
    return both.assign(difference=difference, difference_low=low, difference_high=high)


def pairs_of(named: Mapping[str, Any]) -> "pd.DataFrame | None":
    """The same series of two results; None for more results, or without such series."""
    frames = [result.decay_frame() for result in named.values()]
    pairs = pair_frame(*frames) if len(frames) == 2 else None
    return None if pairs is None or pairs.empty else pairs


def pair_table(frame: "pd.DataFrame", *, rows: int = MAX_ROWS) -> Any:
    """The pairs to print; many are ranked by the size of the difference."""
    table = titled("slopes of the same layers and heads")
    heads = frame["head"].notna().any()
    for name in ("layer", *(["head"] if heads else []), "slope 1", "slope 2", "2 − 1", "95 % CI"):
        table.add_column(name, justify="right", no_wrap=True)
    if len(frame) > MANY:
        frame = frame.sort_values("difference", key=lambda x: -np.abs(x), kind="stable")
    for row in frame.head(rows).to_dict("records"):
        first = [f"{row['layer']:.0f}", *([f"{row['head']:.0f}"] if heads else [])]
        interval = minus(f"{row['difference_low']:+.2f} to {row['difference_high']:+.2f}")
        slopes = (minus(f"{row[name]:+.2f}") for name in ("slope_1", "slope_2", "difference"))
        table.add_row(*first, *slopes, interval)
    below, above = (frame.difference_high < 0).sum(), (frame.difference_low > 0).sum()
    told = [
        f"{below} of {len(frame)} slopes are lower in 2, {above} are higher (95 % CI of the "
        "difference on one side of 0)."
    ]
    if len(frame) > rows:
        told.insert(0, f"and {len(frame) - rows} more pairs with smaller differences (--json)")
    table.caption = "\n".join(told)
    return table


def check_comparable(named: Mapping[str, Any]) -> None:
    """Refuse results whose slopes are about different things."""
    (first, one), *others = named.items()
    for name, other in others:
        if one.at != other.at:
            raise ValueError(
                f"compare: {first} has at {one.at!r} and {name} has at {other.at!r}; compare heads "
                "with heads, or outputs with outputs"
            )
        if one.lengths != other.lengths:
            raise ValueError(
                f"compare: {first} and {name} have different lengths, {one.lengths} and "
                f"{other.lengths}, and slopes depend on them; use results of the same lengths"
            )


def _shown(lengths: Sequence[int]) -> str:
    return f"{lengths[0]}..{lengths[-1]}"


def compare_table(results: Iterable[tuple[str, Any]]) -> Any:
    """A row for each named result: where its slopes lie. Names may be long: they stand above."""
    named = list(results)
    one = named[0][1]
    names = "".join(f"\n{number}: {name}" for number, (name, _) in enumerate(named, start=1))
    table = titled(f"slopes of log std over log N, {one.at}, {_shown(one.lengths)} tokens{names}")
    for name in ("", "layers", "prompts", "series", "std of", "median slope", "lowest", "highest"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, (_, result) in enumerate(named, start=1):
        layers, known = sorted(set(result.layer.tolist())), result.slope[np.isfinite(result.slope)]
        table.add_row(
            f"{number}",
            f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}..{layers[-1]}",
            f"{result.n_prompts.min()}",
            f"{len(result.slope)}",
            "features" if result.tested == "features" else "total",
            *(
                minus(f"{f(known):+.2f}") if len(known) else "–"
                for f in (np.median, np.min, np.max)
            ),
        )
    return table
