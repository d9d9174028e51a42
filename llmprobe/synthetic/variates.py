"""An encoder over variates, as in iTransformer (arXiv 2310.06625): a token is a whole series.

    network = train_variates(seeds=4, steps=2000)
    prompts = draw_variates(64, 1024, seed=0)           # token lists: samples of 1024 variates
    probe_variance(network.member(0), "16..1024", prompts=prompts, position="first")

Attention is among the variates of one sample, which have no order, so the length that attention
spreads over is their number. A sample has two hidden sine waves. Each variate is a random mixture
of them with noise, and the network, given the last `WINDOW` values of all variates, forecasts the
next `HORIZON` of each. The waves are seen better in many noisy variates than in one, so attention
helps.

A token is the window itself: `WINDOW` values of `BITS` bits each. A probe that draws tokens at
random draws windows of noise; `draw_variates` draws samples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from llmprobe.base.files import as_path
from llmprobe.base.machine import without_denormals
from llmprobe.base.seeds import torch_generator
from llmprobe.synthetic.decoder_attention import DecoderAttention
from llmprobe.synthetic.decoder_network import DECODER_PARTS, DecoderLayer
from llmprobe.synthetic.layers import Drop, SeedLinear, SeedNetwork, by_seed, check_heads, no_drop
from llmprobe.synthetic.training import Batch, Training, seed_generators, steps_of, train
from llmprobe.synthetic.variants import BASELINE, Parts, parse_variant

WINDOW, HORIZON = 8, 4
BITS = 7
N_WAVES, NOISE = 2, 0.5
PERIODS = 6.0, 24.0
_DRAWN = 2**12
"""Variates that a test draws at once. Part of what the tests are."""
LARGEST = 4.0
"""Values of a window lie between this and its negative."""
SIGNAL = 0.5
"""Variance of a forecast value over samples: each wave has half of it."""
VARIATE_PARTS = {
    name: part
    for name, part in DECODER_PARTS.items()
    if part.place in ("softmax", "temperature") and not part.staged
}


def sample_variates(
    batch: int, n_variates: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens (batch, n_variates) and what comes next, (batch, n_variates, HORIZON)."""
    low, high = PERIODS
    periods = low + (high - low) * torch.rand(batch, N_WAVES, 1, generator=generator)
    phases = torch.rand(batch, N_WAVES, 1, generator=generator)
    time = torch.arange(WINDOW + HORIZON)
    waves = torch.sin(2 * math.pi * (time / periods + phases))
    shares = torch.randn(batch, n_variates, N_WAVES, generator=generator) / math.sqrt(N_WAVES)
    series = shares @ waves
    noise = NOISE * torch.randn(batch, n_variates, WINDOW, generator=generator)
    return windows_as_tokens(series[..., :WINDOW] + noise), series[..., WINDOW:]


def windows_as_tokens(windows: Tensor) -> Tensor:
    """(..., WINDOW) values, rounded to BITS bits each, as one number."""
    top = 2**BITS - 1
    levels = ((windows / LARGEST).clamp(-1, 1) + 1).mul(top / 2).round().long()
    return (levels << (BITS * torch.arange(WINDOW))).sum(dim=-1)


def tokens_as_windows(tokens: Tensor) -> Tensor:
    """And back: (...) tokens to (..., WINDOW) values."""
    top = 2**BITS - 1
    levels = (tokens[..., None] >> (BITS * torch.arange(WINDOW, device=tokens.device))) & top
    return (levels * (2 / top) - 1) * LARGEST


def draw_variates(
    n: int, n_variates: int, *, related: bool = True, seed: int = 0
) -> list[list[int]]:
    """Samples as prompts for a probe: lists of tokens. Fewer variates are the first of them.

    With `related=False` every variate comes from a different sample, so that they are independent.
    """
    generator = torch_generator(seed, "variates as prompts", n_variates)
    size = (n, n_variates) if related else (n * n_variates, 1)
    tokens, _ = sample_variates(*size, generator)
    found: list[list[int]] = tokens.view(n, n_variates).tolist()
    return found


class VariateEmbedding(nn.Module):
    """A linear map of the window: (batch, n) tokens to (batch, n, width)."""

    num_embeddings = 2 ** (BITS * WINDOW)

    def __init__(self, seeds: int, width: int) -> None:
        super().__init__()
        self.map = SeedLinear(seeds, WINDOW, width)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.map(tokens_as_windows(tokens).to(self.map.weight.dtype))
        return embedded


class Forecast(NamedTuple):
    """What an encoder makes of a batch."""

    values: Tensor
    """(batch, variates, HORIZON)"""


