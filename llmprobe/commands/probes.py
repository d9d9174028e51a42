"""`check`, `variance` and `attention`: the commands that look at a model."""

import json
import re
from collections.abc import Callable
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
    Output,
    Overwrite,
    Prompts,
    Query,
    Quiet,
    Reference,
    Revision,
    Samples,
    Seed,
    Text,
    TrustRemoteCode,
    check_target,
)
from llmprobe.commands.showing import show_result

if TYPE_CHECKING:
    from llmprobe.probes.sweeps import SweepPlan
    from llmprobe.results.series import SeriesResult


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
        typer.echo(f"{facts['name']}: {facts['dtype']} on {facts['device']}, {facts['attention']}")
        for line in report.checks:
            sign = "ok  " if line.passed else "FAIL"
            by = "" if line.difference is None else f"{line.difference:.1e}"
            typer.echo(f"{sign}  {line.name:<40} {by:>8}  {line.detail}")
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
    samples: Samples = 64,
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
    samples: Samples = 64,
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
    """What `variance` and `attention` share: load, plan, run with a bar, save, print."""
    from llmprobe.base.processes import process
    from llmprobe.base.progress import reporting
    from llmprobe.capture.discovery import parse_layers
    from llmprobe.capture.loading import load_model
    from llmprobe.probes.request import Request

    model, output = options.pop("model"), options.pop("output")
    dry_run, as_json, quiet = (options.pop(name) for name in ("dry_run", "as_json", "quiet"))
    overwrite = options.pop("overwrite")
    options.pop("debug")
    target = output or Path("runs") / f"{command}-{_slug(model)}"
    if not dry_run:
        check_target(target, overwrite)
    process()  # joins the others, or says what is wrong with how they were started
    options["layers"] = parse_layers(options["layers"])
    Request.of(options).check()
    where = ("revision", "device", "device_map", "dtype", "allow_pickle", "trust_remote_code")
    loaded = load_model(model, **{name: options.pop(name) for name in where})
    done = total = 0

    def advance(n_tokens: int) -> None:
        nonlocal done
        done += n_tokens
        report(command, done, total, "tokens")

    with reporting(not quiet) as report:

        def on_plan(plan: "SweepPlan") -> None:
            nonlocal total
            total = plan.n_tokens
            if dry_run:
                if process().is_main:
                    typer.echo(plan.describe())
                raise typer.Exit
            if not quiet and process().is_main:
                finished = f"{target} was finished before; --overwrite probes again"
                plans = f"{loaded.name}: {plan.describe()}"
                typer.echo(plans if plan.n_tokens else finished, err=True)

        options |= {"output": None if dry_run else target, "overwrite": overwrite}
        try:
            result: SeriesResult = _probes()[command](
                loaded, **options, on_plan=on_plan, advance=advance
            )
        except KeyboardInterrupt:
            if target.is_dir() and process().is_main:
                typer.echo(f"{target} keeps what is done; the same command goes on there", err=True)
            raise
    if process().is_main:
        show_result(result, target, as_json=as_json)


def _probes() -> dict[str, Callable[..., Any]]:
    from llmprobe.probes.attention import probe_attention
    from llmprobe.probes.variance import probe_variance

    return {"variance": probe_variance, "attention": probe_attention}


def _slug(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(model).name if Path(model).exists() else model).strip("-")
