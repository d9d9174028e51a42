"""The attention of a decoder: causal, with its positions and its way from logits to weights.

The plain softmax is torch's own attention, where nobody asks for the weights; all others compute
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.synthetic.calibration import Calibrated
from llmprobe.synthetic.layers import Drop, SeedLinear, no_drop
from llmprobe.synthetic.positions import POSITIONS, Positions, spread
from llmprobe.synthetic.softmaxes import (
    SOFTMAXES,
    LinearWeights,
    RandomQueries,
    Softmax,
    SparseKeys,
    SparseQueries,
)
from llmprobe.synthetic.variants import Part

DECODER_SOFTMAXES = {
    **SOFTMAXES,
    "linear": Part("softmax", "ReLU features of queries and keys, without softmax", LinearWeights),
    "linear-swap": Part(
        "softmax", "linear, fine-tuned from the trained softmax", LinearWeights, staged=True
    ),
    "sparse": Part(
        "softmax", "queries with a high largest logit attend, others take the mean", SparseQueries
    ),
    "sparse-keys": Part("softmax", "only keys that some query wants are attended to", SparseKeys),
    "sparse-random": Part("softmax", "sparse with queries chosen by lot, a control", RandomQueries),
}


class AttentionConfig:
    """How attention is computed, as transformers keep it: `sdpa`, or `eager` with its weights."""

    _attn_implementation = "sdpa"


class DecoderAttention(nn.Module):
    """Attention of all positions: (batch, n, width) to the same, and eager weights."""

    def __init__(
        self,
        width: int,
        heads: int,
        value_size: int,
        *,
        seeds: int,
        layer_idx: int,
        parts: dict[str, str],
        context: int = 0,
        causal: bool = True,
    ) -> None:
        """`context`: the most tokens, for a calibrated bias; `causal`: False for an encoder."""
        super().__init__()
        self.is_causal = causal
        self.config = AttentionConfig()
        self.layer_idx = layer_idx
        self.maps = heads
        """Matrices of logits."""
        softmax: Any = DECODER_SOFTMAXES[parts["softmax"]].build if "softmax" in parts else Softmax
        # Differential attention has two maps a head: half the heads, their values twice as wide.
        self.num_heads = heads // softmax.maps
        self.q_proj = SeedLinear(seeds, width, width, bias=False)
        self.k_proj = SeedLinear(seeds, width, width, bias=False)
        self.v_proj = SeedLinear(seeds, width, heads * value_size, bias=False)
        self.o_proj = SeedLinear(seeds, heads * value_size, width, bias=False)
        self.softmax: Softmax = softmax(
            seeds,
            self.num_heads,
            width // heads,
            value_size=value_size * softmax.maps,
            depth=layer_idx,
        )
        self.softmax.cold = "temperature" in parts
        kind = POSITIONS[parts["positions"]].build if "positions" in parts else Positions
        self.positions: Positions = kind(seeds, heads)
        self.calibrated = Calibrated(seeds, heads, context) if "bias" in parts else None

    def forward(
        self, x: Tensor, drop: Drop = no_drop, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """`places` as in `Decoder`."""
        if places is None:
            seeds = len(self.q_proj.weight)
            places = torch.arange(x.shape[1], device=x.device).expand(seeds, -1)
        q = self.q_proj(x).unflatten(-1, (self.maps, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.maps, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q, k = self.positions.turn(q, k, places)
        bias = self._bias(places)
        bias = None if bias is None else bias.to(q)
        seen = torch.ones(q.shape[2], q.shape[2], device=x.device, dtype=torch.bool)
        seen = seen.tril() if self.is_causal else seen
        weights = None
        plain = type(self.softmax) is Softmax and not self.softmax.cold
        if plain and drop is no_drop and self.config._attn_implementation == "sdpa":
            if bias is None:
                heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
            else:
                mask = spread(bias.masked_fill(~seen, -torch.inf), len(q))
                heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            weights = self.softmax.weigh(q, k, seen, bias)
            heads = drop(weights) @ v
        # A norm of heads is given rows, so that a probe does not take it for the projection.
        shape = heads.shape
        heads = self.softmax.norm(heads.flatten(0, 2)).view(shape)
        return self.o_proj(heads.transpose(1, 2).flatten(2)), weights

    def _bias(self, places: Tensor) -> Tensor | None:
        bias = self.positions.bias(places)
        if self.calibrated is None:
            return bias
        lines = spread(self.calibrated(places.shape[1]), len(places))
        return lines if bias is None else bias + lines


@contextmanager
def weights_seen(network: nn.Module) -> Iterator[list[Tensor]]:
    """A list that each layer's attention weights are added to, in a forward inside the context."""
    rows: list[Tensor] = []
    hooks = []
    layers = [module for module in network.modules() if isinstance(module, DecoderAttention)]
    before = [layer.config for layer in layers]
    for layer in layers:
        layer.config = AttentionConfig()
        layer.config._attn_implementation = "eager"
        hooks.append(layer.register_forward_hook(lambda _, __, made: rows.append(made[1])))
    try:
        yield rows
    finally:
        for hook in hooks:
            hook.remove()
        for layer, config in zip(layers, before, strict=True):
            layer.config = config
