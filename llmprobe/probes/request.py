"""From the arguments of a probe to a sweep that is ready to run: model, layers, prompts, plan.

Everything that can be wrong with the arguments is found here, before anything runs, and everything
that will weaken the numbers is noted in words. The fields of a request are what a result records.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from llmprobe.base.lengths import parse_lengths
from llmprobe.base.machine import evaluating
from llmprobe.base.seeds import check_seed
from llmprobe.capture.digests import digest_model, digest_tokenizer
from llmprobe.capture.discovery import (
    AttentionLayer,
    LayerChoice,
    attention_layers,
    choose_layers,
    parse_layers,
)
from llmprobe.capture.editing import describe_edits
from llmprobe.capture.loading import LoadedModel
from llmprobe.probes.agreement import chunks_agree, prefixes_agree
from llmprobe.probes.own_prompts import OwnPrompts, hash_rows, rows_of
from llmprobe.probes.prompts import OWN, Prompts, PromptSource, check_kind, kind_of, make_prompts
from llmprobe.probes.queries import N_QUERIES, check_query, token_text
from llmprobe.probes.query_positions import check_causal, check_position, resolve_position
from llmprobe.probes.sweeps import SweepPlan, plan_sweep
from llmprobe.probes.tallies import Part
from llmprobe.probes.texts import check_name, read_dataset, read_text, without_marks
from llmprobe.results.base import Provenance

BOS = ("auto", "yes", "no")
DEFAULT_LENGTHS = "16..1024"
_CPU_BATCH_TOKENS = 16384
_GPU_BATCH_TOKENS = 65536
_MOST_PROMPTS, _MOST_TOKENS = 1_000_000, 2**31
"""More is a mistake."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments that decide the numbers of a probe, as `probe_variance` explains them."""

    predicts: ClassVar[str | None] = None
    """What needs a model that predicts the next token, for the message that refuses an encoder."""

    lengths: str | int | Sequence[int] = DEFAULT_LENGTHS
    layers: LayerChoice = 0
    prompts: PromptSource = "random"
    field: str | None = None
    chat_template: bool = False
    text: str | Path | None = None
    dataset: str | None = None
    n_prompts: int = 64
    query: str = "free"
    n_queries: int | None = None
    position: str | int = "auto"
    bos: str = "auto"
    seed: int = 0
    batch_tokens: int | None = None

    def check(self) -> tuple[int, ...]:
        """Refuse what can be asked of no model, before one is loaded; gives the lengths."""
        wanted = parse_lengths(self.lengths)
        if isinstance(self.layers, str):
            parse_layers(self.layers)
        if self.dataset is not None:
            check_name(self.dataset)
        if self.text is not None and self.dataset is not None:
            raise ValueError("text and dataset: got both; give only one of them")
        check_kind(self.kind, self.query, has_text=bool(self.text or self.dataset))
        if isinstance(self.prompts, str) and self.prompts == OWN:
            raise ValueError("prompts: got 'own'; give the prompts, as a file or a list of texts")
        for name in ("field", "chat_template"):
            given = getattr(self, name)
            if given not in (None, False) and self.kind != OWN:
                raise ValueError(
                    f"{name}: got {given!r}, but {self.kind} prompts have none; leave it out"
                )
        if self.bos not in BOS:
            raise ValueError(f"bos: got {self.bos!r}, accepted: {', '.join(BOS)}")
        check_seed(self.seed)
        check_count("n_prompts", self.n_prompts, least=2, most=_MOST_PROMPTS)
        check_query(self.query, self.n_queries, n_prompts=self.n_prompts)
        check_position(self.position)
        check_count("batch_tokens", self.batch_tokens)
        return wanted

    def for_model(self, model: Any) -> Self:
        """The same with the defaults that depend on the model, as it was given."""
        return self

    @property
    def kind(self) -> str:
        """The kind of prompts."""
        return kind_of(self.prompts)

    def shown(self) -> dict[str, Any]:
        """The arguments by name, with the kind of the prompts instead of their content."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.position in ("auto", "last"):  # what was done is recorded with the model
            del given["position"]
        if self.kind != OWN:  # then they are no arguments
            del given["field"], given["chat_template"]
        return given | {"prompts": self.kind}

    def planned(self, plan: SweepPlan) -> SweepPlan:
        """The plan with the cost of this kind of probe, where prompts run more than once."""
        return plan

    def record(self, lengths: tuple[int, ...], layers: Sequence[AttentionLayer]) -> dict[str, Any]:
        """The arguments as a result keeps them: what was meant, however it was written."""
        return self.shown() | {
            "lengths": lengths,
            "layers": [layer.layer for layer in layers],
            "text": _name(self.text),
            "dataset": _name(self.dataset),
            "n_queries": (self.n_queries or N_QUERIES) if self.query == "fixed" else None,
        }


def check_count(name: str, value: Any, *, least: int = 1, most: int = _MOST_TOKENS) -> None:
    """Refuse what is no number of things; None is one that was not given."""
    if value is not None and not (isinstance(value, int) and least <= value <= most):
        raise ValueError(f"{name}: got {value!r}, accepted: {least} or more, to {most:,}")


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
    position: str
    """Where attention is measured: last, first, mean, or a number."""
    text_hash: str | None
    """Of the text that prompts are made of, or of all own prompts; a file's name would not tell."""
    together: bool = False
    """Whether branches run in one forward."""

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self.loaded.model
        return model

    @property
    def numbers(self) -> list[int]:
        """The chosen layers by number."""
        return [layer.layer for layer in self.layers]

    @property
    def run(self) -> dict[str, Any]:
        """What decides the numbers besides the provenance."""
        plan = {name: getattr(self.plan, name) for name in ("one_pass", "batch_tokens", "chunk")}
        return plan | {
            "model_hash": digest_model(self.model),
            "tokenizer_hash": digest_tokenizer(self.loaded.tokenizer),
            "text_hash": self.text_hash,
        }

    def part(self, n_prompts: int) -> Part:
        """The first prompts."""
        known, told = n_prompts == self.plan.n_prompts, self.provenance
        return Part(
            told.seed, n_prompts, told.prompts_hash if known else self.prompts.digest(n_prompts)
        )


