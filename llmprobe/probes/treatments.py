"""Remedies and their shams, as edits of a model.

    case = Case(model=model, layers=layers, heads=heads, trained=2048, longest=16384)
    with Treatment("logn", 1.0).edit(case):
        model(tokens)

A remedy acts beyond the trained context L, except a constant temperature and yarn's, which act at
all positions. A dose multiplies what a remedy does to the logarithm; at dose 0 nothing changes.

A sham has the same doses in the wrong places. For remedies that treat heads alike, other heads get
them; if all heads are treated, a random half gets the inverse. For `restore` and `norm`, heads get
the gains of other heads; a second sham of `restore` keeps the norm of each output.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from llmprobe.base.seeds import numpy_generator
from llmprobe.base.temperatures import (
    dosed,
    floor_scaling,
    information_scaling,
    log_scaling,
    yarn_scaling,
)
from llmprobe.base.transfers import upload
from llmprobe.capture.calls import AttentionCall
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.capture.editing import Outputs, edit_attention
from llmprobe.capture.edits import (
    LengthMoments,
    entropy_scales,
    restore_moments,
    restore_norms,
    restore_slopes,
)
from llmprobe.probes.summaries import by_series
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.variance import VarianceProbe, VarianceTally
from llmprobe.results.variance import VarianceResult

CONSTANT = 1.1
"""Of `temperature` at dose 1. Our choice: about the size of the other remedies at 2 to 8 L."""
Scaling = Callable[[AttentionCall, Tensor, int, int], float | Tensor]
"""From a call, n, the trained and the longest length to the scale at dose 1."""
SCALINGS: dict[str, tuple[Scaling, str]] = {
    "logn": (
        lambda call, n, trained, longest: log_scaling(n, trained=trained),
        "logits times ln n / ln L (Qwen's logn)",
    ),
    "yarn": (
        lambda call, n, trained, longest: yarn_scaling(longest / trained),
        "logits times (0.1 ln s + 1)², s = longest / L (YaRN)",
    ),
    "floor": (
        lambda call, n, trained, longest: floor_scaling(n, trained=trained),
        "logits times 1 + 0.1 ln(1 + floor(n / L)) (Llama 4)",
    ),
    "infoscale": (
        lambda call, n, trained, longest: information_scaling(
            n, trained=trained, head_size=call.query.shape[-1]
        ),
        "logits times a ratio of information at n and L (InfoScale)",
    ),
    "adaptive": (
        lambda call, n, trained, longest: entropy_scales(call),
        "logits times a polynomial of each row's entropy",
    ),
    "temperature": (
        lambda call, n, trained, longest: CONSTANT,
        f"logits times {CONSTANT}, the same at all positions",
    ),
}
"""Remedies that scale logits: how, and in words."""
BEYOND = ("logn", "floor", "infoscale")
"""Those of them that leave tokens inside the trained context as they are."""
GAINS = {
    "restore": "head outputs get back the mean and deviation they have at L",
    "norm": "head outputs get back the norm they have at L",
}
"""Remedies that change head outputs."""
REMEDIES = {**{name: words for name, (_, words) in SCALINGS.items()}, **GAINS}
REMEDY, SHUFFLED, NORM_KEPT = "remedy", "shuffled", "norm kept"
Head = tuple[int, int]
"""Layer number and head."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What treatments of a model have in common."""

    model: nn.Module
    layers: tuple[AttentionLayer, ...]
    heads: Mapping[int, tuple[int, ...]]
    """Those that are treated, by layer number."""
    trained: int
    """The context L that the model was trained for."""
    longest: int
    """Of the prompts."""
    reference: int = 0
    """The length whose moments are restored."""
    moments: Mapping[int, LengthMoments] | None = None
    """Of other prompts, by layer number; `restore` and `norm` need them."""
    seed: int = 0
    """Of the shams."""

    @property
    def treated(self) -> list[Head]:
        return [(layer, head) for layer, heads in self.heads.items() for head in heads]

    @property
    def others(self) -> list[Head]:
        return [
            (layer.layer, head)
            for layer in self.layers
            for head in range(layer.n_heads)
            if head not in self.heads.get(layer.layer, ())
        ]


