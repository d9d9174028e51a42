"""Editing attention while a model runs: the twin of capturing it.

    with edit_attention(model, 3, heads=[0, 5], outputs=ablate()):
        model(**batch)                          # without two heads of layer 3

    with edit_attention(model, queries=scale_logits(lambda n: 1 + (n > 4096) * 0.2)):
        model(**batch)                          # a colder softmax where more than 4,096 keys are

1. `queries` scales the logits of each query. It multiplies the query by the scale, which is the
   same for a softmax of q·k, with every attention function. Where it is not the same (soft caps,
   biases in masks, attention that is not looked up by name), the model is refused. The logit of a
   learned sink is not q·k and stays as it is.
2. `outputs` maps the head outputs before the output projection: what `at="heads"` captures.
3. Edits nest with captures and with each other. An edit changes the model as it is when the block
   is entered, with your own hooks and with other edits. Captures see what the model computes, with
   all edits, wherever they were entered.
4. Leaving the block removes the edit. It belongs to the thread and asyncio task that entered it.

An edit is part of what a model computes: `digest_model` knows it, so a run that was kept without
the edit is not resumed with it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from llmprobe.base.transfers import as_float64, upload
from llmprobe.capture.calls import AttentionCall, Owner, changing, lock, own_hook, owner_of
from llmprobe.capture.discovery import (
    AttentionLayer,
    LayerChoice,
    attention_layers,
    choose_layers,
    decoder_of,
    whole_numbers,
)
from llmprobe.capture.loading import AnyModel, module_of
from llmprobe.capture.parts import Part
from llmprobe.capture.session import tokens_of
from llmprobe.errors import CaptureError, UnsupportedModelError

HeadChoice: TypeAlias = int | Sequence[int] | Mapping[int, int | Sequence[int]] | None
"""None for all, one head, several, or those of each layer by its number."""
Queries: TypeAlias = Callable[[AttentionCall, Tensor], float | Tensor | None]
Outputs: TypeAlias = Callable[..., Tensor | None]

_TRIED_KEYS = 8
_TRIED_RANGE = 40.0
"""Logits of the trial span this range, in nats: a soft cap of 50 bends them by a whole one."""
_active: list["AttentionEdit"] = []


def edit_attention(
    model: AnyModel,
    layers: LayerChoice = None,
    *,
    part: str | None = None,
    heads: HeadChoice = None,
    queries: Queries | None = None,
    outputs: Outputs | None = None,
) -> "AttentionEdit":
    """A context manager that changes what attention computes.

    `model`, `layers`, `part`: as in `capture_attention`. `heads`: None for all, a number, a list,
    or a mapping from layer number to heads; only these are changed.
    `queries(call, n)` gives the scale of the logits of each query: None or 1.0 to leave them, a
    number, or a tensor that broadcasts to (batch, heads, queries). n (batch or 1, heads or 1,
    queries) is how many keys each query sees; padding, KV caches and windows are taken into
    account. `call` has the layer, the module, and the query, key and value tensors.
    `outputs(layer, x)` gives the new head outputs for x (batch, tokens, heads, size), or None to
    leave them. If it has a parameter named `n`, it also receives the number of keys that each
    token sees, (batch or 1, tokens, heads or 1).

    Ready-made: `scale_logits`, `scale_outputs`, `ablate`, `restore`.
    """
    return AttentionEdit(
        model, layers=layers, part=part, heads=heads, queries=queries, outputs=outputs
    )


class AttentionEdit:
    """What `edit_attention` gives: an edit that is active inside its `with` block."""

    def __init__(
        self,
        model: AnyModel,
        *,
        layers: LayerChoice,
        part: str | None = None,
        heads: HeadChoice,
        queries: Queries | None,
        outputs: Outputs | None,
    ) -> None:
        if queries is None and outputs is None:
            raise ValueError("queries, outputs: got neither; give one of them, or both")
        self.model = module_of(model, part)
        found = attention_layers(self.model)
        if isinstance(heads, Mapping):
            heads = _by_number(found, heads)
            layers = list(heads) if layers is None else layers
        self.layers = choose_layers(found, layers)
        self.heads = {layer.layer: _choose_heads(layer, heads) for layer in self.layers}
        beyond = set(heads) - set(self.heads) if isinstance(heads, Mapping) else ()
        if beyond:
            raise ValueError(
                f"heads: got heads of layer {min(beyond)}, which is not among layers; leave layers "
                "out, or name the same ones"
            )
        if all(chosen == () for chosen in self.heads.values()):
            raise ValueError(f"heads: got {heads!r}, which changes none; name at least one head")
        self.queries, self.outputs = queries, outputs
        self._wants_n = outputs is not None and "n" in inspect.signature(outputs).parameters
        for layer in self.layers:
            self._check(layer)
        self._stack = ExitStack()
        self._owner: Owner | None = None
        self._used = False
        # State of the current forward:
        self._counted = WeakTensorKeyDictionary()
        self._n: dict[int, Tensor] = {}
        self._mask: Tensor | None = None
        self._n_before = 0

    def _check(self, layer: AttentionLayer) -> None:
        what = f"{layer.path} ({type(self._module(layer)).__name__})"
        if self.queries is not None and not layer.interface:
            raise UnsupportedModelError(
                f"{what} does not look up its attention function by name, so its logits cannot be "
                "scaled; edit outputs, or choose other layers"
            )
        if self._wants_n and not layer.interface and (layer.type != "full" or layer.cross):
            kind = "cross" if layer.cross else layer.type
            raise UnsupportedModelError(
                f"{what}: how many keys a token sees is unknown ({kind} attention that is not "
                "looked up by name); use an edit without n, or choose other layers"
            )

    def __enter__(self) -> Self:
        if self._owner is not None:
            raise CaptureError(
                "this edit is active already, and cannot be entered twice at once; leave its "
                "`with` block first, or make another edit"
            )
        self._used = False
        with ExitStack() as stack:
            self._owner = owner = Owner()
            stack.callback(self._disown, owner)
            decoder = decoder_of(self.model)
            before = partial(decoder.register_forward_pre_hook, self._before, with_kwargs=True)
            own_hook(before, owner, stack)
            for layer in self.layers:
                if layer.interface and (self.queries is not None or self._wants_n):
                    stack.enter_context(changing([self._module(layer)], self._editor(layer)))
                if self.outputs is not None:
                    projection = self.model.get_submodule(layer.projection)
                    _hook_before_captures(projection, self._hook(layer), owner, stack)
            with lock:
                _active.append(self)
            stack.callback(_active.remove, self)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        if error is None and not self._used:
            raise CaptureError(
                "no edited layer ran; call the model inside the `with` block, in the same thread "
                "and asyncio task"
            )

    def _disown(self, owner: Owner) -> None:
        owner.leave()
        self._owner = None

    def here(self) -> bool:
        """True in the thread and context that entered."""
        return self._owner is not None and self._owner.here()

    def facts(self) -> list[Any]:
        """What decides its effect, for a digest."""
        part = [self.model.part] if isinstance(self.model, Part) else []
        return [self.heads, self.queries, self.outputs, *part]

    def _module(self, layer: AttentionLayer) -> nn.Module:
        return self.model.get_submodule(layer.path)

    def _before(self, decoder: nn.Module, args: Any, kwargs: Any = None) -> None:
        if not self.here():
            return
        self._counted, self._n = WeakTensorKeyDictionary(), {}
        given = inspect.signature(decoder.forward).bind_partial(*args, **kwargs).arguments
        named = given.get("kwargs", {}) | given
        cache = named.get("past_key_values")
        self._n_before = getattr(cache, "get_seq_length", lambda: 0)()
        mask = named.get("attention_mask")
        if self._wants_n and mask is not None and getattr(mask, "ndim", 0) != 2:
            unknown = [layer.path for layer in self.layers if not layer.interface]
            if unknown:
                raise CaptureError(
                    f"{unknown[0]}: how many keys a token sees is unknown, as the attention mask "
                    f"has shape {tuple(getattr(mask, 'shape', ()))}; give one of (batch, tokens)"
                )
        tokens = tokens_of(given)
        self._mask = mask if tokens is not None and getattr(mask, "ndim", 0) == 2 else None

    # ---------------------------------------------------------------- logits

    def _editor(self, layer: AttentionLayer) -> Callable[[AttentionCall], AttentionCall]:
        def edit(call: AttentionCall) -> AttentionCall:
            n = self._n_seen(call)
            if self._wants_n:
                self._n[layer.layer] = n.transpose(1, 2)
            if self.queries is None:
                return call
            self._used = True
            scale = self.queries(replace(call, layer=layer.layer), n)
            if scale is None or (isinstance(scale, float | int) and scale == 1):
                return call
            if self._is_biased(call) or not _is_proportional(call):
                raise UnsupportedModelError(
                    f"{type(call.module).__name__}: its logits are not in proportion to the query "
                    "(a soft cap or a bias of positions), so scaling the query does not scale "
                    "them; edit outputs instead"
                )
            return call.scaled(self._factor(layer, call.query, scale))

        return edit

    def _n_seen(self, call: AttentionCall) -> Tensor:
        """Counted once for all layers that share a mask."""
        if call.mask is None:
            return call.n_seen()
        n_keys = call.key.shape[2]
        if call.mask not in self._counted or self._counted[call.mask][0] != n_keys:
            self._counted[call.mask] = n_keys, call.n_seen(), call.has_bias()
        n: Tensor = self._counted[call.mask][1]
        return n

    def _is_biased(self, call: AttentionCall) -> bool:
        return call.mask is not None and self._counted[call.mask][2]

    def _factor(self, layer: AttentionLayer, query: Tensor, scale: float | Tensor) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        factor = upload(torch.as_tensor(scale, dtype=wide), query.device)
        try:
            factor = factor.expand(torch.broadcast_shapes(factor.shape, (1, 1, 1)))
            factor.expand(query.shape[:3])
        except RuntimeError:
            raise ValueError(
                f"queries: got a scale of shape {tuple(factor.shape)}, accepted: a number, or a "
                f"shape that broadcasts to (batch, heads, queries) = {tuple(query.shape[:3])}"
            ) from None
        chosen = self.heads[layer.layer]
        if chosen is not None:
            factor = factor.where(_mask_of(chosen, layer, query.device)[None, :, None], 1.0)
        return factor

    # ---------------------------------------------------------------- head outputs

    def _hook(self, layer: AttentionLayer) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> Any:
            if not self.here():
                return None
            name = None if args else next(iter(kwargs))
            x = args[0] if name is None else kwargs[name]
            new = self._mapped(layer, x)
            if new is x:
                return None
            return ((new, *args[1:]), kwargs) if name is None else (args, kwargs | {name: new})

        return hook

    def _mapped(self, layer: AttentionLayer, x: Tensor) -> Tensor:
        assert self.outputs is not None
        self._used = True
        heads = x.unflatten(-1, (layer.n_heads, layer.head_size))
        given = {"n": self._n_of(layer, x)} if self._wants_n else {}
        new = self.outputs(layer.layer, heads, **given)
        if new is None:
            return x
        if new.shape != heads.shape:
            raise ValueError(
                f"outputs: got head outputs of shape {tuple(new.shape)}, accepted: those of layer "
                f"{layer.layer}, (batch, tokens, heads, size) = {tuple(heads.shape)}"
            )
        new = new.to(x.dtype)
        chosen = self.heads[layer.layer]
        if chosen is not None:
            new = new.where(_mask_of(chosen, layer, x.device)[:, None], heads)
        return new.flatten(-2)

    def _n_of(self, layer: AttentionLayer, x: Tensor) -> Tensor:
        """(batch or 1, tokens, heads or 1)"""
        if layer.interface:
            return self._n.pop(layer.layer)
        length = x.shape[1]
        if not layer.causal:
            n = torch.tensor([[length]]) if self._mask is None else self._mask.sum(1, keepdim=True)
            return upload(n, x.device)[..., None].expand(-1, length, -1)
        if self._mask is None:
            first = self._n_before + 1
            return torch.arange(first, first + length, device=x.device)[None, :, None]
        n = self._mask.cumsum(dim=1)[:, -length:].clamp(min=1)
        return upload(n, x.device)[..., None]


_edit_hooks: set[int] = set()


def _hook_before_captures(
    module: nn.Module, hook: Callable[..., Any], owner: Owner, stack: ExitStack
) -> None:
    """Attach an edit behind the hooks that are there, except those of captures."""
    with lock:
        register = partial(module.register_forward_pre_hook, hook, with_kwargs=True)
        handle = own_hook(register, owner, stack)
        _edit_hooks.add(handle.id)
        stack.callback(_edit_hooks.discard, handle.id)
        for other in list(module._forward_pre_hooks):
            if owner_of(other) is not None and other not in _edit_hooks:
                module._forward_pre_hooks.move_to_end(other)


def edits_here(model: nn.Module) -> list[AttentionEdit]:
    """The edits of a model in this thread and context, in the order in which they were entered."""
    with lock:
        active = [edit for edit in _active if edit.here()]
    own = set(model.modules())
    return [edit for edit in active if any(edit._module(x) in own for x in edit.layers)]


def _by_number(found: Sequence[AttentionLayer], heads: Mapping[int, Any]) -> dict[int, Any]:
    """Heads by the number of their layer, which may be counted from the end."""
    choose_layers(found, list(heads))  # refuses what is no layer, in one line for all
    numbers = [choose_layers(found, [key])[0].layer for key in heads]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"heads: got a layer twice, of {list(heads)}; name each layer once")
    return dict(zip(numbers, heads.values(), strict=True))


def _choose_heads(layer: AttentionLayer, heads: HeadChoice) -> tuple[int, ...] | None:
    """The heads of a layer, counted from 0; None for all of them."""
    if isinstance(heads, Mapping):
        heads = heads.get(layer.layer, ())
    if heads is None:
        return None
    numbers = whole_numbers(heads)
    if numbers is None or isinstance(heads, str):
        raise ValueError(
            f"heads: got {heads!r}, accepted: None for all, a number, a list of numbers, or a "
            "mapping from layer number to these"
        )
    for number in numbers:
        if not -layer.n_heads <= number < layer.n_heads:
            raise ValueError(
                f"heads: got {number}, accepted: 0 to {layer.n_heads - 1}, the heads of layer "
                f"{layer.layer}"
            )
    return tuple(sorted({number % layer.n_heads for number in numbers}))


def _mask_of(chosen: tuple[int, ...], layer: AttentionLayer, device: torch.device) -> Tensor:
    mask = torch.zeros(layer.n_heads, dtype=torch.bool)
    mask[list(chosen)] = True
    return upload(mask, device)


_known: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def _is_proportional(call: AttentionCall) -> bool:
    """True if a module's logits grow in proportion to the query; tried once per module."""
    if call.module not in _known:
        _known[call.module] = _try(call)
    return _known[call.module]


