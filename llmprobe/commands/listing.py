"""`ls`: the names that options accept, with a line for each."""

import inspect
import json
from collections.abc import Callable
from typing import Annotated

import typer

from llmprobe.commands.options import Debug, Json
from llmprobe.commands.showing import say_names


def ls(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="tasks, variants, prompts, remedies or kinds.",
            autocompletion=lambda: list(_LISTS),
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the names that options accept.

    Without a name it says what there is to list.
    """
    if what is not None and what not in _LISTS:
        raise ValueError(f"ls: got {what!r}, accepted: {', '.join(_LISTS)}")
    names = _LISTS[what][1]() if what else {name: words for name, (words, _) in _LISTS.items()}
    if as_json:
        typer.echo(json.dumps(names))
        return
    say_names(names)


def _tasks() -> dict[str, str]:
    from llmprobe.synthetic.tasks import TASKS

    return {name: (inspect.getdoc(task) or "").splitlines()[0] for name, task in TASKS.items()}


def _variants() -> dict[str, str]:
    from llmprobe.synthetic.decoder_network import DECODER_PARTS
    from llmprobe.synthetic.set_network import PARTS
    from llmprobe.synthetic.tasks import TASKS, SequenceTask, SetTask

    baseline = "the network without parts; a plus joins parts of different places"
    for name, task in TASKS.items():
        if issubclass(task, SequenceTask) and task.baseline:
            baseline += f"; for {name} it has {', '.join(task.baseline.values())}"
    found = {"baseline": baseline}
    groups = {
        ", ".join(name for name, task in TASKS.items() if issubclass(task, kind)): parts
        for kind, parts in ((SetTask, PARTS), (SequenceTask, DECODER_PARTS))
    }
    for name in dict.fromkeys([*PARTS, *DECODER_PARTS]):
        meanings: dict[str, list[str]] = {}
        for tasks, parts in groups.items():
            if name in parts:
                part = parts[name]
                meanings.setdefault(f"{part.place}: {part.description}", []).append(tasks)
        found[name] = "; ".join(f"{m} ({', '.join(tasks)})" for m, tasks in meanings.items())
    return found


def _prompts() -> dict[str, str]:
    from llmprobe.probes.prompts import Prompts

    return {name: kind.describe() for name, kind in Prompts.kinds.items()}


def _remedies() -> dict[str, str]:
    from llmprobe.probes.treatments import REMEDIES

    return dict(REMEDIES)


def _kinds() -> dict[str, str]:
    from llmprobe.results.opening import known_kinds

    return {
        f"{name}, {figure}": meaning
        for name, kind in known_kinds().items()
        for figure, meaning in kind.plots.items()
    }


_LISTS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "tasks": ("what train-synthetic trains on", _tasks),
    "variants": ("parts of the networks of train-synthetic", _variants),
    "prompts": ("kinds of prompts", _prompts),
    "remedies": ("what remedy tries", _remedies),
    "kinds": ("figures of each kind of result, for plot --kind", _kinds),
}
"""What each list is of, and what makes it."""
