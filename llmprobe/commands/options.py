"""Options that several commands have, declared once, and what commands do with a folder."""

import os
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import typer


def _path(value: str | Path) -> Path:
    """For typer, which would take '' for the working folder."""
    from llmprobe.base.files import as_path

    try:
        return as_path("path", value)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("path: ")) from None


PATH: dict[str, Any] = {"parser": _path}
"""What every option and argument has that is a path."""
Debug = Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")]
Model = Annotated[
    str, typer.Argument(help="Hub id (id@revision too), folder, .gguf file, or builtin.")
]
Lengths = Annotated[
    str,
    typer.Option(help="16..16384 doubles; 16..16384:20 is 20 log-spaced; 16,64,256; 1k = 1024."),
]
Layers = Annotated[str, typer.Option(help="all, 0, -1, or 0,4,8..12.")]
At = Annotated[
    str, typer.Option(help="output: after the output projection; heads: each head before it.")
]
Prompts = Annotated[str, typer.Option(help="random, unigram, text or dictionary.")]
Text = Annotated[Path | None, typer.Option(help="Text file for unigram and text prompts.", **PATH)]
Dataset = Annotated[
    str | None, typer.Option(help="NAME[:SPLIT] of a data set, or a file, that `datasets` loads.")
]
NPrompts = Annotated[
    int, typer.Option(help="Prompts at each length. More than a saved result has are added to it.")
]
Query = Annotated[str, typer.Option(help="free, or fixed: every prompt ends in the same token.")]
Bos = Annotated[str, typer.Option(help="Begin prompts with BOS: auto (as the tokenizer), yes, no.")]
Component = Annotated[int, typer.Option(help="The single feature to follow (Figure 1).")]
Reference = Annotated[
    int | None,
    typer.Option(help="Length that drifts are measured from; the shortest if not given."),
]
Seed = Annotated[int, typer.Option(help="Of the prompts.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread the model over devices: auto, balanced, sequential.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Load .bin weights, which can run code.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")
]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens in one forward, at most.")]
Chunk = Annotated[
    int | None, typer.Option(help="Cut long prompts into chunks of so many tokens (less memory).")
]
Output = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the result; the same command resumes there. runs/COMMAND-MODEL if not "
        "given.",
        **PATH,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace a result that is there, or another unfinished run."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No plan and no progress on stderr.")]


def check_place(target: Path) -> None:
    """Refuse a path at which nothing can be written."""
    above = next(parent for parent in target.absolute().parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".llmprobe-", dir=above)).rmdir()
    except OSError as error:
        raise ValueError(
            f"{target} cannot be written ({error.strerror}); use another --output"
        ) from None


def check_drawing() -> None:
    """Have matplotlib refuse its settings before the work, not when the figure is drawn."""
    try:
        import matplotlib  # noqa: F401
    except ValueError as error:
        wanted = os.environ.get("MPLBACKEND")
        raise ValueError(f"MPLBACKEND: got {wanted!r}; unset it, or use Agg ({error})") from None


_PATIENCE = 10.0
"""Seconds before a process that waits for others says so."""


def join_processes() -> bool:
    """Join the other processes that were launched; whether this is the main one.

    A process whose companions never come would wait for days without a word.
    """
    from llmprobe.base.processes import process, world_size

    def say() -> None:
        place = f"{os.environ.get('MASTER_ADDR', 'localhost')}:{os.environ.get('MASTER_PORT', '')}"
        typer.echo(
            f"rank {os.environ.get('RANK', '?')} waits at {place} for the other "
            f"{world_size() - 1} processes of WORLD_SIZE={world_size()}; unset WORLD_SIZE to run "
            "alone",
            err=True,
        )

    if world_size() == 1:
        return True
    timer = threading.Timer(_PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        return process().is_main
    finally:
        timer.cancel()
