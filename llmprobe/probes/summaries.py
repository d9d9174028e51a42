"""What all summaries share: joining lengths, and notes on what weakens the numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.capture.discovery import AttentionLayer
from llmprobe.probes.tallies import N_GROUPS, Evidence

_MANY = 0.1
"""Share of features whose rounding is worth a warning."""
NOTHING_FINITE = (
    "every number that was captured is NaN or infinity, so there is nothing to report; try "
    'dtype="float32", and see what `check_capture` says about the model'
)


def few_prompts(evidence: Evidence) -> list[str]:
    n = evidence.n_prompts
    return [f"{n} prompts are few: intervals are wide below {N_GROUPS}"] if n < N_GROUPS else []


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
    joined = np.concatenate([getattr(summary, name) for summary in summaries])
    return np.moveaxis(joined, 1, 0) if heads else joined[None]


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
