"""Can a model find what its prompt says, and do its heads look there?

    result = probe_retrieval("builtin", "64..1024")                       # key->value pairs
    result = probe_retrieval("builtin", "64..1024", prompts="repeat")     # copy a passage
    result.to_frame(), result.answers_frame(), result.links_frame(), result.plot()

A prompt asks for something that stands in it, its source. By length: how often the model's next
token is right, and how much each head's last query attends to the source. Over prompts of one
length: whether prompts with right answers have more attention on the source, larger head outputs,
or less dispersed attention.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from llmprobe.base.intervals import estimate, proportion_estimate
from llmprobe.base.progress import Progress
from llmprobe.base.ranks import correlate_ranks
from llmprobe.base.transfers import as_float64, upload
from llmprobe.capture.discovery import LayerChoice
from llmprobe.capture.loading import AnyModel, LoadedModel
from llmprobe.capture.losses import check_head, last_logits
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.rows import capture_rows
from llmprobe.errors import CaptureError
from llmprobe.probes.by_prompt import PromptTally, columns_of, joined
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.prompts import Prompts, PromptSource
from llmprobe.probes.request import Prepared, Request, prepare
from llmprobe.probes.summaries import NOTHING_FINITE, few_prompts
from llmprobe.probes.tallies import Evidence
from llmprobe.results.retrieval import RetrievalResult

RETRIEVAL_LENGTHS = "64..1024"
_ANSWERS = -1
"""The key of what the model answered, next to the layers' numbers."""
_OF_HEADS = ("source", "norm", "effective")


def probe_retrieval(
    model: AnyModel = "builtin",
    lengths: str | int | Sequence[int] = RETRIEVAL_LENGTHS,
    *,
    layers: LayerChoice = None,
    prompts: str = "dictionary",
    n_prompts: int = 64,
    bos: str = "auto",
    seed: int = 0,
    batch_tokens: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
    **load: Unpack[LoadOptions],
) -> RetrievalResult:
    """Probe right answers and the attention of each prompt's last query on their source.

    `prompts`: `dictionary`, a list of key->value pairs and a key that is in it; or `repeat`, a
    passage, filler, and the passage again. `layers`: of which heads are looked at; the answers take
    all layers in any case. The other arguments are those of `probe_variance`.
    """
    asked = RetrievalRequest(
        lengths=lengths,
        layers=layers,
        prompts=prompts,
        n_prompts=n_prompts,
        bos=bos,
        seed=seed,
        batch_tokens=batch_tokens,
    )
    run = start(
        RetrievalProbe,
        model,
        asked,
        tokenizer=tokenizer,
        output=output,
        overwrite=overwrite,
        **load,
    )
    result: RetrievalResult = run.execute(progress)
    return result


@dataclass(frozen=True, kw_only=True)
class RetrievalRequest(Request):
    """The arguments of `probe_retrieval` that decide its numbers."""

    predicts = "an answer"

    lengths: str | int | Sequence[int] = RETRIEVAL_LENGTHS
    layers: LayerChoice = None
    prompts: PromptSource = "dictionary"

    def check(self) -> tuple[int, ...]:
        asking = [name for name, kind in Prompts.kinds.items() if kind.has_answers()]
        if self.kind in Prompts.kinds and self.kind not in asking:
            raise ValueError(
                f"prompts: got {self.kind!r}, which ask nothing, accepted: {', '.join(asking)}"
            )
        return super().check()


class RetrievalTally(PromptTally):
    """Of every prompt: whether its answer was right, and what every head did."""

    kind = RetrievalResult.kind


@dataclass(frozen=True)
class _Heads:
    """What one forward showed of the heads of a layer, at the last position."""

    weights: Tensor
    """(prompts, heads, tokens)"""
    norm: Tensor
    """(prompts, heads)"""
    effective: Tensor

    def on(self, device: torch.device) -> "_Heads":
        """On one device: the layers of a model may lie on several."""
        return _Heads(*(x.to(device) for x in (self.weights, self.norm, self.effective)))


