"""A tally that keeps numbers of every prompt, for statistics of pairs, ratios and ranks.

    tally.put("nats", nats, prompts)     # (prompts, lengths, ...)
    tally.of("nats")                     # the same of all prompts, in the order of their numbers

Moments say nothing about how two numbers of one prompt go together. Where a few numbers of a prompt
are enough, all of them are kept, and the summary computes from them whatever it needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.intervals import Estimate
from llmprobe.base.moments import State
from llmprobe.base.nesting import flatten, nest, under
from llmprobe.base.transfers import fetch_arrays
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.probes.tallies import Tally


class PromptTally(Tally):
    """Numbers by name and prompt; an array of a prompt begins with the axis of lengths."""

    n_kept = 0

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers)
        self._values: dict[str, dict[int, NDArray[Any]]] = {}
        self._waiting: list[tuple[str, Tensor, Sequence[int]]] = []

    def put(self, name: str, x: NDArray[Any] | Tensor, prompts: Sequence[int]) -> None:
        """Take in an array or a tensor (prompts, lengths, ...) under a name.

        A tensor stays on its device until numbers are read: then all of them come at once.
        """
        if isinstance(x, Tensor):
            self._waiting.append((name, x, prompts))
        else:
            self._values.setdefault(name, {}).update(zip(prompts, x, strict=True))

    @property
    def values(self) -> dict[str, dict[int, NDArray[Any]]]:
        """Arrays by name and prompt."""
        waiting, self._waiting = self._waiting, []
        arrays = fetch_arrays([x for _, x, _ in waiting])
        for (name, _, prompts), array in zip(waiting, arrays, strict=True):
            self.put(name, array, prompts)
        return self._values

    def of(self, name: str) -> NDArray[Any]:
        """(prompts, lengths, ...) in the order of the prompts' numbers."""
        by_prompt = self.values[name]
        return np.stack([by_prompt[prompt] for prompt in sorted(by_prompt)])

    def state(self) -> State:
        kept = {
            name: {"prompts": np.array(sorted(by_prompt)), "values": self.of(name)}
            for name, by_prompt in self.values.items()
        }
        return {"asked": np.zeros(2, np.int64)} | flatten({"kept": kept}, "/")

    def merge(self, state: Mapping[str, Any], *, first: int = 0) -> None:
        for name, part in nest(under("kept", state, "/"), "/").items():
            prompts, x = (np.asarray(part[what]) for what in ("prompts", "values"))
            if x.dtype.kind != "f" or x.ndim < 2 or prompts.dtype.kind != "i":
                raise ValueError(f"{name} has {x.dtype} of shape {x.shape}")
            self.put(name, x, [first + int(prompt) for prompt in prompts])


def joined(tallies: Sequence[PromptTally], name: str) -> NDArray[Any]:
    """What tallies of one length each have under a name: (prompts, lengths, ...)."""
    return np.concatenate([tally.of(name) for tally in tallies], axis=1)


def columns_of(name: str, estimates: Sequence[Estimate]) -> dict[str, NDArray[np.float64]]:
    """NAME, NAME_low and NAME_high, of an estimate for each length."""
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {
        f"{name}{end}": np.array([getattr(x, what) for x in estimates])
        for end, what in ends.items()
    }