@dataclass(frozen=True)
class Treatment:
    """A remedy at a dose, or a sham of it."""

    remedy: str
    dose: float
    arm: str = REMEDY

    def begins(self, case: Case) -> int:
        """How many keys a token may see and stay as it is; 0 if all are treated."""
        if self.remedy in GAINS:
            return case.reference
        return case.trained if self.remedy in BEYOND else 0

    def edit(self, case: Case) -> AbstractContextManager[Any]:
        """A context manager that treats the case's model."""
        if self.remedy in SCALINGS:
            doses = self._doses(case)
            queries = _Scaled(self.remedy, doses, case.trained, case.longest)
            return edit_attention(case.model, list(doses), queries=queries)
        donors = _donors(case) if self.arm == SHUFFLED else {head: head for head in case.treated}
        heads: dict[int, list[int]] = {}
        for layer, head in donors:
            heads.setdefault(layer, []).append(head)
        return edit_attention(case.model, heads=heads, outputs=self._outputs(case, donors))

    def _doses(self, case: Case) -> dict[int, Tensor]:
        """The dose of each head, by layer."""
        signs = dict.fromkeys(case.treated, 1.0)
        if self.arm == SHUFFLED:
            generator = numpy_generator(case.seed, "sham", "doses")
            if case.others:
                signs = dict.fromkeys(_elsewhere(case, generator), 1.0)
            else:
                half = np.arange(len(signs)) % 2 * 2.0 - 1
                signs = dict(zip(signs, generator.permutation(half).tolist(), strict=True))
        numbers = {layer for layer, _ in signs}
        doses = {x.layer: torch.zeros(x.n_heads) for x in case.layers if x.layer in numbers}
        for (layer, head), sign in signs.items():
            doses[layer][head] = sign * self.dose
        return doses

    def _outputs(self, case: Case, donors: Mapping[Head, Head]) -> Outputs:
        assert case.moments is not None, "a request without moments is refused"
        own = case.moments
        if self.remedy == "restore":
            shared = {
                layer: own[layer]._replace(std=own[layer].std.clone())
                for layer in {layer for layer, _ in donors}
            }
            for (layer, head), (other, its_head) in donors.items():
                shared[layer].std[:, head] = own[other].std[:, its_head]
            return restore_moments(
                shared,
                reference=case.reference,
                dose=self.dose,
                keep_norm=self.arm == NORM_KEPT,
            )
        norms = {layer: _usual_norms(own[layer], case.reference) for layer in own}
        given = {layer: norms[layer].clone() for layer in {layer for layer, _ in donors}}
        for (layer, head), (other, its_head) in donors.items():
            given[layer][head] = norms[other][its_head]
        return restore_norms(given, reference=case.reference, dose=self.dose)


def treatments(remedies: Sequence[str], doses: Sequence[float]) -> list[Treatment]:
    """Every remedy at every dose above 0, each followed by its shams."""
    found = []
    for remedy in remedies:
        arms = (REMEDY, SHUFFLED, *([NORM_KEPT] if remedy == "restore" else []))
        found += [Treatment(remedy, dose, arm) for dose in doses if dose for arm in arms]
    return found


@dataclass(frozen=True)
class _Scaled:
    """Logits of each head by its own dose of a remedy."""

    remedy: str
    doses: Mapping[int, Tensor]
    trained: int
    longest: int

    def __call__(self, call: AttentionCall, n: Tensor) -> float | Tensor:
        doses = upload(self.doses[call.layer], n.device)
        scale = torch.as_tensor(SCALINGS[self.remedy][0](call, n, self.trained, self.longest))
        return dosed(upload(scale, n.device), doses[None, :, None])


def _elsewhere(case: Case, generator: np.random.Generator) -> list[Head]:
    """As many heads as are treated: first those that are not, then, if needed, some that are."""
    others, treated = case.others, case.treated
    order = [others[i] for i in generator.permutation(len(others))]
    order += [treated[i] for i in generator.permutation(len(treated))]
    return order[: len(treated)]


def _donors(case: Case) -> dict[Head, Head]:
    """Which head gets the gains of which other one; only heads of the same size."""
    sizes = {layer.layer: layer.head_size for layer in case.layers}
    generator = numpy_generator(case.seed, "sham", "gains")
    donors: dict[Head, Head] = {}
    for size in sorted(set(sizes.values())):
        treated = [head for head in case.treated if sizes[head[0]] == size]
        others = [head for head in case.others if sizes[head[0]] == size]
        known = case.moments or {}
        others = [head for head in others if head[0] in known]
        order = [treated[i] for i in generator.permutation(len(treated))]
        turned = [*order[1:], *order[:1]]  # nobody gets its own
        places = [others[i] for i in generator.permutation(len(others))][: len(order)]
        places += turned[len(places) :]
        donors |= dict(zip(places, order, strict=True))
    return donors


