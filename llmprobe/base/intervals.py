"""All mathematics of intervals: slopes, means, paired differences, rank correlations, and tests.

How fast a standard deviation falls with the length: the slope on log-log axes.

Proposition 1 of the vanishing-variance paper bounds the variance of one output feature by a
constant over N, so a head whose attention disperses has slope −1/2 here. The interval comes from
a jackknife over groups of prompts (`jackknife.py`), as lengths that share their prompts make the
points of one fit anything but independent.

One number a seed: its mean with an interval, and the tests that compare two of them in pairs.

    better = estimate(accuracy_with - accuracy_without)   # paired: a difference for each seed
    better.mean, better.low, better.high, paired_p(better)
    ratio = geometric_estimate(positive_ratio(loss_with, loss_without))
    signed_rank_p(differences), rank_correlation(x, y)
    magnitude(drifts, errors)     # of numbers whose signs differ between seeds
    verdict(better.low, better.high, margin=0.01)   # confirmed, reversed, equivalent, undecided

This module needs numpy and scipy only, so saved results can be fitted again without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are first used: showing results needs none
from numpy.typing import ArrayLike, NDArray

from llmprobe.base.jackknife import jackknife

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Decay:
    """Fits of many series at once; every array has the shape of the series."""

    slope: Array
    """d log std / d log N; NaN where a standard deviation is zero or not finite."""
    slope_low: Array
    """Lower end of the confidence interval; NaN where there are fewer than two groups."""
    slope_high: Array
    """Upper end of the confidence interval."""
    r2: Array
    """Share of the variance of log std that the line explains; NaN for two lengths."""
    reason: NDArray[np.str_]
    """Why something is NaN, in words; empty where nothing is."""


def typical_std(std: ArrayLike) -> Array:
    """The geometric mean over features of standard deviations (..., lengths, features).

    Its decay is the mean over features of each feature's own slope. A median would serve the eye
    as well, but a jackknife of a median has intervals that are several times too wide. Features
    that do not vary at some length, or have no finite values there, have no slope and are left
    out. Where none is left, it is zero or NaN at the lengths at which no feature varies: they are
    the cause; or zero at all of them, where each feature fails at another one.
    """
    values = np.asarray(std, dtype=np.float64)
    varies = values > 0
    throughout = varies.all(axis=-2, keepdims=True)
    some_left = np.asarray(throughout.any(axis=-1))
    counted = np.where(some_left[..., None], throughout, varies)
    n_counted = counted.sum(axis=-1)
    logs = np.log(np.where(counted, values, 1.0))
    typical = np.exp(logs.sum(axis=-1) / np.maximum(n_counted, 1))
    known = some_left | (n_counted == 0).any(axis=-1, keepdims=True)
    nothing = np.where(known & np.isnan(values).any(axis=-1), np.nan, 0.0)
    return np.where(known & (n_counted > 0), typical, nothing)


def fit_decay(
    lengths: Sequence[float],
    std: ArrayLike,
    *,
    without: ArrayLike | None = None,
    sizes: Sequence[int] | None = None,
    level: float = 0.95,
) -> Decay:
    """Fit log std = intercept + slope · log length by least squares.

    `std` has shape (..., lengths). `without` has shape (groups, ..., lengths): the same standard
    deviations computed from all prompts but those of one group; `sizes` are the groups' numbers of
    prompts, equal by default. Without groups, or with one, the interval is NaN and `reason` says
    so. Fewer than two lengths are a `ValueError`.
    """
    if len(set(lengths)) < max(2, len(lengths)) or min(lengths) < 1:
        raise ValueError(
            f"fit_decay: got lengths {lengths!r}; needs at least two, distinct, positive"
        )
    x = np.log(np.asarray(lengths, dtype=np.float64))
    y = np.asarray(std, dtype=np.float64)
    if y.shape[-1:] != x.shape:
        raise ValueError(f"fit_decay: std has shape {y.shape}, its last axis must be {len(x)} long")
    if not 0 < level < 1:
        raise ValueError(f"fit_decay: got level {level}, accepted: between 0 and 1, such as 0.95")

    slope, r2 = _least_squares(x, log_positive(y))
    reason = _degenerate(lengths, y)
    if len(x) == 2:
        r2 = np.full_like(slope, np.nan)
        reason = _add(reason, np.isfinite(slope), "two lengths: R² is undefined")

    flat = np.isfinite(slope) & ~np.isfinite(r2)
    if len(x) > 2:
        reason = _add(reason, flat, "a constant: R² is undefined")

    low, high = np.full_like(slope, np.nan), np.full_like(slope, np.nan)
    n_groups = 0 if without is None else len(np.asarray(without))
    if n_groups < 2:
        reason = _add(reason, np.isfinite(slope), "fewer than two groups: no interval")
    else:
        left_out = np.asarray(without, dtype=np.float64)
        if left_out.shape[1:] != y.shape:
            raise ValueError(
                f"fit_decay: without has shape {left_out.shape}, needs (groups, *{y.shape})"
            )
        if sizes is not None and (len(sizes) != n_groups or min(sizes) < 1):
            raise ValueError(f"fit_decay: got sizes {sizes!r}, needs {n_groups} positive numbers")
        replicates, _ = _least_squares(x, log_positive(left_out))
        low, high = jackknife(slope, replicates, sizes).ends(level)
        reason = _add(
            reason,
            np.isfinite(slope) & ~np.isfinite(low),
            "zero variance where one group is left out: no interval",
        )
    return Decay(slope, low, high, r2, reason)


def _least_squares(x: Array, y: Array) -> tuple[Array, Array]:
    dx = x - x.mean()
    dy = y - y.mean(axis=-1, keepdims=True)
    slope = dy @ dx / (dx @ dx)
    total = (dy**2).sum(axis=-1)
    residual = ((dy - slope[..., None] * dx) ** 2).sum(axis=-1)
    # A constant series is fitted perfectly by the flat line, but there is nothing to explain.
    r2 = np.where(total > 0, 1 - residual / np.where(total > 0, total, 1), np.nan)
    return slope, np.where(np.isfinite(slope), r2, np.nan)


def log_interval(
    values: Array, without: Array | None, sizes: Sequence[int], *, level: float = 0.95
) -> tuple[Array, Array]:
    """Ends of the interval of positive numbers, by a jackknife of their logarithms.

    `without` and `sizes` are as in `fit_decay`; without groups the ends are NaN.
    """
    if without is None or len(without) < 2:
        return np.full_like(values, np.nan), np.full_like(values, np.nan)
    low, high = jackknife(log_positive(values), log_positive(without), sizes).ends(level)
    return np.exp(low), np.exp(high)


def log_positive(values: Array) -> Array:
    """The logarithm; NaN where a value is not positive or not finite."""
    return np.log(np.where(np.isfinite(values) & (values > 0), values, np.nan))


def divide(a: Array, b: Array) -> Array:
    """a / b; NaN where b is 0."""
    return a / np.where(b == 0, np.nan, b)


def independent_difference(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array, Array]:
    """a − b with its interval, of two independent numbers with theirs, each (value, low, high).

    Half widths add up as standard errors do. If the same prompts are behind both numbers, they tend
    to err in the same direction, and the interval is too wide rather than too narrow.
    """
    (x, *x_ends), (y, *y_ends) = np.asarray(a, np.float64), np.asarray(b, np.float64)
    half = np.hypot(*((high - low) / 2 for low, high in (x_ends, y_ends)))
    return x - y, x - y - half, x - y + half


def positive_ratio(a: Array, b: Array) -> Array:
    """a / b where both are positive, so that it has a logarithm; else NaN."""
    positive = (a > 0) & (b > 0)
    return np.where(positive, a / np.where(positive, b, 1), np.nan)


def _degenerate(lengths: Sequence[float], std: Array) -> NDArray[np.str_]:
    reason = np.full(std.shape[:-1], "", dtype=np.str_)
    for number, length in reversed(list(enumerate(lengths))):
        value = std[..., number]
        reason = np.where(value == 0, f"zero variance at length {length}", reason)
        reason = np.where(~np.isfinite(value), f"no finite variance at length {length}", reason)
    return np.where((std == 0).all(axis=-1), "nothing varies at every length", reason)


def _add(reason: NDArray[np.str_], where: NDArray[np.bool_], text: str) -> NDArray[np.str_]:
    joined = np.where(reason == "", text, np.char.add(np.char.add(reason, "; "), text))
    return np.where(where, joined, reason)


LEVEL = 0.05
_ROUNDING = 1e-12
"""A spread that is this much smaller than the values counts as none: shares are rounded."""
_MIN_PAIRS = 6
"""With fewer, Wilcoxon's test cannot reach 5 %; with fewer than 9, not after Holm's correction."""
_RESAMPLES = 2000


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % t interval; NaN where too few seeds are known."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


def estimate(values: ArrayLike) -> Estimate:
    """The mean of one number a seed; those that are not finite are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    n = len(known)
    if n < 2:
        return Estimate(float(known[0]) if n else np.nan, np.nan, np.nan, np.nan, n)
    mean, sd = float(known.mean()), float(known.std(ddof=1))
    if sd <= _ROUNDING * np.abs(known).max():
        sd = 0.0
    half = float(scipy.special.stdtrit(n - 1, 1 - LEVEL / 2)) * sd / n**0.5
    return Estimate(mean, sd, mean - half, mean + half, n)


