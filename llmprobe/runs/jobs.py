"""A job in pieces: one engine for probes and trainings.

    agree_on({"seed": 0, "output": "runs/a"})              # all processes were asked the same
    folder = opened(lambda: open_probe(output, configuration))
    states = run_pieces(pieces, lambda piece: kept(folder, piece.name, piece.make))
    finish(folder, lambda folder: folder.save(result))

Pieces are independent of each other. They belong to processes in turns, and what each process did
is handed to all. What a piece gave is returned in the order of the pieces, so a result is the same
to the bit however many processes there are and however often they were stopped.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from numpy.typing import NDArray

from llmprobe.base.nesting import flatten, nest
from llmprobe.base.processes import process, wait_for_all
from llmprobe.errors import CheckpointError
from llmprobe.runs.checkpoints import (
    check_same,
    gather_tensors,
    read_checkpoint,
    write_checkpoint,
)
from llmprobe.runs.folder import RunFolder

State = dict[str, NDArray[Any]]
APART = "|"
"""Between the names of nested states, while they are handed from process to process."""


class Named(Protocol):
    """A piece: anything with a name that no other piece of the job has."""

    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Named)
T = TypeVar("T")


def is_alone() -> bool:
    """Whether this is the only process of the job."""
    return process().n_processes == 1


def agree_on(asked: Mapping[str, Any]) -> None:
    """Refuse processes that were started with different settings, in every one of them."""
    if is_alone():
        return
    every = [json.loads(text) for text in _all_texts(json.dumps(asked, default=str))]
    for rank, other in enumerate(every):
        names = sorted({*every[0], *other})
        differ = [name for name in names if other.get(name) != every[0].get(name)]
        if differ:
            words = ", ".join(f"{n} {every[0].get(n)!r} and {other.get(n)!r}" for n in differ)
            raise ValueError(
                f"processes: rank 0 and rank {rank} were started with different settings: {words}; "
                "start all of them with the same command"
            )


def opened(open_folder: Callable[[], T]) -> T:
    """Open a run's folder in the main process first: the others find what it has begun.

    Where the main process is refused, all are, with its words.
    """
    if is_alone():
        return open_folder()
    here = process()
    value, error = None, None
    if here.is_main:
        try:
            value = open_folder()
        except Exception as refusal:  # shown by all, raised again below
            error = refusal
    said = _all_texts("" if error is None else str(error) or type(error).__name__)[0]
    if error is not None:
        raise error
    if said:
        raise CheckpointError(said)
    return open_folder() if value is None else value


def _all_texts(own: str) -> list[str]:
    """What each process says, by rank."""
    here = process()
    data = torch.frombuffer(bytearray(own.encode() or b"\0"), dtype=torch.uint8)
    every = gather_tensors({str(here.rank): data})
    texts = (bytes(every[str(rank)].tolist()) for rank in range(here.n_processes))
    return [text.decode().strip("\0") for text in texts]


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
    folder: RunFolder | None,
    name: str,
    make: Callable[[], State],
    *,
    facts: Mapping[str, Any] | None = None,
) -> State:
    """The state that a folder has under this name; where there is none, make it and keep it.

    `facts` are what it depends on besides the folder's configuration: others are refused.
    """
    if folder is None:
        return make()
    if folder.checkpoint(name).is_file():
        return read_state(folder, name, facts=facts)
    state = make()
    write_state(folder, name, state, facts=facts)
    return state


def read_state(folder: RunFolder, name: str, *, facts: Mapping[str, Any] | None = None) -> State:
    """What `write_state` kept; a piece of another run, or another piece, is refused."""
    path = folder.checkpoint(name)
    tensors, there = read_checkpoint(path)
    _check_identity(path, there.pop("identity", None), _identity(folder, name))
    check_same(path, there, facts or {})
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def write_state(
    folder: RunFolder, name: str, state: State, *, facts: Mapping[str, Any] | None = None
) -> None:
    tensors = {name: torch.from_numpy(x) for name, x in state.items()}
    told = {**(facts or {}), "identity": _identity(folder, name)}
    write_checkpoint(folder.checkpoint(name), tensors, told)


def _identity(folder: RunFolder, name: str) -> dict[str, str]:
    return {"run": folder.identity, "piece": name}


def _check_identity(path: Path, there: Any, wanted: Mapping[str, str]) -> None:
    # Trainings of older versions say nothing of it.
    if there is not None and there != wanted:
        raise CheckpointError(
            f"{path} is a piece of another run, or another piece of this one ({there}); remove it "
            "to have it done again"
        )


def finish(folder: T | None, save: Callable[[T], object]) -> None:
    """Save in the main process, where there is a folder; all return once the result is there."""
    if folder is not None and process().is_main:
        save(folder)
    wait_for_all()
