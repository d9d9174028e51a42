"""Trainings that are joined are the training of all their seeds, tested at all their lengths."""

import dataclasses
import json

import numpy as np
import pytest
from devices import KIND

from llmprobe import (
    load_result,
    load_synthetic,
    merge_results,
    search_synthetic,
    train_synthetic,
)
from llmprobe.errors import CheckpointError
from llmprobe.runs.checkpoints import read_checkpoint, write_checkpoint

SETS = {
    "task": "argmax",
    "variants": "baseline,layernorm,ema",
    "steps": 20,
    "sets": 16,
    "width": 16,
}
SEQUENCES = {"task": "set-complement", "vocab": 6, "steps": 20, "sets": 64, "width": 8}
ANSWERS = {"task": "reverse", "steps": 20, "sets": 16, "width": 8, "batch": 8}
SEARCH = {"task": "set-complement", "vocab": 6, "steps": 4, "sets": 16}
SET_SEARCH = {"task": "argmax", "steps": 25, "sets": 8, "lengths": "1,4", "batch": 8}
NUMBERS = {
    "synthetic": ("accuracy", "global_variance", "loss", "feature_values", "top_weights"),
    "legality": ("kl", "illegal_mass", "loss", "uniform_mass", "diverged"),
    "answers": ("exact", "token_accuracy", "loss", "chance", "diverged"),
    "search": ("kl", "gap", "learning_rate", "width", "diverged"),
}


def check_same(a, b):
    """To the last digits: seeds in stacks of other sizes are added up in another order."""
    assert (a.kind, a.seeds, a.lengths) == (b.kind, b.seeds, b.lengths)
    assert a.warnings == b.warnings
    for name in NUMBERS[a.kind]:
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=1e-3, atol=1e-4, err_msg=name
        )


def run(**options):
    return search_synthetic(**options) if "n" in options else train_synthetic(**options)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (SETS | {"lengths": "16,32"}, "seeds"),
        (SEQUENCES, "seeds"),
        (ANSWERS | {"lengths": "1,3"}, "seeds"),
        (SEARCH, "n"),
    ],
    ids=["sets", "sequences", "answers", "search"],
)
def test_other_seeds_are_joined(options, count, tmp_path):
    for first, n in ((0, 2), (2, 3)):
        run(**options, **{count: n}, first_seed=first, output=tmp_path / str(first))
    joined = merge_results([tmp_path / "2", tmp_path / "0"], tmp_path / "all")
    check_same(joined, run(**options, **{count: 5}))
    check_same(load_result(tmp_path / "all"), joined)
    # The folder is that of a training: its command finds it finished, its networks are there.
    again = run(**options, **{count: 5}, output=tmp_path / "all")
    assert again.provenance.created == joined.provenance.created
    assert load_synthetic(tmp_path / "all", seed=3) is not None


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (SETS | {"steps": 100, "score_at": "50", "lengths": "16,32"}, "seeds"),
        (SET_SEARCH, "n"),
    ],
    ids=["sets", "set-search"],
)
def test_saved_results_without_their_runs_are_joined_to_the_same_numbers(options, count, tmp_path):
    for first, n in ((0, 2), (2, 3)):
        result = run(**options, **{count: n}, first_seed=first, output=tmp_path / f"run-{first}")
        result.save(tmp_path / f"saved-{first}")
    of_runs = merge_results([tmp_path / "run-2", tmp_path / "run-0"], tmp_path / "runs")
    for other in ("run-0", "saved-0"):
        joined = merge_results([tmp_path / "saved-2", tmp_path / other], tmp_path / f"by-{other}")
        for field in dataclasses.fields(of_runs):
            mine, theirs = (getattr(x, field.name) for x in (joined, of_runs))
            if field.name == "provenance":
                mine, theirs = (dataclasses.replace(x, created="") for x in (mine, theirs))
            np.testing.assert_equal(mine, theirs, err_msg=field.name)
        assert not (tmp_path / f"by-{other}" / "checkpoints").exists()


