"""The pieces of a plan: trained, measured, kept in the run's folder, joined into a result.

`runs.jobs` shares them out over processes and brings together what they gave. The same call resumes
where the last one stopped.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llmprobe.base.machine import is_out_of_memory
from llmprobe.base.nesting import under
from llmprobe.base.processes import process
from llmprobe.base.progress import Report
from llmprobe.errors import CheckpointError, OutOfMemoryError
from llmprobe.results.base import Result
from llmprobe.results.opening import load_result
from llmprobe.runs.checkpoints import read_checkpoint
from llmprobe.runs.folder import RunFolder, open_training
from llmprobe.runs.jobs import APART, agree_on, finish, kept, opened, read_state, run_pieces
from llmprobe.synthetic.plan import Done, Numbers, Piece, Plan, at_step, in_order
from llmprobe.synthetic.training import Trained, Training, train


def run_plan(
    plan: Plan, device: torch.device, *, output: Path | None, overwrite: bool, report: Report
) -> Result:
    """The plan's result. Pieces that the output folder has are not done again."""
    # What the bits of a training depend on besides its plan.
    where = {"device": device.type, "torch": torch.__version__}
    wanted = plan.configuration() | where
    agree_on({"output": output, "overwrite": overwrite, **wanted})
    if output is None:
        return _run(plan, device, None, report)
    anew = overwrite and process().is_main
    with opened(lambda: open_training(output, wanted, overwrite=anew)) as space:
        if space.is_finished:
            return load_result(space.folder)
        return _run(plan, device, space, report)


def _run(plan: Plan, device: torch.device, space: RunFolder | None, report: Report) -> Result:
    pieces = plan.pieces()
    states = run_pieces(pieces, lambda piece: _run_piece(piece, plan, device, space, report))
    done = [_done(piece, state) for piece, state in zip(pieces, states, strict=True)]
    result = plan.join(in_order(done), device)
    finish(space, lambda space: space.save(result))
    return result


def finished_pieces(plan: Plan, space: RunFolder) -> list[Done]:
    """What a finished run gave, from its folder alone."""
    done = []
    for piece in plan.pieces():
        state, facts = read_checkpoint(space.checkpoint(piece.name))
        if facts["step"] < piece.training.steps:
            raise CheckpointError(f"{space.folder} is not finished; run its command again")
        measured = {}
        for variant in piece.variants:
            name = measured_name(variant, piece)
            numbers = read_state(space, name, facts=facts_of(plan))
            measured[variant] = _checked(numbers, plan, space.checkpoint(name))
        early = {
            at_step(variant, step): _kept_early(variant, step, piece, plan, space)
            for step in plan.score_at
            for variant in piece.variants
        }
        losses, diverged = (state[name].numpy() for name in ("losses", "diverged"))
        done.append(Done(piece, measured, losses, diverged, early))
    return done


def measured_name(variant: str, piece: Piece) -> str:
    """The name under which the evaluation of a variant of a piece is kept.

    A variant may be as it was at a step: `at_step(variant, step)`.
    """
    return f"{variant}.{piece.name}.measured"


def facts_of(plan: Plan) -> dict[str, Any]:
    """What an evaluation depends on besides the network."""
    return {"lengths": list(plan.lengths), "sets": plan.sets}


def as_variant(training: Training, trained: Trained, variant: str) -> Any:
    """The trained networks of a variant, which may differ from their training at test time."""
    average = training.parse(variant).get("weights")
    if average is not None and average not in trained.averages:
        raise CheckpointError(f"{variant}: its training kept no {average}; train with it as well")
    raw = trained.network
    weights: Mapping[str, Any] = raw.state_dict() if average is None else trained.averages[average]
    network = training.new_network(variant).to(next(raw.parameters()).device)
    members = training.members(variant)
    if not members:
        raise CheckpointError(f"{variant}: its training is not among those of this checkpoint")
    if len(members) < len(network.seeds):  # the others have norms that this variant does not have
        weights = {name: weights[name] for name in network.state_dict()}
    network.load_state_dict(weights)
    return (network if len(members) == len(network.seeds) else network.members(members)).eval()


