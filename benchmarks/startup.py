"""Case g: how long one waits before anything happens, in fresh processes.

`llmprobe --help` and `import llmprobe` against `import torch`; commands that open saved results,
which need no torch; and the first result: the command that `make demo` runs, and where its time
goes, also for SmolLM2 from its GGUF file.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import alternate
from report import Finding, Options, alone, compare

TARGETS = {
    "llmprobe --help": 0.3,
    "import llmprobe": None,
    "llmprobe show": 0.5,
    "llmprobe plot": 1.0,
    "llmprobe compare": 1.0,
}
"""Saved results are shown before torch alone would be imported."""
LLMPROBE = [sys.executable, "-m", "llmprobe"]
DEMO = "builtin --at heads --query fixed --lengths 16..4096"


def run(options: Options) -> Iterator[Finding]:
    rounds = 11 if options.full else 5
    with tempfile.TemporaryDirectory() as folder:

        def call(command: list[str]) -> None:
            subprocess.run(command, check=True, capture_output=True, cwd=folder)

        torch = [sys.executable, "-c", "import torch"]
        demo = [*LLMPROBE, "variance", *DEMO.split(), "--overwrite", "--output"]
        first = alternate(
            {"import torch": lambda: call(torch), "demo": lambda: call([*demo, "demo"])},
            rounds=3 if options.full else 1,
            warm_up=0,
        )
        call([*demo, "other"])
        commands = {
            "import torch": torch,
            "llmprobe --help": [*LLMPROBE, "--help"],
            "import llmprobe": [sys.executable, "-c", "import llmprobe"],
            "llmprobe show": [*LLMPROBE, "show", "demo"],
            "llmprobe plot": [*LLMPROBE, "plot", "demo"],
            "llmprobe compare": [*LLMPROBE, "compare", "demo", "other"],
        }
        timing = alternate(
            {name: lambda command=command: call(command) for name, command in commands.items()},
            rounds=rounds,
        )
    for name, target in TARGETS.items():
        yield compare(
            "g",
            f"{name} over import torch",
            timing[name].times,
            timing["import torch"].times,
            target=target,
            at_least=False,
        )
    yield compare(
        "g",
        "first result (make demo) over import torch",
        first["demo"].times,
        first["import torch"].times,
        at_least=False,
    )
    yield _stages("built-in model", DEMO.split())
    if options.smollm2 is not None:
        yield _stages("SmolLM2", [str(options.smollm2.absolute())])


def _stages(name: str, arguments: list[str]) -> Finding:
    """The seconds to a result, and the share of each stage; the second of two fresh processes."""
    script = str(Path(__file__).with_name("stages.py"))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, script, *arguments], check=True, capture_output=True, text=True
        )
    seconds = json.loads(done.stdout.splitlines()[-1])
    shares = [f"{stage} {value:.2f}" for stage, value in seconds.items()]
    return alone(
        "g",
        f"first result of the {name}: seconds".replace("the SmolLM2", "SmolLM2"),
        [sum(seconds.values())],
        unit="s",
        at_least=False,
        note=", ".join(shares),
    )
