"""Where the checkout is, and what a terminal shows."""

from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[2]


def shown_text(table: object, width: int = 300) -> str:
    """What a terminal of so many columns shows."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