def test_saved_results_that_cannot_be_joined_are_refused(tmp_path):
    for name, options in (("a", SETS), ("b", SETS), ("c", SEQUENCES), ("d", SEQUENCES)):
        lengths = {"a": "16", "b": "32"}.get(name, "1,3")
        made = train_synthetic(**options, seeds=1, lengths=lengths, first_seed=int(name == "d"))
        made.save(tmp_path / name)
    for pair, said in (("ab", "without checkpoints nothing tells"), ("cd", "legality")):
        with pytest.raises(CheckpointError, match=said):
            merge_results([tmp_path / name for name in pair], tmp_path / "both")
    for told, said in (({"seeds": [5]}, "arguments are not those"), ({"sets": ...}, "another ver")):
        for name in "ab":
            made = load_result(tmp_path / name)
            arguments = {k: v for k, v in (made.provenance.arguments | told).items() if v != ...}
            forged = dataclasses.replace(made.provenance, arguments=arguments)
            dataclasses.replace(made, provenance=forged).save(tmp_path / name, overwrite=True)
        with pytest.raises(CheckpointError, match=said):
            merge_results([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        (SETS | {"seeds": 2}, "16,32,64"),
        (SEQUENCES | {"seeds": 2}, "1,3,5"),
        (ANSWERS | {"seeds": 2}, "1,3,5"),
        (SEARCH | {"n": 2}, "1,3,5"),
    ],
    ids=["sets", "sequences", "answers", "search"],
)
def test_other_lengths_are_joined(options, lengths, tmp_path):
    first, second, third = lengths.split(",")
    run(**options, lengths=f"{first},{third}", output=tmp_path / "a")
    run(**options, lengths=second, output=tmp_path / "b")
    joined = merge_results([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    whole = run(**options, lengths=lengths)
    check_same(joined, whole)
    assert joined.provenance.prompts_hash == whole.provenance.prompts_hash


def test_what_does_not_fit_together_is_refused(tmp_path):
    base = SETS | {"seeds": 2, "lengths": "16"}
    made = {
        "a": {},
        "copy": {},
        "overlap": {"first_seed": 1},
        "far": {"first_seed": 2, "lengths": "32"},
        "steps": {"first_seed": 2, "steps": 10},
    }
    for name, options in made.items():
        train_synthetic(**base | options, output=tmp_path / name)
    for other, said in (
        ("copy", "seeds 0 to 1 at length 16 are in two folders"),
        ("overlap", "seeds 0 to 1 and 1 to 2 overlap"),
        ("far", r"seeds 0 to 1 were tested at \(16,\), seeds 2 to 3 at \(32,\)"),
        ("steps", r"steps 10 \(asked: 20\)"),
    ):
        with pytest.raises((ValueError, CheckpointError), match=said):
            merge_results([tmp_path / "a", tmp_path / other], tmp_path / "all")
    next((tmp_path / "copy" / "checkpoints").glob("*.measured.*")).unlink()
    train_synthetic(**base, first_seed=2, output=tmp_path / "b")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        merge_results([tmp_path / "copy", tmp_path / "b"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_networks_that_are_not_the_same_are_not_taken_for_it(tmp_path):
    for name, lengths in (("short", "16"), ("long", "32")):
        train_synthetic(**SETS, seeds=2, lengths=lengths, output=tmp_path / name)
    path = next(tmp_path.glob("long/checkpoints/baseline.0-1.safetensors"))
    tensors, facts = read_checkpoint(path)
    write_checkpoint(path, tensors | {"losses": tensors["losses"] + 1e-6}, facts)
    with pytest.raises(ValueError, match="trained to other networks"):
        merge_results([tmp_path / "short", tmp_path / "long"], tmp_path / "both")


def test_a_training_stays_on_its_device_and_version(tmp_path):
    train_synthetic(**SETS, seeds=1, lengths="16", output=tmp_path)
    path = tmp_path / "configuration.json"
    path.write_text(path.read_text().replace(f'"device": "{KIND}"', '"device": "other"'))
    with pytest.raises(CheckpointError, match=rf"device 'other' \(asked: '{KIND}'\)"):
        train_synthetic(**SETS, seeds=1, lengths="16", output=tmp_path)


def test_trainings_whose_seeds_shared_their_tests_are_not_joined(tmp_path):
    for name, first in (("a", 0), ("b", 2)):
        options = SETS | {"lengths": "16", "seeds": 2, "first_seed": first}
        train_synthetic(**options, output=tmp_path / name)
        path = tmp_path / name / "configuration.json"
        facts = json.loads(path.read_text())
        del facts["tests"]
        path.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match="whose seeds share their tests; train it again"):
        merge_results([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
