"""The lab's network of one seed as a textbook writes it: every item has a key and a value.

It shares no code with `llmprobe.synthetic` but the names of the parts; the formulas are those of
the papers (arXiv 2410.01104, 2501.19399, 2410.05258, 2005.09561, 1905.05702, 2212.14246). An
unknown part is an error, so a new one needs its formula here.
"""

import math
from collections.abc import Iterator

import torch
from plain_decoder import entmax
from torch import Tensor, nn

from llmprobe.base.seeds import numpy_generator

MAPS = {
    "items.first": "item_mlp.first",
    "items.middle.0": "item_mlp.middle0",
    "attention.i_proj": "item_mlp.last",
    "query.first": "query_mlp.first",
    "query.middle.0": "query_mlp.middle0",
    "query.second": "query_mlp.last",
    "attention.q_proj": "queries",
    "attention.k_proj": "keys",
    "attention.v_proj": "values",
    "attention.o_proj": "join",
    "readout.first": "readout.first",
    "readout.middle.0": "readout.middle0",
    "readout.second": "readout.last",
}
"""Linear maps by their names there and here."""
VECTORS = {
    "norm.gain": "norm.weight",
    "norm.bias": "norm.bias",
    "attention.norm.gain": "each_norm.weight",
    "attention.norm.bias": "each_norm.bias",
    "attention.joined_norm.gain": "joined_norm.weight",
    "attention.joined_norm.bias": "joined_norm.bias",
    "sum_norm.gain": "sum_norm.weight",
    "sum_norm.bias": "sum_norm.bias",
    "attention.softmax.norm.gain": "head_norm.weight",
    "attention.softmax.norm.bias": "head_norm.bias",
    "attention.softmax.scale": "scale",
    "attention.softmax.gain": "gain",
    "attention.softmax.shift": "shift",
    "attention.softmax.vectors": "vectors",
}
NORMS = {
    "layernorm": lambda size: nn.LayerNorm(size),
    "standardize": lambda size: nn.LayerNorm(size, elementwise_affine=False),
    "rmsnorm": lambda size: nn.RMSNorm(size, eps=1e-5),
}
"""On the attention output, behind W_O."""
PLACED = {
    "each_norm": {"headnorm-gain": NORMS["layernorm"]},
    "joined_norm": {"concatnorm": NORMS["layernorm"], "concatnorm-fixed": NORMS["standardize"]},
    "sum_norm": {"postnorm": NORMS["layernorm"], "postnorm-fixed": NORMS["standardize"]},
}
"""Norms of other places: on each head, on all heads joined, behind the residual sum."""
AVERAGES = {"ema", "bema"}
"""They choose the weights, not what is done with them."""
KNOWN = {
    *NORMS,
    *(name for norms in PLACED.values() for name in norms),
    *AVERAGES,
    "headnorm",
    "residual",
    "outproj",
    "dropout",
    "clipped",
    "ssmax",
    "differential",
    "normalized",
    "adaptive",
    "entmax",
    "sparse",
    "sparse-random",
}


