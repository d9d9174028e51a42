"""What a run of the lab consists of, and how its pieces become one result.

A piece is a stack of seeds of one training, with the evaluations of all variants that it serves.
Pieces are independent: they are what is kept in the output folder and what processes share out.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import llmprobe
from llmprobe.results import Provenance
from llmprobe.synthetic.evaluation import N_FEATURES, Measured, digest_test_sets
from llmprobe.synthetic.network import parse_variant, trained_as
from llmprobe.synthetic.outcomes import SyntheticResult
from llmprobe.synthetic.tasks import N_CLASSES, find_task
from llmprobe.synthetic.training import BLOCK, Training

STACK = 16
"""Seeds that are trained as one computation; more gain nothing on a CPU."""


@dataclass(frozen=True)
class Piece:
    """A stack of seeds of one training, and the variants that are measured on it."""

    name: str
    training: Training
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """What came of a piece."""

    piece: Piece
    measured: dict[str, list[Measured]]
    """By variant, one for each length."""
    losses: np.ndarray[Any, Any]
    diverged: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Plan:
    """What is trained and what is measured."""

    variants: tuple[str, ...]
    base: Training
    lengths: tuple[int, ...]
    sets: int

    def configuration(self) -> dict[str, Any]:
        """Everything that decides the numbers; two runs that agree in it may share a folder."""
        facts = dataclasses.asdict(self.base)
        for name in ("variant", "averages"):  # they follow from the variants
            del facts[name]
        asked = {"variants": self.variants, "lengths": self.lengths, "sets": self.sets}
        return {**facts, **asked, "llmprobe": llmprobe.__version__}

    def pieces(self) -> list[Piece]:
        trainings: dict[str, list[str]] = {}
        for variant in self.variants:
            trainings.setdefault(trained_as(variant), []).append(variant)
        return [
            self._piece(trained, served, self.base.seeds[start : start + STACK])
            for start in range(0, len(self.base.seeds), STACK)
            for trained, served in trainings.items()
        ]

    def _piece(self, trained: str, served: list[str], seeds: tuple[int, ...]) -> Piece:
        kept = {parts["weights"] for v in served if "weights" in (parts := parse_variant(v))}
        training = dataclasses.replace(
            self.base, variant=trained, seeds=seeds, averages=tuple(sorted(kept))
        )
        return Piece(f"{trained}.{seeds[0]}-{seeds[-1]}", training, tuple(served))

    def join(self, done: Sequence[Done], device: torch.device) -> SyntheticResult:
        """The result of all pieces."""
        by_variant = {
            name: [one for one in done if name in one.piece.variants] for name in self.variants
        }

        def stacked(field: str) -> Any:
            """(variants, seeds, lengths)"""
            return np.stack(
                [
                    np.concatenate(
                        [
                            np.stack([getattr(m, field) for m in one.measured[name]], axis=1)
                            for one in ones
                        ]
                    )
                    for name, ones in by_variant.items()
                ]
            )

        def of_first_seed(field: str) -> Any:
            """(variants, lengths, ...)"""
            return np.stack(
                [
                    np.stack([getattr(m, field) for m in ones[0].measured[name]])
                    for name, ones in by_variant.items()
                ]
            )

        def of_training(field: str, axis: int) -> Any:
            return np.stack(
                [
                    np.concatenate([getattr(one, field) for one in ones], axis=axis)
                    for ones in by_variant.values()
                ]
            )

        base = self.base
        task = find_task(base.task)
        diverged = of_training("diverged", 0)
        blocks = np.arange(1, -(-base.steps // BLOCK) + 1) * BLOCK
        return SyntheticResult(
            provenance=Provenance.record(
                model="SetNetwork",
                revision=None,
                dtype="float32",
                device=device.type,
                attention="own",
                prompts=base.task,
                prompts_hash=digest_test_sets(task, self.lengths),
                seed=base.seeds[0],
                arguments=self.configuration(),
            ),
            task=base.task,
            variants=self.variants,
            seeds=base.seeds,
            lengths=self.lengths,
            train_lengths=(base.shortest, base.longest),
            n_sets=(self.sets,) * len(self.lengths),
            chance=1 / N_CLASSES,
            schedule=base.schedule,
            steps=base.steps,
            warnings=tuple(self._warnings(diverged)),
            feature_indices=tuple(range(min(N_FEATURES, base.width))),
            accuracy=stacked("accuracy"),
            global_mean=stacked("global_mean"),
            global_variance=stacked("global_variance"),
            feature_variance=stacked("feature_variance"),
            entropy=stacked("entropy"),
            diverged=diverged,
            loss_steps=np.minimum(blocks, base.steps),
            loss=of_training("losses", 1).transpose(0, 2, 1),
            feature_values=of_first_seed("feature_values"),
            top_weights=of_first_seed("top_weights"),
        )

    def _warnings(self, diverged: Any) -> Iterator[str]:
        for name, steps in zip(self.variants, diverged, strict=True):
            bad = [
                f"seed {seed} (step {step})"
                for seed, step in zip(self.base.seeds, steps, strict=True)
                if step >= 0
            ]
            if bad:
                yield f"{name} diverged or learned nothing: {', '.join(bad)}"
        if len(self.base.seeds) < 8:
            yield (
                "fewer than 8 seeds decide little here: seeds differ by more than most variants "
                "do; use 32 or more for a claim"
            )
        left = self.base.ema_decay**self.base.steps
        if left > 0.01 and any("ema" in parse_variant(name).values() for name in self.variants):
            yield (
                f"the average ema still has {left:.0%} of the initial weights in it; train longer "
                "or lower its decay"
            )
