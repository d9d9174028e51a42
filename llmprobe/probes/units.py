"""Running a sweep unit by unit: what is done stays, and several processes share out the rest.

Each finished unit is kept in the run's folder, if there is one, and the same call goes on from
there. A folder with a result of fewer prompts is gone on from too: its evidence is kept, and the
missing prompts are added. Units belong to processes in turns; what each of them did is handed to
all. As units are joined in their order, the result is the same to the bit however many processes
there are.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from llmprobe.base.files import as_path
from llmprobe.base.machine import evaluating, memory_kept
from llmprobe.base.moments import State
from llmprobe.base.processes import main_first, process, wait_for_all
from llmprobe.errors import CheckpointError, OutOfMemoryError
from llmprobe.probes.evidence import TALLIES, Evidence, configuration_of
from llmprobe.probes.request import Prepared
from llmprobe.probes.summaries import summarize
from llmprobe.probes.sweeps import Consume, Observe, Sweep, SweepPlan, Unit, forget_lengths
from llmprobe.probes.tallies import Tally, at_length
from llmprobe.results.series import SeriesResult
from llmprobe.runs.checkpoints import check_same, gather_tensors, read_checkpoint, write_checkpoint
from llmprobe.runs.folder import (
    EVIDENCE,
    Workspace,
    is_finished,
    open_probe,
    probe_under_way,
    tidy_probe,
)

Advance = Callable[[int], object]


def run_units(
    ready: Prepared,
    *,
    kind: str,
    output: Path | None,
    overwrite: bool,
    observe: Observe,
    consume: Callable[[Any], Consume],
    may_chunk: Callable[[], bool],
    on_plan: Callable[[SweepPlan], object],
    advance: Advance,
    examine: Callable[[Tally, Unit], None] = lambda tally, unit: None,
) -> SeriesResult:
    """Run the plan's units, join what they saw, and summarize it; with a folder, save.

    `consume` takes in what was captured, for the tally that it is given; `examine` is called once
    a unit is through, to ask something else of the model.
    """
    plan, run, before, space = ready.plan, {}, None, None
    if output is not None:
        run = ready.run
        output = as_path("output", output)
        wanted = configuration_of(kind, ready.provenance, run)
        with main_first():  # the others then find what the main process has begun
            before = None if overwrite else _seen_before(output, ready, wanted)
            plan = plan.after(0 if before is None else before.n_prompts)
            if plan.n_tokens or not is_finished(output):
                space = open_probe(output, wanted, after=plan.first, overwrite=overwrite)
            else:
                tidy_probe(output)
    on_plan(plan)
    sweep = Sweep(ready.model, ready.prompts, plan, observe, may_chunk)

    def see(unit: Unit) -> State:
        own = TALLIES[kind](ready.layers)
        with torch.inference_mode(), memory_kept():
            sweep.run(unit, consume(own), advance)
            examine(own, unit)
        return own.state()

    units, here = plan.units(), process()
    with evaluating(ready.model):
        if not plan.one_pass:
            forget_lengths(ready.model, ready.prompts)
        own = units[here.rank :: here.n_processes]
        done = {unit.name: _kept(unit, space, see, advance) for unit in own}
    states = _gathered(done)
    tallies: dict[int, Tally] = {}
    for lengths in plan.passes():
        joined = TALLIES[kind](ready.layers)
        for unit in units:
            if unit.lengths == lengths:
                joined.merge(states[unit.name])
        new = joined.state()
        for index, length in enumerate(lengths):
            tallies[length] = TALLIES[kind](ready.layers)
            if before is not None:
                tallies[length].merge(before.tallies[length].state())
            if plan.n_tokens:
                tallies[length].merge(at_length(new, index))
    evidence = Evidence(
        kind=kind,
        provenance=ready.provenance,
        run=run,
        parts=(ready.part(plan.n_prompts),),
        layers=ready.layers,
        context_length=ready.loaded.context_length,
        warnings=ready.warnings,
        tallies=tallies,
    )
    result = summarize(evidence)
    if space is not None and here.is_main:
        space.finish(result, also=evidence.write)
    wait_for_all()  # so that the result is there for whoever asked for it
    return result


def _seen_before(folder: Path, ready: Prepared, wanted: Mapping[str, Any]) -> Evidence | None:
    """What a folder has of the first prompts of this run, so that only the others are missing."""
    under_way = probe_under_way(folder)
    began_without = under_way is not None and not under_way.get("after")
    if began_without or not (folder / EVIDENCE).is_file():
        return None
    evidence = Evidence.read(folder)
    there, n = evidence.configuration, evidence.n_prompts
    fewer = n > ready.plan.n_prompts
    if fewer or evidence.parts == (ready.part(n),):  # the same as far as they go
        samples = {"samples": wanted["arguments"]["samples"]}
        there |= {"prompts_hash": wanted["prompts_hash"], "arguments": there["arguments"] | samples}
    check_same(folder, there, wanted)
    if fewer:
        raise CheckpointError(
            f"{folder} has {n} prompts, more than the {ready.plan.n_prompts} that are asked for; "
            "use another --output or --overwrite"
        )
    return evidence


def _kept(
    unit: Unit, space: Workspace | None, see: Callable[[Unit], State], advance: Advance
) -> State:
    """What a unit gave, from the folder if it is there."""
    if space is None:
        return see(unit)
    path = space.checkpoint(unit.name)
    if path.is_file():
        tensors, _ = read_checkpoint(path)
        advance(unit.n_tokens)
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    try:
        state = see(unit)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{error}; {space.folder} keeps what is done") from error
    write_checkpoint(path, {k: torch.from_numpy(v) for k, v in state.items()}, {})
    return state


def _gathered(done: dict[str, State]) -> dict[str, State]:
    """What all processes did."""
    own = {
        f"{unit}|{name}": torch.from_numpy(value)
        for unit, state in done.items()
        for name, value in state.items()
    }
    states: dict[str, State] = {}
    for key, tensor in gather_tensors(own).items():
        unit, _, name = key.partition("|")
        states.setdefault(unit, {})[name] = tensor.numpy()
    return states