def prepare(
    loaded: LoadedModel,
    asked: Request,
    *,
    chunk: int | None = None,
    branches: bool = False,
    together: bool = False,
) -> Prepared:
    """Choose layers, make prompts and plan the sweep, for a request that was checked.

    `branches`: whether fixed queries may run as branches of the longest prompts; `together`: all of
    them in one forward, where a branch's own keys are not at its own position.
    """
    with evaluating(loaded.model):
        return _prepare(loaded, asked, chunk, branches, together)


def _prepare(
    loaded: LoadedModel, asked: Request, chunk: int | None, branches: bool, together: bool
) -> Prepared:
    wanted = parse_lengths(asked.lengths)
    check_positions(loaded, wanted)
    chosen = choose_layers(attention_layers(loaded.model), asked.layers)
    if asked.predicts is not None:
        check_causal(chosen, loaded.name, asked.predicts, part=loaded.part)
    position = resolve_position(asked.position, chosen, wanted, loaded.name)
    causal = all(layer.causal for layer in chosen)
    given, rows = _read(asked), _rows(asked)
    text, n_marks = (None, 0) if given is None else without_marks(given)
    n_prompts = min(asked.n_prompts, len(rows)) if rows else asked.n_prompts
    prompt_set = make_prompts(
        asked.kind,
        n_prompts=n_prompts,
        lengths=wanted,
        seed=asked.seed,
        tokenizer=loaded.tokenizer,
        # Rows of the embedding beyond the tokenizer are padding that no training has touched.
        vocab_size=min(loaded.vocab_size, len(loaded.tokenizer or range(loaded.vocab_size))),
        bos_token_id=_bos(asked, loaded, rows),
        text=text,
        query=asked.query,
        n_queries=asked.n_queries,
        rows=rows,
        chat_template=asked.chat_template,
    )
    if isinstance(prompt_set, OwnPrompts):
        prompt_set.check_lengths(wanted)
        if len(rows) > n_prompts:
            prompt_set.warnings += (f"the first {n_prompts} of {len(rows)} prompts are used",)
    if n_marks:
        prompt_set.warnings += (f"{n_marks:,} marks of WikiText (<unk>, @-@) were left out",)
    _check_different(prompt_set)
    share_beginnings = prompt_set.prefix_consistent or (branches and prompt_set.n_tail > 0)
    several = len(wanted) > 1 and causal and share_beginnings
    compared = (loaded.model, prompt_set, wanted, chosen)
    together = several and together and prompt_set.n_tail > 0
    together = together and prefixes_agree(*compared, together=True)
    agree = len(wanted) == 1 or together or (several and prefixes_agree(*compared))
    if chunk is not None and not causal:
        raise ValueError(f"chunk: {loaded.name} is an encoder, which sees all tokens at once")
    if chunk is not None and not chunks_agree(loaded.model, prompt_set, chosen):
        raise ValueError(f"chunk: {loaded.name} gives other numbers in chunks; leave chunk out")
    plan = plan_sweep(
        loaded.model,
        chosen,
        wanted,
        n_prompts=n_prompts,
        one_pass=agree,
        batch_tokens=batch_tokens(loaded, asked),
        chunk=chunk,
        sizes=prompt_set.sizes,
        keeps_keys=agree and len(wanted) > 1 and prompt_set.n_tail > 0,
    )
    return Prepared(
        loaded=loaded,
        layers=chosen,
        lengths=wanted,
        prompts=prompt_set,
        plan=plan,
        together=together,
        warnings=tuple(_warnings(loaded, chosen, wanted, prompt_set, agree)),
        provenance=Provenance.record(
            model=loaded.name,
            revision=loaded.revision,
            dtype=loaded.dtype,
            device=loaded.device,
            attention=loaded.attention,
            prompts=asked.kind,
            prompts_hash=prompt_set.digest(),
            seed=asked.seed,
            arguments=asked.record(wanted, chosen)
            | _record_queries(asked.query, prompt_set, loaded)
            | {"n_prompts": n_prompts}
            | ({} if position == "last" else {"position": position})
            | ({} if loaded.quantized is None else {"quantize": loaded.quantized})
            | ({} if loaded.part is None else {"part": loaded.part})
            | _bos_record(prompt_set, loaded),
        ),
        position=position,
        text_hash=_hash(text, rows),
    )


