"""What a probe keeps of the prompts it has seen, as plain arrays that can be stored and joined.

    tally = VarianceTally(layers)
    tally.update(layer, outputs, prompts)
    whole.merge(tally.state())

The statistics of a unit of work are the same whoever computes them; units are joined in their
order, so a result does not depend on how many processes there were or how often they were stopped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmprobe.base.moments import Groups, Moments, State
from llmprobe.capture.discovery import AttentionLayer

N_GROUPS = 16
"""Of prompts, for the jackknife. Prompt i is in group i mod 16, however many prompts there are."""
N_FEATURES = 5
KEPT_PROMPTS = 256
"""Of the values for Figure 2: enough for a picture, small enough to keep."""
N_EXAMPLES = 32
OF_ROWS = ("entropy", "effective", "first", "mass")


class Tally:
    """Statistics by layer and name, and values of single prompts."""

    def __init__(self, layers: Sequence[AttentionLayer], *, n_kept: int) -> None:
        self.numbers = [layer.layer for layer in layers]
        self.moments: dict[tuple[int, str], Moments] = {}
        self.groups: dict[tuple[int, str], Groups[Moments]] = {}
        self.kept: dict[int, dict[int, Tensor]] = {number: {} for number in self.numbers}
        self.n_kept = n_kept
        self.n_asked = self.n_right = 0
        """Prompts that have a right answer, and how many of them the model gave it for."""

    def keep(self, layer: int, values: Tensor, prompts: Sequence[int]) -> None:
        """Values (prompts, ...) of those among the first prompts."""
        for row, prompt in enumerate(prompts):
            if prompt < self.n_kept:
                self.kept[layer][prompt] = values[row].to(torch.float32, copy=True)

    def kept_of(self, layer: int) -> Tensor:
        """(prompts, ...), in the order of their numbers."""
        by_prompt = self.kept[layer]
        return torch.stack([by_prompt[prompt] for prompt in sorted(by_prompt)]).cpu()

    def state(self) -> State:
        """Everything as plain arrays; names end in the layer, so that it is read from the right."""
        state: State = {"asked": np.array([self.n_asked, self.n_right])}
        for (layer, name), part in (self.moments | self.groups).items():
            state |= {f"{name}/{layer}/{key}": value for key, value in part.state().items()}
        for layer, by_prompt in self.kept.items():
            if by_prompt:
                state[f"kept/{layer}/prompts"] = np.array(sorted(by_prompt))
                state[f"kept/{layer}/values"] = self.kept_of(layer).numpy()
        return state

    def merge(self, state: Mapping[str, Any], *, first: int = 0) -> None:
        """Take in what `state()` of another one gave; its prompt 0 is this one's `first`."""
        asked, right = (int(n) for n in state["asked"])
        self.n_asked, self.n_right = self.n_asked + asked, self.n_right + right
        for (layer, name), moments in self.moments.items():
            moments.merge(Moments.from_state(_under(f"{name}/{layer}/", state)))
        for (layer, name), groups in self.groups.items():
            groups.merge(Groups.from_state(Moments, _under(f"{name}/{layer}/", state)))
        for layer in self.numbers:
            given = _under(f"kept/{layer}/", state)
            for prompt, value in zip(
                given.get("prompts", ()), given.get("values", ()), strict=True
            ):
                if first + int(prompt) < self.n_kept:
                    self.kept[layer][first + int(prompt)] = torch.from_numpy(np.array(value))


class VarianceTally(Tally):
    """Outputs by feature in groups of prompts, and over the features of each output."""

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers, n_kept=KEPT_PROMPTS)
        self.groups = {(n, "outputs"): Groups(Moments) for n in self.numbers}
        self.moments = {(n, "vectors"): Moments() for n in self.numbers}

    def update(self, layer: int, x: Tensor, prompts: Sequence[int]) -> None:
        """Take in outputs (prompts, lengths, *heads, features)."""
        self.groups[layer, "outputs"].update(x, [prompt % N_GROUPS for prompt in prompts])
        x64 = (x.cpu() if x.device.type == "mps" else x).double()
        variance, mean = torch.var_mean(x64, dim=-1, correction=0)
        self.moments[layer, "vectors"].update(torch.stack([mean, variance], dim=-1))
        self.keep(layer, x[..., :N_FEATURES], prompts)


class AttentionTally(Tally):
    """Statistics of rows, of the heads' outputs and of the values they are made of."""

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers, n_kept=N_EXAMPLES)
        names = (*OF_ROWS, "squares", "heads", "value", "value_square")
        self.moments = {(n, name): Moments() for n in self.numbers for name in names}

    def update(
        self,
        layer: int,
        rows: Any,
        heads: Tensor,
        values: tuple[Tensor, Tensor] | None,
        prompts: Sequence[int],
    ) -> None:
        """Take in `Rows`, heads (prompts, lengths, heads, size) and means of values and squares."""
        for name in OF_ROWS:
            self.moments[layer, name].update(getattr(rows, name))
        self.moments[layer, "squares"].update(1 / rows.effective)
        self.moments[layer, "heads"].update(heads)
        for name, x in zip(("value", "value_square"), values or (), strict=False):
            self.moments[layer, name].update(x)
        self.keep(layer, rows.top, prompts)


def at_length(state: State, index: int) -> State:
    """Of the state of a pass that served several lengths, what belongs to one of them."""
    found = {}
    for name, value in state.items():
        *_, what = name.split("/")
        if what in ("asked", "n_prompts", "prompts"):
            found[name] = value
        else:
            found[name] = value[:, [index]] if name.startswith("kept/") else value[[index]]
    return found


def _under(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
