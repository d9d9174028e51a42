"""All benchmarks in one run on one machine: what is gained, what it costs, and how it grows.

    python benchmarks/run.py                     minutes
    python benchmarks/run.py --full              within an hour
    python benchmarks/run.py --only a,c --smollm2 SmolLM2-135M.gguf

a  attention outputs of layer 0 at all lengths, against hooks, nnsight and TransformerLens
b  the same of all layers
c  attention rows, against transformers' whole matrices
d  what statistics cost over a bare forward
e  training many seeds at once, against a plain loop
f  Othello games, against a plain game
g  starting, against `import torch`
h  growth of time and memory with the length
i  what edits cost over a bare forward
j  memory of losses, over the layers alone
k  layer 0 of 64 prompts at all lengths
l  all layers with a fixed query, in one pass
m  loading a GGUF file, over transformers

Peers that are not installed are left out, and a line says so. The exit code is 1 if a target is
missed or numbers are unequal.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import attention
import editing
import games
import gguf_loading
import growth
import losses
import many
import overhead
import startup
import sweeps
import torch
import training
from measure import matmul_rate
from report import Options, Report, failures, machine, print_row
from rich.console import Console

CASES = {
    "a": sweeps.layer_0,
    "b": sweeps.all_layers,
    "c": attention.run,
    "d": overhead.run,
    "e": training.run,
    "f": games.run,
    "g": startup.run,
    "h": growth.run,
    "i": editing.run,
    "j": losses.run,
    "k": many.many_prompts,
    "l": many.fixed_queries,
    "m": gguf_loading.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="longer prompts, more rounds")
    parser.add_argument("--only", default="".join(CASES), help="cases, as a,b (default: all)")
    parser.add_argument("--output", type=Path, default=Path("runs/bench"), metavar="FOLDER")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M as .gguf or folder")
    arguments = parser.parse_args()
    chosen = sorted(set(arguments.only) - set(", "))
    if unknown := set(chosen) - set(CASES):
        parser.error(f"--only: got {', '.join(sorted(unknown))}, accepted: {', '.join(CASES)}")

    # As attention sharpens, a plain training is more than twice as slow with denormals, and threads
    # that are there already would go on with them.
    torch.set_flush_denormal(True)
    # A log has no width; in a terminal lines are as long as it is.
    console = Console() if os.isatty(1) else Console(width=150)
    report = Report(full=arguments.full, machine=machine(matmul_rate()))

    def skip(reason: str) -> None:
        if reason not in report.skipped:
            report.skipped.append(reason)
            console.print(f"left out: {reason}", style="yellow", highlight=False)

    options = Options(full=arguments.full, smollm2=arguments.smollm2, skip=skip)
    start = time.perf_counter()
    for name in chosen:
        for finding in CASES[name](options):
            print_row(console, finding, header=not report.findings)
            report.findings.append(finding)
            report.save(arguments.output)  # what was found stays, whatever comes
    report.save(arguments.output, figures=("png", "pdf"))
    minutes = (time.perf_counter() - start) / 60
    console.print(f"{minutes:.1f} minutes; saved: {arguments.output}", highlight=False)
    for failure in failures(report.findings):
        console.print(failure, style="bold red", highlight=False)
    raise SystemExit(not report.held)


if __name__ == "__main__":
    main()
