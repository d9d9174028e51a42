"""Tasks of sequences, with several right answers: their training, and how the pieces of a plan
become a `LegalityResult`.

Training is that of a language model: each token is predicted from those before it. The loss is
taken against the token that came (`sampled`), as with any text, or against the known distribution
it came from (`exact`), which has the same mean and none of the noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.seeds import torch_generator
from llmprobe.results.base import Result
from llmprobe.results.legality import MARGINS, LegalityResult
from llmprobe.results.trained import SCORES, TARGETS
from llmprobe.synthetic.decoder_network import (
    DECODER_PARTS,
    Decoder,
    check_decoder_heads,
    needs_context,
    parse_decoder_variant,
)
from llmprobe.synthetic.decoder_scores import attention_entropy, digest_test_sequences, score
from llmprobe.synthetic.layers import Drop, by_seed
from llmprobe.synthetic.plan import Advance, Done, Numbers, Plan
from llmprobe.synthetic.positions import Couple, check_couple, draw_places
from llmprobe.synthetic.tasks import DecoderTask, SequenceTask
from llmprobe.synthetic.training import Batch, Training, check_size, seed_generators, steps_of
from llmprobe.synthetic.variants import BASELINE, Parts


@dataclass(frozen=True, kw_only=True)
class CausalTraining(Training):
    """A training of a causal decoder, whatever it answers."""

    parts: ClassVar[Parts] = DECODER_PARTS
    kind: ClassVar[type[DecoderTask]]
    """Of the tasks."""

    vocab: int | None = None
    layers: int = 1
    value_size: int | None = None
    """Of a head; width / heads if not given."""
    context: int | None = None
    """How many places learned and drawn positions have; one for each token if None."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layers", "value_size", "context"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        self.sequences.check(self.longest, "train_lengths")
        check_couple(self.parse(self.variant), self.task, self.couple)

    def parse(self, variant: str) -> dict[str, str]:
        return parse_decoder_variant(variant, self.sequences.baseline)

    def check_heads(self) -> None:
        check_decoder_heads(self.width, self.heads, self.parse(self.variant))

    @property
    def couple(self) -> Couple | None:
        """What gives tokens that belong together their places, if the task has such."""
        return None

    @property
    def places(self) -> int:
        """The places that there are."""
        return self.context or self.places_of(self.sequences.longest, self.variant)

    def places_of(self, length: int, variant: str) -> int:
        """The places that sequences of a length need."""
        return length + ("drawn" in self.parse(variant))  # that of the token that comes next

    def check_context(self, length: int, variant: str) -> None:
        """Refuse too few places for sequences of a length."""
        needed = self.places_of(length, variant)
        if (
            needs_context(self.parse(variant))
            and self.context is not None
            and self.context < needed
        ):
            raise ValueError(
                f"context: got {self.context}, accepted for {variant}: the {needed} places of the "
                "longest sequence, or more"
            )

    @cached_property
    def sequences(self) -> Any:
        """The task."""
        return self.kind.named(self.task, self.vocab)

    def new_network(self, variant: str | None = None) -> Decoder:
        parts = self.parse(variant or self.variant)
        return Decoder(
            self.sequences.vocab,
            "+".join(parts.values()) or BASELINE,
            seeds=self.seeds,
            width=self.width,
            heads=self.heads,
            layers=self.layers,
            value_size=self.value_size,
            context=self.places,
        )

    def begin(self, network: Decoder, first: Decoder) -> None:
        lots = seed_generators(self, "first stage", 0)
        n = self.batch * self.examples
        drawn = [self.sequences.sample(n, self.longest, generator) for generator in lots]
        tokens = torch.cat(drawn).reshape(self.batch * len(self.seeds), -1)
        places = draw_places(
            self.parse(self.variant),
            tokens,
            lots,
            context=self.places,
            couple=self.couple,
            training=False,
        )
        device = next(network.parameters()).device
        given = None if places is None else places[:, :-1].to(device)
        network.begin_with(first, tokens[:, :-1].to(device), given)

    @property
    def examples(self) -> int:
        """Of a training sequence."""
        return 1

    def _sum(self, x: Tensor) -> Tensor:
        """Over all positions of a seed's sequences."""
        return by_seed(x, len(self.seeds)).flatten(1).float().sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class DecoderTraining(CausalTraining):
    """A training of a decoder on the first tokens of sequences."""

    kind: ClassVar[type[DecoderTask]] = SequenceTask

    task: str = "set-complement"
    shortest: int = 1
    longest: int = 4
    target: str = "sampled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in TARGETS:
            raise ValueError(f"target: got {self.target!r}, accepted: {', '.join(TARGETS)}")

    @property
    def activations(self) -> int:
        return self.batch * self.longest * (self.layers * self.width + int(self.sequences.vocab))

    @cached_property
    def _chance(self) -> float:
        """The share of right answers of guessing."""
        tokens = self.sequences.sample(64, self.longest, torch_generator(0, "chance"))
        allowed = self.sequences.allowed(tokens)[:, self.shortest - 1 :]
        return float(allowed[allowed.any(dim=-1)].float().mean())

    def has_learned(self, loss: Tensor, right: Tensor) -> Tensor:
        # By answers, not by loss: with many right ones the best loss is next to that of guessing.
        return right > self._chance + 0.05 * (1 - self._chance)

    def batches(self, block: int) -> Iterator[Batch]:
        """Tokens (seeds * batch, longest + 1), what is allowed after each but the last, and the
        places of the tokens where they are drawn."""
        n_steps = steps_of(self, block)
        parts, lots = self.parse(self.variant), seed_generators(self, "places", block)
        drawn = [
            self.sequences.sample(n_steps * self.batch, self.longest, generator)
            for generator in seed_generators(self, "sequences", block)
        ]
        for step in range(n_steps):
            rows = slice(step * self.batch, (step + 1) * self.batch)
            tokens = torch.cat([tokens[rows] for tokens in drawn])
            places = draw_places(parts, tokens, lots, context=self.places)
            allowed = self.sequences.allowed(tokens)
            yield (tokens, allowed) if places is None else (tokens, allowed, places)

    def losses(self, network: Decoder, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        tokens, allowed, *drawn = batch
        places = drawn[0][:, :-1] if drawn else None
        asked = slice(self.shortest - 1, None)
        allowed = allowed[:, asked]
        logits = network(tokens[:, :-1], drop=drop, places=places).logits[:, asked]
        logp = logits.log_softmax(dim=-1)
        n = allowed.sum(dim=-1)
        live = n > 0
        if self.target == "exact":
            loss = -(logp * allowed).sum(dim=-1) / n.clamp(min=1)
        else:
            loss = -logp.gather(-1, tokens[:, self.shortest :, None])[..., 0]
        hits = allowed.gather(-1, logits.argmax(dim=-1, keepdim=True))[..., 0]
        n_live = self._sum(live).clamp(min=1)  # all games of a small batch may have ended
        return self._sum(loss * live) / n_live, self._sum(hits & live) / n_live


@dataclass(frozen=True)
class DecoderPlan(Plan):
    """Variants of a decoder, scored after more tokens than training showed."""

    measured: ClassVar[tuple[str, ...]] = (*SCORES, "uniform_mass", "n_sequences")

    base: DecoderTraining

    def __post_init__(self) -> None:
        super().__post_init__()
        for variant in self.variants:
            self.base.check_context(max(*self.lengths, self.base.longest), variant)

    def work(self, network: Decoder) -> int:
        return self.sets

    def measure(self, network: Decoder, advance: Advance) -> Numbers:
        entropy = attention_entropy(network, self.base.sequences, self.lengths, self.sets)
        return self.scores(network, advance) | {"entropy": entropy}

    def scores(self, network: Decoder, advance: Advance) -> Numbers:
        """What is measured of the predictions alone."""
        return score(
            network,
            self.base.sequences,
            self.lengths,
            self.sets,
            advance=lambda n: advance(n, "sequences"),
        )

    def length_axis(self, name: str) -> int:
        return -1

    def join(self, done: Sequence[Done], device: torch.device) -> Result:
        training = self.trained(done)
        numbers: dict[str, Any] = {name: self.stacked(done, name) for name in SCORES} | training
        if all("entropy" in found for one in done for found in one.measured.values()):
            numbers["entropy"] = self.stacked(done, "entropy")  # older folders have none
        return LegalityResult(
            **self.facts(done, device),
            margins=MARGINS,
            variants=self.variants,
            warnings=tuple(self.warnings(training["diverged"])),
            uniform_mass=_of_all(done, "uniform_mass").mean(axis=0),
            **numbers,
        )

    def facts(self, done: Sequence[Done], device: torch.device) -> dict[str, Any]:
        """What any result of these tasks says of itself."""
        base = self.base
        return {
            "provenance": self.provenance(
                "Decoder", digest_test_sequences(base.sequences, base.seeds), device
            ),
            "task": base.task,
            "seeds": base.seeds,
            "lengths": self.lengths,
            "train_lengths": (base.shortest, base.longest),
            "n_sequences": tuple(int(n) for n in _of_all(done, "n_sequences").min(axis=0)),
            "shared_tests": False,
            "vocab": base.sequences.vocab,
            "target": base.target,
            "schedule": base.schedule,
            "steps": base.steps,
        }


def _of_all(done: Sequence[Done], name: str) -> NDArray[np.float64]:
    """What is the same for all variants of a seed, of every seed: (seeds, lengths).

    A seed stands there as often as it was trained, equally often for all.
    """
    return np.concatenate([one.measured[one.piece.variants[0]][name] for one in done])
