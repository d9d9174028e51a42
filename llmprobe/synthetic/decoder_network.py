"""A causal decoder for tasks with several right answers, from the papers' minimal model to a GPT.

    network = Decoder(32, seeds=(0, 1, 2))          # one layer, one head, attention only
    network = Decoder(61, "mlp+prenorm", width=512, heads=8, layers=8)   # a GPT without positions
    logits = network(tokens).logits                 # (3 * batch, length) to (..., length, vocab)

Every parameter has a first axis for the seeds, as in `layers`. The baseline has no positions, no
norm and no MLP: with one layer and one head it is the minimal model of arXiv 2510.08341, whose
logits are B[last] + Σ a(last, i) D[i]; `complement` has its closed form.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.synthetic.layers import (
    Drop,
    SeedEmbedding,
    SeedLinear,
    SeedMlp,
    SeedNetwork,
    SeedNorm,
    check_heads,
    no_drop,
)
from llmprobe.synthetic.variants import AVERAGES, BASELINE, Part, parse_variant

DECODER_PARTS = {
    "mlp": Part("mlp", "an MLP of four times the width after each attention"),
    "prenorm": Part("norm", "LayerNorm before each attention and MLP, and before the logits"),
    "postnorm": Part("norm", "LayerNorm after each attention and MLP, on the residual stream"),
    "subnorm": Part("norm", "LayerNorm on what each attention and MLP adds to the stream"),
    "nonorm": Part("norm", "no norm, where the task's baseline has one"),
    "learned": Part("positions", "a learned vector for each position"),
    "rotary": Part("positions", "keys and queries turned by their positions"),
    "dropout": Part(
        "dropout", "dropout on embeddings, attention weights and what is added, while training"
    ),
    **AVERAGES,
}


class Predicted(NamedTuple):
    """What a decoder makes of a batch."""

    logits: Tensor
    """(batch, length, vocab): after each token, which comes next."""


class AttentionConfig:
    """How attention is computed, as transformers keep it: `sdpa`, or `eager` with its weights."""

    _attn_implementation = "sdpa"


class DecoderAttention(nn.Module):
    """Causal attention of all positions: (batch, n, width) to the same, and eager weights."""

    def __init__(
        self, width: int, heads: int, value_size: int, seeds: int, layer_idx: int, *, rotary: bool
    ) -> None:
        super().__init__()
        self.config = AttentionConfig()
        self.layer_idx, self.num_heads, self.rotary = layer_idx, heads, rotary
        self.q_proj = SeedLinear(seeds, width, width, bias=False)
        self.k_proj = SeedLinear(seeds, width, width, bias=False)
        self.v_proj = SeedLinear(seeds, width, heads * value_size, bias=False)
        self.o_proj = SeedLinear(seeds, heads * value_size, width, bias=False)

    def forward(self, x: Tensor, drop: Drop = no_drop) -> tuple[Tensor, Tensor | None]:
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary:
            q, k = _turn(q), _turn(k)
        weights = None
        if drop is no_drop and self.config._attn_implementation == "sdpa":
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            later = torch.ones_like(logits, dtype=torch.bool).triu(1)
            weights = logits.masked_fill(later, -torch.inf).softmax(dim=-1)
            heads = drop(weights) @ v
        return self.o_proj(heads.transpose(1, 2).flatten(2)), weights


class DecoderLayer(nn.Module):
    """An attention and, where the variant has one, an MLP, each added to what came in."""

    def __init__(
        self,
        width: int,
        heads: int,
        value_size: int,
        seeds: int,
        layer_idx: int,
        parts: dict[str, str],
    ) -> None:
        super().__init__()
        rotary = parts.get("positions") == "rotary"
        self.attention = DecoderAttention(width, heads, value_size, seeds, layer_idx, rotary=rotary)
        self.mlp = SeedMlp(seeds, width, 4 * width, width) if "mlp" in parts else None
        self.place = parts.get("norm", "nonorm")
        places = ("attention_norm", "mlp_norm")[: 2 if self.mlp else 1]
        norms = places if self.place != "nonorm" else ()
        self.norms = nn.ModuleDict({n: SeedNorm(seeds, width, gain=True, bias=True) for n in norms})

    def forward(self, x: Tensor, drop: Drop = no_drop) -> Tensor:
        x = self._add(x, lambda y: self.attention(y, drop)[0], "attention_norm", drop)
        return x if self.mlp is None else self._add(x, self.mlp, "mlp_norm", drop)

    def _add(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: str, drop: Drop) -> Tensor:
        if norm not in self.norms:
            return x + drop(branch(x))
        if self.place == "prenorm":
            return x + drop(branch(self.norms[norm](x)))
        if self.place == "subnorm":
            return x + drop(self.norms[norm](branch(x)))
        return cast(Tensor, self.norms[norm](x + drop(branch(x))))


class Decoder(SeedNetwork):
    """A decoder for each of some seeds; see the module's docstring."""

    _can_record_outputs: ClassVar = {"attentions": DecoderAttention}

    def __init__(
        self,
        vocab: int,
        variant: str = BASELINE,
        *,
        seeds: Sequence[int] = (0,),
        width: int = 64,
        heads: int = 1,
        layers: int = 1,
        value_size: int | None = None,
        context: int | None = None,
    ) -> None:
        """`value_size`: of a head, width / heads if not given; `context`: of learned positions."""
        super().__init__(
            seeds,
            vocab=vocab,
            variant=variant,
            width=width,
            heads=heads,
            layers=layers,
            value_size=value_size,
            context=context,
        )
        parts = parse_variant(variant, DECODER_PARTS)
        check_heads(width, heads, rotary=parts.get("positions") == "rotary")
        size = width // heads if value_size is None else value_size
        for name, value in {"seeds": len(seeds), "layers": layers, "value_size": size}.items():
            if value < 1:
                raise ValueError(f"{name}: got {value}, accepted: 1 or more")
        n = len(seeds)
        self.variant, self.heads = variant, heads
        self.embedding = SeedEmbedding(n, vocab, width)
        self.positions = None
        if parts.get("positions") == "learned":
            if context is None:
                raise ValueError("learned positions need a context, the most tokens given")
            self.positions = SeedEmbedding(n, context, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, size, n, index, parts) for index in range(layers)
        )
        final = parts.get("norm") == "prenorm"
        self.norm = SeedNorm(n, width, gain=True, bias=True) if final else nn.Identity()
        self.unembedding = SeedLinear(n, width, vocab, bias=False)
        self.draw_weights()

    def get_input_embeddings(self) -> SeedEmbedding:
        return self.embedding

    def forward(
        self, input_ids: Tensor, use_cache: bool = False, drop: Drop = no_drop
    ) -> Predicted:
        """Tokens (batch, length), one seed's after another's; `drop` is training's dropout."""
        if len(input_ids) % len(self.seeds):
            raise ValueError(
                f"input_ids: got {len(input_ids)} sequences, accepted: as many for each of the "
                f"{len(self.seeds)} seeds; member(0) is one seed"
            )
        vocab = self.embedding.num_embeddings
        # On another device the question would hold up the queue.
        if input_ids.device.type == "cpu" and not 0 <= input_ids.min() <= input_ids.max() < vocab:
            raise ValueError(f"input_ids: got tokens that are not of the {vocab}, 0 to {vocab - 1}")
        x = self.embedding(input_ids)
        if self.positions is not None:
            if input_ids.shape[1] > self.positions.num_embeddings:
                raise ValueError(
                    f"input_ids: got {input_ids.shape[1]} tokens, accepted: up to the "
                    f"{self.positions.num_embeddings} learned positions"
                )
            places = torch.arange(input_ids.shape[1], device=input_ids.device)
            x = x + self.positions(places.expand_as(input_ids))
        x = drop(x)
        for layer in self.layers:
            x = layer(x, drop)
        return Predicted(self.unembedding(self.norm(x)))


def _turn(x: Tensor) -> Tensor:
    """Rotary positions: the pairs of (..., n, size) features turned, by angles that grow with n."""
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    speeds = 10_000 ** -(torch.arange(half, device=x.device, dtype=dtype) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * speeds
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
