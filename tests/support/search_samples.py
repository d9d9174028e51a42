"""A made-up but plausible result of a random search."""

import numpy as np
from samples import _provenance

from llmprobe.results.search import SearchResult

LENGTHS = (1, 2, 4, 8, 12, 16, 24, 31)
RANGES = {
    "learning_rate": "1e-4..1e-2, log-uniform",
    "dropout": "0.05..0.5, uniform",
    "ema_decay": "0.9..0.999, log-uniform in 1 − decay",
    "width": "32, 64, 128 or 256",
    "depth": "1..4, uniform",
}


def make_search_result(
    n_settings: int = 64,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    seed: int = 0,
    dropout: float = 0.83,
    averaging: float = 0.96,
    noise: float = 0.2,
) -> SearchResult:
    """`dropout` and `averaging` multiply KL, up to `noise`, the sd of the log of their effects."""
    rng = np.random.default_rng(seed)
    shape = (n_settings, 2, 3, len(lengths))
    rate = 10 ** rng.uniform(-4, -2, size=n_settings)
    width = 2 ** rng.integers(5, 9, size=n_settings)
    depth = rng.integers(1, 5, size=n_settings)
    n = np.array(lengths, dtype=np.float64)
    log_kl = np.broadcast_to(np.log(0.02 * (1 + n / 8)), shape).copy()
    level = 0.25 * np.log(rate / 1e-3) ** 2 - 0.3 * np.log2(width / 64) - 0.1 * depth
    log_kl += (level + rng.normal(scale=0.4, size=n_settings))[:, None, None, None]
    log_kl[:, 1] += np.log(dropout) + noise * rng.normal(size=(n_settings, 1, 1))
    log_kl[:, :, 1:] += np.log(averaging) + noise / 4 * rng.normal(size=(n_settings, 2, 2, 1))
    kl = np.exp(log_kl)
    mass = 0.5 * kl / (1 + kl)
    return SearchResult(
        provenance=_provenance(lengths, prompts="set-complement"),
        task="set-complement",
        seeds=tuple(range(n_settings)),
        lengths=lengths,
        train_lengths=(1, 8),
        n_sequences=(1024,) * len(lengths),
        vocab=32,
        target="sampled",
        margins={"kl": 0.02},
        schedule="constant",
        steps=2000,
        warnings=("short training",),
        ranges=RANGES,
        learning_rate=rate,
        dropout=rng.uniform(0.05, 0.5, size=n_settings),
        ema_decay=1 - 10 ** rng.uniform(-3, -1, size=n_settings),
        width=width,
        depth=depth,
        kl=kl,
        illegal_mass=mass,
        illegal_top1=np.round(np.maximum(0, mass - 0.1), 2),
        gap=2 - np.log(kl) + 0.1 * rng.normal(size=shape),
        diverged=np.full(shape[:2], -1),
    )
