"""Commands as clusters run them: in several processes, killed, stopped, short of memory and disk.

Whatever happens, what was done stays, and the result is the undisturbed one's, to the bit.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from samples import check_same

from llmprobe import load_result

SWEEP = ("--layers", "all", "--lengths", "16..512", "--samples", "35")
COMMANDS = {
    "variance": ("variance", "builtin", "--at", "heads", *SWEEP),
    "attention": ("attention", "builtin", *SWEEP),
    "training": (
        *("train-synthetic", "--variants", "baseline,layernorm,ema", "--steps", "900"),
        *("--seeds", "20", "--width", "16", "--lengths", "16,64", "--sets", "64"),
    ),
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes")
MANY = {"2 by torchrun": (*TORCHRUN, "2"), "3 by torchrun": (*TORCHRUN, "3")}
MANY |= {"2 by accelerate": (*ACCELERATE, "2")}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
every_command = pytest.mark.parametrize("name", COMMANDS)


def start(name, output, launcher=()):
    command = [sys.executable, *launcher, "-m", "llmprobe", *COMMANDS[name], "--quiet"]
    return subprocess.Popen(
        [*command, "--output", output],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background would not hear it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("saved: ") == 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folders that commands fill when nothing happens, and how long they take."""
    folder, seconds = tmp_path_factory.mktemp("undisturbed"), {}
    for name in COMMANDS:
        began = time.monotonic()
        finish(start(name, folder / name))
        seconds[name] = time.monotonic() - began
    return folder, seconds


def check_folders(a, b):
    mine, theirs = load_result(a), load_result(b)
    assert mine.to_document()["rows"] == theirs.to_document()["rows"]
    check_same(mine, theirs)


@pytest.mark.slow
@every_command
@pytest.mark.parametrize("launcher", MANY.values(), ids=MANY)
def test_several_processes_give_the_bits_of_one(name, launcher, undisturbed, tmp_path):
    finish(start(name, tmp_path / "run", launcher))
    check_folders(undisturbed[0] / name, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["variance", "training"])
def test_twenty_kills_change_nothing_and_leave_nothing(name, undisturbed, tmp_path):
    whole, seconds = undisturbed[0] / name, undisturbed[1][name]
    names = sorted(path.name for path in whole.rglob("*"))
    generator, n_kills, n_finished, run = random.Random(0), 0, 0, tmp_path / "run"
    while n_kills < 20 or not n_finished:
        process = start(name, run)
        if n_kills < 20:
            time.sleep(generator.uniform(0, 1.2 * seconds))
            process.send_signal(signal.SIGKILL)
            n_kills += 1
        process.communicate()
        if (run / "result.json").exists():
            check_folders(whole, run)
            if process.returncode == 0:
                assert sorted(path.name for path in run.rglob("*")) == names
                n_finished += 1
            shutil.rmtree(run)
    assert not list(tmp_path.iterdir())


def wait_for_work(process, run):
    while not any(run.glob("checkpoints/*.safetensors")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
@every_command
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_told_to_stop_says_how_to_go_on(name, how, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = start(name, run)
    wait_for_work(process, run)
    process.send_signal(how)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == f"{run} keeps what is done; the same command goes on there\n"
    assert not (run / "result.json").exists()
    finish(start(name, run))
    check_folders(undisturbed[0] / name, run)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["variance", "training"])
def test_a_worker_that_dies_ends_the_run_and_loses_nothing(name, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = start(name, run, MANY["2 by torchrun"])
    wait_for_work(process, run)
    workers = psutil.Process(process.pid).children()
    next(w for w in workers if w.environ().get("RANK") == "1").kill()
    process.communicate()
    assert process.returncode != 0
    assert not (run / "result.json").exists()
    assert any(run.glob("checkpoints/*.safetensors"))
    finish(start(name, run, MANY["2 by torchrun"]))
    check_folders(undisturbed[0] / name, run)


LIMITED = """
import resource, sys
import psutil, torch
from llmprobe import load_model, probe_variance
from llmprobe.errors import LLMProbeError

lengths, samples, room, output = sys.argv[1:]
torch.set_num_threads(1)
loaded = load_model("builtin")
# Whatever is allocated once.
probe_variance(loaded, "16", samples=2).save(f"{output}-first")
most = psutil.Process().memory_info().vms + int(room) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
options = {"layers": None, "query": "fixed", "samples": int(samples), "batch_tokens": 2**15}
options |= {"on_plan": lambda plan: print(plan.memory), "output": output}
try:
    probe_variance(loaded, lengths, **options)
except LLMProbeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("lengths", "samples", "room", "fits"),
    [("64,2048", 34, 40, True), ("64,4096", 4, 40, True), ("64,16384", 4, 24, False)],
    ids=["batches are halved", "prompts are cut into chunks", "nothing fits"],
)
def test_under_a_limit_of_memory_a_sweep_is_cut_smaller_or_ends_with_what_is_done(
    lengths, samples, room, fits, run_python, tmp_path
):
    done = run_python(LIMITED, lengths, samples, room, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    planned, *said = done.stdout.splitlines()
    assert int(planned) > room * 2**20
    if fits:
        assert said == []
        free = run_python(LIMITED, lengths, samples, 10_000, tmp_path / "free")
        assert free.returncode == 0, free.stderr
        mine, theirs = load_result(tmp_path / "run"), load_result(tmp_path / "free")
        np.testing.assert_allclose(mine.std_median, theirs.std_median, rtol=1e-4)
    else:
        (line,) = said
        assert "tokens does not fit the memory" in line
        assert "--lengths" in line
        assert "keeps what is done" in line
        assert not (tmp_path / "run" / "result.json").exists()
        assert any(tmp_path.glob("run/checkpoints/64-64.*"))


FULL = """
import resource, sys
import matplotlib.pyplot, seaborn, torch, transformers
from llmprobe.cli import main

size, *sys.argv[1:] = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))  # as a full disk: writes fail
main()
"""


@pytest.mark.parametrize(
    ("name", "size"), [("variance", 1_000), ("variance", 50_000), ("training", 20_000)]
)
def test_on_a_full_disk_there_is_one_line_and_nothing_looks_whole(name, size, run_python, tmp_path):
    run = tmp_path / "run"
    small = {
        "variance": ("variance", "builtin", "--lengths", "8..64", "--samples", "16"),
        "training": ("train-synthetic", "--steps", "50", "--seeds", "4", "--lengths", "16"),
    }
    done = run_python(FULL, size, *small[name], "--quiet", "--output", run)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot be written" in done.stderr
    assert "same command again" in done.stderr
    assert not (run / "result.json").exists()
    assert not list(run.rglob("*partial*"))
    assert run_python(FULL, 2**30, *small[name], "--quiet", "--output", run).returncode == 0
    assert load_result(run).headline()
