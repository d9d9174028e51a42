"""How the variance of attention outputs falls with the length of the prompt: the main job.

    result = probe_variance("builtin", "16..4096", at="heads")
    result.to_frame(), result.decay_frame(), result.plot()

Every statistic names its axis. Over prompts: mean and variance of each feature, summarized over
features by the median and the quartiles (Figure 1 of the paper). Over features: mean and variance
of one output vector, as LayerNorm sees them, averaged over prompts (Figure 3).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from llmprobe.capture import AT, capture_attention
from llmprobe.decay import fit_decay, typical_std
from llmprobe.discovery import LayerChoice, input_device
from llmprobe.kinds import VarianceResult
from llmprobe.models import LoadedModel
from llmprobe.preparing import DEFAULT_LENGTHS, NOT_RECORDED, Prepared, prepare
from llmprobe.prompts import DictionaryPrompts
from llmprobe.runtime import is_out_of_memory
from llmprobe.sweeps import Consume, SweepPlan, chunks_agree
from llmprobe.tallies import N_FEATURES, VarianceTally
from llmprobe.units import run_units

_KEPT_SERIES = 8
_MANY = 0.1
"""Share of features whose rounding is worth a warning."""


def probe_variance(
    model: str | nn.Module | LoadedModel = "builtin",
    lengths: str | Sequence[int] = DEFAULT_LENGTHS,
    *,
    layers: LayerChoice = 0,
    at: str = "output",
    prompts: str = "random",
    text: str | Path | None = None,
    dataset: str | None = None,
    samples: int = 64,
    query: str = "free",
    bos: str = "auto",
    component: int = 0,
    reference: int | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    chunk: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    on_plan: Callable[[SweepPlan], object] = lambda plan: None,
    advance: Callable[[int], object] = lambda n_tokens: None,
) -> VarianceResult:
    """Probe attention outputs at each prompt's last token, for prompts of many lengths.

    `model`: a hub id, folder, `.gguf` file or `builtin`; a loaded model; or any module that honors
    the attention contract. `layers`, `at`: as in `capture_attention`. `prompts`: random, unigram,
    text or dictionary; unigram and text want a `text` file or a `dataset`. `query="fixed"` ends
    every prompt in the same token (Proposition 1). `component` is the feature of Figure 1,
    `reference` the length that drifts are measured from, the shortest if None. With an `output`
    folder finished parts are kept there and the result is saved; the same call goes on where it was
    stopped. `on_plan` is given the plan before the sweep runs, `advance` the number of tokens as
    they are done.
    """
    arguments = {k: v for k, v in locals().items() if k not in NOT_RECORDED}
    if at not in AT:
        raise ValueError(f"at: got {at!r}, accepted: {', '.join(AT)}")
    ready = prepare(
        model,
        lengths,
        layers=layers,
        prompts=prompts,
        text=text,
        dataset=dataset,
        samples=samples,
        query=query,
        bos=bos,
        seed=seed,
        batch_tokens=batch_tokens,
        chunk=chunk,
        tokenizer=tokenizer,
        arguments=arguments,
    )
    reference = ready.lengths[0] if reference is None else int(reference)
    component = int(component)
    if reference not in ready.lengths:
        raise ValueError(f"reference: got {reference}, accepted: one of {ready.lengths}")
    size = min(x.head_size if at == "heads" else x.hidden_size for x in ready.layers)
    if not 0 <= component < size:
        raise ValueError(f"component: got {component}, accepted: 0 to {size - 1}")
    on_plan(ready.plan)
    numbers = [layer.layer for layer in ready.layers]

    def observe(positions: list[int]) -> Any:
        return capture_attention(ready.model, numbers, positions, at=at, stop=True)

    def consume(tally: VarianceTally) -> Consume:
        def take(
            indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, Tensor]]
        ) -> None:
            for number in numbers:
                x = torch.cat([part[number] for part in parts], dim=1)
                tally.update(number, x, indices)

        return take

    return run_units(
        ready,
        kind="variance",
        output=None if output is None else Path(output),
        overwrite=overwrite,
        tally=lambda: VarianceTally(ready.layers),
        observe=observe,
        consume=consume,
        may_chunk=lambda: chunks_agree(ready.model, ready.prompts, ready.layers),
        advance=advance,
        summarize=lambda tallies: _summarize(
            ready, tallies, at, component, reference, _accuracy(ready)
        ),
    )


def _summarize(
    ready: Prepared,
    tallies: list[VarianceTally],
    at: str,
    component: int,
    reference: int,
    accuracy: tuple[float, ...],
) -> VarianceResult:
    heads = at == "heads"
    columns: dict[str, list[NDArray[Any]]] = {}
    notes = ready.warnings
    trained = ready.loaded.context_length
    if trained is not None and reference > trained:
        notes += (
            f"the reference length {reference} is beyond the context of {trained} that the model "
            "was trained for: drifts are measured from there",
        )
    for layer in ready.layers:
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
        row = _columns(mean, std, across, component, ready.lengths.index(reference))
        decay, reasons = _decay(ready.lengths, typical_std(std), np.array(without), sizes)
        row |= decay
        reasons += _rounded(ready, mean, std)
        notes += tuple(f"layer {layer.layer}: {reason}" for reason in reasons)
        row["n_prompts"] = count.max(axis=-1)
        row["nonfinite"] = _by_series(total, "nonfinite", heads).sum(axis=(1, 2))
        row["layer"] = np.full(len(std), layer.layer)
        row["head"] = np.arange(len(std)) if heads else np.array([-1])
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
    series = {name: np.concatenate(values) for name, values in columns.items()}
    kinds = [x.type for x in ready.layers for _ in range(x.n_heads if heads else 1)]
    if series["nonfinite"].any():
        bad = sorted(set(series["layer"][series["nonfinite"] > 0].tolist()))
        notes += (f"NaN or infinity in layer {', '.join(map(str, bad))}, left out of statistics",)
    return VarianceResult(
        provenance=ready.provenance,
        at=at,
        component=component,
        lengths=ready.lengths,
        reference=reference,
        layer_type=tuple(kinds),
        warnings=notes,
        accuracy=accuracy,
        features=np.arange(min(N_FEATURES, _feature_values(ready, tallies, heads).shape[2])),
        feature_values=_feature_values(ready, tallies, heads),
        **series,
    )


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
    distance = np.sqrt(np.nansum((mean - mean[:, reference]) ** 2, axis=-1))
    scale = np.sqrt(np.nansum(std[:, reference] ** 2, axis=-1))
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


def _rounded(ready: Prepared, mean: NDArray[Any], std: NDArray[Any]) -> list[str]:
    """Where activations are rounded more coarsely than they vary, from which length on."""
    dtype = getattr(torch, ready.loaded.dtype)
    if dtype not in (torch.bfloat16, torch.float16):
        return []
    below = std < np.abs(mean) * torch.finfo(dtype).eps / 2  # (series, lengths, features)
    share = below.mean(axis=(0, 2))
    if not (share > _MANY).any():
        return []
    first = int((share > _MANY).argmax())
    return [
        f"from {ready.lengths[first]} tokens on {share[first]:.0%} of the features vary less than "
        f"{ready.loaded.dtype} rounds them; use --dtype float32"
    ]


def _feature_values(
    ready: Prepared, tallies: list[VarianceTally], heads: bool
) -> NDArray[np.float32]:
    """(kept series, lengths, features, prompts)"""
    kept: list[NDArray[np.float32]] = []
    for layer in ready.layers:
        parts = [torch.stack(tally.kept_of(layer.layer), dim=-1).numpy() for tally in tallies]
        joined = np.concatenate(parts)  # (lengths, *heads, features, prompts)
        kept += list(np.moveaxis(joined, 1, 0)) if heads else [joined]
        if len(kept) >= _KEPT_SERIES:
            break
    return np.stack(kept[:_KEPT_SERIES]).astype(np.float32)


def _accuracy(ready: Prepared) -> tuple[float, ...]:
    """For dictionary prompts: how often the model's next token begins the right value."""
    prompts = ready.prompts
    if not isinstance(prompts, DictionaryPrompts):
        return ()
    shares = []
    for length in ready.lengths:
        size = max(ready.plan.batch_tokens // length, 1)
        right = 0
        for start in range(0, prompts.n_prompts, size):
            indices = list(range(start, min(start + size, prompts.n_prompts)))
            right += int(
                (_next_tokens(ready, indices, length) == prompts.answers(indices, length)).sum()
            )
        shares.append(right / prompts.n_prompts)
    return tuple(shares)


def _next_tokens(ready: Prepared, indices: list[int], length: int) -> Tensor:
    """The model's most likely next token; in halves where the batch does not fit the memory."""
    tokens = ready.prompts.batch(indices, length).to(input_device(ready.model))
    try:
        with torch.inference_mode():
            logits = ready.model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
        return torch.as_tensor(logits.argmax(-1).cpu())
    except Exception as error:
        if not is_out_of_memory(error) or len(indices) == 1:
            raise
    half = len(indices) // 2
    parts = [_next_tokens(ready, some, length) for some in (indices[:half], indices[half:])]
    return torch.cat(parts)