def check_positions(loaded: LoadedModel, lengths: Sequence[int]) -> None:
    """Refuse lengths beyond a learned table of positions."""
    if loaded.learned_positions is not None and max(lengths) > loaded.learned_positions:
        raise ValueError(
            f"lengths: {max(lengths)} is beyond the {loaded.learned_positions} positions that "
            f"{loaded.name} has learned; use lengths up to {loaded.learned_positions}"
        )


def batch_tokens(loaded: LoadedModel, asked: Request) -> int:
    """Tokens in one forward: the given number, or what suits the device."""
    default = _CPU_BATCH_TOKENS if loaded.device == "cpu" else _GPU_BATCH_TOKENS
    return default if asked.batch_tokens is None else asked.batch_tokens


def _read(asked: Request) -> str | None:
    if asked.text is not None:
        return read_text(asked.text)
    return read_dataset(asked.dataset) if asked.dataset else None


def _rows(asked: Request) -> list[Any]:
    return rows_of(asked.prompts, asked.field) if asked.kind == OWN else []


def _hash(text: str | None, rows: Sequence[Any]) -> str | None:
    if rows:
        return hash_rows(rows)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def _check_different(prompts: Prompts) -> None:
    """Refuse prompts that are all the same."""
    every, longest = range(prompts.n_prompts), prompts.longest
    have = [i for i in every if prompts.sizes is None or prompts.sizes[i] >= longest]
    first = prompts.batch(have[:1], longest)
    if all(first.equal(prompts.batch([i], longest)) for i in have[1:]):
        raise ValueError(
            f"prompts: all {len(have)} are the same, so nothing varies; use other ones"
        )


