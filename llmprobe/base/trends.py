"""How variances change with length: from the moments of groups of prompts to a result's columns.

Groups are the query tokens where several are fixed, so that leaving out one at a time covers both
factors, prompts and queries; else they are parts of the prompts. The slope that is tested is that
of the within-query standard deviation where there is one, which is what Proposition 1 is about, and
that of the total one otherwise.

All slopes are weighted sums of log std, so the same sums of replicates give their jackknife.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.components import GroupMoments, over_features
from llmprobe.base.intervals import fit_decay, log_positive, typical_std
from llmprobe.base.jackknife import Jackknifed, jackknife

Array = NDArray[np.float64]
Columns = dict[str, Array]
MARGIN = 0.1
"""Slopes that are nearer than this are equivalent; set before any model was looked at."""
SLOPES = ("slope", "slope_total", "slope_within", "slope_features")
TESTS = ("slope_uniform", "curvature", "p_curvature", "p_zero", "p_flat", "p_uniform")
ENDS = ("", "_low", "_high")
"""Of the names of a number and its 95 % interval."""
_LIGHT = (1.0, 4.0)
"""Mean kurtosis of a layer's slopes up to which tails are light: the first plus, as averaging
divides a kurtosis, the second over the prompts of a group. Of 16 groups; more show more of it."""
_ENOUGH_QUERIES = 64
"""Below, a few tokens that differ from the others are easily missed."""
_of_layer = partial(jackknife, together=True)


def fit_trends(
    lengths: tuple[int, ...], groups: GroupMoments, uniform: Array
) -> tuple[Columns, list[str]]:
    """All columns about the change with length of (series, lengths, features), and what is missing.

    `uniform` is the variance that uniform attention would have at each length, up to a factor.
    """
    whole, parts = groups.split(), groups.split_without()
    sizes, columns = groups.sizes, Columns()
    logs: dict[str, tuple[Array, Array]] = {}
    for name in ("total", "within"):
        full, rest = (over_features(getattr(x, name)) for x in (whole, parts))
        logs[name] = log_positive(full) / 2, log_positive(rest) / 2
        found = _of_layer(*logs[name], sizes)
        ends = zip(ENDS, (full, *(np.exp(2 * end) for end in found.ends())), strict=True)
        columns |= {f"{name}_variance{end}": x for end, x in ends}
    full, rest = (over_features(x.between) for x in (whole, parts))
    columns |= _with_ends("between_variance", _of_layer(full, rest, sizes))
    if len(lengths) < 2:
        nothing = np.full(len(full), np.nan)
        columns |= dict.fromkeys(
            (*(x + end for x in SLOPES for end in ENDS), "r2", *TESTS), nothing
        )
        columns |= {f"step_slope{end}": np.full_like(full, np.nan) for end in ENDS}
        return columns, ["one length: no slope"]

    std, without = (np.sqrt(over_features(x.total)) for x in (whole, parts))
    decay = fit_decay(lengths, std, without=without, sizes=sizes.tolist())
    columns |= {"r2": decay.r2}
    line = line_weights(lengths)
    slopes = {name: _of_layer(y @ line, r @ line, sizes) for name, (y, r) in logs.items()}
    features = [log_positive(typical_std(np.sqrt(x.total))) @ line for x in (whole, parts)]
    slopes["features"] = _of_layer(features[0], features[1], sizes)
    for name, slope in slopes.items():
        columns |= _with_ends(f"slope_{name}", slope)
    columns |= _with_ends("slope", slopes["total"])
    tested = (
        "within" if groups.are_queries and np.isfinite(slopes["within"].value).any() else "total"
    )
    columns |= _tests(lengths, slopes[tested], logs[tested], sizes, uniform)
    reasons = sorted({str(reason) for reason in decay.reason if reason})
    return columns, [*reasons, *heavy_tails(slopes[tested].kurtosis, sizes, groups.are_queries)]


def fit_sides(lengths: tuple[int, ...], groups: GroupMoments, edge: int) -> list[Jackknifed]:
    """Slopes of the total std up to an edge and beyond it; none unless both have two lengths."""
    n = np.asarray(lengths)
    sides = [np.flatnonzero(n <= edge), np.flatnonzero(n > edge)]
    if min(map(len, sides)) < 2:
        return []
    whole, parts = (
        log_positive(over_features(x.total)) / 2 for x in (groups.split(), groups.split_without())
    )
    lines = [line_weights(n[side].tolist()) for side in sides]
    return [
        _of_layer(whole[..., side] @ line, parts[..., side] @ line, groups.sizes)
        for side, line in zip(sides, lines, strict=True)
    ]


def compare_trends(lengths: tuple[int, ...], groups: GroupMoments, null: GroupMoments) -> Columns:
    """The tested slope of a null model that has seen the same prompts, and whether it differs."""
    line, sizes = line_weights(lengths), groups.sizes
    slopes = []
    for moments in (groups, null):
        parts = (moments.split(), moments.split_without())
        logs = {
            name: [log_positive(over_features(getattr(x, name))) / 2 @ line for x in parts]
            for name in ("total", "within")
        }
        slopes.append(logs["within" if np.isfinite(logs["within"][0]).any() else "total"])
    (own, own_without), (other, other_without) = slopes
    # The same prompts are left out of both, so what they share cancels.
    gap = _of_layer(own - other, own_without - other_without, sizes)
    return {
        **_with_ends("slope_null", _of_layer(other, other_without, sizes)),
        "p_null": gap.p_differs(),
    }


def _with_ends(name: str, found: Jackknifed) -> Columns:
    return {name + end: x for end, x in zip(ENDS, (found.value, *found.ends()), strict=True)}


def _tests(
    lengths: tuple[int, ...],
    slope: Jackknifed,
    logs: tuple[Array, Array],
    sizes: Array,
    uniform: Array,
) -> Columns:
    """Of the slope that is tested: local slopes, lack of fit, and its p values."""
    (y, rest), bend = logs, curvature_weights(lengths)
    steps = _of_layer(step_slopes(lengths, y), step_slopes(lengths, rest), sizes)
    curvature = _of_layer(y @ bend, rest @ bend, sizes)
    expected = log_positive(uniform) / 2 @ line_weights(lengths)
    return {
        **_with_ends("step_slope", steps),
        "curvature": curvature.value,
        "p_curvature": curvature.p_differs(),
        "slope_uniform": np.full(len(slope.value), expected),
        "p_zero": slope.p_differs(),
        "p_flat": slope.p_within(0, MARGIN),
        "p_uniform": slope.p_within(expected, MARGIN),
    }


def heavy_tails(kurtosis: Array, sizes: Array, are_queries: bool) -> list[str]:
    """Where slopes rest on so few prompts that intervals may cover less than they say.

    By the kurtosis of the slopes of a layer's series, and the sizes of the groups.
    """
    n_groups = len(sizes)
    if are_queries and n_groups < _ENOUGH_QUERIES:
        return [
            f"{n_groups} query tokens are few: 95 % intervals cover less, down to 50 % in tests, "
            "where a few tokens differ from the others; raise n_queries (docs/coverage.md)"
        ]
    known = kurtosis[np.isfinite(kurtosis)]
    limit = (_LIGHT[0] + _LIGHT[1] / sizes.mean()) * np.sqrt(n_groups / 16)
    if not len(known) or known.mean() <= limit:
        return []
    what, more = ("queries", "n_queries") if are_queries else ("prompts", "n_prompts")
    return [
        f"heavy tails: slopes rest on a few of the {what}, and some 95 % intervals may cover as "
        f"little as 70 %; raise {more} (docs/coverage.md)"
    ]


def line_weights(lengths: Sequence[int]) -> Array:
    """Of the slope of the least-squares line through log std over log length."""
    x = np.log(np.asarray(lengths, np.float64))
    centered = x - x.mean()
    weights: Array = centered / (centered @ centered)
    return weights


def step_slopes(lengths: Sequence[int], log_std: Array) -> Array:
    """From each length to the next, (..., lengths); the first has none before it and is NaN."""
    steps = np.diff(log_std) / np.diff(np.log(np.asarray(lengths, np.float64)))
    return np.concatenate([np.full_like(log_std[..., :1], np.nan), steps], axis=-1)


def curvature_weights(lengths: Sequence[int]) -> Array:
    """Of the change of the slope with each doubling of the length; NaN for two lengths.

    The coefficient of the square in a least-squares parabola. Zero is a straight line, so its test
    is one of lack of fit; above zero, decay slows down.
    """
    x = np.log(np.asarray(lengths, np.float64))
    if len(x) < 3:
        return np.full(len(x), np.nan)
    x = x - x.mean()
    square = x**2 - (x**2).mean() - (x**3).sum() / (x @ x) * x
    weights: Array = 2 * np.log(2) * square / (square @ square)
    return weights
