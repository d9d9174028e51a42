"""One number a seed: its mean with an interval, and the tests that compare two of them in pairs.

    better = estimate(accuracy_with - accuracy_without)   # paired: a difference for each seed
    better.mean, better.low, better.high, paired_p(better)

This module needs no torch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.05
_ROUNDING = 1e-12
"""A spread that is smaller than this, beside the values, is none: shares are rounded."""


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % t interval; NaN where too few seeds are known."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


def estimate(values: ArrayLike) -> Estimate:
    """The mean of one number a seed; those that are not finite are left out."""
    from scipy import special

    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    n = len(known)
    if n < 2:
        return Estimate(float(known[0]) if n else np.nan, np.nan, np.nan, np.nan, n)
    mean, sd = float(known.mean()), float(known.std(ddof=1))
    if sd <= _ROUNDING * np.abs(known).max():
        sd = 0.0
    half = float(special.stdtrit(n - 1, 1 - LEVEL / 2)) * sd / n**0.5
    return Estimate(mean, sd, mean - half, mean + half, n)


def paired_p(difference: Estimate) -> float:
    """Of the two-sided t test that the mean difference is 0; NaN where it does not vary."""
    from scipy import special

    if not difference.sd > 0:
        return np.nan
    t = difference.mean / (difference.sd / difference.n**0.5)
    return float(2 * special.stdtr(difference.n - 1, -abs(t)))


def holm(p: ArrayLike, level: float = LEVEL) -> NDArray[np.bool_]:
    """Which of several hypotheses fall when the chance of one false alarm is `level` (Holm 1979).

    NaN is a hypothesis that was not tested: it stands, and the others do not pay for it.
    """
    values = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(np.isfinite(values))
    order = tested[np.argsort(values[tested])]
    fall = values[order] <= level / np.arange(len(order), 0, -1)
    rejected = np.zeros(len(values), dtype=bool)
    rejected[order] = np.logical_and.accumulate(fall)  # the first that stands saves the rest
    return rejected
