"""What the tables of the documents share: saved results, verdicts, numbers as text."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from llmprobe import Result, load_result
from llmprobe.results.mechanism import WORDS

TABLES: dict[str, Callable[[Path], str]] = {}
"""By name; each takes the checkout's folder and gives Markdown."""


def table(make: Callable[[Path], str]) -> Callable[[Path], str]:
    """Register a table under the name of its function."""
    TABLES[make.__name__] = make
    return make


def rows(head: str, lines: Iterable[str]) -> str:
    """A Markdown table; columns whose heading starts with a space are aligned to the right."""
    names = head.split("|")
    rule = "|".join("---:" if name.startswith(" ") else "---" for name in names)
    heading = " | ".join(name.strip() for name in names)
    return "\n".join([f"| {heading} |", f"|{rule}|", *(f"| {line} |" for line in lines)]) + "\n"


def interval(mean: float, low: float, high: float, form: str = "+.1f") -> str:
    """Such as −1.5 [−3.6, +0.7]."""
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]".replace("-", "−")


def minus(text: str) -> str:
    return text.replace("-", "−")


def spans(lengths: Sequence[int], chosen: Sequence[int]) -> str:
    """Lengths in words: neighbours become ranges."""
    runs: list[list[int]] = []
    for place in sorted(lengths.index(length) for length in chosen):
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    words = (
        f"{lengths[run[0]]:,}" if len(run) == 1 else f"{lengths[run[0]]:,} to {lengths[run[-1]]:,}"
        for run in runs
    )
    return ", ".join(words) or "–"


@cache
def saved(folder: Path) -> Result:
    return load_result(folder)


def compared(result: Result, variant: str) -> pd.DataFrame:
    """Differences to the baseline by length, in points, with the verdict on "it helps"."""
    frame = result.compare_frame()
    frame = frame[frame.variant == variant].reset_index(drop=True)
    frame[["difference", "low", "high"]] *= 100
    return frame


def cells(frame: pd.DataFrame) -> list[str]:
    stars = np.where(frame.significant, " *", "")
    columns = (frame.difference, frame.low, frame.high)
    return [
        interval(*row) + star for row, star in zip(zip(*columns, strict=True), stars, strict=True)
    ]


def baseline(result: Result) -> list[str]:
    """Accuracy of the first variant in %, by length."""
    frame = result.summary_frame()
    return [f"{100 * mean:.1f}" for mean in frame[frame.variant == result.variants[0]]["mean"]]


def at(result: Result, variant: str, length: int = 1024) -> tuple[str, str]:
    """The difference to the baseline at a length, and the verdict on "it helps"."""
    frame = compared(result, variant).set_index("length")
    row = frame.loc[length]
    return interval(row.difference, row.low, row.high), row.verdict


def effect(result: Result, name: str, where: str = "without dropout") -> tuple[str, str]:
    """The ratio of KL of one effect in a random search, and the verdict on "it helps"."""
    frame = result.effect_frame().set_index(["effect", "where"])
    row = frame.loc[name, where]
    return f"×{row.effect_size:.2f} [{row.low:.2f}, {row.high:.2f}]", row.verdict


def beyond(result: Result, variant: str, metric: str = "illegal_top1") -> tuple[str, str]:
    """The difference to the raw weights beyond training, and the verdict on "it helps"."""
    row = result.beyond_frame().set_index(["metric", "variant"]).loc[metric, variant]
    scale, form = (100, "+.1f") if metric.startswith("illegal") else (1, "+.3f")
    ends = [scale * row[end] for end in ("difference_low", "difference_high")]
    return interval(scale * row.difference, *ends, form), row.verdict


def brought_back(result: Result, *conditions: str, length: int = 1024) -> str:
    """What changes at test time bring back of the accuracy that the first variant has lost."""
    length = length if length in result.lengths else result.lengths[-1]
    frame = result.repair_frame()
    here = (frame.variant == result.variants[0]) & (frame.length == length)
    found = frame[here].set_index("condition").repaired
    shares = {name: minus(f"{100 * found[name]:z.0f}") for name in conditions}
    return ", ".join(f"{WORDS[name]} {share} %" for name, share in shares.items())
