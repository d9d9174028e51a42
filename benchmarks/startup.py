"""Case g: how long one waits before anything happens, in fresh processes.

`llmprobe --help` and `import llmprobe` against `import torch`, and the first result: the command
that `make demo` runs.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import alternate
from report import Finding, Options, compare

HELP = 0.3
LLMPROBE = [sys.executable, "-m", "llmprobe"]
DEMO = "variance builtin --at heads --query fixed --lengths 16..4096 --overwrite --output"


def run(options: Options) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "import torch": [sys.executable, "-c", "import torch"],
            "llmprobe --help": [*LLMPROBE, "--help"],
            "import llmprobe": [sys.executable, "-c", "import llmprobe"],
        }
        demo = [*LLMPROBE, *DEMO.split(), str(Path(folder) / "demo")]

        def call(command: list[str]) -> None:
            subprocess.run(command, check=True, capture_output=True, cwd=folder)

        timing = alternate(
            {name: lambda command=command: call(command) for name, command in commands.items()},
            rounds=11 if options.full else 5,
        )
        for name, target in (("llmprobe --help", HELP), ("import llmprobe", None)):
            yield compare(
                "g",
                f"{name} over import torch",
                timing[name].times,
                timing["import torch"].times,
                target=target,
                at_least=False,
            )
        first = alternate(
            {
                "import torch": lambda: call(commands["import torch"]),
                "demo": lambda: call(demo),
            },
            rounds=3 if options.full else 1,
            warm_up=0,
        )
    yield compare(
        "g",
        "first result (make demo) over import torch",
        first["demo"].times,
        first["import torch"].times,
        at_least=False,
    )
