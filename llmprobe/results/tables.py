"""Parts of terminal tables that several kinds of results share.

Each kind builds its own table (`Result.table`) from these, so that an interval, a p value or a
count looks the same in all of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from llmprobe.base.lengths import spread

MAX_ROWS = 20
MANY = 10
"""More series than this are ranked, in tables and figures."""


def titled(title: str | None = None) -> Table:
    """An empty table in the style of all of ours; its title is never read as markup."""
    return Table(
        title=None if title is None else escape(title),
        title_justify="left",
        caption_justify="left",
        box=None,
        pad_edge=False,
    )


def fitting(
    lengths: Sequence[int],
    width: int | None,
    *,
    cells: Sequence[Sequence[str]],
    others: Mapping[str, Sequence[Any]],
) -> list[int]:
    """The lengths whose columns fit a terminal: all, or some spread evenly, or none.

    `cells` are those of the lengths by row, `others` the other columns by their headings.
    """
    if width is None:
        return list(lengths)
    taken = sum(
        max(len(name), *(len(f"{x}") for x in column)) + 2 for name, column in others.items()
    )
    widest = max(len(text) for row in (map(str, lengths), *cells) for text in row) + 2
    room = (width + 2 - taken) // widest  # the last column needs no gap
    return spread(lengths, room) if room > 1 else list(lengths)[: max(0, room)]


def heading(variant: str) -> str:
    """A variant's name over its column, broken at each plus; never read as markup."""
    return escape(variant).replace("+", "+\n")


def mean_cell(mean: float, sd: float) -> str:
    """Mean ± standard deviation, or the mean alone if there is one seed."""
    return f"{mean:.1f}" if np.isnan(sd) else f"{mean:.1f} ± {sd:.1f}"


def interval_cell(row: Mapping[Any, Any], form: str, *, scale: float = 1) -> str:
    """`low` and `high` of a frame's row, in the given form."""
    low, high = scale * row["low"], scale * row["high"]
    return "–" if np.isnan(low) else form.format(low, high)


def p_cell(p: float, *, significant: bool = False) -> str:
    """A p value, with a star if it is significant."""
    text = "–" if np.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
    return f"{text} *" if significant else text


def signed_cells(values: Iterable[float]) -> list[str]:
    return [f"{value:+.2f}" for value in values]


def span_cells(low: Iterable[float], high: Iterable[float]) -> list[str]:
    """The ends of intervals of signed numbers."""
    return [f"{a:+.2f} to {b:+.2f}" for a, b in zip(low, high, strict=True)]


def count(numbers: Collection[int], what: str) -> str:
    """Such as `8 seeds`, or `7 to 8 seeds` where numbers differ."""
    text = span(numbers)
    return f"{text} {what}" if text == "1" else f"{text} {what}s"


def span(numbers: Collection[int]) -> str:
    """The smallest and the largest number, or the one that all are."""
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
