"""Accumulators: statistics over prompts that are exact, mergeable and small.

1. Make one: `moments = Moments()`.
2. Feed it batches, prompts first: `moments.update(x)` for x of shape (prompts, *features), any
   float tensor or array, on any device, any number of prompts at a time.
3. Join the parts of several processes or runs: `a.merge(b)`.
4. Read it: `moments.summary()` is frozen numpy.

The first axis is always the **prompt**, the unit of observation. All arithmetic is float64
whatever the data's type, on the data's own device and without waiting for it. NaN and infinity
never enter a statistic: they are left out of their feature and counted in `nonfinite`.
`state()` is a dictionary of plain arrays and `from_state` its inverse.

    Moments    mean and unbiased variance
    Histogram  counts over bins that widen by themselves, the same whatever the order of the data
    TopK       the k largest values and the prompts they came from
    Groups     one accumulator for each group of prompts, for jackknife intervals
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

State = dict[str, NDArray[Any]]
A = TypeVar("A", bound="Accumulator")
T = TypeVar("T", bound=np.generic)


class Accumulator(ABC):
    """What all accumulators share: checking the input, counting, merging, plain-array state."""

    _parts: tuple[str, ...]
    """The tensors that make up the state; all start with the features' shape but for TopK's."""

    def __init__(self) -> None:
        self.n_prompts = 0
        self.shape: tuple[int, ...] | None = None
        self.nonfinite = torch.empty(0)

    def update(self, x: Tensor | NDArray[Any], prompts: Sequence[int] | None = None) -> Self:
        """Take in a batch of shape (prompts, *features).

        `prompts` are the prompts' numbers, counted from the first one seen where not given; only
        `TopK` keeps them.
        """
        values = _observations(x)
        if prompts is not None and len(prompts) != len(values):
            raise ValueError(f"update: got {len(prompts)} prompt numbers for {len(values)} prompts")
        self._open(tuple(values.shape[1:]), values.device)
        values = values.to(self.nonfinite.device)
        if not len(values):
            return self
        numbers = (
            range(self.n_prompts, self.n_prompts + len(values)) if prompts is None else prompts
        )
        finite = _finite(values)
        self._absorb(values, finite, numbers)
        if finite is not None:
            self.nonfinite = self.nonfinite + (~finite).sum(0)
        self.n_prompts += len(values)
        return self

    def merge(self, other: Self) -> Self:
        """Take in all that another accumulator of the same kind and shape has seen."""
        if type(other) is not type(self) or other._settings() != self._settings():
            raise ValueError(f"merge: cannot join {other!r} to {self!r}; they must be alike")
        if other.shape is None:
            return self
        self._open(other.shape, other.nonfinite.device)
        device = self.nonfinite.device
        self._combine({name: getattr(other, name).to(device) for name in self._parts})
        self.nonfinite = self.nonfinite + other.nonfinite.to(device)
        self.n_prompts += other.n_prompts
        return self

    def state(self) -> State:
        """Everything as plain arrays."""
        state: State = {"n_prompts": np.array(self.n_prompts)}
        state |= {name: np.array(value) for name, value in self._settings().items()}
        if self.shape is not None:
            for name in (*self._parts, "nonfinite"):
                state[name] = getattr(self, name).cpu().numpy().copy()
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]]) -> Self:
        """The accumulator that `state()` came from."""
        settings = {name: int(state[name]) for name in cls()._settings()}
        new = cls(**settings)
        if "nonfinite" in state:
            new._open(np.shape(state["nonfinite"]), torch.device("cpu"))
            for name in (*cls._parts, "nonfinite"):
                fresh, value = getattr(new, name), torch.from_numpy(np.array(state[name]))
                if value.shape != fresh.shape or value.dtype != fresh.dtype:
                    raise ValueError(
                        f"from_state: {name} is {value.dtype} of shape {tuple(value.shape)}, needs "
                        f"{fresh.dtype} of shape {tuple(fresh.shape)}"
                    )
                setattr(new, name, value)
        new.n_prompts = int(state["n_prompts"])
        return new

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._settings().items())
        return f"{type(self).__name__}({settings}) of {self.n_prompts} prompts, shape {self.shape}"

    def _open(self, shape: tuple[int, ...], device: torch.device) -> None:
        if self.shape is None:
            self.shape = shape
            self.nonfinite = torch.zeros(shape, dtype=torch.int64, device=device)
            self._start(shape, device)
        elif self.shape != shape:
            raise ValueError(
                f"{type(self).__name__}: got features of shape {shape} after {self.shape}; "
                "one accumulator takes one shape, with prompts on the first axis"
            )

    def _settings(self) -> dict[str, int]:
        return {}

    @abstractmethod
    def _start(self, shape: tuple[int, ...], device: torch.device) -> None: ...

    @abstractmethod
    def _absorb(self, values: Tensor, finite: Tensor | None, prompts: Sequence[int]) -> None: ...

    @abstractmethod
    def _combine(self, other: dict[str, Tensor]) -> None: ...

    @abstractmethod
    def summary(self) -> object: ...


@dataclass(frozen=True)
class MomentsSummary:
    """Read-only arrays of the features' shape."""

    count: NDArray[np.int64]
    """Finite observations."""
    mean: NDArray[np.float64]
    """NaN where nothing was observed."""
    variance: NDArray[np.float64]
    """Unbiased (n − 1); NaN for fewer than two observations."""
    nonfinite: NDArray[np.int64]
    """NaNs and infinities, left out of the above."""

    @property
    def std(self) -> NDArray[np.float64]:
        return np.sqrt(self.variance)


