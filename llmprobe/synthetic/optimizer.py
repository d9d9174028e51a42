"""AdamW over stacked seeds, which may have different learning rates."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from llmprobe.base.nesting import flatten, under

_KEPT = ("exp_avg", "exp_avg_sq")


class SeedAdamW:
    """torch's AdamW on parameters (seeds, ...) by name.

    One rate for all seeds is one group of parameters. Otherwise a group is one seed's slices of
    them, which share their memory with the whole, so that nothing is copied.
    """

    def __init__(
        self, weights: Mapping[str, nn.Parameter], rates: Sequence[float], weight_decay: float
    ) -> None:
        self.weights = weights
        self.rates = rates[:1] if len(set(rates)) == 1 else rates
        self._groups = [dict(weights)]
        if len(self.rates) > 1:
            for weight in weights.values():
                weight.grad = torch.zeros_like(weight)
            self._groups = [
                {name: _slice(weight, seed) for name, weight in weights.items()}
                for seed in range(len(rates))
            ]
        groups = [{"params": list(group.values())} for group in self._groups]
        self._adamw = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)

    def zero_grad(self) -> None:
        # Slices of gradients need gradients that stay where they are.
        for weight in self.weights.values():
            if len(self.rates) == 1 or weight.grad is None:
                weight.grad = None
            else:
                weight.grad.zero_()

    def step(self, share: float) -> None:
        """One step, at this share of each rate."""
        for group, rate in zip(self._adamw.param_groups, self.rates, strict=True):
            group["lr"] = share * rate
        self._adamw.step()

    def state(self) -> dict[str, Tensor]:
        """Its moments, as flat names."""
        return flatten({key: self._moments(key) for key in _KEPT}, ".")

    def _moments(self, key: str) -> dict[str, Tensor]:
        """One kind of moments by the weight's name, (seeds, ...)."""
        state = self._adamw.state
        if len(self.rates) == 1:
            return {name: state[weight][key] for name, weight in self.weights.items()}
        return {
            name: torch.stack([state[group[name]][key] for group in self._groups])
            for name in self.weights
        }

    def load(self, state: Mapping[str, Tensor], step: int) -> None:
        """Resume from what `state()` gave after `step` steps."""
        moments = {key: under(key, state, ".") for key in _KEPT}
        for index, group in enumerate(self._groups):
            for name, weight in group.items():
                whole = {key: moments[key][name] for key in _KEPT}
                if len(self.rates) > 1:
                    whole = {key: value[index] for key, value in whole.items()}
                own = {key: value.to(weight.device, copy=True) for key, value in whole.items()}
                # A fused optimizer keeps a counter for each weight, where the weight is.
                count = torch.tensor(float(step), device=weight.device)
                self._adamw.state[weight] = {"step": count, **own}


def clip_by_seed(gradients: Sequence[Tensor | None], largest: float) -> None:
    """Scale each seed's gradient, in place, so that its norm over all parameters is no larger."""
    given = [g for g in gradients if g is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in given])
    scale = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
    for g in given:
        g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))


def _slice(weight: nn.Parameter, seed: int) -> nn.Parameter:
    part = nn.Parameter(weight.data[seed])
    assert weight.grad is not None
    part.grad = weight.grad[seed]
    return part
