"""Positions of a decoder's tokens: what attention does with them, and where they come from.

A network is given `places`, whole numbers (seeds * batch, n), or (seeds, n) where all sequences of
a seed have the same. Without any they are 0, 1, 2, ... A part of the place `positions` says what
they do, with i the query's place and j the key's:

    learned   a vector for each place is added to the token's (in `decoder_network`)
    rotary    queries and keys are turned, by angles that grow with the place
    xpos      rotary, and logits of far keys shrink: arXiv 2212.10554
    alibi     −m |i − j| is added to the logits, m fixed for each head: arXiv 2108.12409
    fire      a learned function of log(c |i − j| + 1) / log(c max(L, i) + 1): arXiv 2310.04418
    relative  a learned number for each j − i from −4 to 4; what is further away has that of ±4

A part of the place `drawn` says where they come from:

    randomized  n numbers of 1..context without repetition, sorted: arXiv 2305.16843
    coupled     the task's: tokens that belong together share a place: arXiv 2405.20671
    predicted   the same, and a second head predicts the next token's place: arXiv 2502.16792

`draw_places` draws them for training and for tests, `settle_places` has the second head say them.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llmprobe.synthetic.layers import SeedLinear
from llmprobe.synthetic.variants import Part

Couple = Callable[[Tensor], Tensor | None]
"""Tokens (n, length) to the places of those that belong together, from 1; 0 is no place."""


class Positions(nn.Module):
    """What an attention does with places: nothing."""

    def __init__(self, seeds: int, maps: int) -> None:
        """`maps`: matrices of logits that the attention has."""
        super().__init__()

    def turn(self, q: Tensor, k: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (seeds * batch, maps, n, size), by their places."""
        return q, k

    def bias(self, places: Tensor) -> Tensor | None:
        """What is added to the logits: (len(places), maps, n, n)."""
        return None


