"""The logits behind attention weights: what an attention function gives to its softmax.

Weights alone do not tell all of them: float32 rounds a weight to zero where its logit is about 100
below the largest. So the softmax is watched while a family's own function runs: its input has
whatever the family does to its logits (scales, biases, soft caps).
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SOFTMAX = (torch.softmax, torch.nn.functional.softmax, Tensor.softmax)


class SoftmaxInputs(TorchFunctionMode):
    """While active, keeps the input of the latest softmax of its thread."""

    latest: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SOFTMAX:
            self.latest = args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


def seen_logits(given: Tensor | None, weights: Tensor, mask: Tensor | None) -> Tensor:
    """Logits in the shape of weights (batch, heads, queries, keys); −inf where a key is masked.

    `given` is what the softmax got; its columns beyond the keys are learned sinks and are left
    out. Without it, or where it has another layout, the logits are the logarithms of the weights:
    equal up to a constant, and −inf where a weight is zero.
    """
    n_keys = weights.shape[-1]
    known = given is not None and given.ndim == 4 and given.shape[:3] == weights.shape[:3]
    if given is None or not known or given.shape[-1] < n_keys:
        return weights.log()
    logits = given[..., :n_keys]
    if mask is None:
        return logits
    # An additive mask may hold biases as well: only its lowest numbers say "not seen".
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
    return logits.masked_fill(hidden, -torch.inf)