def geometric_estimate(values: ArrayLike) -> Estimate:
    """The geometric mean of positive numbers, with the t interval of their logarithms.

    `sd` is the geometric standard deviation, a factor. Numbers that are not positive or not finite
    are left out.
    """
    *logs, n = estimate(log_positive(np.asarray(values, dtype=np.float64)))
    with np.errstate(over="ignore"):  # two numbers that differ wildly: the upper end is infinite
        mean, sd, low, high = np.exp(np.array(logs)).tolist()
    return Estimate(mean, sd, low, high, n)


def proportion_estimate(values: ArrayLike) -> Estimate:
    """The share of ones among zeros and ones, with Wilson's 95 % interval, which 0 and 1 have too.

    What is not finite is left out.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    n = len(known)
    if not n:
        return Estimate(np.nan, np.nan, np.nan, np.nan, 0)
    share, z = float(known.mean()), float(scipy.special.ndtri(1 - LEVEL / 2))
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    sd = (share * (1 - share)) ** 0.5
    return Estimate(share, sd, max(0.0, center - half), min(1.0, center + half), n)


def ratio_estimate(above: ArrayLike, below: ArrayLike) -> Estimate:
    """Σ above / Σ below over prompts, such as bits per byte, with a t interval by linearization.

    The variance is that of the residuals above − ratio · below (Cochran, Sampling Techniques, eq.
    6.9). Pairs that are not finite are left out. NaN where nothing is below; no interval where
    fewer than two prompts have something below.
    """
    a, b = (np.asarray(x, dtype=np.float64) for x in (above, below))
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    n, total = len(a), b.sum()
    if not total > 0:
        return Estimate(np.nan, np.nan, np.nan, np.nan, n)
    ratio = float(a.sum() / total)
    if (b > 0).sum() < 2:
        return Estimate(ratio, np.nan, np.nan, np.nan, n)
    _, sd, low, high, _ = estimate((a - ratio * b) * n / total)
    return Estimate(ratio, sd, ratio + low, ratio + high, n)


def paired_p(difference: Estimate) -> float:
    """Of the two-sided t test that the mean difference is 0; NaN where it does not vary."""
    if not difference.sd > 0:
        return np.nan
    t = difference.mean / (difference.sd / difference.n**0.5)
    return float(2 * scipy.special.stdtr(difference.n - 1, -abs(t)))


def detectable(difference: Estimate, power: float = 0.8) -> float:
    """The smallest mean difference that the same two-sided t test finds with this power.

    By the usual approximation (t of the level + t of the power) · standard error.
    """
    if not difference.n > 1:
        return np.nan
    df = difference.n - 1
    factor = scipy.special.stdtrit(df, 1 - LEVEL / 2) + scipy.special.stdtrit(df, power)
    return float(factor) * difference.sd / difference.n**0.5


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


def signed_rank_p(differences: Array) -> float:
    """Of Wilcoxon's signed-rank test; NaN for fewer than 6 differences, or if all are 0."""
    from scipy import stats

    if len(differences) < _MIN_PAIRS or not differences.any():
        return np.nan
    return float(stats.wilcoxon(differences).pvalue)


