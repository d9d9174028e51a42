"""Where attention looks as prompts get longer, and what that does to the variance of heads.

    result = probe_attention("builtin", "16..1024")
    result.to_frame(), result.head_frame(), result.plot("terms")

The variance of a head's output is a product of three factors, dispersion, values and coherence, and
its slope a sum of theirs (`terms`). `predicted_variance` is what the variance would be if weights
and values were independent and all tokens varied alike. Tokens that cannot vary, such as BOS, are
counted in it, so heads with a sink have far less.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.intervals import fit_decay
from llmprobe.base.moments import Groups, Means, Moments
from llmprobe.base.progress import Progress
from llmprobe.base.transfers import as_float64, upload
from llmprobe.capture.calls import AttentionCall, listening
from llmprobe.capture.discovery import AttentionLayer, LayerChoice
from llmprobe.capture.loading import AnyModel, LoadedModel
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.rows import Rows, capture_rows
from llmprobe.errors import CaptureError
from llmprobe.probes import terms
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.prompts import PromptSource
from llmprobe.probes.query_positions import places
from llmprobe.probes.request import DEFAULT_LENGTHS, Prepared, Request, prepare
from llmprobe.probes.summaries import (
    NOTHING_FINITE,
    by_series,
    few_prompts,
    left_out,
    rounded,
    without_each,
)
from llmprobe.probes.tallies import N_GROUPS, Evidence, Tally, kept_at_all
from llmprobe.results.attention import AttentionResult

_N_TOP = 16
_KEPT_SERIES = 32
"""Series of which the largest weights of single prompts are kept."""
_SINK = 0.3
"""A row whose weight on the first token is above this counts as a sink."""
_OF_ROWS = (
    *("entropy", "effective", "first", "mass", "n_keys", "squares", "spread"),
    *("entropy_share", "entropy_rest", "entropy_share_rest", "squares_rest"),
)
_WITHOUT_STD = ("mass", "n_keys")


def probe_attention(
    model: AnyModel = "builtin",
    lengths: str | int | Sequence[int] = DEFAULT_LENGTHS,
    *,
    layers: LayerChoice = 0,
    prompts: PromptSource = "random",
    field: str | None = None,
    chat_template: bool = False,
    text: str | Path | None = None,
    dataset: str | None = None,
    n_prompts: int = 64,
    query: str = "free",
    n_queries: int | None = None,
    position: str | int = "auto",
    bos: str = "auto",
    seed: int = 0,
    batch_tokens: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
    **load: Unpack[LoadOptions],
) -> AttentionResult:
    """Probe the attention row of each prompt's last token, by head.

    The arguments are those of `probe_variance`.
    """
    asked = Request(
        lengths=lengths,
        layers=layers,
        prompts=prompts,
        field=field,
        chat_template=chat_template,
        text=text,
        dataset=dataset,
        n_prompts=n_prompts,
        query=query,
        n_queries=n_queries,
        position=position,
        bos=bos,
        seed=seed,
        batch_tokens=batch_tokens,
    )
    run = start(
        AttentionProbe,
        model,
        asked,
        tokenizer=tokenizer,
        output=output,
        overwrite=overwrite,
        **load,
    )
    result: AttentionResult = run.execute(progress)
    return result


class AttentionTally(Tally):
    """Statistics of rows, of the heads' outputs and of the values they are made of."""

    kind = AttentionResult.kind
    n_kept = 32

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers)
        names = (*_OF_ROWS, "sink", "value", "value_square", *terms.COUNTED)
        self.moments = {(n, name): Moments() for n in self.numbers for name in names}
        grouped: dict[str, Any] = {"log_lambda": Moments, "heads": Moments, "value_row": Means}
        self.groups = {(n, k): Groups(make) for n in self.numbers for k, make in grouped.items()}

    @staticmethod
    def shapes(layer: AttentionLayer, *, whole: bool) -> dict[str, tuple[int, ...]]:
        values = (1, layer.n_kv_heads, layer.head_size)
        return {"value": values, "value_square": values} | terms.shapes(layer)

    def update(
        self,
        layer: int,
        rows: Rows,
        heads: Tensor,
        values: tuple[Tensor, Tensor] | None,
        prompts: Sequence[int],
    ) -> None:
        """Take in rows, heads (prompts, lengths, heads, size) and means of values and squares."""
        for name in _OF_ROWS:
            self.moments[layer, name].update(getattr(rows, name))
        sink = (rows.first > _SINK).float().where(rows.first.isfinite(), torch.nan)
        self.moments[layer, "sink"].update(sink)
        observed = {"log_lambda": rows.log_lambda, "heads": heads}
        if rows.values is not None:
            observed |= terms.observed(rows.values, heads)
        for name, x in observed.items():
            if (layer, name) in self.groups:
                self.groups[layer, name].update(x, [prompt % N_GROUPS for prompt in prompts])
            else:
                self.moments[layer, name].update(x)
        for name, x in zip(("value", "value_square"), values or (), strict=False):
            self.moments[layer, name].update(x)
        self.keep(layer, rows.top, prompts)


