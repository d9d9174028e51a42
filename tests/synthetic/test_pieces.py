"""A plan's run: each piece once, from its folder where it is there, in one process or several."""

import dataclasses

import numpy as np
import pytest
import torch
from devices import DEVICE

from llmprobe import load_result
from llmprobe.base.processes import Process
from llmprobe.errors import CheckpointError, OutOfMemoryError
from llmprobe.results.accuracy import SyntheticResult
from llmprobe.runs import jobs
from llmprobe.runs.checkpoints import read_checkpoint, write_checkpoint
from llmprobe.runs.folder import open_training, read_training
from llmprobe.synthetic import pieces as module
from llmprobe.synthetic import plan as planning
from llmprobe.synthetic import training as training_module
from llmprobe.synthetic.pieces import as_variant, finished_pieces, run_plan
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.training import train

BASE = SetTraining(steps=20, seeds=(0, 1, 2), width=16, schedule="cosine")
VARIANTS = ("baseline", "layernorm", "adaptive", "ema", "layernorm+ema+adaptive")
PLAN = SetPlan(VARIANTS, BASE, (16, 64), 32)
ARRAYS = (*SyntheticResult.by_length, "loss", "diverged", "feature_values", "top_weights")


def go(plan=PLAN, output=None, *, overwrite=False, report=lambda what, done, total, note: None):
    device = torch.device(DEVICE)
    return run_plan(plan, device, output=output, overwrite=overwrite, report=report)


def check_equal(a, b):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    told = []
    return folder, go(output=folder, report=lambda *words: told.append(words)), told


def test_what_differs_at_test_time_only_is_trained_once(run):
    names = sorted(path.name for path in (run[0] / "checkpoints").iterdir())
    trained = [name for name in names if "measured" not in name]
    assert trained == ["baseline.0-2.safetensors", "layernorm.0-2.safetensors"]
    measured = {name.removesuffix(".measured.safetensors") for name in set(names) - set(trained)}
    assert measured == {
        *("baseline.baseline.0-2", "adaptive.baseline.0-2", "ema.baseline.0-2"),
        *("layernorm.layernorm.0-2", "layernorm+ema+adaptive.layernorm.0-2"),
    }


def test_a_folder_changes_no_number(run):
    check_equal(go(), run[1])


def test_a_result_is_the_same_in_whatever_stacks(run, monkeypatch):
    monkeypatch.setattr(planning, "STACK", 2)
    other = go(dataclasses.replace(PLAN, variants=("baseline", "layernorm")))
    np.testing.assert_allclose(other.global_variance, run[1].global_variance[:2], rtol=1e-4)
    np.testing.assert_allclose(other.loss, run[1].loss[:2], rtol=1e-4)
    assert other.seeds == (0, 1, 2)


def test_a_finished_run_is_opened_and_not_run_again(run, monkeypatch):
    monkeypatch.setattr(module, "train", None)
    check_equal(go(output=run[0]), run[1])
    check_equal(load_result(run[0]), run[1])


def test_what_is_measured_is_not_measured_again(tmp_path, monkeypatch):
    plan = dataclasses.replace(PLAN, variants=VARIANTS[:2], sets=8)
    first = go(plan, tmp_path)
    (tmp_path / "result.json").unlink()
    (tmp_path / "checkpoints" / "layernorm.layernorm.0-2.measured.safetensors").unlink()
    measured, measure = [], SetPlan.measure

    def count(plan, network, advance):
        measured.append(network.variant)
        return measure(plan, network, advance)

    monkeypatch.setattr(SetPlan, "measure", count)
    told = []
    check_equal(go(plan, tmp_path, report=lambda *words: told.append(words)), first)
    assert measured == ["layernorm"]
    assert {words[0] for words in told} == {"measure layernorm 0-2"}
    measured.clear()
    check_equal(go(plan, tmp_path, overwrite=True), first)
    assert measured == ["baseline", "layernorm"]


@pytest.mark.thorough
def test_a_run_that_was_stopped_anywhere_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(training_module, "SECONDS", 0.0)
    base = dataclasses.replace(BASE, steps=110, seeds=(0, 1), batch=16)
    plan = dataclasses.replace(PLAN, base=base, variants=VARIANTS[:2], sets=8)
    whole = go(plan)
    calls = []
    go(plan, report=lambda *words: calls.append(words))

    class Killed(Exception):
        pass

    for stop in range(0, len(calls), 4):
        left = [stop]

        def report(what, done, total, note, left=left):
            if not left[0]:
                raise Killed
            left[0] -= 1

        folder = tmp_path / str(stop)
        with pytest.raises(Killed):
            go(plan, folder, report=report)
        assert not (folder / "result.json").exists()
        check_equal(go(plan, folder), whole)


def test_each_piece_is_reported_to_its_end(run):
    last = {what: (done, total) for what, done, total, _ in run[2]}
    assert len(last) == 2 + 5
    assert last["train baseline 0-2"] == (20, 20)
    assert last["measure ema 0-2"] == ((16 + 64) * 32 * 3,) * 2
    assert all(done == total for done, total in last.values())
    assert any(note.startswith("loss 2.") and "right" in note for _, _, _, note in run[2])


