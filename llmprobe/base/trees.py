"""A small tree: which of several settings decide how large an effect is.

    leaves = grow_tree(settings, effects)       # (n, columns), (n,)
    leaves[0].rules                             # ((3, "≤", 64.0),): the third column is at most 64

A group is split in two where that lowers the squared error most, but only if a permutation test of
the best split over all columns and places is significant. So a tree of noise has one leaf in 95 of
100 cases, however many columns there are.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import LEVEL

Array = NDArray[np.float64]
_PERMUTATIONS = 999
_LEAST = 6
"""Members of a leaf: with fewer, no test of their mean could be significant."""
Rule = tuple[int, str, float]
"""A column, `≤` or `>`, and a value of that column."""


class Leaf(NamedTuple):
    """A group of the tree."""

    rules: tuple[Rule, ...]
    members: NDArray[np.bool_]
    p: float
    """Of the last split that made it; NaN for the group of all."""


def grow_tree(x: Array, y: Array, *, depth: int = 2) -> list[Leaf]:
    """Leaves of x (n, columns) by the values y (n,), all finite; at most 2^depth."""
    everything = Leaf((), np.ones(len(y), dtype=bool), np.nan)
    return _grow(x, y, everything, depth)


def _grow(x: Array, y: Array, leaf: Leaf, depth: int) -> list[Leaf]:
    found = best_split(x[leaf.members], y[leaf.members]) if depth else None
    if found is None or not found[2] < LEVEL:
        return [leaf]
    column, value, p = found
    below = x[:, column] <= value
    sides = (("≤", below), (">", ~below))
    return [
        grown
        for sign, side in sides
        for grown in _grow(
            x,
            y,
            Leaf((*leaf.rules, (column, sign, value)), leaf.members & side, p),
            depth - 1,
        )
    ]


def best_split(x: Array, y: Array) -> tuple[int, float, float] | None:
    """The column, the value up to which the first side reaches, and p; None where none is allowed.

    p is the share of permutations of y whose best split lowers the squared error as much.
    """
    n = len(y)
    if n < 2 * _LEAST:
        return None
    generator = np.random.default_rng(0)
    shuffled = generator.permuted(np.tile(y, (_PERMUTATIONS, 1)), axis=1)
    every = np.vstack([y, shuffled])
    every = every - every.mean(axis=1, keepdims=True)
    best = np.zeros(len(every))
    chosen: tuple[int, float] | None = None
    for column in range(x.shape[1]):
        order = np.argsort(x[:, column], kind="stable")
        values = x[order, column]
        sizes = np.arange(1, n)
        allowed = (sizes >= _LEAST) & (n - sizes >= _LEAST) & (values[:-1] < values[1:])
        if not allowed.any():
            continue
        sums = every[:, order].cumsum(axis=1)[:, :-1][:, allowed]
        # The sums of the two sides are opposite, since the mean of all is 0.
        gains = sums**2 * (1 / sizes + 1 / (n - sizes))[allowed]
        if gains[0].max() > best[0]:
            chosen = (column, float(values[:-1][allowed][gains[0].argmax()]))
        best = np.maximum(best, gains.max(axis=1))
    if chosen is None:
        return None
    at_least = (best[1:] >= best[0] * (1 - 1e-9)).sum()
    return (*chosen, float((1 + at_least) / (1 + _PERMUTATIONS)))
