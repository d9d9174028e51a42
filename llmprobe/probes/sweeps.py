"""A sweep: prompts of many lengths through a model, as few and as short forwards as possible.

One pass over the longest prompts serves all lengths where short prompts are beginnings of long
ones, or differ from them in a fixed query alone, and where the model agrees (`agreement`). Else
there is one pass per length. Each forward ends behind the deepest wanted attention module. Where
memory runs out, batches are halved, then prompts are cut into chunks over a cache.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.base.lengths import passes_of
from llmprobe.base.machine import free_memory, is_out_of_memory, matmul_rate, release_memory
from llmprobe.base.transfers import upload
from llmprobe.capture.discovery import AttentionLayer, attention_layers, input_device
from llmprobe.capture.parts import Part, whole_of
from llmprobe.capture.token_types import TokenTypes
from llmprobe.errors import OutOfMemoryError
from llmprobe.probes.agreement import forget_lengths
from llmprobe.probes.forwards import Observe, forward, forward_branches
from llmprobe.probes.prompts import Prompts
from llmprobe.probes.tallies import N_GROUPS

_SMALLEST_CHUNK = 64
_LEAST_TOKENS = 4096
"""In a forward, before batches are made smaller so that there are pieces for several processes."""
_EFFICIENCY = 0.4
"""Share of the matmul rate that a forward reaches, for the estimate of time."""
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
    keeps_keys: bool = False,
) -> SweepPlan:
    """Predict what a sweep takes; `every` layer and the `device` tell it without weights.

    `keeps_keys`: whether branches need the keys and values of all layers.
    """
    passes = passes_of(lengths, range(n_prompts), one_pass=one_pass, sizes=sizes)
    runs = [(of_pass[-1], len(prompts)) for of_pass, prompts in passes]
    deepest = layers[-1]
    before = [x for x in every or attention_layers(model) if x.layer < deepest.layer]
    weights, widest = _weights_before(model, deepest)
    n_whole = len(before)
    if isinstance(model, Part) and deepest.cross:  # the encoder reads the prompt
        weights, widest, n_whole = _weights_of(model.get_encoder())
    flops = 0.0
    for run, n in runs:
        # Causal attention computes half the square; in the deepest layer only single rows.
        square = 2 * run**2 * deepest.n_heads * deepest.head_size * n_whole
        flops += n * (2 * weights * run + square)
    in_flight = max(_batch_size(batch_tokens, run, n) * min(run, chunk or run) for run, n in runs)
    embedding = next(model.parameters())
    token_bytes = embedding.element_size() * (8 * deepest.hidden_size + 3 * widest)
    if keeps_keys:
        sizes_of_keys = [2 * x.n_kv_heads * x.head_size for x in (*before, deepest)]
        token_bytes += embedding.element_size() * sum(sizes_of_keys)
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
    """Runs a batch, with the arguments of `forwards.forward`, which does it if None."""
    types: Callable[[], TokenTypes | None] = lambda: None
    """Asked before a batch is run: how the first attention may be computed by token types."""
    together: bool = False
    """Whether all branches run in one forward."""
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
                tokens = upload(self.prompts.batch(indices, length), device)
                parts = self._parts(tokens, lengths, chunk)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
        if parts is None:
            release_memory(device)
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

    def _parts(
        self, tokens: Tensor, lengths: tuple[int, ...], chunk: int | None
    ) -> list[Mapping[int, Any]]:
        """What is captured of a batch, in parts by positions."""
        positions = [n - 1 for n in lengths]
        if self.forward is not None:
            return self.forward(self.model, tokens, positions, chunk, self.observe)
        n_tail, types = self.prompts.n_tail, self.types() if chunk is None else None
        if n_tail and len(lengths) > 1:
            return forward_branches(
                self.model,
                tokens,
                lengths,
                chunk,
                self.observe,
                types,
                n_tail=n_tail,
                together=self.together,
            )
        return forward(self.model, tokens, positions, chunk, self.observe, types)

    def _divisible(self, indices: list[int], at_once: int) -> bool:
        """Whether a batch can be run with less memory."""
        return len(indices) > 1 or (at_once // 2 >= _SMALLEST_CHUNK and self.may_chunk())


def _weights_before(model: nn.Module, deepest: AttentionLayer) -> tuple[int, int]:
    """Matrix entries that one token meets up to the deepest attention, and the widest of them."""
    parts = deepest.path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts))
    blocks, number = ".".join(parts[:at]) + ".", int(parts[at]) if at < len(parts) else 0
    total, widest = 0, 0
    for name, parameter in whole_of(model).named_parameters():
        if parameter.ndim < 2 or not name.startswith(blocks):
            continue
        block = name.removeprefix(blocks).split(".")[0]
        earlier = block.isdecimal() and int(block) < number
        if earlier or name.startswith(deepest.path + "."):
            total += parameter.numel()
            widest = max(widest, *parameter.shape)
    return total, widest


def _weights_of(encoder: nn.Module) -> tuple[int, int, int]:
    """Matrix entries that one token meets in all layers, the widest of them, and the layers."""
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    blocks = lists[0] if lists else encoder
    shapes = [weight.shape for weight in blocks.parameters() if weight.ndim > 1]
    entries = sum(math.prod(shape) for shape in shapes)
    return entries, max(map(max, shapes), default=0), len(list(blocks.children()))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
