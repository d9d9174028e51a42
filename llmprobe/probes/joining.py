"""One probe's evidence of what several have seen, with other seeds or at other lengths."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmprobe.probes.prompts import Prompts
from llmprobe.probes.tallies import Evidence, Tally
from llmprobe.results.base import Provenance
from llmprobe.runs.checkpoints import check_same

_OF_A_PART = {
    *("seed", "n_prompts", "lengths", "prompts_hash", "query_tokens", "merged"),
    *("batch_tokens", "chunk", "one_pass"),
}
"""What may differ between results that are joined: which prompts they saw, and how those were cut
into forwards."""


def join_evidence(folders: Sequence[Path], tally: type[Tally]) -> Evidence:
    """One probe's evidence of what several have seen."""
    every = [Evidence.read(folder, tally) for folder in folders]
    for folder, one in zip(folders, every, strict=True):
        check_same(folder, _settings(one), _settings(every[0]))
    every.sort(key=lambda one: (one.parts, one.lengths))
    first, parts = every[0], _table(every)
    if len(parts) > 1 and first.provenance.arguments["query"] == "fixed":
        raise ValueError(
            "merge: with a fixed query each seed draws its own query tokens; raise n_prompts on "
            "one folder instead, or name the token"
        )
    lengths = sorted({length for one in every for length in one.lengths})
    notes = dict.fromkeys(note for one in every for note in one.warnings)
    kind = Prompts.kinds.get(first.provenance.prompts)
    if len(parts) > 1 and kind is not None and not kind.is_drawn:
        raise ValueError(
            f"merge: {kind.kind} prompts are the same for every seed, and would count twice; give "
            "results of other lengths, or put all prompts into one file"
        )
    if len(parts) > 1 and kind is not None and kind.shares_text:
        notes["prompts of different seeds may share text: they are windows of the same one"] = None
    return replace(
        first,
        provenance=_provenance(every, parts, lengths),
        parts=parts,
        warnings=tuple(notes),
        tallies={length: _joined(every, length, tally) for length in lengths},
    )


def _settings(evidence: Evidence) -> dict[str, Any]:
    """What has to be the same, by name."""
    facts = evidence.configuration
    arguments = facts.pop("arguments")
    return {name: v for name, v in (facts | arguments).items() if name not in _OF_A_PART}


def _table(every: Sequence[Evidence]) -> tuple[Any, ...]:
    """The prompts, which must be the same at every length, and there once."""
    by_length: dict[int, list[tuple[int, int]]] = {}
    for one in every:
        for length in one.lengths:
            by_length.setdefault(length, []).extend((p.seed, p.n_prompts) for p in one.parts)
    for length, found in by_length.items():
        seeds = [seed for seed, _ in found]
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        if twice is not None:
            raise ValueError(
                f"merge: seed {twice} at length {length} is in two folders, and its prompts would "
                "count twice; give results of other seeds or other lengths"
            )
    (length, expected), *others = ((n, sorted(found)) for n, found in by_length.items())
    for other, found in others:
        if found != expected:
            raise ValueError(
                f"merge: length {length} has {_told(expected)}, length {other} has {_told(found)}; "
                "every length needs the same"
            )
    # Digests are of the longest prompts, as they would be in one run of all lengths.
    in_order = sorted(every, key=lambda one: one.lengths[-1])
    parts = {part.seed: part for one in in_order for part in one.parts}
    return tuple(parts[seed] for seed in sorted(parts))


def _told(prompts: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{n_prompts} prompts of seed {seed}" for seed, n_prompts in prompts)


def _joined(every: Sequence[Evidence], length: int, kind: type[Tally]) -> Tally:
    found = [one for one in every if length in one.tallies]
    tally, seen = kind(found[0].layers), 0
    for one in found:
        tally.merge(one.tallies[length].state(), first=seen)
        seen += one.n_prompts
    return tally


def _provenance(
    every: Sequence[Evidence], parts: tuple[Any, ...], lengths: Sequence[int]
) -> Provenance:
    first, hashes = every[0].provenance, [part.prompts_hash for part in parts]
    n_prompts = sum(part.n_prompts for part in parts)
    arguments = dict(first.arguments) | {"lengths": list(lengths), "n_prompts": n_prompts}
    if len(parts) > 1:  # else it is what one run with all lengths would have given
        arguments["merged"] = [{"seed": part.seed, "n_prompts": part.n_prompts} for part in parts]
    return replace(
        first,
        arguments=arguments,
        prompts_hash=hashes[0] if len(parts) == 1 else _digest(hashes),
        created=max(one.provenance.created for one in every),
    )


def _digest(hashes: Sequence[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()
