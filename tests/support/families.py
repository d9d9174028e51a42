"""Tiny random models of many families, all through the same few lines."""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from devices import DEVICE
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from llmprobe.capture.discovery import attention_layers

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MOE: dict[str, Any] = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT: dict[str, Any] = _MOE | {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
_SLIDING: dict[str, Any] = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
_ALL_KV: dict[str, Any] = {"num_key_value_heads": None}  # None: not a setting of this family
_MAMBA: dict[str, Any] = {"mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 2}

OUTSIDE: dict[str, dict[str, Any]] = {
    "jetmoe": _MOE | {"kv_channels": 8},
    "diffllama": {},
    "minimax": _MOE
    | {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "block_size": 4,
    },
}
"""Families that some path cannot serve, and must refuse."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "gpt_neox": {},
    "gpt_bigcode": {},
    "qwen2": {},
    "qwen2_moe": _MOE | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "qwen3": {},
    "qwen3_moe": _MOE | {"moe_intermediate_size": 16},
    "gemma": {},
    "gemma2": _SLIDING | {"query_pre_attn_scalar": 8},
    "gemma3_text": _SLIDING | {"query_pre_attn_scalar": 8},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": _ALL_KV,
    "falcon": _ALL_KV | {"head_dim": None},
    "mpt": _ALL_KV | {"max_seq_len": 128},
    "gptj": _ALL_KV | {"rotary_dim": 4},
    "codegen": _ALL_KV | {"rotary_dim": 4},
    "gpt_neo": _ALL_KV
    | {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "phi": {},
    "phi3": {},
    "mistral": {"sliding_window": 4},
    "mixtral": _MOE,
    "olmo": {},
    "olmo2": {},
    "olmoe": _MOE,
    "cohere": {},
    "cohere2": _SLIDING,
    "stablelm": {},
    "starcoder2": {},
    "deepseek_v3": _LATENT | {"first_k_dense_replace": 1},
    "gpt_oss": _SLIDING | _MOE,
    "granite": {},
    "glm4": {},
    "nemotron": {},
    "smollm3": {},
    "ernie4_5": {},
    "biogpt": {},
    "bert": {"is_decoder": True},  # its output projection lies outside of the attention module
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "olmo3": _SLIDING,
    "llama4_text": _MOE
    | {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 4}
    | {"no_rope_layers": [1, 0], "intermediate_size_mlp": 48},
    # Sparse attention: a top-k of the keys for each query.
    "glm_moe_dsa": _LATENT | {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "jamba": _MOE
    | _MAMBA
    | {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 2}
    | {"use_mamba_kernels": False},
    "qwen3_next": _MOE
    | {
        "layer_types": ["linear_attention", "full_attention"],
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}


@cache
def tiny(family: str, attention: str | None = None, seed: int = 0) -> Any:
    """A model of the family with weights that make its attention anything but uniform."""
    settings = COMMON | (FAMILIES | OUTSIDE)[family]
    config = AutoConfig.for_model(family, **{k: v for k, v in settings.items() if v is not None})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.data.normal_(0, 0.2)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert n_parameters < 200_000, f"{family} is not tiny: {n_parameters} parameters"
    return model.eval().requires_grad_(False).to(DEVICE)


@dataclass
class Reference:
    """What a plain forward with eager attention gives, everything kept."""

    logits: torch.Tensor
    outputs: dict[int, torch.Tensor]
    heads: dict[int, torch.Tensor]
    weights: dict[int, torch.Tensor]


def reference(family: str, inputs: dict[str, torch.Tensor]) -> Reference:
    """Brute force: hooks of our own on a model that was built with eager attention."""
    model = tiny(family, "eager")
    got = Reference(torch.empty(0), {}, {}, {})
    handles = []
    for layer in attention_layers(model):

        def after(module, args, output, n=layer.layer):
            got.weights[n] = next(x for x in output[1:] if x is not None and x.ndim == 4)

        def project(module, args, output, layer=layer):
            got.heads[layer.layer] = args[0].unflatten(-1, (layer.n_heads, -1))
            got.outputs[layer.layer] = output

        handles.append(model.get_submodule(layer.path).register_forward_hook(after))
        handles.append(model.get_submodule(layer.projection).register_forward_hook(project))
    try:
        got.logits = model(**inputs, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return got


def batch(family: str, lengths: tuple[int, ...], side: str = "right") -> dict[str, torch.Tensor]:
    """Random prompts of these lengths in one padded batch, with positions where they are taken."""
    longest = max(lengths)
    tokens = torch.zeros(len(lengths), longest, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        prompt = torch.randint(3, 97, (length,), generator=torch.Generator().manual_seed(row))
        where = slice(longest - length, None) if side == "left" else slice(length)
        tokens[row, where], mask[row, where] = prompt, 1
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if "position_ids" in inspect.signature(tiny(family).forward).parameters:
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return {name: x.to(DEVICE) for name, x in inputs.items()}


def state(model):
    """All that a capture or an edit touches, by module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    names = [f"{hook}{more}" for hook in hooks for more in ("", "_with_kwargs")]
    modules = [
        (name, list(vars(m)), [dict(vars(m)[n]) for n in names], vars(m).get("forward"))
        for name, m in model.named_modules()
    ]
    return modules, model.config.to_dict(), model.config._attn_implementation


def no_positions(n_heads=4, size=8, seed=0):
    """A Llama without positions that matter, whose logits are small: Proposition 1's setting."""
    config = LlamaConfig(
        vocab_size=211,
        hidden_size=n_heads * size,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        rope_parameters={"rope_type": "default", "rope_theta": 1e30},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
        model.model.layers[0].self_attn.q_proj.weight.data *= 0.1
    model.model.rotary_emb.inv_freq.zero_()
    return model.to(DEVICE)
