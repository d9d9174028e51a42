"""Join trainings with the same settings and other seeds, or tested at other lengths, into one.

The joined folder is that of a training like any other: it has all networks and all measurements,
and `load_synthetic` reads networks from it. A saved result without the checkpoints of its run is
joined by its numbers, where it has all of them; what comes then is a saved result too.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from llmprobe.errors import CheckpointError
from llmprobe.results.base import Result
from llmprobe.results.opening import load_result
from llmprobe.runs.checkpoints import check_same
from llmprobe.runs.folder import RunFolder, has_checkpoints, open_training, read_training
from llmprobe.runs.jobs import write_state
from llmprobe.synthetic.pieces import facts_of, finished_pieces, measured_name
from llmprobe.synthetic.plan import Done, Numbers, Plan, in_order
from llmprobe.synthetic.settings import plan_of

_OF_A_PART = {"seeds", "lengths", "format"}
"""What may differ between trainings that are joined."""


class _Part(NamedTuple):
    """A finished training, or several with the same seeds."""

    plan: Plan
    done: list[Done]
    networks: list[Path] | None
    """Where they are; None for a saved result alone."""


def join(folders: Sequence[Path]) -> tuple[Result, Callable[[Path], None]]:
    """The result, and what writes the rest of its folder."""
    asked = [_asked(folder) for folder in folders]
    for folder, there in zip(folders, asked, strict=True):
        check_same(folder, _settings(there), _settings(asked[0]))
    by_seeds: dict[tuple[int, ...], list[_Part]] = {}
    for folder, there in zip(folders, asked, strict=True):
        part = _read(folder, there)
        by_seeds.setdefault(part.plan.base.seeds, []).append(part)
    parts = [_join_lengths(same) for same in by_seeds.values()]
    plan = _join_seeds([part.plan for part in parts])
    done = in_order(one for part in parts for one in part.done)
    device = torch.device(load_result(folders[0]).provenance.device)
    where = {name: asked[0].get(name) for name in ("device", "torch")}

    def write(folder: Path) -> None:
        networks = [part.networks for part in parts]
        if None in networks:
            return
        with open_training(folder, plan.configuration() | where) as space:
            for path in (path for paths in networks for path in paths or ()):
                shutil.copyfile(path, space.checkpoints / path.name)
            for one in done:
                for variant, numbers in (one.measured | one.early).items():
                    name = measured_name(variant, one.piece)
                    write_state(space, name, numbers, facts=facts_of(plan))

    return plan.join(done, device), write


def _settings(there: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in there.items() if name not in _OF_A_PART}


def _asked(folder: Path) -> dict[str, Any]:
    """What a training was asked for, by its run's folder or by the result alone."""
    if has_checkpoints(folder):
        return read_training(folder)
    made = load_result(folder).provenance
    return {**made.arguments, "device": made.device, "torch": made.torch}


def _read(folder: Path, there: Mapping[str, Any]) -> _Part:
    plan = plan_of(there)
    if not has_checkpoints(folder):
        result: Any = load_result(folder)
        told = (plan.base.seeds, plan.lengths, plan.variants)
        if told != (result.seeds, result.lengths, result.variants):
            raise CheckpointError(f"{folder}: its arguments are not those of its numbers")
        return _Part(plan, plan.apart(result), None)
    space = RunFolder(folder, there)
    networks = [space.checkpoint(piece.name) for piece in plan.pieces()]
    return _Part(plan, finished_pieces(plan, space), networks)


def _join_lengths(parts: Sequence[_Part]) -> _Part:
    """Of trainings of the same seeds, which are the same networks."""
    first = parts[0]
    lengths = [length for part in parts for length in part.plan.lengths]
    if len(set(lengths)) < len(lengths):
        twice = next(length for length in lengths if lengths.count(length) > 1)
        raise ValueError(
            f"merge: seeds {_range(first.plan)} at length {twice} are in two folders; give "
            "trainings of other seeds, or tested at other lengths"
        )
    if len(parts) > 1 and any(part.networks is None for part in parts):
        raise CheckpointError(
            f"merge: without checkpoints nothing tells whether seeds {_range(first.plan)} are the "
            "same networks in all folders; give the folders of the runs"
        )
    order = np.argsort(lengths)
    for other in parts[1:]:
        pairs = zip(first.done, other.done, strict=True)
        if not all(np.array_equal(a.losses, b.losses, equal_nan=True) for a, b in pairs):
            raise ValueError(
                f"merge: seeds {_range(first.plan)} were trained to other networks in another "
                "folder; give trainings of one machine, or of other seeds"
            )

    def side_by_side(parts: Sequence[dict[str, Numbers]]) -> dict[str, Numbers]:
        measured: dict[str, Numbers] = {}
        for variant, numbers in parts[0].items():
            measured[variant] = {}
            for name in numbers:
                axis = first.plan.length_axis(name)
                found = np.concatenate([part[variant][name] for part in parts], axis=axis)
                measured[variant][name] = found.take(order, axis=axis)
        return measured

    def joined(pieces: Sequence[Done]) -> Done:
        measured, early = (
            side_by_side([getattr(one, name) for one in pieces]) for name in ("measured", "early")
        )
        return replace(pieces[0], measured=measured, early=early)

    plan = replace(first.plan, lengths=tuple(sorted(lengths)))
    done = [joined(pieces) for pieces in zip(*(part.done for part in parts), strict=True)]
    return _Part(plan, done, first.networks)


def _join_seeds(plans: Sequence[Plan]) -> Plan:
    """Of plans that are alike but for their seeds."""
    seeds = [seed for plan in plans for seed in plan.base.seeds]
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            f"merge: seeds {' and '.join(map(_range, plans))} overlap; give trainings of the same "
            "seeds at other lengths, or of others"
        )
    for plan in plans[1:]:
        if plan.lengths != plans[0].lengths:
            raise ValueError(
                f"merge: seeds {_range(plans[0])} were tested at {plans[0].lengths}, seeds "
                f"{_range(plan)} at {plan.lengths}; every seed needs the same"
            )
    return replace(plans[0], base=replace(plans[0].base, seeds=tuple(sorted(seeds))))


def _range(plan: Plan) -> str:
    return f"{plan.base.seeds[0]} to {plan.base.seeds[-1]}"
