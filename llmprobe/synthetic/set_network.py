"""The lab's network: one attention over a set, read by an MLP, and the variants of it.

    network = SetNetwork("argmax", "layernorm", seeds=(0, 1, 2))
    answer = network(tokens)           # tokens (3 * batch, length + 1), one seed's after another's

It follows section 3 of arXiv 2410.01104: an MLP for the items and one for the query, one attention
without positions, an MLP that reads its output. Every parameter has a first axis for the seeds,
which share nothing but the computation; a batch holds as many sets for each of them. A variant is
`baseline` or a few names of `PARTS` joined by a plus, such as `layernorm+ssmax`. Seeds may have
variants of their own that differ in which norms they have.

The attention answers for the query alone, so its output has one position. Where a norm stands is a
part of its name, from the inside out:

    each head        headnorm, headnorm-gain         before W_O
    heads joined     concatnorm, concatnorm-fixed    before W_O
    output           layernorm, standardize, rmsnorm behind W_O, before the residual sum
    sum with query   postnorm, postnorm-fixed        behind the residual sum; needs `residual`

A network of several heads has W_O; with one head `outproj` adds it. A capture sees the attention
output, behind W_O and before the last two.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.synthetic.layers import (
    Drop,
    SeedLinear,
    SeedMlp,
    SeedNetwork,
    SeedNorm,
    by_seed,
    check_heads,
    no_drop,
)
from llmprobe.synthetic.set_tokens import N_CLASSES, VOCAB_SIZE
from llmprobe.synthetic.softmaxes import (
    SOFTMAXES,
    RandomItems,
    Softmax,
    SparseKeys,
    check_temperature,
)
from llmprobe.synthetic.tasks import SetTask
from llmprobe.synthetic.variants import AVERAGES, BASELINE, Part, parse_variant


def _layer_norm(seeds: int, size: int) -> SeedNorm:
    return SeedNorm(seeds, size, gain=True, bias=True)


PARTS = {
    "layernorm": Part("norm", "LayerNorm on the attention output, after W_O", _layer_norm),
    "standardize": Part("norm", "layernorm with fixed gain and no bias", SeedNorm),
    "rmsnorm": Part(
        "norm",
        "RMSNorm on the attention output, after W_O",
        lambda seeds, size: SeedNorm(seeds, size, gain=True, center=False),
    ),
    "headnorm": Part(
        "heads", "LayerNorm on each head, before W_O, with fixed gain and no bias", SeedNorm
    ),
    "headnorm-gain": Part("heads", "headnorm with learned gain and bias", _layer_norm),
    "concatnorm": Part("joined", "LayerNorm on all heads joined, before W_O", _layer_norm),
    "concatnorm-fixed": Part("joined", "concatnorm with fixed gain and no bias", SeedNorm),
    "postnorm": Part("sum", "LayerNorm after the residual sum; needs residual", _layer_norm),
    "postnorm-fixed": Part("sum", "postnorm with fixed gain and no bias", SeedNorm),
    "residual": Part("residual", "the query's vector added to the attention output"),
    "outproj": Part("projection", "W_O for a network of one head; several heads have it"),
    "dropout": Part("dropout", "dropout on the attention output while training"),
    "clipped": Part("clip", "gradients clipped at norm 1 while training, in a run with clip 0"),
    **SOFTMAXES,
    "sparse": Part("softmax", "only the items with the largest logits are attended to", SparseKeys),
    "sparse-random": Part("softmax", "sparse with items chosen by lot, a control", RandomItems),
    "adaptive": Part("temperature", "a colder softmax where it is spread thin, at test time only"),
    **AVERAGES,
}
"""What `build` is given: norms (seeds, size); softmax (seeds, heads, head size)."""
NORM_PLACES = ("heads", "joined", "norm", "sum")
"""From the inside out."""


def parse_set_variant(name: str) -> dict[str, str]:
    """The variant's parts by their place: `layernorm+ssmax` to {"norm": ..., "softmax": ...}."""
    parts = parse_variant(name, PARTS)
    check_temperature(name, parts)
    if "sum" in parts and "residual" not in parts:
        raise ValueError(
            f"variants: {name!r} has no residual sum for its norm; write residual+{parts['sum']}"
        )
    return parts


def check_projection(parts: Mapping[str, str], heads: int) -> None:
    """Refuse a W_O that is there anyway: two names for one network."""
    if "projection" in parts and heads > 1:
        raise ValueError(f"variants: a network of {heads} heads has W_O; leave outproj out")


def check_mlp_layers(layers: Any) -> None:
    """Refuse an MLP without a hidden layer, and more layers than anybody means."""
    if not isinstance(layers, int) or not 2 <= layers <= 100:
        raise ValueError(f"mlp_layers: got {layers!r}, accepted: a whole number, 2 to 100")


