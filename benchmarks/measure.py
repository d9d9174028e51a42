"""How things are measured here: in turns, in one run, medians and spread; memory by its peak."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Timing:
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:9.4g} s  ({self.low:.4g} to {self.high:.4g})"


def alternate(
    work: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1
) -> dict[str, Timing]:
    """Run all kinds of work in turns, so that whatever disturbs the machine disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(warm_up + rounds):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if number >= warm_up:
                times[name].append(time.perf_counter() - start)
    return {name: Timing(statistics.median(t), min(t), max(t)) for name, t in times.items()}


def peak_memory(run: Callable[[], object]) -> int:
    """Bytes that the process grew by at most while it ran (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = psutil.Process().memory_info().rss
    run()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 - before
    raise RuntimeError("this system does not say its peak memory")
