"""How commands that take time run."""

import time
from pathlib import Path

import pytest

from llmprobe.base.processes import Process
from llmprobe.commands import running
from llmprobe.commands.running import check_place


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path: Path):
    check_place(tmp_path / "new" / "run")
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="cannot be written"):
        check_place(tmp_path / "file" / "run")


def test_a_process_that_waits_for_others_says_for_whom(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "node-a")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(running, "_PATIENCE", 0.01)

    def process():
        time.sleep(0.3)
        return Process(rank=1, local_rank=1, n_processes=3)

    monkeypatch.setattr("llmprobe.base.processes.process", process)
    assert not running.join_processes()
    line = (
        "rank 1 waits at node-a:29500 for the other 2 processes of WORLD_SIZE=3; unset WORLD_SIZE"
    )
    assert capsys.readouterr().err.startswith(line)
    monkeypatch.setattr(running, "_PATIENCE", 60)
    running.join_processes()
    assert capsys.readouterr().err == ""
