"""What all commands share."""

import inspect
from pathlib import Path

import pytest

from llmprobe.cli import app
from llmprobe.commands.options import check_target
from llmprobe.errors import CheckpointError

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


def test_a_target_is_refused_before_the_work(tmp_path: Path):
    check_target(tmp_path / "new" / "run", overwrite=False)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", overwrite=False)
    (tmp_path / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="is no result"):
            check_target(tmp_path, overwrite=overwrite)
