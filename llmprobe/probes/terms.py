"""The variance of a head as a product of three factors, so that its log slopes add up.

With o = Σ a v the output of a head, m = E o its mean over prompts and w = v − m:

    V = E|o − m|² = E[Σa²] · T · C
    dispersion   E[Σa²]
    values       T = E[Σa²|w|²] / E[Σa²]: how far the attended values are from the mean output
    coherence    C = V / E[Σa²|w|²]: 1 if tokens move the output independently and about m, more if
                 they agree, less if they cancel or cannot vary (BOS, a fixed query)

The mean over the head's features is meant by |·|², so V is the result's `measured_variance`. Where
a row does not sum to one, the missing mass is that of a token whose value is zero, as a learned
sink has: its w is −m, and the product stays exact.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.intervals import divide, fit_decay, log_interval
from llmprobe.base.moments import Groups
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.capture.value_sums import ValueSums
from llmprobe.probes.summaries import without_each
from llmprobe.probes.tallies import Tally
from llmprobe.results.attention import FACTORS, TERMS

Array = NDArray[np.float64]
_FOREIGN = 0.1
"""Relative distance of a head's output from Σ a v above which something else is in it."""
COUNTED = ("value_first", "value_query", "value_missing", "value_gap")
"""Names that `observed` has besides `value_row`; of that alone there are groups of prompts."""


def shapes(layer: AttentionLayer) -> dict[str, tuple[int, ...]]:
    """Of the statistics that `observed` gives and of the heads' outputs."""
    sizes = {"heads": layer.head_size, "value_gap": 2}
    sizes |= dict.fromkeys(("value_row", "value_first", "value_query"), layer.head_size + 2)
    return {name: (1, layer.n_heads, size) for name, size in sizes.items()}


def observed(sums: ValueSums, heads: Tensor) -> dict[str, Tensor]:
    """What is counted of each prompt: the sums, and how far Σ a v is from the head's output."""
    missing, row = sums.missing.square(), sums.row.clone()
    row[..., -1] += missing
    output = heads.to(sums.output.device, torch.float64)
    gap = torch.stack([(sums.output - output).square(), output.square()], dim=-1).sum(-2)
    parts = {"value_first": sums.first, "value_query": sums.query, "value_missing": missing}
    return {"value_row": row, "value_gap": gap} | parts


def columns(
    layer: AttentionLayer, tallies: Sequence[Tally], lengths: Sequence[int]
) -> tuple[dict[str, Array], str]:
    """By length and head the factors with intervals, by head their slopes; and what is missing."""
    number = layer.layer
    heads = [tally.groups[number, "heads"] for tally in tallies]
    rows = [tally.groups[number, "value_row"] for tally in tallies]
    reason = _unknown(tallies, number)
    total = _factors(_total(heads), None if reason else _total(rows))
    groups = sorted(heads[0].parts)
    groups = groups if len(groups) > 1 else []
    of_sums = [None] * len(groups) if reason else without_each(rows, groups)
    without = [_factors(*one) for one in zip(without_each(heads, groups), of_sums, strict=True)]
    sizes = list(heads[0].sizes().values())
    found: dict[str, Array] = {}
    for name, values in total.items():
        found[name] = values
        others = np.array([one[name] for one in without]) if without else None
        if name in FACTORS:
            found[f"{name}_low"], found[f"{name}_high"] = log_interval(values, others, sizes)
        found |= _slopes(TERMS[name], lengths, values, others, sizes)
    found |= _shares(tallies, layer, known=not reason)
    return found, reason


def _factors(outputs: Sequence[Any], sums: Sequence[Any] | None) -> dict[str, Array]:
    """From summaries of outputs and of sums by length: (heads, lengths) each."""
    mean, variance = (_by_head(outputs, name) for name in ("mean", "variance"))
    found = {"measured_variance": variance.mean(axis=-1)}
    if sums is None:
        return found | {name: np.full(mean.shape[:2], np.nan) for name in FACTORS}
    dispersion, moved = _about(mean, _by_head(sums, "mean"))
    return found | {
        "dispersion": dispersion,
        "value_variance": divide(moved, dispersion),
        "coherence": divide(found["measured_variance"], moved),
    }


def _about(mean: Array, sums: Array) -> tuple[Array, Array]:
    """Σa², and Σa²|v − m|² as a mean over features, from Σa²v, Σa²|v|² and Σa²."""
    vectors, norms, squares = sums[..., :-2], sums[..., -2], sums[..., -1]
    moved = norms - 2 * (mean * vectors).sum(axis=-1) + (mean**2).sum(axis=-1) * squares
    return squares, np.maximum(moved, 0) / mean.shape[-1]


def _slopes(
    term: str, lengths: Sequence[int], values: Array, without: Array | None, sizes: list[int]
) -> dict[str, Array]:
    """Of the root of a factor, so that they add up to the slope of a standard deviation."""
    names = (term, f"{term}_low", f"{term}_high")
    if len(lengths) < 2:
        return dict.fromkeys(names, np.full(len(values), np.nan))
    roots = None if without is None else np.sqrt(without)
    fit = fit_decay(lengths, np.sqrt(values), without=roots, sizes=None if roots is None else sizes)
    return dict(zip(names, (fit.slope, fit.slope_low, fit.slope_high), strict=True))


def _shares(tallies: Sequence[Tally], layer: AttentionLayer, *, known: bool) -> dict[str, Array]:
    """Of the first token, the query and the missing mass in Σa² and in Σa²|w|²."""
    number = layer.layer
    nothing = np.full((layer.n_heads, len(tallies)), np.nan)
    names = ("first", "query", "missing")
    if not known:
        return {f"{term}_{name}": nothing for term in ("dispersion", "values") for name in names}

    def mean_of(name: str) -> Array:
        return _by_head([t.moments[number, f"value_{name}"].summary() for t in tallies], "mean")

    mean = _by_head(_total([t.groups[number, "heads"] for t in tallies]), "mean")
    sums = _by_head(_total([t.groups[number, "value_row"] for t in tallies]), "mean")
    of_missing = np.zeros_like(sums)
    of_missing[..., -1] = mean_of("missing")
    parts = dict(zip(names, (mean_of("first"), mean_of("query"), of_missing), strict=True))
    squares, moved = _about(mean, sums)
    found = {}
    for name, part in parts.items():
        of_squares, of_moved = _about(mean, part)
        found[f"dispersion_{name}"] = divide(of_squares, squares)
        found[f"values_{name}"] = divide(of_moved, moved)
    return found


def _unknown(tallies: Sequence[Tally], number: int) -> str:
    """Why a layer has no factors; empty if it has."""
    gaps = [tally.moments[number, "value_gap"] for tally in tallies]
    if any(gap.shape is None for gap in gaps):
        return "modules do not show their values, so the variance of heads has no terms"
    away, size = np.moveaxis(_by_head([gap.summary() for gap in gaps], "mean"), -1, 0)
    share = np.sqrt(divide(away, size))
    if np.nanmax(share, initial=0) > _FOREIGN:
        return "outputs of heads are not Σ a v (a gate?), so their variance has no terms"
    return ""


def _total(groups: Sequence[Groups[Any]]) -> list[Any]:
    return [one.total().summary() for one in groups]


def _by_head(summaries: Sequence[Any], name: str) -> Array:
    """Passes joined, heads first: (heads, lengths, ...)."""
    return np.moveaxis(np.concatenate([getattr(s, name) for s in summaries]), 1, 0)
