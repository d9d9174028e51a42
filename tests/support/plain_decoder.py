"""The lab's decoder of one seed as a textbook writes it: modules of torch, and loops.

It shares no code with `llmprobe.synthetic` but the names of the parts. An unknown part is an error,
so a new one needs its formula here.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from llmprobe.base.seeds import numpy_generator

Drop = Callable[[Tensor], Tensor]
AVERAGES = {"ema", "bema"}
"""They choose the weights, not what is done with them."""
DRAWN = {"randomized", "coupled", "predicted"}
"""They choose the places."""
OTHERS = {"rotary", "xpos", "alibi", "fire", "relative"}
KNOWN = {*AVERAGES, *DRAWN, "mlp", "prenorm", "postnorm", "subnorm", "nonorm", "dropout"}
KNOWN |= {"nope", "learned", *OTHERS}
KNOWN |= {"calibrated", "ssmax", "differential", "normalized", "entmax", "linear", "adaptive"}
KNOWN |= {"sparse", "sparse-keys", "sparse-random", "linear-swap"}
LINEAR = {"linear", "linear-swap"}


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
        if "learned" in self.parts or (DRAWN & self.parts and not OTHERS & self.parts):
            self.positions = nn.Embedding(context, width)
        if "predicted" in self.parts:
            self.placing = nn.Linear(width, context, bias=False)
        self.layers = nn.ModuleList(
            _Layer(self.parts, width, heads, value_size, depth, context) for depth in range(layers)
        )
        self.norm = nn.LayerNorm(width) if "prenorm" in self.parts else nn.Identity()
        self.unembedding = nn.Linear(width, vocab, bias=False)

    @classmethod
    def of(cls, network: nn.Module, index: int = 0) -> "PlainDecoder":
        """With the weights of one seed of a `Decoder`."""
        theirs = dict(network.named_parameters())
        vocab, width = theirs["embedding.weight"].shape[1:]
        values = theirs["layers.0.attention.v_proj.weight"].shape[-1]
        context = 0
        if "positions.weight" in theirs:
            context = theirs["positions.weight"].shape[1]
        elif "placing.weight" in theirs:
            context = theirs["placing.weight"].shape[2]
        elif "layers.0.attention.calibrated.lines" in theirs:
            context = (theirs["layers.0.attention.calibrated.lines"].shape[2] + 1) // 4
        own = cls(
            network.variant,
            vocab,
            width,
            heads=network.layers[0].attention.maps,
            layers=len(network.layers),
            value_size=values // network.layers[0].attention.maps,
            context=context,
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
                norm = isinstance(module, (nn.LayerNorm, nn.RMSNorm))
                there = "gain" if norm and kind == "weight" else kind
                yield f"{path}.{there}", parameter, isinstance(module, nn.Linear) and kind != "bias"

    def forward(
        self, tokens: Tensor, drop: Drop = lambda x: x, places: Tensor | None = None
    ) -> Tensor:
        """(batch, n) tokens to (batch, n, vocab) logits."""
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.embedding(tokens)
        if hasattr(self, "positions"):
            x = x + self.positions(places)
        x = drop(x)
        for layer in self.layers:
            x = layer(x, drop, places)
        x = self.norm(x)
        self.placed = self.placing(x) if "predicted" in self.parts else None
        return self.unembedding(x)


class _Layer(nn.Module):
    def __init__(
        self, parts: set[str], width: int, heads: int, value_size: int, depth: int, context: int
    ) -> None:
        super().__init__()
        self.parts = parts
        self.attention = _Attention(parts, width, heads, value_size, depth, context)
        self.norms = nn.ModuleDict()
        if "mlp" in parts:
            self.mlp = nn.ModuleDict(
                {"first": nn.Linear(width, 4 * width), "second": nn.Linear(4 * width, width)}
            )
        if parts & {"prenorm", "postnorm", "subnorm"}:
            self.norms["attention_norm"] = nn.LayerNorm(width)
            if "mlp" in parts:
                self.norms["mlp_norm"] = nn.LayerNorm(width)

    def forward(self, x: Tensor, drop: Drop, places: Tensor) -> Tensor:
        y = self.norms["attention_norm"](x) if "prenorm" in self.parts else x
        added = self.attention(y, drop, places)
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
    def __init__(
        self, parts: set[str], width: int, heads: int, value_size: int, depth: int, context: int
    ) -> None:
        super().__init__()
        self.parts, self.depth = parts, depth
        self.maps, self.size = heads, width // heads
        self.heads = heads // 2 if "differential" in parts else heads
        self.value_size = heads * value_size // self.heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, heads * value_size, bias=False)
        self.o_proj = nn.Linear(heads * value_size, width, bias=False)
        self.softmax = _Softmax(parts, self.heads, self.size, self.value_size)
        if "fire" in parts:
            self.positions = _Fire(heads)
        if "relative" in parts:
            self.positions = _Relative(heads)
        if "calibrated" in parts:
            self.calibrated = _Lines(heads, context)

    def forward(self, x: Tensor, drop: Drop, places: Tensor) -> Tensor:
        scores = torch.stack([self._scores(x, map, places) for map in range(self.maps)], dim=1)
        rows = [
            torch.stack([self._weights(scores[b], head) for head in range(self.heads)])
            for b in range(len(x))
        ]
        dropped, outputs = drop(torch.stack(rows)), []
        for head in range(self.heads):
            features = slice(head * self.value_size, (head + 1) * self.value_size)
            output = dropped[:, head] @ self.v_proj(x)[..., features]
            if "normalized" in self.parts:
                output = self.softmax.norm(output)
            if "differential" in self.parts:
                output = self.softmax.norm(output) * (1 - self._start())
            outputs.append(output)
        return self.o_proj(torch.cat(outputs, dim=-1))

    def _start(self) -> float:
        return 0.8 - 0.6 * math.exp(-0.3 * self.depth)

    def _scores(self, x: Tensor, head: int, places: Tensor) -> Tensor:
        """One map of logits, (batch, n, n), −∞ for keys of the future."""
        features = slice(head * self.size, (head + 1) * self.size)
        q, k = self.q_proj(x)[..., features], self.k_proj(x)[..., features]
        if self.parts & {"rotary", "xpos"}:
            q, k = turn(q, places), turn(k, places)
        if self.parts & LINEAR:
            weight, bias = self.softmax.weight[head], self.softmax.bias[head]
            q, k = (torch.clamp(y @ weight + bias, min=0) for y in (q, k))
        scores = x.new_full((len(x), x.shape[1], x.shape[1]), -math.inf)
        for query in range(x.shape[1]):
            for key in range(query + 1):
                i, j = places[:, query], places[:, key]
                products = q[:, query] * k[:, key]
                if "xpos" in self.parts:
                    products = products * decay(self.size, i - j).to(products)
                score = products.sum(dim=-1)
                if not self.parts & LINEAR:
                    score = score / math.sqrt(self.size)
                if "alibi" in self.parts:
                    score = score - 2 ** (-8 * (head + 1) / self.maps) * (i - j).abs()
                if "calibrated" in self.parts:
                    score = score + self.calibrated(query, key)[head]
                if self.parts & {"fire", "relative"}:
                    score = score + self.positions(i, j)[:, head]
                scores[:, query, key] = score
        return scores

    def _weights(self, scores: Tensor, head: int) -> Tensor:
        """Of the maps (maps, n, n) of one sequence, what one head makes of them: (n, n)."""
        rows = []
        for query in range(scores.shape[-1]):
            row = self.softmax.row(scores[head, : query + 1, : query + 1], head)
            if "differential" in self.parts:
                second = self.softmax.row(scores[self.heads + head, query, None, : query + 1], head)
                q1, k1, q2, k2 = self.softmax.vectors
                strength = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + self._start()
                row = row - strength * second
            rows.append(nn.functional.pad(row, (0, scores.shape[-1] - query - 1)))
        return torch.stack(rows)


class _Fire(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.c, self.threshold = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        self.first, self.second = nn.Linear(1, 32), nn.Linear(32, heads, bias=False)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        c, threshold = self.c.abs(), self.threshold.abs()
        whole = torch.log(c * torch.where(i > threshold, i, threshold) + 1)
        share = torch.log(c * (i - j).abs() + 1) / (whole + 1e-6)
        return self.second(torch.clamp(self.first(share[:, None]), min=0))


class _Relative(nn.Module):
    """Nine numbers for each head: of the keys 4 or more behind the query, ..., 4 or more ahead."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.numbers = nn.Linear(9, heads, bias=False)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        columns = [4 + max(-4, min(4, ahead)) for ahead in (j - i).tolist()]
        return torch.stack([self.numbers.weight[:, column] for column in columns])


