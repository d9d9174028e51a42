"""What results by layer, head and length share.

A series is one layer, or one head of a layer. Arrays have the shape (series,) or
(series, lengths, ...). "Over prompts" and "over features" name the axis of every statistic.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.results.base import Result, check_shape

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SeriesResult(Result, kind=""):
    """What results by layer, head and length share."""

    lengths: tuple[int, ...]
    layer_type: tuple[str, ...]
    """full, sliding or linear; one for each series."""
    warnings: tuple[str, ...]
    """What weakens the numbers, in words."""
    layer: Integers
    head: Integers
    """−1 where the series is a whole layer."""
    n_prompts: Integers
    """(series, lengths)"""

    by_length: ClassVar[tuple[str, ...]]
    """The columns of the frame, arrays of shape (series, lengths)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengths", "layer_type", "warnings"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        series, lengths = len(self.layer_type), len(self.lengths)
        if not series or not lengths:
            raise ValueError("a result needs a series and a length")
        if not all(isinstance(length, int) and length > 0 for length in self.lengths):
            raise ValueError(f"lengths are {self.lengths!r}, accepted: positive whole numbers")
        if not all(isinstance(word, str) for word in self.warnings):
            raise ValueError("warnings need words")
        if not set(self.layer_type) <= {"full", "sliding", "linear"}:
            raise ValueError(f"layer_type is {self.layer_type!r}, accepted: full, sliding, linear")
        for name in ("layer", "head"):
            check_shape(name, getattr(self, name), (series,))
        for name in ("n_prompts", *self.by_length):
            check_shape(name, getattr(self, name), (series, lengths))

    def to_frame(self) -> "pd.DataFrame":
        """A row for each layer, head and length."""
        import pandas as pd

        n_lengths = len(self.lengths)
        columns: dict[str, Any] = {
            "layer": np.repeat(self.layer, n_lengths),
            "head": self._heads().repeat(n_lengths).reset_index(drop=True),
            "length": np.tile(self.lengths, len(self.layer)),
            "n_prompts": self.n_prompts.ravel(),
        }
        return pd.DataFrame(
            columns | {name: getattr(self, name).ravel() for name in self.by_length}
        )

    def headline(self) -> str:
        what = "layer" if (self.head < 0).all() else "head"
        n_series = f"{len(self.layer)} {what}{'s' * (len(self.layer) != 1)}"
        return (
            f"{self.kind} of {self.provenance.model}: {n_series}, "
            f"lengths {min(self.lengths)}..{max(self.lengths)}, {self.n_prompts.min()} prompts"
        )

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {"warnings": list(self.warnings)}

    def _heads(self) -> "pd.Series[Any]":
        import pandas as pd

        heads = pd.Series(self.head, dtype="Int64")
        return heads.mask(heads < 0)
