"""Rank correlations over prompts, of many series at once, within each length.

    rho, low, high = correlate_ranks(right, attention)      # (prompts, lengths), (..., series)

Longer prompts are harder and have smaller weights, so a correlation over all of them would mostly
say that. Ranks are therefore taken among the prompts of one length, and then pooled.

Rows need not be prompts. Where several belong to one unit of observation, such as the variants of a
seed, `units` says which, and the interval is over units.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmprobe.base.jackknife import jackknife

Array = NDArray[np.float64]
_RESAMPLES = 2000
_FEWEST = 6
"""Rows for a correlation, and units for its interval."""
_LARGEST = 1 - 1e-12
"""Of a correlation, so that Fisher's z is finite."""


def correlate_ranks(
    y: Array, x: Array, *, units: ArrayLike | None = None
) -> tuple[Array, Array, Array]:
    """Spearman's ρ of y (prompts, lengths) with each series of x (prompts, lengths, series).

    Also the ends of its 95 % interval: percentiles over resampled prompts, each with all of its
    lengths. With `units` (prompts,), which are few, it is that of a jackknife over units on
    Fisher's z: percentiles of 8 units cover 87 %. All are NaN for fewer than 6 prompts, or where y
    or x varies at no length; the ends also for fewer than 6 units.
    """
    nothing = np.full(x.shape[2], np.nan)
    known = np.isfinite(y).all(axis=1) & np.isfinite(x).all(axis=(1, 2))
    y, x = y[known], x[known]
    if len(y) < _FEWEST:
        return nothing, nothing.copy(), nothing.copy()
    a, b = _centered_ranks(y)[..., None], _centered_ranks(x)
    varies = (a**2).sum(axis=0, keepdims=True) > 0  # where y is constant, x says nothing about it
    b = b * varies
    sums = np.stack(
        [np.broadcast_to(z.sum(axis=1), (len(y), x.shape[2])) for z in (a * b, a**2, b**2)]
    )
    found = _ratio(*sums.sum(axis=1))
    if units is None:
        return found, *_resampled(sums)
    return found, *_left_out(found, sums, np.asarray(units)[known])


def _resampled(sums: Array) -> tuple[Array, Array]:
    """Percentiles over resampled rows of (3, rows, series)."""
    n = sums.shape[1]
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    resampled = _ratio(*(draws @ z for z in sums))
    unknown = np.isnan(resampled).mean(axis=0) > 0.5
    low, high = np.nanpercentile(np.where(unknown, 0.0, resampled), [2.5, 97.5], axis=0)
    return np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


def _left_out(found: Array, sums: Array, units: NDArray[Any]) -> tuple[Array, Array]:
    """Ends of a jackknife over the units of the rows."""
    own = units == np.unique(units)[:, None]
    if len(own) < _FEWEST:
        return np.full_like(found, np.nan), np.full_like(found, np.nan)
    rest = sums.sum(axis=1)[:, None] - own.astype(np.float64) @ sums
    z, without = (np.arctanh(rho.clip(-_LARGEST, _LARGEST)) for rho in (found, _ratio(*rest)))
    low, high = jackknife(z, without, own.sum(axis=1)).ends()
    return np.tanh(low), np.tanh(high)


def _centered_ranks(x: Array) -> Array:
    """Ranks along the first axis, ties averaged, minus their mean."""
    from scipy import stats

    ranks: Array = stats.rankdata(x, axis=0) - (len(x) + 1) / 2
    return ranks


def _ratio(both: Array, of_a: Array, of_b: Array) -> Array:
    scale = np.sqrt(of_a * of_b)
    return both / np.where(scale > 0, scale, np.nan)
