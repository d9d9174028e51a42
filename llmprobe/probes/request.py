"""From the arguments of a probe to a sweep that is ready to run: model, layers, prompts, plan.

Everything that can be wrong with the arguments is found here, before anything runs, and everything
that will weaken the numbers is noted in words.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from llmprobe.base.lengths import parse_lengths
from llmprobe.base.machine import evaluating
from llmprobe.base.seeds import check_seed
from llmprobe.capture.discovery import AttentionLayer, LayerChoice, attention_layers, choose_layers
from llmprobe.capture.loading import LoadedModel, digest_model, load_model
from llmprobe.capture.outputs import AT
from llmprobe.probes.evidence import Part
from llmprobe.probes.prompts import Prompts, check_kind, make_prompts
from llmprobe.probes.sweeps import SweepPlan, chunks_agree, plan_sweep, prefixes_agree
from llmprobe.probes.texts import check_name, read_dataset, read_text
from llmprobe.results.base import Provenance

BOS = ("auto", "yes", "no")
DEFAULT_LENGTHS = "16..1024"
_NOT_RECORDED = ("model", "output", "overwrite", "on_plan", "advance")
"""Arguments of a probe that do not decide its numbers, or are recorded otherwise."""
_CPU_BATCH_TOKENS = 16384
_GPU_BATCH_TOKENS = 65536
_MOST_SAMPLES, _MOST_TOKENS = 1_000_000, 2**31
"""More are a slip of the hand."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments that probes share, as `probe_variance` tells of them."""

    lengths: str | Sequence[int]
    layers: LayerChoice
    prompts: str
    text: str | Path | None
    dataset: str | None
    samples: int
    query: str
    bos: str
    seed: int
    batch_tokens: int | None
    at: str = "output"
    chunk: int | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Taken by their names from among others."""
        shared = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in arguments.items() if name in shared})

    def check(self) -> tuple[int, ...]:
        """Refuse what can be asked of no model, before one is loaded; gives the lengths."""
        wanted = parse_lengths(self.lengths)
        if self.at not in AT:
            raise ValueError(f"at: got {self.at!r}, accepted: {', '.join(AT)}")
        if self.dataset is not None:
            check_name(self.dataset)
        if self.text is not None and self.dataset is not None:
            raise ValueError("text and dataset: got both; give only one of them")
        source = self.text or self.dataset
        check_kind(self.prompts, self.query, has_text=bool(source))
        if self.prompts not in ("unigram", "text") and source is not None:
            raise ValueError(
                f"prompts: {self.prompts} prompts use no text; use --prompts text or unigram"
            )
        if self.bos not in BOS:
            raise ValueError(f"bos: got {self.bos!r}, accepted: {', '.join(BOS)}")
        check_seed(self.seed)
        for name, value, least, most in (
            ("samples", self.samples, 2, _MOST_SAMPLES),
            ("batch-tokens", self.batch_tokens, 1, _MOST_TOKENS),
            ("chunk", self.chunk, 1, _MOST_TOKENS),
        ):
            whole = isinstance(value, int) and least <= value <= most
            if value is not None and not whole:
                raise ValueError(f"{name}: got {value!r}, accepted: {least} or more, to {most:,}")
        return wanted


@dataclass(frozen=True)
class Prepared:
    """A probe's parts, checked."""

    loaded: LoadedModel
    layers: tuple[AttentionLayer, ...]
    lengths: tuple[int, ...]
    prompts: Prompts
    plan: SweepPlan
    warnings: tuple[str, ...]
    provenance: Provenance
    text_hash: str | None
    """Of the text that prompts are made of; its file's name alone would not tell."""

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self.loaded.model
        return model

    @property
    def run(self) -> dict[str, Any]:
        """What decides the numbers beside the provenance."""
        plan = {name: getattr(self.plan, name) for name in ("one_pass", "batch_tokens", "chunk")}
        return plan | {"model_hash": digest_model(self.model), "text_hash": self.text_hash}

    def part(self, n_prompts: int) -> Part:
        """The first prompts."""
        known, told = n_prompts == self.plan.n_prompts, self.provenance
        return Part(
            told.seed, n_prompts, told.prompts_hash if known else self.prompts.digest(n_prompts)
        )


def prepare(
    model: str | nn.Module | LoadedModel, arguments: Mapping[str, Any], tokenizer: Any = None
) -> Prepared:
    """Check a probe's arguments, load what is needed, and plan."""
    asked = Request.of(arguments)
    wanted = asked.check()
    loaded = _loaded(model, tokenizer)
    with evaluating(loaded.model):
        return _prepare(loaded, asked, wanted, arguments)


