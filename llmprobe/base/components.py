"""Variance of outputs over two factors, from the moments of groups.

    groups = GroupMoments(count, mean, m2, sizes, are_queries=True)
    groups.split().total, .within, .between             # by feature
    groups.split_without()                               # the same without each group in turn

Prompts with the same query are one group. Within: what varies though the query is the same,
½ E|o − o′|². Between: how far the queries' own means are apart. Both are unbiased, by the analysis
of variance for groups of any size (Searle, Casella and McCulloch 1992, section 3.6), and total is
their sum. `between` may be slightly negative where the truth is near zero.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Components(NamedTuple):
    """Variances by feature, of all prompts, or (groups first) of all but those of one group."""

    total: Array
    within: Array
    """NaN where no group has two prompts, or groups are no factor."""
    between: Array


@dataclass(frozen=True)
class GroupMoments:
    """Moments of each group: arrays (groups, ..., features)."""

    count: Array
    mean: Array
    m2: Array
    """Summed squared deviations from the group's own mean."""
    sizes: Array
    """Prompts in each group, (groups,), finite or not."""
    are_queries: bool
    """Whether the groups are a factor; else they only cut the prompts into parts."""

    def split(self) -> Components:
        """The variances over all prompts."""
        n, apart = self._around_mean()
        return self._components(
            n,
            (self.count > 0).sum(axis=0),
            (self.count**2).sum(axis=0),
            self.m2.sum(axis=0),
            (self.count * apart**2).sum(axis=0),
        )

    def split_without(self) -> Components:
        """The same, leaving out one group at a time: (groups, ..., features)."""
        n, apart = self._around_mean()
        seen = self.count > 0
        left = n - self.count
        # Deviations are from the mean of all; without a group that mean moves a little.
        moved = self.count * apart / np.maximum(left, 1)
        between = (self.count * apart**2).sum(axis=0) - self.count * apart**2 - left * moved**2
        return self._components(
            left,
            seen.sum(axis=0) - seen,
            (self.count**2).sum(axis=0) - self.count**2,
            self.m2.sum(axis=0) - self.m2,
            np.maximum(between, 0),
        )

    def _around_mean(self) -> tuple[Array, Array]:
        """Prompts in all, and how far each group's mean is from that of all."""
        n = self.count.sum(axis=0)
        # From the first group's mean, so that what never varies is exactly zero.
        apart = np.where(self.count > 0, self.mean - self.mean[:1], 0)
        middle = (self.count * apart).sum(axis=0) / np.maximum(n, 1)
        return n, np.where(self.count > 0, apart - middle, 0)

    def _components(
        self, n: Array, n_groups: Array, squares: Array, m2: Array, apart: Array
    ) -> Components:
        """From prompts, groups, squared group sizes, and sums of squares within and between."""
        plain = _ratio(m2 + apart, n - 1)
        if not self.are_queries:
            return Components(plain, np.full_like(plain, np.nan), np.full_like(plain, np.nan))
        within = _ratio(m2, n - n_groups)
        per_group = _ratio(n - squares / np.maximum(n, 1), n_groups - 1)
        between = (_ratio(apart, n_groups - 1) - within) / per_group
        # Without two prompts of a query nothing tells the parts apart, but their sum is known.
        return Components(np.where(np.isnan(within), plain, within + between), within, between)


def _ratio(a: Array, b: Array) -> Array:
    return a / np.where(b > 0, b, np.nan)


def over_features(variance: Array) -> Array:
    """Summed over features, (..., lengths, features) -> (..., lengths).

    Features that are not known at some length are left out at all of them.
    """
    known = np.isfinite(variance).all(axis=-2, keepdims=True)
    summed = np.where(known, variance, 0).sum(axis=-1)
    return np.where(known.any(axis=-1), summed, np.nan)
