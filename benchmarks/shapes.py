"""The models that are measured: shapes of known ones, with weights drawn from their names.

Time and memory depend on the shape and not on what was learned. A parameter's values come from a
generator that its name seeds, so a model of 2 layers begins as one of 16 does, and processes that
build the same model hold the same numbers.
"""

import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from llmprobe import load_model

SPREAD = 0.02
"""Standard deviation of the weights: what Llama's own initialization has."""
# Hidden size, MLP, layers, heads, KV heads, vocabulary.
SHAPES = {
    "llama_1b": (2048, 8192, 16, 32, 8, 128_256),  # Llama-3.2-1B
    "smollm2": (576, 1536, 30, 9, 3, 49_152),  # SmolLM2-135M
    "toy": (512, 1536, 4, 8, 2, 1000),  # small enough for whole matrices of 8,192 tokens
    "narrow": (256, 768, 2, 4, 2, 128_256),  # with nearly all of its weights in the vocabulary
    "tiny": (32, 48, 3, 4, 2, 50),  # for tests
}


def config(shape: str, n_layers: int | None = None) -> LlamaConfig:
    hidden, mlp, own_layers, heads, kv_heads, vocabulary = SHAPES[shape]
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=n_layers or own_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )


def build(shape: str, n_layers: int | None = None, path: Path | None = None) -> PreTrainedModel:
    """A model of a shape, cut to its first layers if a number is given.

    With a `path` it is the real model of that file or folder.
    """
    if path is None:
        return _draw(config(shape, n_layers))
    model = load_model(path, dtype="float32", device="cpu", attn_implementation="sdpa").model
    if n_layers is not None:
        del model.model.layers[n_layers:]
        model.config.num_hidden_layers = n_layers
    return model.eval().requires_grad_(False)


def _draw(config: LlamaConfig) -> LlamaForCausalLM:
    with no_init_weights():
        model = LlamaForCausalLM(config)
    bound = SPREAD * 3**0.5
    for name, weight in model.named_parameters():
        if weight.ndim == 1:  # a norm's
            weight.data.fill_(1)
        else:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            # Uniform: three times as fast to draw as normal, and there may be a billion.
            weight.data.uniform_(-bound, bound, generator=generator)
    return model.eval().requires_grad_(False)


def prompt(model: PreTrainedModel, length: int, n_prompts: int = 1) -> Tensor:
    """Random tokens. A shorter prompt is a prefix of a longer one if there is one prompt."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (n_prompts, length), generator=generator)


def needed_flops(config: Any, length: int, n_positions: int, n_layers_wanted: int) -> int:
    """What a sweep of the first layers cannot do without, in one pass over `length` tokens.

    All of the layers before the deepest wanted one, their attention causal. In the deepest one keys
    and values of all tokens, but queries, rows and output projection of the wanted positions alone.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = getattr(config, "head_dim", None) or hidden // heads
    query, key = hidden * heads * size, hidden * config.num_key_value_heads * size
    weights = 2 * query + 2 * key + 3 * hidden * config.intermediate_size
    whole = 2 * weights * length + 2 * length**2 * heads * size
    rows = 4 * n_positions * length * heads * size
    deepest = 2 * 2 * key * length + 2 * 2 * query * n_positions + rows
    return (n_layers_wanted - 1) * whole + deepest