class RetrievalProbe(Probe):
    """Next tokens, and rows and outputs of the last queries."""

    tally = RetrievalTally

    def __init__(self, loaded: LoadedModel, asked: RetrievalRequest) -> None:
        self.ready = prepare(loaded, asked)
        check_head(loaded.model, self.ready.prompts.batch([0], max(self.ready.lengths)))

    def forward(
        self, model: nn.Module, tokens: Tensor, positions: Any, chunk: Any, observe: Any
    ) -> list[Mapping[int, Any]]:
        targets = self.ready.prompts.targets([0], tokens.shape[1])
        assert targets is not None, "prompts that ask nothing were refused"
        with _observe(self.ready) as seen:
            logits = last_logits(model, tokens, targets.shape[1])
        return [{**seen, _ANSWERS: logits.float()}]

    def take(
        self, tally: RetrievalTally, prompts: list[int], parts: Sequence[Mapping[int, Any]]
    ) -> None:
        seen, asked = parts[0], self.ready.prompts
        logits = seen[_ANSWERS]
        heads = [seen[number] for number in self.ready.numbers]
        length = heads[0].weights.shape[-1]
        targets, sources = asked.targets(prompts, length), asked.sources(prompts, length)
        assert targets is not None
        assert sources is not None
        targets = upload(targets, logits.device)
        nats = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        numbers: dict[str, Any] = {
            "right": as_float64(logits[:, -1].argmax(-1) == targets[:, -1]),
            "answer_loss": as_float64(nats).mean(1),
            "distance": (length - sources[:, 0]).double(),
            **{name: np.array(values) for name, values in asked.facts(prompts, length).items()},
        }
        heads = [x.on(logits.device) for x in heads]
        at_source = [_mass(x.weights, sources) for x in heads]
        of_heads = {"source": at_source, "norm": [x.norm for x in heads]}
        of_heads["effective"] = [x.effective for x in heads]
        numbers |= {name: torch.cat(values, 1).float() for name, values in of_heads.items()}
        for name, values in numbers.items():
            tally.put(name, values[:, None], prompts)

    @classmethod
    def summarize(cls, evidence: Evidence) -> RetrievalResult:
        tallies = list(evidence.tallies.values())

        def known(name: str) -> NDArray[np.float64]:
            """(prompts, lengths); NaN where the kind of prompts does not say it."""
            if name in tallies[0].values:
                return joined(tallies, name).astype(np.float64)
            return np.full(joined(tallies, "right").shape, np.nan)

        right = known("right")
        heads = {name: known(name) for name in _OF_HEADS}  # (prompts, lengths, series)
        if not np.isfinite(known("answer_loss")).any():
            raise CaptureError(NOTHING_FINITE)
        columns = columns_of("accuracy", [proportion_estimate(x) for x in right.T])
        columns |= columns_of("answer_loss", [estimate(x) for x in known("answer_loss").T])
        for name in ("n_pairs", "distance", "chance", "blind"):
            columns[name] = known(name).mean(axis=0)
        every = np.moveaxis(heads["source"], 0, -1)  # (lengths, series, prompts)
        sources = [[estimate(x) for x in series] for series in np.moveaxis(every, 1, 0)]
        for end, what in (("", "mean"), ("_low", "low"), ("_high", "high")):
            columns[f"source{end}"] = np.array([[getattr(x, what) for x in y] for y in sources])
        columns["norm"] = heads["norm"].mean(axis=0).T
        columns["effective"] = heads["effective"].mean(axis=0).T
        for name, x in heads.items():
            found = correlate_ranks(right, x)
            for end, values in zip(("", "_low", "_high"), found, strict=True):
                columns[f"right_{name}{end}"] = values
        found = correlate_ranks(known("answer_loss"), heads["source"])
        for end, values in zip(("", "_low", "_high"), found, strict=True):
            columns[f"loss_source{end}"] = values
        series = [(x.layer, head, x.type) for x in evidence.layers for head in range(x.n_heads)]
        return RetrievalResult(
            provenance=evidence.provenance,
            lengths=evidence.lengths,
            context_length=evidence.context_length,
            layer_type=tuple(kind for _, _, kind in series),
            layer=np.array([layer for layer, _, _ in series]),
            head=np.array([head for _, head, _ in series]),
            n_prompts=np.full((len(series), len(evidence.lengths)), len(right)),
            warnings=(*few_prompts(evidence), *evidence.warnings),
            **columns,
        )


join = RetrievalProbe.join


@contextmanager
def _observe(ready: Prepared) -> Iterator[dict[int, _Heads]]:
    seen: dict[int, _Heads] = {}
    heads = capture_attention(ready.model, ready.numbers, positions=-1, at="heads")
    rows = capture_rows(ready.model, ready.numbers, positions=-1, k=1, weights=True)
    with heads, rows:
        yield seen
    for number in ready.numbers:
        row = rows[number]
        assert row.weights is not None, "they were asked for"
        norm = heads[number][:, 0].float().norm(dim=-1)
        seen[number] = _Heads(row.weights[:, 0], norm, row.effective[:, 0])


def _mass(weights: Tensor, sources: Tensor) -> Tensor:
    """Σ of weights (prompts, heads, tokens) from the first source position to the last."""
    at = torch.arange(weights.shape[-1], device=weights.device)
    first, end = upload(sources, weights.device).unbind(1)
    inside = (at >= first[:, None]) & (at < end[:, None])
    return (weights * inside[:, None]).sum(-1)