def _prepare(
    loaded: LoadedModel, asked: Request, wanted: tuple[int, ...], arguments: Mapping[str, Any]
) -> Prepared:
    if loaded.learned_positions is not None and max(wanted) > loaded.learned_positions:
        raise ValueError(
            f"lengths: {max(wanted)} is beyond the {loaded.learned_positions} positions that "
            f"{loaded.name} has learned; use --lengths up to {loaded.learned_positions}"
        )
    chosen = choose_layers(attention_layers(loaded.model), asked.layers)
    text = _read(asked)
    prompt_set = make_prompts(
        asked.prompts,
        n_prompts=asked.samples,
        lengths=wanted,
        seed=asked.seed,
        tokenizer=loaded.tokenizer,
        # Rows of the embedding beyond the tokenizer are padding that no training has touched.
        vocab_size=min(loaded.vocab_size, len(loaded.tokenizer or range(loaded.vocab_size))),
        bos_token_id=_bos(asked.bos, loaded),
        text=text,
        query=asked.query,
    )
    first = prompt_set.batch([0], max(wanted))
    if all(first.equal(prompt_set.batch([i], max(wanted))) for i in range(1, asked.samples)):
        raise ValueError(
            f"prompts: all {asked.samples} are the same, so nothing varies; use other ones"
        )
    agree = len(wanted) == 1 or (
        prompt_set.prefix_consistent and prefixes_agree(loaded.model, prompt_set, wanted, chosen)
    )
    if asked.chunk is not None and not chunks_agree(loaded.model, prompt_set, chosen):
        raise ValueError(f"chunk: {loaded.name} gives other numbers in chunks; leave --chunk out")
    default = _CPU_BATCH_TOKENS if loaded.device == "cpu" else _GPU_BATCH_TOKENS
    plan = plan_sweep(
        loaded.model,
        chosen,
        wanted,
        n_prompts=asked.samples,
        one_pass=agree,
        batch_tokens=default if asked.batch_tokens is None else asked.batch_tokens,
        chunk=asked.chunk,
    )
    return Prepared(
        loaded=loaded,
        layers=chosen,
        lengths=wanted,
        prompts=prompt_set,
        plan=plan,
        warnings=tuple(_warnings(loaded, chosen, wanted, prompt_set, agree)),
        provenance=Provenance.record(
            model=loaded.name,
            revision=loaded.revision,
            dtype=loaded.dtype,
            device=loaded.device,
            attention=loaded.attention,
            prompts=asked.prompts,
            prompts_hash=prompt_set.digest(),
            seed=asked.seed,
            # What was meant, however it was written: a run may go on from Python or the shell.
            arguments={k: v for k, v in arguments.items() if k not in _NOT_RECORDED}
            | {"lengths": wanted, "layers": [layer.layer for layer in chosen]}
            | {"text": _name(asked.text), "dataset": _name(asked.dataset)},
        ),
        text_hash=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
    )


def _loaded(model: str | nn.Module | LoadedModel, tokenizer: Any) -> LoadedModel:
    if isinstance(model, str | Path):
        return load_model(model)
    if isinstance(model, LoadedModel):
        return model if tokenizer is None else replace(model, tokenizer=tokenizer)
    return LoadedModel.of(model, tokenizer=tokenizer)


def _read(asked: Request) -> str | None:
    if asked.text is not None:
        return read_text(asked.text)
    return read_dataset(asked.dataset) if asked.dataset else None


def _name(source: str | Path | None) -> str | None:
    """Of a file or folder its last part alone; other names are those of data sets."""
    if source is None:
        return None
    return Path(source).name if Path(source).expanduser().exists() else str(source)


def _bos(bos: str, loaded: LoadedModel) -> int | None:
    if bos == "no" or (bos == "auto" and not loaded.adds_bos):
        return None
    if loaded.bos_token_id is None:
        raise ValueError(f"bos: {loaded.name} has no BOS token; use --bos no")
    return loaded.bos_token_id


def _warnings(
    loaded: LoadedModel,
    layers: Sequence[AttentionLayer],
    lengths: tuple[int, ...],
    prompts: Prompts,
    agree: bool,
) -> list[str]:
    notes = list(prompts.warnings)
    if loaded.context_length is not None and max(lengths) > loaded.context_length:
        notes.append(
            f"lengths above {loaded.context_length} are beyond the context that "
            f"{loaded.name} was trained for"
        )
    if prompts.prefix_consistent and not agree:
        notes.append("the model's short prompts differ from long ones' beginnings: a pass a length")
    windows = [str(layer.layer) for layer in layers if layer.type == "sliding"]
    if windows:
        notes.append(
            f"layer {', '.join(windows)} looks through a window: no decay is expected there"
        )
    return notes
