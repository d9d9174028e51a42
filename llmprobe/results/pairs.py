"""The same layers and heads of two variance results, side by side."""

from typing import TYPE_CHECKING, Any

import numpy as np

from llmprobe.base.intervals import independent_difference
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


def pair_table(frame: "pd.DataFrame", *, rows: int = MAX_ROWS) -> Any:
    """The pairs to print; many are ranked by the size of the difference."""
    table = titled("slopes of the same layers and heads")
    heads = frame["head"].notna().any()
    for name in ("layer", *(["head"] if heads else []), "slope 1", "slope 2", "2 - 1", "95 % CI"):
        table.add_column(name, justify="right", no_wrap=True)
    if len(frame) > MANY:
        frame = frame.sort_values("difference", key=lambda x: -np.abs(x), kind="stable")
    for row in frame.head(rows).to_dict("records"):
        first = [f"{row['layer']:.0f}", *([f"{row['head']:.0f}"] if heads else [])]
        interval = f"{row['difference_low']:+.2f} to {row['difference_high']:+.2f}"
        slopes = (f"{row[name]:+.2f}" for name in ("slope_1", "slope_2", "difference"))
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
