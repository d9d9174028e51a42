"""A few positions of an attention module, without computing the other positions' queries.

The output at a few positions needs the keys and values of all positions, but the queries, their
rotation and the output projection of those few only. So the module's own forward runs twice:

1. Over all positions, up to its attention function, which receives the keys and values. If one
   child computes the queries and nothing else, it computes only one head of one position. A CPU
   does this for a slice of the positions at a time, so that norms and rotations work in its cache.
2. Over the chosen positions; its attention function uses the keys and values of step 1, each
   position those of its own prefix.

Whatever a family does on the way (norms, rotations, gates) is therefore included. Whether a module
can be run in this way, and which child computes the queries, is found by a trial on its first
tokens: the result must equal that of the whole module.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import Cache

from llmprobe.base.machine import is_out_of_memory
from llmprobe.capture.calls import (
    AttentionCall,
    Listener,
    Owner,
    at_positions,
    own_forward,
    own_hook,
)
from llmprobe.capture.observing import first_tensor
from llmprobe.capture.wrapping import wrap_method

_N_TRIED = 8
"""Tokens of the trial."""
_SLICE_BYTES = 2**20
"""Of the keys in a slice: with what is made of them on the way, they fit a core's cache."""
_PREFIX_KEYS = 4096
"""Keys from which on a position gets those of its prefix alone: below, a call costs more."""
_NEAR = 1.5
"""Positions share a call if the last one sees at most so many times the keys of the first."""
_BY_POSITION = ("hidden_states", "position_embeddings", "position_ids")
_OF_ALL_KEYS = ("attention_mask", "mask", "position_bias", "cache_position")
Forward = Callable[..., Any]


class _Shown(BaseException):
    """Ends the first run; no `Exception` for the reason that `_Stop` of sessions is none."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call


@dataclass(frozen=True)
class _Way:
    """How a module can be run for a few positions."""

    queries: nn.Module | None = None
    """The child that computes the queries and nothing else."""
    size: int = 0
    """Size of one head's query."""
    slice_size: int = 0
    """Positions of all prompts in a slice; 0 if keys and values cannot be computed in slices."""


_known: "WeakKeyDictionary[nn.Module, _Way | None]" = WeakKeyDictionary()


def queries_of(module: nn.Module) -> nn.Module | None:
    """The child that computes the queries and nothing else, if a trial has found one."""
    way = _known.get(module)
    return None if way is None else way.queries


