"""A sweep: prompts of many lengths through a model, as few and as short forwards as possible.

In a causal model the output at position N − 1 of a long prompt *is* the last output of its first N
tokens. One pass over the longest prompts therefore serves all lengths, where the prompts are
prefixes of each other and the model agrees (longrope, dynamic scaling and temperatures by length
do not). So `prefixes_agree` runs one prompt at the requested lengths, alone and as part of the
longest. Else there is one pass per length. Each forward ends behind the deepest wanted attention
module. Where memory runs out, batches are halved, then prompts are cut into chunks over a cache.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from llmprobe.base.lengths import lengths_to_check, passes_of
from llmprobe.base.machine import free_memory, is_out_of_memory, matmul_rate
from llmprobe.capture.discovery import AttentionLayer, attention_layers, input_device
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.positions import positions_agree
from llmprobe.errors import OutOfMemoryError
from llmprobe.probes.prompts import Prompts
from llmprobe.probes.tallies import N_GROUPS

_SMALLEST_CHUNK = 64
_LEAST_TOKENS = 4096
"""In a forward, before batches are made smaller so that there are pieces for several processes."""
_EFFICIENCY = 0.4
"""Share of the matmul rate that a forward reaches, for the estimate of time."""
_DEEP = 512
"""Tokens of a prompt of which all layers are compared, whatever the config names."""
_N_IN_CHUNKS = 100
"""Tokens that are compared in chunks and as a whole, whatever the config names."""
_NAMES = re.compile("position|window|chunk|context|ctx|seq|length|floor|block|original|train")
"""Config fields that may hold a number of tokens; of rope parameters every field may."""
_NO_COUNT = re.compile("factor|theta|base")
_ROPE = re.compile("rope|rotary")

Observe = Callable[[list[int]], AbstractContextManager[Mapping[int, Any]]]
"""Attach a capture for these positions; the mapping it gives is filled by the forward."""
Consume = Callable[[list[int], tuple[int, ...], list[Mapping[int, Any]]], None]
"""Take in the prompts' numbers, their lengths, and what was captured, in parts by positions."""


