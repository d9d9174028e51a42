"""What a probe keeps of the prompts it has seen, and the file that keeps it next to a result.

    tally = VarianceTally(layers)
    tally.update(layer, outputs, prompts)
    whole.merge(tally.state())

A tally holds statistics that merge exactly. The statistics of a piece of work are the same whoever
computes them, and pieces are joined in their order, so a result does not depend on how many
processes there were or how often they were stopped.

The evidence of a probe is its tallies by length and the facts that a summary needs. It is kept next
to the result, so prompts can be added, and results of other seeds or lengths can be joined, exactly
as if one run had seen everything. No model is needed for that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.moments import Groups, Moments, State
from llmprobe.base.nesting import flatten, nest
from llmprobe.base.transfers import fetch_arrays
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.errors import CheckpointError
from llmprobe.results.base import Provenance
from llmprobe.runs.checkpoints import check_same, read_checkpoint, write_checkpoint
from llmprobe.runs.folder import EVIDENCE

T = TypeVar("T")

N_GROUPS = 16
"""Of prompts, for the jackknife. Prompt i is in group i mod 16, however many prompts there are."""
_COUNTS = ("/count", "/nonfinite")
"""Arrays of the features' shape that stand next to each mean."""
_RENAMED = {"samples": "n_prompts"}
"""Arguments that older evidence has under another name."""


class Tally:
    """Statistics by layer and name, and values of single prompts."""

    kind: ClassVar[str]
    """Of the result that is made of it."""
    n_kept: ClassVar[int]
    """Prompts of which single values are kept."""

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        self.numbers = [layer.layer for layer in layers]
        self.moments: dict[tuple[int, str], Moments] = {}
        self.groups: dict[tuple[int, str], Groups[Any]] = {}
        self.kept: dict[int, dict[int, Tensor]] = {number: {} for number in self.numbers}
        self.n_asked = 0
        """Prompts that have a right answer."""
        self.n_right: int | Tensor = 0
        """How many of them the model gave it for; a tensor where that is on a device."""
        self.n_by_chance = 0.0
        """For how many a random choice among the possible answers would be right, on average."""

    @staticmethod
    def shapes(layer: AttentionLayer, *, whole: bool) -> dict[str, tuple[int, ...]]:
        """The features' shape of each statistic that is not one number for each series.

        `whole`: outputs are of the layer and not of its heads.
        """
        return {}

    def keep(self, layer: int, values: Tensor, prompts: Sequence[int]) -> None:
        """Values (prompts, ...) of those among the first prompts."""
        for row, prompt in enumerate(prompts):
            if prompt < self.n_kept:
                self.kept[layer][prompt] = values[row].to(torch.float32, copy=True)

    def kept_of(self, layer: int) -> Tensor:
        """(prompts, ...), in the order of their numbers."""
        by_prompt = self.kept[layer]
        return torch.stack([by_prompt[prompt] for prompt in sorted(by_prompt)])

    def tensors(self) -> dict[str, Any]:
        """What `state` brings to the host, all at once: tensors by name, in any nesting."""
        found: dict[str, Any] = {
            f"{name}/{layer}": part.tensors()
            for (layer, name), part in (self.moments | self.groups).items()
        }
        for layer, by_prompt in self.kept.items():
            if by_prompt:
                numbers = torch.tensor(sorted(by_prompt))
                found[f"kept/{layer}"] = {"prompts": numbers, "values": self.kept_of(layer)}
        return found | {"right": torch.as_tensor(self.n_right)}

    def state(self) -> State:
        """Everything as plain arrays: `asked`, `chance`, `NAME/LAYER/...`, `kept/LAYER/...`."""
        tensors = flatten(self.tensors(), "/")
        state = dict(zip(tensors, fetch_arrays(list(tensors.values())), strict=True))
        asked = np.array([self.n_asked, int(state.pop("right"))])
        return {"asked": asked, "chance": np.array([self.n_by_chance])} | state

    def merge(self, state: Mapping[str, Any], *, first: int = 0) -> None:
        """Take in what `state()` of another one gave; its prompt 0 is this one's `first`."""
        asked, right = (int(n) for n in state["asked"])
        self.n_asked, self.n_right = self.n_asked + asked, self.n_right + right
        [chance] = state.get("chance", [np.nan])  # older evidence does not have it
        self.n_by_chance += float(chance)
        parts = by_layer(state)
        for (layer, name), moments in self.moments.items():
            moments.merge(Moments.from_state(parts.get((str(layer), name), {})))
        for (layer, name), groups in self.groups.items():
            groups.merge(Groups.from_state(groups.make, parts.get((str(layer), name), {})))
        for layer in self.numbers:
            given = parts.get((str(layer), "kept"), {})
            for prompt, value in zip(
                given.get("prompts", ()), given.get("values", ()), strict=True
            ):
                if first + int(prompt) < self.n_kept:
                    self.kept[layer][first + int(prompt)] = torch.from_numpy(np.array(value))


def by_layer(state: Mapping[str, T]) -> dict[tuple[str, str], dict[str, T]]:
    """What a state has of each layer and name, in one go: it has thousands of entries."""
    return {
        (layer, name): part
        for name, of_name in nest(state, "/").items()
        for layer, part in nest(of_name, "/").items()
    }


