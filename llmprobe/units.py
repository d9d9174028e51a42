"""Running a sweep unit by unit: what is done stays, and several processes share out the rest.

Each finished unit is kept in the run's folder, if there is one, and the same call goes on from
there. Units belong to processes in turns; what each of them did is handed to all. As units are
joined in their order, the result is the same to the bit however many processes there are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from llmprobe.checkpoints import read_checkpoint, write_checkpoint
from llmprobe.preparing import Prepared
from llmprobe.results import Result
from llmprobe.runtime import main_first, memory_kept, process
from llmprobe.stats import State
from llmprobe.sweeps import Consume, Observe, Unit, forget_lengths, run_unit
from llmprobe.tallies import Tally
from llmprobe.workspace import Workspace, open_probe

T = TypeVar("T", bound=Tally)
R = TypeVar("R", bound=Result)
Advance = Callable[[int], object]


def run_units(
    ready: Prepared,
    *,
    kind: str,
    output: Path | None,
    overwrite: bool,
    tally: Callable[[], T],
    observe: Observe,
    consume: Callable[[T], Consume],
    may_chunk: Callable[[], bool],
    advance: Advance,
    summarize: Callable[[list[T]], R],
) -> R:
    """Run the plan's units, join their tallies by pass, and summarize; with a folder, save."""
    space = None
    if output is not None:
        with main_first():  # the others then find what the main process has begun
            space = open_probe(output, ready.configuration(kind), overwrite=overwrite)
    if not ready.plan.one_pass:
        forget_lengths(ready.model, ready.prompts)

    def run(unit: Unit) -> State:
        own = tally()
        with torch.inference_mode(), memory_kept():
            run_unit(
                ready.model,
                ready.prompts,
                unit,
                chunk=ready.plan.chunk,
                observe=observe,
                consume=consume(own),
                may_chunk=may_chunk,
                advance=advance,
            )
        return own.state()

    units = ready.plan.units()
    here = process()
    done = {
        unit.name: _kept(unit, space, run, advance) for unit in units[here.rank :: here.n_processes]
    }
    states = _gathered(done)
    tallies = {lengths: tally() for lengths in ready.plan.passes()}
    for unit in units:
        tallies[unit.lengths].merge(states[unit.name])
    result = summarize(list(tallies.values()))
    if space is not None and here.is_main:
        space.finish(result)
    return result


def _kept(
    unit: Unit, space: Workspace | None, run: Callable[[Unit], State], advance: Advance
) -> State:
    """What a unit gave, from the folder if it is there."""
    if space is None:
        return run(unit)
    path = space.checkpoint(unit.name)
    if path.is_file():
        tensors, _ = read_checkpoint(path)
        advance(unit.n_tokens)
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    state = run(unit)
    write_checkpoint(path, {k: torch.from_numpy(v) for k, v in state.items()}, {})
    return state


def _gathered(done: dict[str, State]) -> dict[str, State]:
    """What all processes did."""
    if process().n_processes == 1:
        return done
    from accelerate.utils import gather_object

    return {name: state for part in gather_object([done]) for name, state in part.items()}
