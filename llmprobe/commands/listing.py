"""`ls`: the names that options accept, with a line for each."""

import inspect
import json
from collections.abc import Callable
from typing import Annotated

import typer

from llmprobe.commands.importing import importing
from llmprobe.commands.options import Debug, Json
from llmprobe.commands.showing import say, say_names


@importing()
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
    found = _LISTS[what][1]() if what else {name: words for name, (words, _) in _LISTS.items()}
    if as_json:
        typer.echo(json.dumps(found))
        return
    groups = {name: names for name, names in found.items() if not isinstance(names, str)}
    for title, names in groups.items():
        say(f"{title}:")
        say_names({f"  {name}": words for name, words in names.items()})
    if not groups:
        say_names(found)


Names = dict[str, str]


def _tasks() -> dict[str, Names]:
    """By kind."""
    from llmprobe.synthetic.tasks import TASKS

    found: dict[str, Names] = {}
    for name, task in TASKS.items():
        found.setdefault(task.kind, {})[name] = (inspect.getdoc(task) or "").splitlines()[0]
    return found


def _variants() -> dict[str, Names]:
    """By the place that a part changes."""
    from llmprobe.synthetic.decoder_network import DECODER_PARTS
    from llmprobe.synthetic.set_network import PARTS
    from llmprobe.synthetic.variants import PLACES

    baseline = "the network without parts; a plus joins parts of different places"
    found = {"all tasks": {"baseline": baseline}}
    found |= {f"{place}, {words}": {} for place, words in PLACES.items()}
    for name in dict.fromkeys([*PARTS, *DECODER_PARTS]):
        meanings: dict[tuple[str, str], list[str]] = {}
        for kind, parts in (("sets", PARTS), ("decoders", DECODER_PARTS)):
            if name in parts:
                part = parts[name]
                meanings.setdefault((part.place, part.description), []).append(kind)
        for (place, meaning), kinds in meanings.items():
            group = found[f"{place}, {PLACES[place]}"]
            known = f"{group[name]}; " if name in group else ""
            group[name] = f"{known}{meaning} ({', '.join(kinds)})"
    found["baselines of decoders"] = _baselines()
    return found


def _baselines() -> Names:
    """Parts that the baseline of a task has; tasks with the same ones share a line."""
    from llmprobe.synthetic.tasks import TASKS, DecoderTask

    found: dict[str, list[str]] = {}
    for name, task in TASKS.items():
        if issubclass(task, DecoderTask) and task.baseline:
            found.setdefault("+".join(task.baseline.values()), []).append(name)
    return {parts: ", ".join(names) for parts, names in found.items()}


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


_LISTS: dict[str, tuple[str, Callable[[], Names] | Callable[[], dict[str, Names]]]] = {
    "tasks": ("what train-synthetic trains on", _tasks),
    "variants": ("parts of the networks of train-synthetic", _variants),
    "prompts": ("kinds of prompts", _prompts),
    "remedies": ("what remedy tries", _remedies),
    "kinds": ("figures of each kind of result, for plot --kind", _kinds),
}
"""What each list is of, and what makes it; some lists are in groups."""
