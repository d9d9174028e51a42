"""Attention of a few queries, exactly as the model computes it, without the N × N matrix.

transformers looks up its attention function by name. Two names are registered here, one on top of
`sdpa` and one on top of `eager`, each with the mask function of its base (without one, padding is
silently ignored). They compute what their base computes, but listeners see each call first: a
listener can compute the rows of chosen queries, and may return the output in place of the base.
Editors change a call before listeners see it.

Weights come from the model file's own eager function, run on the chosen queries only. They
therefore include whatever a family does to its softmax (soft caps, learned sinks, windows). Outputs
of chosen queries come from the function that the model would have used.

A model may have several users at once. Whoever listens hears only the calls of its own thread and
context (`Owner`); the name in the config is shared, and is restored once nobody needs it.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as _INTERFACE

from llmprobe.capture.logits import SoftmaxInputs, seen_logits
from llmprobe.errors import UnsupportedModelError

_PREFIX = "llmprobe_"
BASES = ("sdpa", "eager")
_HALF = (torch.float16, torch.bfloat16)
_CHUNK_BYTES = 64 * 2**20
_NOTHING_SHARED = nn.Module()
"""For transformers' sdpa function, which reads from the module how many heads share a key."""
_BIAS = "position_bias"
# Arguments with one entry per query; they cannot be sliced, except a bias in the shape of weights.
_PER_QUERY = (_BIAS, "block_indices", "indices", "cu_seq_lens_q")


