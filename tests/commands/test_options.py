"""What all commands share."""

import inspect
import re
from typing import Annotated, Any

import pytest
import typer

from llmprobe.capture.outputs import AT
from llmprobe.capture.parts import PARTS
from llmprobe.capture.quantizing import QUANTIZED
from llmprobe.cli import app
from llmprobe.commands.options import LOADING, choice, with_options
from llmprobe.probes.prompts import Prompts, check_kind
from llmprobe.probes.request import BOS
from llmprobe.synthetic.tasks import TASKS

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


def options_of(name: str) -> dict[str, Any]:
    parameters = inspect.signature(COMMANDS[name].callback).parameters.values()
    return {p.name: p.annotation.__metadata__[0] for p in parameters}


@pytest.mark.parametrize(
    ("command", "option", "accepted"),
    [
        ("variance", "at", AT),
        ("variance", "prompts", [n for n, kind in Prompts.kinds.items() if kind.is_drawn]),
        ("variance", "bos", BOS),
        ("variance", "part", PARTS),
        ("variance", "quantize", QUANTIZED),
        ("train_synthetic", "task", TASKS),
        ("train_synthetic", "preset", TASKS["argmax"].presets),
    ],
)
def test_choices_are_those_that_the_library_accepts(command, option, accepted):
    about = options_of(command)[option]
    assert about.autocompletion() == list(accepted)
    shown = about.help if about.metavar == "NAME" else about.metavar
    assert all(re.search(rf"\b{name}\b", shown) for name in accepted)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "model" in options_of(name)])
def test_every_command_that_loads_a_model_can_be_told_how(name):
    assert LOADING.keys() <= options_of(name).keys()


def test_the_choices_of_query_are_those_that_the_library_names():
    shown = ", ".join(options_of("variance")["query"].autocompletion())
    with pytest.raises(ValueError, match=f"accepted: {shown}"):
        check_kind("random", "", has_text=False)


@pytest.mark.parametrize("name", ["variance", "attention", "loss", "retrieval"])
def test_options_of_a_probe_are_in_four_panels(call, name):
    panels = [about.rich_help_panel for about in options_of(name).values()]
    assert list(dict.fromkeys(panels[1:])) == ["Model", "Prompts", "Sweep", "Output"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_breaks_no_word(call, monkeypatch, name):
    """All that is written can be found again in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    text = call(name.replace("_", "-"), "--help")[1]
    assert max(map(len, text.splitlines())) <= 80
    shown = set(text.replace("│", " ").split())
    for option in options_of(name).values():
        assert set(option.help.split()) <= shown, option.help
        assert not option.metavar or option.metavar in shown


def test_a_command_gets_its_own_options_and_those_of_its_groups():
    number = Annotated[int, typer.Option(help="n")]
    first, last = {"a": (number, 1)}, {"z": (number, 26)}
    got = {}

    @with_options(first, last)
    def command(m: number = 13, *, z: int, **shared: int) -> None:
        """Documented."""
        got.update(m=m, z=z, **shared)

    assert list(inspect.signature(command).parameters) == ["a", "m", "z"]
    assert command.__doc__ == "Documented."
    command(a=2)
    assert got == {"a": 2, "m": 13, "z": 26}


def test_many_choices_are_in_the_text_where_they_can_wrap():
    few, many = choice("a", "b", text="Which."), choice("a" * 9, "b" * 9, "c" * 9, text="Which.")
    assert (few["metavar"], few["help"]) == ("[a|b]", "Which.")
    words = "aaaaaaaaa, bbbbbbbbb or ccccccccc. Which."
    assert (many["metavar"], many["help"]) == ("NAME", words)
