"""How the variance of attention outputs falls with the length of the prompt: the main job.

    result = probe_variance("builtin", "16..4096", at="heads")
    result.to_frame(), result.decay_frame(), result.plot()

Over prompts: mean and variance of each feature, summarized over features by the median and the
quartiles (Figure 1 of the paper). Over features: mean and variance of one output vector, as
LayerNorm sees them, averaged over prompts (Figure 3).
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from llmprobe.base.moments import Groups, Moments
from llmprobe.base.progress import Progress
from llmprobe.base.transfers import as_float64, upload
from llmprobe.base.trends import compare_trends, fit_trends
from llmprobe.capture.discovery import AttentionLayer, LayerChoice, attention_layers
from llmprobe.capture.loading import AnyModel, LoadedModel
from llmprobe.capture.outputs import AT, capture_attention
from llmprobe.capture.token_types import TokenTypes
from llmprobe.errors import CaptureError, OutOfMemoryError
from llmprobe.probes.agreement import chunks_agree
from llmprobe.probes.forwards import find_types
from llmprobe.probes.nulls import NULLS, null_model
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.prompts import PromptSource
from llmprobe.probes.query_positions import capture_mean, places
from llmprobe.probes.request import DEFAULT_LENGTHS, Request, check_count, prepare
from llmprobe.probes.summaries import (
    NOTHING_FINITE,
    by_series,
    each_side,
    few_prompts,
    group_moments,
    left_out,
    rounded,
    uniform_variance,
)
from llmprobe.probes.sweeps import Piece, Sweep
from llmprobe.probes.tallies import N_GROUPS, Evidence, Tally, kept_at_all
from llmprobe.results.variance import VarianceResult

_N_FEATURES = 5
"""Of which single values are kept, for Figure 2."""
_KEPT_SERIES = 8
"""Series of which the values of single prompts are kept."""


def probe_variance(
    model: AnyModel = "builtin",
    lengths: str | int | Sequence[int] = DEFAULT_LENGTHS,
    *,
    layers: LayerChoice = 0,
    at: str = "output",
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
    component: int = 0,
    reference: int | None = None,
    null: str | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    chunk: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
    **load: Unpack[LoadOptions],
) -> VarianceResult:
    """Probe attention outputs at each prompt's last token, for prompts of many lengths.

    `model`: a hub id, folder, `.gguf` file or `builtin`; a loaded model; or any module that honors
    the attention contract. A name is loaded with `device`, `dtype`, `revision`,
    `attn_implementation` and the other options of `load_model`.
    `layers`, `at`: as in `capture_attention`. `prompts`: random, unigram, text or dictionary;
    unigram and text want a `text` file or a `dataset`. Or your own: a .txt or .jsonl file with one
    prompt a line, a list of texts or of lists of tokens, a `datasets.Dataset`; `field` names the
    field that holds them, `chat_template` applies the tokenizer's. A prompt that is shorter than a
    length is left out of it; the first `n_prompts` are used. `query="fixed"` draws
    `n_queries` tokens (16) and ends prompt i in number i mod n_queries, so that variance within
    queries, which Proposition 1 is about, is separated from variance between them; any other text
    names one token for all, as does id:NUMBER. `position`: where an encoder's attention is
    measured, "first" (its default), "last", a number or "mean" over all tokens; causal models are
    measured at the last token. `component` is the feature of Figure 1, `reference`
    the length that drifts are measured from, the shortest if None. `null` runs a model of which
    nothing is learned on the same prompts, for comparison: "untrained" (fresh random weights) or
    "shuffled" (each tensor's entries in a random order).
    With an `output` folder finished pieces are kept there and the result is saved. The same call
    resumes a run that was stopped; one with more `n_prompts` adds the missing prompts to a result.
    `progress`: True for a bar, or a function (what, done, total, note).
    """
    asked = VarianceRequest(
        lengths=lengths,
        layers=layers,
        at=at,
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
        component=component,
        reference=reference,
        null=null,
        seed=seed,
        batch_tokens=batch_tokens,
        chunk=chunk,
    )
    run = start(
        VarianceProbe,
        model,
        asked,
        tokenizer=tokenizer,
        output=output,
        overwrite=overwrite,
        **load,
    )
    result: VarianceResult = run.execute(progress)
    return result


@dataclass(frozen=True, kw_only=True)
class VarianceRequest(Request):
    """The arguments of `probe_variance` that decide its numbers."""

    at: str = "output"
    component: int = 0
    reference: int | None = None
    null: str | None = None
    chunk: int | None = None

    def check(self) -> tuple[int, ...]:
        wanted = super().check()
        if self.at not in AT:
            raise ValueError(f"at: got {self.at!r}, accepted: {', '.join(AT)}")
        if self.null not in (None, *NULLS):
            raise ValueError(f"null: got {self.null!r}, accepted: {', '.join(NULLS)}")
        check_count("chunk", self.chunk)
        if self.reference is not None and self.reference not in wanted:
            raise ValueError(f"reference: got {self.reference}, accepted: one of {wanted}")
        return wanted


class VarianceTally(Tally):
    """Outputs by feature in groups of prompts, and over the features of each output."""

    kind = VarianceResult.kind
    n_kept = 256  # enough for the picture of Figure 2, small enough to keep

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers)
        names = ("outputs", "null")
        self.groups = {(n, name): Groups(Moments) for n in self.numbers for name in names}
        self.moments = {(n, "vectors"): Moments() for n in self.numbers}

    @staticmethod
    def shapes(layer: AttentionLayer, *, whole: bool) -> dict[str, tuple[int, ...]]:
        series = (1,) if whole else (1, layer.n_heads)
        size = layer.hidden_size if whole else layer.head_size
        return dict.fromkeys(("outputs", "null"), (*series, size)) | {"vectors": (*series, 2)}

    def update(
        self, layer: int, x: Tensor, prompts: Sequence[int], *, n_groups: int = N_GROUPS
    ) -> None:
        """Take in outputs (prompts, lengths, *heads, features); prompt i is in group i mod n."""
        self.groups[layer, "outputs"].update(x, [prompt % n_groups for prompt in prompts])
        variance, mean = torch.var_mean(as_float64(x), dim=-1, correction=0)
        self.moments[layer, "vectors"].update(torch.stack([mean, variance], dim=-1))
        self.keep(layer, x[..., :_N_FEATURES], prompts)


class VarianceProbe(Probe):
    """Attention outputs of the last tokens."""

    tally = VarianceTally
    branches = True

    def __init__(self, loaded: LoadedModel, asked: VarianceRequest) -> None:
        self.ready = ready = prepare(
            loaded, asked, chunk=asked.chunk, branches=self.branches, together=True
        )
        self.at = asked.at
        n_queries = len(ready.prompts.query_tokens)
        self.n_groups = n_queries if n_queries > 1 else N_GROUPS
        self.null = None if asked.null is None else null_model(loaded, asked.null, seed=asked.seed)
        size = min(x.head_size if asked.at == "heads" else x.hidden_size for x in ready.layers)
        if not 0 <= asked.component < size:
            raise ValueError(f"component: got {asked.component}, accepted: 0 to {size - 1}")
        # Asked once: it runs a few tokens. Besides the chosen layers, answers need all others.
        self._all_in_chunks = cache(
            lambda: chunks_agree(ready.model, ready.prompts, attention_layers(ready.model))
        )

    def observe(self, positions: list[int]) -> Any:
        return self._capture(self.ready.model, positions)

    def _capture(self, model: nn.Module, ends: list[int]) -> Any:
        numbers, position = self.ready.numbers, self.ready.position
        if position == "mean":
            return capture_mean(model, numbers, self.at)
        where = places(position, ends)
        return capture_attention(model, numbers, positions=where, at=self.at, stop=True)

    def take(
        self, tally: VarianceTally, prompts: list[int], parts: Sequence[Mapping[int, Tensor]]
    ) -> None:
        for number in self.ready.numbers:
            x = torch.cat([part[number] for part in parts], dim=1)
            tally.update(number, x, prompts, n_groups=self.n_groups)

    def may_chunk(self) -> bool:
        causal = all(layer.causal for layer in self.ready.layers)
        return causal and chunks_agree(self.ready.model, self.ready.prompts, self.ready.layers)

    def types(self) -> TokenTypes | None:
        ready = self.ready
        if len(ready.layers) > 1 or not ready.layers[0].causal:
            return None
        return find_types(ready.model, ready.layers[0], ready.prompts, n_tokens=ready.plan.n_tokens)

    def examine(self, tally: VarianceTally, piece: Piece) -> None:
        """The null model on the same prompts, and how often the model's answers are right."""
        if self.null is not None:
            self._compare(tally, piece, self.null)
        self._ask(tally, piece)

    def _compare(self, tally: VarianceTally, piece: Piece, null: nn.Module) -> None:
        ready = self.ready

        def take(
            indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, Tensor]]
        ) -> None:
            for number in ready.numbers:
                x = torch.cat([part[number] for part in parts], dim=1)
                groups = [prompt % self.n_groups for prompt in indices]
                tally.groups[number, "null"].update(x, groups)

        observe = partial(self._capture, null)
        Sweep(null, ready.prompts, ready.plan, observe, self.may_chunk).run(piece, take)

    def _ask(self, tally: VarianceTally, piece: Piece) -> None:
        """Where prompts have a right answer: how often the model's next token is that.

        A separate sweep, as that takes the whole model, and with it more memory.
        """
        ready, length = self.ready, piece.lengths[-1]
        causal = all(layer.causal for layer in ready.layers)
        if not causal or ready.prompts.answers([0], length) is None:
            return

        def take(
            indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, Tensor]]
        ) -> None:
            given, wanted = parts[-1][-1], ready.prompts.answers(indices, length)
            assert wanted is not None
            tally.n_asked += len(indices)
            tally.n_right = tally.n_right + (given == upload(wanted, given.device)).sum()
            tally.n_by_chance += sum(ready.prompts.facts(indices, length)["chance"])

        plan = ready.plan
        if plan.chunk is not None and not self._all_in_chunks():
            plan = replace(plan, chunk=None)
        sweep = Sweep(
            ready.model,
            ready.prompts,
            plan,
            lambda _: _next_tokens(ready.model),
            self._all_in_chunks,
        )
        try:
            sweep.run(replace(piece, lengths=(length,)), take)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{error}; the answers to {ready.prompts.kind} prompts take all layers, other "
                "prompts do not"
            ) from error

    @classmethod
    def summarize(cls, evidence: Evidence) -> VarianceResult:
        arguments, lengths = evidence.provenance.arguments, evidence.lengths
        heads, component = arguments["at"] == "heads", int(arguments["component"])
        reference = lengths[0] if arguments["reference"] is None else int(arguments["reference"])
        tallies = list(evidence.tallies.values())
        n_queries = len(arguments.get("query_tokens", ()))
        columns: dict[str, list[NDArray[Any]]] = {}
        notes = [*few_prompts(evidence), *evidence.warnings, *_far_reference(evidence, reference)]
        for layer in evidence.layers:
            outputs = [tally.groups[layer.layer, "outputs"] for tally in tallies]
            total = [groups.total().summary() for groups in outputs]
            mean, count = (by_series(total, name, heads) for name in ("mean", "count"))
            groups = group_moments(outputs, heads, are_queries=n_queries > 1)
            std = np.sqrt(groups.split().total)
            vector = [tally.moments[layer.layer, "vectors"].summary() for tally in tallies]
            across = by_series(vector, "mean", heads)  # (series, lengths, mean and variance)
            row = _columns(mean, std, across, component, lengths.index(reference))
            uniform = uniform_variance(
                layer,
                lengths,
                bos=arguments.get("bos_token") is not None,
                # If no query has two prompts, the total is tested, in which the query varies.
                fixed_query=arguments["query"] != "free"
                and (n_queries <= 1 or bool((groups.count > 1).any())),
            )
            trends, reasons = fit_trends(lengths, groups, uniform)
            row |= trends
            null = [tally.groups[layer.layer, "null"] for tally in tallies]
            if all(one.parts for one in null) and len(lengths) > 1:
                same = group_moments(null, heads, are_queries=n_queries > 1)
                row |= compare_trends(lengths, groups, same)
            reasons += rounded(evidence, mean, std)
            reasons += each_side(layer, lengths, groups)
            notes += [f"layer {layer.layer}: {reason}" for reason in reasons]
            row["n_prompts"] = count.max(axis=-1)
            nonfinite = by_series(total, "nonfinite", heads)
            notes += left_out(layer, lengths, nonfinite.sum(axis=(0, 2)), count.sum(axis=(0, 2)))
            row["nonfinite"] = nonfinite.sum(axis=(1, 2))
            row["layer"] = np.full(len(std), layer.layer)
            row["head"] = np.arange(len(std)) if heads else np.array([-1])
            for name, values in row.items():
                columns.setdefault(name, []).append(values)
        series = {name: np.concatenate(values) for name, values in columns.items()}
        if not series["n_prompts"].any():
            raise CaptureError(NOTHING_FINITE)
        features = _feature_values(evidence, heads)
        return VarianceResult(
            provenance=evidence.provenance,
            at=arguments["at"],
            component=component,
            lengths=lengths,
            reference=reference,
            layer_type=tuple(
                x.type for x in evidence.layers for _ in range(x.n_heads if heads else 1)
            ),
            warnings=tuple(notes),
            accuracy=tuple(t.n_right / t.n_asked for t in tallies if t.n_asked),
            accuracy_chance=_chances(tallies),
            features=np.arange(features.shape[2]),
            feature_values=features,
            **series,
        )


