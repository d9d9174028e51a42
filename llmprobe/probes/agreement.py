"""Whether a model gives the same for a prompt alone, as the beginning of a longer one, in chunks.

One pass over the longest prompts serves all lengths only if nothing in the model depends on the
length of the whole input. Some scalings of positions do (longrope chooses its factors by it,
dynamic NTK its base), and some attention temperatures. So one prompt is run at the requested
lengths, alone and as part of the longest, and each layer's heads are compared at each length. Where
that would take too long, the lengths on both sides of every threshold that the config names come
first: a model changes there if it changes at all.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.base.machine import is_out_of_memory
from llmprobe.capture.discovery import AttentionLayer, input_device
from llmprobe.capture.outputs import capture_attention
from llmprobe.probes.prompts import Prompts
from llmprobe.probes.sweeps import forget_lengths, forward_at

_BUDGET = 1.5
"""Tokens of the prompts that run alone, relative to the longest one; doubling lengths need 1."""
_N_IN_CHUNKS = 100
"""Tokens that are compared in chunks and as a whole, whatever the config names."""
_NAMES = re.compile("position|window|chunk|context|ctx|seq|length|floor|block|original|train")
"""Config fields that may hold a number of tokens; of rope parameters every field may."""
_NO_COUNT = re.compile("factor|theta|base")
_ROPE = re.compile("rope|rotary")


def prefixes_agree(
    model: nn.Module, prompts: Prompts, lengths: Sequence[int], layers: Sequence[AttentionLayer]
) -> bool:
    """Whether prompts of these lengths give what they give as the beginning of the longest one.

    Compared at the last token, which is what a sweep captures. Where the longest does not fit the
    memory, shorter ones are tried. Attention that answers for the last token alone has nothing to
    show for the beginning.
    """
    if any(layer.last_only for layer in layers):
        return False
    longest = max(lengths)
    shorter = lengths_to_check(lengths, thresholds(model))
    while True:
        try:
            return _prefixes_agree(model, prompts, layers, shorter, longest)
        except Exception as error:
            if not is_out_of_memory(error) or longest < 4:
                raise
            longest //= 2
            shorter = [n for n in shorter if n < longest] or [longest - 1]


def chunks_agree(model: nn.Module, prompts: Prompts, layers: Sequence[AttentionLayer]) -> bool:
    """Whether a prompt in chunks over a cache gives what it gives as a whole.

    Not every state-space or sparse layer resumes where its cache has stopped; a model that depends
    on the length of the whole input does not know it in the first chunks; attention that answers
    for the last token alone has no cache. A short prompt is tried, and one beyond each threshold.
    """
    if any(layer.last_only for layer in layers):
        return False
    longest = prompts.longest
    beyond = [min(longest, t + max(1, t // 8)) for t in thresholds(model) if 2 <= t < longest]
    tried = sorted({min(longest, _N_IN_CHUNKS), *(n for n in beyond if n > _N_IN_CHUNKS)})
    return all(_chunks_agree(model, prompts, layers, length) for length in tried)


def thresholds(model: nn.Module) -> list[int]:
    """Numbers of tokens that the config names: windows, chunks, contexts, rope's integers."""
    config: Any = getattr(model, "config", None)
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    return sorted({n for n in _counts(facts) if n > 0})


def lengths_to_check(lengths: Sequence[int], bounds: Sequence[int]) -> list[int]:
    """The requested lengths to run alone: all but the longest, if that is cheap.

    Else those next to the bounds, the shortest, the next to longest, and some in between.
    """
    *shorter, longest = sorted(set(lengths))
    budget = _BUDGET * longest
    if sum(shorter) <= budget:
        return shorter
    chosen = {shorter[0], shorter[-1]}
    for bound in bounds:
        below = [n for n in shorter if n < bound]
        above = [n for n in shorter if n > bound]
        if below and longest > bound:
            chosen |= {below[-1], *above[:1], *(n for n in shorter if n == bound)}
    # From the shortest, as that many of them cost little, spaced by factors of two.
    for power in range(math.ceil(math.log2(longest))):
        near = min(shorter, key=lambda n: abs(math.log(n / 2**power)))
        if sum(chosen | {near}) <= budget:
            chosen.add(near)
    return sorted(chosen)


def _counts(facts: Mapping[str, Any], *, all_names: bool = False) -> Iterator[int]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _counts(value, all_names=all_names or bool(_ROPE.search(str(name))))
        elif (all_names or _NAMES.search(str(name))) and not _NO_COUNT.search(str(name)):
            items = value if isinstance(value, list | tuple) else [value]
            numbers = [x for x in items if isinstance(x, int | float) and math.isfinite(x)]
            yield from (int(x) for x in numbers if x == int(x))


def _prefixes_agree(
    model: nn.Module,
    prompts: Prompts,
    layers: Sequence[AttentionLayer],
    shorter: Sequence[int],
    longest: int,
) -> bool:
    # The short ones first: dynamic scaling remembers the longest prompt that it has seen.
    forget_lengths(model, prompts)
    alone = [_heads(model, prompts, layers, n, [n - 1]) for n in sorted(shorter)]
    inside = _heads(model, prompts, layers, longest, [n - 1 for n in sorted(shorter)])
    return all(
        _agree(model, whole[:, [at]], own[:, [0]])
        for at, heads in enumerate(alone)
        for whole, own in zip(inside, heads, strict=True)
    )


def _chunks_agree(
    model: nn.Module, prompts: Prompts, layers: Sequence[AttentionLayer], length: int
) -> bool:
    """At one length; where the whole does not fit the memory, large chunks stand for it."""
    for whole in (None, length // 2 + 1, length // 3 + 1):
        positions = list(range(length - 1, -1, -max(7, length // 16)))[::-1]
        cuts = (whole, max(1, length // 6))
        try:
            a, b = (_heads(model, prompts, layers, length, positions, cut) for cut in cuts)
            return all(_agree(model, x, y, strictly=True) for x, y in zip(a, b, strict=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    return length < 3 or _chunks_agree(model, prompts, layers, length // 2)


def _heads(
    model: nn.Module,
    prompts: Prompts,
    layers: Sequence[AttentionLayer],
    length: int,
    positions: list[int],
    chunk: int | None = None,
) -> list[Tensor]:
    """Head outputs of the first prompt, by layer: (1, positions, heads, head size)."""
    numbers = [layer.layer for layer in layers]

    def observe(wanted: list[int]) -> Any:
        return capture_attention(
            model, numbers, positions=wanted, at="heads", stop=True, device="cpu"
        )

    with torch.inference_mode():
        tokens = prompts.batch([0], length).to(input_device(model))
        parts = forward_at(model, tokens, positions, chunk, observe)
    return [torch.cat([part[n] for part in parts], dim=1).float() for n in numbers]


def _agree(model: nn.Module, a: Tensor, b: Tensor, *, strictly: bool = False) -> bool:
    """By the root mean square of the difference, or strictly by the largest one."""
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    scale = b.square().mean().sqrt()
    if strictly:
        return bool((a - b).abs().max() <= (1e-3 if exact else 0.2) * scale)
    return bool((a - b).square().mean().sqrt() <= (1e-3 if exact else 0.05) * scale)
