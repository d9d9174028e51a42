"""From logits to attention weights: the softmax and its rivals.

Each takes logits (seeds * batch, heads, n) of one query over n items and gives weights of that
shape; parameters have a first axis for the seeds.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.base.temperatures import entropy_scaling
from llmprobe.synthetic.layers import SeedNorm


class Softmax(nn.Module):
    """The plain one; `cold` lowers its temperature where the weights are spread thin."""

    maps: ClassVar[int] = 1
    """Sets of queries and keys that a head has."""

    def __init__(self, seeds: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.cold = False
        self.norm: nn.Module = nn.Identity()
        """What this attention does to the output of each head."""

    def forward(self, logits: Tensor) -> Tensor:
        weights = logits.softmax(dim=-1)
        return (logits * entropy_scaling(weights)).softmax(dim=-1) if self.cold else weights


class ScalableSoftmax(Softmax):
    """softmax(s log(n) logits), s learned, arXiv 2501.19399: the more items, the colder."""

    def __init__(self, seeds: int, heads: int, head_size: int) -> None:
        super().__init__(seeds, heads, head_size)
        # At ten items, amid the usual training lengths, it begins as the plain softmax.
        self.scale = nn.Parameter(torch.full((seeds, heads), 1 / math.log(10)))

    def forward(self, logits: Tensor) -> Tensor:
        return super().forward(_by_head(self.scale * math.log(logits.shape[-1]), logits) * logits)


class DifferentialSoftmax(Softmax):
    """softmax₁ − λ softmax₂, arXiv 2410.05258; the logits hold all first maps, then all second."""

    maps = 2
    start: ClassVar[float] = 0.8 - 0.6 * math.exp(-0.3 * 0)
    """λ at the beginning, in the first layer."""

    def __init__(self, seeds: int, heads: int, head_size: int) -> None:
        super().__init__(seeds, heads, head_size)
        self.vectors = nn.Parameter(torch.zeros(seeds, 4, head_size))
        self.norm = _DifferentialNorm(seeds, head_size, gain=True, center=False)

    def draw(self, seed: int, generator: torch.Generator) -> None:
        """The initial values of one seed."""
        self.vectors.data[seed].normal_(std=0.1, generator=generator)

    def forward(self, logits: Tensor) -> Tensor:
        q1, k1, q2, k2 = self.vectors.unbind(dim=1)
        strength = (q1 * k1).sum(-1).exp() - (q2 * k2).sum(-1).exp() + self.start
        first, second = super().forward(logits).chunk(2, dim=1)
        return first - _by_head(strength[:, None], logits) * second


class _DifferentialNorm(SeedNorm):
    """RMSNorm of a head, made smaller by what the second softmax takes away at the beginning."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 - DifferentialSoftmax.start)


class NormalizedScores(Softmax):
    """Logits standardized over the items, gain and shift a head, no softmax: arXiv 2005.09561."""

    def __init__(self, seeds: int, heads: int, head_size: int) -> None:
        super().__init__(seeds, heads, head_size)
        self.gain = nn.Parameter(torch.ones(seeds, heads))
        self.shift = nn.Parameter(torch.zeros(seeds, heads))
        self.norm = SeedNorm(seeds, head_size, gain=True, bias=True)

    def forward(self, logits: Tensor) -> Tensor:
        standard = F.layer_norm(logits, logits.shape[-1:])
        return _by_head(self.gain, logits) * standard + _by_head(self.shift, logits)


def _by_head(parameter: Tensor, logits: Tensor) -> Tensor:
    """(seeds, heads) for each of the logits (seeds * batch, heads, n)."""
    return parameter.repeat_interleave(len(logits) // len(parameter), dim=0)[..., None]
