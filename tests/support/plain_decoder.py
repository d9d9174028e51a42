"""The lab's decoder of one seed as a textbook writes it: modules of torch, and loops.

It shares no code with `llmprobe.synthetic` but the names of the parts. An unknown part is an error,
so a new one needs its formula here.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

Drop = Callable[[Tensor], Tensor]
AVERAGES = {"ema", "bema"}
"""They choose the weights, not what is done with them."""
KNOWN = {*AVERAGES, "mlp", "prenorm", "postnorm", "subnorm", "nonorm"}
KNOWN |= {"learned", "rotary", "dropout"}


class PlainDecoder(nn.Module):
    def __init__(
        self,
        variant: str,
        vocab: int,
        width: int,
        *,
        heads: int,
        layers: int,
        value_size: int,
        context: int,
    ) -> None:
        super().__init__()
        self.parts = set(variant.split("+")) - {"baseline"}
        if self.parts - KNOWN:
            raise NotImplementedError(f"write down {self.parts - KNOWN} as its paper does")
        self.embedding = nn.Embedding(vocab, width)
        if "learned" in self.parts:
            self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            _Layer(self.parts, width, heads, value_size) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width) if "prenorm" in self.parts else nn.Identity()
        self.unembedding = nn.Linear(width, vocab, bias=False)

    @classmethod
    def of(cls, network: nn.Module, index: int = 0) -> "PlainDecoder":
        """With the weights of one seed of a `Decoder`."""
        theirs = dict(network.named_parameters())
        vocab, width = theirs["embedding.weight"].shape[1:]
        values = theirs["layers.0.attention.v_proj.weight"].shape[-1]
        own = cls(
            network.variant,
            vocab,
            width,
            heads=network.heads,
            layers=len(network.layers),
            value_size=values // network.heads,
            context=theirs["positions.weight"].shape[1] if "positions.weight" in theirs else 0,
        ).to(theirs["embedding.weight"])
        pairs = list(own.pairs())
        assert {name for name, _, _ in pairs} == theirs.keys()
        for name, parameter, turned in pairs:
            value = theirs[name].detach()[index]
            parameter.data.copy_(value.T if turned else value)
        return own

    def pairs(self) -> Iterator[tuple[str, Tensor, bool]]:
        """The name of a parameter in `Decoder`, the one here, and whether it is transposed."""
        for path, module in self.named_modules():
            for kind, parameter in module.named_parameters(recurse=False):
                there = "gain" if isinstance(module, nn.LayerNorm) and kind == "weight" else kind
                yield f"{path}.{there}", parameter, isinstance(module, nn.Linear) and kind != "bias"

    def forward(self, tokens: Tensor, drop: Drop = lambda x: x) -> Tensor:
        """(batch, n) tokens to (batch, n, vocab) logits."""
        x = self.embedding(tokens)
        if "learned" in self.parts:
            x = x + self.positions.weight[: tokens.shape[1]]
        x = drop(x)
        for layer in self.layers:
            x = layer(x, drop)
        return self.unembedding(self.norm(x))


class _Layer(nn.Module):
    def __init__(self, parts: set[str], width: int, heads: int, value_size: int) -> None:
        super().__init__()
        self.parts = parts
        self.attention = _Attention(width, heads, value_size, rotary="rotary" in parts)
        self.norms = nn.ModuleDict()
        if "mlp" in parts:
            self.mlp = nn.ModuleDict(
                {"first": nn.Linear(width, 4 * width), "second": nn.Linear(4 * width, width)}
            )
        if parts & {"prenorm", "postnorm", "subnorm"}:
            self.norms["attention_norm"] = nn.LayerNorm(width)
            if "mlp" in parts:
                self.norms["mlp_norm"] = nn.LayerNorm(width)

    def forward(self, x: Tensor, drop: Drop) -> Tensor:
        y = self.norms["attention_norm"](x) if "prenorm" in self.parts else x
        added = self.attention(y, drop)
        x = x + drop(self.norms["attention_norm"](added) if "subnorm" in self.parts else added)
        if "postnorm" in self.parts:
            x = self.norms["attention_norm"](x)
        if "mlp" not in self.parts:
            return x
        y = self.norms["mlp_norm"](x) if "prenorm" in self.parts else x
        hidden = self.mlp["first"](y)
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        added = self.mlp["second"](hidden)
        x = x + drop(self.norms["mlp_norm"](added) if "subnorm" in self.parts else added)
        return self.norms["mlp_norm"](x) if "postnorm" in self.parts else x


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, value_size: int, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.size, self.value_size = heads, width // heads, value_size
        self.rotary = rotary
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, heads * value_size, bias=False)
        self.o_proj = nn.Linear(heads * value_size, width, bias=False)

    def forward(self, x: Tensor, drop: Drop) -> Tensor:
        weights, values = [], []
        for head in range(self.heads):
            features = slice(head * self.size, (head + 1) * self.size)
            q, k = self.q_proj(x)[..., features], self.k_proj(x)[..., features]
            if self.rotary:
                q, k = turn(q), turn(k)
            scores = x.new_full((len(x), x.shape[1], x.shape[1]), -math.inf)
            for query in range(x.shape[1]):
                for key in range(query + 1):
                    product = (q[:, query] * k[:, key]).sum(dim=-1)
                    scores[:, query, key] = product / math.sqrt(self.size)
            e = torch.exp(scores - scores.amax(dim=-1, keepdim=True).detach())
            weights.append(e / e.sum(dim=-1, keepdim=True))
            values.append(
                self.v_proj(x)[..., head * self.value_size : (head + 1) * self.value_size]
            )
        dropped = drop(torch.stack(weights, dim=1))
        outputs = [dropped[:, head] @ values[head] for head in range(self.heads)]
        return self.o_proj(torch.cat(outputs, dim=-1))


def turn(x: Tensor) -> Tensor:
    """(batch, n, size): at position p, features j and j + half turn by p 10000^(-j/half)."""
    half = x.shape[-1] // 2
    turned = []
    for p in range(x.shape[1]):
        rotation = x.new_zeros(2 * half, 2 * half)
        for j in range(half):
            angle = p * 10_000 ** (-j / half)
            rotation[j, j] = rotation[j + half, j + half] = math.cos(angle)
            rotation[j, j + half], rotation[j + half, j] = -math.sin(angle), math.sin(angle)
        turned.append(x[:, p] @ rotation.T)
    return torch.stack(turned, dim=1)
