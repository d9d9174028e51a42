"""Where the tests' models are: on the CPU, or on what LLMPROBE_TEST_DEVICE names.

`make test DEVICE=cuda` runs the suites on a GPU, `make test DEVICE=sim` on the simulated device. In
both cases `auto` finds the device, so what tests load by name is there too. Tests that another
device than the CPU cannot be asked are skipped, by name and with a reason.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import simulated

DEVICE = os.environ.get("LLMPROBE_TEST_DEVICE") or "cpu"
KIND = DEVICE.split(":")[0]
"""The device without its number: `cuda` of `cuda:1`."""
SUITES = ("base", "capture", "probes", "synthetic")
FILES = ("test_simulated.py", "test_on_device.py")
"""Folders and files of tests that another device runs."""
NOT_ELSEWHERE = {
    "test_a_hundred_captures_leave_memory_flat_and_no_hook": "the memory is the host's",
    "test_accelerate_places_the_model_if_asked": "accelerate's plan is by what memory is free",
}
"""Tests that are about the CPU."""


if DEVICE.startswith("sim"):
    simulated.start()
    simulated.module.is_default = True


_computed: dict[str, list[bool]] = defaultdict(list)
"""By folder, whether each test gave the simulated device something to compute."""


@contextmanager
def noting(path: Path) -> Iterator[None]:
    """Note whether a test in this file uses the simulated device."""
    with simulated.watching() as seen:
        yield
    _computed[path.parent.name].append(bool(seen.events))


def what_computed() -> str:
    """How many tests used the simulated device, so that none moves to the CPU unseen."""
    return ", ".join(
        f"{sum(found)} of {len(found)} in {folder}" for folder, found in _computed.items()
    )


def why_not(name: str, path: Sequence[str]) -> str | None:
    """Why a test does not run on the device; None if it does."""
    if DEVICE == "cpu":
        return None
    if not set(SUITES) & set(path) and path[-1] not in FILES:
        return "it does not depend on the device"
    return NOT_ELSEWHERE.get(name)
