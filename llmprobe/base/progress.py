"""Progress, one convention for everything that takes time.

Every such function has an argument `progress`: False for nothing, True for a bar on stderr or in a
notebook, or a function that is called as

    progress(what, done, total, note)      # "variance", 4096, 65536, "tokens"
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)
from rich.table import Column

from llmprobe.base.processes import process

Report = Callable[[str, int, int, str], object]
"""Called with what is being done, how much of it is done, of how much, and a note."""
Progress = bool | Report


@contextmanager
def reporting(progress: Progress) -> Iterator[Report]:
    """What to call as the work advances, for a `progress` as the caller gave it."""
    if callable(progress):
        yield progress
    elif not isinstance(progress, bool):
        raise ValueError(f"progress: got {progress!r}, accepted: True, False or a function")
    elif not progress:
        yield _nothing
    else:
        with _shown_bar() as report:
            yield report


def _nothing(what: str, done: int, total: int, note: str) -> None:
    """For a caller who wants no progress."""


def _whole() -> Column:
    """A column that is never cut: the bar gets shorter instead."""
    return Column(no_wrap=True, overflow="ignore")


@contextmanager
def _shown_bar() -> Iterator[Report]:
    """One bar for each thing that is done; none off a terminal or in a process that is not main."""
    console = Console(stderr=True)
    shown = (console.is_terminal or console.is_jupyter) and process().is_main
    tasks: dict[str, TaskID] = {}
    with Bar(
        TextColumn("{task.description}", table_column=_whole()),
        BarColumn(bar_width=None),
        MofNCompleteColumn(table_column=_whole()),
        TextColumn("{task.fields[note]}", table_column=_whole()),
        # What is left, and at the end what it took: two clocks would need words.
        TimeRemainingColumn(elapsed_when_finished=True, table_column=_whole()),
        console=console,
        disable=not shown,
    ) as bar:

        def report(what: str, done: int, total: int, note: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total, note=note)
            bar.update(tasks[what], completed=done, total=total, note=note)

        yield report