def _try(call: AttentionCall) -> bool:
    """Whether the weights of s·q are those of q to the power of s, up to a factor."""
    generator = torch.Generator().manual_seed(0)

    def draw(like: Tensor, n: int) -> Tensor:
        shape = (1, like.shape[1], n, like.shape[3])
        return upload(torch.randn(shape, generator=generator), like.device)

    query = draw(call.query, 1)
    key, value = (draw(x, _TRIED_KEYS) for x in (call.key, call.value))
    mask = torch.zeros(1, 1, 1, _TRIED_KEYS, device=query.device)
    options = call.unbiased | ({"dropout": 0.0} if "dropout" in call.options else {})
    trial = replace(call, key=key, value=value, mask=mask, options=options, base="eager")

    def log_weights(query: Tensor) -> Tensor:
        weights = replace(trial, query=query).compute()[1]
        assert weights is not None, "eager functions return their weights"
        return as_float64(weights).log()

    plain = log_weights(query)
    factor = _TRIED_RANGE / _range(plain).max()
    scaled = log_weights(query * factor.to(query))
    return bool(_range(scaled - factor * plain).max() < 0.05)


def _range(x: Tensor) -> Tensor:
    return x.amax(-1) - x.amin(-1)


def describe_edits(model: nn.Module) -> Iterator[str]:
    """What is edited, in words, for the notes of a result."""
    for edit in edits_here(model):
        parts = [name for name in ("queries", "outputs") if getattr(edit, name) is not None]
        numbers = ", ".join(str(layer.layer) for layer in edit.layers)
        yield f"attention was edited ({' and '.join(parts)} of layer {numbers})"
