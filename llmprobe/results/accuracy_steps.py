"""Accuracy at steps before the end of a training, for `accuracy`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def by_steps(result: Any) -> "pd.DataFrame":
    """The summary and the comparisons of a `SyntheticResult` as of each scored step."""
    import pandas as pd

    parts = []
    for n, step in enumerate((*result.score_steps, result.steps)):
        early = n < len(result.score_steps)
        there = replace(result, accuracy=result.step_accuracy[:, :, n]) if early else result
        found = there.summary_frame().merge(
            there.compare_frame().drop(columns=["reference", "n_seeds"]),
            on=["variant", "length"],
            how="left",
            suffixes=("", "_of_difference"),
        )
        found.insert(1, "step", step)
        parts.append(found)
    names = {"low_of_difference": "difference_low", "high_of_difference": "difference_high"}
    return pd.concat(parts, ignore_index=True).rename(columns=names)