class Moments(Accumulator):
    """Mean and variance over prompts, by the update of Chan, Golub and LeVeque (1979).

    Each batch is reduced in two passes and joined by its mean and its sum of squared deviations,
    so neither small batches nor a large offset costs precision.
    """

    _parts = ("count", "mean", "m2")

    def _start(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros(shape, dtype=torch.int64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.m2 = torch.zeros(shape, dtype=torch.float64, device=device)

    def _absorb(self, values: Tensor, finite: Tensor | None, prompts: Sequence[int]) -> None:
        if finite is None:
            count = torch.full_like(self.count, len(values))
            mean = values.mean(0)
            m2 = (values - mean).square_().sum(0)
        else:
            count = finite.sum(0)
            mean = values.where(finite, 0).sum(0) / count.clamp(min=1)
            m2 = (values - mean).where(finite, 0).square_().sum(0)
        self._combine({"count": count, "mean": mean, "m2": m2})

    def _combine(self, other: dict[str, Tensor]) -> None:
        total = self.count + other["count"]
        share = other["count"].double() / total.clamp(min=1)
        delta = other["mean"] - self.mean
        self.mean = self.mean + delta * share
        self.m2 = self.m2 + other["m2"] + delta.square() * self.count * share
        self.count = total

    def summary(self) -> MomentsSummary:
        if self.shape is None:
            raise ValueError("summary: this Moments has seen no prompt; call update first")
        count, mean, m2, nonfinite = _to_numpy(self.count, self.mean, self.m2, self.nonfinite)
        return MomentsSummary(
            count=count,
            mean=_freeze(np.where(count > 0, mean, np.nan)),
            variance=_freeze(np.where(count > 1, m2 / np.maximum(count - 1, 1), np.nan)),
            nonfinite=nonfinite,
        )


@dataclass(frozen=True)
class HistogramSummary:
    """Read-only arrays; the features' shape comes first."""

    edges: NDArray[np.float64]
    """(*features, bins + 1)"""
    counts: NDArray[np.int64]
    """(*features, bins); bin i holds edges[i] <= x < edges[i + 1]."""
    nonfinite: NDArray[np.int64]


class Histogram(Accumulator):
    """Counts over `bins` equal bins around zero, for each feature on its own.

    A bin is a power of two wide, the smallest that holds every value seen; when a larger value
    comes, neighbouring bins are joined. The widest value alone decides, so the same data give the
    same histogram in any order, any batches, any merges.
    """

    _parts = ("exponent", "counts")
    _FINEST = -500  # bins of width 2^-500, for features that have only been zero

    def __init__(self, bins: int = 2048) -> None:
        if bins < 4 or bins & (bins - 1):
            raise ValueError(f"Histogram: got {bins} bins, accepted: a power of two from 4")
        super().__init__()
        self.bins = bins

    def _settings(self) -> dict[str, int]:
        return {"bins": self.bins}

    def _start(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.exponent = torch.full(shape, self._FINEST, dtype=torch.int64, device=device)
        self.counts = torch.zeros((*shape, self.bins), dtype=torch.int64, device=device)

    def _absorb(self, values: Tensor, finite: Tensor | None, prompts: Sequence[int]) -> None:
        if finite is not None:
            values = values.where(finite, 0)
        # |x| < 2^e by definition of frexp, so 2^(e - log2(bins/2)) is the narrowest bin that fits.
        top = torch.frexp(values.abs().amax(0)).exponent.to(torch.int64)
        needed = (top - (self.bins.bit_length() - 2)).clamp(min=self._FINEST)
        self._widen(torch.where(values.any(0), needed, self._FINEST))
        index = (values * 2.0 ** (-self.exponent).double()).floor().to(torch.int64) + self.bins // 2
        ones = torch.ones_like(index) if finite is None else finite.to(torch.int64)
        self.counts.scatter_add_(-1, index.movedim(0, -1), ones.movedim(0, -1))

    def _combine(self, other: dict[str, Tensor]) -> None:
        self._widen(other["exponent"])
        self.counts = self.counts + self._coarsen(
            other["counts"], self.exponent - other["exponent"]
        )

    def _widen(self, exponent: Tensor) -> None:
        wider = torch.maximum(self.exponent, exponent)
        self.counts = self._coarsen(self.counts, wider - self.exponent)
        self.exponent = wider

    def _coarsen(self, counts: Tensor, doublings: Tensor) -> Tensor:
        half = self.bins // 2
        old = torch.arange(-half, half, device=counts.device).expand(counts.shape)
        new = (old >> doublings.clamp(max=62)[..., None]) + half
        return torch.zeros_like(counts).scatter_add_(-1, new, counts)

    def summary(self) -> HistogramSummary:
        if self.shape is None:
            raise ValueError("summary: this Histogram has seen no prompt; call update first")
        exponent, counts, nonfinite = _to_numpy(self.exponent, self.counts, self.nonfinite)
        steps = np.arange(-(self.bins // 2), self.bins // 2 + 1)
        edges = np.ldexp(steps.astype(np.float64), exponent[..., None].astype(np.int32))
        return HistogramSummary(edges=_freeze(edges), counts=counts, nonfinite=nonfinite)


@dataclass(frozen=True)
class TopKSummary:
    """Read-only arrays of shape (rank, *features), largest first."""

    values: NDArray[np.float64]
    """−infinity where fewer than k values were seen."""
    prompts: NDArray[np.int64]
    """The prompt a value came from; −1 where there is none."""
    nonfinite: NDArray[np.int64]


class TopK(Accumulator):
    """The k largest values of each feature, with their prompts; of equals, the lower prompt."""

    _parts = ("values", "prompts")

    def __init__(self, k: int = 16) -> None:
        if k < 1:
            raise ValueError(f"TopK: got k = {k}, accepted: 1 or more")
        super().__init__()
        self.k = k

    def _settings(self) -> dict[str, int]:
        return {"k": self.k}

    def _start(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.values = torch.full((self.k, *shape), -torch.inf, dtype=torch.float64, device=device)
        self.prompts = torch.full((self.k, *shape), -1, dtype=torch.int64, device=device)

    def _absorb(self, values: Tensor, finite: Tensor | None, prompts: Sequence[int]) -> None:
        column = torch.as_tensor(prompts, device=values.device)
        numbers = column.view(-1, *[1] * (values.ndim - 1)).expand(values.shape)
        if finite is not None:
            values, numbers = values.where(finite, -torch.inf), numbers.where(finite, -1)
        self._combine({"values": values, "prompts": numbers})

    def _combine(self, other: dict[str, Tensor]) -> None:
        values = torch.cat([self.values, other["values"]])
        prompts = torch.cat([self.prompts, other["prompts"]])
        # Two stable sorts order by value and then by prompt.
        prompts, order = prompts.sort(dim=0, stable=True)
        values = values.gather(0, order)
        values, order = values.sort(dim=0, stable=True, descending=True)
        self.values, self.prompts = values[: self.k], prompts.gather(0, order)[: self.k]

    def summary(self) -> TopKSummary:
        if self.shape is None:
            raise ValueError("summary: this TopK has seen no prompt; call update first")
        values, prompts, nonfinite = _to_numpy(self.values, self.prompts, self.nonfinite)
        return TopKSummary(values=values, prompts=prompts, nonfinite=nonfinite)


class Groups(Generic[A]):
    """An accumulator for each group of prompts: `Groups(Moments)`.

    Leaving out one group at a time is what a jackknife needs; `total()` is all of them together.
    """

    def __init__(self, make: Callable[[], A]) -> None:
        self.make = make
        self.parts: dict[int, A] = {}

    def update(
        self,
        x: Tensor | NDArray[Any],
        groups: Sequence[int],
        prompts: Sequence[int] | None = None,
    ) -> Self:
        """Take in a batch of shape (prompts, *features); `groups` has each prompt's group.

        `prompts` are the prompts' numbers, counted over all groups where not given.
        """
        if len(groups) != len(x):
            raise ValueError(f"Groups: got {len(groups)} group numbers for {len(x)} prompts")
        seen = sum(part.n_prompts for part in self.parts.values())
        numbers = range(seen, seen + len(x)) if prompts is None else prompts
        rows: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            rows.setdefault(int(group), []).append(row)
        for group, of_group in rows.items():
            part = self.parts.setdefault(group, self.make())
            # A slice needs no index on the device, and batches mostly come in the groups' order.
            first, last = of_group[0], of_group[-1]
            joined = last - first == len(of_group) - 1
            rows_of_group = slice(first, last + 1) if joined else of_group
            part.update(x[rows_of_group], [numbers[row] for row in of_group])
        return self

    def merge(self, other: Self) -> Self:
        for group, part in other.parts.items():
            self.parts.setdefault(group, self.make()).merge(part)
        return self

    def total(self) -> A:
        return self._join(self.parts)

    def without(self, group: int) -> A:
        """All prompts but those of one group."""
        if group not in self.parts:
            raise ValueError(f"without: got group {group}, accepted: {sorted(self.parts)}")
        return self._join(set(self.parts) - {group})

    def sizes(self) -> dict[int, int]:
        """Prompts in each group, in the groups' order."""
        return {group: self.parts[group].n_prompts for group in sorted(self.parts)}

    def state(self) -> State:
        return {
            f"{group}/{name}": value
            for group in sorted(self.parts)
            for name, value in self.parts[group].state().items()
        }

    @classmethod
    def from_state(cls, make: Callable[[], A], state: Mapping[str, NDArray[Any]]) -> Self:
        new = cls(make)
        kind = type(make())
        for group in sorted({int(name.split("/")[0]) for name in state}):
            prefix = f"{group}/"
            part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            new.parts[group] = kind.from_state(part)
        return new

    def _join(self, groups: Any) -> A:
        total = self.make()
        # In a fixed order, so that the same groups give the same bits wherever they came from.
        for group in sorted(groups):
            total.merge(self.parts[group])
        return total


def _observations(x: Tensor | NDArray[Any]) -> Tensor:
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(f"update: got {array.dtype} data, accepted: floating point")
        x = torch.from_numpy(array.astype(np.float64))
    if not x.is_floating_point():
        raise ValueError(f"update: got {x.dtype} data, accepted: floating point")
    if x.ndim == 0:
        raise ValueError("update: got a single number, needs shape (prompts, *features)")
    x = x.detach()
    if x.device.type == "mps":  # has no float64
        x = x.cpu()
    return x.to(torch.float64)


def _finite(values: Tensor) -> Tensor | None:
    """Where the values are finite; None if all are.

    A sum is finite only if its terms are, so on the CPU one look at the sums spares three passes
    over the data. Elsewhere that look would wait for the device: there the mask is always used.
    """
    if values.device.type == "cpu" and bool(values.sum(0).isfinite().all()):
        return None
    return values.isfinite()


def _freeze(array: NDArray[T]) -> NDArray[T]:
    array.setflags(write=False)
    return array


def _to_numpy(*tensors: Tensor) -> list[NDArray[Any]]:
    return [_freeze(tensor.cpu().numpy().copy()) for tensor in tensors]