def _name(source: str | Path | None) -> str | None:
    """Of a file its last part alone, of a folder nothing: it may be called after its user.

    Other names are those of data sets. The text itself is known by its hash.
    """
    if source is None:
        return None
    text = str(source)
    place, colon, split = text.rpartition(":")
    for given, ending in ((text, ""), (place, colon + split)):
        path = Path(given).expanduser()
        if given and path.exists():
            return ("a local folder" if path.is_dir() else path.name) + ending
    return text


def _record_queries(query: str, prompts: Prompts, loaded: LoadedModel) -> dict[str, Any]:
    """The query tokens by number and text; a named one by its number, however it was named."""
    tokens = prompts.query_tokens
    named = bool(tokens) and query != "fixed"
    return {
        "query": f"id:{tokens[0]}" if named else query,
        "query_tokens": [[token, token_text(token, loaded.tokenizer)] for token in tokens],
    }


def _bos(asked: Request, loaded: LoadedModel, rows: Sequence[Any]) -> int | None:
    """The token to begin with. Own tokens and chat templates have it if they want it."""
    by_itself = loaded.adds_bos and not asked.chat_template
    by_itself = by_itself and all(isinstance(row, str) for row in rows)
    if asked.bos == "no" or (asked.bos == "auto" and not by_itself):
        return None
    if loaded.bos_token_id is None:
        raise ValueError(f'bos: {loaded.name} has no BOS token; use bos="no"')
    return loaded.bos_token_id


def _bos_record(prompts: Prompts, loaded: LoadedModel) -> dict[str, Any]:
    """What was done, whatever decided it: whether all prompts begin with BOS, and which it is."""
    bos = loaded.bos_token_id
    if bos is None or not prompts.begin_with(bos):
        return {"bos": "no", "bos_token": None}
    word = None if loaded.tokenizer is None else loaded.tokenizer.convert_ids_to_tokens(bos)
    return {"bos": "yes", "bos_token": word or f"token {bos}"}


def _warnings(
    loaded: LoadedModel,
    layers: Sequence[AttentionLayer],
    lengths: tuple[int, ...],
    prompts: Prompts,
    agree: bool,
) -> list[str]:
    notes = [*prompts.warnings, *describe_edits(loaded.model)]
    n_queries = len(prompts.query_tokens)
    if n_queries > 1 and prompts.n_prompts < 2 * n_queries:
        notes.append(
            f"{prompts.n_prompts} prompts for {n_queries} query tokens: some queries have fewer "
            f"than two prompts; use n_prompts={2 * n_queries} or more"
        )
    if loaded.context_length is not None and max(lengths) > loaded.context_length:
        notes.append(
            f"lengths above {loaded.context_length} are beyond the context that "
            f"{loaded.name} was trained for"
        )
    if loaded.quantized is not None:
        notes.append(
            f"weights were rounded to {loaded.quantized}: these are numbers of the rounded model; "
            "compare small slopes with those of the float model"
        )
    if prompts.prefix_consistent and not agree and all(layer.causal for layer in layers):
        notes.append(
            "short prompts of this model differ from the beginnings of long ones: one pass per "
            "length"
        )
    return [*notes, *_windows(layers, lengths)]


def _windows(layers: Sequence[AttentionLayer], lengths: tuple[int, ...]) -> Iterator[str]:
    """Where prompts are longer than the window of a layer, by window."""
    by_window: dict[int | None, list[str]] = {}
    for layer in layers:
        beyond = layer.window is None or max(lengths) > layer.window
        if layer.type == "sliding" and beyond:
            by_window.setdefault(layer.window, []).append(str(layer.layer))
    for window, numbers in by_window.items():
        which = f"layer{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
        sees = f"{'see' if len(numbers) > 1 else 'sees'} only the last"
        if window is None:
            yield f"{which} {sees} tokens of a window: no decay is expected beyond it"
        else:
            yield f"{which} {sees} {window} tokens: no decay is expected beyond {window}"
