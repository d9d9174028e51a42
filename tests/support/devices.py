"""Where the tests' models are: on the CPU, or on what LLMPROBE_TEST_DEVICE names.

`make test DEVICE=cuda` runs the suites on a GPU, `make test DEVICE=sim` on the simulated device. In
both cases `auto` finds the device, so what tests load by name is there too. Tests that another
device than the CPU cannot be asked are skipped, by name and with a reason.
"""

import os
from collections.abc import Sequence

import simulated

DEVICE = os.environ.get("LLMPROBE_TEST_DEVICE") or "cpu"
SUITES = ("base", "capture", "probes", "synthetic")
"""Folders of tests that another device runs, and `test_simulated.py`, `test_on_device.py`."""
_CPU_SLICES = "how much is done at once is another number than on a CPU"
_MEMORY = "it limits the memory of the process, which is not the device's"
NOT_ELSEWHERE = {
    "test_the_head_sees_few_positions_at_a_time_and_the_layers_run_once": _CPU_SLICES,
    "test_a_hundred_captures_leave_memory_flat_and_no_hook": _MEMORY,
    "test_accelerate_places_the_model_if_asked": "accelerate's plan is by what memory is free",
}
"""Tests that are about the CPU."""
_STORAGE = "a simulated tensor has no memory of its own that could be saved or pointed at"
NOT_SIMULATED = {
    "test_a_model_that_was_saved_used_or_moved_is_the_same": _STORAGE,
    "test_an_adapter_is_no_pickle_unless_allowed": _STORAGE,
    "test_what_is_kept_are_clones": _STORAGE,
    "test_a_pickle_is_loaded_only_if_allowed": _STORAGE,
    "test_weights_that_would_be_made_up_are_an_error": _STORAGE,
    "test_what_does_not_run_its_own_forward_is_refused_in_one_line": "DataParallel is for CUDA",
}
"""Tests that the simulated device cannot be asked, though a GPU can."""


if DEVICE.startswith("sim"):
    simulated.start()
    simulated.module.is_default = True


def why_not(name: str, path: Sequence[str]) -> str | None:
    """Why a test does not run on the device; None if it does."""
    if DEVICE == "cpu":
        return None
    if not set(SUITES) & set(path) and path[-1] not in ("test_simulated.py", "test_on_device.py"):
        return "it does not depend on the device"
    not_here = NOT_ELSEWHERE | (NOT_SIMULATED if DEVICE.startswith("sim") else {})
    return not_here.get(name)
