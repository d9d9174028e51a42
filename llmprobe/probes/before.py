"""What can be refused before a model is loaded: a folder that holds another run.

The same is checked again, with all that the model decides, when the run opens its folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmprobe.capture.discovery import parse_layers
from llmprobe.capture.loading import shown_name
from llmprobe.errors import CheckpointError
from llmprobe.probes.request import Request
from llmprobe.runs.checkpoints import check_same, read_facts
from llmprobe.runs.folder import EVIDENCE, probe_under_way

_LATER = ("layers", "bos", "n_prompts", "position")
"""What only the model can tell, or what may differ."""


def check_asked(folder: Path, kind: str, model: Any, asked: Request) -> None:
    """Refuse a folder that holds a run of other settings, as far as they are known by now."""
    there = _there(folder)
    if there is None:
        return
    wanted: dict[str, Any] = {"kind": kind}
    if isinstance(model, str | Path):
        wanted["model"] = shown_name(model)
    have = {name: there[name] for name in wanted if name in there}
    before = there.get("arguments", {})
    now = {n: x for n, x in asked.record(asked.check(), ()).items() if n not in _LATER}
    if asked.query not in ("free", "fixed") and not asked.query.startswith("id:"):
        del now["query"]  # a token's text, which is kept as its number
    layers = parse_layers(asked.layers) if isinstance(asked.layers, str) else None
    if layers is not None and min(layers) >= 0:
        now["layers"] = sorted(set(layers))
    now = {name: _written(x) for name, x in now.items() if name in before}
    check_same(
        folder,
        have | {"arguments": {name: before[name] for name in now}},
        {name: x for name, x in wanted.items() if name in have} | {"arguments": now},
    )
    n = before.get("n_prompts")
    if there["finished"] and isinstance(n, int) and n > asked.n_prompts:
        raise CheckpointError(
            f"{folder} has {n} prompts, more than the {asked.n_prompts} that are asked for; "
            "use another output, or overwrite=True"
        )


def _written(value: Any) -> Any:
    """As a file keeps it."""
    return list(value) if isinstance(value, tuple) else value


def _there(folder: Path) -> Mapping[str, Any] | None:
    """What the run in a folder was asked for; None where there is none that says it."""
    under_way = probe_under_way(folder)
    if under_way is not None:
        return {**under_way, "finished": False}
    if not (folder / EVIDENCE).is_file():
        return None
    facts = read_facts(folder / EVIDENCE)  # what is damaged is refused with its reason later
    provenance = facts.get("provenance")
    if not isinstance(provenance, Mapping) or not isinstance(provenance.get("arguments"), Mapping):
        return None
    return {**provenance, "kind": facts.get("kind"), "finished": True}
