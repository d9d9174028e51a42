"""`train-synthetic`: the command that trains small models on the papers' tasks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from llmprobe.commands.importing import importing
from llmprobe.commands.naming import default_folder
from llmprobe.commands.options import (
    FLAG,
    Debug,
    Group,
    Json,
    Output,
    Quiet,
    choice,
    with_options,
)
from llmprobe.commands.running import check_drawing, join_processes
from llmprobe.commands.showing import say, show_result

_TASK = {"rich_help_panel": "Task"}
_TRAINING = {"rich_help_panel": "Training"}
_NETWORK = {"rich_help_panel": "Network"}
_TEST = {"rich_help_panel": "Test"}

_TASKS = (
    *("argmax", "dictionary", "set-complement", "othello"),
    *("addition", "addition-reversed", "addition-hints", "addition-padded", "successor"),
    *("dyck", "counter", "counter-3", *(f"tomita-{number}" for number in range(1, 8))),
    *("parity", "parity-steps", "majority"),
    *("sparse-parity", *(f"sparse-parity-{k}" for k in (6, 8, 10, 12)), "recall"),
    *("copy", "reverse", "push", "unshift"),
)
_SEARCH = (
    "Random search over N settings. For set-complement and othello each is trained with and "
    "without dropout and scored with raw, EMA and BEMA weights. It draws learning rate 3e-4..1e-2, "
    "dropout 0.05..0.3, 1 - EMA decay 0.001..0.1, width 16, 32 or 64, 1 to 3 layers. For argmax "
    "and dictionary each is trained without and with each part of --variants (default: layernorm, "
    "headnorm, concatnorm, postnorm, adaptive). It draws steps from --steps / 25 to --steps, "
    "learning rate 2e-4..5e-3, schedule, weight decay 1e-5..0.1, width 32, 64 or 128, 1, 2 or 4 "
    "heads, 2 or 3 MLP layers, training lengths to 8, 16 or 32, W_O and residual; --lengths are "
    "multiples of the longest training length."
)
_VARIANTS = (
    "Networks to train, such as baseline,layernorm+ssmax: baseline, or parts joined by a plus "
    "(llmprobe ls variants). The others are compared with the first."
)
_PRESET = (
    "Scale of the run: quick takes minutes, desk an hour or more on two cores, paper needs a GPU. "
    "Other options take precedence."
)


def _option(kind: Any, panel: dict[str, Any], **about: Any) -> Any:
    return Annotated[kind, typer.Option(**({"metavar": "N"} | about), **panel)]


def _unset(kind: Any, panel: dict[str, Any], text: str = "", **more: Any) -> tuple[Any, None]:
    """An option without a default here: the task or the preset has one."""
    return _option(kind | None, panel, **({"help": text} | more)), None


TASK: Group = {
    "task": (
        _option(
            str,
            _TASK,
            **choice(*_TASKS, text="llmprobe ls tasks explains them."),
        ),
        "argmax",
    ),
    "variants": _unset(str, _TASK, _VARIANTS, metavar="NAMES"),
    "preset": (_option(str, _TASK, **choice("quick", "desk", "paper", text=_PRESET)), "quick"),
    "search": _unset(int, _TASK, _SEARCH),
}
SETTINGS: Group = {
    "seeds": _unset(int, _TRAINING, "Networks per variant."),
    "first_seed": (_option(int, _TRAINING, help="First seed. The others follow it."), 0),
    "steps": _unset(int, _TRAINING, "Training steps."),
    "train_lengths": _unset(
        str, _TRAINING, "Shortest and longest length in training.", metavar="5..16"
    ),
    "concatenate": _unset(
        int,
        _TRAINING,
        "Examples per training sequence, one after another, for tasks with answers of several "
        "tokens (addition, copy, ...). Default: 1.",
    ),
    "target": _unset(
        str,
        _TRAINING,
        **choice(
            *("sampled", "exact"),
            text="Loss against the token that came next, or against all allowed tokens "
            "(set-complement, othello, formal languages).",
        ),
    ),
    "batch": _unset(int, _TRAINING, "Sets or sequences per seed and training step."),
    "learning_rate": _unset(float, _TRAINING, "Learning rate of AdamW.", metavar="RATE"),
    "schedule": _unset(
        str,
        _TRAINING,
        **choice(
            *("constant", "cosine"),
            text="Learning rate schedule. Default: cosine; constant in a search.",
        ),
    ),
    "warmup": _unset(int, _TRAINING, "Steps in which the learning rate rises."),
    "weight_decay": _unset(float, _TRAINING, "Weight decay of AdamW.", metavar="RATE"),
    "clip": (
        _option(
            float,
            _TRAINING,
            metavar="NORM",
            help="Largest gradient norm per seed. 0: no clipping. Clipping at 1 adds about 2.2 "
            "points on argmax with 256 items.",
        ),
        1.0,
    ),
    "dropout": _unset(
        float, _TRAINING, "Rate of variants with dropout. Default: 0.1.", metavar="RATE"
    ),
    "ema_decay": _unset(float, _TRAINING, "Decay of the EMA of the weights.", metavar="RATE"),
    "device": (
        _option(str, _TRAINING, metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps."),
        "auto",
    ),
    "width": _unset(int, _NETWORK, "Width of the network."),
    "heads": _unset(int, _NETWORK, "Attention heads per layer."),
    "layers": _unset(int, _NETWORK, "Layers of a decoder (all tasks but argmax, dictionary)."),
    "mlp_layers": _unset(
        int, _NETWORK, "Layers of the MLPs around the attention (argmax, dictionary). Default: 2."
    ),
    "value_size": _unset(
        int, _NETWORK, "Value size per head of a decoder. Default: width / heads."
    ),
    "vocab": _unset(
        int, _NETWORK, "Number of tokens (set-complement, dyck, counter, addition-hints)."
    ),
    "context": _unset(
        int,
        _NETWORK,
        "Number of learned positions, or of those that randomized and coupled ones are drawn from. "
        "Default: one for each token of the longest sequence.",
    ),
    "lengths": _unset(
        str,
        _TEST,
        "Lengths to test: 16..4096 doubles, 16,64,256 is a list. They may lie below the training "
        "lengths too. Default for set-complement, othello and formal languages: all lengths.",
        metavar="LENGTHS",
    ),
    "sets": _unset(int, _TEST, "Tests per seed and length."),
    "score_at": _unset(
        str,
        _TEST,
        "Earlier steps at which networks are tested too, such as 1000,3000 (argmax, dictionary).",
        metavar="STEPS",
    ),
}
_OUTPUT: Group = {
    "output": (Output, None),
    "overwrite": (
        Annotated[
            bool,
            typer.Option(
                "--overwrite",
                **FLAG,
                help="Start again if the folder holds a training.",
                rich_help_panel="Output",
            ),
        ],
        False,
    ),
    "as_json": (Json, False),
    "quiet": (Quiet, False),
    "debug": (Debug, False),
}


@with_options(TASK, SETTINGS, _OUTPUT)
def train_synthetic(
    *,
    search: int | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Train small models, and test them on longer inputs.

    An option without a default here has one from the task and the preset.
    """
    defaults = {
        name: default for name, (_, default) in ({**TASK, **SETTINGS}).items() if name != "task"
    }
    folder = output or default_folder(
        "synthetic" if search is None else "search",
        options["task"],
        options | {"search": search},
        defaults=defaults,
    )
    _train(options, search, folder, as_json=as_json, quiet=quiet)


def _train(
    options: dict[str, Any], search: int | None, folder: Path, *, as_json: bool, quiet: bool
) -> None:
    with importing():
        from llmprobe.base.files import is_result
        from llmprobe.synthetic.lab import search_synthetic
        from llmprobe.synthetic.lab import train_synthetic as train

    check_drawing()
    is_main = join_processes()
    finished = is_result(folder) and not options["overwrite"]
    try:
        if search is None:
            result = train(**options, output=folder, progress=not quiet)
        else:
            options = _of_search(options, search)
            result = search_synthetic(**options, n=search, output=folder, progress=not quiet)
    except KeyboardInterrupt:
        if is_main:
            say(f"{folder} keeps what is done; run the same command to resume", err=True)
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
    for name in ("score_at", "concatenate", "context"):
        if (value := options.pop(name)) is not None:
            raise ValueError(f"{name}: got {value!r}, but it is not for a search; leave it out")
    drawn = ("seeds", "width", "layers", "mlp_layers", "learning_rate", "dropout", "ema_decay")
    for name in drawn:
        value = options.pop(name)
        if value is not None:
            raise ValueError(f"{name}: got {value!r}, but it is drawn by the search; leave it out")
    return options
