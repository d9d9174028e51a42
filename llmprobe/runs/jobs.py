"""A job in pieces: one engine for probes and trainings.

    folder = opened(lambda: open_probe(output, configuration))
    states = run_pieces(pieces, lambda piece: kept(folder.checkpoint(piece.name), piece.make))
    finish(folder, lambda: folder.save(result))

Pieces are independent of each other. They belong to processes in turns, and what each process did
is handed to all. What a piece gave is returned in the order of the pieces, so a result is the same
to the bit however many processes there are and however often they were stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.base.nesting import flatten, nest
from llmprobe.base.processes import main_first, process, wait_for_all
from llmprobe.runs.checkpoints import (
    check_same,
    gather_tensors,
    read_checkpoint,
    write_checkpoint,
)

State = dict[str, NDArray[Any]]
APART = "|"
"""Between the names of nested states, while they are handed from process to process."""


class Named(Protocol):
    """A piece: anything with a name that no other piece of the job has."""

    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Named)
T = TypeVar("T")


def opened(open_folder: Callable[[], T]) -> T:
    """Open a run's folder in the main process first: the others find what it has begun."""
    with main_first():
        return open_folder()


def run_pieces(pieces: Sequence[P], do: Callable[[P], Mapping[str, Any]]) -> list[State]:
    """What `do` gives for every piece, in their order; each process does its share.

    A state may be nested: its names are joined by `APART`.
    """
    here = process()
    own = {piece.name: do(piece) for piece in pieces[here.rank :: here.n_processes]}
    flat = {name: torch.from_numpy(array) for name, array in flatten(own, APART).items()}
    every = nest(gather_tensors(flat), APART)
    return [{name: x.numpy() for name, x in every[piece.name].items()} for piece in pieces]


def kept(
    path: Path | None,
    make: Callable[[], State],
    *,
    facts: Mapping[str, Any] | None = None,
) -> State:
    """The state in a file; where there is none, make it and keep it there.

    `facts` are what it depends on besides the folder's configuration: others are refused.
    """
    facts = {} if facts is None else facts
    if path is not None and path.is_file():
        return read_state(path, facts)
    state = make()
    if path is not None:
        write_state(path, state, facts)
    return state


def read_state(path: Path, facts: Mapping[str, Any]) -> State:
    tensors, there = read_checkpoint(path)
    check_same(path, there, facts)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def write_state(path: Path, state: State, facts: Mapping[str, Any]) -> None:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in state.items()}
    write_checkpoint(path, tensors, facts)


def finish(folder: object | None, save: Callable[[], object]) -> None:
    """Save in the main process, where there is a folder; all return once the result is there."""
    if folder is not None and process().is_main:
        save()
    wait_for_all()