class AttentionProbe(Probe):
    """Attention rows of the last tokens; rows and values are wanted of whole prompts at once."""

    tally = AttentionTally
    branches = True

    def __init__(self, loaded: LoadedModel, asked: Request) -> None:
        self.ready = prepare(loaded, asked, branches=self.branches)
        if self.ready.position == "mean":
            raise ValueError(
                "position: got 'mean', accepted: first, last or a number (the rows of all tokens "
                "would be the whole matrix)"
            )

    def observe(self, positions: list[int]) -> Any:
        return _observe(self.ready, positions)

    def take(
        self, tally: AttentionTally, prompts: list[int], parts: Sequence[Mapping[int, "_Seen"]]
    ) -> None:
        for number in self.ready.numbers:
            seen = _Seen.join([part[number] for part in parts])
            tally.update(number, seen.rows, seen.heads, seen.values, prompts)

    @classmethod
    def summarize(cls, evidence: Evidence) -> AttentionResult:
        tallies, lengths = list(evidence.tallies.values()), evidence.lengths
        columns: dict[str, list[NDArray[Any]]] = {}
        top: list[NDArray[np.float32]] = []
        notes = [*few_prompts(evidence), *evidence.warnings]
        without_terms: dict[str, list[int]] = {}
        for layer in evidence.layers:
            number = layer.layer
            row: dict[str, NDArray[Any]] = {}
            for name in _OF_ROWS:
                summaries = [tally.moments[number, name].summary() for tally in tallies]
                row[name] = np.concatenate([summary.mean for summary in summaries]).T
                if name not in _WITHOUT_STD:
                    row[f"{name}_std"] = np.concatenate([summary.std for summary in summaries]).T
            sinks = [tally.moments[number, "sink"].summary().mean for tally in tallies]
            row["sink_rate"] = np.concatenate(sinks).T
            fitted, reasons = _lambda([t.groups[number, "log_lambda"] for t in tallies], row)
            row |= fitted
            notes += [f"layer {number}: {reason}" for reason in reasons]
            counts = [tally.moments[number, "mass"].summary().count for tally in tallies]
            row["n_prompts"] = np.concatenate(counts).T
            notes += left_out(layer, lengths, *_counted(tallies, number))
            heads = [tally.groups[number, "heads"].total().summary() for tally in tallies]
            mean, std = (by_series(heads, name, True) for name in ("mean", "std"))
            notes += [f"layer {number}: {reason}" for reason in rounded(evidence, mean, std)]
            of_terms, reason = terms.columns(layer, tallies, lengths)
            row |= of_terms
            if reason:
                without_terms.setdefault(reason, []).append(number)
            row["predicted_variance"] = np.concatenate([_predict(t, layer) for t in tallies]).T
            row["layer"] = np.full(layer.n_heads, number)
            row["head"] = np.arange(layer.n_heads)
            for name, values in row.items():
                columns.setdefault(name, []).append(values)
            parts = [values.movedim(0, 2) for values in kept_at_all(tallies, number)]
            top += list(torch.cat(parts).movedim(1, 0).numpy())  # (lengths, prompts, rank) a head
        for reason, numbers in without_terms.items():
            several = "layer" if len(numbers) == 1 else "layers"
            notes.append(f"{several} {', '.join(map(str, numbers))}: {reason}")
        series = {name: np.concatenate(values) for name, values in columns.items()}
        if not series["n_prompts"].any():
            raise CaptureError(NOTHING_FINITE)
        return AttentionResult(
            provenance=evidence.provenance,
            lengths=lengths,
            layer_type=tuple(x.type for x in evidence.layers for _ in range(x.n_heads)),
            warnings=tuple(notes),
            top=np.stack(top[:_KEPT_SERIES]).astype(np.float32),
            **series,
        )


join = AttentionProbe.join


@dataclass(frozen=True)
class _Seen:
    """What one forward showed of one layer."""

    rows: Rows
    heads: Tensor
    """(prompts, lengths, heads, head size)"""
    values: tuple[Tensor, Tensor] | None
    """Mean over tokens of the values and of their squares: (prompts, lengths, KV heads, size)."""

    @classmethod
    def join(cls, parts: Sequence["_Seen"]) -> "_Seen":
        """One after another along the lengths."""
        values = [part.values for part in parts if part.values is not None]
        return cls(
            rows=Rows.join([part.rows for part in parts], dim=1),
            heads=torch.cat([part.heads for part in parts], dim=1),
            values=(torch.cat([x for x, _ in values], 1), torch.cat([x for _, x in values], 1))
            if values
            else None,
        )


