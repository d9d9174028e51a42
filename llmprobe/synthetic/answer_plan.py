"""Tasks with one right answer of several tokens: their training, and how the pieces of a plan
become an `AnswersResult`.

A step has examples of one length, as with sets. The loss is the cross entropy of the tokens of
answers; tokens of questions do not count. With `concatenate`, a training sequence is several
examples one after another, so that training has tokens as far out as longer examples have: the cure
of arXiv 2109.07276.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from llmprobe.base.seeds import torch_generator
from llmprobe.results.answers import MARGINS, METRICS, AnswersResult
from llmprobe.results.base import Result
from llmprobe.synthetic.answer_scores import (
    digest_test_examples,
    guessed,
    of_answer,
    score_answers,
)
from llmprobe.synthetic.decoder_network import Decoder
from llmprobe.synthetic.decoder_plan import CausalTraining
from llmprobe.synthetic.layers import Drop
from llmprobe.synthetic.plan import Advance, Done, Numbers, Plan
from llmprobe.synthetic.positions import Couple, check_couple, draw_places, place_losses
from llmprobe.synthetic.tasks import AnswerTask, DecoderTask
from llmprobe.synthetic.training import Batch, check_size, seed_generators, steps_of


@dataclass(frozen=True, kw_only=True)
class AnswerTraining(CausalTraining):
    """A training of a decoder on questions and their answers. All seeds get the same lengths."""

    kind: ClassVar[type[DecoderTask]] = AnswerTask

    task: str = "addition"
    shortest: int = 1
    longest: int = 10
    concatenate: int = 1
    """Examples of a training sequence, one after another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("concatenate", self.concatenate)

    @property
    def examples(self) -> int:
        return self.concatenate

    @property
    def couple(self) -> Couple | None:
        return None if self.sequences.places(1) is None else self._couple

    def _couple(self, tokens: Tensor) -> Tensor:
        """Examples that stand one after another have the same places."""
        examples = tokens.split(tokens.shape[1] // self.concatenate, dim=1)
        return torch.cat([self.sequences.couple(example) for example in examples], dim=1)

    def places_of(self, length: int, variant: str) -> int:
        task = self.sequences
        parts = self.parse(variant)
        check_couple(parts, self.task, self.couple)
        if parts.get("drawn") in ("coupled", "predicted") and "bias" not in parts:
            return int(max(task.places(length)))
        return int(max(task.size(length), self.concatenate * task.size(self.longest)))

    @property
    def activations(self) -> int:
        n_tokens = self.batch * self.concatenate * int(self.sequences.size(self.longest))
        return n_tokens * (self.layers * self.width + int(self.sequences.vocab))

    @cached_property
    def _chance(self) -> float:
        """The share of tokens that are right without reading the question."""
        ends = {self.shortest, self.longest}
        return float(np.mean([guessed(self.sequences, length)[1] for length in ends]))

    def has_learned(self, loss: Tensor, right: Tensor) -> Tensor:
        return right > self._chance + 0.05 * (1 - self._chance)

    def batches(self, block: int) -> Iterator[Batch]:
        """Tokens (seeds * batch, concatenate * size), and their places where they are drawn. A
        block's examples of a length are drawn at once."""
        lengths = torch.randint(
            self.shortest,
            self.longest + 1,
            (steps_of(self, block),),
            generator=torch_generator(0, "lengths", block),
        ).tolist()
        generators = seed_generators(self, "examples", block)
        per_step = self.batch * self.concatenate
        drawn = {}
        for length in sorted(set(lengths)):
            n = lengths.count(length) * per_step
            own = [self.sequences.sample(n, length, generator) for generator in generators]
            drawn[length] = iter(torch.stack(own).split(per_step, dim=1))
        parts, lots = self.parse(self.variant), seed_generators(self, "places", block)
        for length in lengths:
            tokens = next(drawn[length]).reshape(len(self.seeds) * self.batch, -1)
            places = draw_places(parts, tokens, lots, context=self.places, couple=self.couple)
            yield (tokens,) if places is None else (tokens, places)

    def losses(self, network: Decoder, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        tokens, *drawn = batch
        places = drawn[0] if drawn else None
        logits, placed = network(
            tokens[:, :-1], drop=drop, places=None if places is None else places[:, :-1]
        )
        predicted, came = self._of_answers(logits, tokens)
        loss = F.cross_entropy(predicted.transpose(1, 2), came, reduction="none")
        if placed is not None:  # a second head, which learns where the answer's tokens belong
            assert places is not None
            loss = loss + place_losses(*self._of_answers(placed, places))
        hits = predicted.argmax(dim=-1) == came
        n = came.numel() / len(self.seeds)
        return self._sum(loss) / n, self._sum(hits) / n

    def _of_answers(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What `of_answer` gives, of all examples of a sequence."""
        size = tokens.shape[1] // self.concatenate
        answer = self.sequences.answer(self.sequences.length_of(tokens[:, :size]))
        pairs = [
            of_answer(logits, tokens, slice(answer.start + at, answer.stop + at, answer.step))
            for at in range(0, tokens.shape[1], size)
        ]
        predicted, came = (torch.cat(parts, dim=1) for parts in zip(*pairs, strict=True))
        return predicted, came


@dataclass(frozen=True)
class AnswerPlan(Plan):
    """Variants of a decoder, tested on longer and on shorter questions than training showed."""

    measured: ClassVar[tuple[str, ...]] = tuple(METRICS)

    base: AnswerTraining

    def __post_init__(self) -> None:
        super().__post_init__()
        for variant in self.variants:
            self.base.check_context(max(*self.lengths, self.base.longest), variant)

    def work(self, network: Decoder) -> int:
        return self.sets * sum(self.lengths)

    def measure(self, network: Decoder, advance: Advance) -> Numbers:
        """By seed and length (seeds, lengths)."""
        return score_answers(
            network,
            self.base.sequences,
            self.lengths,
            self.sets,
            advance=lambda length, n: advance(n * length, f"length {length}"),
        )

    def length_axis(self, name: str) -> int:
        return 1

    def join(self, done: Sequence[Done], device: torch.device) -> Result:
        base, task = self.base, self.base.sequences
        training = self.trained(done)
        return AnswersResult(
            provenance=self.provenance(
                "Decoder", digest_test_examples(task, self.lengths, base.seeds), device
            ),
            task=base.task,
            counted=task.unit,
            variants=self.variants,
            seeds=base.seeds,
            lengths=self.lengths,
            train_lengths=(base.shortest, base.longest),
            n_examples=(self.sets,) * len(self.lengths),
            shared_tests=False,
            margins=MARGINS,
            chance=np.array([guessed(task, length)[0] for length in self.lengths]),
            schedule=base.schedule,
            steps=base.steps,
            warnings=tuple(self.warnings(training["diverged"])),
            **{name: self.stacked(done, name) for name in METRICS},
            **training,
        )
