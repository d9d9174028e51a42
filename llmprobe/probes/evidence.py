"""The evidence of a probe: all that it has seen, by length, kept beside its result.

A result has what is shown; its evidence has the statistics that this was computed from. So prompts
can be added to a result, and results of other seeds or lengths be joined, as exactly as if one run
had seen everything. No model is needed for that: what a summary must know of it is kept as well.

    evidence = Evidence.read(folder)
    evidence.n_prompts, evidence.tallies[1024]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.base.moments import Groups, State
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.errors import CheckpointError
from llmprobe.probes.tallies import AttentionTally, Tally, VarianceTally
from llmprobe.results.base import Provenance
from llmprobe.runs.checkpoints import read_checkpoint, write_checkpoint
from llmprobe.runs.folder import EVIDENCE

TALLIES: dict[str, Callable[[Sequence[AttentionLayer]], Tally]] = {
    "variance": VarianceTally,
    "attention": AttentionTally,
}
"""By the kind of the result."""
_COUNTS = ("/count", "/nonfinite")
"""Arrays of the features' shape that stand beside each mean."""


class Part(NamedTuple):
    """Prompts that were drawn with one seed."""

    seed: int
    samples: int
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
    tallies: Mapping[int, Tally]
    """By length, in their order."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.tallies)

    @property
    def n_prompts(self) -> int:
        return sum(part.samples for part in self.parts)

    @property
    def configuration(self) -> dict[str, Any]:
        return configuration_of(self.kind, self.provenance, self.run)

    def write(self, folder: Path) -> None:
        tensors = {
            f"{length}/{name}": torch.from_numpy(_shortened(name, value))
            for length, tally in self.tallies.items()
            for name, value in tally.state().items()
        }
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
    def read(cls, folder: Path) -> "Evidence":
        """What `write` wrote; `CheckpointError` where it is not there or not whole."""
        path = folder / EVIDENCE
        if not path.is_file():
            raise CheckpointError(
                f"{folder} has no {EVIDENCE}; make it again with an output folder"
            )
        tensors, facts = read_checkpoint(path)
        try:
            provenance = Provenance(**facts["provenance"])
            whole = provenance.arguments.get("at") == "output"
            layers = tuple(AttentionLayer(**layer) for layer in facts["layers"])
            tallies: dict[int, Tally] = {}
            for length in facts["lengths"]:
                prefix = f"{length}/"
                tallies[int(length)] = TALLIES[facts["kind"]](layers)
                of_length = {
                    name.removeprefix(prefix): tensor.numpy()
                    for name, tensor in tensors.items()
                    if name.startswith(prefix)
                }
                tallies[int(length)].merge(_filled(of_length))
                _check_sizes(layers, tallies[int(length)], whole=whole)
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
                f"{path} is no evidence of llmprobe ({error!r}); make the result again"
            ) from None


def _check_sizes(layers: Sequence[AttentionLayer], tally: Tally, *, whole: bool) -> None:
    """Refuse sizes that the arrays do not have: a summary makes as many series as a layer says.

    `whole`: outputs are of the layers and not of their heads.
    """
    by_number = {layer.layer: layer for layer in layers}
    if len(by_number) < len(layers):
        raise ValueError("a layer is there twice")
    for (number, name), part in (tally.moments | tally.groups).items():
        layer = by_number[number]
        series = (1,) if whole else (1, layer.n_heads)
        output = (*series, layer.hidden_size if whole else layer.head_size)
        values = (1, layer.n_kv_heads, layer.head_size)
        known = {"outputs": output, "heads": output, "vectors": (*series, 2)}
        known |= {"value": values, "value_square": values}
        wanted = known.get(name, series)
        shapes = {x.shape for x in (part.parts.values() if isinstance(part, Groups) else [part])}
        not_shown = wanted is values and shapes == {None}
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
