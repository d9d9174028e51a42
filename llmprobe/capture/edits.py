"""Ready-made edits, for `edit_attention`.

    edit_attention(model, queries=scale_logits(2.0))
    edit_attention(model, 3, heads=0, outputs=ablate())
    edit_attention(model, outputs=scale_outputs(lambda n: (n / 512) ** 0.1))

What an edit holds decides what a model computes and is hashed with it, so edits are small classes
that hold numbers, tensors and functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from llmprobe.base.temperatures import dosed, entropy_scaling
from llmprobe.capture.calls import AttentionCall
from llmprobe.capture.editing import Outputs, Queries

Scale: TypeAlias = float | Tensor
OfKeys: TypeAlias = Callable[[Tensor], Scale]
"""A function of n, the number of keys that each token sees."""


def scale_logits(scale: Scale | OfKeys) -> Queries:
    """Multiply the logits of every query by `scale`: above 1 the softmax is colder.

    `scale`: a number, a tensor that broadcasts to (batch, heads, queries), or a function that gives
    one of them for n, how many keys each query sees.
    """
    return _Logits(scale)


def scale_outputs(scale: Scale | OfKeys) -> Outputs:
    """Multiply the head outputs of every token by `scale`.

    `scale`: a number, a tensor that broadcasts to (batch, tokens, heads), or a function that gives
    one of them for n (batch or 1, tokens, 1), how many keys each token sees.
    """
    return _OutputsByKeys(scale) if callable(scale) else _Outputs(scale)


def ablate(means: Mapping[int, Tensor] | None = None) -> Outputs:
    """Replace head outputs by zero, or by `means`: (heads, size) for each layer's number.

    Means come from other prompts, for example:

        with capture_attention(model, at="heads") as captured:
            model(**other_prompts)
        means = {layer: captured[layer].mean(dim=(0, 1)) for layer in captured}
    """
    return _Ablation(means)


def adapt_temperature(dose: float = 1.0) -> Queries:
    """The adaptive temperature of arXiv 2410.01104: colder by the entropy of each query's weights.

    It computes the weights of all queries, some at a time: linear memory, about twice the time.
    """
    return _Adaptive(dose)


@dataclass(frozen=True)
class _Logits:
    scale: Scale | OfKeys

    def __call__(self, call: AttentionCall, n: Tensor) -> Scale:
        return self.scale(n) if callable(self.scale) else self.scale


@dataclass(frozen=True)
class _Outputs:
    scale: Scale

    def __call__(self, layer: int, x: Tensor) -> Tensor | None:
        return _multiplied(x, self.scale)


@dataclass(frozen=True)
class _OutputsByKeys:
    scale: OfKeys

    def __call__(self, layer: int, x: Tensor, n: Tensor) -> Tensor | None:
        return _multiplied(x, self.scale(n))


def _multiplied(x: Tensor, gain: Scale) -> Tensor | None:
    """Head outputs (batch, tokens, heads, size) times a gain, multiplied in float32 at least."""
    if isinstance(gain, Tensor):
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x * gain.to(x.device, wide)[..., None]).to(x.dtype)
    return None if gain == 1 else x * gain


@dataclass(frozen=True)
class _Ablation:
    means: Mapping[int, Tensor] | None

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        if self.means is None:
            return torch.zeros_like(x)
        if layer not in self.means:
            raise ValueError(f"means: got none of layer {layer}, only of {sorted(self.means)}")
        return self.means[layer].to(x).expand_as(x)


@dataclass(frozen=True)
class _Adaptive:
    dose: float

    def __call__(self, call: AttentionCall, n: Tensor) -> Scale:
        if self.dose == 0:
            return 1.0
        batch, _, n_queries, _ = call.query.shape
        index = torch.arange(n_queries, device=call.query.device).expand(batch, -1)
        scales = [entropy_scaling(weights)[..., 0] for weights in call.rows(index)]
        return dosed(torch.cat(scales, dim=2), self.dose)


@dataclass(frozen=True)
class LengthMoments:
    """Mean and standard deviation of each feature of a layer's heads, by length."""

    lengths: tuple[int, ...]
    mean: Tensor
    """(lengths, heads, size)"""
    std: Tensor

    def at(self, n: Tensor) -> tuple[Tensor, Tensor]:
        """For n of any shape: interpolated over ln n, means linearly and deviations by logarithm.

        Below the first and above the last length these are used.
        """
        knots = torch.tensor(self.lengths, dtype=torch.float64, device=n.device).log()
        at = n.double().log().clamp(knots[0], knots[-1])
        right = torch.searchsorted(knots, at.contiguous()).clamp(min=1, max=len(knots) - 1)
        left = (right - 1).clamp(min=0)
        span = (knots[right] - knots[left]).clamp(min=1e-12)
        share = ((at - knots[left]) / span).float()[..., None, None]
        mean, log_std = self.mean.to(n.device).float(), self.std.to(n.device).float().log()
        between = [torch.lerp(x[left], x[right], share) for x in (mean, log_std)]
        return between[0], between[1].exp()


def restore_moments(
    moments: Mapping[int, LengthMoments], *, reference: int, dose: float = 1.0
) -> Outputs:
    """Give features back the mean and deviation that they have at `reference` keys, beyond there.

    o becomes μ_L + (o − μ_n) σ_L / σ_n, with the moments at n and at L = `reference`. A dose
    multiplies the shift and the logarithm of the gain.
    """
    return _Restored(moments, reference, dose)


@dataclass(frozen=True)
class _Restored:
    moments: Mapping[int, LengthMoments]
    reference: int
    dose: float

    def __call__(self, layer: int, x: Tensor, n: Tensor) -> Tensor | None:
        if self.dose == 0 or bool((n <= self.reference).all()):
            return None
        own = self.moments[layer]
        mean, std = own.at(n[..., 0])
        usual_mean, usual_std = own.at(torch.tensor(self.reference, device=n.device))
        gain = usual_std / std
        gain = gain.where(gain.isfinite() & (gain > 0), 1.0) ** self.dose
        shift = self.dose * (usual_mean - mean)
        new = mean + shift + (x - mean) * gain
        return torch.where((n > self.reference)[..., None], new.to(x.dtype), x)
