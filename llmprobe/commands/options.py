"""Options that several commands have, declared once, in the panels that `--help` shows.

    @with_options(MODEL, PROMPTS, SWEEP, OUTPUT)
    def variance(at: At = "output", **shared: Any) -> None:

A group is a dictionary of options by name: declaration and default. `with_options` adds groups to
what a command declares itself; the command receives them as keyword arguments.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from llmprobe.commands.showing import say_loading

Group = Mapping[str, tuple[Any, Any]]
"""Options by the name of their argument: the annotation, and the default."""
_METAVAR = 20
"""Characters: a longer list of choices would leave no room for the text next to it."""
FLAG: dict[str, Any] = {"metavar": ""}
"""Options without a value: typer would show a type."""


def with_options(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add groups of options to a command.

    Its own options come before the last group, so that those of output close the help.
    """

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        given = {name for group in groups for name in group}
        own = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in given
        ]
        shared = [
            [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
                for name, (annotation, default) in group.items()
            ]
            for group in groups
        ]
        parameters = [*chain(*shared[:-1]), *own, *shared[-1]]

        @wraps(command)
        def called(**options: Any) -> None:
            given = {p.name: p.default for p in parameters} | options
            if "model" in given:  # the imports alone take seconds
                _refuse_early(**given)
                if not given.get("quiet"):
                    say_loading(given["model"])
            command(**given)

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return declare


def _refuse_early(*, lengths: str | None = None, **options: Any) -> None:
    """Refuse what is wrong whatever the model is, before torch is imported for seconds."""
    if lengths is not None:
        from llmprobe.base.lengths import parse_lengths

        parse_lengths(lengths)


def without(name: str, group: Group) -> Group:
    """A group that lacks one of its options."""
    return {other: option for other, option in group.items() if other != name}


def choice(*names: str, text: str) -> dict[str, Any]:
    """An option that accepts one of the names: shown in the help, and completed by the shell.

    The library refuses other values, in its own words; a test compares the two lists.
    """
    shown = f"[{'|'.join(names)}]"
    fits = len(shown) <= _METAVAR
    return {
        "metavar": shown if fits else "NAME",
        "help": text if fits else f"{', '.join(names[:-1])} or {names[-1]}. {text}",
        "autocompletion": lambda: list(names),
    }


def _path(value: str | Path) -> Path:
    """For typer, which would take '' for the working folder."""
    from llmprobe.base.files import as_path

    try:
        return as_path("path", value)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("path: ")) from None


PATH: dict[str, Any] = {"parser": _path}
"""What every option and argument has that is a path."""

_MODEL: dict[str, Any] = {"rich_help_panel": "Model"}
_PROMPTS = {"rich_help_panel": "Prompts"}
_SWEEP = {"rich_help_panel": "Sweep"}
OUTPUT_PANEL = "Output"
_OUTPUT = {"rich_help_panel": OUTPUT_PANEL}

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Hub id (or id@revision), folder, .gguf file, or builtin."
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Branch, tag or commit of a hub model.", **_MODEL),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.", **_MODEL)
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        **choice("auto", "balanced", "sequential", text="Spreads a large model over devices."),
        **_MODEL,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(metavar="NAME", help="auto, float32, bfloat16, float16 or float64.", **_MODEL),
]
AttnImplementation = Annotated[
    str | None,
    typer.Option(
        **choice(
            *("sdpa", "eager", "flash_attention_2", "flex_attention"),
            text="The attention function. Default: the model's own choice.",
        ),
        **_MODEL,
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        **choice("int8", "int4", "nf4", text="Round weights of the layers (needs torchao)."),
        **_MODEL,
    ),
]
PartOf = Annotated[
    str | None,
    typer.Option(
        **choice("encoder", "decoder", "cross", text="Of an encoder-decoder. Default: encoder."),
        **_MODEL,
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", **FLAG, help="Load .bin weights. They can run code.", **_MODEL),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", **FLAG, help="Run code that comes with the model.", **_MODEL
    ),
]
LOADING: Group = {
    "revision": (Revision, None),
    "device": (Device, "auto"),
    "device_map": (DeviceMap, None),
    "dtype": (Dtype, "auto"),
    "attn_implementation": (AttnImplementation, None),
    "quantize": (Quantize, None),
    "allow_pickle": (AllowPickle, False),
    "trust_remote_code": (TrustRemoteCode, False),
}
MODEL: Group = {"model": (Model, "builtin"), **LOADING}
PART: Group = {"part": (PartOf, None)}

