"""From logits to attention weights: the softmax and its rivals.

Each takes logits (seeds * batch, heads, ..., n) of queries over n items and gives weights of that
shape; parameters have a first axis for the seeds. Sets have one query, which sees all items, so
that the axes between are none. In a decoder they are the queries, and `seen` (queries, n) says
which keys each one sees: those up to itself. Statistics of a row are those of the keys it sees, and
nothing depends on later tokens.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.base.seeds import numpy_generator
from llmprobe.base.temperatures import entropy_scaling
from llmprobe.base.transfers import as_float64, widened
from llmprobe.synthetic.layers import SeedNorm
from llmprobe.synthetic.variants import Part


class Softmax(nn.Module):
    """The plain one; `cold` lowers its temperature where the weights are spread thin."""

    maps: ClassVar[int] = 1
    """Sets of queries and keys that a head has."""

    def __init__(
        self,
        seeds: int,
        heads: int,
        head_size: int,
        *,
        value_size: int | None = None,
        depth: int = 0,
    ) -> None:
        """`value_size`: of a head's output, the head size if None; `depth`: layers before."""
        super().__init__()
        self.cold = False
        self.norm: nn.Module = nn.Identity()
        """What this attention does to the output of each head."""

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        weights = _only(logits, seen).softmax(dim=-1)
        if not self.cold:
            return weights
        return _only(logits * entropy_scaling(weights), seen).softmax(dim=-1)

    def weigh(self, q: Tensor, k: Tensor, seen: Tensor, bias: Tensor | None = None) -> Tensor:
        """Weights of queries over keys (seeds * batch, maps, n, size); `bias` is added to logits
        and may have a first axis that divides theirs."""
        logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if bias is not None:
            logits = (logits.unflatten(0, (len(bias), -1)) + bias[:, None]).flatten(0, 1)
        return self(logits, seen)


class ScalableSoftmax(Softmax):
    """softmax(s log(n) logits), s learned, arXiv 2501.19399: the more items, the colder."""

    def __init__(self, seeds: int, heads: int, head_size: int, **shape: int | None) -> None:
        super().__init__(seeds, heads, head_size)
        # At ten items, amid the usual training lengths, it begins as the plain softmax.
        self.scale = nn.Parameter(torch.full((seeds, heads), 1 / math.log(10)))

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        scale = _by_head(self.scale, logits) * _counts(logits, seen).to(logits).log()
        return super().forward(scale * logits, seen)


class DifferentialSoftmax(Softmax):
    """softmax₁ − λ softmax₂, arXiv 2410.05258; the logits hold all first maps, then all second."""

    maps = 2

    def __init__(
        self,
        seeds: int,
        heads: int,
        head_size: int,
        *,
        value_size: int | None = None,
        depth: int = 0,
    ) -> None:
        super().__init__(seeds, heads, head_size)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * depth)
        """λ at the beginning."""
        self.vectors = nn.Parameter(torch.zeros(seeds, 4, head_size))
        self.norm = _DifferentialNorm(seeds, value_size or head_size, self.start)

    def draw(self, seed: int, generator: torch.Generator) -> None:
        """The initial values of one seed."""
        self.vectors.data[seed].normal_(std=0.1, generator=generator)

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        q1, k1, q2, k2 = self.vectors.unbind(dim=1)
        strength = (q1 * k1).sum(-1).exp() - (q2 * k2).sum(-1).exp() + self.start
        first, second = super().forward(logits, seen).chunk(2, dim=1)
        return first - _by_head(strength[:, None], logits) * second


class _DifferentialNorm(SeedNorm):
    """RMSNorm of a head, made smaller by what the second softmax takes away at the beginning."""

    def __init__(self, seeds: int, size: int, start: float) -> None:
        super().__init__(seeds, size, gain=True, center=False)
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 - self.start)


class NormalizedScores(Softmax):
    """Logits standardized over the items, gain and shift a head, no softmax: arXiv 2005.09561."""

    def __init__(
        self,
        seeds: int,
        heads: int,
        head_size: int,
        *,
        value_size: int | None = None,
        depth: int = 0,
    ) -> None:
        super().__init__(seeds, heads, head_size)
        self.gain = nn.Parameter(torch.ones(seeds, heads))
        self.shift = nn.Parameter(torch.zeros(seeds, heads))
        self.norm = SeedNorm(seeds, value_size or head_size, gain=True, bias=True)

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is None:
            standard = F.layer_norm(logits, logits.shape[-1:])
        else:
            centered = logits - _mean(logits, seen)
            standard = centered * torch.rsqrt(_mean(centered.square(), seen) + 1e-5)
        weights = _by_head(self.gain, logits) * standard + _by_head(self.shift, logits)
        return weights if seen is None else weights * seen


