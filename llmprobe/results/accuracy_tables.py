"""Terminal tables of `accuracy`: a variant against the first one, slopes of tails, drifts."""

from typing import TYPE_CHECKING, Any

import numpy as np

from llmprobe.base.signs import minus
from llmprobe.results.tables import heading, interval_cell, mean_cell, p_cell, titled

if TYPE_CHECKING:
    import pandas as pd


def against(variant: str, summary: "pd.DataFrame", comparisons: "pd.DataFrame") -> Any:
    """A row per length: accuracy of the reference and of the variant, and their difference."""
    table = titled()
    table.add_column("length", justify="right", no_wrap=True)
    shown = list(dict.fromkeys([*comparisons.reference, variant]))
    for name in shown:
        table.add_column(heading(name), justify="right")
    for name in ("diff.", "95 % CI", "p", "verdict") if len(shown) > 1 else ():
        left = name in ("p", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    accuracy = summary.set_index(["variant", "length"])[["mean", "sd"]] * 100
    ends = {
        row["length"]: (
            minus(f"{100 * row['difference']:+.1f}"),
            interval_cell(row, "[{:+.1f}, {:+.1f}]", scale=100),
            p_cell(row["p"], significant=row["significant"]),
            row["verdict"],
        )
        for row in comparisons.to_dict("records")
    }
    for length in dict.fromkeys(summary.length):
        means = (accuracy.loc[(name, length)] for name in shown)
        cells = (mean_cell(m["mean"], m["sd"]) for m in means)
        table.add_row(f"{length}", *cells, *ends.get(length, ()))
    return table


def tail_table(tail: "pd.DataFrame", longest: int, reference: int) -> Any:
    """A row per variant: the slope of the variance of single features."""
    from rich.text import Text

    table = titled(
        "variance of a feature over sets: slope of log variance over log N for N ≥ "
        f"{tail.first_length[0]}"
    )
    table.add_column("variant", overflow="fold")
    for name in ("slope", "95 % CI", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    ratio = f"{longest} / {reference}"
    table.add_column(f"global variance\n{ratio}", justify="right")
    for row in tail.to_dict("records"):
        table.add_row(
            Text(row["variant"]),
            minus(f"{row['slope']:+.2f}"),
            interval_cell(row, "{:+.2f} to {:+.2f}"),
            f"{row['n_seeds']}",
            f"{row['global_variance_ratio']:.2g}",
        )
    return table


def drift_table(drift: "pd.DataFrame", reference: int) -> Any:
    """A row per variant: the drift of the global mean at the longest length."""
    from rich.text import Text

    table = titled(
        f"drift of the global mean from {reference} to {drift.length.iloc[0]} items, over the "
        f"global variance at {reference}: root mean square over seeds; noise: what the "
        "finite number of sets alone would give; p of the test against it"
    )
    table.add_column("variant", overflow="fold")
    for name in ("drift", "95 % CI", "noise", "p", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in drift.to_dict("records"):
        table.add_row(
            Text(row["variant"]),
            f"{row['rms']:.2g}",
            interval_cell(row, "{:.2g} to {:.2g}"),
            "–" if np.isnan(row["noise"]) else f"{row['noise']:.2g}",
            p_cell(row["p"]),
            f"{row['n_seeds']}",
        )
    return table