class FewPositions:
    """Runs one attention module for chosen positions; `listen` must see its attention calls."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.trying = False
        """True during a trial, which hooks on the module's children must ignore."""
        self._answer: Listener | None = None

    def listen(self, call: AttentionCall) -> Tensor | None:
        return None if self._answer is None else self._answer(call)

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """A call's arguments by name, or None if they cannot be sliced by position."""
        signature = inspect.signature(own_forward(self.module))
        given = signature.bind(self.module, *args, **kwargs).arguments
        given.pop(next(iter(signature.parameters)))
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(name, {})
        hidden = given.get("hidden_states")
        if not isinstance(hidden, Tensor) or hidden.ndim != 3:
            return None
        fits = all(
            name in _OF_ALL_KEYS or not _tensors(value)
            for name, value in given.items()
            if name not in _BY_POSITION
        )
        along = [x for name in _BY_POSITION for x in _tensors(given.get(name))]
        fits &= all(x.ndim > 1 and len(x) in (1, len(hidden)) for x in along)
        return given if fits and all(x.shape[1] == hidden.shape[1] for x in along) else None

    def suits(self, forward: Forward, arguments: dict[str, Any]) -> bool:
        """True if the module gives the same result in this way; tried once per module."""
        if self.module.training:  # dropout would hit other positions
            return False
        if self.module not in _known:
            self.trying = True
            try:
                _known[self.module] = self._try(forward, arguments)
            finally:
                self.trying = False
        return _known[self.module] is not None

    def run(self, forward: Forward, arguments: dict[str, Any], index: Tensor) -> Any:
        """What the module returns for the positions `index` (batch, positions) only."""
        way = _known[self.module]
        assert way is not None
        return self._run(forward, arguments, index, way)

    def _run(self, forward: Forward, arguments: dict[str, Any], index: Tensor, way: _Way) -> Any:
        keys = self._keys(forward, arguments, way)

        def answer(call: AttentionCall) -> Tensor:
            # A bias of positions is that of all queries, of which the call has few.
            bias = {} if keys.bias is None else {"position_bias": keys.bias}
            whole = replace(keys, options=call.options | bias)
            return _outputs(whole, index, call.query)

        with self._answering(answer):
            return forward(**_at(arguments, index))

    def _keys(self, forward: Forward, arguments: dict[str, Any], way: _Way) -> AttentionCall:
        """The keys and values of all positions."""
        batch, length = arguments["hidden_states"].shape[:2]
        size = way.slice_size // batch if _may_slice(arguments) else 0
        with _shortened(way):
            if not 0 < size < length:
                return self._shown(forward, arguments)
            first = self._shown(forward, _between(arguments, 0, size))
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (first.key, first.value)]
            key, value = (first.key.new_empty(shape) for shape in shapes)
            for start in range(0, length, size):
                between = _between(arguments, start, start + size)
                part = self._shown(forward, between) if start else first
                key[:, :, start : start + size] = part.key
                value[:, :, start : start + size] = part.value
        query = first.query[:, :, :1].expand(-1, -1, length, -1)  # only its shape is looked at
        return replace(first, query=query, key=key, value=value)

    def _shown(self, forward: Forward, arguments: dict[str, Any]) -> AttentionCall:
        """What the module gives to its attention function."""

        def answer(call: AttentionCall) -> Tensor:
            raise _Shown(call)

        try:
            with self._answering(answer):
                forward(**arguments)
        except _Shown as shown:
            return shown.call
        raise RuntimeError("the module did not call its attention function")

    def _try(self, forward: Forward, arguments: dict[str, Any]) -> _Way | None:
        batch, length = arguments["hidden_states"].shape[:2]
        device = arguments["hidden_states"].device
        first = torch.arange(min(length, _N_TRIED), device=device).expand(batch, -1)
        some = first[:, 1::3]
        few = _at(arguments, first)
        try:
            with self._answering(lambda call: call.outputs(first)):
                whole = first_tensor(forward(**few))
            way = self._with_slices(forward, few, self._with_queries(forward, few))
            got = first_tensor(self._run(forward, few, some, way))
        except Exception as error:  # such a family is run as a whole
            if is_out_of_memory(error):
                raise
            return None
        return way if _same(got, whole[:, 1::3]) else None

    def _with_queries(self, forward: Forward, arguments: dict[str, Any]) -> _Way:
        """Find the child that does not change keys and values, to the bit."""
        full = self._keys(forward, arguments, _Way())
        for child in self.module.children():
            way = _Way(child, full.query.shape[-1])
            try:
                call = self._keys(forward, arguments, way)
            except Exception:  # the child computes something else as well
                continue
            one_head = call.query.shape[1] == 1 < full.query.shape[1]
            if one_head and torch.equal(call.key, full.key) and torch.equal(call.value, full.value):
                return way
        return _Way()

    def _with_slices(self, forward: Forward, arguments: dict[str, Any], way: _Way) -> _Way:
        """Find whether the keys and values of a slice are those that its positions have anyway."""
        full = self._keys(forward, arguments, way)
        batch, n_heads, length, size = full.key.shape
        if length != arguments["hidden_states"].shape[1]:
            return way
        in_slices = replace(way, slice_size=batch * max(1, length // 3))
        try:
            call = self._keys(forward, arguments, in_slices)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return way
        if not (_same(call.key, full.key) and _same(call.value, full.value)):
            return way
        position_bytes = n_heads * size * full.key.element_size()
        return replace(way, slice_size=max(1, _SLICE_BYTES // position_bytes))

    @contextmanager
    def _answering(self, answer: Listener) -> Iterator[None]:
        self._answer = answer
        try:
            yield
        finally:
            self._answer = None


@contextmanager
def _shortened(way: _Way) -> Iterator[None]:
    """Make the child compute one head of one position, once, repeated for all positions."""
    if way.queries is None:
        yield
        return
    n_positions = [0]
    computed: list[Tensor] = []

    def before(child: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not owner.here():
            return None
        n_positions[:] = [args[0].shape[1]]
        return (args[0][:, :1], *args[1:])

    def once(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        if not owner.here():
            return forward(*args, **kwargs)
        if not computed:
            computed.append(forward(*args, **kwargs))
        return computed[0]

    def after(child: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        return output[..., : way.size].expand(-1, *n_positions, -1) if owner.here() else None

    child, owner = way.queries, Owner()
    with ExitStack() as stack:
        stack.callback(owner.leave)
        own_hook(lambda: child.register_forward_pre_hook(before), owner, stack)
        wrap_method(child, once, stack)
        own_hook(lambda: child.register_forward_hook(after), owner, stack)
        yield


def _at(arguments: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """The arguments at the positions `index` (batch, positions), without mask and cache."""

    def take(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(take(item) for item in value)
        if not isinstance(value, Tensor):
            return value
        return at_positions(value.expand(len(index), *value.shape[1:]), index)

    cut = {name: take(v) if name in _BY_POSITION else v for name, v in arguments.items()}
    whole = [name for name, v in cut.items() if name in _OF_ALL_KEYS or isinstance(v, Cache)]
    return cut | dict.fromkeys(whole) | ({"use_cache": False} if "use_cache" in cut else {})


def _may_slice(arguments: dict[str, Any]) -> bool:
    """Masks and caches have to do with all positions; other devices gain nothing."""
    values = arguments.values()
    return (
        arguments["hidden_states"].device.type == "cpu"
        and arguments.get("attention_mask") is None
        and not any(isinstance(value, Cache) for value in values)
    )


def _between(arguments: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """The arguments at the positions from start to end, as views."""

    def cut(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(cut(item) for item in value)
        return value[:, start:end] if isinstance(value, Tensor) else value

    return {name: cut(v) if name in _BY_POSITION else v for name, v in arguments.items()}


def _outputs(call: AttentionCall, index: Tensor, query: Tensor) -> Tensor:
    """Outputs of the queries at `index`; on a CPU each one reads only the keys that it may see."""
    n_keys = call.key.shape[2]
    plain = call.mask is None and call.bias is None
    prefixes = plain and call.is_causal() and n_keys == call.query.shape[2]
    if not prefixes or n_keys < _PREFIX_KEYS or index.device.type != "cpu":
        return call.outputs(index, query)
    n_seen = (index.amax(dim=0) + 1).tolist()
    parts, start = [], 0
    for end in range(1, len(n_seen) + 1):
        if end == len(n_seen) or n_seen[end] > _NEAR * n_seen[start]:
            most = max(n_seen[start:end])
            q, k, v = (x[:, :, :most] for x in (call.query, call.key, call.value))
            part = replace(call, query=q, key=k, value=v)
            parts.append(part.outputs(index[:, start:end], query[:, :, start:end]))
            start = end
    return torch.cat(parts, dim=1)


def _same(got: Tensor, expected: Tensor) -> bool:
    exact = expected.dtype in (torch.float32, torch.float64)
    tolerance = (1e-4 if exact else 0.05) * expected.square().mean().sqrt()
    return got.shape == expected.shape and bool((got - expected).abs().max() <= tolerance)


def _tensors(value: Any) -> list[Tensor]:
    items = value if isinstance(value, tuple | list) else [value]
    return [item for item in items if isinstance(item, Tensor)]
