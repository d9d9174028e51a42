"""The folder of a run under way."""

import os

import pytest

from llmprobe import load_result
from llmprobe.errors import CheckpointError, ResultExistsError, ResultFormatError
from llmprobe.runs.folder import check_probe, open_probe, open_training

ASKED = {"task": "argmax", "steps": 10, "variants": ("baseline",)}


def test_the_same_configuration_opens_it_again(tmp_path):
    with open_training(tmp_path / "run", ASKED) as first:
        first.checkpoint("baseline.0-3").write_text("")
    again = open_training(tmp_path / "run", dict(reversed(ASKED.items())))
    assert again.checkpoint("baseline.0-3").is_file()
    assert not again.is_finished


def test_another_configuration_is_refused_or_begins_again_when_told(tmp_path):
    with open_training(tmp_path / "run", ASKED) as first:
        first.checkpoint("x").write_text("")
    with pytest.raises(CheckpointError, match=r"steps 10 \(asked: 11\)"):
        open_training(tmp_path / "run", ASKED | {"steps": 11})
    fresh = open_training(tmp_path / "run", ASKED | {"steps": 11}, overwrite=True)
    assert not fresh.checkpoint("x").exists()


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "null", '{"a": 1}'])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_configuration_that_is_not_ours_is_left_alone(tmp_path, content, overwrite):
    (tmp_path / "configuration.json").write_text(content)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="another output folder"):
        open_training(tmp_path, ASKED, overwrite=overwrite)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_beginning_again_spares_what_others_put_there(tmp_path):
    open_training(tmp_path, ASKED).checkpoint("x").write_text("")
    (tmp_path / "notes.txt").write_text("mine")
    open_training(tmp_path, ASKED, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_run_killed_at_its_very_beginning_can_be_begun_again(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".configuration.json.999999999.partial").write_text("{")
    (tmp_path / ".999999999.partial").mkdir()  # half of a result
    (tmp_path / "checkpoints" / ".tmpXyZ").write_bytes(b"half of a checkpoint")
    open_training(tmp_path, ASKED).close()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "configuration.json"}


def test_what_the_killed_left_half_written_is_swept(tmp_path):
    space = open_training(tmp_path, ASKED)
    space.close()
    (space.checkpoints / ".tmpXyZ").write_bytes(b"half of a checkpoint")
    left = space.checkpoints / ".baseline.0-3.safetensors.999999999.partial"
    left.write_text("")
    (tmp_path / ".999999999.partial").mkdir()
    under_way = space.checkpoints / f".baseline.0-3.safetensors.{os.getpid()}.partial"
    under_way.write_text("")
    open_training(tmp_path, ASKED)
    assert list(space.checkpoints.iterdir()) == [under_way]
    assert not (tmp_path / ".999999999.partial").exists()


def test_what_is_not_ours_is_not_touched(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ResultExistsError, match="holds no training"):
            open_training(tmp_path, ASKED, overwrite=overwrite)
    with pytest.raises(CheckpointError, match="is a file"):
        open_training(tmp_path / "notes", ASKED)
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("open_run", [open_training, open_probe])
def test_a_link_stands_for_its_folder_and_one_to_nothing_is_refused(tmp_path, open_run):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to("scratch")
    open_run(tmp_path / "run", ASKED)
    assert (tmp_path / "scratch" / "configuration.json").is_file()
    (tmp_path / "lost").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="cannot be written"):
        open_run(tmp_path / "lost", ASKED)


def test_a_run_under_way_is_told_from_what_is_no_result(tmp_path):
    open_probe(tmp_path / "run", ASKED)
    with pytest.raises(ResultFormatError, match="is not finished; run its command again"):
        load_result(tmp_path / "run")


def test_a_probe_is_refused_before_the_work(tmp_path):
    assert check_probe(tmp_path / "new" / "run", overwrite=False) == tmp_path / "new" / "run"
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    check_probe(tmp_path / "empty", overwrite=False)
    (tmp_path / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ResultExistsError, match="is no result"):
            check_probe(tmp_path, overwrite=overwrite)


def test_an_existing_result_is_refused_as_saving_refuses_it(variance_result, tmp_path):
    folder = variance_result.save(tmp_path / "run")
    said = set()
    for again in (variance_result.save, lambda folder: check_probe(folder, overwrite=False)):
        with pytest.raises(ResultExistsError) as caught:
            again(folder)
        said.add(str(caught.value))
    assert len(said) == 1


OPENERS = {"training": open_training, "probe": open_probe}


@pytest.mark.parametrize("open_run", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("change", [{}, {"steps": 11}])
def test_a_second_run_is_refused_while_the_first_writes(tmp_path, open_run, overwrite, change):
    with open_run(tmp_path / "run", ASKED) as first:
        first.checkpoint("x").write_text("mine")
        with pytest.raises(CheckpointError, match=r"is in use by another run \(process \d+ on "):
            open_run(tmp_path / "run", ASKED | change, overwrite=overwrite)
        assert first.checkpoint("x").read_text() == "mine"
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"checkpoints", "configuration.json"}
    open_run(tmp_path / "run", ASKED | change, overwrite=True).close()


def test_a_result_is_not_saved_over_a_run_under_way(variance_result, tmp_path):
    with open_probe(tmp_path / "run", ASKED), pytest.raises(CheckpointError, match="in use"):
        variance_result.save(tmp_path / "run", overwrite=True)


def test_what_cannot_be_opened_leaves_no_folder(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("llmprobe.runs.folder._write", fail)
    with pytest.raises(KeyboardInterrupt):
        open_training(tmp_path / "run", ASKED)
    assert not (tmp_path / "run").exists()
