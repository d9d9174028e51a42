"""A session of hooks on a model's attention: attached on entering, removed on leaving.

It belongs to the thread and the context (of an asyncio task) that entered it: forwards of others
run as if it were not there. It removes its own hooks and leaves all others alone. It knows where
each prompt of a padded batch begins and ends, can end a forward early without the caller seeing an
exception, and checks on leaving that every hook has fired. It is a mapping from layer number to
what was captured there; `outputs` and `rows` define what that is.
"""

import inspect
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from llmprobe.base.transfers import upload
from llmprobe.capture.calls import (
    Owner,
    at_positions,
    editors_here,
    listeners_here,
    lock,
    own_hook,
    owner_of,
)
from llmprobe.capture.discovery import (
    AttentionLayer,
    LayerChoice,
    attention_layers,
    choose_layers,
    decoder_of,
    whole_numbers,
)
from llmprobe.capture.loading import AnyModel, module_of
from llmprobe.capture.parts import shows_all, whole_of
from llmprobe.capture.wrapping import wrap_method
from llmprobe.errors import CaptureError

Positions = int | Sequence[int] | None
T = TypeVar("T")


class _Stop(BaseException):
    """Ends a forward; never leaves the model's own call.

    No `Exception`: for those torch walks over all hooks, which other threads may be changing.
    """

    def __init__(self, session: "Session[Any]") -> None:
        self.session = session


