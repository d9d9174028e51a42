"""Training: one visible loop for all the seeds of a stack, which share nothing but the computation.

    trained = train(SetTraining(task="argmax", variant="layernorm", seeds=(0, 1, 2)))

Steps come in blocks. A seed's data of a block come from the seed and the block's number alone, so a
training that was stopped resumes from its last checkpoint to the same bits. A seed meets the same
data and begins with the same weights whatever the variant, so variants are compared in pairs.
`set_plan` and `decoder_plan` say what is trained on what.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from llmprobe.base.lengths import LONGEST
from llmprobe.base.machine import memory_kept, old_objects_left_alone, without_denormals
from llmprobe.base.nesting import flatten, under
from llmprobe.base.seeds import torch_generator
from llmprobe.base.transfers import upload
from llmprobe.errors import CheckpointError
from llmprobe.runs.checkpoints import check_same, read_checkpoint, write_checkpoint
from llmprobe.synthetic.averaging import Average, Averaging, Bema, Ema
from llmprobe.synthetic.layers import Drop, SeedDropout, check_heads, no_drop
from llmprobe.synthetic.optimizer import SeedAdamW, clip_by_seed
from llmprobe.synthetic.variants import AT_TEST, BASELINE, Parts, parse_variant

BLOCK = 50
"""Steps of a block: what is drawn at once, and the unit of progress and of checkpoints."""
SECONDS = 5.0
"""Between checkpoints."""
SCHEDULES = ("constant", "cosine")
CLIPPED = 1.0
"""Largest norm of a gradient in variants that have the part `clipped`."""
MOST = {"steps": 10**9, "shortest": LONGEST, "width": 2**16, "layers": 1000}
"""Upper limits against typing errors; heads, values and batches have that of the width."""
Each = float | tuple[float, ...]
"""One for all seeds of a stack, or one for each."""
Batch = tuple[Tensor, ...]


def check_size(name: str, value: Any) -> None:
    """Refuse what is no number of things, or more than anybody means."""
    most = MOST.get(name, MOST["width"])
    if not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name}: got {value!r}, accepted: a whole number, 1 or more, to {most:,}")


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """Everything that decides the weights that a training ends with."""

    parts: ClassVar[Parts]

    task: str
    variant: str = BASELINE
    seeds: tuple[int, ...] = (0,)
    width: int = 128
    heads: int = 1
    steps: int = 1000
    batch: int = 128
    shortest: int = 5
    longest: int = 16
    learning_rate: Each = 1e-3
    weight_decay: float = 1e-3
    clip: float = 1.0
    """Largest norm of a seed's gradient; 0 does not clip."""
    schedule: str = "constant"
    warmup: int = 0
    dropout: Each = 0.1
    """Rate of a variant that has dropout."""
    ema_decay: Each = 0.999
    averages: tuple[str, ...] = ()
    """Of `ema` and `bema`, those that are kept next to the weights."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule: got {self.schedule!r}, accepted: {', '.join(SCHEDULES)}")
        for name in ("steps", "batch", "shortest", "width", "heads"):
            check_size(name, getattr(self, name))
        self.check_heads()
        if self.longest < self.shortest:
            raise ValueError(
                f"longest: got {self.longest}, accepted: the shortest, {self.shortest}, or more"
            )
        for name in ("learning_rate", "ema_decay", "dropout"):
            if len(self.each(name)) != len(self.seeds):
                raise ValueError(
                    f"{name}: got {len(self.each(name))} of them, accepted: one for all of the "
                    f"{len(self.seeds)} seeds, or one for each"
                )
        for name in ("ema_decay", "dropout"):
            for value in self.each(name):
                if not 0 <= value < 1:
                    raise ValueError(f"{name}: got {value}, accepted: 0 or more, less than 1")
        if not 0 <= self.warmup <= self.steps:
            raise ValueError(f"warmup: got {self.warmup}, accepted: 0 to the {self.steps} steps")
        for name in ("learning_rate", "weight_decay", "clip"):
            for value in self.each(name):
                if not (math.isfinite(value) and value >= 0):
                    raise ValueError(f"{name}: got {value}, accepted: 0 or more")
        if self.clip and "clip" in self.parse(self.variant):
            raise ValueError(
                f"variants: {self.variant!r} clips gradients at {CLIPPED:g}, but clip is "
                f"{self.clip:g} for all; give clip 0"
            )

    def check_heads(self) -> None:
        """Refuse heads that the network cannot have."""
        check_heads(self.width, self.heads)

    def each(self, name: str) -> tuple[float, ...]:
        """A number for each seed."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * len(self.seeds)

    def share(self, step: int) -> float:
        """The share of the learning rate at a step, the first being 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return (1 + math.cos(math.pi * done)) / 2

    def parse(self, variant: str) -> dict[str, str]:
        """A variant's parts by their place."""
        return parse_variant(variant, self.parts)

    def variant_of(self, index: int) -> str:
        """What the network of this index is trained as."""
        return self.variant

    def members(self, variant: str) -> list[int]:
        """The indices of the networks that are measured as a variant: all, but in mixed stacks."""
        return list(range(len(self.seeds)))

    def gives(self, index: int, variant: str) -> bool:
        """Whether the network of this index, trained, is the variant's."""
        wanted, have = (
            {k: v for k, v in self.parse(name).items() if k not in AT_TEST}
            for name in (variant, self.variant_of(index))
        )
        if not self.each("dropout")[index]:  # one of a search's pair is trained without
            have.pop("dropout", None)
        return wanted == have

    def first(self) -> "Training | None":
        """The training that this one begins with, for variants of two stages."""
        parts = self.parse(self.variant).values()
        kept = [part for part in parts if not self.parts[part].staged]
        if len(kept) == len(parts):
            return None
        return replace(self, variant="+".join(kept) or BASELINE, averages=())

    @property
    def all_steps(self) -> int:
        """Those of both stages."""
        return self.steps * (1 if self.first() is None else 2)

    def begin(self, network: Any, first: Any) -> None:
        """Give a network what it needs of the trained networks of the first stage."""
        raise NotImplementedError

    @cached_property
    def largest_gradient(self) -> float:
        """The norm that a seed's gradient is clipped at; 0 where it is not."""
        return CLIPPED if "clip" in self.parse(self.variant) else self.clip

    @property
    def activations(self) -> int:
        """Numbers that a step of one seed keeps for its gradient, up to a factor."""
        return self.batch * self.longest * self.width

    @abstractmethod
    def has_learned(self, loss: Tensor, right: Tensor) -> Tensor:
        """By seed, whether the end of a training is better than guessing."""

    @abstractmethod
    def new_network(self, variant: str | None = None) -> Any:
        """The network that a training begins with, or that of a variant of the same shape."""

    @abstractmethod
    def batches(self, block: int) -> Iterator[Batch]:
        """What the steps of a block are given, one seed's after another's."""

    @abstractmethod
    def losses(self, network: Any, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        """The loss and the share of right answers, one number per seed."""


@dataclass(frozen=True)
class Trained:
    """A stack of trained networks and how they got there."""

    network: Any
    averages: dict[str, dict[str, Tensor]]
    """Averaged weights by the name of the average."""
    losses: Tensor
    """Mean training loss of each block: (blocks, seeds)."""
    diverged: Tensor
    """By seed: −1, or the step at whose block the loss was not finite, or the last step where it
    ended no better than guessing."""


Report = Callable[[int, Tensor, Tensor], object]
Visit = Callable[[Trained], object]


def train(
    training: Training,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    report: Report = lambda step, loss, accuracy: None,
    visit: Mapping[int, Visit] | None = None,
) -> Trained:
    """Train a stack of seeds, from its checkpoint where there is one.

    A training of two stages trains the first to its end, with a checkpoint next to the other.
    `report` is given the steps done and the last block's loss and share of right answers by seed.
    `visit` has what is called with the networks as they are at a step, a multiple of `BLOCK`. A
    training that resumes from a later checkpoint does not come by that step again.
    """
    run = _Run(training, torch.device(device))
    first = training.first()
    if checkpoint is not None and checkpoint.is_file():
        run.load(checkpoint)
    elif first is not None:
        path = checkpoint and checkpoint.with_name(f"{checkpoint.stem}.first{checkpoint.suffix}")
        run.begin(train(first, device=device, checkpoint=path, report=report).network)
    before = training.all_steps - training.steps
    saved = time.monotonic()
    visits = visit or {}
    with old_objects_left_alone():
        while run.step < training.steps:
            if run.step in visits:  # before a later checkpoint can be written
                visits[run.step](run.result())
            # Sharp attention has weights, and gradients, of that size.
            with without_denormals(), memory_kept():
                loss, accuracy = run.block()
            report(before + run.step, loss, accuracy)
            late = time.monotonic() - saved > SECONDS
            if checkpoint is not None and (late or run.step == training.steps):
                run.save(checkpoint)
                saved = time.monotonic()
    return run.result()


class _Run:
    """A training under way: the network, its optimizer, its averages, the losses so far."""

    def __init__(self, training: Training, device: torch.device) -> None:
        self.training, self.device = training, device
        self.network = training.new_network().to(device)
        self.weights: dict[str, nn.Parameter] = dict(self.network.named_parameters())
        trained = {name: weight for name, weight in self.weights.items() if weight.requires_grad}
        rates = training.each("learning_rate")
        self.optimizer = SeedAdamW(trained, rates, training.weight_decay)
        kinds: dict[str, Averaging] = {"ema": Ema(decay=training.ema_decay), "bema": Bema()}
        self.averages = {name: Average(kinds[name]) for name in training.averages}
        self.losses = torch.zeros(0, len(training.seeds), dtype=torch.float64)
        self.diverged = torch.full((len(training.seeds),), -1)
        self.step = 0
        for average in self.averages.values():
            average.update(0, self.weights)

    def begin(self, first: Any) -> None:
        """From what a first stage gave."""
        self.training.begin(self.network, first)
        for average in self.averages.values():
            average.update(0, self.weights)

    def block(self) -> tuple[Tensor, Tensor]:
        """The steps of a block; its mean loss and share of right answers by seed."""
        training = self.training
        totals = torch.zeros(2, len(training.seeds), device=self.device)
        first = self.step
        drop = _dropout(training, first // BLOCK, self.device)
        for batch in training.batches(first // BLOCK):
            moved = tuple(upload(x, self.device) for x in batch)
            totals += take_step(training, self.network, self.optimizer, moved, self.step, drop)
            self.step += 1
            for average in self.averages.values():
                average.update(self.step, self.weights)
        means = totals.cpu().double() / (self.step - first)  # the one wait for the device
        loss, accuracy = means
        self.losses = torch.cat([self.losses, loss[None]])
        bad = ~loss.isfinite()
        if self.step == training.steps:
            bad |= ~training.has_learned(loss, accuracy)
        self.diverged = torch.where(bad & (self.diverged < 0), self.step, self.diverged)
        return loss, accuracy

    def result(self) -> Trained:
        averages = {
            name: average.weights(self.step, self.weights)
            for name, average in self.averages.items()
        }
        return Trained(self.network.eval(), averages, self.losses, self.diverged)

    def save(self, path: Path) -> None:
        averages = {name: average.state() for name, average in self.averages.items()}
        state: dict[str, Tensor] = flatten({"weights": self.weights, "average": averages}, ".")
        if self.step < self.training.steps:
            state |= self.optimizer.state()
        state |= {"losses": self.losses, "diverged": self.diverged}
        write_checkpoint(path, state, {"training": asdict(self.training), "step": self.step})

    def load(self, path: Path) -> None:
        state, facts = read_checkpoint(path)
        try:
            check_same(path, facts["training"], asdict(self.training))
            self.step = facts["step"]
            self.losses, self.diverged = state["losses"], state["diverged"]
            self.network.load_state_dict(under("weights", state, "."))
            for name, average in self.averages.items():
                own = under(f"average.{name}", state, ".")
                average.load({k: v.to(self.device) for k, v in own.items()})
            if self.step < self.training.steps:
                self.optimizer.load(state, self.step)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} is no checkpoint of this training ({error!r}); remove it to have its "
                "piece done again"
            ) from None


def take_step(
    training: Training,
    network: Any,
    optimizer: SeedAdamW,
    batch: Batch,
    step: int,
    drop: Drop = no_drop,
) -> Tensor:
    """One step of all seeds; the loss and the share of right answers by seed, (2, seeds)."""
    loss, right = training.losses(network, batch, drop)
    optimizer.zero_grad()
    # The sum over seeds: the gradient of each is that of its own loss.
    loss.sum().backward()
    if largest := training.largest_gradient:
        clip_by_seed([weight.grad for weight in optimizer.weights.values()], largest)
    optimizer.step(training.share(step))
    return torch.stack([loss.detach(), right])


def steps_of(training: Training, block: int) -> int:
    """Steps of a block; the last one may have fewer."""
    return min(BLOCK, training.steps - block * BLOCK)


def seed_generators(
    training: Training, purpose: str, block: int, device: torch.device | str = "cpu"
) -> Sequence[torch.Generator]:
    """A generator for each seed, that depends on it, the purpose and the block alone."""
    return [torch_generator(seed, purpose, block, device=device) for seed in training.seeds]


def _dropout(training: Training, block: int, device: torch.device) -> Drop:
    if "dropout" not in training.parse(training.variant):
        return no_drop
    generators = seed_generators(training, "dropout", block, device)
    return SeedDropout(training.each("dropout"), generators)
