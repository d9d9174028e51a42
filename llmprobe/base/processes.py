"""Which of several processes this is, and how they wait for each other.

The accelerate library starts and joins processes; this module only asks it which one this is.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelerate import PartialState

_LAUNCHERS = "start with torchrun or accelerate launch, or unset WORLD_SIZE"


@dataclass(frozen=True)
class Process:
    """Which of several processes this is, as accelerate sees it."""

    rank: int
    local_rank: int
    n_processes: int

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def process() -> Process:
    """This process; (0, 0, 1) when nothing was launched."""
    if world_size() == 1:
        return Process(rank=0, local_rank=0, n_processes=1)
    state = _state()
    return Process(state.process_index, state.local_process_index, state.num_processes)


def _state() -> "PartialState":
    """Of accelerate. Pieces of work differ, so one process may wait for another for long."""
    from accelerate import PartialState

    if not PartialState._shared_state:
        _check_launch(world_size())
    alone = torch.accelerator.current_accelerator(check_available=True) is None
    return PartialState(cpu=alone, timeout=timedelta(days=7))


def process_device() -> torch.device:
    """Where what this process hands to the others has to be."""
    return torch.device(_state().device)


def world_size() -> int:
    return _launched("WORLD_SIZE", 1, 2**20) if "WORLD_SIZE" in os.environ else 1


def _check_launch(n_processes: int) -> None:
    """Refuse what no launcher leaves behind, else processes would wait for each other for ever."""
    ranks = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
    _launched(next((name for name in ranks if name in os.environ), "RANK"), 0, n_processes - 1)
    for name, most in (("LOCAL_RANK", n_processes - 1), ("MASTER_PORT", 2**16 - 1)):
        if name in os.environ:
            _launched(name, 0, most)
    address = os.environ.get("MASTER_ADDR", "localhost")
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError):
        raise ValueError(
            f"MASTER_ADDR: got {address!r}, accepted: a host that can be found; {_LAUNCHERS}"
        ) from None


def _launched(name: str, least: int, most: int) -> int:
    """A number that a launcher leaves in the environment."""
    text = os.environ.get(name)
    if text is None or not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
        came = "nothing" if text is None else repr(text)
        raise ValueError(f"{name}: got {came}, accepted: {least} to {most}; {_LAUNCHERS}")
    return int(text)


@contextmanager
def main_first() -> Iterator[None]:
    """The main process goes through the block before the others do."""
    if process().n_processes == 1:
        yield
    else:
        with _state().main_process_first():
            yield


def wait_for_all() -> None:
    """Until every process has come here."""
    if process().n_processes > 1:
        _state().wait_for_everyone()
