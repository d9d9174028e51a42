"""What a model loses, or gains, as prompts get longer: the loss by position and by context.

    result = probe_loss("builtin", "16..1024")                     # by position, one pass
    result = probe_loss("builtin", "16..1024", same_targets=8)     # and by context
    result.to_frame(), result.plot("position"), result.plot("context")

By position: nats per token between consecutive lengths, from one pass over the longest prompts.
Later tokens are other tokens, so a falling curve is what later positions cost, not yet what
context buys. By context: the last tokens of each prompt, predicted from the tokens right before
them, as many as each length has. Targets are the same at every length, so differences are paired.

Key tokens are LongPPL's (arXiv 2410.23771): context lowers their loss by more than 2 nats, to
below 2 nats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from llmprobe.base.intervals import estimate, ratio_estimate
from llmprobe.base.progress import Progress
from llmprobe.base.transfers import as_float64, fetch_arrays
from llmprobe.capture.discovery import LayerChoice
from llmprobe.capture.loading import AnyModel, LoadedModel
from llmprobe.capture.losses import check_head, token_losses
from llmprobe.errors import CaptureError
from llmprobe.probes.agreement import chunks_agree
from llmprobe.probes.by_prompt import PromptTally, columns_of, joined
from llmprobe.probes.joining import join_evidence
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.prompts import Prompts, PromptSource
from llmprobe.probes.request import DEFAULT_LENGTHS, Prepared, Request, check_count, prepare
from llmprobe.probes.summaries import NOTHING_FINITE, few_prompts
from llmprobe.probes.sweeps import Piece, Sweep, plan_sweep
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.texts import BUILTIN_TEXT
from llmprobe.results.base import Also, Result
from llmprobe.results.loss import LossResult

KEY_GAIN, KEY_LOSS = 2.0, 2.0
"""Nats: what context must gain for a key token, and what may be left (LongPPL's α and β)."""
_ONE_LENGTH = (
    "short prompts of this model differ from the beginnings of long ones: losses at all positions "
    "are those in the longest prompts"
)


def probe_loss(
    model: AnyModel = "builtin",
    lengths: str | int | Sequence[int] = DEFAULT_LENGTHS,
    *,
    prompts: PromptSource = "text",
    field: str | None = None,
    chat_template: bool = False,
    text: str | Path | None = None,
    dataset: str | None = None,
    n_prompts: int = 32,
    same_targets: int | None = None,
    bos: str = "auto",
    seed: int = 0,
    batch_tokens: int | None = None,
    chunk: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
    **load: Unpack[LoadOptions],
) -> LossResult:
    """Probe the loss of a model on text, by position and by context.

    `same_targets`: also measure the loss of so many last tokens of each prompt, given contexts of
    every length; a length counts the targets, and BOS. The built-in model has its own `text`,
    which was sampled from it; other models need a `text` or a `dataset`. The other arguments are
    those of `probe_variance`.
    """
    asked = LossRequest(
        lengths=lengths,
        prompts=prompts,
        field=field,
        chat_template=chat_template,
        text=text,
        dataset=dataset,
        n_prompts=n_prompts,
        same_targets=same_targets,
        bos=bos,
        seed=seed,
        batch_tokens=batch_tokens,
        chunk=chunk,
    )
    run = start(
        LossProbe, model, asked, tokenizer=tokenizer, output=output, overwrite=overwrite, **load
    )
    result: LossResult = run.execute(progress)
    return result


def sum_up_to(losses: Tensor, lengths: Sequence[int]) -> Tensor:
    """Nats of the first tokens of prompts, as many as each length says: (prompts, lengths).

    `losses` (prompts, tokens − 1) are those of `token_losses`. The first token has no loss.
    """
    sums = as_float64(losses).cumsum(1)
    return torch.stack([sums[:, length - 2] for length in lengths], dim=1)


def between(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """What lies between consecutive lengths, of sums (prompts, lengths) up to each of them."""
    return np.diff(sums, axis=1, prepend=0)


def n_between(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Tokens between consecutive lengths; the first token of a prompt is not predicted."""
    return np.diff(lengths, prepend=1)


@dataclass(frozen=True, kw_only=True)
class LossRequest(Request):
    """The arguments of `probe_loss` that decide its numbers."""

    predicts = "the loss"

    layers: LayerChoice = None
    prompts: PromptSource = "text"
    n_prompts: int = 32
    same_targets: int | None = None
    chunk: int | None = None

    def check(self) -> tuple[int, ...]:
        wanted = super().check()
        if min(wanted) < 2:
            raise ValueError(f"lengths: got {min(wanted)}, accepted: 2 or more tokens")
        if Prompts.kinds[self.kind].has_answers():
            raise ValueError(
                f"prompts: got {self.prompts!r}, accepted: text, unigram, random, or your own; "
                "answers to questions are probed by probe_retrieval"
            )
        check_count("chunk", self.chunk)
        check_count("same_targets", self.same_targets)
        if self.same_targets is not None and self.same_targets >= min(wanted):
            raise ValueError(
                f"same_targets: got {self.same_targets}, accepted: fewer than the shortest length, "
                f"{min(wanted)}, has tokens"
            )
        return wanted

    def for_model(self, model: Any) -> Self:
        """The built-in model has its own text."""
        given = self.text is not None or self.dataset is not None
        if model != "builtin" or self.prompts != "text" or given:
            return self
        return replace(self, text=BUILTIN_TEXT)


class LossTally(PromptTally):
    """Of every prompt: nats and bytes up to each length, and the losses of its last tokens."""

    kind = LossResult.kind


class LossProbe(Probe):
    """Losses of all tokens in one pass, and of the last ones in a pass for each context."""

    tally = LossTally

    def __init__(self, loaded: LoadedModel, asked: LossRequest) -> None:
        self.same_targets = asked.same_targets
        self.ready = ready = in_one_pass(prepare(loaded, asked, chunk=asked.chunk))
        check_sizes(ready)
        check_head(ready.model, ready.prompts.batch([0], max(ready.lengths)))
        self.may_chunk = cache(  # type: ignore[method-assign]  # asked once: it runs a few tokens
            lambda: chunks_agree(ready.model, ready.prompts, ready.layers)
        )

    def forward(
        self, model: nn.Module, tokens: Tensor, positions: Any, chunk: int | None, observe: Any
    ) -> list[Mapping[int, Any]]:
        return [{0: token_losses(model, tokens, chunk=chunk)}]

    def take(
        self, tally: LossTally, prompts: list[int], parts: Sequence[Mapping[int, Tensor]]
    ) -> None:
        losses, lengths = parts[0][0], self.ready.lengths
        tally.put("nats", sum_up_to(losses, lengths), prompts)
        tally.put("bytes", self._bytes(prompts), prompts)
        if self.same_targets is not None:
            last = as_float64(losses[:, -self.same_targets :])[:, None]
            others = torch.full_like(last, torch.nan).repeat(1, len(lengths) - 1, 1)
            tally.put("targets", torch.cat([others, last], dim=1), prompts)

    def examine(self, tally: LossTally, piece: Piece) -> None:
        """The last tokens again, given shorter contexts: one pass for each length."""
        n, ready = self.same_targets, self.ready
        if n is None:
            return
        endings: Any = _Endings(ready.prompts)
        sweep = Sweep(
            ready.model, endings, ready.plan, self.observe, self.may_chunk, forward=self.forward
        )
        indices = [index for batch in piece.batches for index in batch]
        found: list[tuple[int, list[int], Tensor]] = []
        for column, length in enumerate(ready.lengths[:-1]):

            def take(some: list[int], _: Any, parts: Any, column: int = column) -> None:
                found.append((column, some, as_float64(parts[0][0][:, -n:])))

            size = max(1, ready.plan.batch_tokens // length)
            batches = [tuple(indices[at : at + size]) for at in range(0, len(indices), size)]
            sweep.run(Piece(piece.name, (length,), tuple(batches)), take)
        every = fetch_arrays([losses for _, _, losses in found])
        targets = tally.values["targets"]
        for (column, some, _), losses in zip(found, every, strict=True):
            for index, values in zip(some, losses, strict=True):
                targets[index][column] = values

    def _bytes(self, prompts: list[int]) -> NDArray[np.float64]:
        """UTF-8 bytes that the tokens up to each length decode to, without the first token's.

        Special tokens decode to nothing. Without a tokenizer there are no bytes: NaN.
        """
        ready, tokenizer = self.ready, self.ready.loaded.tokenizer
        if tokenizer is None:
            return np.full((len(prompts), len(ready.lengths)), np.nan)
        rows = ready.prompts.batch(prompts, max(ready.lengths)).tolist()

        def size(ids: list[int]) -> int:
            text = tokenizer.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            return len(text.encode("utf-8", "replace"))

        return np.array(
            [[size(row[:length]) - size(row[:1]) for length in ready.lengths] for row in rows],
            dtype=np.float64,
        )

    @classmethod
    def summarize(cls, evidence: Evidence) -> LossResult:
        tallies, lengths = list(evidence.tallies.values()), evidence.lengths
        nats, n_bytes = (between(joined(tallies, name)) for name in ("nats", "bytes"))
        if not np.isfinite(nats).any():
            raise CaptureError(NOTHING_FINITE)
        same_targets = evidence.provenance.arguments["same_targets"]
        per_token = nats / n_between(lengths)
        columns = columns_of("loss", [estimate(x) for x in per_token.T])
        pairs = zip(nats.T / np.log(2), n_bytes.T, strict=True)
        columns |= columns_of("bits_per_byte", [ratio_estimate(a, b) for a, b in pairs])
        if same_targets is not None:
            columns |= _by_context(joined(tallies, "targets"))
        notes = [*few_prompts(evidence), *evidence.warnings]
        if n_left_out := int((~np.isfinite(nats)).any(axis=1).sum()):
            notes.append(f"NaN or infinity in the losses of {n_left_out} prompts, left out")
        return LossResult(
            provenance=evidence.provenance,
            lengths=lengths,
            same_targets=same_targets,
            context_length=evidence.context_length,
            n_prompts=np.isfinite(nats).sum(axis=0),
            n_tokens=n_between(lengths),
            warnings=tuple(notes),
            **columns,
        )

    @classmethod
    def join(cls, folders: Sequence[Path]) -> tuple[Result, Also]:
        every = [Evidence.read(folder, cls.tally) for folder in folders]
        bound = any(
            one.provenance.arguments["same_targets"] is not None or _ONE_LENGTH in one.warnings
            for one in every
        )
        if bound and len({one.lengths for one in every}) > 1:
            raise ValueError(
                "merge: got results of different lengths, but same_targets are the last tokens of "
                "the longest prompts, and so are losses of models that depend on the prompt's "
                "length; accepted: the same lengths, other seeds"
            )
        evidence = join_evidence(folders, cls.tally)
        return cls.summarize(evidence), evidence.write


join = LossProbe.join


class _Endings:
    """The same prompts, but a shorter one is the end of the longest, behind BOS if it has one."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts, self.longest = prompts, prompts.longest
        self.longest_one = prompts.longest_one

    def batch(self, indices: Sequence[int], length: int) -> Tensor:
        return ending(self.prompts.batch(indices, self.longest), length, self.prompts.n_head)


def ending(tokens: Tensor, length: int, n_head: int) -> Tensor:
    """The last tokens of prompts behind their first n_head ones (BOS), `length` in all."""
    return torch.cat([tokens[:, :n_head], tokens[:, tokens.shape[1] - length + n_head :]], dim=1)


def check_sizes(ready: Prepared) -> None:
    """Refuse prompts that are too short: positions of the same prompts are compared."""
    longest, sizes = max(ready.lengths), ready.prompts.sizes or ()
    short = [size for size in sizes if size < longest]
    if short:
        raise ValueError(
            f"lengths: got {longest}, but {len(short)} of {len(sizes)} prompts are shorter, and "
            f"the loss compares positions of the same prompts; use lengths up to {min(short)}, or "
            "longer prompts"
        )


def in_one_pass(ready: Prepared) -> Prepared:
    """The same with a plan of one pass, also where short prompts are no beginnings of long ones."""
    plan = ready.plan
    if plan.one_pass:
        return ready
    plan = plan_sweep(
        ready.model,
        ready.layers,
        ready.lengths,
        n_prompts=plan.n_prompts,
        one_pass=True,
        batch_tokens=plan.batch_tokens,
        chunk=plan.chunk,
    )
    others = (note for note in ready.warnings if "one pass per length" not in note)
    return replace(ready, plan=plan, warnings=(*others, _ONE_LENGTH))


def _by_context(targets: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Columns of the same targets (prompts, lengths, targets) given contexts of every length."""
    loss = targets.mean(axis=2)
    columns = columns_of("context_loss", [estimate(x) for x in loss.T])
    columns |= columns_of("context_gain", [estimate(x) for x in (loss[:, :1] - loss).T])
    is_key = (targets[:, :1] - targets > KEY_GAIN) & (targets < KEY_LOSS)
    columns |= columns_of("key_share", [estimate(x) for x in is_key.mean(axis=2).T])
    key = is_key[:, -1:]  # with all of the context
    sums, counts = np.where(key, targets, 0).sum(axis=2), key.sum(axis=(1, 2))
    columns |= columns_of("key_loss", [ratio_estimate(x, counts) for x in sums.T])
    return columns
