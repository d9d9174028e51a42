"""From the evidence of a probe to its result: every statistic, with its axis and its interval.

    result = summarize(evidence)

Over prompts: mean and variance of each feature, summarized over features by the median and the
quartiles (Figure 1 of the paper). Over features: mean and variance of one output vector, as
LayerNorm sees them, averaged over prompts (Figure 3). Neither the model nor its prompts are needed.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmprobe.base.intervals import fit_decay, typical_std
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.errors import CaptureError
from llmprobe.probes.evidence import Evidence
from llmprobe.probes.tallies import N_GROUPS, OF_ROWS, Tally
from llmprobe.results.attention import AttentionResult
from llmprobe.results.series import SeriesResult
from llmprobe.results.variance import VarianceResult

_KEPT_VARIANCE, _KEPT_ATTENTION = 8, 32
"""Series of which the values of single prompts are kept."""
_MANY = 0.1
"""Share of features whose rounding is worth a warning."""


def summarize(evidence: Evidence) -> SeriesResult:
    """The result of a probe."""
    return _SUMMARIES[evidence.kind](evidence)


def _summarize_variance(evidence: Evidence) -> VarianceResult:
    arguments, lengths = evidence.provenance.arguments, evidence.lengths
    heads, component = arguments["at"] == "heads", int(arguments["component"])
    reference = lengths[0] if arguments["reference"] is None else int(arguments["reference"])
    tallies = list(evidence.tallies.values())
    columns: dict[str, list[NDArray[Any]]] = {}
    notes = [*_few(evidence), *evidence.warnings, *_far_reference(evidence, reference)]
    for layer in evidence.layers:
        outputs = [tally.groups[layer.layer, "outputs"] for tally in tallies]
        total = [groups.total().summary() for groups in outputs]
        mean, std, count = (_by_series(total, name, heads) for name in ("mean", "std", "count"))
        vector = [tally.moments[layer.layer, "vectors"].summary() for tally in tallies]
        across = _by_series(vector, "mean", heads)  # (series, lengths, mean and variance)
        without = [
            typical_std(
                _by_series([groups.without(g).summary() for groups in outputs], "std", heads)
            )
            for g in sorted(outputs[0].parts)
        ]
        sizes = list(outputs[0].sizes().values())
        row = _columns(mean, std, across, component, lengths.index(reference))
        decay, reasons = _decay(lengths, typical_std(std), np.array(without), sizes)
        row |= decay
        reasons += _rounded(evidence, mean, std)
        notes += [f"layer {layer.layer}: {reason}" for reason in reasons]
        row["n_prompts"] = count.max(axis=-1)
        nonfinite = _by_series(total, "nonfinite", heads)
        notes += _left_out(layer, lengths, nonfinite.sum(axis=(0, 2)), count.sum(axis=(0, 2)))
        row["nonfinite"] = nonfinite.sum(axis=(1, 2))
        row["layer"] = np.full(len(std), layer.layer)
        row["head"] = np.arange(len(std)) if heads else np.array([-1])
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
    series = {name: np.concatenate(values) for name, values in columns.items()}
    if not series["n_prompts"].any():
        raise CaptureError(_NOTHING_FINITE)
    features = _feature_values(evidence, heads)
    return VarianceResult(
        provenance=evidence.provenance,
        at=arguments["at"],
        component=component,
        lengths=lengths,
        reference=reference,
        layer_type=tuple(x.type for x in evidence.layers for _ in range(x.n_heads if heads else 1)),
        warnings=tuple(notes),
        accuracy=tuple(t.n_right / t.n_asked for t in tallies if t.n_asked),
        features=np.arange(features.shape[2]),
        feature_values=features,
        **series,
    )


def _summarize_attention(evidence: Evidence) -> AttentionResult:
    tallies, lengths = list(evidence.tallies.values()), evidence.lengths
    columns: dict[str, list[NDArray[Any]]] = {}
    top: list[NDArray[np.float32]] = []
    notes = [*_few(evidence), *evidence.warnings]
    for layer in evidence.layers:
        number = layer.layer
        row: dict[str, NDArray[Any]] = {}
        for name in OF_ROWS:
            summaries = [tally.moments[number, name].summary() for tally in tallies]
            row[name] = np.concatenate([summary.mean for summary in summaries]).T
            row[f"{name}_std"] = np.concatenate([summary.std for summary in summaries]).T
        counts = [tally.moments[number, "mass"].summary().count for tally in tallies]
        row["n_prompts"] = np.concatenate(counts).T
        notes += _left_out(layer, lengths, *_counted(tallies, number))
        heads = [tally.moments[number, "heads"].summary() for tally in tallies]
        mean, std, variance = (_by_series(heads, n, True) for n in ("mean", "std", "variance"))
        notes += [f"layer {number}: {reason}" for reason in _rounded(evidence, mean, std)]
        row["measured_variance"] = variance.mean(axis=-1)
        row["predicted_variance"] = np.concatenate([_predict(t, layer) for t in tallies]).T
        row["layer"] = np.full(layer.n_heads, number)
        row["head"] = np.arange(layer.n_heads)
        del row["mass_std"]
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
        parts = [tally.kept_of(number).movedim(0, 2) for tally in tallies]
        top += list(torch.cat(parts).movedim(1, 0).numpy())  # (lengths, prompts, rank) a head
    series = {name: np.concatenate(values) for name, values in columns.items()}
    if not series["n_prompts"].any():
        raise CaptureError(_NOTHING_FINITE)
    return AttentionResult(
        provenance=evidence.provenance,
        lengths=lengths,
        layer_type=tuple(x.type for x in evidence.layers for _ in range(x.n_heads)),
        warnings=tuple(notes),
        top=np.stack(top[:_KEPT_ATTENTION]).astype(np.float32),
        **series,
    )


_SUMMARIES = {"variance": _summarize_variance, "attention": _summarize_attention}
_NOTHING_FINITE = (
    "every number that was captured is NaN or infinity, so there is nothing to tell; try --dtype "
    "float32, and see what `llmprobe check` says of the model"
)


def _few(evidence: Evidence) -> list[str]:
    n = evidence.n_prompts
    return [f"{n} prompts are few: intervals are wide below {N_GROUPS}"] if n < N_GROUPS else []


def _far_reference(evidence: Evidence, reference: int) -> list[str]:
    trained = evidence.context_length
    if trained is None or reference <= trained:
        return []
    return [
        f"the reference length {reference} is beyond the context of {trained} that the model was "
        "trained for: drifts are measured from there"
    ]


def _counted(tallies: Sequence[Tally], number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is not finite of a layer's weights, outputs and values, and what is, by length."""
    totals = []
    for tally in tallies:
        seen = [tally.moments[number, n] for n in ("mass", "heads", "value", "value_square")]
        parts = [moments.summary() for moments in seen if moments.shape is not None]
        pairs = [np.stack([part.nonfinite, part.count]) for part in parts]
        totals.append(sum(pair.reshape(*pair.shape[:2], -1).sum(axis=-1) for pair in pairs))
    nonfinite, finite = np.concatenate(totals, axis=1)
    return nonfinite, finite


