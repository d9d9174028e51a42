"""The progress display of commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from llmprobe.base.processes import process


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Progress]:
    """A progress display on stderr; silent if asked, off a terminal, or not the main process."""
    console = Console(stderr=True)
    shown = not quiet and (console.is_terminal or console.is_jupyter) and process().is_main
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not shown,
    ) as bar:
        yield bar