def rank_correlation(x: Array, y: Array) -> tuple[float, float, float, float]:
    """Spearman's ρ, the ends of its 95 % interval, and p.

    The interval is the percentile interval of 2000 resamples. All are NaN for fewer than 6 pairs,
    or if x or y does not vary.
    """
    from scipy import stats

    x, y = np.asarray(x), np.asarray(y)  # columns of a frame too
    if len(x) < _MIN_PAIRS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan, np.nan, np.nan, np.nan
    order = np.lexsort((y, x))  # the same resamples in whatever order the pairs came
    draws = order[np.random.default_rng(0).integers(len(x), size=(_RESAMPLES, len(x)))]
    a, b = (stats.rankdata(values[draws], axis=1) - (len(x) + 1) / 2 for values in (x, y))
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    resampled = (a * b).sum(axis=1) / np.where(scale > 0, scale, np.nan)
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    found = stats.spearmanr(x, y)
    return float(found.statistic), float(low), float(high), float(found.pvalue)


class Magnitude(NamedTuple):
    """How large numbers of either sign are over seeds; their mean would cancel."""

    rms: float
    """The root mean square."""
    low: float
    high: float
    noise: float
    """The root mean square that their errors alone would give."""
    p: float
    """Of the test that there is nothing but noise; NaN where errors are not known."""
    n: int


