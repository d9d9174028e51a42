"""Networks that are tested while they train: as if training had ended there, kept and resumed."""

import dataclasses

import numpy as np
import pytest
import torch
from devices import DEVICE

from llmprobe import load_result, merge_results, train_synthetic
from llmprobe.errors import CheckpointError
from llmprobe.synthetic import training as training_module
from llmprobe.synthetic.pieces import run_plan
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.training import train

BASE = SetTraining(steps=120, seeds=(0, 1), width=8, batch=8, clip=0.0)
VARIANTS = ("baseline", "layernorm", "adaptive", "ema")
PLAN = SetPlan(VARIANTS, BASE, (16, 64), 16, (50, 100))


def go(plan=PLAN, output=None):
    return run_plan(
        plan, torch.device(DEVICE), output=output, overwrite=False, report=lambda *words: None
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, go(output=folder)


def test_an_early_score_is_that_of_a_training_that_ended_there(run):
    result = run[1]
    assert result.score_steps == (50, 100)
    for n, steps in enumerate(result.score_steps):
        shorter = SetPlan(VARIANTS, dataclasses.replace(BASE, steps=steps), (16, 64), 16)
        np.testing.assert_array_equal(result.step_accuracy[:, :, n], go(shorter).accuracy)
    plain = go(dataclasses.replace(PLAN, score_at=()))
    np.testing.assert_array_equal(result.accuracy, plain.accuracy)
    np.testing.assert_array_equal(result.loss, plain.loss)
    assert plain.step_accuracy.shape == (4, 2, 0, 2)


def test_a_frame_has_every_step_and_the_last_one(run):
    frame = run[1].step_frame()
    assert len(frame) == 4 * 3 * 2
    last = frame[frame.step == 120].reset_index(drop=True)
    assert last["mean"].tolist() == run[1].summary_frame()["mean"].tolist()
    at = frame[(frame.step == 50) & (frame.variant == "layernorm") & (frame.length == 64)].iloc[0]
    first, second = run[1].step_accuracy[:2, :, 0, 1]
    assert at["mean"] == pytest.approx(second.mean())
    assert at.difference == pytest.approx((second - first).mean())
    assert frame[frame.variant == "baseline"].difference.isna().all()
    assert len(run[1].plot("steps")) == 1
    assert len(run[1].to_document()["steps"]) == 24


def test_a_training_that_was_stopped_has_the_same_early_scores(run, tmp_path, monkeypatch):
    monkeypatch.setattr(training_module, "SECONDS", -1.0)  # a checkpoint after every block
    folder = tmp_path / "run"

    class Stopped(Exception):
        pass

    def stop(what, done, total, note):
        if what.startswith("train layernorm") and done == 100:
            raise Stopped

    with pytest.raises(Stopped):
        run_plan(PLAN, torch.device(DEVICE), output=folder, overwrite=False, report=stop)
    again = go(output=folder)
    np.testing.assert_array_equal(again.step_accuracy, run[1].step_accuracy)
    np.testing.assert_array_equal(again.accuracy, run[1].accuracy)
    np.testing.assert_array_equal(load_result(folder).step_accuracy, run[1].step_accuracy)
    (folder / "result.json").unlink()
    next(folder.glob("checkpoints/layernorm@50.*")).unlink()
    with pytest.raises(CheckpointError, match="its training is behind step 50; remove"):
        go(output=folder)


def test_joined_lengths_have_their_early_scores(run, tmp_path):
    for length in PLAN.lengths:
        go(dataclasses.replace(PLAN, lengths=(length,)), output=tmp_path / f"{length}")
    both = merge_results([tmp_path / "64", tmp_path / "16"], tmp_path / "both")
    np.testing.assert_array_equal(both.step_accuracy, run[1].step_accuracy)
    again = merge_results([tmp_path / "16", tmp_path / "64"], tmp_path / "again")
    np.testing.assert_array_equal(again.step_accuracy, run[1].step_accuracy)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"score_at": (75,)}, "score_at: got 75, accepted: multiples of 50"),
        ({"score_at": "50,200"}, "score_at: got 200, accepted: multiples of 50"),
        ({"score_at": (100, 50)}, "accepted: different steps, rising"),
        ({"score_at": "some"}, "score_at: got 'some', accepted: steps such as"),
        ({"score_at": (50,), "task": "othello"}, "it is not for othello"),
        ({"variants": "clipped"}, "clips gradients at 1, but clip is 1 for all; give clip 0"),
    ],
)
def test_what_cannot_be_scored_or_clipped_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        train_synthetic(**({"task": "argmax", "steps": 200} | given))


def test_a_clipped_variant_is_a_training_with_clipping(monkeypatch):
    assert training_module.CLIPPED == 1
    monkeypatch.setattr(training_module, "CLIPPED", 0.01)  # less than gradients have at once
    base = dataclasses.replace(BASE, steps=4, learning_rate=0.01)
    clipped = train(
        dataclasses.replace(base, variant="clipped"), device=DEVICE
    ).network.state_dict()
    same = train(dataclasses.replace(base, clip=0.01), device=DEVICE).network.state_dict()
    free = train(base, device=DEVICE).network.state_dict()
    assert all(torch.equal(clipped[name], same[name]) for name in same)
    assert not all(torch.equal(clipped[name], free[name]) for name in same)
