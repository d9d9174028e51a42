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
    Means      mean alone, half as large
    Groups     one accumulator for each group of prompts, for jackknife intervals

A new statistic is a subclass of `Accumulator`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.nesting import nest
from llmprobe.base.transfers import as_float64, fetch_arrays, upload

State = dict[str, NDArray[Any]]
A = TypeVar("A", bound="Accumulator")
T = TypeVar("T", bound=np.generic)


class Accumulator(ABC):
    """What all accumulators share: checking the input, counting, merging, plain-array state."""

    _parts: tuple[str, ...]
    """Names of the tensors that make up the state; their shapes start with the features'."""

    def __init__(self) -> None:
        self.n_prompts = 0
        self.shape: tuple[int, ...] | None = None
        self.nonfinite = torch.empty(0)

    def update(self, x: Tensor | NDArray[Any]) -> Self:
        """Take in a batch of shape (prompts, *features)."""
        values = _observations(x)
        self._open(tuple(values.shape[1:]), values.device)
        values = values.to(self.nonfinite.device)
        if not len(values):
            return self
        finite = _finite(values)
        self._absorb(values, finite)
        if finite is not None:
            self.nonfinite = self.nonfinite + (~finite).sum(0)
        self.n_prompts += len(values)
        return self

    def merge(self, other: Self) -> Self:
        """Take in all that another accumulator of the same kind and shape has seen."""
        if type(other) is not type(self):
            raise ValueError(f"merge: cannot join {other!r} to {self!r}; they must be alike")
        if other.shape is None:
            return self
        if self.shape is None:  # nothing is added to a tensor in place, so both may have it
            self.shape = other.shape
            for name in (*self._parts, "nonfinite"):
                setattr(self, name, getattr(other, name))
            self.n_prompts = other.n_prompts
            return self
        self._open(other.shape, other.nonfinite.device)
        device = self.nonfinite.device
        self._combine({name: getattr(other, name).to(device) for name in self._parts})
        self.nonfinite = self.nonfinite + other.nonfinite.to(device)
        self.n_prompts += other.n_prompts
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, where it is: what `state` brings to the host."""
        found = {"n_prompts": torch.tensor(self.n_prompts)}
        if self.shape is not None:
            found |= {name: getattr(self, name) for name in (*self._parts, "nonfinite")}
        return found

    def state(self) -> State:
        """Everything as plain arrays."""
        return _arrays(self.tensors())

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]]) -> Self:
        """The accumulator that `state()` came from."""
        new = cls()
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
        return f"{type(self).__name__}() of {self.n_prompts} prompts, shape {self.shape}"

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

    @abstractmethod
    def _start(self, shape: tuple[int, ...], device: torch.device) -> None: ...

    @abstractmethod
    def _absorb(self, values: Tensor, finite: Tensor | None) -> None: ...

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

    def _absorb(self, values: Tensor, finite: Tensor | None) -> None:
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
class MeansSummary:
    """Read-only arrays of the features' shape."""

    count: NDArray[np.int64]
    """Finite observations."""
    mean: NDArray[np.float64]
    """NaN where nothing was observed."""
    nonfinite: NDArray[np.int64]
    """NaNs and infinities, left out of the above."""


