"""What all summaries share: joining lengths, and notes on what weakens the numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.base.components import GroupMoments
from llmprobe.base.moments import Groups, Moments
from llmprobe.base.signs import minus
from llmprobe.base.trends import fit_sides
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.probes.tallies import Evidence

_MANY = 0.1
"""Share of features whose rounding is worth a warning."""
_ENOUGH = 32
"""Prompts from which on their tails tell whether intervals cover (`docs/coverage.md`)."""
NOTHING_FINITE = (
    "every number that was captured is NaN or infinity, so there is nothing to report; try "
    'dtype="float32", and see what `check_capture` says about the model'
)


def few_prompts(evidence: Evidence) -> list[str]:
    n = evidence.n_prompts
    if n >= _ENOUGH:
        return []
    return [f"{n} prompts are few: below {_ENOUGH}, 95 % intervals may cover less than they say"]


def left_out(
    layer: AttentionLayer, lengths: tuple[int, ...], nonfinite: NDArray[Any], finite: NDArray[Any]
) -> list[str]:
    """Where numbers were left out of the statistics of a layer: at which lengths, and how many."""
    at = [length for length, n in zip(lengths, nonfinite, strict=True) if n]
    if not at:
        return []
    share = nonfinite.sum() / (nonfinite.sum() + finite.sum())
    return [
        f"NaN or infinity in layer {layer.layer} at {', '.join(map(str, at))} tokens: "
        f"{nonfinite.sum():,} numbers, {share:.2g} of all, left out of statistics"
    ]


def by_series(summaries: Sequence[Any], name: str, heads: bool) -> NDArray[Any]:
    """Join the passes' lengths and put the heads first: (series, lengths, features)."""
    joined = np.concatenate([np.asarray(getattr(summary, name)) for summary in summaries])
    return np.moveaxis(joined, 1, 0) if heads else joined[None]


def without_each(by_length: Sequence[Groups[Any]], groups: Sequence[int]) -> list[list[Any]]:
    """For each of these groups the summaries by length of all the others."""
    left = [one.without_each(groups) for one in by_length]
    return [[one.summary() for one in of_group] for of_group in zip(*left, strict=True)]


def group_moments(
    by_length: Sequence[Groups[Moments]], heads: bool, *, are_queries: bool
) -> GroupMoments:
    """The moments of each group of prompts: (groups, series, lengths, features).

    The shortest length, which is the first, has all of them; a longer one may lack some prompts.
    """
    numbers = sorted(by_length[0].parts)
    none_left = [groups.only(()) for groups in by_length]

    def stacked(name: str) -> NDArray[np.float64]:
        found = [
            by_series(
                [x.parts.get(number, none) for x, none in zip(by_length, none_left, strict=True)],
                name,
                heads,
            )
            for number in numbers
        ]
        return np.stack(found).astype(np.float64)

    return GroupMoments(
        count=stacked("count"),
        mean=stacked("mean"),
        m2=stacked("m2"),
        sizes=np.array([*by_length[0].sizes().values()], np.float64),
        are_queries=are_queries,
    )


def rounded(evidence: Evidence, mean: NDArray[Any], std: NDArray[Any]) -> list[str]:
    """Where activations are rounded more coarsely than they vary, from which length on."""
    name = evidence.provenance.dtype
    dtype = getattr(torch, name)
    if dtype not in (torch.bfloat16, torch.float16):
        return []
    below = std < np.abs(mean) * torch.finfo(dtype).eps / 2  # (series, lengths, features)
    share = below.mean(axis=(0, 2))
    if not (share > _MANY).any():
        return []
    first = int((share > _MANY).argmax())
    return [
        f"from {evidence.lengths[first]} tokens on {share[first]:.0%} of the features vary less "
        f'than {name} rounds them; use dtype="float32"'
    ]


def each_side(
    layer: AttentionLayer, lengths: tuple[int, ...], groups: GroupMoments
) -> Iterator[str]:
    """The slopes up to the window of a layer and beyond it: one line would mix two regimes."""
    sides = [] if layer.window is None else fit_sides(lengths, groups, layer.window)
    told = []
    for where, slope in zip(("up to", "beyond"), sides, strict=False):
        known = slope.value[np.isfinite(slope.value)]
        if len(known) == 0:
            return
        low, high = (float(end[0]) for end in slope.ends())
        spread = (
            f"median of {len(known)}" if len(known) > 1 else f"95 % CI {low:+.2f} to {high:+.2f}"
        )
        told.append(
            f"{np.median(known):+.2f} ({spread}) {where} the window of {layer.window} tokens"
        )
    if told:
        yield minus(f"slope {', '.join(told)}")


def uniform_variance(
    layer: AttentionLayer, lengths: Sequence[int], *, bos: bool, fixed_query: bool
) -> NDArray[np.float64]:
    """What uniform attention over the same prompts would have, up to a factor.

    A head that weighs its n visible tokens alike has an output of variance σ² Σa² = σ² m/n², where
    m of them vary over prompts: BOS does not, nor does a fixed query. This takes tokens as
    independent, which those of a text are not quite. NaN where the tokens are not known.
    """
    n = np.asarray(lengths, np.float64)
    # An encoder's window is of another size at every position.
    if layer.type == "linear" or (layer.type == "sliding" and layer.window is None):
        return np.full(len(n), np.nan)
    seen = n if layer.window is None else np.minimum(n, layer.window)
    varying = seen - fixed_query - (bos & (seen == n))
    return np.where(varying > 0, varying / seen**2, np.nan)