def magnitude(values: ArrayLike, errors: ArrayLike) -> Magnitude:
    """The root mean square of one number a seed, whose standard errors are `errors`.

    The 95 % interval is that of the scale of normal numbers around 0 (chi-square): exact for
    those, too wide if their mean is not 0. The test is the chi-square test of values / errors.
    Numbers that are not finite are left out.
    """
    x, e = (np.asarray(v, dtype=np.float64) for v in (values, errors))
    known = np.isfinite(x)
    x, e, n = x[known], e[known], int(known.sum())
    if n < 2:
        return Magnitude(float(abs(x[0])) if n else np.nan, np.nan, np.nan, np.nan, np.nan, n)
    square = float((x**2).sum())
    ends = (scipy.special.chdtri(n, side) for side in (LEVEL / 2, 1 - LEVEL / 2))
    low, high = (float(np.sqrt(square / end)) for end in ends)
    tested = bool((np.isfinite(e) & (e > 0)).all())
    noise = float(np.sqrt((e**2).mean())) if np.isfinite(e).all() else np.nan
    p = float(scipy.special.chdtrc(n, ((x / e) ** 2).sum())) if tested else np.nan
    return Magnitude((square / n) ** 0.5, low, high, noise, p, n)


VERDICTS = ("confirmed", "reversed", "equivalent", "undecided")


def verdict(
    low: float, high: float, *, margin: float, claim: int = 1, significant: bool = True
) -> str:
    """What the 95 % interval of a difference says of a claim: one of `VERDICTS`.

    `claim` is the claimed sign of the difference, `margin` the largest difference that does not
    matter, set before the numbers were seen. An interval within ± margin is equivalent, on
    whichever side of 0 it lies: these are two one-sided tests, each at 2.5 %. Otherwise an interval
    on the claimed side of 0 is confirmed, one on the other side reversed, both only where a test
    corrected for its neighbors agrees (`significant`). All else is undecided.
    """
    if claim not in (-1, 1) or not margin >= 0:
        raise ValueError(f"verdict: got claim {claim}, margin {margin}; accepted: ±1, 0 or more")
    if -margin < low <= high < margin:
        return "equivalent"
    if significant and (low > 0 or high < 0):
        return "confirmed" if (low > 0) == (claim > 0) else "reversed"
    return "undecided"
