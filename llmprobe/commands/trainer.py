"""`train-synthetic`: the command that trains small models on the papers' tasks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmprobe.commands.options import Debug, Device, Json, Quiet, print_table

if TYPE_CHECKING:
    from llmprobe.synthetic.outcomes import SyntheticResult


def train_synthetic(
    task: Annotated[str, typer.Option(help="argmax or dictionary.")] = "argmax",
    variants: Annotated[
        str,
        typer.Option(
            help="What to train; the others are compared with the first. baseline; a norm on the "
            "attention output: layernorm, standardize, rmsnorm, or headnorm on each head; dropout; "
            "instead of softmax: ssmax, differential, normalized; at test time only: adaptive "
            "(temperature), ema, bema (averaged weights). A plus joins parts: layernorm+ssmax."
        ),
    ] = "baseline,layernorm",
    preset: Annotated[
        str,
        typer.Option(
            help="Seeds, steps, longest test sets and their number where they are not given: "
            "quick (8, 2000, 4096, 256: minutes), desk (32, 5000, 16384, 1024: hours), "
            "paper (32, 100000, 16384, 32768: a GPU)."
        ),
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Networks of each variant.")] = None,
    first_seed: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    train_lengths: Annotated[
        str, typer.Option(help="Shortest and longest set in training.")
    ] = "5..16",
    lengths: Annotated[
        str | None, typer.Option(help="Sizes of the test sets: 16..4096 doubles; 16,64,256.")
    ] = None,
    sets: Annotated[int | None, typer.Option(help="Test sets at each length.")] = None,
    width: Annotated[int, typer.Option(help="Width of the network.")] = 128,
    heads: Annotated[int, typer.Option(help="Heads of its attention.")] = 1,
    batch: Annotated[int, typer.Option(help="Sets in a training step.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of AdamW.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.")] = 1e-3,
    clip: Annotated[float, typer.Option(help="Largest norm of a gradient; 0: any.")] = 1.0,
    schedule: Annotated[
        str, typer.Option(help="Of the learning rate: constant, or cosine (down to 0).")
    ] = "cosine",
    warmup: Annotated[int, typer.Option(help="Steps in which the learning rate rises.")] = 0,
    ema_decay: Annotated[float, typer.Option(help="Decay of the average ema.")] = 0.999,
    device: Device = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the result and the checkpoints; the same command goes on there where "
            "it was stopped. runs/synthetic-TASK if not given."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin again where a training is.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train small attention models on sets and test them on longer ones, many seeds at once."""
    options = dict(locals())
    for name in ("output", "as_json", "quiet", "debug"):
        del options[name]
    target = output or Path("runs") / f"synthetic-{task}"
    _train(options, target, as_json=as_json, quiet=quiet)


def _train(options: dict[str, Any], target: Path, *, as_json: bool, quiet: bool) -> None:
    from llmprobe.runtime import process, progress
    from llmprobe.synthetic.lab import train_synthetic as train

    finished = (target / "result.json").is_file() and not options["overwrite"]
    with progress(quiet=quiet) as bar:
        tasks: dict[str, Any] = {}

        def watch(what: str, done: int, total: int, note: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total, note=note)
            bar.update(tasks[what], completed=done, note=note)

        try:
            result = train(**options, output=target, watch=watch)
        except KeyboardInterrupt:
            typer.echo(f"{target} keeps what is done; the same command goes on there", err=True)
            raise
    if not process().is_main:
        return
    if finished and not quiet:
        typer.echo(f"{target} was finished before; --overwrite trains again", err=True)
    _show(result, target, as_json)


def _show(result: "SyntheticResult", target: Path, as_json: bool) -> None:
    from llmprobe.reports import synthetic_table

    if as_json:
        typer.echo(json.dumps(result.to_document() | {"output": target.name}))
        return
    typer.echo(result.headline())
    print_table(synthetic_table(result))
    for warning in result.warnings:
        typer.echo(f"note: {warning}")
    typer.echo(
        f"saved: {target} (result.json, arrays.npz, synthetic.png, synthetic.pdf, checkpoints)"
    )
