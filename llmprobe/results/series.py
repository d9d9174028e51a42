"""What results by layer, head and length share.

A series is one layer, or one head of a layer. Arrays have the shape (series,) or
(series, lengths, ...). "Over prompts" and "over features" name the axis of every statistic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

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
        shown = fitting(self.lengths, width)
        starts: dict[str, Any] = {"layer": self.layer}
        if (self.head >= 0).any():
            starts["head"] = self.head
        if set(self.layer_type) != {"full"}:
            starts["type"] = self.layer_type
        table = titled(title)
        for name in starts:
            table.add_column(name, justify="left" if name == "type" else "right")
        for name in (*map(str, shown), *ends):
            table.add_column(name, justify="right", no_wrap=True)
        chosen = values[:, [self.lengths.index(length) for length in shown]]
        for row in self.order(sort)[:rows]:
            first = (f"{column[row]}" for column in starts.values())
            last = (column[row] for column in ends.values())
            table.add_row(*first, *(f"{value:.3g}" for value in chosen[row]), *last)
        n_shown = len(self.layer) if rows is None else rows
        hidden = {"rows": len(self.layer) - n_shown, "lengths": len(self.lengths) - len(shown)}
        if more := [f"{n} more {what}" for what, n in hidden.items() if n > 0]:
            how = " (--rows all)" if hidden["rows"] > 0 else ""
            table.caption = f"and {' and '.join(more)} in the saved result{how}"
        return table
