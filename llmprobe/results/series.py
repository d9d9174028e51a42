"""What results by layer, head and length share.

A series is one layer, or one head of a layer. Arrays have the shape (series,) or
(series, lengths, ...). "Over prompts" and "over features" name the axis of every statistic.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from llmprobe.results.base import Result, check_shape, command_line, records
from llmprobe.results.tables import MANY, fitting, titled

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_NAMED = 16
"""Query tokens that are written out."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SeriesResult(Result, kind=""):
    """What results by layer, head and length share."""

    lengths: tuple[int, ...]
    layer_type: tuple[str, ...]
    """full, sliding or linear; one for each series."""
    layer: Integers
    head: Integers
    """−1 where the series is a whole layer."""
    n_prompts: Integers
    """(series, lengths)"""

    by_length: ClassVar[tuple[str, ...]]
    """The columns of the frame, arrays of shape (series, lengths)."""
    by_series: ClassVar[tuple[str, ...]] = ()
    """Arrays of shape (series,)."""
    kept: ClassVar[str] = ""
    """The array with values of single prompts; it has the first series only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengths", "layer_type"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        series, lengths = len(self.layer_type), len(self.lengths)
        if not series or not lengths:
            raise ValueError("got no layer or no length, accepted: at least one of each")
        if not all(isinstance(length, int) and length > 0 for length in self.lengths):
            raise ValueError(f"lengths: got {self.lengths!r}, accepted: positive whole numbers")
        if not set(self.layer_type) <= {"full", "sliding", "linear"}:
            raise ValueError(
                f"layer_type: got {self.layer_type!r}, accepted: full, sliding, linear"
            )
        for name in ("layer", "head"):
            check_shape(name, getattr(self, name), (series,))
        for name in ("n_prompts", *self.by_length):
            check_shape(name, getattr(self, name), (series, lengths))

    @property
    def query_tokens(self) -> tuple[tuple[int, str], ...]:
        """Fixed queries by number and quoted text; empty for a free query or an older result."""
        recorded = self.provenance.arguments.get("query_tokens", ())
        try:
            return tuple((int(token), str(text)) for token, text in recorded)
        except (TypeError, ValueError):  # a folder may come from anybody
            return ()

    def query_text(self) -> str:
        """The fixed queries in words; empty for a free query."""
        names = [text or f"id:{token}" for token, text in self.query_tokens]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        what = "query token" if len(names) == 1 else f"{len(names)} query tokens"
        return f"{what}: {', '.join(names[:_NAMED])}{more}" if names else ""

    def to_frame(self) -> "pd.DataFrame":
        """A row for each layer, head and length.

        `head` is an integer column, or NaN if the series are whole layers.
        """
        import pandas as pd

        n_lengths = len(self.lengths)
        columns: dict[str, Any] = {
            "layer": np.repeat(self.layer, n_lengths),
            "head": np.repeat(self._heads(), n_lengths),
            "length": np.tile(self.lengths, len(self.layer)),
            "n_prompts": self.n_prompts.ravel(),
        }
        return pd.DataFrame(
            columns | {name: getattr(self, name).ravel() for name in self.by_length}
        )

    def headline(self) -> str:
        what = "layer" if (self.head < 0).all() else "head"
        n_series = f"{len(self.layer)} {what}{'s' * (len(self.layer) != 1)}"
        few, many = self.n_prompts.min(), self.n_prompts.max()
        n_prompts = f"{few}" if few == many else f"{few} to {many}"
        return (
            f"{self.kind} of {self.provenance.model}: {n_series}, "
            f"lengths {min(self.lengths)}..{max(self.lengths)}, {n_prompts} prompts"
        )

    def command(self) -> str:
        """The probe's command with the arguments of this run."""
        return command_line(self.kind, self.provenance.arguments, self.provenance.model)

    def to_document(self) -> dict[str, Any]:
        queries = [{"id": token, "text": text} for token, text in self.query_tokens]
        return super().to_document() | {
            "query_tokens": queries,
            "rows": self._records(self.to_frame()),
        }

    def _heads(self) -> NDArray[Any]:
        """As frames have them: int64, or float64 if some series are whole layers (NaN)."""
        return self.head if (self.head >= 0).all() else np.where(self.head < 0, np.nan, self.head)

    def _records(self, frame: "pd.DataFrame") -> list[dict[str, Any]]:
        """Rows for JSON: a head is a whole number, or null for a whole layer."""
        rows = records(frame)
        return [row | {"head": None if row["head"] is None else int(row["head"])} for row in rows]

    def select(
        self, *, layer: int | None = None, head: int | None = None, heads: str | None = None
    ) -> Self:
        """The result of some series: a layer, a head of each layer, or `heads`.

        `heads` is "steepest:6" or "flattest:6", after the other two. A test that is corrected for
        the number of series is then corrected for those that are left.
        """
        chosen = np.arange(len(self.layer))
        for name, number in (("layer", layer), ("head", head)):
            there = getattr(self, name)
            if number is not None and number not in there[there >= 0]:
                known = sorted(set(there[there >= 0].tolist()))
                accepted = f"{known[0]} to {known[-1]}" if known else "none: these are whole layers"
                raise ValueError(f"{name}: got {number}, accepted: {accepted}")
            chosen = chosen if number is None else chosen[there[chosen] == number]
        if heads is not None:
            chosen = self._ranked(chosen, heads)
        if not len(chosen):
            raise ValueError(
                f"head: got {head}, but layer {layer} has none of that number; use another"
            )
        return self._only(chosen)

    def _ranked(self, among: Integers, heads: str) -> Integers:
        match = re.fullmatch(r"(steepest|flattest):([1-9]\d{0,5})", heads)
        if match is None:
            raise ValueError(f"heads: got {heads!r}, accepted: steepest:6, flattest:6 (any number)")
        ranks = self.ranking()
        if ranks is None:
            raise ValueError(
                f"heads: got {heads!r}, but {self.kind} results have no slopes; use head"
            )
        known = among[np.isfinite(ranks[among])]
        order = known[np.argsort(ranks[known], kind="stable")]
        n = int(match[2])
        return order[:n] if match[1] == "steepest" else order[::-1][:n]

    def _only(self, chosen: Integers) -> Self:
        names = ("layer", "head", "n_prompts", "nonfinite", *self.by_length, *self.by_series)
        changed = {name: getattr(self, name)[chosen] for name in names if hasattr(self, name)}
        changed["layer_type"] = tuple(self.layer_type[index] for index in chosen)
        if self.kept:
            values = getattr(self, self.kept)
            changed[self.kept] = values[chosen[chosen < len(values)]]
        return replace(self, **changed)

    def first_kept(self) -> NDArray[Any]:
        """Values of single prompts of the first series."""
        values: NDArray[Any] = getattr(self, self.kept)
        if not len(values):
            raise ValueError(
                "head: values of single prompts were kept of the first heads only; use one of these"
            )
        return values[0]

    def ranking(self) -> Array | None:
        """What series are ranked by, the smallest first; None if there is nothing to rank by."""
        return None

    def order(self, sort: str | None = None) -> Integers:
        """The series in the order of a table: `slope`, the steepest first, or `layer`.

        If None, many series are ranked and a few are in the order of the layers.
        """
        ranks = self.ranking()
        if sort not in (None, "slope", "layer"):
            raise ValueError(f"sort: got {sort!r}, accepted: slope, layer")
        if sort == "slope" and ranks is None:
            raise ValueError(f"sort: got 'slope', but {self.kind} results have none; use layer")
        if ranks is None or sort == "layer" or (sort is None and len(ranks) <= MANY):
            return np.arange(len(self.layer))
        return np.argsort(ranks, kind="stable")  # NaN comes last

    def _table(
        self,
        title: str,
        values: Array,
        *,
        ends: Mapping[str, Sequence[str]],
        width: int | None,
        sort: str | None,
        rows: int | None,
    ) -> Any:
        """A row for each series: a statistic by length, then the columns `ends`."""
        starts: dict[str, Any] = {"layer": self.layer}
        if (self.head >= 0).any():
            starts["head"] = self.head
        if set(self.layer_type) != {"full"}:
            starts["type"] = self.layer_type
        cells = [[f"{value:.3g}" for value in row] for row in values]
        shown = fitting(self.lengths, width, cells=cells, others=starts | dict(ends))
        table = titled(f"{title}, by length in tokens" if shown else title)
        for name in starts:
            justify: Any = "left" if name == "type" else "right"
            table.add_column(name, justify=justify, no_wrap=True)
        for name in (*map(str, shown), *ends):
            words = name in ("label", "decides")
            table.add_column(name, justify="left" if words else "right", no_wrap=True)
        places = [self.lengths.index(length) for length in shown]
        for row in self.order(sort)[:rows]:
            first = (f"{column[row]}" for column in starts.values())
            last = (column[row] for column in ends.values())
            table.add_row(*first, *(cells[row][place] for place in places), *last)
        n_shown = len(self.layer) if rows is None else rows
        hidden = {"row": len(self.layer) - n_shown, "length": len(self.lengths) - len(shown)}
        if more := [f"{n} more {what}{'s' * (n > 1)}" for what, n in hidden.items() if n > 0]:
            more = more if shown else [text.replace("more length", "length") for text in more]
            how = " (--rows all)" if hidden["row"] > 0 else ""
            table.caption = f"and {' and '.join(more)} in the saved result{how}"
        return table
