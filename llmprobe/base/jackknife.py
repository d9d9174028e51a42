"""Intervals and tests by leaving out one group of prompts at a time.

    found = jackknife(value, replicates, sizes)
    found.ends(), found.p_differs(0), found.p_within(-0.5, margin=0.1)

A jackknife knows nothing of the distribution, and it is honest about lengths that share their
prompts. Its weak point is heavy tails: the standard error itself is then known badly. So the t
distribution has fewer degrees of freedom the more the groups' contributions are spread out, by
Satterthwaite's rule with the unbiased kurtosis of the contributions: `df` = 2 / (G₂/G + 2/(G − 1)),
at most G − 1 for G groups.

A kurtosis of 16 groups is known badly as well: a sample without the rare prompts does not show
them. `together` lets the heads of a layer help each other: none has tails lighter than the mean of
all. `docs/coverage.md` compares the ways and has the coverage.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when they are first used: showing results needs none
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_ENOUGH = 4
"""Groups that a kurtosis needs."""


@dataclass(frozen=True)
class Jackknifed:
    """Numbers with their standard errors; every array has the shape of the numbers."""

    value: Array
    se: Array
    """NaN where it is not known."""
    df: Array
    """Degrees of freedom of t, reduced by heavy tails."""
    kurtosis: Array
    """Unbiased excess kurtosis of the groups' contributions; NaN where it is not known."""

    def ends(self, level: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper end of the confidence interval."""
        half = scipy.special.stdtrit(self.df, (1 + level) / 2) * self.se
        return self.value - half, self.value + half

    def p_differs(self, other: ArrayLike = 0.0) -> Array:
        """Of the two-sided test that the number is `other`; NaN where nothing varies."""
        return 2 * scipy.special.stdtr(self.df, -np.abs(self._t(np.asarray(other, np.float64))))

    def p_within(self, center: ArrayLike, margin: float) -> Array:
        """Of the test that the number is `margin` or more away from `center` (two one-sided tests).

        A small p says that it is nearer: the number is equivalent to `center`.
        """
        middle = np.asarray(center, np.float64)
        below = scipy.special.stdtr(self.df, -self._t(middle - margin))
        above = scipy.special.stdtr(self.df, self._t(middle + margin))
        p: Array = np.maximum(below, above)
        return p

    def _t(self, other: Array) -> Array:
        return (self.value - other) / np.where(self.se > 0, self.se, np.nan)


def jackknife(
    value: ArrayLike,
    replicates: ArrayLike,
    sizes: ArrayLike | None = None,
    *,
    together: bool = False,
) -> Jackknifed:
    """Of numbers, and the same computed from all prompts but those of one group.

    `replicates` has one more axis in front, the groups; `sizes` are their numbers of prompts, equal
    by default. `together`: along the first axis of the numbers are series of the same prompts, and
    where one's tails are lighter than the mean of all, it gets that. For groups of unequal size:
    Busing, Meijer and van der Leeden (1999).
    """
    values, left_out = np.asarray(value, np.float64), np.asarray(replicates, np.float64)
    n_groups = len(left_out)
    counts = np.ones(n_groups) if sizes is None else np.asarray(sizes, np.float64)
    weight = (counts.sum() / counts).reshape(-1, *[1] * values.ndim)
    pseudo = weight * values - (weight - 1) * left_out
    center = n_groups * values - ((1 - 1 / weight) * left_out).sum(axis=0)
    parts = (pseudo - center) / np.sqrt(weight - 1)
    variance = (parts**2).mean(axis=0)
    own = tails = _kurtosis(parts)
    if together:
        known = np.isfinite(own)
        mean = np.where(known, own, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        tails = np.fmax(own, mean)
    # Below zero, where tails are lighter than Gaussian, nothing is gained.
    df = (n_groups - 1) / (1 + np.fmax(tails, 0) * (n_groups - 1) / (2 * n_groups))
    return Jackknifed(values, np.sqrt(variance), df, own)


def _kurtosis(parts: Array) -> Array:
    n = len(parts)
    if n < _ENOUGH:
        return np.full(parts.shape[1:], np.nan)
    spread = parts - parts.mean(axis=0)
    second, fourth = (spread**2).mean(axis=0), (spread**4).mean(axis=0)
    excess = fourth / np.where(second > 0, second, np.nan) ** 2 - 3
    unbiased: Array = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6)
    return unbiased
