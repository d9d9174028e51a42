"""Variants: names of parts joined by a plus, such as `layernorm+ssmax`, and how they are read.

A network declares its parts in a registry, each with its place. A variant has at most one part of a
place; `baseline` is the network without any. Some places change nothing in training, so variants
that differ in those alone share one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

BASELINE = "baseline"
AT_TEST = ("temperature", "weights")
"""Places that training does not see."""

PLACES = {
    "mlp": "between attentions",
    "norm": "on the attention output of sets, or on the residual stream of sequences",
    "heads": "on each head",
    "joined": "on the heads joined",
    "residual": "around the attention of sets",
    "sum": "after that residual sum",
    "projection": "after the heads",
    "positions": "what attention does with the positions of tokens",
    "drawn": "where positions come from; learned ones if no part of positions is named",
    "bias": "added to the logits",
    "softmax": "from logits to attention weights",
    "temperature": "of the softmax",
    "dropout": "while training",
    "clip": "while training",
    "weights": "which weights are tested",
}
"""What a part can change, in words."""


@dataclass(frozen=True)
class Part:
    """One named change to a network."""

    place: str
    description: str
    build: Callable[..., Any] = nn.Identity
    """What stands in that place, where it is a module; the network says of which arguments."""
    staged: bool = False
    """Whether its training begins with what a training without it gives."""


Parts = Mapping[str, Part]
AVERAGES = {
    "ema": Part("weights", "the exponential moving average of the weights, at test time only"),
    "bema": Part("weights", "their bias-corrected average, at test time only"),
}


def parse_variant(name: str, known: Parts) -> dict[str, str]:
    """The variant's parts by their place: `layernorm+ssmax` to {"norm": ..., "softmax": ...}."""
    parts: dict[str, str] = {}
    for part in name.split("+"):
        if part == BASELINE:
            continue
        if part not in known:
            words = ", ".join([BASELINE, *known])
            raise ValueError(f"variants: got {part!r}, accepted: {words}; a plus joins them")
        place = known[part].place
        if place in parts:
            raise ValueError(
                f"variants: {name!r} has {parts[place]} and {part} for the {place}; choose one"
            )
        parts[place] = part
    return parts


def trained_as(name: str, known: Parts) -> str:
    """The variant whose training gives this one's weights."""
    parts = parse_variant(name, known)
    return "+".join(parts[place] for place in sorted(parts) if place not in AT_TEST) or BASELINE
