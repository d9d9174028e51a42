"""What results of trained networks share: a task, seeds, lengths within training and beyond.

All of it is checked, because a folder may come from anybody. This module needs no torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import VERDICTS
from llmprobe.results.base import Result, check_shape, command_line

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

SCORES = ("kl", "illegal_mass", "illegal_top1", "gap")
"""What is measured of a prediction that has several right answers."""
TARGETS = ("sampled", "exact")
_ROUNDING = 1e-5
"""Sums of probabilities end at least this close to where they should."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrainedResult(Result, kind=""):
    """Networks that were trained at some lengths and tested at others."""

    joins: ClassVar[str] = "llmprobe.synthetic.joining"
    tests: ClassVar[str]
    """The field that says how many tests there are at each length."""
    lists: ClassVar[tuple[str, ...]] = ("seeds", "lengths", "train_lengths")
    """Fields that come back from a file as lists."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Options that a search draws, so that its command has none."""

    task: str
    seeds: tuple[int, ...]
    """All different."""
    lengths: tuple[int, ...]
    """Of the tests, increasing: items of a set, or tokens that were given."""
    train_lengths: tuple[int, int]
    """The shortest and the longest that training saw."""
    schedule: str
    steps: int
    shared_tests: bool = True
    """Whether all seeds were tested on the same sets or sequences, as in older versions. Then
    intervals over seeds leave out what the tests happen to be."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """By metric, the largest difference that does not matter, set before the run: an interval
    within it is called equivalent. Runs of older versions had none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*self.lists, self.tests):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_words("task and schedule", (self.task, self.schedule))
        if not isinstance(self.shared_tests, bool):
            raise ValueError(f"shared_tests: got {self.shared_tests!r}, accepted: true or false")
        object.__setattr__(self, "margins", dict(self.margins))
        for name, margin in self.margins.items():
            if not isinstance(margin, int | float) or not 0 <= margin < np.inf:
                raise ValueError(f"margins: got {margin!r} for {name}, accepted: 0 or more")
        lengths, trained, n_tests = self.lengths, self.train_lengths, getattr(self, self.tests)
        check_whole("lengths", lengths, least=1)
        check_whole("train_lengths", trained, least=1)
        check_whole(self.tests, n_tests, least=1)
        check_whole("steps", (self.steps,), least=1)
        check_whole("seeds", self.seeds)
        check_different("seeds", self.seeds)
        if not lengths or list(lengths) != sorted(set(lengths)):
            raise ValueError(f"lengths: got {lengths!r}, accepted: one or more, increasing")
        if len(trained) != 2 or trained[0] > trained[1]:
            raise ValueError(f"train_lengths: got {trained!r}, accepted: shortest and longest")
        if len(n_tests) != len(lengths):
            raise ValueError(f"{self.tests}: got {n_tests!r}, accepted: one number per length")

    @property
    def subject(self) -> str:
        return self.task

    def command(self) -> str:
        """`llmprobe train-synthetic` with the settings of this run."""
        given = dict(self.provenance.arguments)
        options = {
            "task": given.pop("task", self.task),
            "seeds": len(self.seeds),
            "first_seed": min(self.seeds),
            "train_lengths": f"{self.train_lengths[0]}..{self.train_lengths[1]}",
        }
        if given.pop("search", None):
            options["search"] = options.pop("seeds")
        left_out = ("seeds", "shortest", "longest", "llmprobe", "tests")
        options |= {name: value for name, value in given.items() if name not in left_out}
        for name in self.drawn:
            options.pop(name, None)
        return command_line("train-synthetic", options)

    @property
    def beyond(self) -> tuple[int, ...]:
        """The lengths that training never reached."""
        return tuple(length for length in self.lengths if length > self.train_lengths[1])

    @property
    def whose_tests(self) -> str:
        """Which seeds share their tests, in words."""
        if self.shared_tests:
            return "the same for all seeds, so intervals leave out the noise of the tests"
        return "drawn anew for each seed and shared by its variants"

    @property
    def settings(self) -> str:
        """How the networks were trained, in words, as far as the provenance says."""
        rate, decay, clip = map(self._argument, ("learning_rate", "weight_decay", "clip"))
        words = [f"{self.steps} steps"]
        words.append(f"{self.schedule} learning rate" + ("" if rate is None else f" {rate:g}"))
        if decay is not None:
            words.append(f"weight decay {decay:g}")
        if clip is not None:
            words.append(f"gradients clipped at {clip:g}" if clip else "gradients not clipped")
        return ", ".join(words)

    @property
    def duration(self) -> str:
        """What a headline says of the training: its steps and its clipping."""
        clip = self._argument("clip")
        word = "" if clip is None else f", clip {clip:g}" if clip else ", no clip"
        return f"{self.steps} steps{word}"

    def _argument(self, name: str) -> float | None:
        """A number among the arguments of the call; a search draws some of them."""
        value = self.provenance.arguments.get(name)
        return value if isinstance(value, int | float) else None

    @property
    def unit(self) -> str:
        """What is given to a network."""
        return "moves" if self.task == "othello" else "tokens"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VariantsResult(TrainedResult, kind=""):
    """Variants of a network, all trained with the same seeds."""

    lists: ClassVar[tuple[str, ...]] = (*TrainedResult.lists, "variants")

    variants: tuple[str, ...]
    """The first is the reference of all comparisons."""
    diverged: Integers
    """(variants, seeds): the step from which the loss was not finite, or the last one where it
    ended no better than guessing; −1 where all went well."""
    loss_steps: Integers
    """(points,)"""
    loss: Array
    """Training loss: (variants, seeds, points)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_words("variants", self.variants)
        check_different("variants", self.variants)
        shape = (len(self.variants), len(self.seeds))
        check_shape("diverged", self.diverged, shape)
        check_shape("loss_steps", self.loss_steps, (self.loss_steps.size,))
        check_shape("loss", self.loss, (*shape, *self.loss_steps.shape))


def spoken(verdicts: Iterable[tuple[str, str]], link: str) -> str:
    """Verdicts and what each is of, in words: `confirmed at 64 and 128, undecided at 256`."""
    found: dict[str, list[str]] = {word: [] for word in VERDICTS}
    for word, of in verdicts:
        found.setdefault(word, []).append(of)
    return ", ".join(
        f"{word} {link} {' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}"
        for word, names in found.items()
        if names
    )


def in_points(margin: float) -> str:
    """Such as `1 point` or `0.5 points`."""
    return f"{margin:g} point{'s' * (margin != 1)}"


def explained(margin: str) -> str:
    """What the verdicts of a reading mean; `margin` is in words, empty where none was set."""
    if not margin:
        return (
            "Confirmed, reversed: the 95 % CI lies on one side of 0, and is significant. No margin "
            "was set before the run, so nothing is equivalent."
        )
    return (
        f"Equivalent: the 95 % CI lies within {margin} of 0. Confirmed, reversed: it does not, "
        "lies on one side of 0, and is significant."
    )


def check_words(name: str, words: Iterable[Any]) -> None:
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f"{name}: got {words!r}, accepted: strings")


def check_whole(name: str, numbers: tuple[Any, ...], least: int | None = None) -> None:
    if not all(isinstance(n, int) and (least is None or n >= least) for n in numbers):
        more = "" if least is None else f", {least} or more"
        raise ValueError(f"{name}: got {numbers!r}, accepted: whole numbers{more}")


def check_different(name: str, given: tuple[Any, ...]) -> None:
    if not given or len(set(given)) < len(given):
        raise ValueError(f"{name}: got {given!r}, accepted: one or more, all different")


def check_target(target: Any) -> None:
    if target not in TARGETS:
        raise ValueError(f"target: got {target!r}, accepted: {', '.join(TARGETS)}")


def check_score(name: str, values: Array) -> None:
    """NaN is a number that is not known; the gap may have any sign."""
    share = name not in ("kl", "gap")
    low = -np.inf if name == "gap" else -_ROUNDING
    high = 1 + _ROUNDING if share else np.inf
    if np.isinf(values).any() or (values < low).any() or (values > high).any():
        accepted = "shares from 0 to 1" if share else "finite" + " from 0" * (name == "kl")
        raise ValueError(f"{name} has values out of range, accepted: {accepted}, or NaN")
