"""`remedy`: what helps a model against dispersion."""

from pathlib import Path
from typing import Annotated, Any

import typer

from llmprobe.commands.importing import importing
from llmprobe.commands.options import (
    MODEL,
    OUTPUT,
    PATH,
    SWEEP,
    TEXT_PROMPTS,
    Chunk,
    Layers,
    NPrompts,
    SameTargets,
    with_options,
)
from llmprobe.commands.running import run_probe

_PANEL: dict[str, Any] = {"rich_help_panel": "Remedies"}

Remedies = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Comma-separated; llmprobe ls remedies explains them. Default: logn,yarn,infoscale,"
        "adaptive,temperature, and with --variance also restore,norm.",
        **_PANEL,
    ),
]
Doses = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="Each multiplies what a remedy does to the logarithm. 0 is the untreated model.",
        **_PANEL,
    ),
]
Heads = Annotated[
    str,
    typer.Option(
        metavar="HEADS",
        help="all, dispersing (by the labels of --variance), or LAYER.HEAD such as 0.3,2.1.",
        **_PANEL,
    ),
]
Variance = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Result of llmprobe variance --at heads --layers all with another --seed. restore and "
        "norm give back its moments.",
        **PATH,
        **_PANEL,
    ),
]
Trained = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Context that the model was trained for, if not as its config says.",
        **_PANEL,
    ),
]
Rope = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Repair positions first: dynamic, yarn or linear, alone or with a factor: linear:4.",
        **_PANEL,
    ),
]
Measures = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="loss, dictionary, repeat, slopes. Loss alone takes a third of the time, or less.",
        **_PANEL,
    ),
]


@with_options(
    MODEL,
    {**TEXT_PROMPTS, "n_prompts": (NPrompts, 16)},
    {**SWEEP, "layers": (Layers, "all")},
    OUTPUT,
)
def remedy(
    remedies: Remedies = None,
    doses: Doses = "0,0.5,1,2",
    heads: Heads = "all",
    variance: Variance = None,
    trained: Trained = None,
    rope: Rope = None,
    measures: Measures = "loss,dictionary,repeat,slopes",
    same_targets: SameTargets = None,
    chunk: Chunk = None,
    **shared: Any,
) -> None:
    """What helps: remedies at several doses, next to shams.

    All treatments see the same prompts. A sham does as much in the wrong places.
    """
    with importing():
        from llmprobe.probes.remedies import RemedyProbe
        from llmprobe.probes.remedy_request import RemedyRequest

    own: dict[str, Any] = {
        "remedies": remedies,
        "doses": doses,
        "heads": heads,
        "variance": variance,
        "trained": trained,
        "rope": rope,
        "measures": measures,
        "same_targets": same_targets,
        "chunk": chunk,
    }
    run_probe(RemedyProbe, RemedyRequest, **own, **shared)