join = VarianceProbe.join


@contextmanager
def _next_tokens(model: nn.Module) -> Iterator[Mapping[int, Tensor]]:
    """The most likely tokens behind the last position, -1, of what is run in the block."""
    found: dict[int, Tensor] = {}

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"logits_to_keep": 1}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        found[-1] = output.logits[:, -1].argmax(-1)

    handles = [
        model.register_forward_pre_hook(ask, with_kwargs=True),
        model.register_forward_hook(keep),
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _far_reference(evidence: Evidence, reference: int) -> list[str]:
    trained = evidence.context_length
    if trained is None or reference <= trained:
        return []
    return [
        f"the reference length {reference} is beyond the context of {trained} that the model was "
        "trained for: drifts are measured from there"
    ]


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


def _feature_values(evidence: Evidence, heads: bool) -> NDArray[np.float32]:
    """(kept series, lengths, features, prompts)"""
    kept: list[NDArray[np.float32]] = []
    for layer in evidence.layers:
        every = kept_at_all(evidence.tallies.values(), layer.layer)
        parts = [values.movedim(0, -1).numpy() for values in every]
        joined = np.concatenate(parts)  # (lengths, *heads, features, prompts)
        kept += list(np.moveaxis(joined, 1, 0)) if heads else [joined]
        if len(kept) >= _KEPT_SERIES:
            break
    return np.stack(kept[:_KEPT_SERIES]).astype(np.float32)


def _chances(tallies: Sequence[VarianceTally]) -> tuple[float, ...]:
    """The accuracy of a random value at each length; empty if it is not known of all prompts."""
    found = tuple(t.n_by_chance / t.n_asked for t in tallies if t.n_asked)
    return found if np.isfinite(found).all() else ()
