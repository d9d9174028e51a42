"""A model's shapes from its config alone: enough to plan a run before any weight is loaded.

outline = load_outline("meta-llama/Llama-3.2-1B")
outline.model                      # on the meta device: shapes, no numbers
outline_layers(outline.model)      # the attention layers, or None if only a run would tell
"""

from dataclasses import replace
from typing import Any

from torch import nn

from llmprobe.capture.discovery import (
    HEADS,
    KV_HEADS,
    AttentionLayer,
    declared_attention,
    decoder_of,
    layer_number,
    number_of,
)
from llmprobe.capture.loading import LoadedModel, load_model
from llmprobe.capture.parts import is_cross, whole_of

_HIDDEN = ("hidden_size", "n_embd", "embed_dim", "d_model")
_HEAD_SIZE = ("v_head_dim", "head_dim", "head_size", "key_value_proj_dim")


def load_outline(name: str, **load: Any) -> LoadedModel:
    """What `load_model` gives, without weights and without a tokenizer."""
    return load_model(name, weights=False, **load)


def outline_layers(model: nn.Module) -> tuple[AttentionLayer, ...] | None:
    """The attention layers as the model and its config declare them.

    Their number, place and size: what a plan needs. `attention_layers` runs the model, which tells
    the rest. None where the model declares no attention classes, or not their sizes.
    """
    decoder, cross = decoder_of(model), is_cross(model)
    paths = {id(module): path for path, module in whole_of(model).named_modules()}
    found = []
    for module in declared_attention(decoder, cross=cross):
        hidden = number_of(module, _HIDDEN) or number_of(decoder, _HIDDEN)
        n_heads = number_of(module, HEADS) or number_of(decoder, HEADS)
        if not hidden or not n_heads:
            return None
        layer = AttentionLayer(
            layer=layer_number(paths[id(module)], module),
            path=paths[id(module)],
            type="full",
            n_heads=n_heads,
            n_kv_heads=number_of(module, KV_HEADS) or number_of(decoder, KV_HEADS) or n_heads,
            head_size=number_of(module, _HEAD_SIZE) or hidden // n_heads,
            hidden_size=hidden,
            projection="",
            output=paths[id(module)],
            interface=False,
            last_only=False,
            cross=cross,
        )
        found.append(layer)
    if len({layer.layer for layer in found}) < len(found):  # as `attention_layers` numbers them
        found = [replace(layer, layer=number) for number, layer in enumerate(found)]
    return tuple(found) or None