class Session(Mapping[int, T], Generic[T]):
    """The part that is the same for every kind of capture."""

    def __init__(
        self,
        model: AnyModel,
        *,
        layers: LayerChoice,
        part: str | None,
        positions: Positions,
        stop: bool,
        into: Callable[[int, T], object] | None,
    ) -> None:
        self.model = module_of(model, part)
        self.layers = choose_layers(attention_layers(self.model), layers)
        self.deepest = self.layers[-1]
        self.positions = _checked(positions)
        self.stop = stop
        self.into = into
        self._kept: dict[int, list[T]] = {layer.layer: [] for layer in self.layers}
        self._complete = False
        self._stack = ExitStack()
        self._owner: Owner | None = None
        self._generating = False
        self._outer: dict[str, Any] = {}
        # State of the current forward:
        self._now: dict[int, T | None] = {}
        self._mask: Tensor | None = None
        self._encoder_mask: Tensor | None = None
        """Of the keys, where they are not those of the tokens that ask: in cross-attention."""
        self._n_tokens = 0
        self._index: dict[torch.device, Tensor] = {}
        self._bounds: dict[int, tuple[Tensor, Tensor]] = {}
        """First tokens and lengths by the number of tokens or keys, on the host."""
        self._starts: dict[tuple[torch.device, int], Tensor] = {}
        """Minus the number of keys where these are an encoder's."""

    @abstractmethod
    def attach(self, stack: ExitStack) -> None:
        """Attach what this kind of capture needs; undone when the stack closes."""

    @abstractmethod
    def join(self, layer: int, parts: list[T]) -> T:
        """Join what several forwards gave, along the batch."""

    def __enter__(self) -> Self:
        if self._owner is not None:
            raise CaptureError(
                "this capture is active already, and cannot be entered twice at once; leave its "
                "`with` block first, or make another capture"
            )
        self._complete = False
        self._generating = False
        with ExitStack() as stack:
            self._owner = owner = Owner()
            stack.callback(self._disown, owner)
            decoder = decoder_of(self.model)
            before = partial(decoder.register_forward_pre_hook, self._before, with_kwargs=True)
            self.own(stack, before)
            if decoder is not self.model:
                outer = partial(self.model.register_forward_pre_hook, self._outside)
                self.own(stack, partial(outer, with_kwargs=True))
            self.attach(stack)
            if self.stop:
                last = partial(self._end.register_forward_hook, self._last_hook)
                self._last = self.own(stack, last)
                self._catch_stops(stack)
            whole = whole_of(self.model)
            if hasattr(whole, "generate"):
                wrap_method(whole, self._around_generate, stack, name="generate")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._stack.close()
        stopped = isinstance(error, _Stop) and error.session is self
        if error is None or stopped:
            silent = [layer.layer for layer in self.layers if layer.layer not in self._now]
            if not self._complete:
                raise CaptureError(
                    f"the attention of layer {', '.join(map(str, silent))} did not run; call the "
                    "model inside the `with` block, in the same thread and asyncio task, and "
                    "choose layers that it uses"
                )
        return stopped

    def own(self, stack: ExitStack, register: Callable[[], RemovableHandle]) -> RemovableHandle:
        """Register a hook until the stack closes, known as ours until then."""
        assert self._owner is not None
        return own_hook(register, self._owner, stack)

    def here(self) -> bool:
        """True in the thread and context that entered: hooks ignore all others."""
        return self._owner is not None and self._owner.here()

    def _disown(self, owner: Owner) -> None:
        owner.leave()
        self._owner = None

    def alone(self) -> bool:
        """True if no other hook needs the deepest layer's full output."""
        module = self.module(self.deepest)
        with lock:
            hooks = [
                owner_of(hook)
                for part in {*module.modules(), self._end}
                for hook in (*part._forward_hooks, *part._forward_pre_hooks)
            ]
        # Hooks of another thread do not look at our forwards.
        if any(x is None or (x is not self._owner and x.here()) for x in hooks):
            return False
        return len(listeners_here(module)) <= 1 and not editors_here(module)

    @property
    def _end(self) -> nn.Module:
        """The module behind which the deepest layer is done; its projection may lie outside."""
        outside = not f"{self.deepest.projection}.".startswith(f"{self.deepest.path}.")
        return self.projection(self.deepest) if outside else self.module(self.deepest)

    def module(self, layer: AttentionLayer) -> nn.Module:
        return self.model.get_submodule(layer.path)

    def projection(self, layer: AttentionLayer) -> nn.Module:
        return self.model.get_submodule(layer.projection)

    def index(self, batch: int, length: int, device: torch.device) -> Tensor:
        """Where the wanted positions are in this forward's tensors: (batch, positions)."""
        if device not in self._index:
            self._index[device] = upload(self._locate(batch, length), device)
        return self._index[device]

    def starts(self, batch: int, length: int, device: torch.device) -> Tensor:
        """Index of each prompt's first token among the last `length` ones: (batch,)."""
        if (device, length) not in self._starts:
            self._starts[device, length] = upload(self._bounds_of(batch, length)[0], device)
        return self._starts[device, length]

    def _bounds_of(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Found once in a forward, not in each layer: a mask on a GPU has to be waited for."""
        if self._mask is not None:
            self._mask = self._mask.cpu()
        if length not in self._bounds:
            self._bounds[length] = _bounds(self._mask, batch, length)
        return self._bounds[length]

    def key_starts(self, batch: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Index of each prompt's first token among the keys; a KV cache may hold earlier ones."""
        if self.deepest.cross:
            key = device, -n_keys
            if key not in self._starts:
                mask = None if self._encoder_mask is None else self._encoder_mask.cpu()
                self._starts[key] = upload(_bounds(mask, batch, n_keys)[0], device)
            return self._starts[key]
        if n_keys == n_queries:
            return self.starts(batch, n_queries, device)
        if self._mask is None:
            return torch.zeros(batch, dtype=torch.int64, device=device)
        if self._mask.shape[1] != n_keys:
            raise CaptureError(
                f"the KV cache holds {n_keys} tokens but the attention mask {self._mask.shape[1]}, "
                "so the prompts' first tokens are unknown; use a cache that grows with the prompt"
            )
        return self.starts(batch, n_keys, device)

    def take(self, layer: AttentionLayer, x: Tensor) -> Tensor:
        """The wanted positions of x (batch, length, ...), as a copy."""
        if self.positions is None:
            return x.detach().clone()
        if layer.last_only:
            self._check_last(layer, len(x))
            return torch.cat([x.detach()] * len(self.positions), dim=1)
        return at_positions(x.detach(), self.index(x.shape[0], x.shape[1], x.device))

    def _check_last(self, layer: AttentionLayer, batch: int) -> None:
        """Positions count the prompt's tokens, but this layer's tensors have only the last."""
        wanted = self.index(batch, self._n_tokens, torch.device("cpu"))
        if (wanted != self._n_tokens - 1).any():
            raise CaptureError(
                f"the attention of layer {layer.layer} ({layer.path}) answers for the last token "
                f"alone: of positions {list(self.positions or ())} only -1 can be captured"
            )

    def see(self, layer: AttentionLayer, what: T) -> None:
        """Keep what a layer's hook found, or give it to `into`; stop after the last layer."""
        if layer.layer in self._now:
            raise CaptureError(
                f"the attention of layer {layer.layer} ({layer.path}) runs more than once in one "
                "forward; a module that several layers share cannot be captured"
            )
        if self.into is not None:
            self.into(layer.layer, what)
        self._now[layer.layer] = what if self.into is None else None
        if len(self._now) == len(self.layers):
            self._commit()
        if self.stop and layer is self.deepest and self.alone():
            raise _Stop(self)

    def _commit(self) -> None:
        """Keep a forward's layers once all are there: a forward that failed leaves nothing."""
        self._complete = True
        for layer, what in self._now.items():
            if what is not None:
                self._kept[layer].append(what)

    def _last_hook(self, module: nn.Module, args: Any, output: Any) -> None:
        """Stops after all other hooks have run."""
        if self.here() and self.deepest.layer in self._now:
            raise _Stop(self)

    def __getitem__(self, layer: int) -> T:
        number = self.layers[layer].layer if -len(self.layers) <= layer < 0 else layer
        if number not in self._kept:
            raise KeyError(f"layer {layer} was not captured; captured: {list(self._kept)}")
        parts = self._kept[number]
        if not parts:
            reason = "it went to `into`" if self.into is not None else "no forward has run yet"
            raise CaptureError(f"layer {number} has no captured tensors: {reason}")
        if len(parts) > 1:
            parts[:] = [self.join(number, parts)]
        return parts[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _outside(self, model: nn.Module, args: Any, kwargs: Any = None) -> None:
        """Keep what the whole model is given: some hand masks of other shapes to their decoder."""
        if self.here() and kwargs is not None:
            self._outer = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments

    # A hook may be called without kwargs while another thread attaches or removes it.
    def _before(self, decoder: nn.Module, args: Any, kwargs: Any = None) -> None:
        if not self.here():
            return
        given = inspect.signature(decoder.forward).bind_partial(*args, **kwargs).arguments
        mask = given.get("attention_mask", given.get("kwargs", {}).get("attention_mask"))
        if isinstance(mask, Mapping) and self._outer:  # by type of layer
            mask = self._outer.get("attention_mask")
        self._outer = {}
        if self.positions is not None and mask is not None and not _is_flat(mask):
            raise CaptureError(
                f"positions: the padding is unknown, as the attention mask has shape "
                f"{tuple(getattr(mask, 'shape', ()))}; give a mask of shape (batch, tokens)"
            )
        self._mask = mask if _is_flat(mask) and not shows_all(mask) else None
        encoder_mask = given.get("encoder_attention_mask") if self.deepest.cross else None
        known = isinstance(encoder_mask, Tensor) and not shows_all(encoder_mask)
        self._encoder_mask = encoder_mask if known else None
        tokens = tokens_of(given)
        if self._generating:
            self._check_generated(given)
        self._n_tokens = 0 if tokens is None else tokens.shape[1]
        self._now, self._index, self._bounds, self._starts = {}, {}, {}, {}
        if self.stop:
            self._end._forward_hooks.move_to_end(self._last.id)
        self.before_forward(given)

    def _around_generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.here():
            return generate(*args, **kwargs)
        if self.stop:
            raise CaptureError(
                "stop=True ends every forward before the logits, and generate() needs them; "
                "capture with stop=False, or call the model itself"
            )
        self._generating = True
        try:
            return generate(*args, **kwargs)
        finally:
            self._generating = False

    def _check_generated(self, given: dict[str, Any]) -> None:
        """Positions count a forward's tokens, of which generate() mostly gives it one."""
        named = given.get("kwargs", {}) | given
        n_before = getattr(named.get("past_key_values"), "get_seq_length", lambda: 0)()
        wrong = [p for p in self.positions or () if p != -1]
        if n_before and wrong:
            raise CaptureError(
                f"positions: got {wrong[0]}, but generate() runs one new token at a time behind "
                "its KV cache, where only -1 (the newest token) has a meaning; use positions=-1, "
                "or call the model on the generated tokens"
            )

    def before_forward(self, given: dict[str, Any]) -> None:
        """Look at a forward's arguments before it runs."""

    def _locate(self, batch: int, length: int) -> Tensor:
        assert self.positions is not None
        starts, lengths = self._bounds_of(batch, length)
        wanted = torch.tensor(self.positions)
        beyond = (wanted >= lengths[:, None]) | (wanted < -lengths[:, None])
        if beyond.any():
            prompt, column = beyond.nonzero()[0].tolist()
            raise CaptureError(
                f"positions: position {self.positions[column]} is beyond prompt {prompt}, which "
                f"has {int(lengths[prompt])} tokens"
            )
        return starts[:, None] + torch.where(wanted < 0, lengths[:, None] + wanted, wanted)

    def _catch_stops(self, stack: ExitStack) -> None:
        """Wrap the forward of everything a caller may call: the model and the layer's parents."""
        parts = self.deepest.path.split(".")
        around = [self.model.get_submodule(".".join(parts[:n])) for n in range(len(parts))]
        depth = Counter[str]()
        for module in around:
            if not isinstance(module, nn.ModuleList | nn.ModuleDict):
                wrap_method(module, _catch(self, depth), stack)


def _catch(session: Session[Any], depth: Counter[str]) -> Callable[..., Any]:
    def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not session.here():
            return forward(*args, **kwargs)
        depth["calls"] += 1
        try:
            return forward(*args, **kwargs)
        except _Stop as stop:
            if stop.session is not session or depth["calls"] > 1:
                raise
            return None
        finally:
            depth["calls"] -= 1

    return around


def _checked(positions: Positions) -> tuple[int, ...] | None:
    if positions is None:
        return None
    chosen = whole_numbers(positions)
    if not chosen:
        raise ValueError(
            f"positions: got {positions!r}, accepted: None for all, a number, a list of numbers"
        )
    return tuple(chosen)


def tokens_of(given: dict[str, Any]) -> Tensor | None:
    """The tokens or embeddings among a forward's arguments: (batch, tokens, ...)."""
    named = given.get("kwargs", {}) | given
    found = (named.get(name) for name in ("input_ids", "inputs_embeds"))
    return next((x for x in found if isinstance(x, Tensor) and x.ndim > 1), None)


def _is_flat(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.ndim == 2


def _bounds(mask: Tensor | None, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """First token and number of tokens of each prompt."""
    if mask is None:
        return torch.zeros(batch, dtype=torch.int64), torch.full((batch,), length)
    # With a cache the mask also covers earlier tokens; these tensors hold the last ones.
    real = mask[:, -length:].bool()
    starts, lengths = real.int().argmax(dim=1), real.sum(dim=1)
    ends = length - real.flip(1).int().argmax(dim=1)
    if not torch.equal(ends - starts, lengths):
        raise CaptureError("the attention mask has holes; pad prompts on the left or the right")
    return starts, lengths
