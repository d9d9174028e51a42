"""How commands show a result: figures in its folder, and a table or a JSON document printed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from llmprobe.results.base import Result


def say(text: str, *, err: bool = False) -> None:
    """Print one line. Control characters are shown, not sent: the words may come from a file."""
    from llmprobe.base.visible import visible

    typer.echo(visible(text), err=err)


def show_result(result: "Result", folder: Path, *, as_json: bool) -> None:
    """Draw a result's figures into its folder and print the result."""
    draw_figures(result, folder)
    if as_json:
        typer.echo(json.dumps(result.to_document() | {"output": folder.name}))
        return
    say(result.headline())
    print_table(result.table(width=terminal_width()))
    for remark in result.remarks():
        say(remark)
    for warning in result.warnings:
        say(f"note: {warning}")
    names = ("result.json", "arrays.npz", *_figures(result), "evidence.safetensors", "checkpoints")
    there = ", ".join(name for name in names if (folder / name).exists())
    say(f"saved: {folder} ({there})")


def draw_figures(result: "Result", folder: Path) -> None:
    """Draw the figures that a saved result lacks, or that are older than it."""
    saved = (folder / "result.json").stat().st_mtime_ns
    for name in _figures(result):
        figure = folder / name
        drawn = figure.is_file() and not figure.is_symlink()
        if not drawn or figure.stat().st_mtime_ns < saved:
            result.save_figure(figure)


def _figures(result: "Result") -> tuple[str, ...]:
    return f"{result.kind}.png", f"{result.kind}.pdf"


def terminal_width() -> int | None:
    """None if the output is no terminal: then no column is left out or cut."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


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