Prompts = Annotated[
    str,
    typer.Option(
        **choice(
            "random",
            "unigram",
            "text",
            "dictionary",
            "repeat",
            text="unigram and text need --text or --dataset. Or your own: a .txt or .jsonl file "
            "with one prompt per line.",
        ),
        **_PROMPTS,
    ),
]
Field = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Field of a .jsonl file that holds your own prompts.", **_PROMPTS
    ),
]
ChatTemplate = Annotated[
    bool,
    typer.Option(
        "--chat-template",
        **FLAG,
        help="Put your own prompts into the tokenizer's chat template.",
        **_PROMPTS,
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Text file for unigram and text prompts.", **PATH, **_PROMPTS
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Data set for unigram and text prompts: NAME, NAME:SPLIT or a file.",
        **_PROMPTS,
    ),
]
NPrompts = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Prompts per length. A larger number adds prompts to a saved result.",
        **_PROMPTS,
    ),
]
Query = Annotated[
    str,
    typer.Option(
        metavar="[free|fixed|TOKEN]",
        help="Last token. free: each prompt's own. fixed: one of --n-queries drawn ones. TOKEN: "
        "text of one token, or id:NUMBER.",
        autocompletion=lambda: ["free", "fixed"],
        **_PROMPTS,
    ),
]
NQueries = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tokens that --query fixed draws. Default: 16.", **_PROMPTS),
]
Position = Annotated[
    str,
    typer.Option(
        metavar="[first|last|mean|N]",
        help="Where an encoder is measured: first (its default), last or Nth token, or the mean "
        "over all. Causal models: the last token.",
        autocompletion=lambda: ["first", "last", "mean"],
        **_PROMPTS,
    ),
]
Bos = Annotated[
    str,
    typer.Option(
        **choice(
            "auto",
            "yes",
            "no",
            text="Begin prompts with the BOS token. auto: as the tokenizer does.",
        ),
        **_PROMPTS,
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the prompts.", **_PROMPTS)]
PROMPTS: Group = {
    "prompts": (Prompts, "random"),
    "field": (Field, None),
    "chat_template": (ChatTemplate, False),
    "text": (Text, None),
    "dataset": (Dataset, None),
    "n_prompts": (NPrompts, 64),
    "query": (Query, "free"),
    "n_queries": (NQueries, None),
    "position": (Position, "auto"),
    "bos": (Bos, "auto"),
    "seed": (Seed, 0),
}

TextPrompts = Annotated[
    str,
    typer.Option(
        **choice(
            *("text", "unigram", "random"),
            text="text and unigram need --text or --dataset. Or your own: a .txt or .jsonl file "
            "with one prompt per line.",
        ),
        **_PROMPTS,
    ),
]
LossText = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Text file, or builtin: a text sampled from the built-in model, which is its default.",
        **PATH,
        **_PROMPTS,
    ),
]
TEXT_PROMPTS: Group = {
    "prompts": (TextPrompts, "text"),
    "field": (Field, None),
    "chat_template": (ChatTemplate, False),
    "text": (LossText, None),
    "dataset": (Dataset, None),
    "n_prompts": (NPrompts, 32),
    "bos": (Bos, "auto"),
    "seed": (Seed, 0),
}

Questions = Annotated[
    str,
    typer.Option(
        **choice(
            "dictionary",
            "repeat",
            text="dictionary: key->value pairs and a key. repeat: a passage, filler, and the "
            "passage again.",
        ),
        **_PROMPTS,
    ),
]
QUESTIONS: Group = {
    "prompts": (Questions, "dictionary"),
    "n_prompts": (NPrompts, 64),
    "bos": (Bos, "auto"),
    "seed": (Seed, 0),
}

Lengths = Annotated[
    str,
    typer.Option(
        metavar="LENGTHS",
        help="Prompt lengths in tokens: 16..4k doubles, 16..4k:20 gives 20 on a log scale, "
        "16,64,256 is a list. 1k = 1024.",
        **_SWEEP,
    ),
]
Layers = Annotated[
    str,
    typer.Option(metavar="LAYERS", help="all, 0, -1 (the last), or 0,4,8..12.", **_SWEEP),
]
At = Annotated[
    str,
    typer.Option(
        **choice(
            "output",
            "heads",
            text="output: the layer's output, after the output projection. heads: each head's "
            "output, before it.",
        ),
        **_SWEEP,
    ),
]
Component = Annotated[
    int, typer.Option(metavar="N", help="Feature that Figure 1 follows.", **_SWEEP)
]
Reference = Annotated[
    int | None,
    typer.Option(
        metavar="LENGTH",
        help="Length that drifts are measured from. Default: the shortest.",
        **_SWEEP,
    ),
]
SameTargets = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Also predict the last N tokens of each prompt from contexts of every length.",
        **_SWEEP,
    ),
]
Null = Annotated[
    str | None,
    typer.Option(
        **choice(
            "untrained",
            "shuffled",
            text="Compare with a null model on the same prompts: random or shuffled weights.",
        ),
        **_SWEEP,
    ),
]
BatchTokens = Annotated[
    int | None, typer.Option(metavar="N", help="At most N tokens per forward pass.", **_SWEEP)
]
Chunk = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Split long prompts into chunks of N tokens (less memory).", **_SWEEP
    ),
]
ALL_LAYERS: Group = {"lengths": (Lengths, "64..1024"), "layers": (Layers, "all")}
SWEEP: Group = {
    "lengths": (Lengths, "16..1024"),
    "layers": (Layers, "0"),
    "batch_tokens": (BatchTokens, None),
}

Output = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for the result. The same command resumes there. Default: a folder in runs/ "
        "named after the command, the model and the settings that are not the defaults.",
        **PATH,
        **_OUTPUT,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        **FLAG,
        help="Replace a result, or an unfinished run, in the folder.",
        **_OUTPUT,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", **FLAG, help="Print the plan and the folder, then stop.", **_OUTPUT),
]
Json = Annotated[
    bool,
    typer.Option("--json", **FLAG, help="Print one JSON document and nothing else.", **_OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", **FLAG, help="Show no plan and no progress bar.", **_OUTPUT)
]
Debug = Annotated[
    bool, typer.Option("--debug", **FLAG, help="Show the traceback of an error.", **_OUTPUT)
]
OUTPUT: Group = {
    "output": (Output, None),
    "overwrite": (Overwrite, False),
    "dry_run": (DryRun, False),
    "as_json": (Json, False),
    "quiet": (Quiet, False),
    "debug": (Debug, False),
}
