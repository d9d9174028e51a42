"""Tiny random encoder-decoders of many families, and what plain hooks find in them.

Nothing here knows of `Part`: modules are named by hand, and the whole model is called.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel

from llmprobe.capture.parts import PARTS

_T5 = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_GEMMA = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
_T5_PATHS = {
    "encoder": "encoder.block.{}.layer.0.SelfAttention",
    "decoder": "decoder.block.{}.layer.0.SelfAttention",
    "cross": "decoder.block.{}.layer.1.EncDecAttention",
}
_BART_PATHS = {
    "encoder": "encoder.layers.{}.self_attn",
    "decoder": "decoder.layers.{}.self_attn",
    "cross": "decoder.layers.{}.encoder_attn",
}


@dataclass(frozen=True)
class Family:
    settings: dict[str, Any]
    paths: dict[str, str]
    projection: str
    refused: dict[str, str]
    """Parts that cannot be served, with the words of the refusal."""


def _t5(refused: dict[str, str] | None = None, **more: Any) -> Family:
    return Family(_T5 | more, _T5_PATHS, "o", refused or {})


def _bart(refused: dict[str, str] | None = None, *, cross: str = "", **more: Any) -> Family:
    paths = _BART_PATHS | ({"cross": cross} if cross else {})
    return Family(_BART | more, paths, "out_proj", refused or {})


_FLOAT32 = ("fsmt", "t5gemma")
"""Their masks have no numbers of float64."""
_NOT_FOUND = {"encoder": "has no attention that llmprobe can find"}
_OTHER_SHAPE = "keeps head outputs in shape"
ENCODER_DECODERS: dict[str, Family] = {
    "t5": _t5(),
    "mt5": _t5(),
    "umt5": _t5(),
    "switch_transformers": _t5(
        num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1
    ),
    "t5gemma": Family(
        {"encoder": _GEMMA, "decoder": _GEMMA | {"cross_attention_hidden_size": 32}}
        | {"vocab_size": 97, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
        _BART_PATHS | {"cross": "decoder.layers.{}.cross_attn"},
        "o_proj",
        {},
    ),
    "bart": _bart(),
    "mbart": _bart(),
    "pegasus": _bart(),
    "marian": _bart(),
    "blenderbot": _bart(),
    "blenderbot-small": _bart(),
    "m2m_100": _bart(),
    "nllb-moe": _bart(
        cross="decoder.layers.{}.cross_attention",
        num_experts=4,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
        expert_capacity=64,
    ),
    "plbart": _bart(),
    "mvp": _bart(),
    "longt5": _t5(_NOT_FOUND),
    "led": _bart(
        _NOT_FOUND,
        attention_window=4,
        max_encoder_position_embeddings=128,
        max_decoder_position_embeddings=128,
    ),
    "bigbird_pegasus": _bart({"encoder": "replaces its sparse attention"}),
    "pegasus_x": _bart({"encoder": _OTHER_SHAPE}, block_size=4, num_global_tokens=2),
    "fsmt": _bart(
        dict.fromkeys(PARTS, _OTHER_SHAPE),
        src_vocab_size=97,
        tgt_vocab_size=97,
        langs=["en", "de"],
    ),
    "prophetnet": Family(
        {"vocab_size": 97, "hidden_size": 32, "max_position_embeddings": 128}
        | {"encoder_ffn_dim": 48, "num_encoder_layers": 2, "num_encoder_attention_heads": 4}
        | {"decoder_ffn_dim": 48, "num_decoder_layers": 2, "num_decoder_attention_heads": 4}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0},
        {},
        "",
        dict.fromkeys(PARTS, _NOT_FOUND["encoder"]),
    ),
}
SERVED = [
    (name, part) for name, x in ENCODER_DECODERS.items() for part in PARTS if part not in x.refused
]
REFUSED = [(name, part) for name, x in ENCODER_DECODERS.items() for part in x.refused]


@cache
def encoder_decoder(family: str, attention: str | None = None) -> Any:
    """A model with weights that make its attention anything but uniform."""
    settings = ENCODER_DECODERS[family].settings
    if family == "fsmt":
        settings = {name: x for name, x in settings.items() if name != "vocab_size"}
    config = AutoConfig.for_model(family, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(config, attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.data.normal_(0, 0.2)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200_000
    # Logits of T5 are large, so that rounding shows in float32.
    model = model if family in _FLOAT32 else model.double()
    return model.eval().requires_grad_(False)


@dataclass
class Plain:
    """By layer: outputs (batch, queries, hidden), heads (..., heads, size), eager weights."""

    outputs: dict[int, torch.Tensor]
    heads: dict[int, torch.Tensor]
    weights: dict[int, torch.Tensor]


def plain(family: str, part: str, inputs: dict[str, torch.Tensor]) -> Plain:
    """What hooks on the modules of one part find, with eager attention."""
    model, facts = encoder_decoder(family, "eager"), ENCODER_DECODERS[family]
    found = Plain({}, {}, {})
    handles = []
    for number in (0, 1):

        def project(module, args, output, n=number):
            found.heads[n], found.outputs[n] = args[0].unflatten(-1, (4, 8)), output

        def after(module, args, output, n=number):
            found.weights[n] = [x for x in output[1:] if x is not None and x.ndim == 4][-1]

        module = model.get_submodule(facts.paths[part].format(number))
        handles.append(module.register_forward_hook(after))
        handles.append(getattr(module, facts.projection).register_forward_hook(project))
    try:
        asked = {"output_attentions": True} if family in ("mvp", "led") else {}
        model(**inputs, **asked, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return found


def read(family: str, part: str, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """The arguments with which the part reads these tokens."""
    config = encoder_decoder(family).config
    start = getattr(config, "decoder_start_token_id", None)
    start = config.bos_token_id if start is None else start
    one, every = tokens[:, :1], torch.ones_like(tokens)
    if part == "decoder":
        empty = torch.full_like(one, config.eos_token_id)
        read = {"decoder_input_ids": tokens, "decoder_attention_mask": every}
        return {"input_ids": empty} | read
    read = {"input_ids": tokens, "attention_mask": every}
    return read | {"decoder_input_ids": torch.full_like(one, start)}


def gather(family: str, part: str, prompts: Any, lengths: tuple[int, ...], at: str) -> np.ndarray:
    """Every prompt alone at its query: (prompts, lengths, layers, *heads, features)."""
    found = []
    for index in range(prompts.n_prompts):
        rows = []
        for length in lengths:
            got = plain(family, part, read(family, part, prompts.batch([index], length)))
            kept = got.heads if at == "heads" else got.outputs
            rows.append(np.stack([kept[n][0, -1 if part == "decoder" else 0] for n in (0, 1)]))
        found.append(np.stack(rows))
    return np.stack(found).astype(np.float64)
