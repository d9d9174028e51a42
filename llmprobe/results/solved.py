"""Variants that answer: what is solved, and the reading of their comparisons.

A length is solved by a seed that is right on 90 % of its tests. Kinds of results that count right
answers name the field that holds them (`score`) and have `longest_solved` and `reading()` from
here. This module needs no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmprobe.base.intervals import verdict
from llmprobe.results.trained import Array, VariantsResult, explained, in_points, spoken

if TYPE_CHECKING:
    import pandas as pd

SOLVED = 0.9
"""The share of right answers at which a length is solved."""
AT_CHANCE = "both at chance"
"""The verdict on two variants that are both no better than guessing. They are not equivalent."""
NOTHING_COMPARED = "Both at chance: neither is above guessing there, so nothing is compared."
"""What a reading says of that verdict."""
_ERRORS = 3
"""Standard errors of its tests by which a seed has to be above chance."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SolvingResult(VariantsResult, kind=""):
    """Variants of a network whose tests have one right answer each."""

    score: ClassVar[str]
    """The field with the share of right answers, (variants, seeds, lengths)."""

    def compare_frame(self) -> "pd.DataFrame":
        """A row for each other variant and length: its score minus the first variant's."""
        raise NotImplementedError

    @property
    def longest_solved(self) -> Array:
        """By variant and seed: the longest length solved over the longest of training; 0 if none.

        NaN for a seed without numbers.
        """
        score, lengths = getattr(self, self.score), np.array(self.lengths, dtype=np.float64)
        longest = np.where(score >= SOLVED, lengths, 0).max(axis=-1) / self.train_lengths[1]
        return np.where(np.isnan(score).any(axis=-1), np.nan, longest)

    def remarks(self) -> list[str]:
        return [self.reading()] if len(self.variants) > 1 else []

    def reading(self) -> str:
        """For each variant, at which lengths “it is better than the first” is confirmed."""
        frame, found = self.compare_frame(), []
        for variant, rows in frame.groupby("variant", sort=False):
            words = [(row["verdict"], f"{row['length']}") for row in rows.to_dict("records")]
            claim = f"“{variant} is better than {self.variants[0]}”"
            found.append(f"{claim}: {spoken(words, 'at')} {self.unit}.")
        margin = 100 * self.margins.get(self.score, 0)
        found.append(explained(in_points(margin) if margin else ""))
        if (frame.verdict == AT_CHANCE).any():
            found.append(NOTHING_COMPARED)
        return f"{' '.join(found)} Trained for {self.settings}; {len(self.seeds)} seeds."


def judge(low: float, high: float, *, margin: float, significant: bool, guessed: bool) -> str:
    """The verdict on “it is better”; `guessed`: whether both that are compared are at chance."""
    word = verdict(low, high, margin=margin, significant=significant)
    return AT_CHANCE if guessed and word in ("equivalent", "undecided") else word


def at_chance(score: Array, chance: ArrayLike, n_tests: ArrayLike) -> NDArray[np.bool_]:
    """Where no seed of (variants, seeds, lengths) is above chance by more than its tests' noise.

    `chance` and `n_tests` have a number for each length, or one for all. Seeds without numbers do
    not count; where none has any, it is False.
    """
    share, n = np.asarray(chance), np.asarray(n_tests)
    most = share + _ERRORS * np.sqrt(share * (1 - share) / n)
    above: NDArray[np.bool_] = (score > most).any(axis=1)
    return ~above & np.isfinite(score).any(axis=1)
