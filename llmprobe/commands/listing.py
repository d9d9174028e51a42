"""`ls`: the names that options accept, with a line for each."""

import inspect
import json
from collections.abc import Callable
from typing import Annotated

import typer

from llmprobe.commands.options import Debug, Json
from llmprobe.commands.showing import say, say_names


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
    elif what == "variants":
        _say_variants(names["baseline"])
    else:
        say_names(names)


def _tasks() -> dict[str, str]:
    from llmprobe.synthetic.tasks import TASKS

    return {name: (inspect.getdoc(task) or "").splitlines()[0] for name, task in TASKS.items()}


def _variants() -> dict[str, str]:
    from llmprobe.synthetic.tasks import TASKS, SequenceTask

    baseline = "the network without parts; a plus joins parts of different places"
    for name, task in TASKS.items():
        if issubclass(task, SequenceTask) and task.baseline:
            baseline += f"; for {name} it has {', '.join(task.baseline.values())}"
    found: dict[str, list[str]] = {}
    for place, parts in _parts_by_place().items():
        for name, meaning in parts.items():
            found.setdefault(name, []).append(f"{place}: {meaning}")
    return {"baseline": baseline} | {name: "; ".join(words) for name, words in found.items()}


def _parts_by_place() -> dict[str, dict[str, str]]:
    """What each part does, and in which networks."""
    from llmprobe.synthetic.decoder_network import DECODER_PARTS
    from llmprobe.synthetic.set_network import PARTS
    from llmprobe.synthetic.variants import PLACES

    found: dict[str, dict[str, str]] = {place: {} for place in PLACES}
    for name in dict.fromkeys([*PARTS, *DECODER_PARTS]):
        meanings: dict[tuple[str, str], list[str]] = {}
        for kind, parts in (("sets", PARTS), ("sequences", DECODER_PARTS)):
            if name in parts:
                part = parts[name]
                meanings.setdefault((part.place, part.description), []).append(kind)
        for (place, meaning), kinds in meanings.items():
            words = f"{meaning} ({', '.join(kinds)})"
            known = found[place].get(name)
            found[place][name] = words if known is None else f"{known}; {words}"
    return found


def _say_variants(baseline: str) -> None:
    """Parts in groups, under the place that they change."""
    from llmprobe.synthetic.variants import PLACES

    say_names({"baseline": baseline})
    for place, parts in _parts_by_place().items():
        say(f"{place}: {PLACES[place]}")
        say_names({f"  {name}": words for name, words in parts.items()})


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
