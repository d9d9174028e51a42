"""Running a plan: train and measure its pieces, keep each in the folder, join them into a result.

The same call goes on where the last one stopped. Several processes share out the pieces, and the
first of them writes the result.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from llmprobe.base.machine import is_out_of_memory
from llmprobe.base.processes import main_first, process, wait_for_all
from llmprobe.errors import CheckpointError, OutOfMemoryError
from llmprobe.results.base import Result
from llmprobe.results.opening import load_result
from llmprobe.runs.checkpoints import check_same, gather_tensors, read_checkpoint, write_checkpoint
from llmprobe.runs.folder import Workspace, open_training
from llmprobe.synthetic.plan import Done, Numbers, Piece, Plan
from llmprobe.synthetic.training import Trained, Training, train

Watch = Callable[[str, int, int, str], object]


def run_plan(
    plan: Plan, device: torch.device, output: Path | None, *, overwrite: bool, watch: Watch
) -> Result:
    """The plan's result, from its folder as far as it is there."""
    space = None
    if output is not None:
        with main_first():
            anew = overwrite and process().is_main
            space = open_training(output, plan.configuration() | _where(device), overwrite=anew)
        if space.is_finished:
            return load_result(space.folder)
    pieces = [_run_piece(piece, plan, device, space, watch) for piece in _own(plan.pieces())]
    result = plan.join(_gathered(pieces, plan), device)
    if space is not None and process().is_main:
        space.save(result)
    wait_for_all()  # so that the result is there for whoever asked for it
    return result


def _run_piece(
    piece: Piece, plan: Plan, device: torch.device, space: Workspace | None, watch: Watch
) -> Done:
    """Train and measure a piece, or take from the folder what is there already."""

    def report(step: int, loss: Any, right: Any) -> None:
        note = f"loss {loss.mean():.3f}, right {right.mean():.1%}"
        watch(f"train {piece.name}", step, piece.training.steps, note)

    checkpoint = None if space is None else space.checkpoint(piece.name)
    try:
        trained = train(piece.training, device=device, checkpoint=checkpoint, report=report)
        measured = {
            variant: _measure(variant, piece, trained, plan, space, watch)
            for variant in piece.variants
        }
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{piece.name} does not fit the memory; use a smaller --width or --batch, shorter "
            "--lengths or --train-lengths"
        ) from error
    return Done(piece, measured, trained.losses.numpy(), trained.diverged.numpy())


def _where(device: torch.device) -> dict[str, str]:
    """What the bits of a training depend on beside its plan."""
    return {"device": device.type, "torch": torch.__version__}


def finished_pieces(plan: Plan, space: Workspace) -> list[Done]:
    """What a run has done to its end, from its folder alone."""
    done = []
    for piece in plan.pieces():
        state, facts = read_checkpoint(space.checkpoint(piece.name))
        if facts["step"] < piece.training.steps:
            raise CheckpointError(f"{space.folder} is not at its end; run its command again")
        measured = {}
        for variant in piece.variants:
            path = space.measured(measured_name(variant, piece))
            measured[variant] = _read_measured(path, plan, space.folder)
        done.append(Done(piece, measured, state["losses"].numpy(), state["diverged"].numpy()))
    return done


def measured_name(variant: str, piece: Piece) -> str:
    """Of the evaluation of a variant of a piece."""
    return f"{variant}.{piece.name}"


def facts_of(plan: Plan) -> dict[str, Any]:
    """What an evaluation depends on beside the network."""
    return {"lengths": list(plan.lengths), "sets": plan.sets}


def _measure(
    variant: str,
    piece: Piece,
    trained: Trained,
    plan: Plan,
    space: Workspace | None,
    watch: Watch,
) -> Numbers:
    """The evaluation of one variant of a piece."""
    what = measured_name(variant, piece)
    path = None if space is None else space.measured(what)
    facts = facts_of(plan)
    if path is not None and path.is_file():
        return _read_measured(path, plan, path)
    network = as_variant(piece.training, trained, variant)
    total, done = plan.work(network), 0

    def advance(n: int, note: str) -> None:
        nonlocal done
        done += n
        watch(f"measure {what}", done, total, note)

    found = plan.measure(network, advance)
    if path is not None:
        write_checkpoint(path, {k: torch.from_numpy(v) for k, v in found.items()}, facts)
    return found


def _read_measured(path: Path, plan: Plan, where: Path) -> Numbers:
    """What `_measure` kept; errors of other settings name `where`."""
    tensors, there = read_checkpoint(path)
    check_same(where, there, facts_of(plan))
    numbers = {name: tensor.numpy() for name, tensor in tensors.items()}
    for name in plan.measured:
        shape = numbers[name].shape if name in numbers else ()
        if len(plan.lengths) not in shape[plan.length_axis(name) :][:1]:
            raise CheckpointError(
                f"{path} is no evaluation of this training: {name} is missing or of another shape; "
                "remove it to have it done again"
            )
    return numbers


def as_variant(training: Training, trained: Trained, variant: str) -> Any:
    """The trained networks as a variant that may differ from their training at test time."""
    average = training.parse(variant).get("weights")
    if average is not None and average not in trained.averages:
        raise CheckpointError(f"{variant}: its training kept no {average}; train with it as well")
    raw = trained.network
    weights: Mapping[str, Any] = raw.state_dict() if average is None else trained.averages[average]
    network = training.new_network(variant)
    network.load_state_dict(weights)
    return network.to(next(raw.parameters()).device).eval()


def _own(pieces: list[Piece]) -> list[Piece]:
    """Those of this process."""
    here = process()
    return pieces[here.rank :: here.n_processes]


def _gathered(done: list[Done], plan: Plan) -> list[Done]:
    """What all processes did, in the order of the plan's seeds."""
    if process().n_processes > 1:
        found = gather_tensors({k: v for one in done for k, v in _tensors(one).items()})
        done = [_done(piece, found) for piece in plan.pieces()]
    return sorted(done, key=lambda one: one.piece.training.seeds)


def _tensors(done: Done) -> dict[str, torch.Tensor]:
    """What came of a piece, by names that no other piece has."""
    arrays = {"losses": done.losses, "diverged": done.diverged}
    arrays |= {f"{v}|{name}": x for v, found in done.measured.items() for name, x in found.items()}
    return {f"{done.piece.name}|{name}": torch.from_numpy(x) for name, x in arrays.items()}


def _done(piece: Piece, tensors: Mapping[str, torch.Tensor]) -> Done:
    """The inverse of `_tensors`."""
    start = f"{piece.name}|"
    own = {k.removeprefix(start): t.numpy() for k, t in tensors.items() if k.startswith(start)}
    losses, diverged = own.pop("losses"), own.pop("diverged")
    measured: dict[str, Numbers] = {variant: {} for variant in piece.variants}
    for key, array in own.items():
        variant, _, name = key.partition("|")
        measured[variant][name] = array
    return Done(piece, measured, losses, diverged)
