"""How things are measured here: in turns, in one run, medians and spread; memory by its peak.

Work that is compared runs in rounds, every kind once a round, so that whatever disturbs the machine
disturbs all alike; what is reported is the median over rounds of the ratio within a round.
"""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import torch

T = TypeVar("T")
SQUARE = 2048
"""Side of the matrices whose product says what the machine can do."""


@dataclass(frozen=True)
class Timing:
    """Seconds of each round."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.times)


@dataclass(frozen=True)
class Ratio:
    """Median, least and greatest over rounds."""

    median: float
    low: float
    high: float


def alternate(
    work: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1
) -> dict[str, Timing]:
    """Run all kinds of work in turns; every other round goes backward, so none is always first."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(warm_up + rounds):
        for name in list(work)[:: -1 if number % 2 else 1]:
            start = time.perf_counter()
            work[name]()
            if number >= warm_up:
                times[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(seconds)) for name, seconds in times.items()}


def paired(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of two kinds of work that ran in the same rounds."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def matmul_rate(repeats: int = 5) -> float:
    """FLOP in a second of a product of square float32 matrices: the limit for all that is here."""
    square = torch.ones(SQUARE, SQUARE)
    timing = alternate({"product": lambda: square @ square}, rounds=repeats)
    return 2 * SQUARE**3 / timing["product"].median


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The p of the power law size^p that fits the values best: a line through the logarithms."""
    line = statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in values])
    return line.slope


def peak_memory(run: Callable[[], T]) -> tuple[int, T]:
    """Bytes that the process grew by at most while it ran (Linux), and what it gave."""
    gc.collect()
    # What was freed before but is still held would hide what is needed now.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = psutil.Process().memory_info().rss
    result = run()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 - before, result
    raise RuntimeError("this system does not say its peak memory")
