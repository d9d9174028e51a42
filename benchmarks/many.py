"""Cases k and l: many prompts, and prompts that end in a fixed query.

k  attention outputs of layer 0 for 64 prompts at all lengths: tokens drawn alike from the whole
   vocabulary, and tokens with the frequencies of a text. llmprobe runs all prompts, its trial and
   its table of token types included.
l  all layers with a fixed query at the end of every length: llmprobe makes one pass.

The others take minutes for 64 prompts, so they run a few, and their time is scaled by the number of
prompts; notes say so. Numbers of these prompts must agree to 1e-4 before times count.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from measure import matmul_rate
from report import Finding, Options, alone, compare
from shapes import build, config
from sweeps import TOLERANCE, relative_difference
from torch import Tensor, nn
from ways import TOOLS, WAYS, missing

from llmprobe import attention_layers, capture_attention, parse_lengths
from llmprobe.base.machine import memory_kept
from llmprobe.probes.forwards import find_types, forward, forward_branches
from llmprobe.probes.prompts import Material, Prompts, RandomPrompts, Tokens, make_prompts

N_PROMPTS = 64
N_THEIRS = 1
"""Prompts that the others run."""
ROUNDS = 3
"""Of ours; the others take long."""
WITHOUT_LIMIT = ("hooks", "nnsight")
"""Tools that survive 16,384 tokens; case a has how far the others go."""
N_WORDS, SPACING = 20_000, 7919
"""Distinct tokens of a text of a million, and how far apart they are in the vocabulary."""


class TextLike(Prompts):
    """Tokens with the frequencies of a text: the n-th most frequent one as often as 1/n."""

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self._vocabulary = material.vocab_size

    def _body(self, index: int, n_tokens: int) -> Tokens:
        generator = np.random.default_rng([0, index])
        ranks = np.exp(generator.random(n_tokens) * np.log(N_WORDS)).astype(np.int64)
        return (ranks * SPACING) % self._vocabulary


def many_prompts(
    options: Options, shape: str = "llama_1b", lengths: str = "16..16384"
) -> Iterator[Finding]:
    """Case k."""
    model, wanted = build(shape, 2), parse_lengths(lengths)
    material = Material(
        n_prompts=N_PROMPTS,
        shortest=min(wanted),
        longest=max(wanted),
        seed=0,
        vocab_size=config(shape).vocab_size,
        tokenizer=None,
        bos_token_id=None,
        text=None,
        query="free",
        n_queries=1,
    )
    kinds = {"random": (RandomPrompts, 100.0), "text-like": (TextLike, 200.0)}
    for name, (kind, target) in kinds.items():
        yield from _against_all(options, model, kind(material), wanted, name, target)


def _against_all(
    options: Options,
    model: nn.Module,
    prompts: Prompts,
    lengths: tuple[int, ...],
    name: str,
    target: float,
) -> Iterator[Finding]:
    positions = [n - 1 for n in lengths]

    def observe(wanted: list[int]) -> object:
        return capture_attention(model, [0], positions=wanted, stop=True)

    def ours() -> Tensor:
        n_tokens = prompts.n_prompts * lengths[-1]
        found = []
        with memory_kept():  # as in a sweep
            types = find_types(model, attention_layers(model)[0], prompts, n_tokens=n_tokens)
            for index in range(prompts.n_prompts):
                tokens = prompts.batch([index], lengths[-1])
                found.append(forward(model, tokens, positions, None, observe, types)[0][0])
        return torch.cat(found)

    times = [_timed(ours) for _ in range(ROUNDS)]
    seconds, numbers = statistics.median(one for one, _ in times), times[0][1]
    shape, note = "1B, layer 0, 64 prompts", f"{name} tokens, lengths {lengths[0]} to {lengths[-1]}"
    for tool in WITHOUT_LIMIT:
        if (reason := missing(tool)) is not None:
            options.skip(reason)
            continue
        way, tokens = WAYS[f"{tool}, early stop"], prompts.batch([0], lengths[-1])
        theirs, expected = _timed(lambda: way(model, tokens, lengths, [0])[0])  # noqa: B023
        difference = relative_difference(numbers[0].numpy(), expected.numpy())
        yield compare(
            "k",
            f"{shape}, {name}: times as fast as {tool}, early stop",
            [seconds],
            [theirs * N_PROMPTS],
            target=target if tool == "hooks" else None,
            note=f"{note}, relative difference {difference:.0e}; {tool} ran {N_THEIRS} of "
            f"{N_PROMPTS} prompts, its time is scaled",
            equal=difference <= TOLERANCE,
        )
    hidden, size = model.config.hidden_size, model.config.head_dim
    width = 2 * model.config.num_key_value_heads * size
    n_types = len(torch.cat([prompts.batch([i], lengths[-1]) for i in range(N_PROMPTS)]).unique())
    rows = 4 * sum(lengths) * model.config.num_attention_heads * size * N_PROMPTS
    flops = 2 * n_types * hidden * width + rows
    yield alone(
        "k",
        f"{shape}, {name}: llmprobe's share of the machine's rate",
        [flops / matmul_rate(3) / seconds],
        note=f"FLOPs of {n_types:,} distinct tokens and of rows over their prefixes; the rest is "
        f"gathering {4 * width * lengths[-1] / 2**20:,.0f} MiB of keys and values for each prompt",
    )


def fixed_queries(
    options: Options, shape: str = "smollm2", longest: int = 2048
) -> Iterator[Finding]:
    """Case l."""
    n_prompts = 8 if options.full else 2
    for given, target in ((f"16..{longest}", 1.8), (f"16..{longest}:20", 3.0)):
        model = build(shape, path=options.smollm2)  # anew: TransformerLens replaces its modules
        layers = list(range(model.config.num_hidden_layers))
        lengths = parse_lengths(given)
        prompts = make_prompts(
            "random",
            n_prompts=n_prompts,
            lengths=lengths,
            vocab_size=model.config.vocab_size,
            query="fixed",
        )
        every = range(n_prompts)

        def observe(positions: list[int]) -> object:
            return capture_attention(model, layers, positions=positions, stop=True)  # noqa: B023

        def branches() -> Tensor:
            tokens = prompts.batch(every, longest)  # noqa: B023
            given = (model, tokens, lengths, None, observe)  # noqa: B023
            parts = forward_branches(*given, n_tail=1, together=True)
            return _joined(parts)

        def per_length() -> Tensor:
            parts = []
            for n in lengths:  # noqa: B023
                parts += forward(model, prompts.batch(every, n), [n - 1], None, observe)  # noqa: B023
            return _joined(parts)

        rounds = []
        with memory_kept():  # as in a sweep
            for _ in range(ROUNDS):
                rounds.append((_timed(branches), _timed(per_length)))
        (_, numbers), (_, expected) = rounds[0]
        ours, before = ([both[n][0] for both in rounds] for n in (0, 1))
        difference = relative_difference(numbers.numpy(), expected.numpy())
        yield compare(
            "l",
            f"SmolLM2, all layers, fixed query, {len(lengths)} lengths: times as fast as one pass "
            "per length",
            ours,
            before,
            target=target,
            note=f"{n_prompts} prompts, lengths {given}, relative difference {difference:.0e}",
            equal=difference <= TOLERANCE,
        )
        for tool in TOOLS if options.full or len(lengths) < 10 else WITHOUT_LIMIT[:1]:
            if (reason := missing(tool)) is not None:
                options.skip(reason)
                continue
            way = WAYS[f"{tool}, early stop"]

            def run() -> Tensor:
                rows = [way(model, prompts.batch([0], n), [n], layers) for n in lengths]  # noqa: B023
                return torch.cat(rows, dim=1)

            theirs, expected = _timed(run)
            difference = relative_difference(numbers[:, 0].numpy(), expected.numpy())
            yield compare(
                "l",
                f"SmolLM2, all layers, fixed query, {len(lengths)} lengths: times as fast as "
                f"{tool}, early stop",
                [statistics.median(ours)],
                [theirs * n_prompts],
                note=f"lengths {given}, relative difference {difference:.0e}; {tool} ran 1 of "
                f"{n_prompts} prompts, its time is scaled",
                equal=difference <= TOLERANCE,
            )


def _joined(parts: list) -> Tensor:
    """(layers, prompts, lengths, hidden)"""
    return torch.stack([torch.cat([part[n] for part in parts], 1) for n in parts[0]])


def _timed(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.perf_counter()
    with torch.inference_mode():
        found = run()
    return time.perf_counter() - start, found
