"""The lab: train variants on a task, many seeds of each, and measure them by length.

    result = train_synthetic("argmax", ["baseline", "layernorm"], seeds=8)
    result.plot()

A piece is a stack of seeds of one training, with the evaluations of all variants that it serves.
Pieces are independent: they are what is kept in the output folder and what processes share out.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llmprobe.errors import CheckpointError
from llmprobe.kinds import load_result
from llmprobe.lengths import parse_lengths
from llmprobe.results import Provenance
from llmprobe.runtime import process, resolve_device
from llmprobe.synthetic.checkpoints import check_same, read_checkpoint, write_checkpoint
from llmprobe.synthetic.evaluation import N_FEATURES, Measured, digest_test_sets, evaluate
from llmprobe.synthetic.network import SetNetwork, parse_variant, trained_as
from llmprobe.synthetic.outcomes import SyntheticResult
from llmprobe.synthetic.tasks import N_CLASSES, find_task
from llmprobe.synthetic.training import BLOCK, Trained, Training, train, training_from
from llmprobe.synthetic.workspace import Workspace

STACK = 16
"""Seeds that are trained as one computation; more gain nothing on a CPU."""
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"seeds": 8, "steps": 2000, "lengths": "16..4096", "sets": 256},
    "desk": {"seeds": 32, "steps": 5000, "lengths": "16..16384", "sets": 1024},
    "paper": {"seeds": 32, "steps": 100_000, "lengths": "16..16384", "sets": 32_768},
}
Watch = Callable[[str, int, int, str], object]


def train_synthetic(
    task: str = "argmax",
    variants: str | Sequence[str] = ("baseline", "layernorm"),
    *,
    preset: str = "quick",
    seeds: int | None = None,
    first_seed: int = 0,
    steps: int | None = None,
    train_lengths: str | tuple[int, int] = "5..16",
    lengths: str | Sequence[int] | None = None,
    sets: int | None = None,
    width: int = 128,
    heads: int = 1,
    batch: int = 128,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-3,
    clip: float = 1.0,
    schedule: str = "cosine",
    warmup: int = 0,
    ema_decay: float = 0.999,
    device: str | torch.device = "auto",
    output: str | Path | None = None,
    overwrite: bool = False,
    watch: Watch = lambda what, done, total, note: None,
) -> SyntheticResult:
    """Train `variants` on a task and measure them on test sets of many lengths.

    `variants`: names of `baseline` and the parts in `PARTS`, joined by a plus (`layernorm+ssmax`);
    the first one is what the others are compared with. `preset` (quick, desk, paper) gives `seeds`,
    `steps`, `lengths` and `sets` where they are None. `train_lengths`: shortest and longest set in
    training, every length between equally often. With an `output` folder the run is kept there
    piece by piece, and the same call goes on where it was stopped. `watch` is told what is under
    way, how much of it is done, of how much, and a note.
    """
    names = _variants(variants)
    if preset not in PRESETS:
        raise ValueError(f"preset: got {preset!r}, accepted: {', '.join(PRESETS)}")
    given = {"seeds": seeds, "steps": steps, "lengths": lengths, "sets": sets}
    chosen = PRESETS[preset] | {name: v for name, v in given.items() if v is not None}
    for name in ("seeds", "sets"):
        if chosen[name] < 1:
            raise ValueError(f"{name}: got {chosen[name]}, accepted: 1 or more")
    if first_seed < 0:
        raise ValueError(f"first_seed: got {first_seed}, accepted: 0 or more")
    shortest, longest = _train_lengths(train_lengths)
    base = Training(
        task=find_task(task).name,
        seeds=tuple(range(first_seed, first_seed + chosen["seeds"])),
        width=width,
        heads=heads,
        steps=chosen["steps"],
        batch=batch,
        shortest=shortest,
        longest=longest,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        clip=clip,
        schedule=schedule,
        warmup=warmup,
        ema_decay=ema_decay,
    )
    plan = _Plan(names, base, parse_lengths(chosen["lengths"]), chosen["sets"])
    where = resolve_device(device)
    space = None
    if output is not None:
        space = Workspace(Path(output), plan.configuration(), overwrite=overwrite)
        if space.is_finished:
            done = load_result(space.folder)
            assert isinstance(done, SyntheticResult)
            return done
    pieces = [_run_piece(piece, plan, where, space, watch) for piece in _own(plan.pieces())]
    result = plan.join(_gathered(pieces), where)
    if space is not None and process().is_main:
        result.save_into(space.folder, figures=("png", "pdf"))
    return result


@dataclass(frozen=True)
class _Piece:
    """A stack of seeds of one training, and the variants that are measured on it."""

    name: str
    training: Training
    variants: tuple[str, ...]


@dataclass(frozen=True)
class _Done:
    """What came of a piece."""

    piece: _Piece
    measured: dict[str, list[Measured]]
    """By variant, one for each length."""
    losses: np.ndarray[Any, Any]
    diverged: np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Plan:
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
        return {**facts, "variants": self.variants, "lengths": self.lengths, "sets": self.sets}

    def pieces(self) -> list[_Piece]:
        trainings: dict[str, list[str]] = {}
        for variant in self.variants:
            trainings.setdefault(trained_as(variant), []).append(variant)
        return [
            self._piece(trained, served, self.base.seeds[start : start + STACK])
            for start in range(0, len(self.base.seeds), STACK)
            for trained, served in trainings.items()
        ]

    def _piece(self, trained: str, served: list[str], seeds: tuple[int, ...]) -> _Piece:
        kept = {parts["weights"] for v in served if "weights" in (parts := parse_variant(v))}
        training = dataclasses.replace(
            self.base, variant=trained, seeds=seeds, averages=tuple(sorted(kept))
        )
        return _Piece(f"{trained}.{seeds[0]}-{seeds[-1]}", training, tuple(served))

    def join(self, done: Sequence[_Done], device: torch.device) -> SyntheticResult:
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
                f"{len(self.base.seeds)} seeds decide little here: seeds differ by more than most "
                "variants do; use 32 or more for a claim"
            )


def _run_piece(
    piece: _Piece, plan: _Plan, device: torch.device, space: Workspace | None, watch: Watch
) -> _Done:
    """Train and measure a piece, or take from the folder what is there already."""

    def report(step: int, loss: Any, accuracy: Any) -> None:
        note = f"loss {loss.mean():.3f}, right {accuracy.mean():.1%}"
        watch(f"train {piece.name}", step, piece.training.steps, note)

    checkpoint = None if space is None else space.checkpoint(piece.name)
    trained = train(piece.training, device=device, checkpoint=checkpoint, report=report)
    measured = {
        name: _measure(f"{name}.{piece.name}", name, trained, plan, space, watch)
        for name in piece.variants
    }
    return _Done(piece, measured, trained.losses.numpy(), trained.diverged.numpy())


def _measure(
    what: str, variant: str, trained: Trained, plan: _Plan, space: Workspace | None, watch: Watch
) -> list[Measured]:
    """The evaluation of one variant of a piece at all lengths."""
    path = None if space is None else space.measured(what)
    facts = {"lengths": list(plan.lengths), "sets": plan.sets}
    if path is not None and path.is_file():
        tensors, there = read_checkpoint(path)
        check_same(path, there, facts)
        return [
            Measured(**{f: tensors[f"{length}.{f}"].numpy() for f in _FIELDS})
            for length in plan.lengths
        ]
    network = as_variant(trained, variant)
    total, done = sum(plan.lengths) * plan.sets * len(network.seeds), 0
    results = []
    for length in plan.lengths:

        def advance(n_items: int, length: int = length) -> None:
            nonlocal done
            done += n_items
            watch(f"measure {what}", done, total, f"length {length}")

        results.append(evaluate(network, length, plan.sets, advance=advance))
    if path is not None:
        tensors = {
            f"{length}.{f}": torch.from_numpy(getattr(one, f))
            for length, one in zip(plan.lengths, results, strict=True)
            for f in _FIELDS
        }
        write_checkpoint(path, tensors, facts)
    return results


_FIELDS = [field.name for field in dataclasses.fields(Measured)]


def as_variant(trained: Trained, variant: str) -> SetNetwork:
    """The trained networks as a variant that may differ from their training at test time."""
    raw = trained.network
    average = parse_variant(variant).get("weights")
    weights: Mapping[str, Any] = raw.state_dict() if average is None else trained.averages[average]
    network = SetNetwork(raw.task.name, variant, seeds=raw.seeds, width=raw.width, heads=raw.heads)
    network.load_state_dict(weights)
    return network.to(next(raw.parameters()).device).eval()


def load_synthetic(
    folder: str | Path, variant: str = "baseline", seed: int | None = None
) -> SetNetwork:
    """A trained network from a run's folder, ready to be probed; the first seed if not told."""
    checkpoints = Path(folder).expanduser() / "checkpoints"
    found: list[int] = []
    for path in sorted(checkpoints.glob(f"{trained_as(variant)}.*-*.safetensors")):
        if path.name.endswith(".measured.safetensors"):
            continue
        _, facts = read_checkpoint(path)
        training = training_from(facts)
        found += training.seeds
        wanted = min(training.seeds) if seed is None else seed
        if wanted in training.seeds:
            if facts["step"] < training.steps:
                raise CheckpointError(f"{path} is not trained to its end; run its command again")
            stack = as_variant(train(training, checkpoint=path), variant)
            return stack.member(training.seeds.index(wanted)).eval()
    if found:
        raise CheckpointError(f"{checkpoints} has no seed {seed} of {variant}; it has {found}")
    raise CheckpointError(f"{checkpoints} has no trained {variant}")


def _variants(variants: str | Sequence[str]) -> tuple[str, ...]:
    names = tuple(variants.split(",") if isinstance(variants, str) else variants)
    parsed = [tuple(sorted(parse_variant(name).items())) for name in names]
    if not names or len(set(parsed)) < len(parsed):
        raise ValueError(
            f"variants: got {', '.join(names)!r}, accepted: different ones, at least one"
        )
    return names


def _train_lengths(text: str | tuple[int, int]) -> tuple[int, int]:
    if isinstance(text, str):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.replace(" ", ""))
        bounds = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    else:
        bounds = (int(text[0]), int(text[-1]))
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(f"train_lengths: got {text!r}, accepted: 5..16 (from 1), or one length")
    return bounds


def _own(pieces: list[_Piece]) -> list[_Piece]:
    """Those of this process."""
    here = process()
    return pieces[here.rank :: here.n_processes]


def _gathered(done: list[_Done]) -> list[_Done]:
    """What all processes did, in the order of the plan's seeds."""
    if process().n_processes > 1:
        from accelerate.utils import gather_object

        done = gather_object(done)
    return sorted(done, key=lambda one: one.piece.training.seeds)
