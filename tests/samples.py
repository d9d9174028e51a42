"""Made-up but well-formed objects for the tests."""

import numpy as np

from llmprobe.kinds import VarianceResult
from llmprobe.results import Provenance


def make_variance_result(
    n_heads: int = 3, lengths: tuple[int, ...] = (16, 64, 256)
) -> VarianceResult:
    rng = np.random.default_rng(0)
    shape = (2 * n_heads, len(lengths))
    std = np.exp(rng.normal(size=shape)) * np.array(lengths) ** -0.5
    return VarianceResult(
        provenance=Provenance.record(
            model="toy",
            revision=None,
            dtype="float32",
            device="cpu",
            attention="sdpa",
            prompts="random",
            prompts_hash="0" * 64,
            seed=0,
            arguments={"lengths": lengths},
        ),
        at="heads",
        component=0,
        lengths=lengths,
        reference=lengths[0],
        layer_type=("full",) * shape[0],
        warnings=(),
        layer=np.repeat([0, 1], n_heads),
        head=np.tile(np.arange(n_heads), 2),
        n_prompts=np.full(shape, 64),
        component_std=std * 1.1,
        std_q25=std * 0.8,
        std_median=std,
        std_q75=std * 1.3,
        global_mean=rng.normal(size=shape),
        global_variance=std**2,
        mean_drift=rng.normal(size=shape),
        vector_drift=rng.random(size=shape),
        slope=np.full(shape[0], -0.5),
        slope_low=np.full(shape[0], -0.6),
        slope_high=np.full(shape[0], -0.4),
        r2=np.full(shape[0], 0.9),
        accuracy=(),
        nonfinite=np.zeros(shape[0], dtype=np.int64),
        features=np.arange(5),
        feature_values=rng.normal(size=(1, len(lengths), 5, 32)).astype(np.float32),
    )
