"""What all commands share."""

import inspect
import time
from pathlib import Path

import pytest

from llmprobe.base.processes import Process
from llmprobe.cli import app
from llmprobe.commands import options
from llmprobe.commands.options import check_place

COMMANDS = {command.callback.__name__: command for command in app.registered_commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_how_it_is_called(name):
    command = COMMANDS[name]
    assert command.callback.__doc__
    assert command.epilog.startswith(f"Example: llmprobe {name.replace('_', '-')}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name):
    for parameter in inspect.signature(COMMANDS[name].callback).parameters.values():
        (about,) = parameter.annotation.__metadata__
        assert about.help, parameter.name


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
    monkeypatch.setattr(options, "_PATIENCE", 0.01)

    def process():
        time.sleep(0.3)
        return Process(rank=1, local_rank=1, n_processes=3)

    monkeypatch.setattr("llmprobe.base.processes.process", process)
    assert not options.join_processes()
    line = (
        "rank 1 waits at node-a:29500 for the other 2 processes of WORLD_SIZE=3; unset WORLD_SIZE"
    )
    assert capsys.readouterr().err.startswith(line)
    monkeypatch.setattr(options, "_PATIENCE", 60)
    options.join_processes()
    assert capsys.readouterr().err == ""
