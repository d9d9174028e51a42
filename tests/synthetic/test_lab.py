"""The lab as a whole: pieces, resuming, what a result says."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ROOT

from llmprobe import load_result, probe_variance
from llmprobe.errors import CheckpointError
from llmprobe.synthetic import lab, planning
from llmprobe.synthetic.evaluation import evaluate
from llmprobe.synthetic.lab import load_synthetic, train_synthetic
from llmprobe.synthetic.network import PARTS, SetNetwork
from llmprobe.synthetic.training import Training, train

SMALL = {"steps": 20, "seeds": 3, "lengths": [16, 64], "sets": 32, "width": 16}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "run"
    variants = ["baseline", "layernorm", "adaptive", "ema", "layernorm+ema+adaptive"]
    return folder, train_synthetic("argmax", variants, **SMALL, output=folder)


def test_the_frame_has_a_row_for_each_variant_seed_and_length(run):
    frame = run[1].to_frame()
    assert list(frame.columns) == [
        *("task", "variant", "seed", "length", "accuracy", "n_sets"),
        *("global_mean", "global_variance", "feature_variance", "entropy"),
    ]
    assert len(frame) == 5 * 3 * 2
    assert set(frame.n_sets) == {32}
    assert frame.accuracy.between(0, 1).all()


def test_the_numbers_are_those_of_training_and_evaluation_alone(run):
    training = Training(variant="layernorm", seeds=(2,), steps=20, width=16, schedule="cosine")
    alone = evaluate(train(training).network, 64, 32)
    row = run[1].to_frame().query("variant == 'layernorm' and seed == 2 and length == 64")
    assert float(row.accuracy.iloc[0]) == pytest.approx(alone.accuracy[0], abs=1 / 32)
    assert float(row.feature_variance.iloc[0]) == pytest.approx(alone.feature_variance[0], rel=1e-3)


def test_what_differs_at_test_time_only_is_trained_once(run):
    names = sorted(path.name for path in (run[0] / "checkpoints").iterdir())
    trained = [name for name in names if "measured" not in name]
    assert trained == ["baseline.0-2.safetensors", "layernorm.0-2.safetensors"]


def test_a_result_is_the_same_in_whatever_stacks(run, monkeypatch):
    monkeypatch.setattr(planning, "STACK", 2)
    other = train_synthetic("argmax", ["baseline", "layernorm"], **SMALL)
    np.testing.assert_allclose(other.global_variance, run[1].global_variance[:2], rtol=1e-4)
    assert other.seeds == (0, 1, 2)


def test_a_finished_run_is_opened_and_not_run_again(run, monkeypatch):
    monkeypatch.setattr(lab, "train", None)
    variants = list(run[1].variants)
    again = train_synthetic("argmax", variants, **SMALL, output=run[0])
    np.testing.assert_array_equal(again.accuracy, run[1].accuracy)
    np.testing.assert_array_equal(load_result(run[0]).accuracy, run[1].accuracy)


@pytest.mark.parametrize("variant", ["baseline", *PARTS])
def test_every_variant_trains_and_is_measured(variant):
    options = SMALL | {"steps": 3, "seeds": 1, "lengths": [16], "sets": 8}
    result = train_synthetic("dictionary", variant, heads=2, **options)
    assert np.isfinite(result.accuracy).all()
    assert result.variants == (variant,)


def test_a_trained_network_is_probed_like_any_model(run):
    network = load_synthetic(run[0], "layernorm", seed=1)
    result = probe_variance(network, [16, 64], samples=16, query="fixed")
    assert result.lengths == (16, 64)
    assert np.isfinite(result.std_median).all()
    frame = run[1].to_frame().query("variant == 'layernorm' and seed == 1")
    accuracy = evaluate(network, 64, 32).accuracy[0]
    assert accuracy == pytest.approx(float(frame.accuracy.iloc[-1]))


def test_an_average_and_a_temperature_come_back_from_the_folder(run):
    raw = load_synthetic(run[0], "layernorm")
    averaged = load_synthetic(run[0], "layernorm+ema+adaptive")
    assert isinstance(raw, SetNetwork)
    assert averaged.attention.softmax.cold
    assert not torch.equal(raw.readout.first.weight, averaged.readout.first.weight)


def test_a_network_that_is_not_there_is_one_line(run, tmp_path):
    with pytest.raises(CheckpointError, match="no seed 9 of baseline"):
        load_synthetic(run[0], seed=9)
    with pytest.raises(CheckpointError, match="no trained rmsnorm"):
        load_synthetic(run[0], "rmsnorm")
    with pytest.raises(CheckpointError, match="no trained baseline"):
        load_synthetic(tmp_path)


def test_a_network_without_items_or_with_several_seeds_says_how():
    with pytest.raises(ValueError, match=r"member\(0\) is one seed"):
        SetNetwork("argmax", seeds=(0, 1), width=16)(torch.zeros(3, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="one item or more"):
        SetNetwork("argmax", width=16)(torch.zeros(3, 1, dtype=torch.int64))


def test_a_seed_that_learned_nothing_is_in_the_warnings():
    options = SMALL | {"learning_rate": 0.0, "seeds": 2, "lengths": [16]}
    warnings = train_synthetic("argmax", "baseline", **options).warnings
    assert any("diverged or learned nothing: seed" in warning for warning in warnings)


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    train_synthetic("argmax", "baseline", **SMALL, output=tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / "checkpoints" / "baseline.0-2.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="remove it"):
        train_synthetic("argmax", "baseline", **SMALL, output=tmp_path / "run")


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one(tmp_path):
    options = ["--steps", "60", "--seeds", "20", "--width", "16", "--lengths", "16,64"]
    command = ["-m", "llmprobe", "train-synthetic", *options, "--sets", "16", "--quiet"]
    two = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    for name, launcher in (("one", []), ("two", two)):
        where = ["--output", str(tmp_path / name)]
        done = subprocess.run(
            [sys.executable, *launcher, *command, *where],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("saved: ") == 1
    one, both = (load_result(tmp_path / name) for name in ("one", "two"))
    for name in ("accuracy", "loss", "feature_variance", "top_weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(both, name))


@pytest.mark.slow
def test_a_killed_run_ends_with_the_numbers_of_an_undisturbed_one(tmp_path):
    options = ["--steps", "600", "--seeds", "2", "--lengths", "16,64", "--sets", "64"]
    command = [sys.executable, "-m", "llmprobe", "train-synthetic", *options, "--quiet"]

    def start(folder):
        where = ["--output", str(tmp_path / folder)]
        return subprocess.Popen([*command, *where], cwd=ROOT, stdout=subprocess.DEVNULL)

    assert start("undisturbed").wait() == 0
    kills = 0
    for seconds in (6, 9, 12):
        process = start("killed")
        time.sleep(seconds)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills
    assert start("killed").wait() == 0
    whole, pieced = (load_result(tmp_path / name) for name in ("undisturbed", "killed"))
    for name in ("accuracy", "loss", "feature_variance", "top_weights"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieced, name))
    assert not list((tmp_path / "killed").rglob("*partial*"))
