"""Rank correlations over prompts, of many series at once, within each length.

    rho, low, high = correlate_ranks(right, attention)      # (prompts, lengths), (..., series)

Longer prompts are harder and have smaller weights, so a correlation over all of them would mostly
say that. Ranks are therefore taken among the prompts of one length, and then pooled.

Rows need not be prompts. Where several belong to one unit of observation, such as the variants of a
seed, `units` says which: they are resampled together.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_RESAMPLES = 2000
_FEWEST = 6
"""Rows for a correlation, and units for its interval."""


def correlate_ranks(
    y: Array, x: Array, *, units: ArrayLike | None = None
) -> tuple[Array, Array, Array]:
    """Spearman's ρ of y (prompts, lengths) with each series of x (prompts, lengths, series).

    Also the ends of its 95 % interval: percentiles over resampled units, each prompt one of its own
    if `units` (prompts,) does not say otherwise, with all of its lengths. All are NaN for fewer
    than 6 prompts, or where y or x varies at no length; the ends also for fewer than 6 units.
    """
    nothing = np.full(x.shape[2], np.nan)
    known = np.isfinite(y).all(axis=1) & np.isfinite(x).all(axis=(1, 2))
    unit_of = np.arange(len(y)) if units is None else np.asarray(units)
    y, x = y[known], x[known]
    if len(y) < _FEWEST:
        return nothing, nothing.copy(), nothing.copy()
    a, b = _centered_ranks(y)[..., None], _centered_ranks(x)
    varies = (a**2).sum(axis=0, keepdims=True) > 0  # where y is constant, x says nothing about it
    b = b * varies
    _, place = np.unique(unit_of[known], return_inverse=True)
    n_units = int(place.max()) + 1
    sums = [np.zeros((n_units, x.shape[2])) for _ in range(3)]
    for total, z in zip(sums, (a * b, a**2, b**2), strict=True):
        np.add.at(total, place, np.broadcast_to(z.sum(axis=1), (len(y), x.shape[2])))
    found = _ratio(*(z.sum(axis=0) for z in sums))
    if n_units < _FEWEST:
        return found, nothing, nothing.copy()
    draws = np.random.default_rng(0).multinomial(
        n_units, np.full(n_units, 1 / n_units), size=_RESAMPLES
    )
    resampled = _ratio(*(draws @ z for z in sums))
    unknown = np.isnan(resampled).mean(axis=0) > 0.5
    low, high = np.nanpercentile(np.where(unknown, 0.0, resampled), [2.5, 97.5], axis=0)
    return found, np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


def _centered_ranks(x: Array) -> Array:
    """Ranks along the first axis, ties averaged, minus their mean."""
    from scipy import stats

    ranks: Array = stats.rankdata(x, axis=0) - (len(x) + 1) / 2
    return ranks


def _ratio(both: Array, of_a: Array, of_b: Array) -> Array:
    scale = np.sqrt(of_a * of_b)
    return both / np.where(scale > 0, scale, np.nan)
