"""Inverse temperatures that keep a softmax sharp as it gets more items.

Each function gives the factor by which to multiply the logits of a softmax over n items. One is the
plain softmax; larger is colder. `trained` is the number of items that the logits were trained for.
Up to there every factor is one, except a constant one.

A dose is an exponent of the factor (`dosed`): at dose 0 nothing changes, at dose 2 the logarithm of
the factor is twice as large.
"""

import math

import torch
from torch import Tensor

from llmprobe.base.transfers import widened

_POLYNOMIAL = (-0.037, 0.481, -2.3, 4.917, -1.791)
"""Of the inverse temperature in the entropy, the highest power first: arXiv 2410.01104."""


def log_scaling(n: Tensor, *, trained: int) -> Tensor:
    """max(1, ln n / ln L): Qwen's `use_logn_attn`."""
    return (widened(n).log() / math.log(trained)).clamp(min=1)


def yarn_scaling(extension: float) -> float:
    """(0.1 ln s + 1)², the same for all n: YaRN's `mscale`; s is how many times longer it gets."""
    return (0.1 * math.log(max(1.0, extension)) + 1) ** 2


def floor_scaling(n: Tensor, *, trained: int) -> Tensor:
    """1 + 0.1 ln(1 + ⌊(n − 1) / L⌋), which grows in steps: Llama 4, Mistral 4."""
    return 1 + 0.1 * widened((n - 1) // trained).log1p()


def information_scaling(n: Tensor, *, trained: int, head_size: int) -> Tensor:
    """max(1, √((1 − n^(−2/d)) / (1 − L^(−2/d)))): InfoScale, arXiv 2501.08570."""
    share = 1 - widened(n) ** (-2 / head_size)
    return (share / (1 - trained ** (-2 / head_size))).sqrt().clamp(min=1)


def entropy_scaling(weights: Tensor) -> Tensor:
    """Of the adaptive softmax of arXiv 2410.01104, by the entropy in nats: (..., n) to (..., 1)."""
    entropy = -(weights * (weights + 1e-9).log()).sum(dim=-1, keepdim=True)
    beta = torch.zeros_like(entropy)
    for coefficient in _POLYNOMIAL:
        beta = beta * entropy + coefficient
    return torch.where(entropy > 0.5, beta.clamp(min=1), 1.0)


def dosed(factor: Tensor, dose: float) -> Tensor:
    """The factor at a dose: its logarithm times the dose."""
    return factor**dose
