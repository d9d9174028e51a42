"""Made-up but well-formed results for the tests, a way to spoil one, and whether two are equal."""

import dataclasses
from typing import Any, TypeVar

import numpy as np

from llmprobe.results.ablation import AblationResult
from llmprobe.results.accuracy import SyntheticResult
from llmprobe.results.attention import AttentionResult
from llmprobe.results.base import Provenance, Result
from llmprobe.results.loss import LossResult
from llmprobe.results.remedy import RemedyResult
from llmprobe.results.retrieval import RetrievalResult
from llmprobe.results.variance import VarianceResult


def make_variance_result(
    n_heads: int = 3, lengths: tuple[int, ...] = (16, 64, 256)
) -> VarianceResult:
    rng = np.random.default_rng(0)
    shape = (2 * n_heads, len(lengths))
    std = np.exp(rng.normal(size=shape)) * np.array(lengths) ** -0.5
    return VarianceResult(
        provenance=_provenance(lengths, prompts="random"),
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
        **_slopes(shape[0], -0.5, ("slope", "slope_total", "slope_features")),
        r2=np.full(shape[0], 0.9),
        total_variance=8 * std**2,
        slope_uniform=np.full(shape[0], -0.5),
        curvature=np.zeros(shape[0]),
        p_curvature=np.full(shape[0], 0.5),
        p_zero=np.full(shape[0], 1e-6),
        p_flat=np.ones(shape[0]),
        p_uniform=np.full(shape[0], 1e-4),
        accuracy=(),
        nonfinite=np.zeros(shape[0], dtype=np.int64),
        features=np.arange(5),
        feature_values=rng.normal(size=(1, len(lengths), 5, 32)).astype(np.float32),
    )


