"""How commands that take time run: check the place, say what is being done, run, show."""

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmprobe.commands.naming import default_folder
from llmprobe.commands.options import MODEL, PART, PROMPTS, SWEEP
from llmprobe.commands.showing import say, show_result

if TYPE_CHECKING:
    import torch

    from llmprobe.probes.probe import Probe, ProbeRun
    from llmprobe.probes.request import Request

_PATIENCE = 10.0
"""Seconds before a process that waits for others says so."""


def run_probe(
    kind: "type[Probe]",
    request: "type[Request]",
    *,
    model: str,
    output: Path | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **options: Any,
) -> None:
    """What all probe commands do: start, show the plan, run with a bar, print.

    `options` are the fields of the request and the options that load the model.
    """
    from llmprobe.base.machine import resolve_device
    from llmprobe.probes.plans import plan_probe
    from llmprobe.probes.probe import start

    asked = request(**{f.name: options.pop(f.name) for f in fields(request) if f.name in options})
    load: Any = options
    target = output or default_folder(
        kind.tally.kind, model, vars(asked) | load, defaults=_defaults(request)
    )
    place: Any = {"output": target, "overwrite": overwrite}
    if dry_run:
        plan = plan_probe(kind, model, asked, **place, **load)
        say(f"{model}: {plan.describe()}")
        say_memory([resolve_device(load.get("device", "auto"))], err=False)
        say(f"folder: {target} ({'it is there' if target.exists() else 'new'})")
        return
    check_place(target)
    check_drawing()
    is_main = join_processes()
    with _without_bars(quiet):
        run = start(kind, model, asked, **place, **load)
    if is_main and not quiet:
        _show_plan(run, target)
    try:
        result = run.execute(progress=not quiet)
    except KeyboardInterrupt:
        if target.is_dir() and is_main:
            say(f"{target} keeps what is done; run the same command to resume", err=True)
        raise
    if is_main and not quiet:
        say_memory(_devices(run), err=True, peak=True)
    if is_main:
        show_result(result, target, as_json=as_json)


@contextmanager
def _without_bars(quiet: bool) -> Iterator[None]:
    """Hide the bars of transformers while a model is loaded, if no bar is wanted."""
    from transformers.utils import logging

    hidden = quiet and logging.is_progress_bar_enabled()
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def _defaults(request: "type[Request]") -> dict[str, Any]:
    """Of the options that a folder may be named after; `n_prompts` can grow in a folder."""
    shared = {name: default for name, (_, default) in {**MODEL, **PART, **PROMPTS, **SWEEP}.items()}
    own = {field.name: field.default for field in fields(request)}
    del shared["model"], shared["n_prompts"], own["n_prompts"]
    return shared | own


def _show_plan(run: "ProbeRun", target: Path) -> None:
    if run.plan.n_tokens:
        say(f"{run.probe.ready.loaded.name}: {run.plan.describe()}", err=True)
        say_memory(_devices(run), err=True)
    else:
        say(f"{target} was finished before; --overwrite probes again", err=True)


def _devices(run: "ProbeRun") -> "list[torch.device]":
    """Where the model's weights are."""
    return list(dict.fromkeys(weight.device for weight in run.probe.ready.model.parameters()))


def say_memory(devices: "Iterable[torch.device]", *, err: bool, peak: bool = False) -> None:
    """A line for each device that has its own memory."""
    from llmprobe.base.machine import describe_memory

    for device in devices:
        if words := describe_memory(device, peak=peak):
            say(words, err=err)


def check_place(target: Path) -> None:
    """Refuse a path at which nothing can be written."""
    above = next(parent for parent in target.absolute().parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".llmprobe-", dir=above)).rmdir()
    except OSError as error:
        raise ValueError(
            f"{target} cannot be written ({error.strerror}); use another --output"
        ) from None


def check_drawing() -> None:
    """Have matplotlib refuse its settings before the work, not when the figure is drawn."""
    try:
        import matplotlib  # noqa: F401
    except ValueError as error:
        wanted = os.environ.get("MPLBACKEND")
        raise ValueError(f"MPLBACKEND: got {wanted!r}; unset it, or use Agg ({error})") from None


def join_processes() -> bool:
    """Join the other processes that were launched; whether this is the main one.

    A process whose companions never come would wait for days without a word.
    """
    from llmprobe.base.processes import process, world_size

    def tell() -> None:
        place = f"{os.environ.get('MASTER_ADDR', 'localhost')}:{os.environ.get('MASTER_PORT', '')}"
        typer.echo(
            f"rank {os.environ.get('RANK', '?')} waits at {place} for the other "
            f"{world_size() - 1} processes of WORLD_SIZE={world_size()}; unset WORLD_SIZE to run "
            "alone",
            err=True,
        )

    if world_size() == 1:
        return True
    timer = threading.Timer(_PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        return process().is_main
    finally:
        timer.cancel()
