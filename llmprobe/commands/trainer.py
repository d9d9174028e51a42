"""`train-synthetic`: the command that trains small models on the papers' tasks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from llmprobe.commands.options import PATH, Debug, Device, Json, Quiet, check_drawing
from llmprobe.commands.showing import show_result


def train_synthetic(
    task: Annotated[
        str, typer.Option(help="argmax, dictionary, set-complement or othello.")
    ] = "argmax",
    variants: Annotated[
        str | None,
        typer.Option(
            help="What to train; the others are compared with the first. baseline; a plus joins "
            "parts: layernorm+ssmax. Of argmax and dictionary: a norm on the attention output "
            "(layernorm, standardize, rmsnorm, or headnorm on each head), dropout, instead of "
            "softmax ssmax, differential, normalized. Of set-complement and othello: mlp, prenorm, "
            "postnorm, rotary or learned positions, dropout; othello's baseline has mlp, prenorm "
            "and rotary. At test time only: adaptive (temperature; argmax and dictionary), ema, "
            "bema (averaged weights)."
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Seeds, steps, tests and sizes where they are not given: quick (minutes), desk "
            "(an hour or more on two cores), paper (a GPU)."
        ),
    ] = "quick",
    search: Annotated[
        int | None,
        typer.Option(
            help="Train so many settings instead (set-complement, othello), each with and without "
            "dropout, with raw and averaged weights: learning rate 3e-4..1e-2, dropout 0.05..0.3, "
            "1 - EMA decay 0.001..0.1, width 16, 32 or 64, 1 to 3 layers."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Networks of each variant; a search has one a setting.")
    ] = None,
    first_seed: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    train_lengths: Annotated[
        str | None,
        typer.Option(
            help="Shortest and longest in training; if not given 5..16 items, 1..4 tokens of "
            "set-complement, 1..30 moves of othello."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Lengths to test: 16..4096 doubles; 16,64,256. All there are for set-complement "
            "and othello."
        ),
    ] = None,
    sets: Annotated[int | None, typer.Option(help="Tests at each length.")] = None,
    vocab: Annotated[
        int | None, typer.Option(help="Tokens of set-complement; 16 if not given.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Loss of set-complement and othello against the token that came (sampled), or "
            "against all that are allowed (exact)."
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of an attention.")] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers, for set-complement and othello.")
    ] = None,
    value_size: Annotated[
        int | None,
        typer.Option(help="Of a head, for set-complement and othello; width / heads if not given."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Sets or sequences of a seed in a training step.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of AdamW; by task and preset if not given.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of AdamW; if not given 1e-3, and 0.1 for othello.")
    ] = None,
    clip: Annotated[float, typer.Option(help="Largest norm of a gradient; 0: any.")] = 1.0,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Of the learning rate: constant, or cosine (down to 0). If not given constant in "
            "a search, else cosine."
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            help="Steps in which the learning rate rises; if not given 0, and for othello 200 or a "
            "tenth of the steps."
        ),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Rate of variants with dropout; 0.1 if not given.")
    ] = None,
    ema_decay: Annotated[
        float | None,
        typer.Option(help="Decay of the average ema; by preset, 0.99 or 0.999, if not given."),
    ] = None,
    device: Device = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the result and the checkpoints; the same command goes on there where "
            "it was stopped. runs/synthetic-TASK if not given, runs/search-TASK for a search.",
            **PATH,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin again where a training is.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train small attention models on the papers' tasks and test them beyond their lengths."""
    options = dict(locals())
    for name in ("output", "as_json", "quiet", "debug"):
        del options[name]
    name = f"{'synthetic' if search is None else 'search'}-{task}"
    _train(options, output or Path("runs") / name, as_json=as_json, quiet=quiet)


def _train(options: dict[str, Any], folder: Path, *, as_json: bool, quiet: bool) -> None:
    from llmprobe.base.files import is_result
    from llmprobe.base.processes import process
    from llmprobe.base.progress import reporting
    from llmprobe.synthetic.lab import train_synthetic as train

    check_drawing()
    finished = is_result(folder) and not options["overwrite"]
    with reporting(not quiet) as report:
        try:
            result = train(**options, output=folder, watch=report)
        except KeyboardInterrupt:
            if process().is_main:
                typer.echo(f"{folder} keeps what is done; the same command goes on there", err=True)
            raise
    if not process().is_main:
        return
    if finished and not quiet:
        typer.echo(f"{folder} was finished before; --overwrite trains again", err=True)
    show_result(result, folder, as_json=as_json)
