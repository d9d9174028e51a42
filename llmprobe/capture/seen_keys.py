"""Attention in which someone else says which keys each query sees.

    with seeing(model, shown):      # (queries, keys), True where a query sees a key
        model(tokens, past_key_values=cache)

Masks that a model is given differ by family, and captures take those of padding only. Here the mask
is put into the call of the attention function, in all layers. What a family's own mask did besides
(a window) is lost, so whoever uses this compares numbers first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from llmprobe.capture.calls import AttentionCall, changing, listening
from llmprobe.capture.discovery import attention_layers
from llmprobe.errors import UnsupportedModelError


@contextmanager
def seeing(model: nn.Module, shown: Tensor) -> Iterator[None]:
    """Let the queries of every forward in the block see these keys, in this thread and context."""
    layers = attention_layers(model)
    if not all(layer.interface for layer in layers):
        raise UnsupportedModelError(
            f"{type(model).__name__} computes attention on its own, so its masks cannot be replaced"
        )
    modules = [model.get_submodule(layer.path) for layer in layers]

    def edit(call: AttentionCall) -> AttentionCall:
        return replace(call, mask=shown[None, None].to(call.query.device))

    def attend(call: AttentionCall) -> Tensor:
        """As `outputs` has it: a model would copy the keys for each of the heads that share one."""
        batch, _, n_queries, _ = call.query.shape
        return call.outputs(torch.arange(n_queries, device=call.query.device).expand(batch, -1))

    with changing(modules, edit), listening(modules, attend):
        yield