def _usual_norms(moments: LengthMoments, reference: int) -> Tensor:
    """The root mean square norm of each head's output at the reference."""
    mean, std = moments.at(torch.tensor(reference))
    return (mean.square() + std.square()).sum(-1).sqrt()


# ---------------------------------------------------------------- moments of other prompts


def restore(
    source: str | Path | VarianceResult,
    *left: str | Path,
    reference: int | None = None,
    dose: float = 1.0,
) -> Outputs:
    """An edit that gives head outputs back the variance that they lose with length.

    `source`: the folder of a variance result of heads (`at="heads"`): each feature gets back the
    mean and the deviation that it has at `reference` tokens. A `VarianceResult` has slopes only:
    outputs are multiplied by (n / reference)^(−slope), head by head. Tokens that see up to
    `reference` keys, by default the result's reference length, stay as they are.

        with edit_attention(model, layers, outputs=restore("runs/heads")):
            model(**batch)

    An edited layer changes the inputs of the layers above it, and with them their moments. `left`:
    folders of the same measurement, each made inside the edit by those before it. They restore what
    is left (docs/editing.md).
    """
    if isinstance(source, VarianceResult):
        if left:
            raise ValueError("source: got a result and folders, accepted: folders only")
        _check_heads(source.at)
        numbers = sorted(set(source.layer.tolist()))
        slopes = {n: torch.from_numpy(source.slope[source.layer == n].copy()) for n in numbers}
        return restore_slopes(slopes, reference=reference or source.reference, dose=dose)
    first, *others = (Evidence.read(Path(folder), VarianceTally) for folder in (source, *left))
    usual = reference or first.provenance.arguments.get("reference") or first.lengths[0]
    moments, seen = moments_of(first), {first.run.get("model_hash")}
    for folder, evidence in zip(left, others, strict=True):
        more = moments_of(evidence)
        if evidence.run.get("model_hash") in seen:
            raise ValueError(
                f"left: got {str(folder)!r}, which was measured before the last edit; make it "
                "inside edit_attention(model, outputs=restore(...)) of the folders before it"
            )
        if more.keys() != moments.keys() or evidence.lengths != first.lengths:
            raise ValueError(
                f"left: got {str(folder)!r} of other layers or lengths, accepted: those of {source}"
            )
        seen.add(evidence.run.get("model_hash"))
        moments = {layer: own.then(more[layer], usual) for layer, own in moments.items()}
    return restore_moments(moments, reference=usual, dose=dose)


def moments_of(evidence: Evidence) -> dict[int, LengthMoments]:
    """Mean and deviation of each head's features by length, by layer number."""
    _check_heads(evidence.provenance.arguments.get("at"))
    found = {}
    for layer in evidence.layers:
        groups = [tally.groups[layer.layer, "outputs"] for tally in evidence.tallies.values()]
        totals = [one.total().summary() for one in groups]
        mean, std = (
            torch.from_numpy(by_series(totals, name, heads=True).swapaxes(0, 1).copy())
            for name in ("mean", "std")
        )
        found[layer.layer] = LengthMoments(evidence.lengths, mean.float(), std.float())
    return found


def dispersing_heads(evidence: Evidence) -> dict[int, list[int]]:
    """Heads that a variance result labels as dispersing, by layer number."""
    result = VarianceProbe.summarize(evidence)
    heads: dict[int, list[int]] = {}
    for layer, head, label in zip(result.layer, result.head, result.labels(), strict=True):
        if label == "dispersing":
            heads.setdefault(int(layer), []).append(int(head))
    return heads


def _check_heads(at: Any) -> None:
    if at != "heads":
        raise ValueError(
            f'variance: got a result of at="{at}", accepted: one of heads; make it with at="heads"'
        )


def already_scaled(config: Any) -> list[str]:
    """What a model does itself against dispersion, in words, by its config."""
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    rope = facts.get("rope_parameters") or facts.get("rope_scaling") or {}
    notes = []
    if facts.get("attn_temperature_tuning"):
        notes.append("attn_temperature_tuning (Llama 4's floor)")
    beta = rope.get("llama_4_scaling_beta") if isinstance(rope, Mapping) else None
    if beta:
        notes.append(f"llama_4_scaling_beta = {beta} (Llama 4's floor)")
    if facts.get("use_logn_attn"):
        notes.append("use_logn_attn (logn)")
    if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) == "yarn":
        factor = rope.get("attention_factor") or 0.1 * math.log(rope.get("factor") or 1) + 1
        notes.append(f"yarn, whose mscale multiplies logits by {factor**2:.2f}")
    return [f"the model already scales its logits: {note}" for note in notes]
