"""The arguments of `probe_remedies`, and what they choose: remedies, doses, heads, moments."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmprobe.capture.digests import digest_model
from llmprobe.capture.discovery import AttentionLayer, LayerChoice
from llmprobe.capture.loading import LoadedModel
from llmprobe.capture.positions import parse_rope
from llmprobe.probes.loss import LossRequest
from llmprobe.probes.request import Prepared, check_count
from llmprobe.probes.sweeps import SweepPlan
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.treatments import (
    GAINS,
    REMEDIES,
    Case,
    already_scaled,
    dispersing_heads,
    moments_of,
    treatments,
)
from llmprobe.probes.variance import VarianceTally
from llmprobe.runs.folder import EVIDENCE

DEFAULT_REMEDIES = ("logn", "yarn", "infoscale", "adaptive", "temperature")
"""Those that need no moments; with `variance`, `restore` and `norm` come with them."""
DEFAULT_DOSES = "0,0.5,1,2"
_MOST_DOSE = 100.0
MEASURES = ("loss", "dictionary", "repeat", "slopes")
"""What is measured. The loss always is; dictionary and repeat take about as long, slopes less."""


@dataclass(frozen=True, kw_only=True)
class RemedyRequest(LossRequest):
    """The arguments of `probe_remedies` that decide its numbers."""

    predicts = "a remedy"

    layers: LayerChoice = "all"
    n_prompts: int = 16
    remedies: str | Sequence[str] | None = None
    doses: str | float | Sequence[float] = DEFAULT_DOSES
    heads: str | Mapping[int, Sequence[int]] = "all"
    variance: str | Path | None = None
    trained: int | None = None
    rope: str | None = None
    measures: str | Sequence[str] = MEASURES

    def check(self) -> tuple[int, ...]:
        wanted = super().check()
        check_count("trained", self.trained, least=2)
        self.all_doses()
        self.measured()
        if self.rope is not None:
            parse_rope(self.rope)
        if not isinstance(self.heads, Mapping) and self.heads not in ("all", "dispersing"):
            parse_heads(self.heads)
        if self.variance is not None and not (Path(self.variance) / EVIDENCE).is_file():
            raise ValueError(
                f"variance: got {str(self.variance)!r}, which has no {EVIDENCE}; give the folder "
                'of a variance result with at="heads"'
            )
        needs = [name for name in self.names() if name in GAINS]
        if self.heads == "dispersing":
            needs.append('heads="dispersing"')
        if needs and self.variance is None:
            raise ValueError(
                f"variance: got none, but {needs[0]} needs one; give the folder of a variance "
                'result of this model with at="heads" and other prompts'
            )
        return wanted

    def planned(self, plan: SweepPlan) -> SweepPlan:
        every, some = 1 + len(treatments(self.names(), self.all_doses())), 1 + len(self.names())
        n_runs = sum(some if name == "slopes" else every for name in self.measured())
        return replace(plan, flops=n_runs * plan.flops, seconds=n_runs * plan.seconds)

    def names(self) -> tuple[str, ...]:
        """The remedies, checked, each once."""
        if self.remedies is None:
            return (*DEFAULT_REMEDIES, *(GAINS if self.variance is not None else ()))
        given = self.remedies.split(",") if isinstance(self.remedies, str) else self.remedies
        names = tuple(dict.fromkeys(str(name).strip() for name in given))
        unknown = [name for name in names if name not in REMEDIES]
        if unknown or not names:
            raise ValueError(
                f"remedies: got {', '.join(map(repr, unknown)) or 'none'}, accepted: "
                f"{', '.join(REMEDIES)}"
            )
        return names

    def measured(self) -> tuple[str, ...]:
        """What is measured, checked; the loss always is."""
        given = self.measures.split(",") if isinstance(self.measures, str) else self.measures
        names = {str(name).strip() for name in given}
        if not names or not names <= set(MEASURES):
            raise ValueError(
                f"measures: got {self.measures!r}, accepted: {', '.join(MEASURES)} (the loss is "
                "always measured)"
            )
        return tuple(name for name in MEASURES if name in names | {"loss"})

    def all_doses(self) -> tuple[float, ...]:
        """The doses, checked, rising; at least one is above 0."""
        given = self.doses.split(",") if isinstance(self.doses, str) else self.doses
        try:
            doses = sorted({float(dose) for dose in np.atleast_1d(np.array(given))})
        except (TypeError, ValueError):
            doses = []
        if not doses or not all(0 <= dose <= _MOST_DOSE for dose in doses) or not doses[-1]:
            raise ValueError(
                f"doses: got {self.doses!r}, accepted: numbers from 0 to {_MOST_DOSE:.0f}, at "
                "least one above 0, such as 0,0.5,1,2"
            )
        return tuple(doses)

    def record(self, lengths: tuple[int, ...], layers: Sequence[AttentionLayer]) -> dict[str, Any]:
        more: dict[str, Any] = {
            "remedies": self.names(),
            "doses": self.all_doses(),
            "measures": self.measured(),
        }
        if isinstance(self.heads, Mapping):
            pairs = [(layer, head) for layer, heads in self.heads.items() for head in heads]
            more["heads"] = ",".join(f"{layer}.{head}" for layer, head in sorted(pairs))
        if self.variance is not None:  # its name alone would not tell
            evidence = (Path(self.variance) / EVIDENCE).read_bytes()
            digest = hashlib.sha256(evidence).hexdigest()
            more |= {"variance": Path(self.variance).name, "variance_hash": digest}
        return super().record(lengths, layers) | more


def parse_heads(text: str) -> dict[int, list[int]]:
    """Heads as text: `0.3,2.1` is head 3 of layer 0 and head 1 of layer 2."""
    heads: dict[int, list[int]] = {}
    for item in text.replace(" ", "").split(","):
        layer, _, head = item.partition(".")
        if not (layer.isdecimal() and head.isdecimal() and len(item) <= 12):
            raise ValueError(
                f"heads: got {text!r}, accepted: all, dispersing, or LAYER.HEAD, such as 0.3,2.1"
            )
        heads.setdefault(int(layer), []).append(int(head))
    return heads


def trained_context(loaded: LoadedModel, asked: RemedyRequest) -> int:
    trained = asked.trained or loaded.context_length
    if trained is None:
        raise ValueError(
            f"trained: got none, and the config of {loaded.name} does not say what it was trained "
            "for; give trained, in tokens"
        )
    return trained


def make_case(ready: Prepared, asked: RemedyRequest, trained: int) -> Case:
    case = Case(
        model=ready.model,
        layers=ready.layers,
        heads={x.layer: tuple(range(x.n_heads)) for x in ready.layers},
        trained=trained,
        longest=max(ready.lengths),
        seed=asked.seed,
    )
    found: Mapping[int, Sequence[int]] | None = None
    if asked.variance is not None:
        evidence = Evidence.read(Path(asked.variance), VarianceTally)
        moments = moments_of(evidence)
        _check_source(evidence, ready, asked)
        inside = [length for length in evidence.lengths if length <= trained]
        reference = max(inside, default=min(evidence.lengths))
        case = replace(case, moments=moments, reference=reference)
        if asked.heads == "dispersing":
            found = dispersing_heads(evidence)
    if isinstance(asked.heads, Mapping):
        found = asked.heads
    elif asked.heads not in ("all", "dispersing"):
        found = parse_heads(asked.heads)
    if found is None:
        return case
    sizes = {layer.layer: layer.n_heads for layer in ready.layers}
    chosen = {n: tuple(sorted({*found[n]})) for n in sorted(found)}
    for number, heads in chosen.items():
        for head in heads:
            if not 0 <= head < sizes.get(number, 0):
                raise ValueError(
                    f"heads: got {number}.{head}, accepted: heads of layers "
                    f"{', '.join(f'{n} (0 to {size - 1})' for n, size in sizes.items())}"
                )
    if not any(chosen.values()):
        raise ValueError('heads: got none that disperses; use heads="all" or LAYER.HEAD')
    return replace(case, heads={n: heads for n, heads in chosen.items() if heads})


def _check_source(evidence: Evidence, ready: Prepared, asked: RemedyRequest) -> None:
    """Moments must be of this model and of other prompts."""
    there = evidence.run.get("model_hash")
    if there != digest_model(ready.model):
        raise ValueError(
            f"variance: got a result of another model ({evidence.provenance.model}), accepted: one "
            f"of {ready.loaded.name} with the same weights and dtype; make it again"
        )
    same_seed = ready.provenance.prompts_hash in {part.prompts_hash for part in evidence.parts}
    if same_seed:
        raise ValueError(
            f"variance: got a result of the same prompts, accepted: other prompts; use another "
            f"seed than {asked.seed}"
        )
    missing = {layer.layer for layer in ready.layers} - {layer.layer for layer in evidence.layers}
    if missing:
        raise ValueError(
            f"variance: got a result without layer {min(missing)}, accepted: one with all layers "
            'that are treated; make it with layers="all"'
        )


def note_idle(ready: Prepared, asked: RemedyRequest, trained: int) -> list[str]:
    notes = already_scaled(getattr(ready.model, "config", None))
    if asked.rope is not None and asked.variance is not None:
        notes.append("the moments of variance were measured without repaired positions")
    if max(ready.lengths) <= trained:
        idle = [name for name in asked.names() if name not in ("adaptive", "temperature")]
        if idle:
            notes.append(
                f"no prompt is longer than the trained context of {trained}, where "
                f"{', '.join(idle)} begin to act"
            )
    return notes
