"""The loss of every token of a prompt, without all logits at once.

    losses = token_losses(model, tokens)          # (prompts, tokens − 1), in nats
    losses[:, 255]                                # of token 256, given the 256 before it
    again = ending_losses(model, tokens, 64)      # what is before the last 64 tokens runs once
    with edit_attention(model, heads={0: [3]}, outputs=ablate()):
        again()                                   # (prompts, 64), edited at these tokens alone

The layers run once. The head then runs on a few positions at a time: the model's own forward is
called again with the layers' output for those positions in place of its layers, so scales, soft
caps and biases of a family's head are the model's own. Logits of 16,384 positions over 128,000
tokens would take 8 GiB; a slice of them takes 16 MiB.

Hooks and edits that are attached to the model see one ordinary forward.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from llmprobe.base.transfers import upload
from llmprobe.capture.calls import Owner
from llmprobe.capture.discovery import attention_layers, decoder_of, input_device
from llmprobe.capture.loading import AnyModel, module_of
from llmprobe.capture.parts import whole_of
from llmprobe.capture.wrapping import check_plain, wrap_method
from llmprobe.errors import UnsupportedModelError

_SLICE = {"cpu": 2**22}
_OTHER_SLICE = 2**26
"""Logits in a slice, on the CPU and elsewhere."""
_CHECKED = 24
"""Tokens of the prompt on which slices are compared with the whole."""


def token_losses(model: AnyModel, tokens: Tensor, *, chunk: int | None = None) -> Tensor:
    """Nats of each token but the first, given all before it: (prompts, tokens − 1).

    `tokens` (prompts, tokens) has no padding. With a `chunk`, prompts run so many tokens at a time
    over a KV cache. Losses are float32, or float64 where the logits are.
    """
    module = module_of(model)
    check_plain(module)
    tokens = upload(tokens, input_device(module))
    length = tokens.shape[1]
    if length < 2:
        raise ValueError(f"tokens: got {length} in a prompt, accepted: 2 or more")
    if chunk is None or chunk >= length:
        return _Slices(module).losses(tokens, tokens[:, 1:], **_without_cache(module))
    cache: Any = DynamicCache(config=module.config)
    parts = []
    for start in range(0, length - 1, chunk):
        targets = tokens[:, start + 1 : start + chunk + 1]
        some = tokens[:, start : start + chunk]
        parts.append(_Slices(module).losses(some, targets, past_key_values=cache, use_cache=True))
    return torch.cat(parts, dim=1)


def ending_losses(
    model: AnyModel, tokens: Tensor, n: int, *, chunk: int | None = None
) -> Callable[[], Tensor]:
    """A function that gives the losses of the last n tokens (prompts, n), as often as it is called.

    The tokens before them run once, now, into a KV cache. An edit that is attached when the
    function is called acts at the n positions that predict, not in the context. Not for models
    that give other outputs over a cache than without one.
    """
    module = module_of(model)
    check_plain(module)
    tokens = upload(tokens, input_device(module))
    if not 0 < n < tokens.shape[1]:
        raise ValueError(f"n: got {n}, accepted: 1 to {tokens.shape[1] - 1}, less than the prompt")
    context, ending, targets = tokens[:, : -n - 1], tokens[:, -n - 1 : -1], tokens[:, -n:]
    if not context.shape[1]:
        return lambda: _Slices(module).losses(ending, targets, **_without_cache(module))
    cache: Any = DynamicCache(config=module.config)
    with torch.no_grad():  # tensors with a gradient cannot be copied
        for some in context.split(chunk or context.shape[1], dim=1):
            _Slices(module).last(some, 1, past_key_values=cache, use_cache=True)

    def losses() -> Tensor:
        # A copy, because a forward adds to its cache and windows drop what leaves them.
        kept = copy.deepcopy(cache)
        return _Slices(module).losses(ending, targets, past_key_values=kept, use_cache=True)

    return losses


def last_logits(model: AnyModel, tokens: Tensor, n: int = 1) -> Tensor:
    """Logits (prompts, n, vocabulary) behind the last n positions; the head runs on those alone."""
    module = module_of(model)
    check_plain(module)
    tokens = upload(tokens, input_device(module))
    return _Slices(module).last(tokens, n, **_without_cache(module))


def check_head(model: AnyModel, tokens: Tensor) -> None:
    """Refuse a model without a head, or one whose head cannot run on a few positions."""
    module = module_of(model)
    few = upload(tokens[:1, :_CHECKED], input_device(module))
    with torch.inference_mode():
        sliced = _Slices(module, width=5).losses(few, few[:, 1:], **_without_cache(module))
        logits = module(few, **_without_cache(module)).logits
        whole = _nats(logits[:, :-1], few[:, 1:].to(logits.device))
    exact = logits.dtype in (torch.float32, torch.float64)
    if not torch.allclose(sliced, whole, rtol=0, atol=1e-4 if exact else 0.1, equal_nan=True):
        worst = float((sliced - whole).abs().max())
        raise UnsupportedModelError(
            f"the head of {type(module).__name__} gives other losses for some positions than for "
            f"all (by {worst:.2g} nats), so it cannot run in slices; use another model"
        )


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (prompts, positions) in float32 or better."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    flat = functional.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


class _Slices:
    """A forward whose layers run once and whose head runs on a few positions at a time."""

    def __init__(self, model: nn.Module, width: int | None = None) -> None:
        self.model, self.decoder = model, _layers_of(model)
        self.width = width
        self.seen: Any = None
        """What the layers gave."""
        self.part = slice(0, 1)
        """The positions that the head is given."""

    def last(self, tokens: Tensor, n: int, **options: Any) -> Tensor:
        self.part = slice(tokens.shape[1] - n, tokens.shape[1])
        with self._attached():
            return self._logits(tokens, options)

    def losses(self, tokens: Tensor, targets: Tensor, **options: Any) -> Tensor:
        found: Tensor | None = None
        n_done, n_positions = 0, targets.shape[1]
        with self._attached():
            while n_done < n_positions:
                # The first slice is one position: it says how many logits there are.
                self.part = slice(n_done, min(n_done + self._width(len(tokens)), n_positions))
                logits = self._logits(tokens, options)
                nats = _nats(logits, targets[:, self.part].to(logits.device))
                if found is None:  # at once: what is kept between slices would pin the heap
                    found = nats.new_empty(targets.shape)
                found[:, self.part] = nats
                n_done = self.part.stop
                del logits, nats
        assert found is not None, "there is a position"
        return found

    @contextmanager
    def _attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.owner = Owner()
            stack.callback(self.owner.leave)
            wrap_method(self.decoder, self._around, stack)
            yield

    def _logits(self, tokens: Tensor, options: dict[str, Any]) -> Tensor:
        """Logits of the positions `part`."""
        logits: Tensor | None = getattr(self.model(tokens, **options), "logits", None)
        if logits is None:
            raise _no_head(self.model)
        self.vocab_size = logits.shape[-1]
        return logits

    def _width(self, n_prompts: int) -> int:
        if self.width is not None:
            return self.width
        if self.seen is None:
            return 1
        most = _SLICE.get(input_device(self.model).type, _OTHER_SLICE)
        return max(1, most // (n_prompts * self.vocab_size))

    def _around(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.owner.here():
            return forward(*args, **kwargs)
        if self.seen is None:
            self.seen = forward(*args, **kwargs)
        return _with_hidden(self.seen, self.part)


def _layers_of(model: nn.Module) -> nn.Module:
    """The part of a model that the head stands behind."""
    decoder = decoder_of(model)
    if decoder is model:  # some families do not name theirs
        child = attention_layers(model)[0].path.split(".")[0]
        decoder = model.get_submodule(child)
    if isinstance(decoder, nn.ModuleList | nn.ModuleDict):
        raise _no_head(model)
    return decoder


def _with_hidden(output: Any, part: slice) -> Any:
    """The decoder's output with the hidden states of some positions only."""
    if isinstance(output, tuple):
        return (output[0][:, part], *output[1:])
    return type(output)(**{**output, "last_hidden_state": output.last_hidden_state[:, part]})


def _no_head(model: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(whole_of(model)).__name__} predicts no tokens: it gives no logits behind its "
        "layers; load it with its language model head (AutoModelForCausalLM)"
    )


def _without_cache(model: nn.Module) -> dict[str, Any]:
    takes_cache = "use_cache" in inspect.signature(model.forward).parameters
    return {"use_cache": False} if takes_cache else {}
