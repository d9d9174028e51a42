"""A made-up but well-formed result of decoders with one right answer of several tokens."""

import numpy as np
from samples import NAMES, _provenance

from llmprobe.results.answers import AnswersResult


def make_answers_result(
    n_variants: int = 2,
    lengths: tuple[int, ...] = (1, 5, 10, 12, 15, 20, 30),
    *,
    n_seeds: int = 8,
) -> AnswersResult:
    """All solve the training lengths; each odd variant gets further beyond them."""
    rng = np.random.default_rng(0)
    n, shape = np.array(lengths, dtype=np.float64), (n_variants, n_seeds, len(lengths))
    reach = np.where(np.arange(n_variants) % 2 == 0, 12.0, 18.0)[:, None, None]
    reach = reach * np.exp(rng.normal(scale=0.15, size=(n_variants, n_seeds, 1)))
    exact = np.clip(1 / (1 + np.exp(n - reach)) - 0.01 * rng.random(size=shape), 0, 1)
    points = 20
    return AnswersResult(
        provenance=_provenance(lengths, prompts="addition"),
        task="addition",
        counted="digits",
        variants=NAMES[:n_variants],
        seeds=tuple(range(n_seeds)),
        lengths=lengths,
        train_lengths=(5, 10),
        n_examples=(256,) * len(lengths),
        shared_tests=False,
        margins={"exact": 0.01, "token_accuracy": 0.01},
        schedule="cosine",
        steps=2000,
        warnings=("short training",),
        exact=exact,
        token_accuracy=exact ** (1 / (n + 1)),
        chance=0.1 ** np.minimum(n, 3),
        diverged=np.full(shape[:2], -1),
        loss_steps=np.arange(points) * 100,
        loss=np.exp(-0.2 * np.arange(points)) + rng.random(size=(*shape[:2], points)),
    )
