"""Ready-made edits, for `edit_attention`.

    edit_attention(model, queries=scale_logits(2.0))
    edit_attention(model, 3, heads=0, outputs=ablate())
    edit_attention(model, outputs=scale_outputs(lambda n: (n / 512) ** 0.1))

What an edit holds decides what a model computes and is hashed with it, so edits are small classes
that hold numbers, tensors and functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from llmprobe.base.temperatures import dosed, entropy_scaling
from llmprobe.base.transfers import upload, widened
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
        return (x * upload(gain, x.device, wide)[..., None]).to(x.dtype)
    return None if gain == 1 else x * gain


@dataclass(frozen=True)
class _Ablation:
    means: Mapping[int, Tensor] | None

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        if self.means is None:
            return torch.zeros_like(x)
        if layer not in self.means:
            raise ValueError(f"means: got none of layer {layer}, only of {sorted(self.means)}")
        return upload(self.means[layer], x.device, x.dtype).expand_as(x)


@dataclass(frozen=True)
class _Adaptive:
    dose: float

    def __call__(self, call: AttentionCall, n: Tensor) -> Scale:
        return 1.0 if self.dose == 0 else dosed(entropy_scales(call), self.dose)


def entropy_scales(call: AttentionCall) -> Tensor:
    """The adaptive scale of each query, (batch, heads, queries), by the entropy of its weights."""
    batch, _, n_queries, _ = call.query.shape
    index = torch.arange(n_queries, device=call.query.device).expand(batch, -1)
    scales = [entropy_scaling(weights)[..., 0] for weights in call.rows(index)]
    return torch.cat(scales, dim=2)


class LengthMoments(NamedTuple):
    """Mean and standard deviation of each feature of a layer's heads, by length."""

    lengths: tuple[int, ...]
    mean: Tensor
    """(lengths, heads, size)"""
    std: Tensor

    def at(self, n: Tensor) -> tuple[Tensor, Tensor]:
        """For n of any shape: interpolated over ln n, means linearly and deviations by logarithm.

        Below the first and above the last length these are used.
        """
        knots = widened(upload(torch.tensor(self.lengths), n.device)).log()
        # Not `clamp`, which asks the device for the numbers.
        at = widened(n).log().maximum(knots[0]).minimum(knots[-1])
        right = torch.searchsorted(knots, at.contiguous()).clamp(min=1, max=len(knots) - 1)
        left = (right - 1).clamp(min=0)
        span = (knots[right] - knots[left]).clamp(min=1e-12)
        share = ((at - knots[left]) / span).float()[..., None, None]
        mean, std = (upload(x, n.device, torch.float32) for x in (self.mean, self.std))
        log_std = std.log()
        between = [torch.lerp(x[left], x[right], share) for x in (mean, log_std)]
        return between[0], between[1].exp()

    def then(self, left: "LengthMoments", reference: int) -> "LengthMoments":
        """Moments that restore as these do, and after them those that are `left`.

        Those that are left were measured in a model that is restored by these. Restoring by the
        result is, at its lengths, the same as restoring by both in turn.
        """
        # With the reference among the lengths, nothing up to it depends on what is beyond.
        lengths = tuple(sorted({*self.lengths, reference}))
        n, usual = torch.tensor(lengths), torch.tensor(reference)
        (own_mean, own_std), (usual_mean, usual_std) = self.at(n), self.at(usual)
        (mean, std), (left_mean, left_std) = left.at(n), left.at(usual)
        gain, more = _ratio(usual_std, own_std), _ratio(left_std, std)
        new = own_mean + (mean - usual_mean) / gain - (left_mean - usual_mean) / (gain * more)
        beyond = (n > reference)[:, None, None]
        return LengthMoments(
            lengths,
            torch.where(beyond, new, own_mean),
            torch.where(beyond, usual_std / (gain * more), own_std),
        )


def restore_moments(
    moments: Mapping[int, LengthMoments],
    *,
    reference: int,
    dose: float = 1.0,
    keep_norm: bool = False,
) -> Outputs:
    """Give features back the mean and deviation that they have at `reference` keys, beyond there.

    o becomes μ_L + (o − μ_n) σ_L / σ_n, with the moments at n and at L = `reference`. A dose
    multiplies the shift and the logarithm of the gain. `keep_norm` rescales the result to the norm
    of o: a control that changes directions only.
    """
    return _Restored(moments, reference, dose, keep_norm)


def restore_slopes(slopes: Mapping[int, Tensor], *, reference: int, dose: float = 1.0) -> Outputs:
    """Multiply head outputs by (n / L)^(−slope) beyond L = `reference`; heads' slopes by layer."""
    return _Unsloped(slopes, reference, dose)


def restore_norms(norms: Mapping[int, Tensor], *, reference: int, dose: float = 1.0) -> Outputs:
    """Give head outputs their usual norm beyond `reference` keys; norms (heads,) by layer."""
    return _Normed(norms, reference, dose)


@dataclass(frozen=True)
class _Beyond:
    """An edit of tokens that see more keys than the reference; `_new` gives their outputs."""

    of_layers: Mapping[int, Any]
    reference: int
    dose: float

    def __call__(self, layer: int, x: Tensor, n: Tensor) -> Tensor | None:
        beyond = n > self.reference
        # Whether a token is beyond is known to the host only where it need not wait for it.
        if self.dose == 0 or (beyond.device.type == "cpu" and not bool(beyond.any())):
            return None
        return torch.where(beyond[..., None], self._new(layer, x, n).to(x.dtype), x)

    def _new(self, layer: int, x: Tensor, n: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class _Restored(_Beyond):
    keep_norm: bool

    def _new(self, layer: int, x: Tensor, n: Tensor) -> Tensor:
        own = self.of_layers[layer]
        mean, std = own.at(n[..., 0])
        usual_mean, usual_std = own.at(n.new_full((1,), self.reference))
        gain = _ratio(usual_std, std) ** self.dose
        new: Tensor = mean + self.dose * (usual_mean - mean) + (x - mean) * gain
        return new * _ratio(_norm(x), _norm(new))[..., None] if self.keep_norm else new


@dataclass(frozen=True)
class _Unsloped(_Beyond):
    def _new(self, layer: int, x: Tensor, n: Tensor) -> Tensor:
        slopes = upload(self.of_layers[layer], x.device, torch.float32)
        return x * ((n / self.reference) ** (-self.dose * slopes))[..., None]


@dataclass(frozen=True)
class _Normed(_Beyond):
    def _new(self, layer: int, x: Tensor, n: Tensor) -> Tensor:
        usual = upload(self.of_layers[layer], x.device, torch.float32)
        return x * (_ratio(usual, _norm(x)) ** self.dose)[..., None]


def _norm(x: Tensor) -> Tensor:
    return x.float().square().sum(-1).sqrt()


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below; 1 where that is no positive number."""
    found = above / below
    return found.where(found.isfinite() & (found > 0), 1.0)