class _Lines(nn.Module):
    """Numbers of diagonals, verticals and anti-diagonals, one after another."""

    def __init__(self, heads: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.lines = nn.Parameter(torch.zeros(heads, 4 * context - 1))

    def forward(self, i: int, j: int) -> Tensor:
        lines = self.lines.detach()
        on = [lines[:, i - j], lines[:, self.context + j], lines[:, 2 * self.context + i + j]]
        return torch.stack(on).max(dim=0).values


class _Softmax(nn.Module):
    """From the logits that a query sees to its weights."""

    def __init__(self, parts: set[str], heads: int, size: int, value_size: int) -> None:
        super().__init__()
        self.parts, self.heads = parts, heads
        if "ssmax" in parts:
            self.scale = nn.Parameter(torch.zeros(heads))
        if "differential" in parts:
            self.vectors = nn.Parameter(torch.zeros(4, size))
            self.norm = nn.RMSNorm(value_size, eps=1e-5)
        if "normalized" in parts:
            self.gain, self.shift = (nn.Parameter(torch.zeros(heads)) for _ in range(2))
            self.norm = nn.LayerNorm(value_size)
        if parts & LINEAR:
            self.weight = nn.Parameter(torch.zeros(heads, size, size))
            self.bias = nn.Parameter(torch.zeros(heads, size))

    def row(self, scores: Tensor, head: int) -> Tensor:
        """Of the last of the queries so far, (n,); `scores` are those of all of them."""
        last, n = scores[-1], scores.shape[-1]
        kept = max(1, 5 * math.ceil(math.log(n)))
        if self.parts & LINEAR:
            return last / max(last.sum(), torch.tensor(1e-6, dtype=last.dtype))
        if "normalized" in self.parts:
            centered = last - last.mean()
            standard = centered / torch.sqrt(centered.square().mean() + 1e-5)
            return self.gain[head] * standard + self.shift[head]
        if "entmax" in self.parts:
            return entmax(last)
        if "sparse-keys" in self.parts:
            wanted = [scores[key:, key].max() - scores[key:, key].mean() for key in range(n)]
            least = sorted(wanted, reverse=True)[min(kept, n) - 1]
            last = torch.stack(
                [x if w >= least else x - math.inf for x, w in zip(last, wanted, strict=True)]
            )
        if self.parts & {"sparse", "sparse-random"}:
            measure = [scores[i, : i + 1].max() - scores[i, : i + 1].mean() for i in range(n)]
            if "sparse-random" in self.parts:
                measure = numpy_generator(0, "sparse").random((n, self.heads))[:, head].tolist()
            if sum(m > measure[-1] for m in measure) >= kept:
                return torch.full_like(last, 1 / n)
        if "ssmax" in self.parts:
            last = self.scale[head] * math.log(n) * last
        weights = softmax(last)
        if "adaptive" in self.parts:
            entropy = -(weights * torch.log(weights + 1e-9)).sum()
            powers = [-0.037, 0.481, -2.3, 4.917, -1.791]
            beta = sum(c * entropy ** (4 - p) for p, c in enumerate(powers))
            weights = softmax(last * torch.clamp(beta, min=1)) if entropy > 0.5 else weights
        return weights


def softmax(row: Tensor) -> Tensor:
    e = torch.exp(row - row.max().detach())
    return e / e.sum()


def entmax(row: Tensor) -> Tensor:
    """(x / 2 − τ)² where positive, τ by halving an interval; then once by Newton, for its
    gradient."""
    half = row / 2
    low, high = half.max().detach() - 1, half.max().detach()
    for _ in range(60):
        tau = (low + high) / 2
        too_much = torch.clamp(half.detach() - tau, min=0).square().sum() > 1
        low, high = (tau, high) if too_much else (low, tau)
    inside = half.detach() > tau
    sums = torch.where(inside, half - tau, 0)
    tau = tau + (sums.square().sum() - 1) / (2 * sums.sum().detach())
    return torch.where(inside, half - tau, 0).square()


def decay(size: int, distance: Tensor) -> Tensor:
    """ζ^(distance / 512) of each feature, which are pairs p and p + half."""
    zeta = [(2 * p + 0.4 * size) / (1.4 * size) for p in range(size // 2)]
    return torch.stack([z ** (distance.double() / 512) for z in zeta + zeta], dim=-1)


def turn(x: Tensor, places: Tensor) -> Tensor:
    """(batch, n, size): at place p, features j and j + half turn by p 10000^(-j/half)."""
    half = x.shape[-1] // 2
    columns: list[Tensor] = [x[..., 0]] * (2 * half)
    for j in range(half):
        angle = places * 10_000.0 ** torch.tensor(-j / half, dtype=torch.float64, device=x.device)
        cos, sin = torch.cos(angle).to(x), torch.sin(angle).to(x)
        a, b = x[..., j], x[..., j + half]
        columns[j], columns[j + half] = a * cos - b * sin, a * sin + b * cos
    return torch.stack(columns, dim=-1)
