"""Tiny random encoders of many families, and what plain hooks find in them."""

from functools import cache
from typing import Any

import numpy as np
import torch
from devices import DEVICE
from families import COMMON
from transformers import AutoConfig, AutoModel

from llmprobe.capture.discovery import attention_layers

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "max_position_embeddings": 130},
    "xlm-roberta": {},
    "electra": {"embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "mpnet": {"pad_token_id": 1, "max_position_embeddings": 130},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 4}
    | {"cls_token_id": 1, "sep_token_id": 2},
    "nomic_bert": {},
    "eurobert": {},
    "esm": {},
    "layoutlm": {},
    "camembert": {"pad_token_id": 1, "max_position_embeddings": 130},
    "ernie": {},
    "gte": {},
    "xlm": {"emb_dim": 32, "n_heads": 4, "n_layers": 2},
    # Weights times values are computed in the module, the projection comes behind it:
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "roformer": {"embedding_size": 32},
    "megatron-bert": {},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 32},
}
_OTHER = "what it returns is not its weights times its values"
_NONE = "has no attention that llmprobe can find"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "albert": ({"embedding_size": 32}, "does not end in an output projection"),
    "deberta": ({}, _OTHER),
    "convbert": ({"embedding_size": 32}, _OTHER),
    "nystromformer": ({}, _OTHER),
    "big_bird": ({}, "replaces its sparse attention by a full one"),
    "longformer": ({}, _NONE),
    "squeezebert": (
        {"embedding_size": 32}
        | {f"{name}_groups": 1 for name in ("q", "k", "v", "post_attention")}
        | {"intermediate_groups": 1, "output_groups": 1},
        _NONE,
    ),
    "fnet": ({}, _NONE),
}
WITHOUT_INTERFACE = ("mpnet", "xlm", "deberta-v2", "roformer", "megatron-bert", "rembert", "luke")


@cache
def encoder(family: str, attention: str | None = None) -> Any:
    """A model with weights that make its attention anything but uniform."""
    own = REFUSED[family][0] if family in REFUSED else ENCODERS[family]
    config = AutoConfig.for_model(family, **(COMMON | own))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(config, attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.data.normal_(0, 0.2)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200_000
    return model.eval().requires_grad_(False).to(DEVICE)


def plain(family: str, tokens: torch.Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    """Head outputs (batch, tokens, heads, size) and weights, by hooks on eager attention."""
    model = encoder(family, "eager")
    heads: dict[int, Any] = {}
    weights: dict[int, Any] = {}
    handles = []
    for layer in attention_layers(model):

        def project(module, args, output, layer=layer):
            heads[layer.layer] = args[0].unflatten(-1, (layer.n_heads, -1))

        def after(module, args, output, n=layer.layer):
            weights[n] = next(x for x in output[1:] if x is not None and x.ndim == 4)

        handles.append(model.get_submodule(layer.projection).register_forward_hook(project))
        handles.append(model.get_submodule(layer.path).register_forward_hook(after))
    try:
        asked = {"output_attentions": True} if family in WITHOUT_INTERFACE else {}
        model(tokens.to(DEVICE), **asked)
    finally:
        for handle in handles:
            handle.remove()
    return heads, weights


def gather(family: str, prompts: Any, lengths: tuple[int, ...], position: str) -> np.ndarray:
    """Heads of every prompt alone: (prompts, lengths, layers, heads, features)."""
    found = []
    for index in range(prompts.n_prompts):
        rows = []
        for length in lengths:
            heads, _ = plain(family, prompts.batch([index], length))
            every = torch.stack([heads[n][0] for n in sorted(heads)])
            at = int({"first": 0, "last": -1}.get(position, position)) if position != "mean" else 0
            rows.append((every.mean(1) if position == "mean" else every[:, at]).cpu().numpy())
        found.append(np.stack(rows))
    return np.stack(found).astype(np.float64)
