"""Terminal tables of `set_search`: effects by length, groups of settings, rank correlations."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmprobe.base.signs import minus
from llmprobe.results.tables import heading, interval_cell, p_cell, titled

if TYPE_CHECKING:
    import pandas as pd


def effect_table(effects: "pd.DataFrame") -> Any:
    """A row per part and multiple."""
    from rich.text import Text

    table = titled(
        "accuracy with a part minus without, in points, paired within settings, 95 % CI; settings "
        "that gain and that lose more than the margin; p of Wilcoxon's test (* significant after "
        "Holm's correction)"
    )
    table.add_column("part", overflow="fold")
    for name in ("length", "diff.", "95 % CI", "gain", "lose", "of"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("p", "verdict"):
        table.add_column(name, no_wrap=True)
    before = None
    for row in effects.to_dict("records"):
        table.add_row(
            Text("" if row["variant"] == before else row["variant"]),
            f"{row['times']}×",
            minus(f"{100 * row['difference']:+.1f}"),
            interval_cell(row, "[{:+.1f}, {:+.1f}]", scale=100),
            f"{row['better']}",
            f"{row['worse']}",
            f"{row['n_settings']}",
            p_cell(row["p"], significant=row["significant"]),
            row["verdict"],
        )
        before = row["variant"]
    return table


def tree_table(tree: "pd.DataFrame") -> Any:
    """A row per part and group of settings."""
    from rich.text import Text

    table = titled(
        "groups of settings whose effects differ, mean change beyond the training lengths in "
        "points; p of the split that made the group (permutations)"
    )
    for name in ("part", "settings"):
        table.add_column(name, overflow="fold")
    for name in ("n", "diff.", "95 % CI", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in tree.to_dict("records"):
        table.add_row(
            Text(row["variant"]),
            Text(row["settings"]),
            f"{row['n_settings']}",
            minus(f"{100 * row['difference']:+.1f}"),
            interval_cell(row, "[{:+.1f}, {:+.1f}]", scale=100),
            p_cell(row["p"]),
        )
    return table


def correlation_table(correlations: "pd.DataFrame") -> Any:
    """A row per setting, a column per part."""
    table = titled(
        "Spearman's rank correlation of each setting with a part's effect (* significant after "
        "Holm's correction)"
    )
    table.add_column("setting", no_wrap=True)
    parts = list(dict.fromkeys(correlations.variant))
    for name in parts:
        table.add_column(heading(name), justify="right", overflow="fold")
    for parameter, rows in correlations.groupby("parameter", sort=False):
        found = {row["variant"]: row for row in rows.to_dict("records")}
        cells = [
            "–"
            if np.isnan(found[name]["rho"])
            else minus(f"{found[name]['rho']:+.2f}{'*' if found[name]['significant'] else ''}")
            for name in parts
        ]
        table.add_row(str(parameter), *cells)
    return table


def drawn_from(ranges: Mapping[str, str]) -> Any:
    """What each setting was drawn from, in a line."""
    from rich.text import Text

    words = "; ".join(f"{name} {range_}" for name, range_ in ranges.items())
    return Text(f"drawn: {words}", style="italic")
