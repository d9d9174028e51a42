"""Made-up but plausible results of random searches."""

import numpy as np
from samples import _provenance

from llmprobe.results.search import SearchResult
from llmprobe.results.set_search import MEASURED, SetSearchResult

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


TIMES = (1, 4, 16, 64, 256)
SET_RANGES = {
    "n_steps": "2000 to 50000, log-uniform",
    "learning_rate": "2e-4 to 5e-3, log-uniform",
    "cosine": "0 (constant rate) or 1",
    "weight_decay": "1e-5 to 1e-1, log-uniform",
    "width": "32, 64 or 128",
    "heads": "1, 2 or 4",
    "mlp_layers": "2 or 3",
    "longest": "8, 16 or 32 items",
    "projection": "0 or 1",
    "residual": "0 or 1",
}


def make_set_search_result(
    n_settings: int = 32,
    *,
    seed: int = 0,
    effects: tuple[float, ...] = (-0.04, 0.0, 0.1),
    noise: float = 0.03,
    wide: float = 0.0,
) -> SetSearchResult:
    """`effects` of three parts on accuracy beyond training, up to `noise`; `wide` is what the first
    gains more in networks of width 128. The last part applies to networks with a residual sum."""
    rng = np.random.default_rng(seed)
    n, parts = n_settings, ("layernorm", "headnorm", "postnorm")
    heads, residual = rng.choice([1, 2, 4], size=n), rng.integers(0, 2, size=n)
    width = rng.choice([32, 64, 128], size=n)
    level = np.array([0.99, 0.9, 0.7, 0.45, 0.3]) + rng.normal(scale=0.05, size=(n, 1))
    change = np.stack([np.zeros(n), *(np.full(n, effect) for effect in effects)], axis=1)
    change[:, 1] += wide * (width == 128)
    change[:, 1:] += noise * rng.normal(size=(n, len(parts)))
    beyond = np.array(TIMES) > 1
    accuracy = np.clip(level[:, None] + change[..., None] * beyond, 0, 1)
    accuracy[residual == 0, 3] = np.nan
    measured = dict.fromkeys(MEASURED, accuracy)
    return SetSearchResult(
        provenance=_provenance(TIMES, prompts="argmax"),
        task="argmax",
        seeds=tuple(range(n)),
        variants=parts,
        lengths=TIMES,
        train_lengths=(1, 1),
        n_sets=(256,) * len(TIMES),
        shared_tests=False,
        margins={"accuracy": 0.01},
        chance=0.1,
        schedule="drawn",
        steps=50_000,
        warnings=("short training",),
        ranges=SET_RANGES,
        n_steps=np.exp(rng.uniform(np.log(2000), np.log(50_000), size=n)).astype(np.int64),
        learning_rate=10 ** rng.uniform(-3.5, -2.5, size=n),
        cosine=rng.integers(0, 2, size=n),
        weight_decay=10 ** rng.uniform(-5, -1, size=n),
        width=width,
        heads=heads,
        mlp_layers=rng.integers(2, 4, size=n),
        longest=rng.choice([8, 16, 32], size=n),
        projection=np.where(heads > 1, 1, rng.integers(0, 2, size=n)),
        residual=residual,
        **measured,
        diverged=np.full((n, 1 + len(parts)), -1),
    )
