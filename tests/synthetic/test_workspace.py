"""The folder of a run under way."""

import pytest

from llmprobe.errors import CheckpointError
from llmprobe.synthetic.workspace import Workspace

ASKED = {"task": "argmax", "steps": 10, "variants": ("baseline",)}


def test_the_same_configuration_opens_it_again(tmp_path):
    first = Workspace(tmp_path / "run", ASKED)
    first.checkpoint("baseline.0-3").write_text("")
    again = Workspace(tmp_path / "run", dict(reversed(ASKED.items())))
    assert again.checkpoint("baseline.0-3").is_file()
    assert not again.is_finished


def test_another_configuration_is_refused_or_begins_again_when_told(tmp_path):
    first = Workspace(tmp_path / "run", ASKED)
    first.checkpoint("x").write_text("")
    with pytest.raises(CheckpointError, match=r"steps 10 \(asked: 11\)"):
        Workspace(tmp_path / "run", ASKED | {"steps": 11})
    fresh = Workspace(tmp_path / "run", ASKED | {"steps": 11}, overwrite=True)
    assert not fresh.checkpoint("x").exists()


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "null"])
def test_a_damaged_configuration_is_one_line(tmp_path, content):
    (tmp_path / "configuration.json").write_text(content)
    with pytest.raises(CheckpointError, match="--overwrite"):
        Workspace(tmp_path, ASKED)


def test_what_is_not_ours_is_not_touched(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="holds no training"):
            Workspace(tmp_path, ASKED, overwrite=overwrite)
    with pytest.raises(CheckpointError, match="is a file"):
        Workspace(tmp_path / "notes", ASKED)
    assert (tmp_path / "notes").read_text() == "mine"