class Means(Accumulator):
    """Mean over prompts."""

    _parts = ("count", "mean")

    def _start(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros(shape, dtype=torch.int64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)

    def _absorb(self, values: Tensor, finite: Tensor | None) -> None:
        if finite is None:
            count, mean = torch.full_like(self.count, len(values)), values.mean(0)
        else:
            count = finite.sum(0)
            mean = values.where(finite, 0).sum(0) / count.clamp(min=1)
        self._combine({"count": count, "mean": mean})

    def _combine(self, other: dict[str, Tensor]) -> None:
        total = self.count + other["count"]
        share = other["count"].double() / total.clamp(min=1)
        self.mean = self.mean + (other["mean"] - self.mean) * share
        self.count = total

    def summary(self) -> MeansSummary:
        if self.shape is None:
            raise ValueError("summary: this Means has seen no prompt; call update first")
        count, mean, nonfinite = _to_numpy(self.count, self.mean, self.nonfinite)
        mean = _freeze(np.where(count > 0, mean, np.nan))
        return MeansSummary(count=count, mean=mean, nonfinite=nonfinite)


class Groups(Generic[A]):
    """An accumulator for each group of prompts: `Groups(Moments)`.

    Leaving out one group at a time is what a jackknife needs; `total()` is all of them together.
    """

    def __init__(self, make: Callable[[], A]) -> None:
        self.make = make
        self.parts: dict[int, A] = {}

    def update(self, x: Tensor | NDArray[Any], groups: Sequence[int]) -> Self:
        """Take in a batch of shape (prompts, *features); `groups` has each prompt's group."""
        if len(groups) != len(x):
            raise ValueError(f"Groups: got {len(groups)} group numbers for {len(x)} prompts")
        rows: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            rows.setdefault(int(group), []).append(row)
        for group, of_group in rows.items():
            part = self.parts.setdefault(group, self.make())
            # A slice needs no index on the device, and batches mostly come in the groups' order.
            first, last = of_group[0], of_group[-1]
            joined = last - first == len(of_group) - 1
            part.update(x[first : last + 1] if joined else _rows(x, of_group))
        return self

    def merge(self, other: Self) -> Self:
        for group, part in other.parts.items():
            self.parts.setdefault(group, self.make()).merge(part)
        return self

    def total(self) -> A:
        return self._join(self.parts)

    def without(self, group: int) -> A:
        """All prompts but those of one group, which may have none."""
        return self._join(set(self.parts) - {group})

    def without_each(self, groups: Sequence[int]) -> list[A]:
        """`without` each of these groups, to the bit, in much fewer operations.

        All are joined at once: one more axis in front says which group is left out, and there that
        group is of no prompts.
        """
        every = self.make()
        for number in sorted(self.parts):
            part = self.parts[number]
            if part.shape is None:
                continue
            copies = self.make().merge(part)
            copies.shape = (len(groups), *part.shape)
            for name, value in part.tensors().items():
                if name != "n_prompts":
                    repeated = value.repeat(len(groups), *[1] * value.ndim)
                    for row, group in enumerate(groups):
                        if group == number:
                            repeated[row] = 0
                    setattr(copies, name, repeated)
            every.merge(copies)
        left = []
        for row, group in enumerate(groups):
            one = self.make()
            if every.shape is not None:
                one.shape = every.shape[1:]
                for name, value in every.tensors().items():
                    setattr(one, name, value if name == "n_prompts" else value[row])
            one.n_prompts = sum(n for number, n in self.sizes().items() if number != group)
            left.append(one)
        return left

    def only(self, groups: Iterable[int]) -> A:
        """The prompts of these groups."""
        return self._join(groups)

    def sizes(self) -> dict[int, int]:
        """Prompts in each group, in the groups' order."""
        return {group: self.parts[group].n_prompts for group in sorted(self.parts)}

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{group}/{name}": value
            for group in sorted(self.parts)
            for name, value in self.parts[group].tensors().items()
        }

    def state(self) -> State:
        return _arrays(self.tensors())

    @classmethod
    def from_state(cls, make: Callable[[], A], state: Mapping[str, NDArray[Any]]) -> Self:
        new = cls(make)
        kind = type(make())
        parts = nest(state, "/")
        for group in sorted(map(int, parts)):
            new.parts[group] = kind.from_state(parts[str(group)])
        return new

    def _join(self, groups: Any) -> A:
        total = self.make()
        # In a fixed order, so that the same groups give the same bits wherever they came from.
        for group in sorted(groups):
            total.merge(self.parts[group])
        some = next(iter(self.parts.values()), None)
        if total.shape is None and some is not None and some.shape is not None:
            total._open(some.shape, some.nonfinite.device)  # no group: zero prompts of this shape
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
    return as_float64(x.detach())


def _rows(x: Tensor | NDArray[Any], chosen: list[int]) -> Tensor | NDArray[Any]:
    if not isinstance(x, Tensor):
        return x[chosen]
    return x.index_select(0, upload(torch.tensor(chosen), x.device))


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
    return [_freeze(array) for array in fetch_arrays(tensors)]


def _arrays(tensors: Mapping[str, Tensor]) -> State:
    return dict(zip(tensors, fetch_arrays(list(tensors.values())), strict=True))
