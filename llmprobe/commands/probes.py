"""`check`, `variance` and `attention`: the commands that look at a model."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmprobe.commands.options import (
    AllowPickle,
    At,
    BatchTokens,
    Bos,
    Chunk,
    Component,
    Dataset,
    Debug,
    Device,
    DeviceMap,
    DryRun,
    Dtype,
    Json,
    Layers,
    Lengths,
    Model,
    NPrompts,
    Output,
    Overwrite,
    Prompts,
    Query,
    Quiet,
    Reference,
    Revision,
    Seed,
    Text,
    TrustRemoteCode,
    check_drawing,
    check_place,
    join_processes,
)
from llmprobe.commands.showing import say, show_result

if TYPE_CHECKING:
    from llmprobe.probes.probe import ProbeRun


def check(
    model: Model = "builtin",
    length: Annotated[int, typer.Option(help="Tokens in the prompts of the check.")] = 64,
    revision: Revision = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check that captures tell the truth about a model: hooks, eager attention, padding."""
    from llmprobe.capture.checks import check_capture
    from llmprobe.capture.loading import load_model

    loaded = load_model(
        model,
        revision=revision,
        device=device,
        device_map=device_map,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
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
            say(f"{sign}  {line.name:<40} {by:>8}  {line.detail}")
    if not report.passed:
        raise typer.Exit(1)


def variance(
    model: Model = "builtin",
    lengths: Lengths = "16..1024",
    layers: Layers = "0",
    at: At = "output",
    prompts: Prompts = "random",
    text: Text = None,
    dataset: Dataset = None,
    n_prompts: NPrompts = 64,
    query: Query = "free",
    bos: Bos = "auto",
    component: Component = 0,
    reference: Reference = None,
    seed: Seed = 0,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    batch_tokens: BatchTokens = None,
    chunk: Chunk = None,
    revision: Revision = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    output: Output = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """How the variance of attention outputs falls with the length of the prompt."""
    _probe("variance", **locals())


def attention(
    model: Model = "builtin",
    lengths: Lengths = "16..1024",
    layers: Layers = "0",
    prompts: Prompts = "random",
    text: Text = None,
    dataset: Dataset = None,
    n_prompts: NPrompts = 64,
    query: Query = "free",
    bos: Bos = "auto",
    seed: Seed = 0,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    batch_tokens: BatchTokens = None,
    revision: Revision = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    output: Output = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Where attention looks as prompts get longer, and the variance that this predicts."""
    _probe("attention", **locals())


def _probe(command: str, **options: Any) -> None:
    """What `variance` and `attention` share: start, show the plan, run with a bar, print."""
    from llmprobe.probes.probe import LoadOptions, start

    model, output = options.pop("model"), options.pop("output")
    dry_run, as_json, quiet = (options.pop(name) for name in ("dry_run", "as_json", "quiet"))
    overwrite = options.pop("overwrite")
    options.pop("debug")
    load: Any = {name: options.pop(name) for name in LoadOptions.__annotations__ & options.keys()}
    target = output or Path("runs") / f"{command}-{_slug(model)}"
    if not dry_run:
        check_place(target)
        check_drawing()
    is_main = join_processes()
    kind, request = _kinds()[command]
    asked = request(**options)
    run = start(kind, model, asked, output=None if dry_run else target, overwrite=overwrite, **load)
    if is_main:
        _show_plan(run, target, dry_run=dry_run, quiet=quiet)
    if dry_run:
        return
    try:
        result = run.execute(progress=not quiet)
    except KeyboardInterrupt:
        if target.is_dir() and is_main:
            say(f"{target} keeps what is done; run the same command to resume", err=True)
        raise
    if is_main:
        show_result(result, target, as_json=as_json)


def _show_plan(run: "ProbeRun", target: Path, *, dry_run: bool, quiet: bool) -> None:
    if dry_run:
        say(run.plan.describe())
    elif not quiet and run.plan.n_tokens:
        say(f"{run.probe.ready.loaded.name}: {run.plan.describe()}", err=True)
    elif not quiet:
        say(f"{target} was finished before; --overwrite probes again", err=True)


def _kinds() -> dict[str, tuple[Any, Any]]:
    """A kind of probe and its request, by the command's name."""
    from llmprobe.probes.attention import AttentionProbe
    from llmprobe.probes.request import Request
    from llmprobe.probes.variance import VarianceProbe, VarianceRequest

    return {
        "variance": (VarianceProbe, VarianceRequest),
        "attention": (AttentionProbe, Request),
    }


def _slug(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(model).name if Path(model).exists() else model).strip("-")
