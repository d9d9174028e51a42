"""What can be refused before a model is loaded, is."""

import pytest

from llmprobe import CheckpointError, load_model, probe_attention, probe_variance
from llmprobe.probes import probe

SMALL = {"lengths": "8,16", "n_prompts": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("runs") / "a"
    probe_variance("builtin", **SMALL, layers="0,2", output=target)
    return target


@pytest.fixture
def _no_model(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(probe, "as_loaded", refuse)


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"lengths": "8,32"}, r"lengths \[8, 16\] \(asked: \[8, 32\]\)"),
        ({"at": "heads"}, r"at 'output' \(asked: 'heads'\)"),
        ({"layers": "0"}, r"layers \[0, 2\] \(asked: \[0\]\)"),
        ({"seed": 1}, r"seed 0 \(asked: 1\)"),
        ({"n_prompts": 3}, "has 4 prompts, more than the 3"),
        ({"model": "some/model"}, r"model 'builtin' \(asked: 'some/model'\)"),
    ],
)
def test_a_folder_of_other_settings(folder, other, words):
    given = {"model": "builtin", **SMALL, "layers": "0,2"} | other
    with pytest.raises(CheckpointError, match=words):
        probe_variance(**given, output=folder)


@pytest.mark.usefixtures("_no_model")
def test_a_folder_of_another_kind(folder):
    with pytest.raises(CheckpointError, match=r"kind 'variance' \(asked: 'attention'\)"):
        probe_attention("builtin", **SMALL, output=folder)


@pytest.mark.usefixtures("_no_model")
def test_a_missing_text(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        probe_variance("builtin", **SMALL, prompts="text", text=tmp_path / "nowhere.txt")


def test_what_may_differ_is_let_pass(folder):
    loaded = load_model("builtin")
    before = probe_variance(loaded, **SMALL, layers="-5,2", output=folder)
    assert before.n_prompts.max() == 4
    more = probe_variance("builtin", **SMALL | {"n_prompts": 6}, layers="0,2", output=folder)
    assert more.n_prompts.max() == 6
