"""What all commands share."""

import inspect
from pathlib import Path

import pytest

from llmprobe.cli import app
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