class Entmax(Softmax):
    """1.5-entmax, arXiv 1905.05702: (logits / 2 − τ)² where positive, τ such that they sum to 1.

    Weights of logits far below the largest are exactly 0.
    """

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        half = _only(logits, seen) / 2
        # From 1 below the largest on all weights are 0; what lies further need not be finite.
        half = (half - half.amax(dim=-1, keepdim=True)).clamp(min=-2)
        with torch.no_grad():
            ordered = half.sort(dim=-1, descending=True).values
            n = torch.arange(1, half.shape[-1] + 1, device=half.device, dtype=half.dtype)
            mean = ordered.cumsum(dim=-1) / n
            squares = ordered.square().cumsum(dim=-1) - n * mean.square()
            tau = mean - ((1 - squares) / n).clamp(min=0).sqrt()
            support = (tau <= ordered).sum(dim=-1, keepdim=True)
            inside = half >= ordered.gather(-1, support - 1)
        # Again for that support alone: the root of the others may be 0, which has no gradient.
        n = inside.sum(dim=-1, keepdim=True)
        mean = (half * inside).sum(dim=-1, keepdim=True) / n
        squares = ((half - mean).square() * inside).sum(dim=-1, keepdim=True)
        tau = mean - ((1 - squares) / n).sqrt()
        return (half - tau).clamp(min=0).square()


class LinearWeights(Softmax):
    """φ(q)·φ(k) over their sum, φ(x) = ReLU(Wx + b), W and b a head's own: arXiv 2103.13076.

    φ has as many features as a head. The sums over keys could be kept as running totals, at a cost
    that is linear in the length; at the lab's lengths the products are as fast.
    """

    def __init__(self, seeds: int, heads: int, head_size: int, **shape: int | None) -> None:
        super().__init__(seeds, heads, head_size)
        self.weight = nn.Parameter(torch.zeros(seeds, heads, head_size, head_size))
        self.bias = nn.Parameter(torch.zeros(seeds, heads, head_size))

    def draw(self, seed: int, generator: torch.Generator) -> None:
        """The initial values of one seed, distributed as those of `nn.Linear`."""
        bound = 1 / math.sqrt(self.weight.shape[-1])
        for parameter in (self.weight, self.bias):
            parameter.data[seed].uniform_(-bound, bound, generator=generator)

    def weigh(self, q: Tensor, k: Tensor, seen: Tensor, bias: Tensor | None = None) -> Tensor:
        assert bias is None, "there are no logits to add it to"
        products = (self._features(q) @ self._features(k).transpose(-1, -2)) * seen
        return products / products.sum(dim=-1, keepdim=True).clamp(min=1e-6)

    def _features(self, x: Tensor) -> Tensor:
        groups = x.unflatten(0, (len(self.weight), -1))
        mapped = groups @ self.weight[:, None] + self.bias[:, None, :, None]
        return mapped.relu().flatten(0, 1)


def n_informative(n: Tensor) -> Tensor:
    """⌈5 ⌈ln n⌉⌉, at least 1: how many queries or keys of n Reguformer keeps, arXiv 2212.14246."""
    return (5 * widened(n).log().ceil()).clamp(min=1)


class SparseQueries(Softmax):
    """Reguformer: only queries whose largest logit is far above their mean one attend.

    The others get the mean of the values they see. A query is held against those before it, so
    that later tokens change nothing.
    """

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        assert seen is not None, "a set has one query"
        weights = super().forward(logits, seen)
        with torch.no_grad():
            measure = self._measure(logits, seen)
            above = ((measure[..., None, :] > measure[..., None]) & seen).sum(dim=-1, keepdim=True)
            n = _counts(logits, seen)
            attends = above < n_informative(n)
        return torch.where(attends, weights, seen.to(weights) / n)

    def _measure(self, logits: Tensor, seen: Tensor) -> Tensor:
        """By which queries are chosen, (..., queries)."""
        return _only(logits, seen).amax(dim=-1) - _mean(logits, seen)[..., 0]