def test_another_plan_is_refused_in_the_same_folder(run):
    with pytest.raises(CheckpointError, match=r"sets 32 \(asked: 33\)"):
        go(dataclasses.replace(PLAN, sets=33), run[0])
    other = dataclasses.replace(BASE, dropout=0.2)
    with pytest.raises(CheckpointError, match=r"dropout 0.1 \(asked: 0.2\)"):
        go(dataclasses.replace(PLAN, base=other), run[0])


def test_an_evaluation_of_other_lengths_is_refused(tmp_path):
    plan = dataclasses.replace(PLAN, variants=("baseline",), sets=8)
    go(plan, tmp_path)
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoints" / "baseline.baseline.0-2.measured.safetensors"
    tensors, facts = read_checkpoint(path)
    write_checkpoint(path, tensors, facts | {"lengths": [16, 32]})
    with pytest.raises(CheckpointError, match=r"lengths \[16, 32\] \(asked: \[16, 64\]\)"):
        go(plan, tmp_path)


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    plan = dataclasses.replace(PLAN, variants=("baseline",), sets=8)
    go(plan, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / "checkpoints" / "baseline.0-2.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="remove it"):
        go(plan, tmp_path / "run")


@pytest.fixture(scope="module")
def trained():
    training = dataclasses.replace(BASE, variant="layernorm", averages=("bema", "ema"))
    return training, train(training, device=DEVICE)


@pytest.mark.parametrize(
    ("variant", "average"),
    [
        ("layernorm", None),
        ("adaptive+layernorm", None),
        ("layernorm+ema", "ema"),
        ("layernorm+bema+adaptive", "bema"),
    ],
)
def test_a_variant_has_the_weights_it_says_and_is_ready_for_tests(trained, variant, average):
    training, stack = trained
    network = as_variant(training, stack, variant)
    expected = stack.network.state_dict() if average is None else stack.averages[average]
    assert network.state_dict().keys() == expected.keys()
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, expected[name])
        assert weight.data_ptr() != expected[name].data_ptr()  # a copy
    assert network.attention.softmax.cold == ("adaptive" in variant)
    assert (network.variant, network.seeds) == (variant, (0, 1, 2))
    assert not network.training


def test_an_average_that_was_not_kept_is_refused(trained):
    training, stack = trained
    without = dataclasses.replace(stack, averages={})
    with pytest.raises(CheckpointError, match=r"layernorm\+ema: its training kept no ema"):
        as_variant(training, without, "layernorm+ema")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory")])
def test_a_piece_that_does_not_fit_the_memory_says_what_to_make_smaller(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, "train", fail)
    with pytest.raises(OutOfMemoryError, match=r"baseline\.0-2 does not fit .*width or batch"):
        go()


@pytest.mark.parametrize("wrong", ["missing", "shape"])
def test_an_evaluation_of_other_numbers_is_named(tmp_path, wrong):
    plan = dataclasses.replace(PLAN, variants=VARIANTS[:1], sets=8)
    go(plan, tmp_path)
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoints" / "baseline.baseline.0-2.measured.safetensors"
    tensors, facts = read_checkpoint(path)
    accuracy = tensors.pop("accuracy")
    if wrong == "shape":
        tensors["accuracy"] = accuracy[:, :1]
    write_checkpoint(path, tensors, facts)
    with pytest.raises(CheckpointError, match="accuracy is missing or of another shape; remove it"):
        go(plan, tmp_path)


def test_a_finished_run_is_read_from_its_folder_alone(run):
    folder, result, _ = run
    done = finished_pieces(PLAN, open_training(folder, read_training(folder)))
    assert [one.piece.name for one in done] == ["baseline.0-2", "layernorm.0-2"]
    check_equal(PLAN.join(done, torch.device("cpu")), result)


def test_what_several_processes_did_is_joined_to_the_same_result(run, monkeypatch):
    """Each process does its share; what all of them gave is joined."""
    base = dataclasses.replace(BASE, seeds=(0, 1))
    plan = dataclasses.replace(PLAN, base=base, variants=VARIANTS[:2], sets=8)
    monkeypatch.setattr(jobs, "_all_texts", lambda own: [own] * 2)
    shares = []
    for rank in range(2):
        here = Process(rank=rank, local_rank=rank, n_processes=2)
        monkeypatch.setattr(jobs, "process", lambda here=here: here)
        monkeypatch.setattr(jobs, "gather_tensors", _Stop.keep(shares))
        with pytest.raises(_Stop):
            go(plan)
    assert all(shares)
    assert not shares[0].keys() & shares[1].keys()
    monkeypatch.setattr(jobs, "gather_tensors", lambda own: shares[0] | shares[1])
    joined = go(plan)
    monkeypatch.undo()
    check_equal(joined, go(plan))


class _Stop(Exception):
    @classmethod
    def keep(cls, shares):
        def gather(own):
            shares.append(own)
            raise cls

        return gather
