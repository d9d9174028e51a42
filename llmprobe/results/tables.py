"""Parts of terminal tables that several kinds of results share.

Each kind builds its own table (`Result.table`) from these, so that an interval, a p value or a
count looks the same in all of them.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from llmprobe.base.lengths import spread
from llmprobe.base.signs import minus

MAX_ROWS = 20
MANY = 10
"""More series than this are ranked, in tables and figures."""


class _Titled(Table):
    """A table whose title and caption wrap at the width of the screen, not of its columns."""

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        bare = copy.copy(self)
        bare.title = bare.caption = None
        if self.title:
            yield Text.from_markup(str(self.title), style="table.title")
        yield from super(_Titled, bare).__rich_console__(console, options)
        if self.caption:
            yield Text.from_markup(str(self.caption), style="table.caption")


def titled(title: str | None = None) -> Table:
    """An empty table in the style of all of ours; its title is never read as markup."""
    return _Titled(title=None if title is None else escape(title), box=None, pad_edge=False)


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
    return "–" if np.isnan(low) else minus(form.format(low, high))


def p_cell(p: float, *, significant: bool = False) -> str:
    """A p value, with a star if it is significant."""
    text = "–" if np.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
    return f"{text} *" if significant else text


def signed_cells(values: Iterable[float]) -> list[str]:
    return [minus(f"{value:+.2f}") for value in values]


def span_cells(low: Iterable[float], high: Iterable[float]) -> list[str]:
    """The ends of intervals of signed numbers."""
    return [minus(f"{a:+.2f} to {b:+.2f}") for a, b in zip(low, high, strict=True)]


def count(numbers: Collection[int], what: str) -> str:
    """Such as `8 seeds`, or `7 to 8 seeds` where numbers differ."""
    text = span(numbers)
    return f"{text} {what}" if text == "1" else f"{text} {what}s"


def span(numbers: Collection[int]) -> str:
    """The smallest and the largest number, or the one that all are."""
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
