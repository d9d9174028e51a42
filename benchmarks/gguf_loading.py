"""Case m: loading a GGUF file, over what transformers takes for config, tokenizer and weights.

Weights must be equal to the bit. Memory is the peak of a process of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measure import alternate
from report import Finding, Options, compare
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from llmprobe import load_model

TIME, MEMORY = 0.25, 1.05
_PEAK = """
import sys
from pathlib import Path
from gguf_loading import ours, theirs
{way}(Path(sys.argv[1]))
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""


def run(options: Options) -> Iterator[Finding]:
    path = options.smollm2
    if path is None or path.suffix.lower() != ".gguf":
        options.skip("loading of GGUF files: give one with --smollm2 FILE.gguf")
        return
    timing = alternate(
        {"ours": lambda: ours(path), "theirs": lambda: theirs(path)},
        rounds=5 if options.full else 3,
    )
    a, b = (way(path).state_dict() for way in (ours, theirs))
    equal = a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    yield compare(
        "m",
        "loading a GGUF file: time over transformers",
        timing["ours"].times,
        timing["theirs"].times,
        target=TIME,
        at_least=False,
        equal=equal,
        note="config, tokenizer and weights; weights equal to the bit",
    )
    peaks = {way: [_peak(way, path)] for way in ("ours", "theirs")}
    yield compare(
        "m",
        "loading a GGUF file: memory over transformers",
        peaks["ours"],
        peaks["theirs"],
        unit="bytes",
        target=MEMORY,
        at_least=False,
        note="of a process, with all libraries",
    )


def ours(path: Path) -> Any:
    return load_model(path, dtype="float32", device="cpu").model


def theirs(path: Path) -> Any:
    options = {"gguf_file": path.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(path.parent, **options)
    AutoTokenizer.from_pretrained(path.parent, **options)
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        config=config,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        **options,
    )


def _peak(way: str, path: Path) -> float:
    command = [sys.executable, "-c", _PEAK.format(way=way), str(path.resolve())]
    folder = Path(__file__).parent
    paths = os.pathsep.join([str(folder), str(folder.parent)])
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    return float(told.stdout.split()[-1])
