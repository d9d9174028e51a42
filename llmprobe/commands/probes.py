"""`check`, `variance`, `attention`, `loss` and `retrieval`: the commands that look at a model.

A probe is one function here: its own options, and the groups that it shares with the others.
"""

import json
from typing import Annotated, Any

import typer

from llmprobe.commands.importing import importing
from llmprobe.commands.options import (
    ALL_LAYERS,
    LOADING,
    MODEL,
    OUTPUT,
    PART,
    PROMPTS,
    QUESTIONS,
    SWEEP,
    TEXT_PROMPTS,
    At,
    Chunk,
    Component,
    Debug,
    Json,
    Model,
    Null,
    Reference,
    SameTargets,
    with_options,
    without,
)
from llmprobe.commands.running import run_probe
from llmprobe.commands.showing import say


@with_options({**LOADING, **PART}, {"as_json": (Json, False), "debug": (Debug, False)})
def check(
    model: Model = "builtin",
    length: Annotated[int, typer.Option(metavar="N", help="Tokens per prompt of the check.")] = 64,
    *,
    as_json: bool,
    debug: bool,
    **load: Any,
) -> None:
    """Compare captures with the model itself.

    Hooked logits, eager attention, single rows, padding: what fails is named, with what to try.
    """
    with importing():
        from llmprobe.capture.checks import check_capture
        from llmprobe.capture.loading import load_model

    loaded = load_model(model, **load)
    report = check_capture(loaded, length=length)
    if as_json:
        document = {
            "model": loaded.describe(),
            "passed": report.passed,
            "checks": [vars(line) for line in report.checks],
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        facts = loaded.describe()
        say(f"{facts['name']}: {facts['dtype']} on {facts['device']}, {facts['attention']}")
        for line in report.checks:
            sign = "ok  " if line.passed else "FAIL"
            by = "" if line.difference is None else f"{line.difference:.1e}"
            start = f"{sign}  {line.name:<40} {by:>8}  "
            say(f"{start}{line.detail}", indent=len(start))
    if not report.passed:
        raise typer.Exit(1)


@with_options({**MODEL, **PART}, PROMPTS, SWEEP, OUTPUT)
def variance(
    at: At = "output",
    component: Component = 0,
    reference: Reference = None,
    null: Null = None,
    chunk: Chunk = None,
    **shared: Any,
) -> None:
    """Which layers or heads lose variance as prompts get longer.

    The standard deviation over prompts by length, its slope with a 95 % CI, and a label.
    """
    with importing():
        from llmprobe.probes.variance import VarianceProbe, VarianceRequest

    own: dict[str, Any] = {"at": at, "component": component, "reference": reference}
    run_probe(VarianceProbe, VarianceRequest, **own, null=null, chunk=chunk, **shared)


@with_options({**MODEL, **PART}, PROMPTS, SWEEP, OUTPUT)
def attention(**shared: Any) -> None:
    """Where attention looks, and why heads lose variance.

    Entropy, effective tokens, sinks and logit spread by length, and the terms of each slope.
    """
    with importing():
        from llmprobe.probes.attention import AttentionProbe
        from llmprobe.probes.request import Request

    run_probe(AttentionProbe, Request, **shared)


@with_options(MODEL, TEXT_PROMPTS, without("layers", SWEEP), OUTPUT)
def loss(same_targets: SameTargets = None, chunk: Chunk = None, **shared: Any) -> None:
    """The loss by position in the prompt, and by context length.

    Nats per token and bits per byte of a text. --same-targets: what more context buys.
    """
    with importing():
        from llmprobe.probes.loss import LossProbe, LossRequest

    run_probe(LossProbe, LossRequest, same_targets=same_targets, chunk=chunk, **shared)


@with_options(MODEL, QUESTIONS, {**SWEEP, **ALL_LAYERS}, OUTPUT)
def retrieval(**shared: Any) -> None:
    """Whether the model finds what its prompt says.

    Right answers by length next to chance, and which heads attend to their source.
    """
    with importing():
        from llmprobe.probes.retrieval import RetrievalProbe, RetrievalRequest

    run_probe(RetrievalProbe, RetrievalRequest, **shared)
