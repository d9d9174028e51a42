"""How commands show a result: figures in its folder, and a table or a JSON document printed."""

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmprobe.commands.importing import importing

if TYPE_CHECKING:
    from llmprobe.results.base import Result


_KEPT = "\x00"
"""Stands for a space at which no line is broken; a text to print has no control characters."""


def say(text: str, *, err: bool = False, indent: int = 2) -> None:
    """Print one line. Control characters are shown, not sent: the words may come from a file.

    In a terminal it is wrapped between words at the terminal's width; further lines are indented.
    """
    from llmprobe.base.visible import visible

    words, width = visible(text), terminal_width(err=err)
    typer.echo(words if width is None else wrapped(words, width, indent=indent), err=err)


def say_names(names: Mapping[str, Any]) -> None:
    """Names and what each means, in two columns."""
    width = max(map(len, names)) + 2
    for name, meaning in names.items():
        say(f"{name:<{width}}{meaning}", indent=width)


OPTIONS: set[str] = set()
"""Arguments that commands have as options; `cli` fills it with those of all commands."""


def in_options(words: str) -> str:
    """The same words with options of the command line for Python's arguments."""

    def option(match: re.Match[str]) -> str:
        name, *values = match.groups()
        if name not in OPTIONS:
            return match[0]
        value = next((value for value in values if value is not None), "True")
        return f"--{name.replace('_', '-')}" + ("" if value == "True" else f" {value}")

    words = re.sub(r"^(\w+)(?=: got )", option, words)
    words = re.sub(r"(?<![\w-])([a-z_]+)=(?:\"([^\"]*)\"|(\w+))", option, words)
    return re.sub(r"(?<=\braise )([a-z]+_[a-z_]+)\b", option, words)


def say_loading(what: str) -> None:
    """Before libraries and weights are loaded, so that a terminal shows a line at once."""
    if sys.stderr.isatty():
        say(f"loading {what} ...", err=True)


def wrapped(text: str, width: int, *, indent: int = 2) -> str:
    """A line as several that fit, broken between words; a longer word has a line to itself.

    A quoted token such as ' over' and a number with its percent sign are one word.
    """
    kept = re.sub(r"'( [^' ]*)'", lambda match: match[0].replace(" ", _KEPT), text)
    kept = re.sub(r"(?<=\d) (?=%)", _KEPT, kept)
    lines = textwrap.fill(
        kept,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    return lines.replace(_KEPT, " ")


def show_result(result: "Result", folder: Path, *, as_json: bool) -> None:
    """Draw a result's figures into its folder and print the result."""
    draw_figures(result, folder)
    if as_json:
        print_document(result, folder)
    else:
        print_result(result, folder, result.table(width=terminal_width()))


def print_document(result: "Result", folder: Path) -> None:
    """One JSON document with all rows."""
    typer.echo(json.dumps(result.to_document() | {"output": folder.name}))


def print_result(result: "Result", folder: Path, table: Any) -> None:
    """The result as text: what it is, its table, what that says, and where it is."""
    from llmprobe.results.notes import joined_notes

    say(result.headline())
    print_table(table)
    for remark in result.remarks():
        say(in_options(remark))
    for note in joined_notes(result.warnings):
        say(f"note: {in_options(note)}")
    names = ("result.json", "arrays.npz", *_figures(result), "evidence.safetensors", "checkpoints")
    there = ", ".join(name for name in names if (folder / name).exists())
    say(f"saved: {folder} ({there})")


@importing()
def draw_figures(result: "Result", folder: Path) -> None:
    """Draw the figures that a saved result lacks, or that are older than it."""
    saved = (folder / "result.json").stat().st_mtime_ns
    formats = []
    for name in _figures(result):
        figure = folder / name
        drawn = figure.is_file() and not figure.is_symlink()
        if not drawn or figure.stat().st_mtime_ns < saved:
            formats.append(figure.suffix.removeprefix("."))
    if formats:
        result.save_figures(folder, formats=formats)


def _figures(result: "Result") -> tuple[str, ...]:
    return f"{result.kind}.png", f"{result.kind}.pdf"


def terminal_width(*, err: bool = False) -> int | None:
    """None if the output is no terminal: then no line is wrapped and no column left out."""
    if not (sys.stderr if err else sys.stdout).isatty():
        return None
    from rich.console import Console

    return Console(stderr=err).width


def print_table(table: Any) -> None:
    """Print a table; control characters in its cells are shown, not sent."""
    from rich.console import Console
    from rich.segment import Segment, Segments

    from llmprobe.base.visible import visible

    console = Console(width=terminal_width() or 400)
    shown = [
        part if part.text == "\n" else Segment(visible(part.text), part.style)
        for part in console.render(table)
    ]
    console.print(Segments(shown), end="")
