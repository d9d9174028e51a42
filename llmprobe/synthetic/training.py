"""Training: one visible loop for all the seeds of a stack, which share nothing but the computation.

    trained = train(Training(task="argmax", variant="layernorm", seeds=(0, 1, 2)))

Steps come in blocks. A seed's data of a block come from the seed and the block's number alone, so a
training that was stopped goes on from its last checkpoint to the same bits. All seeds of all
variants meet the same lengths; a seed meets the same sets and begins with the same weights whatever
the variant, so variants are compared in pairs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from llmprobe.errors import CheckpointError
from llmprobe.runtime import torch_generator, without_denormals
from llmprobe.synthetic.averaging import Average, Averaging, Bema, Ema
from llmprobe.synthetic.checkpoints import check_same, read_checkpoint, write_checkpoint
from llmprobe.synthetic.layers import by_seed
from llmprobe.synthetic.network import SetNetwork, dropout_of
from llmprobe.synthetic.tasks import N_CLASSES, find_task

BLOCK = 50
"""Steps of a block: what is drawn at once, and the unit of progress and of checkpoints."""
SECONDS = 5.0
"""Between checkpoints."""
SCHEDULES = ("constant", "cosine")
_GUESSING = 0.98 * math.log(N_CLASSES)
"""A loss above this has learned nothing: that of guessing, less what it scatters by."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that decides the weights that a training ends with."""

    task: str = "argmax"
    variant: str = "baseline"
    seeds: tuple[int, ...] = (0,)
    width: int = 128
    heads: int = 1
    steps: int = 1000
    batch: int = 128
    shortest: int = 5
    longest: int = 16
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    clip: float = 1.0
    """Largest norm of a seed's gradient; 0 does not clip."""
    schedule: str = "constant"
    warmup: int = 0
    ema_decay: float = 0.999
    averages: tuple[str, ...] = ()
    """Of `ema` and `bema`, those that are kept beside the weights."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule: got {self.schedule!r}, accepted: {', '.join(SCHEDULES)}")
        for name in ("steps", "batch", "shortest", "width", "heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: got {value!r}, accepted: a whole number, 1 or more")
        if self.width % self.heads:
            raise ValueError(
                f"heads: got {self.heads}, accepted: a divisor of the width, {self.width}"
            )
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay: got {self.ema_decay}, accepted: 0 or more, less than 1")
        if not 0 <= self.warmup <= self.steps:
            raise ValueError(f"warmup: got {self.warmup}, accepted: 0 to the {self.steps} steps")
        for name in ("learning_rate", "weight_decay", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: got {value}, accepted: 0 or more")

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first being 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Trained:
    """A stack of trained networks and how they got there."""

    network: SetNetwork
    averages: dict[str, dict[str, Tensor]]
    """Averaged weights by the name of the average."""
    losses: Tensor
    """Mean training loss of each block: (blocks, seeds)."""
    diverged: Tensor
    """By seed: −1, or the step at whose block the loss was not finite, or the last step where it
    ended near the loss of guessing or above."""


Report = Callable[[int, Tensor, Tensor], object]


def train(
    training: Training,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    report: Report = lambda step, loss, accuracy: None,
) -> Trained:
    """Train a stack of seeds, from its checkpoint where there is one.

    `report` is given the steps done and the last block's loss and accuracy by seed.
    """
    run = _Run(training, torch.device(device))
    if checkpoint is not None and checkpoint.is_file():
        run.load(checkpoint)
    saved = time.monotonic()
    while run.step < training.steps:
        with without_denormals():  # sharp attention has weights, and gradients, of that size
            loss, accuracy = run.block()
        report(run.step, loss, accuracy)
        late = time.monotonic() - saved > SECONDS
        if checkpoint is not None and (late or run.step == training.steps):
            run.save(checkpoint)
            saved = time.monotonic()
    return run.result()


class _Run:
    """A training under way: the network, its optimizer, its averages, the losses so far."""

    def __init__(self, training: Training, device: torch.device) -> None:
        self.training, self.device = training, device
        self.network = new_network(training).to(device)
        self.weights = dict(self.network.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), weight_decay=training.weight_decay, fused=True
        )
        kinds: dict[str, Averaging] = {"ema": Ema(decay=training.ema_decay), "bema": Bema()}
        self.averages = {name: Average(kinds[name]) for name in training.averages}
        self.losses = torch.zeros(0, len(training.seeds), dtype=torch.float64)
        self.diverged = torch.full((len(training.seeds),), -1)
        self.step = 0
        for average in self.averages.values():
            average.update(0, self.weights)

    def block(self) -> tuple[Tensor, Tensor]:
        """The steps of a block; its mean loss and accuracy by seed."""
        training = self.training
        totals = torch.zeros(2, len(training.seeds), device=self.device)
        first = self.step
        for tokens, labels, kept in _batches(training, first // BLOCK, self.device):
            self.optimizer.param_groups[0]["lr"] = training.rate(self.step)
            totals += take_step(self.network, self.optimizer, tokens, labels, kept, training.clip)
            self.step += 1
            for average in self.averages.values():
                average.update(self.step, self.weights)
        means = totals.cpu().double() / (self.step - first)  # the one wait for the device
        loss, accuracy = means
        self.losses = torch.cat([self.losses, loss[None]])
        bad = ~loss.isfinite()
        if self.step == training.steps:
            bad |= loss > _GUESSING
        self.diverged = torch.where(bad & (self.diverged < 0), self.step, self.diverged)
        return loss, accuracy

    def result(self) -> Trained:
        averages = {
            name: average.weights(self.step, self.weights)
            for name, average in self.averages.items()
        }
        return Trained(self.network.eval(), averages, self.losses, self.diverged)

    def save(self, path: Path) -> None:
        state: dict[str, Tensor] = _prefixed("weights", self.weights)
        for name, average in self.averages.items():
            state |= _prefixed(f"average.{name}", average.state())
        if self.step < self.training.steps:
            for name, weight in self.weights.items():
                for key in ("exp_avg", "exp_avg_sq"):
                    state[f"{key}.{name}"] = self.optimizer.state[weight][key]
        state |= {"losses": self.losses, "diverged": self.diverged}
        write_checkpoint(path, state, {"training": asdict(self.training), "step": self.step})

    def load(self, path: Path) -> None:
        state, facts = read_checkpoint(path)
        check_same(path, facts["training"], asdict(self.training))
        self.step = facts["step"]
        self.losses, self.diverged = state["losses"], state["diverged"]
        self.network.load_state_dict(_under("weights", state))
        for name, average in self.averages.items():
            moved = {k: v.to(self.device) for k, v in _under(f"average.{name}", state).items()}
            average.load(moved)
        if self.step < self.training.steps:
            # A fused optimizer keeps a counter for each weight, where the weight is.
            step = torch.tensor(float(self.step), device=self.device)
            for name, weight in self.weights.items():
                kept = {key: state[f"{key}.{name}"] for key in ("exp_avg", "exp_avg_sq")}
                kept = {key: value.to(self.device) for key, value in kept.items()}
                self.optimizer.state[weight] = {"step": step.clone(), **kept}


def take_step(
    network: SetNetwork,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    labels: Tensor,
    kept: Tensor | None = None,
    clip: float = 0.0,
) -> Tensor:
    """One step of all seeds; the loss and the share of right answers by seed, (2, seeds)."""
    n_seeds = len(network.seeds)
    logits = network(tokens, kept=kept).logits
    loss = by_seed(F.cross_entropy(logits, labels, reduction="none"), n_seeds).mean(dim=1)
    optimizer.zero_grad()
    # The sum over seeds: the gradient of each is that of its own loss.
    loss.sum().backward()
    if clip:
        clip_by_seed([weight.grad for weight in network.parameters()], clip)
    optimizer.step()
    hits = by_seed(logits.argmax(dim=1) == labels, n_seeds)
    return torch.stack([loss.detach(), hits.float().mean(dim=1)])


def training_from(facts: Mapping[str, Any]) -> Training:
    """The training that a checkpoint is of."""
    given: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in facts["training"].items()
    }
    try:
        return Training(**given)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint of another version: {error}") from None


def new_network(training: Training) -> SetNetwork:
    """The network that a training begins with."""
    return SetNetwork(
        training.task,
        training.variant,
        seeds=training.seeds,
        width=training.width,
        heads=training.heads,
    )


def clip_by_seed(gradients: list[Tensor | None], largest: float) -> None:
    """Scale each seed's gradient, in place, so that its norm over all parameters is no larger."""
    given = [g for g in gradients if g is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in given])
    scale = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
    for g in given:
        g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))


def _batches(
    training: Training, block: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Tokens, labels and dropout masks of a block's steps, one seed's after another's."""
    task = find_task(training.task)
    count = min(BLOCK, training.steps - block * BLOCK)
    lengths = torch.randint(
        training.shortest,
        training.longest + 1,
        (count,),
        generator=torch_generator(0, "lengths", block),
    )
    generators = [torch_generator(seed, "sets", block) for seed in training.seeds]
    masks = [torch_generator(seed, "dropout", block) for seed in training.seeds]
    drop = dropout_of(training.variant)
    for length in lengths.tolist():
        drawn = [task.sample(training.batch, length, generator) for generator in generators]
        tokens, labels = (torch.cat(parts).to(device) for parts in zip(*drawn, strict=True))
        kept = None
        if drop:
            shape = (training.batch, training.width)
            parts = [torch.rand(shape, generator=generator) >= drop for generator in masks]
            kept = torch.cat(parts).to(device)
        yield tokens, labels, kept


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