def may_share(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether one network can hold seeds of both variants, given by their parts."""
    apart = set(one.items()) ^ set(other.items())
    return all(place in NORM_PLACES and not (place in one and place in other) for place, _ in apart)


def _norm(variants: Sequence[Mapping[str, str]], place: str, size: int) -> nn.Module:
    """The norm of a place, for the seeds whose variants have one."""
    has_it = [place in parts for parts in variants]
    if not any(has_it):
        return nn.Identity()
    norm: SeedNorm = PARTS[variants[has_it.index(True)][place]].build(len(variants), size)
    if not all(has_it):
        norm.register_buffer("only", torch.tensor(has_it), persistent=False)
    return norm


class ItemEmbedding(nn.Module):
    """The hidden layers of the items' MLP: (batch, n) tokens to (batch, n, width).

    A table of all tokens would be far too large, so a token's meaning is computed.
    """

    num_embeddings = VOCAB_SIZE

    def __init__(self, task: str, width: int, seeds: int, layers: int = 2) -> None:
        super().__init__()
        self.task = SetTask.named(task)
        self.first = SeedLinear(seeds, self.task.item_size, width)
        self.middle = nn.ModuleList(SeedLinear(seeds, width, width) for _ in range(layers - 2))

    def forward(self, tokens: Tensor) -> Tensor:
        items = self.task.items(tokens).to(self.first.weight.dtype)
        x = F.gelu(self.first(items))
        for layer in self.middle:
            x = F.gelu(layer(x))
        return x


class SetAttention(nn.Module):
    """Attention of one query over the items of a set, without positions and without a mask.

    The second map of the items' MLP (`i_proj`) and the maps to keys and values are linear, so they
    are multiplied with each other first, and act where there is one vector a set: on the query's
    side, and behind the pooling. An item then costs each head a product with the query and
    one with its weight.
    """

    def __init__(self, width: int, heads: int, variants: Sequence[Mapping[str, str]]) -> None:
        """`variants`: the parts of each seed."""
        super().__init__()
        self.num_heads, self.head_size = heads, width // heads
        parts, seeds = variants[0], len(variants)
        softmax = PARTS[parts["softmax"]].build if "softmax" in parts else Softmax
        self.softmax: Softmax = softmax(seeds, heads, self.head_size)
        self.softmax.cold = "temperature" in parts
        maps = self.softmax.maps * heads
        self.i_proj = SeedLinear(seeds, width, width)
        self.q_proj = SeedLinear(seeds, width, maps * self.head_size, bias=False)
        self.k_proj = SeedLinear(seeds, width, maps * self.head_size, bias=False)
        self.v_proj = SeedLinear(seeds, width, width, bias=False)
        self.norm = _norm(variants, "heads", self.head_size)
        self.joined_norm = _norm(variants, "joined", width)
        # One head needs no projection: its values are already where they go.
        projects = heads > 1 or "projection" in parts
        self.o_proj = SeedLinear(seeds, width, width, bias=False) if projects else nn.Identity()

    def forward(self, query: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, 1, width) and (batch, n, width) to the output and (batch, heads, n) weights."""
        mlp, seeds = self.i_proj, len(self.i_proj.weight)
        assert mlp.bias is not None
        # The axes: seed, set, head, feature; of maps: seed, head, input, output.
        q = self._by_head(by_seed(self.q_proj(query).squeeze(1), seeds)) / math.sqrt(self.head_size)
        keys, values, shift = (
            self._by_head(torch.bmm(x, y)).transpose(1, 2)
            for x, y in (
                (mlp.weight, self.k_proj.weight),
                (mlp.weight, self.v_proj.weight),
                # The bias is left out of the keys: there it would add the same number to all logits
                # of a set, which changes no softmax here.
                (mlp.bias[:, None], self.v_proj.weight),
            )
        )
        both: dict[str, Tensor] = {}
        asked = _map_heads(q, keys.mT).reshape(len(hidden), -1, hidden.shape[-1])
        weights = self.softmax(_Ask.apply(asked, hidden, both))
        pooled = by_seed(_Pool.apply(weights, hidden, both), seeds)
        mass = by_seed(weights.sum(dim=-1, keepdim=True), seeds)
        heads = torch.addcmul(_map_heads(pooled, values), mass, shift.transpose(1, 2)).flatten(0, 1)
        # Norms are given rows, so that a probe does not take one for the output projection.
        rows = self.norm(self.softmax.norm(heads).flatten(0, 1))
        joined = self.joined_norm(rows.view(len(hidden), -1))
        return self.o_proj(joined[:, None]), weights

    def _by_head(self, x: Tensor) -> Tensor:
        """(..., heads * head size) to (..., heads, head size)."""
        return x.unflatten(-1, (-1, self.head_size))


def _map_heads(x: Tensor, maps: Tensor) -> Tensor:
    """(seeds, batch, heads, inputs) by each head's own map, (seeds, heads, inputs, outputs)."""
    return (x.transpose(1, 2) @ maps).transpose(1, 2)


class _Ask(torch.autograd.Function):
    """Logits of what is asked (batch, heads, width) about the items (batch, n, width).

    The items are used again by `_Pool`, and the gradient of each use is an outer product, as large
    as all items. `_Pool` leaves its factors in `both`, for one product of twice the depth here.
    """

    @staticmethod
    def forward(ctx: Any, asked: Tensor, hidden: Tensor, both: dict[str, Tensor]) -> Tensor:
        ctx.save_for_backward(asked, hidden)
        ctx.both = both
        return torch.bmm(asked, hidden.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        asked, hidden = ctx.saved_tensors
        # Taken out: the weights know the graph, and the graph holds `both`, which nothing would
        # ever free.
        weights, of_pool = ctx.both.pop("weights"), ctx.both.pop("gradient")
        left = torch.cat([gradient, weights], dim=1)
        right = torch.cat([asked, of_pool], dim=1)
        return torch.bmm(gradient, hidden), torch.bmm(left.transpose(1, 2), right), None


class _Pool(torch.autograd.Function):
    """The items (batch, n, width) by their weights (batch, heads, n), summed."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, hidden: Tensor, both: dict[str, Tensor]) -> Tensor:
        ctx.save_for_backward(weights, hidden)
        ctx.both = both
        return torch.bmm(weights, hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        weights, hidden = ctx.saved_tensors
        ctx.both |= {"weights": weights, "gradient": gradient}
        return torch.bmm(gradient, hidden.transpose(1, 2)), None, None


class Answer(NamedTuple):
    """What a network makes of a batch of sets."""

    logits: Tensor
    """(batch, classes)"""
    output: Tensor
    """What the reading MLP is given, behind all norms and the residual sum: (batch, width)."""
    weights: Tensor
    """(batch, heads, n)"""


class SetNetwork(SeedNetwork):
    """One attention over a set, for each of some seeds; see the module's docstring."""

    _can_record_outputs: ClassVar = {"attentions": SetAttention}

    def __init__(
        self,
        task: str,
        variant: str | Sequence[str] = BASELINE,
        *,
        seeds: Sequence[int] = (0,),
        width: int = 128,
        heads: int = 1,
        mlp_layers: int = 2,
    ) -> None:
        """`variant`: of all seeds, or one for each; `mlp_layers`: linear maps of each of the three
        MLPs, 2 or more."""
        super().__init__(
            seeds, task=task, variant=variant, width=width, heads=heads, mlp_layers=mlp_layers
        )
        check_heads(width, heads)
        check_mlp_layers(mlp_layers)
        n = len(seeds)
        named = [variant] * n if isinstance(variant, str) else variant
        variants = [parse_set_variant(name) for name in named]
        parts = variants[0]
        check_projection(parts, heads)
        pairs = itertools.combinations(map(parse_set_variant, set(named)), 2)
        if len(named) != n or not all(may_share(*pair) for pair in pairs):
            raise ValueError(
                f"variant: got {', '.join(named)} for {n} seeds, accepted: one for each, which "
                "differ in whether they have a norm"
            )
        self.task = SetTask.named(task)
        self.variant, self.width, self.heads = variant, width, heads
        self.items = ItemEmbedding(task, width, n, mlp_layers)
        self.query = SeedMlp(n, self.task.query_size, width, width, mlp_layers)
        self.attention = SetAttention(width, heads, variants)
        self.norm = _norm(variants, "norm", width)
        self.residual = "residual" in parts
        self.sum_norm = _norm(variants, "sum", width)
        self.readout = SeedMlp(n, width, width, N_CLASSES, mlp_layers)
        self.draw_weights()

    def arguments_of(self, indices: Sequence[int]) -> dict[str, Any]:
        arguments = super().arguments_of(indices)
        if not isinstance(self.variant, str):
            names = {self.variant[index] for index in indices}
            one = names.pop() if len(names) == 1 else [self.variant[index] for index in indices]
            arguments["variant"] = one
        return arguments

    def get_input_embeddings(self) -> ItemEmbedding:
        return self.items

    def forward(self, input_ids: Tensor, use_cache: bool = False, drop: Drop = no_drop) -> Answer:
        """Tokens (batch, length + 1), the query last; `drop` is training's dropout."""
        if len(input_ids) % len(self.seeds) or input_ids.shape[1] < 2:
            raise ValueError(
                f"input_ids: got {tuple(input_ids.shape)}, accepted: as many sets for each of the "
                f"{len(self.seeds)} seeds, of one item or more and the query; member(0) is one seed"
            )
        attended, query, weights = self.attend(input_ids)
        return Answer(*self.read(attended, query, drop), weights)

    def attend(self, input_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The attention output and the query, (batch, width), and weights (batch, heads, n)."""
        hidden = self.items(input_ids[:, :-1])
        query = self.query(self.task.query(input_ids[:, -1:]).to(hidden.dtype))
        output, weights = self.attention(query, hidden)
        return output.squeeze(1), query.squeeze(1), weights

    def read(self, attended: Tensor, query: Tensor, drop: Drop = no_drop) -> tuple[Tensor, Tensor]:
        """From there to the logits, and what the reading MLP is given."""
        output = self.norm(attended)
        output = self.sum_norm(output + query if self.residual else output)
        return self.readout(drop(output)[:, None]).squeeze(1), output
