"""Where the tests' models are: on the CPU, or on what LLMPROBE_TEST_DEVICE names.

`make test DEVICE=cuda` runs the suites on a GPU, `make test DEVICE=sim` on the simulated device. In
both cases `auto` finds the device, so what tests load by name is there too.
"""

import os

DEVICE = os.environ.get("LLMPROBE_TEST_DEVICE") or "cpu"


def set_up() -> None:
    """Make the device known to torch, if it is the simulated one."""
    if DEVICE.startswith("sim"):
        import simulated

        simulated.start()
        simulated.module.is_default = True