class RandomQueries(SparseQueries):
    """Its control: as many queries, chosen by lot; the same ones for all sequences."""

    def _measure(self, logits: Tensor, seen: Tensor) -> Tensor:
        lots = _lots(logits.shape[-2], logits.shape[1])
        return lots.T.to(logits.device).expand(logits.shape[:-1])


class SparseKeys(Softmax):
    """Reguformer: only keys attend that some query wants far more than the mean query does.

    Of a set with its one query, the items with the largest logits. In a decoder a row counts the
    queries up to its own.
    """

    def forward(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            measure = self._measure(logits, seen)
            n = n_informative(_counts(logits, seen)).long().clamp(max=logits.shape[-1])
            ordered = measure.sort(dim=-1, descending=True).values
            least = ordered.gather(-1, (n - 1).expand(*measure.shape[:-1], 1))
        return super().forward(logits.masked_fill(measure < least, -torch.inf), seen)

    def _measure(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        """By which keys are chosen, as the logits; −∞ where a key is not seen."""
        if seen is None:
            return logits
        largest = _only(logits, seen).cummax(dim=-2).values
        mean = (logits * seen).cumsum(dim=-2) / seen.cumsum(dim=-2).clamp(min=1)
        return _only(largest - mean, seen)


class RandomItems(SparseKeys):
    """Its control in sets, which have no order: as many items, chosen by lot."""

    def _measure(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        lots = _lots(logits.shape[-1], logits.shape[1])
        return lots.T.to(logits.device).expand_as(logits)


SOFTMAXES = {
    "ssmax": Part("softmax", "softmax(s log(n) logits), s learned", ScalableSoftmax),
    "differential": Part(
        "softmax", "the difference of two softmaxes, RMSNorm on heads", DifferentialSoftmax
    ),
    "normalized": Part(
        "softmax", "standardized logits without softmax, LayerNorm on heads", NormalizedScores
    ),
    "entmax": Part("softmax", "1.5-entmax: weights of small logits are exactly 0", Entmax),
}
"""Parts of sets and decoders; what `build` is given: (seeds, heads, head size)."""
COLDER = ("ssmax", "differential")
"""Those whose temperature can change."""


def check_temperature(name: str, parts: Mapping[str, str]) -> None:
    """Refuse a colder softmax where there is none."""
    if "temperature" in parts and parts.get("softmax", COLDER[0]) not in COLDER:
        raise ValueError(f"variants: {name!r} has no softmax whose temperature could change")


def entropy_of(weights: Tensor) -> Tensor:
    """Entropy of weights (..., n), in nats; NaN where the weights are no distribution."""
    positive = (weights >= 0).all(dim=-1) & ((weights.sum(dim=-1) - 1).abs() < 1e-3)
    entropy = as_float64(torch.special.entr(weights).sum(dim=-1))
    return entropy.where(positive.to(entropy.device), torch.nan)


def _lots(n: int, heads: int) -> Tensor:
    """Random numbers (n, heads), of which the first are the same whatever n is."""
    return torch.from_numpy(numpy_generator(0, "sparse").random((n, heads))).float()


def _only(logits: Tensor, seen: Tensor | None) -> Tensor:
    """The logits, −∞ where a key is not seen."""
    return logits if seen is None else logits.masked_fill(~seen, -torch.inf)


def _counts(logits: Tensor, seen: Tensor | None) -> Tensor:
    """How many keys a query sees: (queries, 1), or (1,) where all see all."""
    if seen is None:
        return torch.tensor([logits.shape[-1]], device=logits.device)
    return seen.sum(dim=-1, keepdim=True)


def _mean(x: Tensor, seen: Tensor) -> Tensor:
    """Over the keys that are seen: (..., 1)."""
    return (x * seen).sum(dim=-1, keepdim=True) / seen.sum(dim=-1, keepdim=True)


def _by_head(parameter: Tensor, logits: Tensor) -> Tensor:
    """(seeds, heads) for each of the logits (seeds * batch, heads, ..., n)."""
    rows = parameter.repeat_interleave(len(logits) // len(parameter), dim=0)
    return rows.view(*rows.shape, *[1] * (logits.ndim - 2))