def _left_out(
    layer: AttentionLayer, lengths: tuple[int, ...], nonfinite: NDArray[Any], finite: NDArray[Any]
) -> list[str]:
    """Where numbers were left out of the statistics of a layer: at which lengths, and how many."""
    at = [length for length, n in zip(lengths, nonfinite, strict=True) if n]
    if not at:
        return []
    share = nonfinite.sum() / (nonfinite.sum() + finite.sum())
    return [
        f"NaN or infinity in layer {layer.layer} at {', '.join(map(str, at))} tokens: "
        f"{nonfinite.sum():,} numbers, {share:.2g} of all, left out of statistics"
    ]


def _by_series(summaries: Sequence[Any], name: str, heads: bool) -> NDArray[Any]:
    """Join the passes' lengths and put the heads first: (series, lengths, features)."""
    joined = np.concatenate([getattr(summary, name) for summary in summaries])
    return np.moveaxis(joined, 1, 0) if heads else joined[None]


def _columns(
    mean: NDArray[Any], std: NDArray[Any], across: NDArray[Any], component: int, at_reference: int
) -> dict[str, NDArray[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where nothing is finite, NaN is right
        q25, q50, q75 = np.nanquantile(std, [0.25, 0.5, 0.75], axis=-1)
    global_mean, global_variance = across[..., 0], across[..., 1]
    reference = slice(at_reference, at_reference + 1)
    gap, unit = mean - mean[:, reference], std[:, reference]
    known = np.isfinite(gap) & np.isfinite(unit)  # where none is, zero over zero is NaN
    distance, scale = (np.sqrt(np.where(known, x**2, 0).sum(axis=-1)) for x in (gap, unit))
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant reference has no unit
        return {
            "component_std": std[..., component],
            "std_q25": q25,
            "std_median": q50,
            "std_q75": q75,
            "global_mean": global_mean,
            "global_variance": global_variance,
            "mean_drift": (global_mean - global_mean[:, reference]) / global_variance[:, reference],
            "vector_drift": distance / scale,
        }


def _decay(
    lengths: tuple[int, ...], std: NDArray[Any], without: NDArray[Any], sizes: list[int]
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The fitted columns, and why something in them is missing."""
    if len(lengths) < 2:
        nothing = np.full(len(std), np.nan)
        return dict.fromkeys(VarianceResult.by_series, nothing), ["one length: no slope"]
    decay = fit_decay(lengths, std, without=without, sizes=sizes)
    reasons = sorted({str(reason) for reason in decay.reason if reason})
    return {name: getattr(decay, name) for name in VarianceResult.by_series}, reasons


def _rounded(evidence: Evidence, mean: NDArray[Any], std: NDArray[Any]) -> list[str]:
    """Where activations are rounded more coarsely than they vary, from which length on."""
    name = evidence.provenance.dtype
    dtype = getattr(torch, name)
    if dtype not in (torch.bfloat16, torch.float16):
        return []
    below = std < np.abs(mean) * torch.finfo(dtype).eps / 2  # (series, lengths, features)
    share = below.mean(axis=(0, 2))
    if not (share > _MANY).any():
        return []
    first = int((share > _MANY).argmax())
    return [
        f"from {evidence.lengths[first]} tokens on {share[first]:.0%} of the features vary less "
        f"than {name} rounds them; use --dtype float32"
    ]


def _feature_values(evidence: Evidence, heads: bool) -> NDArray[np.float32]:
    """(kept series, lengths, features, prompts)"""
    kept: list[NDArray[np.float32]] = []
    for layer in evidence.layers:
        parts = [
            tally.kept_of(layer.layer).movedim(0, -1).numpy() for tally in evidence.tallies.values()
        ]
        joined = np.concatenate(parts)  # (lengths, *heads, features, prompts)
        kept += list(np.moveaxis(joined, 1, 0)) if heads else [joined]
        if len(kept) >= _KEPT_VARIANCE:
            break
    return np.stack(kept[:_KEPT_VARIANCE]).astype(np.float32)


def _predict(tally: Tally, layer: AttentionLayer) -> NDArray[np.float64]:
    """Variance of the values over tokens and prompts, mean over features, times E[Σa²]."""
    squares = tally.moments[layer.layer, "squares"].summary().mean  # (lengths, heads)
    mean, square = (tally.moments[layer.layer, name] for name in ("value", "value_square"))
    if mean.shape is None:  # the module does not show its values
        return np.full(squares.shape, np.nan)
    variance = (square.summary().mean - mean.summary().mean ** 2).mean(axis=-1)
    return np.repeat(variance, layer.n_heads // variance.shape[1], axis=1) * squares
