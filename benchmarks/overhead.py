"""Case d: what statistics cost.

Capture and statistics of all layers over the bare forward of the same batch, nothing left out; and
`Moments.update` over `torch.var_mean` of one batch. The first is a difference of a few percent of
what the machine's own unrest is, so there are many rounds, and the interval of their median.
"""

from collections.abc import Iterator

import numpy as np
import torch
from measure import alternate
from report import Finding, Options, compare
from scipy.stats import bootstrap
from shapes import build, prompt
from torch import Tensor

from llmprobe import Groups, Moments, capture_attention, parse_lengths
from llmprobe.base.machine import memory_kept

FORWARD, UPDATE = 1.03, 4.0
LENGTH, N_PROMPTS, N_GROUPS = 1024, 2, 16


def run(options: Options) -> Iterator[Finding]:
    yield over_forward(
        rounds=100 if options.full else 40, n_layers=None if options.full else 8, options=options
    )
    yield over_var_mean()


def over_forward(*, rounds: int, n_layers: int | None, options: Options) -> Finding:
    model = build("smollm2", n_layers, options.smollm2)
    tokens = prompt(model, LENGTH, N_PROMPTS)
    positions = [n - 1 for n in parse_lengths(f"16..{LENGTH}")]
    outputs: dict[int, Groups[Moments]] = {}
    vectors: dict[int, Moments] = {}

    def take(layer: int, x: Tensor) -> None:
        """What a probe of the variance keeps: over prompts in groups, and over features."""
        groups = [n % N_GROUPS for n in range(len(x))]
        outputs.setdefault(layer, Groups(Moments)).update(x, groups)
        variance, mean = torch.var_mean(x.double(), dim=-1, correction=0)
        vectors.setdefault(layer, Moments()).update(torch.stack([mean, variance], dim=-1))

    def bare() -> None:
        model.model(tokens, use_cache=False)

    def probed() -> None:
        with capture_attention(model, positions=positions, into=take):
            model.model(tokens, use_cache=False)

    # A probe keeps freed memory, which makes a forward faster: here for both.
    with torch.inference_mode(), memory_kept():
        timing = alternate({"bare": bare, "probed": probed}, rounds=rounds, warm_up=2)
    ours, theirs = timing["probed"].times, timing["bare"].times
    ratios = np.divide(ours, theirs)
    interval = bootstrap((ratios,), np.median, rng=np.random.default_rng(0)).confidence_interval
    n_layers = model.config.num_hidden_layers
    return compare(
        "d",
        f"SmolLM2, {n_layers} layers: statistics and forward over forward",
        ours,
        theirs,
        target=FORWARD,
        at_least=False,
        note=f"95 % interval of the median {interval.low:.3f} to {interval.high:.3f}; "
        f"{N_PROMPTS} prompts of {LENGTH} tokens, {len(positions)} positions",
    )


def over_var_mean() -> Finding:
    """One thread: other work then slows both alike, and not the one with more kernels."""
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0))
    moments = Moments()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work = {"var_mean": lambda: torch.var_mean(x, dim=0), "update": lambda: moments.update(x)}
        timing = alternate(work, rounds=300, warm_up=20)
    finally:
        torch.set_num_threads(threads)
    return compare(
        "d",
        "Moments.update over torch.var_mean",
        timing["update"].times,
        timing["var_mean"].times,
        target=UPDATE,
        at_least=False,
        note="64 prompts, 2048 features, one thread",
    )
