"""Where attention looks as prompts get longer, and how much of the variance that explains.

    result = probe_attention("builtin", "16..1024")
    result.to_frame(), result.plot("weights"), result.plot("prediction")

If a head's weights and its values were independent, and values at different tokens uncorrelated,
the variance of its output would be the values' variance times E[Σa²]: dispersion alone decides.
The prediction stands beside the measured variance, so that one sees for which heads this holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from llmprobe.capture import capture_attention
from llmprobe.discovery import AttentionLayer, LayerChoice
from llmprobe.kinds import AttentionResult
from llmprobe.models import LoadedModel
from llmprobe.patterns import Rows, capture_rows
from llmprobe.preparing import DEFAULT_LENGTHS, NOT_RECORDED, Prepared, prepare
from llmprobe.rows import AttentionCall, listening
from llmprobe.sweeps import Consume, SweepPlan
from llmprobe.tallies import OF_ROWS, AttentionTally
from llmprobe.units import run_units

_N_TOP = 16
_KEPT_SERIES = 32


def probe_attention(
    model: str | nn.Module | LoadedModel = "builtin",
    lengths: str | Sequence[int] = DEFAULT_LENGTHS,
    *,
    layers: LayerChoice = 0,
    prompts: str = "random",
    text: str | Path | None = None,
    dataset: str | None = None,
    samples: int = 64,
    query: str = "free",
    bos: str = "auto",
    seed: int = 0,
    batch_tokens: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    on_plan: Callable[[SweepPlan], object] = lambda plan: None,
    advance: Callable[[int], object] = lambda n_tokens: None,
) -> AttentionResult:
    """Probe the attention row of each prompt's last token, by head; arguments as in
    `probe_variance`."""
    arguments = {k: v for k, v in locals().items() if k not in NOT_RECORDED}
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
        chunk=None,
        tokenizer=tokenizer,
        arguments=arguments,
    )
    on_plan(ready.plan)
    numbers = [layer.layer for layer in ready.layers]

    def consume(tally: AttentionTally) -> Consume:
        def take(
            indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, _Seen]]
        ) -> None:
            for number in numbers:
                seen = parts[0][number]
                tally.update(number, seen.rows, seen.heads, seen.values, indices)

        return take

    return run_units(
        ready,
        kind="attention",
        output=None if output is None else Path(output),
        overwrite=overwrite,
        tally=lambda: AttentionTally(ready.layers),
        observe=lambda positions: _observe(ready, positions),
        consume=consume,
        may_chunk=lambda: False,  # rows and values are wanted of the whole prompt at once
        advance=advance,
        summarize=lambda tallies: _summarize(ready, tallies),
    )


@dataclass(frozen=True)
class _Seen:
    """What one forward showed of one layer."""

    rows: Rows
    heads: Tensor
    """(prompts, lengths, heads, head size)"""
    values: tuple[Tensor, Tensor] | None
    """Mean over tokens of the values and of their squares: (prompts, lengths, KV heads, size)."""


@contextmanager
def _observe(ready: Prepared, positions: list[int]) -> Iterator[Mapping[int, _Seen]]:
    numbers = [layer.layer for layer in ready.layers]
    by_module = {
        id(ready.model.get_submodule(layer.path)): layer.layer
        for layer in ready.layers
        if layer.interface
    }
    modules = [ready.model.get_submodule(layer.path) for layer in ready.layers if layer.interface]
    values: dict[int, tuple[Tensor, Tensor]] = {}

    def listen(call: AttentionCall) -> None:
        values[by_module[id(call.module)]] = _value_moments(call.value, positions)

    seen: dict[int, _Seen] = {}
    with ExitStack() as stack:
        heads = stack.enter_context(
            capture_attention(ready.model, numbers, positions, at="heads", stop=True)
        )
        stack.enter_context(listening(modules, listen))
        rows = stack.enter_context(capture_rows(ready.model, positions, numbers, k=_N_TOP))
        yield seen
    for number in numbers:
        seen[number] = _Seen(rows[number], heads[number], values.get(number))


def _value_moments(value: Tensor, positions: list[int]) -> tuple[Tensor, Tensor]:
    """Means of values (prompts, KV heads, tokens, size) over the first N tokens, each wanted N."""
    index = torch.tensor(positions, device=value.device)
    x = value.double().movedim(2, 1)
    counts = (index + 1).view(1, -1, 1, 1)
    return x.cumsum(1)[:, index] / counts, x.square().cumsum(1)[:, index] / counts


def _summarize(ready: Prepared, tallies: list[AttentionTally]) -> AttentionResult:
    columns: dict[str, list[NDArray[Any]]] = {}
    top: list[NDArray[np.float32]] = []
    notes = ready.warnings
    for layer in ready.layers:
        number = layer.layer
        row: dict[str, NDArray[Any]] = {}
        for name in OF_ROWS:
            summaries = [tally.moments[number, name].summary() for tally in tallies]
            row[name] = np.concatenate([summary.mean for summary in summaries]).T
            row[f"{name}_std"] = np.concatenate([summary.std for summary in summaries]).T
        counts = [tally.moments[number, "mass"].summary() for tally in tallies]
        row["n_prompts"] = np.concatenate([summary.count for summary in counts]).T
        if (row["n_prompts"] < ready.plan.n_prompts).any():
            notes += (f"NaN or infinity in layer {number}, left out of statistics",)
        heads = [t.moments[number, "heads"].summary().variance.mean(axis=-1) for t in tallies]
        row["measured_variance"] = np.concatenate(heads).T
        row["predicted_variance"] = np.concatenate([_predict(t, layer) for t in tallies]).T
        row["layer"] = np.full(layer.n_heads, number)
        row["head"] = np.arange(layer.n_heads)
        del row["mass_std"]
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
        parts = [torch.stack(tally.kept_of(number), dim=2) for tally in tallies]
        top += list(torch.cat(parts).movedim(1, 0).numpy())  # (lengths, prompts, rank) a head
    kinds = [layer.type for layer in ready.layers for _ in range(layer.n_heads)]
    return AttentionResult(
        provenance=ready.provenance,
        lengths=ready.lengths,
        layer_type=tuple(kinds),
        warnings=notes,
        top=np.stack(top[:_KEPT_SERIES]).astype(np.float32),
        **{name: np.concatenate(values) for name, values in columns.items()},
    )


def _predict(tally: AttentionTally, layer: AttentionLayer) -> NDArray[np.float64]:
    """Variance of the values over tokens and prompts, mean over features, times E[Σa²]."""
    squares = tally.moments[layer.layer, "squares"].summary().mean  # (lengths, heads)
    mean, square = (tally.moments[layer.layer, name] for name in ("value", "value_square"))
    if mean.shape is None:  # the module does not show its values
        return np.full(squares.shape, np.nan)
    variance = (square.summary().mean - mean.summary().mean ** 2).mean(axis=-1)
    return np.repeat(variance, layer.n_heads // variance.shape[1], axis=1) * squares
