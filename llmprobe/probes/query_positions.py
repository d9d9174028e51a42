"""At which token attention is measured: the last of a causal model, any of an encoder.

In a causal model only the last token sees the whole prompt. An encoder's tokens all see it, so one
is chosen: the first (`[CLS]`), the last, one by its number, or the mean over all of them, which is
what mean pooling makes an embedding of.
"""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from llmprobe.capture.discovery import AttentionLayer
from llmprobe.capture.outputs import capture_attention
from llmprobe.errors import UnsupportedModelError

POSITIONS = ("auto", "last", "first", "mean")
_ACCEPTED = f"accepted: {', '.join(POSITIONS)}, or a number (negative from the end)"


def check_position(position: str | int) -> None:
    """Refuse what is no position of any model."""
    if position not in POSITIONS and _number(position) is None:
        raise ValueError(f"position: got {position!r}, {_ACCEPTED}")


def resolve_position(
    position: str | int, layers: Sequence[AttentionLayer], lengths: Sequence[int], name: str
) -> str:
    """The position as a result records it: last, first, mean, or a number as text."""
    if all(layer.causal for layer in layers):
        if position not in ("auto", "last"):
            raise ValueError(
                f"position: got {position!r}, but {name} is causal: only the last token sees the "
                "whole prompt; leave position out"
            )
        return "last"
    if layers[0].cross:
        if position not in ("auto", "first"):
            raise ValueError(
                f"position: got {position!r}, but cross-attention is measured at the decoder's "
                "start token; leave position out"
            )
        return "first"
    number = _number(position)
    if number is None:
        return "first" if position == "auto" else str(position)
    if not -min(lengths) <= number < min(lengths):
        raise ValueError(
            f"position: got {number}, but the shortest prompts have {min(lengths)} tokens; use "
            f"{-min(lengths)} to {min(lengths) - 1}"
        )
    return {0: "first", -1: "last"}.get(number, str(number))


def check_causal(
    layers: Sequence[AttentionLayer], name: str, what: str, *, part: str | None = None
) -> None:
    """Refuse for an encoder what needs a model that predicts the next token."""
    if part is not None:
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder, which writes to a text and continues no prompt, so "
            f"{what} has no meaning; use the variance or the attention probe"
        )
    if not all(layer.causal for layer in layers):
        raise UnsupportedModelError(
            f"{name} is an encoder, which predicts no next token, so {what} has no meaning; use "
            "the variance or the attention probe"
        )


def places(position: str, ends: list[int]) -> list[int]:
    """Where to capture in prompts whose last tokens are at `ends`."""
    number = 0 if position == "first" else _number(position)
    return ends if number is None else [number]


@contextmanager
def capture_mean(model: nn.Module, layers: Sequence[int], at: str) -> Any:
    """Like `capture_attention`, for the mean over all positions: (batch, 1, ...) by layer."""
    found: dict[int, Tensor] = {}

    def keep(layer: int, x: Tensor) -> None:
        found[layer] = x.float().mean(dim=1, keepdim=True)

    with capture_attention(model, list(layers), at=at, stop=True, into=keep):
        result: Mapping[int, Tensor] = found
        yield result


def _number(position: str | int) -> int | None:
    try:
        return int(position)
    except ValueError:
        return None
