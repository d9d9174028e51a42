"""`ablate`: which heads matter as prompts get longer."""

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
    NPrompts,
    with_options,
    without,
)
from llmprobe.commands.running import run_probe

_PANEL: dict[str, Any] = {"rich_help_panel": "Heads"}

Heads = Annotated[
    str,
    typer.Option(
        metavar="HEADS",
        help="labels: the classes of --variance (dispersing, falling, flat, rising); each: every "
        "head by itself; or LAYER.HEAD such as 0.3,2.1.",
        **_PANEL,
    ),
]
Variance = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Result of llmprobe variance --at heads.", **PATH, **_PANEL),
]
NControls = Annotated[
    int,
    typer.Option(
        metavar="N", help="Random classes of equal size and the same layers, per class.", **_PANEL
    ),
]
SameTargets = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Ablate at the last N tokens of each prompt alone, given contexts of every length.",
        **_PANEL,
    ),
]


@with_options(
    MODEL, {**TEXT_PROMPTS, "n_prompts": (NPrompts, 16)}, without("layers", SWEEP), OUTPUT
)
def ablate(
    heads: Heads = "labels",
    variance: Variance = None,
    n_controls: NControls = 1,
    same_targets: SameTargets = None,
    chunk: Chunk = None,
    **shared: Any,
) -> None:
    """Which heads matter: the loss without them.

    Classes of heads are knocked out, next to as many random heads of the same layers.
    """
    with importing():
        from llmprobe.probes.ablation import AblationProbe, AblationRequest

    own: dict[str, Any] = {
        "heads": heads,
        "variance": variance,
        "n_controls": n_controls,
        "same_targets": same_targets,
        "chunk": chunk,
    }
    run_probe(AblationProbe, AblationRequest, **own, **shared)
