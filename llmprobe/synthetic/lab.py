"""The lab: train variants on a task, many seeds of each, and measure them by length.

    result = train_synthetic("argmax", ["baseline", "layernorm"], seeds=8)
    result.plot()

With an output folder every finished piece is kept, and the same call goes on where it stopped.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from llmprobe.errors import CheckpointError
from llmprobe.kinds import load_result
from llmprobe.lengths import parse_lengths
from llmprobe.runtime import main_first, process, resolve_device
from llmprobe.synthetic.checkpoints import check_same, read_checkpoint, write_checkpoint
from llmprobe.synthetic.evaluation import Measured, evaluate
from llmprobe.synthetic.network import SetNetwork, parse_variant, trained_as
from llmprobe.synthetic.outcomes import SyntheticResult
from llmprobe.synthetic.planning import Done, Piece, Plan
from llmprobe.synthetic.tasks import find_task
from llmprobe.synthetic.training import Trained, Training, train, training_from
from llmprobe.synthetic.workspace import Workspace

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"seeds": 8, "steps": 2000, "lengths": "16..4096", "sets": 256},
    "desk": {"seeds": 32, "steps": 5000, "lengths": "16..16384", "sets": 1024},
    "paper": {"seeds": 32, "steps": 100_000, "lengths": "16..16384", "sets": 32_768},
}
_MOST = 1_000_000
"""Seeds or sets: more are a slip of the hand."""
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
        if not isinstance(chosen[name], int) or not 1 <= chosen[name] <= _MOST:
            raise ValueError(f"{name}: got {chosen[name]!r}, accepted: 1 or more, to {_MOST:,}")
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
    plan = Plan(names, base, parse_lengths(chosen["lengths"]), chosen["sets"])
    for length in (longest, plan.lengths[-1]):
        find_task(task).check(length)
    where = resolve_device(device)
    space = None
    if output is not None:
        with main_first():
            anew = overwrite and process().is_main
            space = Workspace(Path(output), plan.configuration(), overwrite=anew)
        if space.is_finished:
            return _finished(space.folder)
    pieces = [_run_piece(piece, plan, where, space, watch) for piece in _own(plan.pieces())]
    result = plan.join(_gathered(pieces), where)
    if space is not None and process().is_main:
        result.save_into(space.folder, figures=("png", "pdf"))
    return result


def _finished(folder: Path) -> SyntheticResult:
    done = load_result(folder)
    if not isinstance(done, SyntheticResult):
        raise CheckpointError(f"{folder} holds a result of {done.kind}; use another --output")
    return done


def _run_piece(
    piece: Piece, plan: Plan, device: torch.device, space: Workspace | None, watch: Watch
) -> Done:
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
    return Done(piece, measured, trained.losses.numpy(), trained.diverged.numpy())


def _measure(
    what: str, variant: str, trained: Trained, plan: Plan, space: Workspace | None, watch: Watch
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
    if average is not None and average not in trained.averages:
        raise CheckpointError(f"{variant}: its training kept no {average}; train with it as well")
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
    for path in sorted(checkpoints.glob(f"{trained_as(variant)}.*.safetensors"), key=_first_seed):
        _, facts = read_checkpoint(path)
        if "training" not in facts:  # an evaluation
            continue
        training = training_from(facts)
        found += training.seeds
        wanted = training.seeds[0] if seed is None else seed
        if wanted not in training.seeds:
            continue
        if facts["step"] < training.steps:
            raise CheckpointError(f"{path} is not trained to its end; run its command again")
        stack = as_variant(train(training, checkpoint=path), variant)
        return stack.member(training.seeds.index(wanted)).eval()
    if found:
        raise CheckpointError(f"{checkpoints} has no seed {seed} of {variant}; it has {found}")
    raise CheckpointError(f"{checkpoints} has no trained {variant}")


def _first_seed(path: Path) -> int:
    match = re.search(r"\.(\d+)-\d+\.", path.name)
    return int(match[1]) if match else -1


def _variants(variants: str | Sequence[str]) -> tuple[str, ...]:
    given = variants.split(",") if isinstance(variants, str) else variants
    names = tuple(str(name).strip() for name in given)
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
        bounds = (int(text[0]), int(text[-1])) if len(text) == 2 else (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(f"train_lengths: got {text!r}, accepted: 5..16 (from 1), or one length")
    return bounds


def _own(pieces: list[Piece]) -> list[Piece]:
    """Those of this process."""
    here = process()
    return pieces[here.rank :: here.n_processes]


def _gathered(done: list[Done]) -> list[Done]:
    """What all processes did, in the order of the plan's seeds."""
    if process().n_processes > 1:
        from accelerate.utils import gather_object

        done = gather_object(done)
    return sorted(done, key=lambda one: one.piece.training.seeds)
