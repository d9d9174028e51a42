"""Everything here runs offline, on the CPU, without a screen."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
# For children too: two workers with two threads each wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines announce AMX and kill a process that uses it, in bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import gc
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache as cached
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
import typer.main
from checkout import ROOT
from devices import DEVICE, noting, what_computed, why_not
from hypothesis import settings
from samples import make_variance_result
from saved_models import cache, kept, llama  # noqa: F401  # fixtures

from llmprobe import cli
from llmprobe.probes import sweeps
from llmprobe.results.variance import VarianceResult

settings.register_profile("here", deadline=None)  # a busy machine is no failure
settings.load_profile("here")
gc.disable()  # until all is imported: it would walk all modules of torch again and again
torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other


# How fast this machine multiplies is measured by every probe, and does not change meanwhile.
sweeps.matmul_rate = cached(sweeps.matmul_rate)
# The parser of all commands takes longer to build than most of them take.
typer.main.get_command = cached(typer.main.get_command)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On another device than the CPU, what that device cannot be asked is skipped by name."""
    for item in items:
        reason = why_not(item.name.partition("[")[0], item.path.parts)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """All that is imported stays: from now on the garbage collector leaves it out of its walks."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _note_device(request: pytest.FixtureRequest) -> Iterator[None]:
    with noting(request.path) if DEVICE.startswith("sim") else nullcontext():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if DEVICE.startswith("sim"):
        terminalreporter.write_line(f"tests that computed on {DEVICE}: {what_computed()}")


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in an interpreter of its own."""

    def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    return run


@pytest.fixture
def variance_result() -> VarianceResult:
    return make_variance_result()


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """A command as a shell would call it, in this process: (exit code, stdout, stderr)."""

    def run_here(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llmprobe", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code or 0, *capsys.readouterr()

    return run_here


@pytest.fixture
def run_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """A script as `python SCRIPT ...` runs it, in this process: (exit code, stdout, stderr)."""

    def run_here(script: Path, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        code: object = 0
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        # The interpreter prints what is no number, and ends with 1.
        return (code, out, err) if isinstance(code, int) else (1, out, f"{err}{code}\n")

    return run_here
