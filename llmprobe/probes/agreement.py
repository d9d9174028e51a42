"""Whether one pass may serve many lengths, and chunks whole prompts: found by running the model.

In a causal model the output at position N − 1 of a long prompt *is* the last output of its first N
tokens. Longrope, dynamic scaling and temperatures by length break that, so `prefixes_agree` runs
one prompt at the requested lengths, alone and in one pass. `chunks_agree` does the same for chunks
over a cache.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.base.lengths import lengths_to_check
from llmprobe.base.machine import is_out_of_memory
from llmprobe.base.transfers import fetch, upload
from llmprobe.capture.discovery import AttentionLayer, input_device
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.positions import positions_agree
from llmprobe.probes.forwards import forward, forward_branches, without_cache
from llmprobe.probes.prompts import Prompts

_DEEP = 512
"""Tokens of a prompt of which all layers are compared, whatever the config names."""
_N_IN_CHUNKS = 100
"""Tokens that are compared in chunks and as a whole, whatever the config names."""
_NAMES = re.compile("position|window|chunk|context|ctx|seq|length|floor|block|original|train")
"""Config fields that may hold a number of tokens; of rope parameters every field may."""
_NO_COUNT = re.compile("factor|theta|base")
_ROPE = re.compile("rope|rotary")


def prefixes_agree(
    model: nn.Module,
    prompts: Prompts,
    lengths: Sequence[int],
    layers: Sequence[AttentionLayer],
    *,
    together: bool = False,
) -> bool:
    """Whether prompts of these lengths give what they give in one pass over the longest one.

    There they are its beginnings, or branches of it if they end in a fixed query, which may run
    `together`. Compared at the last token, as a sweep captures that. Unless the config names a
    threshold between the lengths, the first layer of each type tells for long prompts, and all
    layers are compared on short ones. Where the longest does not fit the memory, shorter ones are
    tried. Attention for the last token alone has no beginning to compare.
    """
    if any(layer.last_only for layer in layers):
        return False
    longest, bounds = max(lengths), thresholds(model)
    if _scales_positions(model):
        forget_lengths(model, prompts)
        if not positions_agree(model, lengths):
            return False
    shorter = lengths_to_check(lengths, bounds)
    if longest > _DEEP and not any(min(lengths) <= bound < longest for bound in bounds):
        if not _prefixes_agree(model, prompts, layers, [_DEEP // 4], _DEEP, together):
            return False
        layers = list({layer.type: layer for layer in reversed(layers)}.values())
    while True:
        try:
            return _prefixes_agree(model, prompts, layers, shorter, longest, together)
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
    tried = [2, *(bound for bound in thresholds(model) if bound < longest), longest]
    if _scales_positions(model):
        forget_lengths(model, prompts)
        if not positions_agree(model, tried):
            return False
    beyond = [min(longest, t + max(1, t // 8)) for t in thresholds(model) if 2 <= t < longest]
    tried = sorted({min(longest, _N_IN_CHUNKS), *(n for n in beyond if n > _N_IN_CHUNKS)})
    return all(_chunks_agree(model, prompts, layers, length) for length in tried)


def _scales_positions(model: nn.Module) -> bool:
    """Plain rotary positions depend on nothing but themselves."""
    return any(getattr(part, "rope_type", "default") != "default" for part in model.modules())


def thresholds(model: nn.Module) -> list[int]:
    """Numbers of tokens that the config names: windows, chunks, contexts, rope's integers."""
    config: Any = getattr(model, "config", None)
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    return sorted({n for n in _counts(facts) if n > 0})


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
    together: bool,
) -> bool:
    # The short ones first: dynamic scaling remembers the longest prompt that it has seen.
    forget_lengths(model, prompts)
    lengths = sorted(shorter)
    if prompts.n_tail:
        try:
            inside = _branches(model, prompts, layers, [*lengths, longest], together)
        except Exception as error:  # such a model has no cache that could be cut
            if is_out_of_memory(error):
                raise
            return False
        forget_lengths(model, prompts)
        lengths = [*lengths, longest]  # with the cache it may differ as well
        alone = [_heads(model, prompts, layers, n, [n - 1]) for n in lengths]
    else:
        alone = [_heads(model, prompts, layers, n, [n - 1]) for n in lengths]
        inside = _heads(model, prompts, layers, longest, [n - 1 for n in lengths])
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
    """Head outputs of one prompt, by layer: (1, positions, heads, head size)."""
    with torch.inference_mode():
        tokens = upload(prompts.batch([prompts.longest_one], length), input_device(model))
        parts = forward(model, tokens, positions, chunk, partial(_observe, model, layers))
    return _joined(parts, layers)


def _branches(
    model: nn.Module,
    prompts: Prompts,
    layers: Sequence[AttentionLayer],
    lengths: list[int],
    together: bool,
) -> list[Tensor]:
    """The same at the last token of each length, from one pass."""
    observe = partial(_observe, model, layers)
    with torch.inference_mode():
        longest = prompts.batch([prompts.longest_one], max(lengths))
        tokens = upload(longest, input_device(model))
        parts = forward_branches(
            model, tokens, lengths, None, observe, n_tail=prompts.n_tail, together=together
        )
    return _joined(parts, layers)


def _observe(model: nn.Module, layers: Sequence[AttentionLayer], positions: list[int]) -> Any:
    numbers = [layer.layer for layer in layers]
    return capture_attention(model, numbers, positions=positions, at="heads", stop=True)


def _joined(
    parts: Sequence[Mapping[int, Tensor]], layers: Sequence[AttentionLayer]
) -> list[Tensor]:
    return fetch([torch.cat([part[x.layer] for part in parts], dim=1).float() for x in layers])


def _agree(model: nn.Module, a: Tensor, b: Tensor, *, strictly: bool = False) -> bool:
    """By the root mean square of the difference, or strictly by the largest one."""
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    scale = b.square().mean().sqrt()
    if strictly:
        return bool((a - b).abs().max() <= (1e-3 if exact else 0.2) * scale)
    return bool((a - b).square().mean().sqrt() <= (1e-4 if exact else 0.05) * scale)


def forget_lengths(model: nn.Module, prompts: Prompts) -> None:
    """A short prompt makes dynamic scaling of positions forget the longer ones before it."""
    with torch.inference_mode():
        # Two tokens: attention that answers for the last one alone needs one to look at.
        tokens = prompts.batch([prompts.longest_one], prompts.longest)[:, :2]
        model(upload(tokens, input_device(model)), **without_cache(model))
