"""Ranks of one run as forked processes: they hand tensors to each other through the parent."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from attack import Forked

from llmprobe.base.processes import Process
from llmprobe.runs import folder, jobs
from llmprobe.synthetic import pieces

_LONGEST = 120.0
"""Seconds that a rank may take between two meetings."""


def run_ranks(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each rank answers; None where it waits for one that has ended, as for ever."""
    ranks, ends = [], []
    for rank, function in enumerate(functions):
        here, there = multiprocessing.Pipe()
        ends.append(here)
        run = _as_rank(rank, len(functions), function, there)
        ranks.append(Forked(run))
        there.close()
    try:
        return _meet(ends)
    finally:
        for one, end in zip(ranks, ends, strict=True):
            one.kill()
            one.answer()
            end.close()


def _as_rank(
    rank: int, n_processes: int, function: Callable[[], Any], end: Connection
) -> Callable[[], Any]:
    def meet(own: Any) -> Any:
        end.send(("meets", own))
        return end.recv()

    def gather(own: Any) -> Any:
        found = meet({name: tensor.numpy() for name, tensor in own.items()})
        return {name: torch.from_numpy(array) for name, array in found.items()}

    def run() -> None:
        for module in (jobs, folder, pieces):
            module.process = lambda: Process(rank, rank, n_processes)
        jobs.gather_tensors = gather
        jobs.wait_for_all = lambda: meet({})
        end.send(("ended", function()))

    return run


def _meet(ends: Sequence[Connection]) -> list[Any]:
    """Hand what each rank brings to all, until they end."""
    while True:
        said = [end.recv() if end.poll(_LONGEST) else ("ended", None) for end in ends]
        ended = [what == "ended" for what, _ in said]
        if any(ended):
            return [own if what == "ended" else None for what, own in said]
        every = {name: value for _, own in said for name, value in own.items()}
        for end in ends:
            end.send(every)
