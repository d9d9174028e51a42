"""Tasks of sets, with one right answer: their training, and how the pieces of a plan become a
`SyntheticResult`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from llmprobe.base.seeds import torch_generator
from llmprobe.results.accuracy import MARGINS, SyntheticResult
from llmprobe.results.base import Result
from llmprobe.synthetic.layers import Drop, by_seed
from llmprobe.synthetic.plan import Advance, Done, Numbers, Piece, Plan, at_step
from llmprobe.synthetic.set_network import (
    PARTS,
    SetNetwork,
    check_mlp_layers,
    check_projection,
    parse_set_variant,
)
from llmprobe.synthetic.set_scores import N_FEATURES, digest_test_sets, evaluate
from llmprobe.synthetic.set_tokens import N_CLASSES
from llmprobe.synthetic.tasks import SetTask
from llmprobe.synthetic.training import Batch, Training, seed_generators, steps_of
from llmprobe.synthetic.variants import Parts

_OF_FIRST_SEED = ("feature_values", "top_weights")


@dataclass(frozen=True, kw_only=True)
class SetTraining(Training):
    """A training on sets. All seeds of all variants get the same lengths.

    `each_variant` is that of each seed, where they differ in which norms they have. The first is
    `variant`.
    """

    parts: ClassVar[Parts] = PARTS

    task: str = "argmax"
    mlp_layers: int = 2
    """Of the MLPs around the attention."""
    each_variant: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.each_variant is not None and (
            self.each_variant[:1] != (self.variant,) or len(self.each_variant) != len(self.seeds)
        ):
            raise ValueError(
                f"each_variant: got {self.each_variant}, accepted: one for each of the "
                f"{len(self.seeds)} seeds, the first {self.variant!r}"
            )
        SetTask.named(self.task).check(self.longest, "train_lengths")
        check_projection(self.parse(self.variant), self.heads)
        check_mlp_layers(self.mlp_layers)

    @property
    def activations(self) -> int:
        return super().activations * (self.mlp_layers - 1)

    def parse(self, variant: str) -> dict[str, str]:
        return parse_set_variant(variant)

    def has_learned(self, loss: Tensor, right: Tensor) -> Tensor:
        return loss <= 0.98 * math.log(N_CLASSES)  # that of guessing, less what it scatters by

    def variant_of(self, index: int) -> str:
        return self.each_variant[index] if self.each_variant else self.variant

    def members(self, variant: str) -> list[int]:
        everyone = super().members(variant)
        return [i for i in everyone if self.gives(i, variant)] if self.each_variant else everyone

    def new_network(self, variant: str | None = None) -> SetNetwork:
        return SetNetwork(
            self.task,
            variant or self.each_variant or self.variant,
            seeds=self.seeds,
            width=self.width,
            heads=self.heads,
            mlp_layers=self.mlp_layers,
        )

    def batches(self, block: int) -> Iterator[Batch]:
        """Tokens and labels."""
        task = SetTask.named(self.task)
        lengths = torch.randint(
            self.shortest,
            self.longest + 1,
            (steps_of(self, block),),
            generator=torch_generator(0, "lengths", block),
        )
        # A seed that stands in a stack several times gets its sets drawn once.
        own = dict(zip(self.seeds, seed_generators(self, "sets", block), strict=True))
        for length in lengths.tolist():
            drawn = {seed: task.sample(self.batch, length, own[seed]) for seed in own}
            tokens, labels = (
                torch.cat(parts) for parts in zip(*map(drawn.get, self.seeds), strict=True)
            )
            yield tokens, labels

    def losses(self, network: SetNetwork, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        tokens, labels = batch
        logits, n_seeds = network(tokens, drop=drop).logits, len(self.seeds)
        loss = by_seed(F.cross_entropy(logits, labels, reduction="none"), n_seeds).mean(dim=1)
        hits = by_seed(logits.argmax(dim=1) == labels, n_seeds)
        return loss, hits.float().mean(dim=1)


@dataclass(frozen=True)
class SetPlan(Plan):
    """Variants of a network over sets, tested on larger ones."""

    measured: ClassVar[tuple[str, ...]] = (*SyntheticResult.by_length, *_OF_FIRST_SEED)

    base: SetTraining

    def work(self, network: SetNetwork) -> int:
        return sum(self.lengths) * self.sets * len(network.seeds)

    def measure(self, network: SetNetwork, advance: Advance) -> Numbers:
        """By seed and length (seeds, lengths); of the first seed (lengths, ...)."""
        found: dict[str, list[Any]] = {}
        for length in self.lengths:

            def step(n_items: int, length: int = length) -> None:
                advance(n_items, f"length {length}")

            for name, value in vars(evaluate(network, length, self.sets, advance=step)).items():
                found.setdefault(name, []).append(value)
        return {name: np.stack(v, axis=self.length_axis(name)) for name, v in found.items()}

    def _early(self, done: Sequence[Done], name: str) -> NDArray[Any]:
        """What was measured before the end: (variants, seeds, steps, lengths)."""
        shape = (len(self.variants), len(self.base.seeds), len(self.score_at), len(self.lengths))
        found = np.full(shape, np.nan)
        for v, (variant, ones) in enumerate(self.serving(done).items()):
            for s, step in enumerate(self.score_at):
                parts = [one.early[at_step(variant, step)][name] for one in ones]
                found[v, :, s] = np.concatenate(parts)
        return found

    def length_axis(self, name: str) -> int:
        return 0 if name in _OF_FIRST_SEED else 1

    def apart(self, result: Any) -> list[Done]:
        return [self._taken(piece, result) for piece in self.pieces()]

    def _taken(self, piece: Piece, result: Any) -> Done:
        """One piece of a saved result. Of its early evaluations only accuracies are kept."""
        own = [self.base.seeds.index(seed) for seed in piece.training.seeds]
        rows = {variant: self.variants.index(variant) for variant in piece.variants}
        first = rows[piece.variants[0]]  # the others are the same training
        return Done(
            piece,
            {
                variant: {name: getattr(result, name)[row][own] for name in result.by_length}
                | {name: getattr(result, name)[row] for name in _OF_FIRST_SEED}
                for variant, row in rows.items()
            },
            losses=result.loss[first][own].T,
            diverged=result.diverged[first][own],
            early={
                at_step(variant, step): {"accuracy": result.step_accuracy[row][own, s]}
                for variant, row in rows.items()
                for s, step in enumerate(self.score_at)
            },
        )

    def join(self, done: Sequence[Done], device: torch.device) -> Result:
        base = self.base
        training = self.trained(done)
        task = SetTask.named(base.task)
        firsts = {variant: ones[0] for variant, ones in self.serving(done).items()}
        return SyntheticResult(
            provenance=self.provenance(
                "SetNetwork", digest_test_sets(task, self.lengths, base.seeds), device
            ),
            task=base.task,
            variants=self.variants,
            seeds=base.seeds,
            lengths=self.lengths,
            train_lengths=(base.shortest, base.longest),
            n_sets=(self.sets,) * len(self.lengths),
            shared_tests=False,
            margins=MARGINS,
            chance=1 / N_CLASSES,
            schedule=base.schedule,
            steps=base.steps,
            warnings=tuple(self.warnings(training["diverged"])),
            feature_indices=tuple(range(min(N_FEATURES, base.width))),
            score_steps=self.score_at,
            step_accuracy=self._early(done, "accuracy"),
            **{name: self.stacked(done, name) for name in SyntheticResult.by_length},
            **{
                name: np.stack([one.measured[variant][name] for variant, one in firsts.items()])
                for name in _OF_FIRST_SEED
            },
            **training,
        )
