"""A made-up but plausible result of what repairs accuracy on larger sets."""

import numpy as np
from samples import _provenance

from llmprobe.results.mechanism import CONDITIONS, MechanismResult


def make_mechanism_result(
    n_seeds: int = 8,
    lengths: tuple[int, ...] = (16, 64, 256, 1024),
    *,
    repairs: tuple[float, ...] = (0.0, 0.0, 0.02, 0.3, 0.3),
) -> MechanismResult:
    """`repairs` is what each condition adds to accuracy beyond training."""
    rng = np.random.default_rng(0)
    variants, n = ("baseline", "layernorm"), np.array(lengths, dtype=float)
    shape = (len(variants), n_seeds, len(lengths))
    skill = rng.normal(scale=0.02, size=(*shape[:2], 1))
    plain = np.clip(0.98 - 0.1 * np.log2(n / 16) + skill, 0, 0.65)
    change = np.array(repairs)[:, None, None, None] * (n > 16)
    noise = 0.003 * rng.normal(size=(len(CONDITIONS), *shape)) * (n > 16)
    noise[0] = 0
    return MechanismResult(
        provenance=_provenance(lengths, prompts="argmax"),
        task="argmax",
        variants=variants,
        seeds=tuple(range(n_seeds)),
        lengths=lengths,
        train_lengths=(5, 16),
        n_sets=(128,) * len(lengths),
        shared_tests=False,
        margins={"accuracy": 0.01},
        schedule="constant",
        steps=5000,
        warnings=("short training",),
        conditions=CONDITIONS,
        accuracy=np.clip(plain + change + noise, 0, 1),
        attention_on_target=np.clip(16 / n * (0.5 + 4 * skill), 0, 1),
        logit_gap=-np.log(n / 16) + skill,
        global_variance=(n / 16) ** -0.5 + 0.1 * rng.random(shape),
        feature_variance=(n / 16) ** -1.0 + 0.1 * rng.random(shape),
        set_correlation=np.array([0.5, 0.5, 0.1, 0.1])[:, None, None]
        + 0.02 * rng.normal(size=(4, *shape[:2])),
    )
