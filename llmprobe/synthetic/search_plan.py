"""Random search: many settings of one network on one task, in pairs with and without dropout.

A setting is a draw of learning rate, dropout, decay of the EMA, width and depth from `RANGES`. It
is trained twice from one seed, without dropout and with its rate, and each training is scored with
its raw weights, their EMA and their BEMA. Settings of equal shape are trained as one computation.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.base.seeds import numpy_generator
from llmprobe.results.search import MARGINS, WEIGHTS, SearchResult
from llmprobe.results.trained import SCORES
from llmprobe.synthetic.decoder_plan import DecoderPlan
from llmprobe.synthetic.plan import Advance, Done, Numbers, Piece, initial_share

STACK = 16
"""Trainings as one computation, in pairs: few settings have the same width and depth."""


class Range(NamedTuple):
    """What a hyper-parameter is drawn from: between two ends, or one of a list."""

    words: str
    ends: tuple[float, float] = (0, 0)
    log: bool = False
    of: tuple[int, ...] = ()

    def draw(self, generator: np.random.Generator) -> float:
        if self.of:
            return int(generator.choice(self.of))
        if self.log:
            return float(np.exp(generator.uniform(*np.log(self.ends))))
        return float(generator.uniform(*self.ends))


RANGES = {
    "learning_rate": Range("3e-4 to 1e-2, log-uniform", (3e-4, 1e-2), log=True),
    "dropout": Range("0.05 to 0.3, uniform", (0.05, 0.3)),
    "ema_decay": Range("1 - decay from 0.001 to 0.1, log-uniform", (1e-3, 1e-1), log=True),
    "width": Range("16, 32 or 64", of=(16, 32, 64)),
    "depth": Range("1, 2 or 3 layers", of=(1, 2, 3)),
}


class Setting(NamedTuple):
    """One draw of the search."""

    seed: int
    learning_rate: float
    dropout: float
    ema_decay: float
    width: int
    depth: int


def draw_setting(seed: int) -> Setting:
    """The setting of a seed, which no other depends on."""
    generator = numpy_generator(seed, "setting")
    drawn: dict[str, Any] = {name: of.draw(generator) for name, of in RANGES.items()}
    drawn["ema_decay"] = 1 - drawn["ema_decay"]
    return Setting(seed, **drawn)


@dataclass(frozen=True)
class SearchPlan(DecoderPlan):
    """A setting for each seed of `base`; `variants` is the one network that is searched."""

    def configuration(self) -> dict[str, Any]:
        facts = super().configuration()
        for name in ("learning_rate", "dropout", "ema_decay", "width", "layers"):
            del facts[name]  # they are drawn
        return facts | {"search": {name: of.words for name, of in RANGES.items()}}

    def settings(self) -> list[Setting]:
        return [draw_setting(seed) for seed in self.base.seeds]

    def served(self) -> tuple[str, ...]:
        """The searched network with each kind of weights."""
        (network,) = self.variants
        return tuple(network if w == "raw" else f"{network}+{w}" for w in WEIGHTS)

    def pieces(self) -> list[Piece]:
        """Settings of one width and depth, each with its twin; the largest networks first."""
        shapes: dict[tuple[int, int], list[Setting]] = {}
        for setting in self.settings():
            shapes.setdefault((setting.width, setting.depth), []).append(setting)
        order = sorted(shapes, key=lambda shape: -(shape[0] ** 2) * shape[1])
        n = STACK // 2
        return [
            self._group(shapes[shape][start : start + n])
            for shape in order
            for start in range(0, len(shapes[shape]), n)
        ]

    def _group(self, settings: Sequence[Setting]) -> Piece:
        (network,) = self.variants
        first = settings[0]
        twins = [setting for setting in settings for _ in range(2)]
        training = dataclasses.replace(
            self.base,
            variant=f"{network}+dropout",
            seeds=tuple(s.seed for s in twins),
            width=first.width,
            layers=first.depth,
            learning_rate=tuple(s.learning_rate for s in twins),
            dropout=tuple(s.dropout * on for s in settings for on in (0, 1)),
            ema_decay=tuple(s.ema_decay for s in twins),
            averages=("bema", "ema"),
        )
        name = f"width{first.width}.depth{first.depth}.{first.seed}-{settings[-1].seed}"
        return Piece(name, training, self.served())

    def measure(self, network: Any, advance: Advance) -> Numbers:
        return self.scores(network, advance)

    def join(self, done: Sequence[Done], device: torch.device) -> SearchResult:
        settings = self.settings()
        order = {seed: index for index, seed in enumerate(self.base.seeds)}
        shape = (len(settings), 2)
        scores = {n: np.full((*shape, len(WEIGHTS), len(self.lengths)), np.nan) for n in SCORES}
        diverged = np.full(shape, -1)
        for one in done:
            at = [order[seed] for seed in one.piece.training.seeds[::2]]
            diverged[at] = one.diverged.reshape(-1, 2)
            for w, variant in enumerate(self.served()):
                for name, array in scores.items():
                    found = one.measured[variant][name]
                    array[at, :, w] = found.reshape(-1, 2, len(self.lengths))
        columns = {name: np.array([getattr(s, name) for s in settings]) for name in RANGES}
        numbers: dict[str, Any] = columns | scores
        return SearchResult(
            **self.facts(done, device),
            margins=MARGINS,
            warnings=tuple(self._weak(diverged)),
            ranges={name: of.words for name, of in RANGES.items()},
            weights=WEIGHTS,
            diverged=diverged,
            **numbers,
        )

    def _weak(self, diverged: NDArray[Any]) -> Iterator[str]:
        for on, word in ((0, "without"), (1, "with")):
            bad = [s for s, d in zip(self.base.seeds, diverged[:, on], strict=True) if d >= 0]
            if bad:
                yield f"{word} dropout, settings diverged or learned nothing: {bad}"
        old = sum(initial_share(piece.training) > 0.01 for piece in self.pieces())
        if old:
            yield (
                f"in {old} of {len(self.pieces())} groups an average ema still has more than 1 % "
                "of the initial weights in it; train longer"
            )
        if len(self.base.seeds) < 16:
            yield "fewer than 16 settings decide little; use 64 or more for a claim"