@contextmanager
def _observe(ready: Prepared, positions: list[int]) -> Iterator[Mapping[int, _Seen]]:
    numbers, where = ready.numbers, places(ready.position, positions)
    by_module = {
        id(ready.model.get_submodule(layer.path)): layer.layer
        for layer in ready.layers
        if layer.interface
    }
    modules = [ready.model.get_submodule(layer.path) for layer in ready.layers if layer.interface]
    values: dict[int, tuple[Tensor, Tensor]] = {}
    # Once a forward and not in each layer: a copy to a GPU waits for what it has to do.
    index: dict[torch.device, Tensor] = {}

    def listen(call: AttentionCall) -> None:
        device, n_keys = call.value.device, call.value.shape[2]
        if device not in index:
            # Of a branch the forward has the last token alone, but the cache has all values. An
            # encoder sees all values at every position.
            last = [p if p >= 0 else n_keys + p for p in positions]
            index[device] = upload(torch.tensor(last), device)
        values[by_module[id(call.module)]] = _value_moments(call.value, index[device])

    seen: dict[int, _Seen] = {}
    with ExitStack() as stack:
        heads = stack.enter_context(
            capture_attention(ready.model, numbers, positions=where, at="heads", stop=True)
        )
        stack.enter_context(listening(modules, listen))
        rows = stack.enter_context(
            capture_rows(ready.model, numbers, positions=where, k=_N_TOP, values=True)
        )
        yield seen
    for number in numbers:
        seen[number] = _Seen(rows[number], heads[number], values.get(number))


def _value_moments(value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Means of values (prompts, KV heads, tokens, size) up to each of the positions `index`."""
    x = as_float64(value).movedim(2, 1)
    index = index.to(x.device)
    counts = (index + 1).view(1, -1, 1, 1)
    return x.cumsum(1)[:, index] / counts, x.square().cumsum(1)[:, index] / counts


def _lambda(
    by_length: Sequence[Groups[Moments]], row: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Columns of ln Λ and of its slope over ln ln n, and what weakens them."""
    totals = [groups.total().summary() for groups in by_length]
    mean, std, count, infinite = (
        by_series(totals, name, False)[0].T for name in ("mean", "std", "count", "nonfinite")
    )
    keys, several = row["n_keys"], row["n_keys"] > 1
    columns = {"log_lambda": mean, "log_lambda_std": std}
    reasons = []
    if n := infinite[several].sum():
        share = n / (n + count[several].sum())
        reasons.append(f"the largest logit is there twice in {share:.2g} of the rows: without Λ")
    # Beyond a window a query sees no more keys, so there is nothing to fit over.
    sees = keys[0]
    used = [i for i, n in enumerate(sees) if n > 2 and n > max(sees[:i], default=0)]
    names = [name for name in AttentionResult.by_series if name.startswith("lambda")]
    if len(used) < 2:
        return columns | dict.fromkeys(names, np.full(len(keys), np.nan)), reasons
    chosen = [by_length[i] for i in used]
    groups = sorted(chosen[0].parts)
    without = [
        np.concatenate([one.mean for one in summaries]).T
        for summaries in without_each(chosen, groups if len(groups) > 1 else [])
    ]
    fit = fit_decay(
        np.log(sees[used]).tolist(),
        np.exp(mean[:, used]),
        without=np.exp(without) if without else None,
        sizes=list(chosen[0].sizes().values()) if without else None,
    )
    found = (fit.slope, fit.slope_low, fit.slope_high)
    return columns | dict(zip(names, found, strict=True)), reasons


def _counted(tallies: Sequence[Tally], number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is not finite of a layer's weights, outputs and values, and what is, by length."""
    totals = []
    for tally in tallies:
        seen = [tally.moments[number, name] for name in ("mass", "value", "value_square")]
        seen.insert(1, tally.groups[number, "heads"].total())
        parts = [moments.summary() for moments in seen if moments.shape is not None]
        pairs = [np.stack([part.nonfinite, part.count]) for part in parts]
        totals.append(sum(pair.reshape(*pair.shape[:2], -1).sum(axis=-1) for pair in pairs))
    nonfinite, finite = np.concatenate(totals, axis=1)
    return nonfinite, finite


def _predict(tally: Tally, layer: AttentionLayer) -> NDArray[np.float64]:
    """Variance of the values over tokens and prompts, mean over features, times E[Σa²]."""
    squares = tally.moments[layer.layer, "squares"].summary().mean  # (lengths, heads)
    mean, square = (tally.moments[layer.layer, name] for name in ("value", "value_square"))
    if mean.shape is None:  # the module does not show its values
        return np.full(squares.shape, np.nan)
    variance = (square.summary().mean - mean.summary().mean ** 2).mean(axis=-1)
    return np.repeat(variance, layer.n_heads // variance.shape[1], axis=1) * squares
