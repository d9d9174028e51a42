"""A made-up but well-formed result of decoders whose right answer is a set of tokens."""

import numpy as np
from samples import NAMES, _provenance

from llmprobe.results.legality import LegalityResult


def make_legality_result(
    n_variants: int = 2,
    lengths: tuple[int, ...] = tuple(range(1, 32)),
    *,
    n_seeds: int = 8,
    task: str = "set-complement",
) -> LegalityResult:
    """Each odd variant is somewhat better; Othello is learned well, and its games end early."""
    rng = np.random.default_rng(0)
    n, shape = np.array(lengths, dtype=np.float64), (n_variants, n_seeds, len(lengths))
    othello = task == "othello"
    vocab = 64 if othello else lengths[-1] + 1
    uniform = 1 - (6 + 4 * np.sin(n / 20)) / vocab if othello else n / vocab
    skill = np.where(np.arange(n_variants) % 2 == 0, 1.0, 0.85)[:, None, None]
    level = skill * np.exp(rng.normal(scale=0.1, size=(n_variants, n_seeds, 1)))
    level = level * np.exp(rng.normal(scale=0.05, size=shape))
    share = (0.002 + 0.03 * n / lengths[-1]) if othello else 0.005 + 0.5 * (n / vocab) ** 2
    points = 20
    return LegalityResult(
        provenance=_provenance(lengths, prompts=task),
        task=task,
        variants=NAMES[:n_variants],
        seeds=tuple(range(n_seeds)),
        lengths=lengths,
        train_lengths=(1, max(1, (lengths[-1] + 1) // 4)),
        n_sequences=tuple(1000 if othello and length > 50 else 4096 for length in lengths),
        vocab=vocab,
        target="sampled",
        margins={"illegal_top1": 0.01, "illegal_mass": 0.01, "kl": 0.01},
        schedule="cosine",
        steps=2000,
        warnings=("short training",),
        kl=2 * level * share,
        illegal_mass=np.clip(1.2 * level * share, 0, 1),
        illegal_top1=np.clip(level * share, 0, 1),
        gap=9 / n / level,
        entropy=0.8 * np.log(n + 1) * level**0.1,
        uniform_mass=uniform,
        diverged=np.full(shape[:2], -1),
        loss_steps=np.arange(points) * 100,
        loss=np.exp(-0.2 * np.arange(points)) + rng.random(size=(*shape[:2], points)),
    )
