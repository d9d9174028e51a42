"""How commands show a result: one document, or a table with what it says and what weakens it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from llmprobe.results.base import Result


def show_result(result: "Result", folder: Path, *, as_json: bool) -> None:
    """What a command that made a result prints of it, and where it is."""
    if as_json:
        typer.echo(json.dumps(result.to_document() | {"output": folder.name}))
        return
    from llmprobe.results.series import SeriesResult

    typer.echo(result.headline())
    if isinstance(result, SeriesResult):
        _show_series(result)
    else:
        from llmprobe.results.tables import lab_table

        print_table(lab_table(result))
    for warning in getattr(result, "warnings", ()):
        typer.echo(f"note: {warning}")
    figures = (f"{result.kind}.png", f"{result.kind}.pdf")
    names = ("result.json", "arrays.npz", *figures, "evidence.safetensors", "checkpoints")
    there = ", ".join(name for name in names if (folder / name).exists())
    typer.echo(f"saved: {folder} ({there})")


def _show_series(result: Any) -> None:
    from llmprobe.results import tables as reports
    from llmprobe.results.variance import VarianceResult

    print_table(reports.table_of(result, width=terminal_width()))
    if isinstance(result, VarianceResult):
        if result.accuracy:
            shares = (f"{n}: {a:.0%}" for n, a in zip(result.lengths, result.accuracy, strict=True))
            typer.echo(f"first token of the answer right, by length: {', '.join(shares)}")
        typer.echo(result.reading())


def terminal_width() -> int | None:
    """None where the output goes to no terminal: then nothing is left out or cut."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def print_table(table: Any) -> None:
    from rich.console import Console

    Console(width=terminal_width() or 400).print(table)
