"""Rotary positions that reach further than a model was trained for.

    with scaled_positions(model, "yarn", 4.0):
        model(tokens)                   # up to four times the trained context

Frequencies come from transformers' own functions. YaRN's scale of the logits is left out: it is
another remedy, and positions should be repaired alone.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.errors import UnsupportedModelError

POSITIONS = ("dynamic", "yarn", "linear")
_MOST = 1024.0


def parse_rope(text: str) -> tuple[str, float | None]:
    """`yarn`, or with a factor `yarn:4`: the kind, and the factor or None."""
    kind, colon, given = text.partition(":")
    try:
        factor = float(given) if colon else None
    except ValueError:
        factor = 0.0
    if kind not in POSITIONS or (factor is not None and not 1 <= factor <= _MOST):
        raise ValueError(
            f"rope: got {text!r}, accepted: {', '.join(POSITIONS)}, each alone or with a factor "
            f"from 1 to {_MOST:.0f}, such as linear:4"
        )
    return kind, factor


@contextmanager
def scaled_positions(model: nn.Module, kind: str, factor: float) -> Iterator[None]:
    """Scale the rotary positions of a model; what was there is restored on leaving.

    `kind`: linear (positions divided by the factor), dynamic (a larger base for prompts beyond the
    trained context) or yarn (low frequencies divided, high ones kept).
    """
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _is_rotary(child)
    ]
    if not found:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no rotary positions to scale; leave rope out"
        )
    with ExitStack() as stack:
        for parent, name, rotary in found:
            new = _scaled(rotary, kind, factor)
            parent._modules[name] = new
            stack.callback(parent._modules.__setitem__, name, rotary)
        yield


def positions_agree(model: nn.Module, lengths: Sequence[int]) -> bool:
    """Whether the rotary positions of prompts of these lengths are those of the longest one.

    Some kinds choose or scale frequencies by the length of the whole prompt, and may do so by less
    than outputs of attention tell.
    """
    for rotary in filter(_is_rotary, model.modules()):
        angles = [_angles(rotary, length) for length in sorted(set(lengths))]
        for short in angles[:-1]:
            begin = [x[:, : short[0].shape[1]] for x in angles[-1]]
            if not all(torch.allclose(a, b, 0, 1e-6) for a, b in zip(short, begin, strict=True)):
                return False
    return True


def _angles(rotary: Any, length: int) -> tuple[Tensor, ...]:
    """Cosines and sines (1, positions, size) of a prompt, or both in complex numbers.

    By a copy, because some remember lengths.
    """
    device = rotary.inv_freq.device
    positions = torch.arange(length, device=device)[None]
    with torch.inference_mode():
        found = copy.deepcopy(rotary)(torch.zeros(1, 1, 1, device=device), positions)
    return found if isinstance(found, tuple) else (found,)


def _is_rotary(module: nn.Module) -> bool:
    return hasattr(module, "inv_freq") and hasattr(module, "rope_type")


def _scaled(rotary: Any, kind: str, factor: float) -> nn.Module:
    if rotary.rope_type != "default":
        raise UnsupportedModelError(
            f"{type(rotary).__name__} already scales its positions ({rotary.rope_type}); leave "
            "rope out"
        )
    config = copy.deepcopy(rotary.config)
    trained = config.max_position_embeddings
    config.rope_parameters = {
        **config.rope_parameters,
        "rope_type": kind,
        "factor": factor,
        **({"original_max_position_embeddings": trained} if kind == "yarn" else {}),
        **({"attention_factor": 1.0} if kind == "yarn" else {}),
    }
    new: nn.Module = type(rotary)(config=config)
    return new.to(rotary.inv_freq.device).eval()