class Textbook(nn.Module):
    def __init__(
        self,
        variant: str,
        item_size: int,
        query_size: int,
        width: int,
        heads: int,
        mlp_layers: int = 2,
    ) -> None:
        super().__init__()
        self.parts = set(variant.split("+")) - {"baseline"}
        if self.parts - KNOWN:
            raise NotImplementedError(f"write down {self.parts - KNOWN} as its paper does")
        self.heads, self.size = heads, width // heads
        n_maps = 2 if "differential" in self.parts else 1
        self.item_mlp = _mlp(item_size, width, width, mlp_layers)
        self.query_mlp = _mlp(query_size, width, width, mlp_layers)
        self.queries = nn.Linear(width, n_maps * width, bias=False)
        self.keys = nn.Linear(width, n_maps * width, bias=False)
        self.values = nn.Linear(width, width, bias=False)
        projects = heads > 1 or "outproj" in self.parts
        self.join = nn.Linear(width, width, bias=False) if projects else nn.Identity()
        self.readout = _mlp(width, width, 10, mlp_layers)
        self.norm: nn.Module = nn.Identity()
        for part in self.parts & NORMS.keys():
            self.norm = NORMS[part](width)
        for place, norms in PLACED.items():
            size = self.size if place == "each_norm" else width
            (own,) = self.parts & norms.keys() or {None}
            setattr(self, place, nn.Identity() if own is None else norms[own](size))
        self.head_norm: nn.Module = nn.Identity()
        if "ssmax" in self.parts:
            self.scale = nn.Parameter(torch.zeros(heads))
        if "differential" in self.parts:
            self.vectors = nn.Parameter(torch.zeros(4, self.size))
            self.head_norm = nn.RMSNorm(self.size, eps=1e-5)
        if "normalized" in self.parts:
            self.gain = nn.Parameter(torch.zeros(heads))
            self.shift = nn.Parameter(torch.zeros(heads))
            self.head_norm = nn.LayerNorm(self.size)

    @classmethod
    def of(cls, network: nn.Module) -> "Textbook":
        """With the weights of a `SetNetwork` of one seed."""
        task = network.task
        sizes = (task.item_size, task.query_size, network.width, network.heads)
        own = cls(network.variant, *sizes, 2 + len(network.readout.middle))
        own = own.to(next(network.parameters()))
        theirs = dict(network.named_parameters())
        pairs = list(own.pairs())
        assert {name for name, _, _ in pairs} == theirs.keys()
        assert len(pairs) == len(list(own.parameters()))
        for name, parameter, turned in pairs:
            value = theirs[name].detach()[0]
            parameter.data.copy_(value.T if turned else value)
        return own

    def pairs(self) -> Iterator[tuple[str, Tensor, bool]]:
        """The name of a parameter in `SetNetwork`, the one here, and whether it is transposed."""
        own = dict(self.named_parameters())
        for theirs, name in MAPS.items():
            for kind in ("weight", "bias"):
                if f"{name}.{kind}" in own:
                    yield f"{theirs}.{kind}", own[f"{name}.{kind}"], kind == "weight"
        for theirs, name in VECTORS.items():
            if name in own:
                yield theirs, own[name], False

    def forward(
        self, items: Tensor, query: Tensor, kept: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, n, item_size) and (batch, query_size) to logits, output and weights.

        `kept` is what dropout multiplies the features with: 0, or 1 / (1 - rate).
        """
        batch, n, _ = items.shape
        x, q = self.item_mlp(items), self.query_mlp(query)
        queries = self.queries(q).view(batch, 1, -1, self.size).transpose(1, 2)
        keys = self.keys(x).view(batch, n, -1, self.size).transpose(1, 2)
        values = self.values(x).view(batch, n, self.heads, self.size).transpose(1, 2)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(self.size)  # (batch, maps, 1, n)
        weights = self.attend(scores)
        heads = self.head_norm(weights @ values)[:, :, 0]
        if "differential" in self.parts:
            heads = heads * (1 - 0.2)
        if "headnorm" in self.parts:
            heads = (heads - heads.mean(-1, keepdim=True)) / torch.sqrt(
                heads.var(-1, correction=0, keepdim=True) + 1e-5
            )
        joined = self.joined_norm(self.each_norm(heads).reshape(batch, -1))
        output = self.norm(self.join(joined))
        if "residual" in self.parts:
            output = self.sum_norm(q + output)
        return self.readout(output * kept), output, weights[:, :, 0]

    def attend(self, scores: Tensor) -> Tensor:
        if "ssmax" in self.parts:
            scores = self.scale[:, None, None] * math.log(scores.shape[-1]) * scores
        if "normalized" in self.parts:
            mean = scores.mean(dim=-1, keepdim=True)
            deviation = torch.sqrt(scores.var(dim=-1, correction=0, keepdim=True) + 1e-5)
            standard = (scores - mean) / deviation
            return self.gain[:, None, None] * standard + self.shift[:, None, None]
        if "entmax" in self.parts:
            rows = [entmax(row) for row in scores.flatten(0, 2)]
            return torch.stack(rows).view(scores.shape)
        n = scores.shape[-1]
        measure = scores
        if "sparse-random" in self.parts:
            lots = numpy_generator(0, "sparse").random((n, self.heads))
            measure = torch.from_numpy(lots.T)[:, None].expand_as(scores).to(scores.device)
        if self.parts & {"sparse", "sparse-random"}:
            kept = min(n, max(1, 5 * math.ceil(math.log(n))))
            least = measure.topk(kept, dim=-1).values[..., -1:]
            scores = scores.where(measure >= least, -math.inf)
        weights = self.plain(scores)
        if "differential" in self.parts:
            q1, k1, q2, k2 = self.vectors
            strength = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + 0.2
            return weights[:, : self.heads] - strength * weights[:, self.heads :]
        return weights

    def plain(self, scores: Tensor) -> Tensor:
        p = torch.softmax(scores, dim=-1)
        if "adaptive" not in self.parts:
            return p
        h = -(p * torch.log(p + 1e-9)).sum(dim=-1, keepdim=True)
        beta = -0.037 * h**4 + 0.481 * h**3 - 2.3 * h**2 + 4.917 * h - 1.791
        beta = torch.where(h > 0.5, torch.clamp(beta, min=1.0), torch.ones_like(h))
        return torch.softmax(beta * scores, dim=-1)


def _mlp(inputs: int, width: int, outputs: int, layers: int) -> nn.Sequential:
    found = nn.Sequential()
    found.add_module("first", nn.Linear(inputs, width))
    for number in range(layers - 2):
        found.add_module(f"gelu{number}", nn.GELU())
        found.add_module(f"middle{number}", nn.Linear(width, width))
    found.add_module("gelu", nn.GELU())
    found.add_module("last", nn.Linear(width, outputs))
    return found
