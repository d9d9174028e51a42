"""How commands that take time run."""

import time
from pathlib import Path

import pytest
from transformers.utils import logging

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


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_hides_the_bars_of_loading_and_shows_them_again(call, monkeypatch, tmp_path, quiet):
    seen = []

    def start(*_, **__):
        seen.append(logging.is_progress_bar_enabled())
        raise ValueError("enough")

    monkeypatch.setattr(logging, "_tqdm_active", True)  # whatever the environment says
    for name in ("disable_progress_bars", "enable_progress_bars"):  # the hub's warn of it
        monkeypatch.setattr(logging.hf_hub_utils, name, lambda: None)
    monkeypatch.setattr("llmprobe.probes.probe.start", start)
    words = ["variance", "builtin", "--output", tmp_path / "run", *(["--quiet"] if quiet else [])]
    code, _, err = call(*words)
    assert (code, "enough" in err) == (1, True)
    assert seen == [not quiet]
    assert logging.is_progress_bar_enabled()
