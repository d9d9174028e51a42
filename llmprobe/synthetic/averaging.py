"""Averages of the weights along a training, which leave the training itself untouched.

    ema    EMA_t = decay EMA_{t-1} + (1 - decay) θ_t
    bema   EMA_t = (1 - β_t) EMA_{t-1} + β_t θ_t, evaluated as α_t (θ_t - θ_0) + EMA_t
           with α_t = (ρ + γ t)^-η and β_t = (ρ + γ t)^-κ: bias-corrected, arXiv 2508.00180

θ_0 are the initial weights, t counts the steps. Weights may have any axes before their own, such as
one for seeds. The paper updates BEMA every 400 steps; trainings here are short, so here it
is every step.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from llmprobe.base.nesting import flatten, under

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Averaging(ABC):
    """How an average is updated; the weights it keeps are `Average`'s."""

    @abstractmethod
    def rate(self, t: int) -> float | tuple[float, ...]:
        """The share of the present weights in the update after t steps.

        One for all, or one for each place on the weights' first axis.
        """

    def correction(self, t: int) -> float:
        """The share of the whole way since the start that is added on evaluation."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Ema(Averaging):
    """The exponential moving average."""

    decay: float | tuple[float, ...] = 0.999
    """One for all, or one for each place on the weights' first axis."""

    def __post_init__(self) -> None:
        for decay in self.decay if isinstance(self.decay, tuple) else (self.decay,):
            if not 0 <= decay < 1:
                raise ValueError(f"ema decay: got {decay}, accepted: 0 or more and less than 1")

    def rate(self, t: int) -> float | tuple[float, ...]:
        if isinstance(self.decay, tuple):
            return tuple(1 - decay for decay in self.decay)
        return 1 - self.decay


@dataclass(frozen=True, kw_only=True)
class Bema(Averaging):
    """The bias-corrected one; the letters are those of arXiv 2508.00180."""

    kappa: float = 0.5
    eta: float = 0.2
    gamma: float = 1.0
    rho: float = 10.0

    def __post_init__(self) -> None:
        if self.rho < 1 or min(self.kappa, self.eta, self.gamma) < 0:
            raise ValueError(
                f"bema: got {self}, accepted: a lag rho of 1 or more, the others 0 or more"
            )

    def rate(self, t: int) -> float:
        return float((self.rho + self.gamma * t) ** -self.kappa)

    def correction(self, t: int) -> float:
        return float((self.rho + self.gamma * t) ** -self.eta)


class Average:
    """The running average of one training."""

    def __init__(self, averaging: Averaging) -> None:
        self.averaging = averaging
        self._rates: dict[torch.device, Tensor] = {}
        self.start: dict[str, Tensor] = {}
        self.mean: dict[str, Tensor] = {}

    def update(self, step: int, weights: Weights) -> None:
        """Take in the weights after `step` steps; 0 is before the first."""
        if step == 0:
            self.start = {name: w.detach().clone() for name, w in weights.items()}
            self.mean = {name: w.clone() for name, w in self.start.items()}
            return
        rate = self.averaging.rate(step)
        with torch.no_grad():
            for name, mean in self.mean.items():
                mean.lerp_(weights[name], self._as_axes_of(rate, mean))

    def _as_axes_of(self, rate: float | tuple[float, ...], mean: Tensor) -> float | Tensor:
        """Rates with the axes of a weight behind their own."""
        if isinstance(rate, float):
            return rate
        # Moved to the device once: a copy for every weight and step would hold it up.
        if mean.device not in self._rates:
            self._rates[mean.device] = torch.tensor(rate, dtype=mean.dtype, device=mean.device)
        return self._rates[mean.device].view(-1, *[1] * (mean.ndim - 1))

    def weights(self, step: int, weights: Weights) -> dict[str, Tensor]:
        """The average after `step` steps, where `weights` are the raw ones."""
        share = self.averaging.correction(step)
        return {
            name: self.mean[name] + share * (w.detach() - self.start[name])
            for name, w in weights.items()
        }

    def state(self) -> dict[str, Tensor]:
        """Everything it has kept, as flat names."""
        return flatten({"start": self.start, "mean": self.mean}, ".")

    def load(self, state: Weights) -> None:
        """Resume from what `state()` gave."""
        for part, into in (("start", self.start), ("mean", self.mean)):
            into.update((name, w.clone()) for name, w in under(part, state, ".").items())