def one_as_variant(training: Training, trained: Trained, variant: str, index: int) -> Any:
    """The same of one network of the stack."""
    stack = as_variant(training, trained, variant)
    return stack.member(training.members(variant).index(index)).eval()


def _run_piece(
    piece: Piece, plan: Plan, device: torch.device, space: RunFolder | None, report: Report
) -> dict[str, Any]:
    """Train a piece from its checkpoint, and measure its variants: what `_done` reads."""

    def after_block(step: int, loss: Any, right: Any) -> None:
        note = f"loss {loss.mean():.3f}, right {right.mean():.1%}"
        report(f"train {_words(piece.name)}", step, piece.training.all_steps, note)

    early: dict[str, Numbers] = {}

    def visit(step: int, trained: Trained) -> None:
        for variant in piece.variants:
            numbers = _measured(variant, piece, trained, plan, space, report, step=step)
            early[at_step(variant, step)] = numbers

    checkpoint = None if space is None else space.checkpoint(piece.name)
    try:
        trained = train(
            piece.training,
            device=device,
            checkpoint=checkpoint,
            report=after_block,
            visit={step: partial(visit, step) for step in plan.score_at},
        )
        measured = {
            variant: _measured(variant, piece, trained, plan, space, report)
            for variant in piece.variants
        }
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{piece.name} does not fit the memory; use a smaller width or batch, shorter lengths "
            "or train_lengths"
        ) from error
    for step in plan.score_at:
        for variant in piece.variants:
            if at_step(variant, step) not in early:  # resumed behind that step
                assert space is not None
                early[at_step(variant, step)] = _kept_early(variant, step, piece, plan, space)
    trainings = {"losses": trained.losses.numpy(), "diverged": trained.diverged.numpy()}
    return {**trainings, **measured, **early}


def _kept_early(variant: str, step: int, piece: Piece, plan: Plan, space: RunFolder) -> Numbers:
    """The evaluation before the end that a folder has."""
    name = measured_name(at_step(variant, step), piece)
    path = space.checkpoint(name)
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing, and its training is behind step {step}; remove "
            f"{space.checkpoint(piece.name)} to have it trained again"
        )
    return _checked(read_state(space, name, facts=facts_of(plan)), plan, path)


def _words(name: str) -> str:
    """A piece as a bar names it: the variant, a space, and the first and the last seed."""
    return " ".join(name.rsplit(".", 1))


def _done(piece: Piece, state: Numbers) -> Done:
    """What `_run_piece` gave, its names flat."""
    measured = {variant: under(variant, state, APART) for variant in piece.variants}
    names = {name.partition(APART)[0] for name in state} - {*measured, "losses", "diverged"}
    early = {name: under(name, state, APART) for name in names}
    return Done(piece, measured, state["losses"], state["diverged"], early)


def _measured(
    variant: str,
    piece: Piece,
    trained: Trained,
    plan: Plan,
    space: RunFolder | None,
    report: Report,
    *,
    step: int | None = None,
) -> Numbers:
    """The evaluation of one variant of a piece; `step`: not at the end but there."""

    def measure() -> Numbers:
        network = as_variant(piece.training, trained, variant)
        total, done = plan.work(network), 0

        def advance(n: int, note: str) -> None:
            nonlocal done
            done += n
            report(f"measure {variant} {_words(piece.name).rpartition(' ')[2]}", done, total, note)

        return plan.measure(network, advance)

    name = measured_name(variant if step is None else at_step(variant, step), piece)
    numbers = kept(space, name, measure, facts=facts_of(plan))
    return _checked(numbers, plan, None if space is None else space.checkpoint(name))


def _checked(numbers: Numbers, plan: Plan, path: Path | None) -> Numbers:
    """Refuse an evaluation from a file that lacks numbers or lengths of the plan."""
    for name in plan.measured:
        shape = numbers[name].shape if name in numbers else ()
        if len(plan.lengths) not in shape[plan.length_axis(name) :][:1]:
            raise CheckpointError(
                f"{path} is no evaluation of this training: {name} is missing or of another shape; "
                "remove it to have it done again"
            )
    return numbers
