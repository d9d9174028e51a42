"""Layers of many seeds at once: each parameter has a first axis for them.

A batch holds one seed's examples after another's, (seeds * batch, ...), so that what comes out of a
module has the shape that it would have for one seed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.base.seeds import torch_generator

Drop = Callable[[Tensor], Tensor]
"""What a network applies where dropout stands; a `SeedDropout` in training."""


def no_drop(x: Tensor) -> Tensor:
    """What stands there otherwise."""
    return x


INITIAL = 0.1
"""Standard deviation of an embedding's initial values."""


def by_seed(x: Tensor, seeds: int) -> Tensor:
    """(seeds * batch, ...) to (seeds, batch, ...)."""
    return x.unflatten(0, (seeds, -1))


def check_heads(width: int, heads: int, *, rotary: bool = False) -> None:
    """Refuse heads that the width cannot be divided into."""
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"heads: got {heads}, accepted: a divisor of the width, {width}")
    if rotary and width // heads % 2:
        raise ValueError(
            f"width: got {width}, accepted for rotary positions: an even size for each of "
            f"{heads} heads"
        )


@runtime_checkable
class Drawn(Protocol):
    """A module whose initial values are random."""

    def draw(self, seed: int, generator: torch.Generator) -> None:
        """The initial values of one seed."""


class SeedNetwork(nn.Module):
    """A network for each of some seeds, made of the layers below."""

    def __init__(self, seeds: Sequence[int], **arguments: Any) -> None:
        """`arguments`: the other arguments of the subclass, for `member`."""
        super().__init__()
        self.seeds = tuple(seeds)
        self._arguments = arguments

    def arguments_of(self, indices: Sequence[int]) -> dict[str, Any]:
        """What a network of some of the seeds is made with, besides the seeds."""
        return dict(self._arguments)

    def draw_weights(self) -> None:
        """Draw each seed's initial weights, by the module's name: all variants begin alike."""
        for path, module in self.named_modules():
            if isinstance(module, Drawn):
                for index, seed in enumerate(self.seeds):
                    module.draw(index, torch_generator(seed, "weights", path))

    def member(self, index: int) -> Self:
        """The network of one seed, as a copy."""
        return self.members([index])

    def members(self, indices: Sequence[int]) -> Self:
        """The networks of some seeds, as a copy."""
        seeds = tuple(self.seeds[index] for index in indices)
        some = type(self)(seeds=seeds, **self.arguments_of(indices))
        all_weights = self.state_dict()
        # Stacked and assigned: to move the indices, or the weights it began with, would hold up a
        # device for nothing.
        own = {
            name: torch.stack([all_weights[name][index] for index in indices])
            for name in some.state_dict()
        }
        some.load_state_dict(own, assign=True)
        return some.to(next(self.parameters()))


class SeedLinear(nn.Module):
    """A linear map for each seed: (seeds * batch, n, inputs) to (seeds * batch, n, outputs)."""

    def __init__(self, seeds: int, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(seeds, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(seeds, outputs)) if bias else None

    def draw(self, seed: int, generator: torch.Generator) -> None:
        """The initial values of one seed, distributed as those of `nn.Linear`."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        for parameter in self.parameters():
            parameter.data[seed].uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        seeds = len(self.weight)
        rows = x.reshape(seeds, -1, x.shape[-1])
        if self.bias is None:
            mapped = torch.bmm(rows, self.weight)
        else:
            mapped = torch.baddbmm(self.bias[:, None], rows, self.weight)
        return mapped.view(*x.shape[:-1], -1)


class SeedEmbedding(nn.Module):
    """A table for each seed: (seeds * batch, n) tokens to (seeds * batch, n, width)."""

    def __init__(self, seeds: int, num_embeddings: int, width: int) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.weight = nn.Parameter(torch.zeros(seeds, num_embeddings, width))

    def draw(self, seed: int, generator: torch.Generator) -> None:
        """The initial values of one seed, of a size that training soon outgrows."""
        self.weight.data[seed].normal_(0, INITIAL, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        # One lookup in the tables one below the other.
        seeds = len(self.weight)
        offsets = torch.arange(seeds, device=tokens.device).repeat_interleave(len(tokens) // seeds)
        rows = tokens + self.num_embeddings * offsets[:, None]
        return F.embedding(rows, self.weight.flatten(0, 1))


class SeedMlp(nn.Module):
    """Linear maps with a GELU between, two of them if not said otherwise."""

    def __init__(self, seeds: int, inputs: int, width: int, outputs: int, layers: int = 2) -> None:
        super().__init__()
        self.first = SeedLinear(seeds, inputs, width)
        self.middle = nn.ModuleList(SeedLinear(seeds, width, width) for _ in range(layers - 2))
        self.second = SeedLinear(seeds, width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        for layer in self.middle:
            x = F.gelu(layer(x))
        return self.second(x)


class SeedNorm(nn.Module):
    """LayerNorm of the last axis, RMSNorm where not centered; gain and bias are a seed's own."""

    def __init__(
        self, seeds: int, size: int, *, gain: bool = False, bias: bool = False, center: bool = True
    ) -> None:
        super().__init__()
        self.size = size
        self.center = center
        self.gain = nn.Parameter(torch.ones(seeds, size)) if gain else None
        self.bias = nn.Parameter(torch.zeros(seeds, size)) if bias else None
        self.register_buffer("only", None)

    only: Tensor | None
    """Which seeds have this norm: (seeds,); all of them if None."""

    def forward(self, x: Tensor) -> Tensor:
        if self.only is None:
            return self._normalized(x)
        groups = (by_seed(y, len(self.only)) for y in (self._normalized(x), x))
        return torch.where(self.only.view(-1, *[1] * x.ndim), *groups).flatten(0, 1)

    def _normalized(self, x: Tensor) -> Tensor:
        normalize = F.layer_norm if self.center else F.rms_norm
        x = normalize(x, (self.size,), eps=1e-5)
        if self.gain is not None:
            x = (by_seed(x, len(self.gain)) * _as_axes_of(self.gain, x)).flatten(0, 1)
        if self.bias is not None:
            x = (by_seed(x, len(self.bias)) + _as_axes_of(self.bias, x)).flatten(0, 1)
        return x


class SeedDropout:
    """Dropout with a rate and a generator for each seed, so that none depends on its neighbors."""

    def __init__(self, rates: Sequence[float], generators: Sequence[torch.Generator]) -> None:
        self.rates, self.generators = rates, generators

    def __call__(self, x: Tensor) -> Tensor:
        """Drop features of (seeds * batch, ..., size), and scale what is left."""
        shape = by_seed(x, len(self.rates)).shape[1:]
        kept = torch.stack(
            [
                _kept(shape, rate, generator)
                for rate, generator in zip(self.rates, self.generators, strict=True)
            ]
        )
        return x * kept.flatten(0, 1).to(x)


def _kept(shape: torch.Size, rate: float, generator: torch.Generator) -> Tensor:
    """What each feature is multiplied by: 0, or so much that the mean stays."""
    if not rate:  # half of a search's trainings
        return torch.ones(shape, device=generator.device)
    drawn = torch.empty(shape, device=generator.device).bernoulli_(1 - rate, generator=generator)
    return drawn.div_(1 - rate)


def _as_axes_of(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter (seeds, size) with the axes of x (seeds * batch, ..., size) between."""
    return parameter.view(len(parameter), *[1] * (x.ndim - 1), -1)