def _slopes(n_series: int, slope: float, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Slopes with intervals of ± 0.1."""
    ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
    return {name + end: np.full(n_series, slope + x) for name in names for end, x in ends.items()}


def make_attention_result(lengths: tuple[int, ...] = (16, 64, 256)) -> AttentionResult:
    """Two layers of two heads; of the last layer the values are not known."""
    rng = np.random.default_rng(0)
    shape = (4, len(lengths))
    effective = np.array(lengths) ** np.array([0.2, 0.5, 0.8, 1.0])[:, None]
    predicted = np.where(np.arange(4)[:, None] < 2, 1 / effective, np.nan)
    return AttentionResult(
        provenance=_provenance(lengths, prompts="random"),
        lengths=lengths,
        layer_type=("full",) * 4,
        warnings=(),
        layer=np.repeat([0, 1], 2),
        head=np.tile([0, 1], 2),
        n_prompts=np.full(shape, 64),
        entropy=np.log(effective),
        entropy_std=rng.random(shape),
        effective=effective,
        effective_std=rng.random(shape),
        first=rng.random(shape),
        first_std=rng.random(shape),
        mass=np.ones(shape),
        measured_variance=1.5 / effective,
        predicted_variance=predicted,
        entropy_share=np.log(effective) / np.log(lengths),
        entropy_share_rest=rng.random(shape),
        spread=5 + rng.random(shape),
        log_lambda=np.linspace(-1, 1, 4)[:, None] + np.zeros(shape),
        sink_rate=np.tile(np.linspace(0.25, 0.75, len(lengths)), (4, 1)),
        n_keys=np.tile(np.array(lengths, dtype=float), (4, 1)),
        **_terms(),
        lambda_exponent=np.full(4, 0.5),
        lambda_exponent_low=np.array([-0.1, 0.1, 0.2, 0.3]),
        lambda_exponent_high=np.full(4, 0.9),
        top=np.sort(rng.random((4, len(lengths), 8, 16)).astype(np.float32))[..., ::-1].copy(),
    )


def make_loss_result(lengths: tuple[int, ...] = (16, 64, 256), same_targets: Any = 8) -> LossResult:
    """A loss that falls, then rises; no token of the shortest context is a key token."""
    base = 3 + (np.arange(len(lengths)) - 1.0) ** 2 / 4
    statistics = dict.fromkeys(LossResult.statistics, base)
    statistics |= {"context_gain": base[0] - base, "key_share": np.arange(len(lengths)) / 100}
    if same_targets is None:
        statistics = {name: statistics[name] for name in ("loss", "bits_per_byte")}
    ends = {"": 0.0, "_low": -0.1, "_high": 0.2}
    return LossResult(
        provenance=_provenance(lengths, prompts="text"),
        lengths=lengths,
        same_targets=same_targets,
        context_length=128,
        n_prompts=np.full(len(lengths), 32),
        n_tokens=np.diff(lengths, prepend=1),
        warnings=(),
        **{f"{name}{end}": x + by for name, x in statistics.items() for end, by in ends.items()},
    )


def _terms() -> dict[str, Any]:
    """Slopes of four heads, of which two have terms: one disperses, one rises all the same."""
    nan = np.nan
    slopes = {
        "total": (-0.47, 0.13, -0.2, 0.1),
        "dispersion": (-0.48, -0.13, nan, nan),
        "values": (0.0, 0.2, nan, nan),
        "coherence": (0.01, 0.06, nan, nan),
    }
    ends = {"": 0.0, "_low": -0.05, "_high": 0.05}
    return {
        f"slope_{name}{end}": np.array(values) + shift
        for name, values in slopes.items()
        for end, shift in ends.items()
    }


def make_ablation_result() -> AblationResult:
    lengths = (16, 64, 256)
    change = np.array([[0.01, 0.05, 0.2], [0.0, 0.01, 0.02], [0.0, 0.0, -0.001]])
    versus = np.where(np.arange(3)[:, None] == 0, change - 0.01, np.nan)
    return AblationResult(
        provenance=_provenance(lengths, prompts="text"),
        warnings=(),
        lengths=lengths,
        context_length=256,
        classes=("dispersing", "dispersing, random 1", "flat"),
        heads=("0.0,0.1", "0.2,0.4", "1.0"),
        control_of=(-1, 0, -1),
        n_prompts=np.full(3, 8),
        n_tokens=np.array([15, 48, 192]),
        baseline=np.array([4.0, 3.5, 3.2]),
        baseline_low=np.array([3.9, 3.4, 3.1]),
        baseline_high=np.array([4.1, 3.6, 3.3]),
        change=change,
        change_low=change - 0.005,
        change_high=change + 0.005,
        p=np.array([[0.1, 0.001, 0.001], [0.5, 0.5, 0.5], [0.9, 0.9, 0.7]]),
        versus_random=versus,
        versus_random_low=versus - 0.01,
        versus_random_high=versus + 0.01,
    )


def make_remedy_result(lengths: tuple[int, ...] = (16, 64, 256)) -> RemedyResult:
    """restore helps more than its sham, logn hurts, adaptive makes no difference; trained to 64."""
    pairs = [("logn", "remedy"), ("logn", "shuffled"), ("adaptive", "remedy")]
    pairs += [("adaptive", "shuffled")]
    pairs += [("restore", arm) for arm in ("remedy", "shuffled", "norm kept")]
    doses = [0.5, 1.0]
    every = [(remedy, arm, dose) for dose in doses for remedy, arm in pairs]
    size = {"logn": 0.1, "adaptive": 0.001, "restore": -0.2}
    sham = {"remedy": 1.0, "shuffled": -0.5, "norm kept": 0.0}
    at_last = np.array([size[remedy] * sham[arm] * dose for remedy, arm, dose in every])
    change = np.zeros((2, len(every), len(lengths)))
    change[0, :, -1] = at_last
    change[1, :, :-1] = np.nan
    change[1, :, -1] = 2 * at_last
    own = np.array([arm == "remedy" for _, arm, _ in every])
    versus = np.where(own[:, None], change, np.nan) * 1.5
    p = np.where(np.abs(change) > 0.01, 1e-6, np.where(change == 0, np.nan, 0.5))
    baseline = np.array([[4.0, 3.5, 3.6][: len(lengths)]] * 2)
    baseline[1, :-1] = np.nan
    slope = np.array([[-0.5, -0.4, -0.1, 0.0], [-0.4, -0.3, -0.1, 0.0], [0.0, 0.05, -0.05, 0.0]])
    ends = {"": 0.0, "_low": -0.01, "_high": 0.01}
    return RemedyResult(
        provenance=_provenance(lengths, prompts="text"),
        warnings=(),
        lengths=lengths,
        context_length=64,
        measures=("loss", "key_loss"),
        remedies=tuple(remedy for remedy, _, _ in every),
        arms=tuple(arm for _, arm, _ in every),
        doses=np.array([dose for _, _, dose in every]),
        n_prompts=np.full((2, len(lengths)), 16),
        p=p,
        detectable=np.full(change.shape, 0.02),
        layer=np.repeat([0, 1], 2),
        head=np.arange(4) % 2,
        slope_of=np.array([-1, 7, 11]),
        **{f"baseline{end}": baseline + by for end, by in ends.items()},
        **{f"change{end}": change + by * (change != 0) for end, by in ends.items()},
        **{f"versus_sham{end}": versus + by for end, by in ends.items()},
        **{f"slope{end}": slope + by for end, by in ends.items()},
        **{f"slope_change{end}": slope - slope[0] + by for end, by in ends.items()},
    )


def make_retrieval_result(lengths: tuple[int, ...] = (64, 128, 256)) -> RetrievalResult:
    """Two layers of six heads, of which the last attends most; answers get worse."""
    n, n_heads = len(lengths), 12
    rho = np.linspace(-0.5, 0.5, n_heads)
    source = np.linspace(0.01, 0.6, n_heads)[:, None] / np.arange(1, n + 1)
    accuracy, nats = 0.9 / np.arange(1, n + 1), np.arange(1.0, n + 1)
    ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
    columns = {"accuracy": accuracy, "answer_loss": nats, "source": source, "loss_source": -rho}
    columns |= {f"right_{name}": rho for name in ("source", "norm", "effective")}
    return RetrievalResult(
        provenance=_provenance(lengths, prompts="dictionary"),
        lengths=lengths,
        layer_type=("full",) * n_heads,
        warnings=(),
        layer=np.repeat([0, 1], 6),
        head=np.tile(np.arange(6), 2),
        n_prompts=np.full((n_heads, n), 64),
        context_length=128,
        n_pairs=np.array(lengths) / 8,
        distance=np.array(lengths) / 2,
        chance=8 / np.array(lengths),
        blind=10 / np.array(lengths),
        norm=np.ones((n_heads, n)),
        effective=np.ones((n_heads, n)),
        **{f"{name}{end}": x + by for name, x in columns.items() for end, by in ends.items()},
    )


NAMES = (
    *("baseline", "layernorm", "standardize", "layernorm+ssmax", "differential"),
    *("layernorm+dropout+adaptive", "normalized", "headnorm", "rmsnorm"),
)
# Accuracy in % at 16, 64, 256, ..., 16384 of eight seeds that were trained long.
_LOG_LENGTHS = (4, 6, 8, 10, 12, 14)
_MEANS = ((99.9, 99.2, 93.2, 64.0, 27.0, 13.3), (99.9, 99.3, 92.7, 62.3, 27.8, 16.4))


def make_synthetic_result(
    n_variants: int = 2,
    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384),
    *,
    n_seeds: int = 8,
) -> SyntheticResult:
    """Made up, but like what was measured."""
    rng = np.random.default_rng(0)
    variants, n = NAMES[:n_variants], np.array(lengths, dtype=np.float64)
    shape = (n_variants, n_seeds, len(lengths))
    accuracy = np.empty(shape)
    for v in range(n_variants):
        mean = np.interp(np.log2(n), _LOG_LENGTHS, _MEANS[min(v, 1)]) / 100 + 0.02 * max(0, v - 1)
        seed = rng.normal(scale=0.03, size=(n_seeds, 1)) * (4 * mean * np.abs(1 - mean))
        accuracy[v] = np.clip(mean + seed + rng.normal(scale=0.004, size=shape[1:]), 0, 1)
    level = np.exp(rng.normal(scale=0.2, size=(n_variants, n_seeds, 1)))
    falls = np.where(np.arange(n_variants) % 2 == 0, 0.33, 0.12)[:, None, None]
    spread = level / (1 + n / 40)
    n_kept, n_features = 64, 5
    center = rng.normal(size=(n_variants, 1, 1, n_features))
    noise = rng.normal(size=(n_variants, len(lengths), n_kept, n_features))
    weights = rng.exponential(size=(n_variants, len(lengths), 32, 64)) / n[:, None, None]
    top = -np.sort(-weights, axis=-1)[..., :16] * (np.arange(16) < n[:, None, None])
    top[n_variants - 1, :, :, -1] *= -1
    points = 20
    return SyntheticResult(
        provenance=_provenance(lengths, prompts="argmax"),
        task="argmax",
        variants=variants,
        seeds=tuple(range(n_seeds)),
        lengths=lengths,
        train_lengths=(5, 16),
        n_sets=tuple(4096 if length <= 1024 else 1024 for length in lengths),
        chance=0.1,
        schedule="cosine",
        steps=8000,
        warnings=("short training",),
        feature_indices=tuple(range(n_features)),
        accuracy=accuracy,
        global_mean=0.05 * level * np.log(n / 16) + rng.normal(scale=0.01, size=shape),
        global_variance=0.75 * level * (n / 16) ** -falls,
        feature_variance=0.7 * spread,
        entropy=np.log(n) - rng.random(size=shape),
        global_mean_error=np.full(shape, 0.01),
        shared_tests=False,
        margins={"accuracy": 0.01},
        diverged=np.full(shape[:2], -1),
        loss_steps=np.arange(points) * 400,
        loss=np.exp(-0.2 * np.arange(points)) + rng.random(size=(*shape[:2], points)),
        feature_values=(center + noise * np.sqrt(spread[:, 0, :, None, None])).astype(np.float32),
        top_weights=top.astype(np.float32),
    )


def _provenance(lengths: tuple[int, ...], prompts: str) -> Provenance:
    return Provenance.record(
        model="toy",
        revision=None,
        dtype="float32",
        device="cpu",
        attention="sdpa",
        prompts=prompts,
        prompts_hash="0" * 64,
        seed=0,
        arguments={"lengths": lengths},
    )


def check_same(a: Result, b: Result) -> None:
    """To the bit, whenever they were made."""
    assert type(a) is type(b)
    for field in dataclasses.fields(a):
        first, second = getattr(a, field.name), getattr(b, field.name)
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype, field.name
            np.testing.assert_array_equal(first, second, err_msg=field.name)
        elif field.name != "provenance":
            assert first == second, field.name


R = TypeVar("R", bound=Result)


def spoil(result: R, name: str, index: Any, value: float = np.nan) -> R:
    """The result with another number at one place of an array."""
    array = getattr(result, name).copy()
    array[index] = value
    return dataclasses.replace(result, **{name: array})
