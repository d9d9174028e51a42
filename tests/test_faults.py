"""Commands as clusters run them: in several processes, killed, stopped, short of memory and disk.

Whatever happens, what was done stays, and the result is the undisturbed one's, to the bit.
"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from samples import check_same

from llmprobe import load_result, probe_variance

SWEEP = ("--layers", "all", "--lengths", "16..512", "--n-prompts", "35")
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
import json, resource, sys
import psutil, torch
from llmprobe import load_model, probe_variance
from llmprobe.errors import LLMProbeError
from llmprobe.probes import request, sweeps
from llmprobe.probes.probe import start
from llmprobe.probes.variance import VarianceProbe, VarianceRequest

cases, output = json.loads(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
loaded = load_model("builtin")
# Whatever is allocated once.
probe_variance(loaded, "16", n_prompts=2).save(f"{output}/first")
# One pass per length, so that there is something to keep when the longest does not fit.
request.prefixes_agree = lambda *_, **__: False
forward, seen = sweeps.forward, []
sweeps.forward = lambda *args: seen.append([*args[1].shape, args[3]]) or forward(*args)
for name, (lengths, n_prompts, room) in cases.items():
    seen.clear()
    error = ""
    options = {"layers": [1], "query": "fixed", "n_prompts": n_prompts, "batch_tokens": 2**15}
    asked = VarianceRequest(lengths=lengths, **options)
    most = psutil.Process().memory_info().vms + room * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    # How small chunks may get decides whether a single prompt can be made to fit at all.
    sweeps._SMALLEST_CHUNK = 64 if name == "cut" else 2**20
    try:
        run = start(VarianceProbe, loaded, asked, output=f"{output}/{name}")
        run.execute()
    except LLMProbeError as reason:
        error = str(reason)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(json.dumps([run.plan.memory, seen, error]))
"""
ROOMS = {
    "halved": ("64,1024", 8, 36),
    "cut": ("64,4096", 2, 24),
    "nothing fits": ("64,16384", 2, 24),
}
"""Lengths, prompts and MiB. Planned are batches of 4 prompts, then of a single one."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """Sweeps in a process that gets little memory: the plan, the forwards and the error of each."""
    folder = tmp_path_factory.mktemp("limited")
    command = [sys.executable, "-c", LIMITED, json.dumps(ROOMS), folder]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(zip(ROOMS, map(json.loads, done.stdout.splitlines()), strict=True))
    for name, (planned, _, _) in found.items():
        assert planned > ROOMS[name][2] * 2**20
    return folder, found


@pytest.mark.slow  # a real limit; test_sweeps has the same by errors
@pytest.mark.parametrize("name", ["halved", "cut"])
def test_under_a_limit_of_memory_a_sweep_is_cut_smaller_and_gives_the_same(name, limited):
    folder, found = limited
    lengths, n_prompts, _ = ROOMS[name]
    _, forwards, error = found[name]
    assert error == ""
    longest = int(lengths.split(",")[1])
    tried = [(n, chunk) for n, length, chunk in forwards if length == longest]
    if name == "halved":
        assert set(tried[-4:]) <= {(1, None), (2, None)}, tried
    else:
        assert all(chunk for _, chunk in tried[-2:]), tried
    free = probe_variance("builtin", lengths, n_prompts=n_prompts, layers=[1], query="fixed")
    mine = load_result(folder / name)
    np.testing.assert_allclose(mine.std_median, free.std_median, rtol=1e-4)


@pytest.mark.slow  # a real limit; test_sweeps has the same by errors
def test_under_a_limit_of_memory_where_nothing_fits_what_is_done_stays(limited):
    folder, found = limited
    run = folder / "nothing fits"
    line = found["nothing fits"][2]
    assert "tokens does not fit the memory" in line
    assert "lengths" in line
    assert "keeps what is done" in line
    assert not (run / "result.json").exists()
    assert any(run.glob("checkpoints/64-64.*"))


@contextmanager
def full_disk(size):
    """No file gets longer than this: a write beyond it fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("name", "size", "n_pieces"),
    # A piece of the probe has 106 kB, its evidence 230 kB: there the pieces fit, not the result.
    [("variance", 10_000, 0), ("variance", 160_000, 4), ("training", 20_000, 0)],
)
def test_on_a_full_disk_there_is_one_line_and_nothing_looks_whole(
    name, size, n_pieces, call, tmp_path
):
    run = tmp_path / "run"
    small = {
        "variance": (
            *("variance", "builtin", "--lengths", "8..64", "--n-prompts", "16"),
            *("--batch-tokens", "256"),
        ),
        "training": ("train-synthetic", "--steps", "50", "--seeds", "4", "--lengths", "16"),
    }
    command = (*small[name], "--quiet", "--output", run)
    with full_disk(size):
        code, out, err = call(*command)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1, err
    assert "cannot be written" in err
    assert "run the same again" in err
    assert len(list(run.glob("checkpoints/*.safetensors"))) == n_pieces
    assert not (run / "result.json").exists()
    assert not list(run.rglob("*partial*"))
    assert call(*command)[0] == 0
    assert load_result(run).headline()
