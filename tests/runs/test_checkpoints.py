"""Checkpoints are whole, or not there, or refused."""

import pytest
import torch

from llmprobe.errors import CheckpointError
from llmprobe.runs.checkpoints import check_same, read_checkpoint, write_checkpoint

TENSORS = {"a": torch.randn(3, 4), "b": torch.arange(5)}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, TENSORS, {"step": 3, "training": {"seeds": (1, 2)}})
    tensors, facts = read_checkpoint(path)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert facts == {"step": 3, "training": {"seeds": [1, 2]}}
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, TENSORS, {"step": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("llmprobe.runs.checkpoints.sync", full)
    with pytest.raises(CheckpointError, match="no space"):
        write_checkpoint(path, TENSORS, {"step": 2})
    assert read_checkpoint(path)[1] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 4, 60, 0.5, 0.99])
def test_a_cut_file_is_refused_in_one_line(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, TENSORS, {"step": 1})
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else keep])
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        read_checkpoint(path)


def test_a_strangers_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        read_checkpoint(tmp_path / "x.safetensors")


def test_other_settings_are_named(tmp_path):
    check_same(tmp_path, {"steps": 5, "seeds": [0, 1]}, {"steps": 5, "seeds": (0, 1)})
    with pytest.raises(CheckpointError, match=r"steps 5 \(asked: 6\)"):
        check_same(tmp_path, {"steps": 5}, {"steps": 6})


def test_a_checkpoint_is_for_all_whom_its_folder_is_for(tmp_path):
    for mode in (0o755, 0o770, 0o700):
        tmp_path.chmod(mode)
        write_checkpoint(tmp_path / "a.safetensors", {"x": torch.zeros(1)}, {})
        assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode & 0o666
