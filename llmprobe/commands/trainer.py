"""`train-synthetic`: the command that trains small models on the papers' tasks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from llmprobe.commands.options import (
    PATH,
    Debug,
    Device,
    Json,
    Quiet,
    check_drawing,
    join_processes,
)
from llmprobe.commands.showing import say, show_result


def train_synthetic(
    task: Annotated[
        str,
        typer.Option(help="argmax, dictionary, set-complement or othello (llmprobe ls tasks)."),
    ] = "argmax",
    variants: Annotated[
        str | None,
        typer.Option(
            help="Networks to train, such as baseline,layernorm+ssmax: baseline, or parts joined "
            "by a plus (llmprobe ls variants). The others are compared with the first."
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="[quick|desk|paper]",
            help="Scale of the run: quick takes minutes, desk an hour or more on two cores, paper "
            "needs a GPU. Other options take precedence.",
        ),
    ] = "quick",
    search: Annotated[
        int | None,
        typer.Option(
            help="Random search over N settings (set-complement, othello): each is trained with "
            "and without dropout and scored with raw, EMA and BEMA weights. It draws learning rate "
            "3e-4..1e-2, dropout 0.05..0.3, 1 - EMA decay 0.001..0.1, width 16, 32 or 64, 1 to 3 "
            "layers.",
            metavar="N",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Networks of each variant.")] = None,
    first_seed: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    train_lengths: Annotated[
        str | None, typer.Option(help="Shortest and longest length in training, such as 5..16.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Lengths to test: 16..4096 doubles; 16,64,256. Default: all lengths of "
            "set-complement and othello."
        ),
    ] = None,
    sets: Annotated[int | None, typer.Option(help="Tests at each length.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Number of tokens (set-complement).")] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="[sampled|exact]",
            help="Loss against the token that came next, or against all allowed tokens "
            "(set-complement, othello).",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads per layer.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers (set-complement, othello).")] = None,
    value_size: Annotated[
        int | None,
        typer.Option(
            help="Value size of a head (set-complement, othello). Default: width / heads."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Sets or sequences per seed in a training step.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of AdamW.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW.")] = None,
    clip: Annotated[
        float, typer.Option(help="Largest norm of a seed's gradient; 0 does not clip.")
    ] = 1.0,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="[constant|cosine]",
            help="Learning rate schedule. Default: cosine; constant in a search.",
        ),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Steps in which the learning rate rises.")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Rate of variants with dropout. Default: 0.1.")
    ] = None,
    ema_decay: Annotated[
        float | None, typer.Option(help="Decay of the EMA of the weights.")
    ] = None,
    device: Device = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the result and the checkpoints; the same command resumes there. "
            "Default: runs/synthetic-TASK, or runs/search-TASK.",
            **PATH,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin again if the folder holds a training.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train small attention models on the papers' tasks and test them beyond their lengths.

    Where an option has no default here, the task and the preset have one.
    """
    options = dict(locals())
    for name in ("output", "as_json", "quiet", "debug"):
        del options[name]
    name = f"{'synthetic' if search is None else 'search'}-{task}"
    _train(options, output or Path("runs") / name, as_json=as_json, quiet=quiet)


def _train(options: dict[str, Any], folder: Path, *, as_json: bool, quiet: bool) -> None:
    from llmprobe.base.files import is_result
    from llmprobe.synthetic.lab import search_synthetic
    from llmprobe.synthetic.lab import train_synthetic as train

    check_drawing()
    is_main = join_processes()
    finished = is_result(folder) and not options["overwrite"]
    n = options.pop("search")
    try:
        if n is None:
            result = train(**options, output=folder, progress=not quiet)
        else:
            options = _of_search(options, n)
            result = search_synthetic(**options, n=n, output=folder, progress=not quiet)
    except KeyboardInterrupt:
        if is_main:
            say(f"{folder} keeps what is done; the same command resumes there", err=True)
        raise
    if not is_main:
        return
    if finished and not quiet:
        say(f"{folder} was finished before; --overwrite trains again", err=True)
    show_result(result, folder, as_json=as_json)


def _of_search(options: dict[str, Any], n: int) -> dict[str, Any]:
    """The options as `search_synthetic` takes them; those that it draws are refused."""
    if n < 1:
        raise ValueError(f"search: got {n}, accepted: 1 or more settings")
    options["variant"] = options.pop("variants")
    for name in ("seeds", "width", "layers", "learning_rate", "dropout", "ema_decay"):
        value = options.pop(name)
        if value is not None:
            raise ValueError(f"{name}: got {value!r}, but it is drawn by the search; leave it out")
    return options
