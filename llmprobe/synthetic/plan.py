"""What a run of the lab consists of, whatever is trained in it.

A piece is a stack of seeds of one training, with the evaluations of all variants that it serves.
Pieces are independent: they are what is kept in the output folder and what processes share out.
A `Plan` says what is measured on a piece and how the pieces become one result; see `set_plan`,
`decoder_plan` and `search_plan`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import llmprobe
from llmprobe.errors import CheckpointError
from llmprobe.results.base import Provenance, Result
from llmprobe.synthetic.training import BLOCK, Training
from llmprobe.synthetic.variants import trained_as

STACK = 32
"""Seeds that are trained as one computation; more gain nothing on a CPU."""
_WIDE, _ACTIVATIONS = 4096, 2**27
"""Widths and activations of a stack together: large networks fill a processor by themselves."""
TESTS = "drawn for each seed"
"""Part of a run's configuration. Before, all seeds shared their tests."""
Numbers = dict[str, NDArray[Any]]
Advance = Callable[[int, str], object]


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
    measured: dict[str, Numbers]
    """By variant."""
    losses: NDArray[np.float64]
    """(blocks, seeds)"""
    diverged: NDArray[np.int64]
    early: dict[str, Numbers] = field(default_factory=dict)
    """What was measured before the end, by `at_step(variant, step)`."""


def at_step(variant: str, step: int) -> str:
    """The name of a variant as it was at a step."""
    return f"{variant}@{step}"


def in_order(done: Iterable[Done]) -> list[Done]:
    """By their seeds, as `Plan.join` expects them."""
    return sorted(done, key=lambda one: one.piece.training.seeds)


@dataclass(frozen=True)
class Plan(ABC):
    """What is trained and what is measured."""

    measured: ClassVar[tuple[str, ...]]
    """What `measure` gives by length."""

    variants: tuple[str, ...]
    base: Training
    lengths: tuple[int, ...]
    sets: int
    """Tests at each length."""
    score_at: tuple[int, ...] = ()
    """Steps before the last at which the networks are measured too."""

    def __post_init__(self) -> None:
        for step in self.score_at:
            if not 0 < step < self.base.steps or step % BLOCK:
                raise ValueError(
                    f"score_at: got {step}, accepted: multiples of {BLOCK} from {BLOCK} on, below "
                    f"the {self.base.steps} steps"
                )
        if list(self.score_at) != sorted(set(self.score_at)):
            raise ValueError(f"score_at: got {self.score_at}, accepted: different steps, rising")

    def configuration(self) -> dict[str, Any]:
        """Everything that decides the numbers; two runs that agree in it may share a folder."""
        facts = dataclasses.asdict(self.base)
        for name in ("variant", "each_variant", "averages"):  # they follow from the variants
            facts.pop(name, None)
        asked = {"variants": self.variants, "lengths": self.lengths, "sets": self.sets}
        asked |= {"tests": TESTS}
        if self.score_at:
            asked |= {"score_at": self.score_at}
        return {**facts, **asked, "llmprobe": llmprobe.__version__}

    def pieces(self) -> list[Piece]:
        trainings: dict[str, list[str]] = {}
        for variant in self.variants:
            trainings.setdefault(trained_as(variant, self.base.parts), []).append(variant)
        size = stack_size(self.base)
        return [
            self._piece(trained, served, self.base.seeds[start : start + size])
            for start in range(0, len(self.base.seeds), size)
            for trained, served in trainings.items()
        ]

    def _piece(self, trained: str, served: list[str], seeds: tuple[int, ...]) -> Piece:
        kept = {average for v in served if (average := self.average_of(v)) is not None}
        training = dataclasses.replace(
            self.base, variant=trained, seeds=seeds, averages=tuple(sorted(kept))
        )
        return Piece(f"{trained}.{seeds[0]}-{seeds[-1]}", training, tuple(served))

    def average_of(self, variant: str) -> str | None:
        """Which averaged weights the variant is evaluated with."""
        return self.base.parse(variant).get("weights")

    @abstractmethod
    def work(self, network: Any) -> int:
        """What `measure` advances by in all."""

    @abstractmethod
    def measure(self, network: Any, advance: Advance) -> Numbers:
        """Measure a stack of trained networks; `advance` is called with how much is done."""

    @abstractmethod
    def length_axis(self, name: str) -> int:
        """Which axis of a measured array has the lengths."""

    @abstractmethod
    def join(self, done: Sequence[Done], device: torch.device) -> Result:
        """The result of all pieces, given in order."""

    def apart(self, result: Any) -> list[Done]:
        """What `join` put together, from a saved result: the pieces without their networks."""
        raise CheckpointError(
            f"results of kind {result.kind} do not keep all that their pieces gave; give the "
            "folders of the runs, with their checkpoints"
        )

    def serving(self, done: Sequence[Done]) -> dict[str, list[Done]]:
        """The pieces of each variant, in the order of their seeds."""
        return {v: [one for one in done if v in one.piece.variants] for v in self.variants}

    def stacked(self, done: Sequence[Done], field: str) -> NDArray[Any]:
        """What was measured of each seed: (variants, seeds, ...)."""
        return np.stack(
            [
                np.concatenate([one.measured[variant][field] for one in ones])
                for variant, ones in self.serving(done).items()
            ]
        )

    def trained(self, done: Sequence[Done]) -> Numbers:
        """What is known of the trainings: `loss`, `loss_steps`, `diverged`."""
        by_variant = self.serving(done).values()
        losses = [np.concatenate([one.losses for one in ones], axis=1) for ones in by_variant]
        diverged = [np.concatenate([one.diverged for one in ones]) for ones in by_variant]
        blocks = np.arange(1, -(-self.base.steps // BLOCK) + 1) * BLOCK
        return {
            "diverged": np.stack(diverged),
            "loss_steps": np.minimum(blocks, self.base.steps),
            "loss": np.stack(losses).transpose(0, 2, 1),
        }

    def provenance(self, model: str, tests: str, device: torch.device) -> Provenance:
        """`tests` is a digest of what was tested on."""
        return Provenance.record(
            model=model,
            revision=None,
            dtype="float32",
            device=device.type,
            attention="own",
            prompts=self.base.task,
            prompts_hash=tests,
            seed=self.base.seeds[0],
            arguments=self.configuration(),
        )

    def warnings(self, diverged: NDArray[Any]) -> Iterator[str]:
        """What weakens the numbers, in words."""
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
        left = initial_share(self.base)
        if left > 0.01 and "ema" in {self.average_of(variant) for variant in self.variants}:
            yield (
                f"the average ema still has {left:.0%} of the initial weights in it; train longer "
                "or lower its decay"
            )


def initial_share(training: Training) -> float:
    """What the EMA still has of the initial weights, at the most."""
    return float(max(training.each("ema_decay")) ** training.steps)


def stack_size(training: Training) -> int:
    """Seeds that are trained as one computation."""
    room = min(_WIDE // training.width, _ACTIVATIONS // training.activations)
    return max(1, min(STACK, room))