@dataclass(frozen=True)
class Piece:
    """Prompts of one pass: what a process does at a time, and what is kept once it is done."""

    name: str
    lengths: tuple[int, ...]
    """What the pass serves; the last one is how long its prompts are."""
    batches: tuple[tuple[int, ...], ...]

    @property
    def n_tokens(self) -> int:
        return self.lengths[-1] * sum(map(len, self.batches))


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will do, and about what it needs."""

    lengths: tuple[int, ...]
    n_prompts: int
    one_pass: bool
    """Whether one pass over the longest prompts serves all lengths."""
    batch_tokens: int
    """Tokens in one forward, at most, but one prompt at least."""
    chunk: int | None
    """Tokens of a prompt in one forward over a cache; None for the whole prompt."""
    n_tokens: int
    flops: float
    seconds: float
    token_bytes: int
    """Of a token in a forward, besides the weights."""
    memory: int
    """Bytes besides the weights, in the largest forward."""
    sizes: tuple[int, ...] | None = None
    """Tokens of each prompt; None if all prompts have every length."""
    first: int = 0
    """Prompts before this one have been seen already."""

    def after(self, first: int) -> "SweepPlan":
        """What is left to do once the first prompts have been seen."""
        left = replace(self, first=first)
        n_tokens = sum(lengths[-1] * len(prompts) for lengths, prompts in left.passes())
        share = n_tokens / self.n_tokens
        return replace(
            left, n_tokens=n_tokens, flops=self.flops * share, seconds=self.seconds * share
        )

    def passes(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """The lengths that each pass serves, and its prompts, which are as long as the last one."""
        every = range(self.first, self.n_prompts)
        return passes_of(self.lengths, every, one_pass=self.one_pass, sizes=self.sizes)

    def pieces(self) -> list[Piece]:
        """All of the work, the same whoever does it: up to as many pieces in a pass as groups."""
        pieces = []
        for lengths, prompts in self.passes():
            # By groups, so that a batch touches few of them.
            order = sorted(prompts, key=lambda i: (i % N_GROUPS, i))
            size = _batch_size(self.batch_tokens, lengths[-1], len(order))
            batches = [tuple(order[at : at + size]) for at in range(0, len(order), size)]
            n_pieces = min(N_GROUPS, len(batches))
            for n in range(n_pieces):
                first, end = (len(batches) * k // n_pieces for k in (n, n + 1))
                name = f"{lengths[0]}-{lengths[-1]}.{n}"
                pieces.append(Piece(name, lengths, tuple(batches[first:end])))
        return pieces

    def describe(self) -> str:
        how = "one pass for all lengths" if self.one_pass else "one pass per length"
        left = self.n_prompts - self.first
        more = f"{left} more prompt{'s' * (left != 1)}, {self.first} are there"
        n = len(self.lengths)
        return (
            f"{more if self.first else f'{self.n_prompts} prompts'}, {n} length{'s' * (n > 1)}, "
            f"{how}: "
            f"{self.n_tokens:,} tokens, about {self.flops / 1e12:.2g} TFLOP, "
            f"{_duration(self.seconds)} and {self.memory / 2**20:,.0f} MiB besides the weights"
        )


def plan_sweep(
    model: nn.Module,
    layers: Sequence[AttentionLayer],
    lengths: Sequence[int],
    *,
    n_prompts: int,
    one_pass: bool,
    batch_tokens: int,
    chunk: int | None,
    sizes: tuple[int, ...] | None = None,
    every: Sequence[AttentionLayer] | None = None,
    device: torch.device | None = None,
) -> SweepPlan:
    """Predict what a sweep takes; `every` layer and the `device` tell it without weights."""
    passes = passes_of(lengths, range(n_prompts), one_pass=one_pass, sizes=sizes)
    runs = [(of_pass[-1], len(prompts)) for of_pass, prompts in passes]
    weights, widest = _weights_before(model, layers[-1])
    deepest = layers[-1]
    n_whole = sum(layer.layer < deepest.layer for layer in every or attention_layers(model))
    flops = 0.0
    for run, n in runs:
        # Causal attention computes half the square; in the deepest layer only single rows.
        square = 2 * run**2 * deepest.n_heads * deepest.head_size * n_whole
        flops += n * (2 * weights * run + square)
    in_flight = max(_batch_size(batch_tokens, run, n) * min(run, chunk or run) for run, n in runs)
    embedding = next(model.parameters())
    token_bytes = embedding.element_size() * (8 * deepest.hidden_size + 3 * widest)
    rate = matmul_rate(device or input_device(model), embedding.dtype)
    return SweepPlan(
        lengths=tuple(lengths),
        n_prompts=n_prompts,
        one_pass=one_pass,
        batch_tokens=batch_tokens,
        chunk=chunk,
        n_tokens=sum(run * n for run, n in runs),
        flops=flops,
        seconds=flops / rate / _EFFICIENCY,
        token_bytes=token_bytes,
        memory=in_flight * token_bytes,
        sizes=sizes,
    )


def _batch_size(batch_tokens: int, length: int, n_prompts: int) -> int:
    """Prompts in a forward: few enough that each group has its own one, if they are long."""
    share = max(math.ceil(n_prompts / N_GROUPS), _LEAST_TOKENS // length)
    return max(1, min(batch_tokens // length, share, n_prompts))


@dataclass(frozen=True)
class Sweep:
    """What running a piece takes."""

    model: nn.Module
    prompts: Prompts
    plan: SweepPlan
    observe: Observe
    may_chunk: Callable[[], bool]
    """Asked once memory runs out: whether prompts may be cut into chunks."""
    forward: Callable[..., list[Mapping[int, Any]]] | None = None
    """Runs a batch, with the arguments of `_forward`, which does it if None."""
    _length: list[int] = field(default_factory=list, init=False)
    """Of the last piece: before another one the model has to forget it."""

    def run(
        self,
        piece: Piece,
        consume: Consume,
        advance: Callable[[int], object] = lambda n_tokens: None,
    ) -> None:
        """Run the batches of a piece; `advance` is called with the tokens that are done."""
        if self._length != [piece.lengths[-1]]:
            forget_lengths(self.model, self.prompts)
            self._length[:] = [piece.lengths[-1]]
        for batch in piece.batches:
            self._run(list(batch), piece.lengths, self.plan.chunk, consume)
            advance(len(batch) * piece.lengths[-1])

    def _run(
        self, indices: list[int], lengths: tuple[int, ...], chunk: int | None, consume: Consume
    ) -> None:
        """One batch; where memory runs out, its halves, then ever smaller chunks."""
        length, device = lengths[-1], input_device(self.model)
        at_once = min(chunk or length, length)
        need = self.plan.token_bytes * len(indices) * at_once
        # A CPU's memory may end in a kill and not in an error, so what cannot fit is not tried.
        hopeless = device.type == "cpu" and need > free_memory(device)
        parts = None
        if not hopeless or not self._divisible(indices, at_once):
            try:
                # Nothing is consumed before the whole batch is through: a retry counts none twice.
                tokens = self.prompts.batch(indices, length).to(device)
                positions = [n - 1 for n in lengths]
                run = self.forward or _forward
                parts = run(self.model, tokens, positions, chunk, self.observe)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
        if parts is not None:
            consume(indices, lengths, parts)
        elif not self._divisible(indices, at_once):
            whole, free = (n / 2**20 for n in (self.plan.token_bytes * length, free_memory(device)))
            raise OutOfMemoryError(
                f"a prompt of {length} tokens does not fit the memory, not even {at_once} tokens "
                f"at a time: it needs about {whole:,.0f} MiB besides the weights as a whole, and "
                f"{free:,.0f} MiB are free on {device}; use shorter lengths, fewer layers, or "
                'dtype="bfloat16"'
            )
        elif len(indices) > 1:
            half = len(indices) // 2
            for some in (indices[:half], indices[half:]):
                self._run(some, lengths, chunk, consume)
        else:
            self._run(indices, lengths, at_once // 2, consume)

    def _divisible(self, indices: list[int], at_once: int) -> bool:
        """Whether a batch can be run with less memory."""
        return len(indices) > 1 or (at_once // 2 >= _SMALLEST_CHUNK and self.may_chunk())


def prefixes_agree(
    model: nn.Module, prompts: Prompts, lengths: Sequence[int], layers: Sequence[AttentionLayer]
) -> bool:
    """Whether prompts of these lengths give what they give as the beginning of the longest one.

    Compared at the last token, as a sweep captures that. Unless the config names a threshold
    between the lengths, the first layer of each type tells for long prompts, and all layers are
    compared on short ones. Where the longest does not fit the memory, shorter ones are tried.
    Attention for the last token alone has no beginning to compare.
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
        if not _prefixes_agree(model, prompts, layers, [_DEEP // 4], _DEEP):
            return False
        layers = list({layer.type: layer for layer in reversed(layers)}.values())
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
    """Head outputs of one prompt, by layer: (1, positions, heads, head size)."""
    numbers = [layer.layer for layer in layers]

    def observe(wanted: list[int]) -> Any:
        return capture_attention(
            model, numbers, positions=wanted, at="heads", stop=True, device="cpu"
        )

    with torch.inference_mode():
        tokens = prompts.batch([prompts.longest_one], length).to(input_device(model))
        parts = _forward(model, tokens, positions, chunk, observe)
    return [torch.cat([part[n] for part in parts], dim=1).float() for n in numbers]


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
        model(tokens.to(input_device(model)), **_options(model))


def _forward(
    model: nn.Module, tokens: Tensor, positions: list[int], chunk: int | None, observe: Observe
) -> list[Mapping[int, Any]]:
    """Run prompts whole or in chunks over a cache; what is captured, in parts by positions."""
    length = tokens.shape[1]
    if chunk is None or chunk >= length:
        with observe(positions) as captured:
            model(tokens, **_options(model))
        return [captured]
    parts = []
    cache = DynamicCache(config=model.config)
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        wanted = [position - start for position in positions if start <= position < end]
        with observe(wanted or [-1]) as captured:
            model(tokens[:, start:end], past_key_values=cache, use_cache=True)
        if wanted:
            parts.append(captured)
    return parts


def _options(model: nn.Module) -> dict[str, Any]:
    takes_cache = "use_cache" in inspect.signature(model.forward).parameters
    return {"use_cache": False} if takes_cache else {}


def _weights_before(model: nn.Module, deepest: AttentionLayer) -> tuple[int, int]:
    """Matrix entries that one token meets up to the deepest attention, and the widest of them."""
    parts = deepest.path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts))
    blocks, number = ".".join(parts[:at]) + ".", int(parts[at]) if at < len(parts) else 0
    total, widest = 0, 0
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or not name.startswith(blocks):
            continue
        block = name.removeprefix(blocks).split(".")[0]
        earlier = block.isdecimal() and int(block) < number
        if earlier or name.startswith(deepest.path + "."):
            total += parameter.numel()
            widest = max(widest, *parameter.shape)
    return total, widest


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