def kept_at_all(tallies: Iterable[Tally], layer: int) -> list[Tensor]:
    """Of each tally (prompts, ...): the same prompts in all, NaN where a prompt was left out."""
    by_length = [tally.kept[layer] for tally in tallies]
    some = {prompt: value for kept in by_length for prompt, value in kept.items()}
    nothing = torch.full_like(next(iter(some.values())), torch.nan)
    return [
        torch.stack([kept.get(prompt, nothing) for prompt in sorted(some)]).cpu()
        for kept in by_length
    ]


def at_length(state: State, index: int) -> State:
    """Of the state of a pass that served several lengths, what belongs to one of them."""
    found = {}
    for name, value in state.items():
        *_, what = name.split("/")
        if what in ("asked", "chance", "n_prompts", "prompts"):
            found[name] = value
        else:
            found[name] = value[:, [index]] if name.startswith("kept/") else value[[index]]
    return found


class Part(NamedTuple):
    """Prompts that were drawn with one seed."""

    seed: int
    n_prompts: int
    prompts_hash: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a probe has seen, and the facts that its summary needs."""

    kind: str
    provenance: Provenance
    run: Mapping[str, Any]
    """What else decides the numbers: model, text, and how prompts were cut into forwards."""
    parts: tuple[Part, ...]
    layers: tuple[AttentionLayer, ...]
    context_length: int | None
    """What the model was trained for."""
    warnings: tuple[str, ...]
    """Known before anything was seen."""
    tallies: Mapping[int, Any]
    """A `Tally` by length, in their order."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.tallies)

    @property
    def n_prompts(self) -> int:
        return sum(part.n_prompts for part in self.parts)

    @property
    def configuration(self) -> dict[str, Any]:
        return configuration_of(self.kind, self.provenance, self.run)

    def write(self, folder: Path) -> None:
        arrays = flatten({length: tally.state() for length, tally in self.tallies.items()}, "/")
        tensors = {name: torch.from_numpy(_shortened(name, x)) for name, x in arrays.items()}
        facts = {
            "kind": self.kind,
            "provenance": asdict(self.provenance),
            "run": dict(self.run),
            "parts": self.parts,
            "layers": [asdict(layer) for layer in self.layers],
            "context_length": self.context_length,
            "warnings": self.warnings,
            "lengths": self.lengths,
        }
        write_checkpoint(folder / EVIDENCE, tensors, facts)

    @classmethod
    def read(cls, folder: Path, tally: type[Tally]) -> "Evidence":
        """What `write` wrote; `CheckpointError` where it is not there or not whole."""
        path = folder / EVIDENCE
        if not path.is_file():
            raise CheckpointError(
                f"{folder} has no {EVIDENCE}; make the result again with an output folder"
            )
        tensors, facts = read_checkpoint(path)
        check_same(folder, {"kind": facts.get("kind")}, {"kind": tally.kind})
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        try:
            provenance = _read_provenance(facts["provenance"])
            whole = provenance.arguments.get("at") == "output"
            layers = tuple(AttentionLayer(**layer) for layer in facts["layers"])
            tallies = {int(length): tally(layers) for length in facts["lengths"]}
            by_length = nest(arrays, "/")
            for length, one in tallies.items():
                one.merge(_filled(by_length[str(length)]))
                _check_sizes(layers, one, whole=whole)
            return cls(
                kind=facts["kind"],
                provenance=provenance,
                run=dict(facts["run"]),
                parts=tuple(Part(*part) for part in facts["parts"]),
                layers=layers,
                context_length=facts["context_length"],
                warnings=tuple(facts["warnings"]),
                tallies=tallies,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is not evidence that llmprobe wrote ({error!r}); make the result again"
            ) from None


def _read_provenance(facts: Mapping[str, Any]) -> Provenance:
    arguments = {_RENAMED.get(name, name): value for name, value in facts["arguments"].items()}
    return Provenance(**{**facts, "arguments": arguments})


def _check_sizes(layers: Sequence[AttentionLayer], tally: Tally, *, whole: bool) -> None:
    """Refuse sizes that the arrays do not have: a summary makes as many series as a layer says."""
    by_number = {layer.layer: layer for layer in layers}
    if len(by_number) < len(layers):
        raise ValueError("a layer is there twice")
    for (number, name), part in (tally.moments | tally.groups).items():
        layer = by_number[number]
        known = tally.shapes(layer, whole=whole)
        wanted = known.get(name, (1,) if whole else (1, layer.n_heads))
        shapes = {x.shape for x in (part.parts.values() if isinstance(part, Groups) else [part])}
        not_shown = name.startswith(("value", "null")) and shapes <= {None}
        if not not_shown and (shapes != {wanted} or any(type(n) is not int for n in wanted)):
            raise ValueError(f"{name} of layer {number} are {shapes}, not {wanted}")


def _shortened(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """Counts are nearly always the same for all features: then one of them says it."""
    if name.endswith(_COUNTS) and value.size and (value == value.flat[0]).all():
        return value[(slice(1),) * value.ndim]
    return value


def _filled(state: State) -> State:
    """Every count again for each feature that has a mean."""

    def fill(name: str, value: NDArray[Any]) -> NDArray[Any]:
        where, _, what = name.rpartition("/")
        counts = f"/{what}" in _COUNTS
        return np.broadcast_to(value, state[f"{where}/mean"].shape) if counts else value

    return {name: fill(name, value) for name, value in state.items()}


def configuration_of(kind: str, provenance: Provenance, run: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides the numbers; runs that agree in it may share a folder."""
    told = asdict(provenance)
    del told["created"]
    return {"kind": kind} | told | dict(run)
