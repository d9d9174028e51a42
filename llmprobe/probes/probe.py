"""A probe: what is captured, what is counted, and how that becomes a result.

    run = start(VarianceProbe, "builtin", VarianceRequest(lengths="16..1024"))
    run.plan.describe()
    result = run.execute()

A kind of probe is a small class: `observe` attaches a capture, `take` counts what it gave in a
tally, `summarize` makes the result of all that was counted. Running it is the same for all kinds:
the sweep is cut into pieces, each finished piece is kept in the output folder if there is one, and
the same call resumes there. A folder with a result of fewer prompts gets the missing ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import torch

from llmprobe.base.machine import evaluating, memory_kept, sample_weights
from llmprobe.base.progress import Progress, reporting
from llmprobe.capture.loading import AnyModel, LoadedModel, as_loaded
from llmprobe.capture.token_types import TokenTypes
from llmprobe.errors import CaptureError, CheckpointError, OutOfMemoryError
from llmprobe.probes.before import check_asked
from llmprobe.probes.joining import join_evidence
from llmprobe.probes.request import Prepared, Request
from llmprobe.probes.sweeps import Piece, Sweep, SweepPlan
from llmprobe.probes.tallies import Evidence, Tally, at_length, configuration_of
from llmprobe.probes.texts import read_text
from llmprobe.results.base import Also, Result
from llmprobe.runs.checkpoints import check_same
from llmprobe.runs.folder import (
    EVIDENCE,
    RunFolder,
    check_probe,
    evidence_stamp,
    is_finished,
    open_probe,
    probe_under_way,
    tidy_probe,
)
from llmprobe.runs.jobs import (
    State,
    agree_on,
    finish,
    is_alone,
    kept,
    opened,
    run_pieces,
)


class LoadOptions(TypedDict, total=False):
    """How a model that is given by name is loaded: arguments of `load_model`."""

    revision: str | None
    dtype: str | torch.dtype
    device: str | torch.device
    device_map: str | Mapping[str, Any] | None
    attn_implementation: str | None
    quantize: str | None
    part: str | None
    allow_pickle: bool
    trust_remote_code: bool


class Probe(ABC):
    """A kind of probe, made ready for a model."""

    tally: ClassVar[type[Tally]]
    """What it counts in; its kind is that of the result."""

    branches: ClassVar[bool] = False
    """Whether fixed queries may run as branches of the longest prompts."""

    ready: Prepared
    forward: Callable[..., list[Mapping[int, Any]]] | None = None
    """How a batch is run, where it is more than a forward with a capture: see `Sweep.forward`."""

    @abstractmethod
    def __init__(self, loaded: LoadedModel, asked: Any) -> None:
        """Prepare a checked request for a model."""

    def observe(self, positions: list[int]) -> AbstractContextManager[Mapping[int, Any]]:
        """Attach a capture for these positions; the mapping it gives is filled by the forward."""
        return nullcontext({})

    @abstractmethod
    def take(self, tally: Any, prompts: list[int], parts: Sequence[Mapping[int, Any]]) -> None:
        """Count what was captured of some prompts, in parts by positions."""

    def may_chunk(self) -> bool:
        """Asked once memory runs out: whether prompts may be cut into chunks."""
        return False

    def types(self) -> TokenTypes | None:
        """How the first attention may be computed by token types, if it may."""
        return None

    def examine(self, tally: Any, piece: Piece) -> None:
        """Ask something else of the model, once the capture of a piece is through."""
        return

    @classmethod
    @abstractmethod
    def summarize(cls, evidence: Evidence) -> Result:
        """The result of all that was counted; neither the model nor its prompts are needed."""

    @classmethod
    def join(cls, folders: Sequence[Path]) -> tuple[Result, Also]:
        """One result of several saved ones, and what writes its evidence next to it."""
        evidence = join_evidence(folders, cls.tally)
        return cls.summarize(evidence), evidence.write


def start(
    kind: type[Probe],
    model: AnyModel,
    asked: Request,
    *,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    **load: Unpack[LoadOptions],
) -> "ProbeRun":
    """Check, load, prepare and plan; what can be refused before the model is loaded, is."""
    asked = asked.for_model(model)
    asked.check()
    named = str(model) if isinstance(model, str | Path) else type(model).__name__
    told = {"probe": kind.tally.kind, "model": named, "output": output, "overwrite": overwrite}
    agree_on(told | asked.shown() | load)
    folder = None if output is None else check_probe(output, overwrite=overwrite)
    if asked.text is not None:
        read_text(asked.text)
    if folder is not None and not overwrite:
        check_asked(folder, kind.tally.kind, model, asked)
    loaded = as_loaded(model, tokenizer=tokenizer, **load)
    with evaluating(loaded.model):  # probes try a few tokens first
        probe = kind(loaded, asked)
    return _open(probe, folder, overwrite=overwrite)


@dataclass(frozen=True)
class ProbeRun:
    """A probe with its plan, and the folder that it is kept in."""

    probe: Probe
    plan: SweepPlan
    """What is left to do."""
    before: Evidence | None = None
    """What the folder has of the first prompts."""
    facts: Mapping[str, Any] | None = None
    """What decides the numbers besides the provenance, where it is kept."""
    space: RunFolder | None = None

    def execute(self, progress: Progress = False) -> Any:
        """Run the pieces that are missing, join all, summarize; with a folder, save."""
        with self.space or nullcontext():
            return self._execute(progress)

    def _execute(self, progress: Progress) -> Any:
        ready, pieces = self.probe.ready, self.plan.pieces()
        with reporting(progress) as report, evaluating(ready.model):
            work = _Work(self.probe, self.plan, self.space, report)
            states = run_pieces(pieces, work.do)
        evidence = self._evidence(pieces, states)
        result = self.probe.summarize(evidence)
        finish(self.space, lambda space: space.finish(result, also=evidence.write))
        return result

    def _evidence(self, pieces: Sequence[Piece], states: Sequence[State]) -> Evidence:
        probe, ready, plan = self.probe, self.probe.ready, self.plan
        tallies = {length: probe.tally(ready.layers) for length in plan.lengths}
        for length, tally in tallies.items():
            if self.before is not None:
                tally.merge(self.before.tallies[length].state())
        for lengths, _ in plan.passes() if plan.n_tokens else ():
            joined = probe.tally(ready.layers)
            for piece, state in zip(pieces, states, strict=True):
                if piece.lengths == lengths:
                    joined.merge(state)
            new = joined.state()
            for index, length in enumerate(lengths):
                tallies[length].merge(at_length(new, index))
        return Evidence(
            kind=probe.tally.kind,
            provenance=ready.provenance,
            run={} if self.facts is None else self.facts,
            parts=(ready.part(plan.n_prompts),),
            layers=ready.layers,
            context_length=ready.loaded.context_length,
            warnings=ready.warnings,
            tallies=tallies,
        )


class _Work:
    """One piece after another: from the folder, or made and kept there."""

    def __init__(
        self, probe: Probe, plan: SweepPlan, space: RunFolder | None, report: Callable[..., object]
    ) -> None:
        self.probe, self.space, self.report = probe, space, report
        ready = probe.ready
        self.sweep = Sweep(
            ready.model,
            ready.prompts,
            plan,
            probe.observe,
            probe.may_chunk,
            probe.forward,
            cache(probe.types),
            ready.together,
        )
        self.total, self.done = plan.n_tokens, 0
        self.weights = sample_weights(ready.model)

    def do(self, piece: Piece) -> State:
        done = self.done
        try:
            state = kept(self.space, piece.name, lambda: self._see(piece))
        except OutOfMemoryError as error:
            keeps = "" if self.space is None else f"; {self.space.folder} keeps what is done"
            raise OutOfMemoryError(f"{error}{keeps}") from error
        self._advance(done + piece.n_tokens - self.done)  # one that was there already counts too
        return state

    def _see(self, piece: Piece) -> State:
        tally = self.probe.tally(self.probe.ready.layers)

        def take(prompts: list[int], lengths: tuple[int, ...], parts: Any) -> None:
            self.probe.take(tally, prompts, parts)

        with torch.inference_mode(), memory_kept():
            self.sweep.run(piece, take, self._advance)
            self.probe.examine(tally, piece)
        if sample_weights(self.probe.ready.model) != self.weights:
            raise CaptureError(
                f"the weights of {self.probe.ready.loaded.name} changed while it was probed, so "
                "its numbers belong to no model; probe a copy, or train it later"
            )
        return tally.state()

    def _advance(self, n_tokens: int) -> None:
        self.done += n_tokens
        self.report(self.probe.tally.kind, self.done, self.total, "tokens")


def _open(probe: Probe, output: Path | None, *, overwrite: bool) -> ProbeRun:
    """The run in its folder, of which part may be done already."""
    ready = probe.ready
    if output is None and is_alone():
        return ProbeRun(probe, ready.plan)
    facts = ready.run
    wanted = configuration_of(probe.tally.kind, ready.provenance, facts)
    agree_on({name: x for name, x in wanted.items() if name != "arguments"} | wanted["arguments"])
    if output is None:
        return ProbeRun(probe, ready.plan)

    def enter() -> ProbeRun:
        there = evidence_stamp(output)
        before = None if overwrite else _seen_before(output, probe, wanted)
        plan = ready.plan.after(0 if before is None else before.n_prompts)
        if plan.n_tokens or not is_finished(output):
            space = open_probe(output, wanted, after=plan.first, overwrite=overwrite)
            if evidence_stamp(output) != there:  # between the look at it and the lock
                space.close()
                raise CheckpointError(
                    f"{output} was changed by another run just now; run the same again"
                )
            return ProbeRun(probe, plan, before, facts, space)
        tidy_probe(output, plan.n_prompts)
        return ProbeRun(probe, plan, before, facts)

    return opened(enter)


def _seen_before(folder: Path, probe: Probe, wanted: Mapping[str, Any]) -> Evidence | None:
    """What a folder has of the first prompts of this run, so that only the others are missing."""
    under_way = probe_under_way(folder)
    began_without = under_way is not None and not under_way.get("after")
    if began_without or not (folder / EVIDENCE).is_file():
        return None
    ready = probe.ready
    evidence = Evidence.read(folder, probe.tally)
    there, n = evidence.configuration, evidence.n_prompts
    fewer = n > ready.plan.n_prompts
    if fewer or evidence.parts == (ready.part(n),):  # the same as far as they go
        asked = {"n_prompts": wanted["arguments"]["n_prompts"]}
        there |= {"prompts_hash": wanted["prompts_hash"], "arguments": there["arguments"] | asked}
    check_same(folder, there, wanted)
    if fewer:
        raise CheckpointError(
            f"{folder} has {n} prompts, more than the {ready.plan.n_prompts} that are asked for; "
            "use another output, or overwrite=True"
        )
    return evidence