@dataclass(frozen=True)
class AttentionCall:
    """The arguments that a model gave to its attention function."""

    module: nn.Module
    query: Tensor
    """(batch, heads, queries, key size)"""
    key: Tensor
    """(batch, KV heads, keys, key size)"""
    value: Tensor
    """(batch, KV heads, keys, value size)"""
    mask: Tensor | None
    options: dict[str, Any]
    base: str
    """sdpa or eager: the function that the model would have used."""
    layer: int = -1
    """The model's number of the layer; only edits know it."""

    def rows(self, index: Tensor) -> Iterator[Tensor]:
        """Weights (batch, heads, positions, keys) of the queries at `index` (batch, positions).

        In chunks of positions; float32 at least, whatever the model's precision.
        """
        for weights, _ in self.scores(index):
            yield weights

    def scores(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights as `rows` has them, and their logits, −inf where a key is masked."""
        wide = [x.float() if x.dtype in _HALF else x for x in (self.query, self.key, self.value)]
        query, options = _take(wide[0], index), self.unbiased
        call = replace(self, query=query, key=wide[1], value=wide[2], options=options, base="eager")
        for part in call._chunks():
            mask = self._mask_rows(index[:, part])
            with SoftmaxInputs() as softmax:
                _, weights = call._attend(query[:, :, part], mask)
            assert weights is not None, "eager functions return their weights"
            yield weights, seen_logits(softmax.latest, weights, mask)

    def outputs(self, index: Tensor, query: Tensor | None = None) -> Tensor:
        """Head outputs (batch, positions, heads, value size) of the queries at `index`.

        They come from the model's own attention function. `query` (batch, heads, positions, key
        size) has these queries if they were computed apart from the others.
        """
        chosen = _take(self.query, index) if query is None else query
        call = replace(self, query=chosen, options=self.unbiased)
        parts = []
        for part in call._chunks():
            mask = self._mask_rows(index[:, part])
            parts.append(call._by_key_head(chosen[:, :, part], mask))
        return torch.cat(parts, dim=1)

    def n_seen(self) -> Tensor:
        """How many keys each query sees: (batch or 1, heads or 1, queries), at least 1."""
        n_queries, n_keys = self.query.shape[2], self.key.shape[2]
        if self.mask is not None:
            return _shown(self.mask[..., :n_keys]).sum(-1).clamp(min=1)
        if not self.is_causal():
            return torch.full((1, 1, n_queries), n_keys, device=self.query.device)
        first = n_keys - n_queries + 1  # with a KV cache the first query sees the tokens in it
        return torch.arange(first, n_keys + 1, device=self.query.device)[None, None]

    def sees_later(self) -> bool:
        """True if a query sees a key behind it, as in an encoder."""
        if self.query.shape[2] < 2 or self.key.shape[2] != self.query.shape[2]:
            return False
        if self.mask is None:
            return not self.is_causal()
        shown = _shown(self.mask[..., : self.key.shape[2]])
        return bool(shown[..., -2:, -1][..., 0].any())  # one row may stand for all queries

    def has_bias(self) -> bool:
        """True if the mask adds something to the logits of keys that it shows."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return False
        return bool((_shown(self.mask) & (self.mask != 0)).any())

    @property
    def bias(self) -> Tensor | None:
        """What is added to the logits, apart from the mask: (batch or 1, heads, queries, keys)."""
        bias: Tensor | None = self.options.get(_BIAS)
        n_pairs = self.query.shape[2], self.key.shape[2]
        return bias if bias is not None and bias.ndim == 4 and bias.shape[2:] == n_pairs else None

    @property
    def unbiased(self) -> dict[str, Any]:
        """The options without the bias."""
        return {name: value for name, value in self.options.items() if name != _BIAS}

    def scaled(self, factor: Tensor) -> "AttentionCall":
        """The same with logits times `factor`, which broadcasts to (batch, heads, queries)."""
        query = (self.query * factor[..., None]).to(self.query.dtype)
        if self.bias is None:
            return replace(self, query=query)
        bias = (self.bias * factor[..., None]).to(self.bias.dtype)
        return replace(self, query=query, options=self.options | {_BIAS: bias})

    def is_causal(self) -> bool:
        """Whether queries see no later keys, if there is no mask that says so."""
        causal = self.options.get("is_causal")
        return bool(getattr(self.module, "is_causal", True) if causal is None else causal)

    def per_query(self) -> str | None:
        """The name of an argument with one entry per query, or None: sparse attention passes its
        choice of keys so, but only to functions other than sdpa and eager, which ignore it.
        """
        given = (name for name in _PER_QUERY if self.options.get(name) is not None)
        return next((name for name in given if name != _BIAS or self.bias is None), None)

    def compute(self) -> tuple[Tensor, Tensor | None]:
        """What the model would have computed."""
        function = own_eager(self.module) if self.base == "eager" else _INTERFACE[self.base]
        result: tuple[Tensor, Tensor | None] = function(
            self.module, self.query, self.key, self.value, self.mask, **self.options
        )
        return result

    def _attend(self, query: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if mask is not None and mask.dtype == torch.bool and self.base == "eager":
            zero = torch.zeros((), dtype=query.dtype, device=mask.device)
            mask = zero.where(mask, torch.finfo(query.dtype).min)
        return replace(self, query=query, mask=mask).compute()

    def _by_key_head(self, query: Tensor, mask: Tensor | None) -> Tensor:
        """Head outputs; heads that share a key are computed as more queries of one head.

        With a mask transformers would copy the keys for each head, which costs more than the rest.
        """
        n_heads, n_key_heads = query.shape[1], self.key.shape[1]
        if self.base != "sdpa" or n_heads == n_key_heads or mask is None or mask.shape[1] > 1:
            return self._attend(query, mask)[0]
        n_shared = n_heads // n_key_heads
        call = replace(self, module=_NOTHING_SHARED)
        folded = query.unflatten(1, (n_key_heads, n_shared)).flatten(2, 3)
        output, _ = call._attend(folded, mask.repeat(1, 1, n_shared, 1))
        return output.unflatten(1, (n_shared, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def _chunks(self) -> Iterator[slice]:
        """Queries a few at a time, so that their weights stay small."""
        batch, heads, n_queries, _ = self.query.shape
        size = max(1, _CHUNK_BYTES // (4 * batch * heads * self.key.shape[2]))
        for start in range(0, n_queries, size):
            yield slice(start, min(start + size, n_queries))

    def _mask_rows(self, index: Tensor) -> Tensor | None:
        """The chosen queries' rows of the mask, or of the causal one, with the bias added."""
        mask = self._plain_rows(index)
        if self.bias is None:
            return mask
        bias = _take(self.bias.expand(len(index), -1, -1, -1), index)
        if mask is not None and mask.dtype == torch.bool:
            return bias.where(mask, torch.finfo(bias.dtype).min)
        return bias if mask is None else bias + mask

    def _plain_rows(self, index: Tensor) -> Tensor | None:
        n_queries, n_keys = self.query.shape[2], self.key.shape[2]
        if self.mask is not None:
            mask = self.mask[..., :n_keys].expand(len(index), -1, -1, -1)
            return mask if mask.shape[2] == 1 else _take(mask, index)  # one row for all queries
        if not self.is_causal():
            return None
        # With a KV cache the first query here is not the first token.
        last = index + (n_keys - n_queries)
        return torch.arange(n_keys, device=index.device) <= last[:, None, :, None]


lock = threading.RLock()
"""For what all threads share: the listeners, the names in configs, wrapped forwards."""
_inside: ContextVar[frozenset["Owner"]] = ContextVar("llmprobe_inside", default=frozenset())


class Owner:
    """The thread and the context (of an asyncio task) that a capture belongs to."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        _inside.set(_inside.get() | {self})

    def here(self) -> bool:
        """True if the code that runs now belongs to the owner."""
        return threading.get_ident() == self.thread and self in _inside.get()

    def leave(self) -> None:
        self.thread = -1  # contexts of tasks that were made meanwhile keep a copy of us
        _inside.set(_inside.get() - {self})


_hooks: dict[int, Owner] = {}


def own_hook(
    register: Callable[[], RemovableHandle], owner: Owner, stack: ExitStack
) -> RemovableHandle:
    """Register a hook until the stack closes; in between `owner_of` knows whose it is."""
    with lock:
        handle = register()
        _hooks[handle.id] = owner

    def remove() -> None:
        with lock:
            handle.remove()
            _hooks.pop(handle.id, None)

    stack.callback(remove)
    return handle


def owner_of(hook: int) -> Owner | None:
    """Whose hook this is, by its number; None if it is not one of a capture."""
    return _hooks.get(hook)


Listener = Callable[[AttentionCall], Tensor | None]
Editor = Callable[[AttentionCall], AttentionCall]
_Table = dict[int, tuple[tuple[Owner, Callable[[AttentionCall], Any]], ...]]
_listeners: _Table = {}
_editors: _Table = {}


def uses_interface(module: nn.Module) -> bool:
    """True if the module looks up its attention function by name and has an eager one."""
    return "get_interface" in own_forward(module).__code__.co_names and _eager(module) is not None


def own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function of the file that the module comes from."""
    eager = _eager(module)
    if eager is None:
        raise UnsupportedModelError(f"{type(module).__name__} has no eager attention function")
    return eager


@contextmanager
def listening(modules: Iterable[nn.Module], listener: Listener) -> Iterator[None]:
    """Let `listener` see every attention call of the modules, in this thread and context.

    It may return head outputs (batch, queries, heads, value size), which replace the module's.
    """
    with _attached(_listeners, modules, listener):
        yield


@contextmanager
def changing(modules: Iterable[nn.Module], editor: Editor) -> Iterator[None]:
    """Let `editor` change every attention call of the modules, in this thread and context.

    Of several editors the one that was entered first comes first. Listeners see the changed call.
    """
    with _attached(_editors, modules, editor):
        yield


@contextmanager
def _attached(
    table: _Table, modules: Iterable[nn.Module], function: Callable[[AttentionCall], Any]
) -> Iterator[None]:
    modules = list(modules)
    configs: dict[int, Any] = {id(m.config): m.config for m in modules}
    with ExitStack() as stack:
        for config in configs.values():
            stack.enter_context(routed(config))
        owner = Owner()
        stack.callback(owner.leave)
        for module in modules:
            with lock:
                table[id(module)] = (*table.get(id(module), ()), (owner, function))
            stack.callback(_remove, table, id(module), owner)
        yield


def listeners_here(module: nn.Module) -> list[Listener]:
    """Those of this thread and context."""
    return [listener for owner, listener in _listeners.get(id(module), ()) if owner.here()]


def editors_here(module: nn.Module) -> list[Editor]:
    """Those of this thread and context, in the order in which they change a call."""
    return [editor for owner, editor in _editors.get(id(module), ()) if owner.here()]


def can_listen(module: nn.Module) -> bool:
    """True if the module's calls can be observed without changing what it computes."""
    return uses_interface(module) and _base(module.config) is not None


@dataclass
class _Route:
    """The name of the attention function in a config, and who wants another one there."""

    config: Any
    before: str | None
    n_listening: int = 0
    n_eager: int = 0

    def update(self) -> None:
        name = "eager" if self.n_eager else self.before
        if self.n_listening:
            name = _PREFIX + (_base_of(name) or "sdpa")
        self.config._attn_implementation = name


_routes: dict[int, _Route] = {}


@contextmanager
def routed(config: Any, *, eager: bool = False) -> Iterator[None]:
    """Put the name of our function, or of the eager one, into a config that all threads share.

    The name follows from all that is wanted at the time, so users may leave in any order; the last
    one restores what was there.
    """
    which = "n_eager" if eager else "n_listening"
    with lock:
        if not eager and _base(config) is None:
            raise UnsupportedModelError(
                f"attn_implementation={config._attn_implementation!r} cannot be captured; load "
                'the model with attn_implementation="sdpa" or "eager"'
            )
        route = _routes.setdefault(id(config), _Route(config, config._attn_implementation))
        setattr(route, which, getattr(route, which) + 1)
        route.update()
    try:
        yield
    finally:
        with lock:
            setattr(route, which, getattr(route, which) - 1)
            route.update()
            if not route.n_listening and not route.n_eager:
                del _routes[id(config)]


def _base(config: Any) -> str | None:
    return _base_of(config._attn_implementation)


def _base_of(name: str | None) -> str | None:
    name = (name or "eager").removeprefix(_PREFIX)
    # Masks of flash and flex kernels have no rows; sdpa computes the same.
    return "sdpa" if name.startswith(("flash", "flex")) else name if name in BASES else None


def _remove(table: _Table, key: int, owner: Owner) -> None:
    with lock:
        others = tuple(pair for pair in table.get(key, ()) if pair[0] is not owner)
        if others:
            table[key] = others
        else:
            table.pop(key, None)


def _attention_function(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        call = AttentionCall(module, query, key, value, attention_mask, options, base)
        listeners, editors = listeners_here(module), editors_here(module)
        if (listeners or editors) and (name := call.per_query()) is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} gives its attention function {name!r}, which cannot be "
                "sliced by query; capture whole outputs (positions=None), or edit outputs, instead"
            )
        for edit in editors:
            call = edit(call)
        given = [listener(call) for listener in listeners]
        outputs = [output for output in given if output is not None]
        if outputs:
            return outputs[-1], None
        return call.compute()

    return attend


for _name in BASES:
    AttentionInterface.register(_PREFIX + _name, _attention_function(_name))
    AttentionMaskInterface.register(_PREFIX + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])


def own_forward(module: nn.Module) -> Any:
    """The forward of the module's class, without wrappers."""
    return inspect.unwrap(type(module).forward)


def _eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]] | None:
    return own_forward(module).__globals__.get("eager_attention_forward")


def _shown(mask: Tensor) -> Tensor:
    """True where a mask shows a key; in masks that are added to the logits, others are lowest."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def at_positions(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, length, ...) at each prompt's own positions `index` (batch, positions)."""
    return x[torch.arange(len(index), device=index.device)[:, None], index]


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, heads, queries, ...) at each prompt's own queries `index` (batch, positions)."""
    return at_positions(x.transpose(1, 2), index).transpose(1, 2)