class Rotary(Positions):
    """The pairs (a, b) of features of a query or a key turned by place · 10,000^(−pair / pairs)."""

    def turn(self, q: Tensor, k: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        half = q.shape[-1] // 2
        dtype = torch.promote_types(q.dtype, torch.float32)
        speeds = 10_000 ** -(torch.arange(half, device=q.device, dtype=dtype) / half)
        angles = places[..., None] * speeds
        cos, sin = angles.cos().to(q), angles.sin().to(q)
        growth = self._growth(places, q)
        if growth is None:
            return _turned(q, cos, sin), _turned(k, cos, sin)
        shrink = 1 / growth
        return _turned(q, cos * growth, sin * growth), _turned(k, cos * shrink, sin * shrink)

    def _growth(self, places: Tensor, q: Tensor) -> Tensor | None:
        """By how much a query of a place grows, and a key shrinks: (len(places), n, pairs)."""
        return None


class Xpos(Rotary):
    """Rotary, with pair p of a logit times ζ_p^((i − j) / 512), ζ_p = (2p + 0.4 d) / (1.4 d)."""

    def _growth(self, places: Tensor, q: Tensor) -> Tensor:
        size = q.shape[-1]
        pairs = torch.arange(0, size, 2, device=q.device, dtype=q.dtype)
        zeta = (pairs + 0.4 * size) / (1.4 * size)
        # Only differences count, so a middle of 0 keeps both factors near one.
        middle = (places.amin(-1, keepdim=True) + places.amax(-1, keepdim=True)) / 2
        growth: Tensor = zeta ** ((places - middle)[..., None] / 512)
        return growth.to(q)


class Alibi(Positions):
    """−m |i − j|, with m = 2^(−8 h / maps) for the maps h = 1, 2, ..."""

    def __init__(self, seeds: int, maps: int) -> None:
        super().__init__(seeds, maps)
        self.slopes = [2 ** (-8 * (h + 1) / maps) for h in range(maps)]

    def bias(self, places: Tensor) -> Tensor:
        slopes = torch.tensor(self.slopes, device=places.device)
        return -slopes[:, None, None] * _distances(places)[:, None]


class Fire(Positions):
    """f(ψ(|i − j|) / ψ(max(L, i))), ψ(x) = log(c x + 1); c, L and the MLP f are learned."""

    HIDDEN = 32
    START = 0.1, 16.0
    """c and L at the beginning. L is of the size of the lab's training lengths."""

    def __init__(self, seeds: int, maps: int) -> None:
        super().__init__(seeds, maps)
        c, threshold = (torch.full((seeds, 1), value) for value in self.START)
        self.c, self.threshold = nn.Parameter(c), nn.Parameter(threshold)
        self.first = SeedLinear(seeds, 1, self.HIDDEN)
        # A bias would add the same number to all logits of a query.
        self.second = SeedLinear(seeds, self.HIDDEN, maps, bias=False)

    def bias(self, places: Tensor) -> Tensor:
        c, threshold = (spread(x.abs(), len(places)) for x in (self.c, self.threshold))
        far = torch.log1p(c[..., None] * _distances(places))
        whole = torch.log1p(c * torch.maximum(places, threshold))
        share = far / (whole[..., None] + 1e-6)
        hidden = F.relu(self.first(share.flatten(1)[..., None]))
        return self.second(hidden).transpose(1, 2).unflatten(-1, share.shape[1:])


class Relative(Positions):
    """A learned number for each j − i, cut at ±REACH, as in arXiv 1803.02155 and 1910.10683.

    So all far keys have the same one, and training that sees some of them has taught it for all.
    """

    REACH = 4
    NUMBERS = 2 * REACH + 1

    def __init__(self, seeds: int, maps: int) -> None:
        super().__init__(seeds, maps)
        self.numbers = SeedLinear(seeds, self.NUMBERS, maps, bias=False)

    def bias(self, places: Tensor) -> Tensor:
        ahead = places[..., None, :] - places[..., :, None]
        which = ahead.clamp(-self.REACH, self.REACH) + self.REACH
        seen = F.one_hot(which, self.NUMBERS).to(self.numbers.weight)
        return self.numbers(seen.flatten(1, 2)).transpose(1, 2).unflatten(-1, which.shape[1:])


def _distances(places: Tensor) -> Tensor:
    """|i − j|, (..., n, n): the query's place first."""
    return (places[..., :, None] - places[..., None, :]).abs()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(batch, maps, n, size), by what each place has, (places, n, pairs)."""
    groups = x.unflatten(0, (len(cos), -1))
    cos, sin = cos[:, None, None], sin[:, None, None]
    a, b = groups.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(0, 1)


def spread(x: Tensor, batch: int) -> Tensor:
    """What each seed has once, or each sequence, as (batch, ...)."""
    return x if len(x) == batch else x.repeat_interleave(batch // len(x), dim=0)


POSITIONS = {
    "nope": Part("positions", "no positions, where the task's baseline has some", Positions),
    "learned": Part("positions", "a learned vector for each position", Positions),
    "rotary": Part("positions", "keys and queries turned by their positions", Rotary),
    "xpos": Part("positions", "rotary, with logits that shrink with the distance", Xpos),
    "alibi": Part("positions", "logits less a multiple of the distance, fixed per head", Alibi),
    "fire": Part("positions", "a learned function of the distance over the position", Fire),
    "relative": Part(
        "positions", "a learned number for each near distance, one for all far", Relative
    ),
    "randomized": Part("drawn", "positions drawn from 1..context and sorted"),
    "coupled": Part("drawn", "tokens that belong together share a position, from a drawn offset"),
    "predicted": Part("drawn", "coupled, and a second head predicts the next position"),
}
"""What `build` is given: (seeds, maps). Without a part of `positions`, `drawn` ones are learned."""
_OVER = {
    "randomized": ("learned", "rotary", "xpos", "alibi", "fire"),
    # The others take j > i for a key of the future, or do not know places that are predicted.
    "coupled": ("learned", "rotary", "relative"),
    "predicted": ("learned", "rotary"),
}


def complete_places(name: str, parts: dict[str, str]) -> dict[str, str]:
    """A variant's parts with the positions that drawn places need; refuses what makes no sense."""
    drawn = parts.get("drawn")
    if drawn is None:
        return parts
    positions = parts.get("positions", "learned")
    if positions not in _OVER[drawn]:
        raise ValueError(
            f"variants: {name!r} has {drawn} places for {positions}; accepted: "
            f"{', '.join(_OVER[drawn])}"
        )
    return {**parts, "positions": positions}


def check_couple(parts: Mapping[str, str], task: str, couple: Couple | None) -> None:
    """Refuse coupled places where a task has none."""
    if couple is None and parts.get("drawn") in ("coupled", "predicted"):
        raise ValueError(
            f"variants: {parts['drawn']} needs tokens that belong together, but {task} does not "
            "say which do; use a task that does, such as addition-padded, or leave it out"
        )


def draw_places(
    parts: Mapping[str, str],
    tokens: Tensor,
    generators: Sequence[torch.Generator],
    *,
    context: int,
    couple: Couple | None = None,
    training: bool = True,
) -> Tensor | None:
    """Places of tokens (seeds * batch, n), by a generator for each seed; None: 0, 1, 2, ...

    randomized: in training one draw for all sequences of a seed, (seeds, n); in tests one for each.
    coupled, predicted: the task's plus an offset, in training a drawn one for each sequence, so
    that all places up to the context are met. Those at its ends are met seldom, so tests lie in the
    middle. A token without a place has 0.
    """
    drawn = parts.get("drawn")
    if drawn is None:
        return None
    seeds, n = len(generators), tokens.shape[1]
    batch = len(tokens) // seeds
    if drawn == "randomized":
        _check_context(n, context)
        rows = 1 if training else batch
        keys = [torch.rand(rows, context, generator=generator) for generator in generators]
        return torch.cat(keys).topk(n, dim=1).indices.sort(dim=1).values + 1
    coupled = None if couple is None else couple(tokens)
    assert coupled is not None, "check_couple comes first"
    largest = coupled.amax(dim=1)
    _check_context(int(largest.max()), context)
    offsets = (context - largest) // 2
    if training:
        shares = torch.cat([torch.rand(batch, generator=generator) for generator in generators])
        offsets = (shares.to(largest.device) * (context + 1 - largest)).long()
    return torch.where(coupled > 0, coupled + offsets[:, None], 0)


def _check_context(needed: int, context: int) -> None:
    if needed > context:
        raise ValueError(f"context: got {context}, accepted: the {needed} places of a sequence")


def place_losses(predicted: Tensor, places: Tensor) -> Tensor:
    """Of the second head: logits (batch, n, context + 1) after each token, and the places (batch,
    n) that came next, to the cross entropy of each (batch, n)."""
    return F.cross_entropy(predicted.transpose(1, 2), places, reduction="none")


def settle_places(
    network: Callable[..., tuple[Tensor, Tensor]], tokens: Tensor, places: Tensor, own: Tensor
) -> Tensor:
    """Places of which the second head says those in `own` (batch, n), each from the ones before.

    That is a token at a time: a place is the most likely one, given the tokens so far and their
    settled places. Here all are guessed at once and guessed again until none changes. A place only
    depends on those before it, so that is the same, and takes one forward where all are right.
    """
    for _ in range(tokens.shape[1]):
        said = network(tokens, places=places)[1].argmax(dim=-1)
        settled = torch.where(own, F.pad(said[:, :-1], (1, 0)), places)
        if torch.equal(settled, places):
            break
        places = settled
    return places
