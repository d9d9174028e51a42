"""Everything here runs offline, on the CPU, without a screen."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
# For children too: two workers with two threads each wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines announce AMX and kill a process that uses it, in bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import subprocess
import sys
from collections.abc import Callable, Iterator

import matplotlib.pyplot as plt
import pytest
import torch
from checkout import ROOT
from samples import make_variance_result
from saved_models import cache, kept, llama  # noqa: F401  # fixtures

from llmprobe import cli
from llmprobe.results.variance import VarianceResult

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other


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
