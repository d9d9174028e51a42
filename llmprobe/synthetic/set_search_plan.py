"""Random search over tasks of sets: does a norm help, whatever the setting?

A setting is a draw of steps, learning rate and its schedule, weight decay, width, heads, layers of
the MLPs, training lengths, W_O and residual sum. From one seed it is trained as it is and again
with each of the compared parts, and tested at multiples of its longest training length. Trainings
of a setting that differ in which norms they have are done as one computation.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.base.seeds import numpy_generator
from llmprobe.results.set_search import MARGINS, MEASURED, PARAMETERS, SetSearchResult
from llmprobe.synthetic.plan import Advance, Done, Numbers, Piece, stack_size
from llmprobe.synthetic.search_plan import Range
from llmprobe.synthetic.set_network import PARTS, SetNetwork, may_share
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.set_scores import digest_test_sets, evaluate
from llmprobe.synthetic.set_tokens import N_CLASSES
from llmprobe.synthetic.tasks import SetTask
from llmprobe.synthetic.variants import BASELINE, parse_variant

TIMES = (1, 4, 16, 64, 256)
"""Tests, in multiples of the longest training length."""
COMPARED = "layernorm,headnorm,concatnorm,postnorm,adaptive"
"""What each setting is trained with, where the caller names nothing: a norm at each place, and a
colder softmax at test time, which needs no training."""
STEPS = {"quick": 5000, "desk": 50_000, "paper": 50_000}
"""The most steps, by preset."""
_FEWEST = 25
"""The most steps over the fewest."""
RANGES = {
    "learning_rate": Range("2e-4 to 5e-3, log-uniform", (2e-4, 5e-3), log=True),
    "cosine": Range("0 (constant rate) or 1", of=(0, 1)),
    "weight_decay": Range("1e-5 to 1e-1, log-uniform", (1e-5, 1e-1), log=True),
    "width": Range("32, 64 or 128", of=(32, 64, 128)),
    "heads": Range("1, 2 or 4", of=(1, 2, 4)),
    "mlp_layers": Range("2 or 3", of=(2, 3)),
    "longest": Range("8, 16 or 32 items, from a third of it on", of=(8, 16, 32)),
    "projection": Range("0 or 1; 1 with several heads", of=(0, 1)),
    "residual": Range("0 or 1", of=(0, 1)),
}
DRAWN = (
    *("learning_rate", "schedule", "weight_decay", "width", "heads", "mlp_layers"),
    *("shortest", "longest"),
)
"""Settings of a training that the search draws; of `steps` it takes the most."""
_UNUSED = ("dropout", "ema_decay")
"""Of parts that a caller may name, at the values that a training has by itself."""


class SetSetting(NamedTuple):
    """One draw of the search."""

    seed: int
    n_steps: int
    learning_rate: float
    cosine: int
    weight_decay: float
    width: int
    heads: int
    mlp_layers: int
    longest: int
    projection: int
    residual: int

    @property
    def network(self) -> str:
        """The variant that is trained without any of the compared parts."""
        own = [("residual", self.residual), ("outproj", self.projection and self.heads == 1)]
        return "+".join(name for name, there in own if there) or BASELINE

    def with_part(self, part: str) -> str | None:
        """The variant with a part; None where that is no other network, or none at all."""
        places = parse_variant(part, PARTS)
        # Without W_O, all heads joined are the output, whose norm has a name.
        if ("sum" in places and not self.residual) or ("joined" in places and not self.projection):
            return None
        return part if self.network == BASELINE else f"{self.network}+{part}"


def draw_set_setting(seed: int, most_steps: int) -> SetSetting:
    """The setting of a seed, which no other depends on."""
    generator = numpy_generator(seed, "set setting")
    drawn: dict[str, Any] = {name: of.draw(generator) for name, of in RANGES.items()}
    steps = Range("", (max(most_steps / _FEWEST, 1), most_steps), log=True).draw(generator)
    drawn["projection"] |= int(drawn["heads"] > 1)
    return SetSetting(seed, round(steps), **drawn)


@dataclass(frozen=True)
class SetSearchPlan(SetPlan):
    """A setting for each seed of `base`; `variants` are the parts that are compared.

    `lengths` are multiples of a setting's longest training length, `base.steps` the most steps.
    """

    measured: ClassVar[tuple[str, ...]] = MEASURED

    def configuration(self) -> dict[str, Any]:
        facts = super().configuration()
        for name in (*DRAWN, *_UNUSED):
            del facts[name]
        return facts | {"search": self.ranges()}

    def ranges(self) -> dict[str, str]:
        """What each setting is drawn from, in words."""
        fewest = max(self.base.steps / _FEWEST, 1)
        steps = {"n_steps": f"{fewest:.0f} to {self.base.steps}, log-uniform"}
        return steps | {name: of.words for name, of in RANGES.items()}

    def settings(self) -> list[SetSetting]:
        return [draw_set_setting(seed, self.base.steps) for seed in self.base.seeds]

    def pieces(self) -> list[Piece]:
        """The trainings of each setting; the longest first, so that processes end together."""
        settings = sorted(self.settings(), key=lambda s: -s.n_steps * s.width * s.longest)
        return [piece for setting in settings for piece in self._of_setting(setting)]

    def _of_setting(self, setting: SetSetting) -> Iterator[Piece]:
        """Its trainings, those together that one network can hold."""
        names = tuple(name for name in self._names(setting) if name is not None)
        stacks: list[list[Piece]] = []
        for piece in SetPlan(names, self._base_of(setting), self.lengths, self.sets).pieces():
            for stack in stacks:
                full = len(stack) >= stack_size(piece.training)
                if not full and all(_together(piece, other) for other in stack):
                    stack.append(piece)
                    break
            else:
                stacks.append([piece])
        yield from map(_stacked, stacks)

    def _base_of(self, setting: SetSetting) -> SetTraining:
        return dataclasses.replace(
            self.base,
            seeds=(setting.seed,),
            steps=setting.n_steps,
            learning_rate=setting.learning_rate,
            schedule="cosine" if setting.cosine else "constant",
            weight_decay=setting.weight_decay,
            width=setting.width,
            heads=setting.heads,
            mlp_layers=setting.mlp_layers,
            shortest=setting.longest // 3,
            longest=setting.longest,
            warmup=min(self.base.warmup, setting.n_steps // 10),
        )

    def _names(self, setting: SetSetting) -> list[str | None]:
        """The variants of a setting: as it is, and with each part."""
        return [setting.network, *(setting.with_part(part) for part in self.variants)]

    def work(self, network: SetNetwork) -> int:
        return super().work(network) * self._longest(network)

    def _longest(self, network: SetNetwork) -> int:
        return draw_set_setting(network.seeds[0], self.base.steps).longest

    def measure(self, network: SetNetwork, advance: Advance) -> Numbers:
        """By seed, of which there is one, and multiple: (1, multiples)."""
        found: dict[str, list[Any]] = {name: [] for name in self.measured}
        for times in self.lengths:
            length = times * self._longest(network)
            step = partial(_advance, advance, f"length {length}")
            one = evaluate(network, length, self.sets, advance=step)
            for name, values in found.items():
                values.append(getattr(one, name))
        return {name: np.stack(values, axis=1) for name, values in found.items()}

    def apart(self, result: Any) -> list[Done]:
        done, settings = [], {setting.seed: setting for setting in self.settings()}
        for piece in self.pieces():
            training = piece.training
            seed = training.seeds[0]
            at, names = self.base.seeds.index(seed), self._names(settings[seed])
            measured = {
                variant: {
                    name: getattr(result, name)[at, names.index(variant)][None]
                    for name in self.measured
                }
                for variant in piece.variants
            }
            rows = [names.index(self._served(piece, i)[0]) for i in range(len(training.seeds))]
            ended = result.diverged[at, rows]
            # A search keeps no losses.
            done.append(Done(piece, measured, losses=np.empty((0, len(rows))), diverged=ended))
        return done

    def _served(self, piece: Piece, index: int) -> list[str]:
        """The variants that a network of a piece serves."""
        return [name for name in piece.variants if piece.training.gives(index, name)]

    def join(self, done: Sequence[Done], device: torch.device) -> SetSearchResult:
        base, settings = self.base, self.settings()
        order = {setting.seed: index for index, setting in enumerate(settings)}
        shape = (len(settings), 1 + len(self.variants))
        found = {n: np.full((*shape, len(self.lengths)), np.nan) for n in self.measured}
        diverged = np.full(shape, -1)
        for one in done:
            at = order[one.piece.training.seeds[0]]
            names = self._names(settings[at])
            for index, step in enumerate(one.diverged):
                for variant in self._served(one.piece, index):
                    diverged[at, names.index(variant)] = step
                    for name, array in found.items():
                        array[at, names.index(variant)] = one.measured[variant][name][0]
        columns = {name: np.array([getattr(s, name) for s in settings]) for name in PARAMETERS}
        numbers: dict[str, Any] = columns | found
        task = SetTask.named(base.task)
        return SetSearchResult(
            provenance=self.provenance(
                "SetNetwork", digest_test_sets(task, self.lengths, base.seeds), device
            ),
            task=base.task,
            seeds=base.seeds,
            variants=self.variants,
            lengths=self.lengths,
            train_lengths=(1, 1),
            n_sets=(self.sets,) * len(self.lengths),
            shared_tests=False,
            margins=MARGINS,
            chance=1 / N_CLASSES,
            schedule="drawn",
            steps=base.steps,
            ranges=self.ranges(),
            warnings=tuple(self._weak(diverged)),
            diverged=diverged,
            **numbers,
        )

    def _weak(self, diverged: NDArray[Any]) -> Iterator[str]:
        for name, steps in zip(("as they are", *self.variants), diverged.T, strict=True):
            bad = [s for s, d in zip(self.base.seeds, steps, strict=True) if d >= 0]
            if bad:
                yield f"{name}, settings diverged or learned nothing: {bad}"
        if len(self.base.seeds) < 16:
            yield "fewer than 16 settings decide little; use 64 or more for a claim"


def _together(one: Piece, other: Piece) -> bool:
    """Whether one network can hold the trainings of both."""
    return may_share(*(piece.training.parse(piece.training.variant) for piece in (one, other)))


def _stacked(pieces: Sequence[Piece]) -> Piece:
    """Several trainings of one seed as one piece."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0].training
    assert isinstance(first, SetTraining)
    training = dataclasses.replace(
        first,
        seeds=first.seeds * len(pieces),
        each_variant=tuple(piece.training.variant for piece in pieces),
        averages=tuple(sorted({kept for piece in pieces for kept in piece.training.averages})),
    )
    served = tuple(variant for piece in pieces for variant in piece.variants)
    # Another name than that of the first, whose files a folder may have from a run of that alone.
    seed = first.seeds[0]
    return Piece(f"{first.variant}.norms.{seed}-{seed}", training, served)


def _advance(advance: Advance, note: str, n_items: int) -> None:
    advance(n_items, note)