class VariateEncoder(SeedNetwork):
    """Attention among variates and an MLP, each with LayerNorm after its residual sum."""

    _can_record_outputs: ClassVar = {"attentions": DecoderAttention}

    def __init__(
        self,
        variant: str = BASELINE,
        *,
        seeds: Sequence[int] = (0,),
        width: int = 32,
        heads: int = 2,
        layers: int = 2,
    ) -> None:
        super().__init__(seeds, variant=variant, width=width, heads=heads, layers=layers)
        check_heads(width, heads)
        parts = {**parse_variant(variant, VARIATE_PARTS), "mlp": "mlp", "norm": "postnorm"}
        n, shape = len(seeds), {"value_size": width // heads, "causal": False}
        self.embedding = VariateEmbedding(n, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, seeds=n, layer_idx=index, parts=parts, **shape)
            for index in range(layers)
        )
        self.forecast = SeedLinear(n, width, HORIZON)
        self.draw_weights()

    def get_input_embeddings(self) -> VariateEmbedding:
        return self.embedding

    def forward(self, input_ids: Tensor, use_cache: bool = False, drop: Drop = no_drop) -> Forecast:
        """Tokens (batch, variates), one seed's samples after another's."""
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x, drop)
        return Forecast(self.forecast(x))


@dataclass(frozen=True, kw_only=True)
class VariateTraining(Training):
    """A training on samples of a few variates. All seeds of all variants get the same numbers."""

    parts: ClassVar[Parts] = VARIATE_PARTS

    task: str = "variates"
    width: int = 32
    heads: int = 2
    layers: int = 2
    batch: int = 64
    shortest: int = 4
    longest: int = 16
    learning_rate: float = 2e-3
    schedule: str = "cosine"

    def has_learned(self, loss: Tensor, right: Tensor) -> Tensor:
        return loss < 0.9 * SIGNAL

    def new_network(self, variant: str | None = None) -> VariateEncoder:
        return VariateEncoder(
            variant or self.variant,
            seeds=self.seeds,
            width=self.width,
            heads=self.heads,
            layers=self.layers,
        )

    def batches(self, block: int) -> Iterator[Batch]:
        """Tokens and what comes next."""
        numbers = torch.randint(
            self.shortest,
            self.longest + 1,
            (steps_of(self, block),),
            generator=torch_generator(0, "lengths", block),
        )
        generators = seed_generators(self, "variates", block)
        for n in numbers.tolist():
            drawn = [sample_variates(self.batch, n, generator) for generator in generators]
            tokens, targets = (torch.cat(parts) for parts in zip(*drawn, strict=True))
            yield tokens, targets

    def losses(self, network: VariateEncoder, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        """The mean squared error, and the share of the variance that is forecast."""
        tokens, targets = batch
        errors = (network(tokens, drop=drop).values - targets).square()
        loss = by_seed(errors, len(self.seeds)).flatten(1).mean(dim=1)
        return loss, 1 - loss.detach() / SIGNAL


def train_variates(
    variant: str = BASELINE,
    *,
    seeds: int = 4,
    first_seed: int = 0,
    steps: int = 2000,
    output: str | Path | None = None,
    **settings: Any,
) -> VariateEncoder:
    """Train encoders over variates, all seeds as one; `member(i)` is one of them, to be probed.

    `settings`: fields of `VariateTraining`, such as `width` or `longest`, the most variates in
    training. With an `output` folder the same call resumes.
    """
    own = tuple(range(first_seed, first_seed + seeds))
    training = VariateTraining(variant=variant, seeds=own, steps=steps, **settings)
    checkpoint = None
    if output is not None:
        folder = as_path("output", output)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / f"{variant}.{own[0]}-{own[-1]}.safetensors"
    network: VariateEncoder = train(training, checkpoint=checkpoint).network
    return network


def forecast_errors(
    network: VariateEncoder, lengths: Sequence[int], *, n: int = 256
) -> NDArray[np.float64]:
    """Mean squared errors over n samples of each number of variates: (seeds, lengths)."""
    found = np.empty((len(network.seeds), len(lengths)))
    members = [network.member(index) for index in range(len(network.seeds))]
    with torch.inference_mode(), without_denormals():
        for index, (seed, member) in enumerate(zip(network.seeds, members, strict=True)):
            for column, length in enumerate(lengths):
                generator = torch_generator(seed, "test variates", length)
                at_once, total = max(_DRAWN // length, 1), 0.0
                for start in range(0, n, at_once):
                    size = min(at_once, n - start)
                    tokens, targets = sample_variates(size, length, generator)
                    errors = (member(tokens).values - targets).square()
                    total += size * float(errors.double().mean())
                found[index, column] = total / n
    return found
