"""Does a remedy help? Each remedy and dose on the same prompts, paired, next to its shams.

    result = probe_remedies("builtin", "64..1024", remedies="logn,temperature")
    result.to_frame(), result.reading(), result.plot("doses")

Every prompt runs untreated and with every treatment, so all differences are paired over prompts.
Measured: the loss between consecutive lengths, the loss of key tokens (those of the untreated model
that need far context), right answers to dictionary and repeat prompts of the longest length, and
slopes of the variance of heads.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from llmprobe.base.moments import Groups, Moments, State
from llmprobe.base.nesting import flatten
from llmprobe.base.progress import Progress
from llmprobe.base.transfers import as_float64, fetch_arrays
from llmprobe.capture.discovery import AttentionLayer, LayerChoice
from llmprobe.capture.loading import AnyModel, LoadedModel
from llmprobe.capture.losses import check_head, ending_losses, token_losses
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.positions import parse_rope, scaled_positions
from llmprobe.errors import CaptureError
from llmprobe.probes.agreement import chunks_agree
from llmprobe.probes.by_prompt import PromptTally, joined
from llmprobe.probes.loss import (
    KEY_GAIN,
    KEY_LOSS,
    between,
    check_sizes,
    ending,
    in_one_pass,
    n_between,
    sum_up_to,
)
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.remedy_request import (
    DEFAULT_DOSES,
    MEASURES,
    RemedyRequest,
    make_case,
    note_idle,
    trained_context,
)
from llmprobe.probes.remedy_scores import (
    UNTREATED,
    compare_slopes,
    compare_treatments,
    with_slopes,
)
from llmprobe.probes.remedy_tasks import TASKS, Task, make_tasks
from llmprobe.probes.request import DEFAULT_LENGTHS, prepare
from llmprobe.probes.summaries import NOTHING_FINITE, few_prompts
from llmprobe.probes.sweeps import Piece, Sweep
from llmprobe.probes.tallies import N_GROUPS, Evidence, by_layer
from llmprobe.probes.treatments import (
    REMEDIES,
    Treatment,
    treatments,
)
from llmprobe.results.base import Also, Result
from llmprobe.results.remedy import RemedyResult

_SLOPE_LAYERS = 4
"""Layers whose slopes are measured, at most: their moments are kept for every remedy."""
_MOST_TARGETS = 64


def probe_remedies(
    model: AnyModel = "builtin",
    lengths: str | int | Sequence[int] = DEFAULT_LENGTHS,
    *,
    remedies: str | Sequence[str] | None = None,
    doses: str | float | Sequence[float] = DEFAULT_DOSES,
    heads: str | Mapping[int, Sequence[int]] = "all",
    layers: LayerChoice = "all",
    variance: str | Path | None = None,
    trained: int | None = None,
    rope: str | None = None,
    measures: str | Sequence[str] = MEASURES,
    prompts: str = "text",
    text: str | Path | None = None,
    dataset: str | None = None,
    n_prompts: int = 16,
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
) -> RemedyResult:
    """Try remedies against dispersion on a model, each at several doses and next to its shams.

    `remedies`: names, as text or a list; `llmprobe ls remedies` explains them. `doses`: each
    multiplies what a remedy does to the logarithm; 0 is the untreated model, which always runs.
    `heads`: all; dispersing, by the labels of `variance`; or LAYER.HEAD, such as "0.3,2.1".
    `variance`: the folder of a variance result with at="heads" of the same model and other
    prompts. `restore` and `norm` take the moments of heads from it, and give back those at
    the longest length that is inside the trained context.
    `trained`: the context that the model was trained for, if its config does not say so.
    `rope`: repair positions first: dynamic, yarn or linear, alone or with a factor ("linear:4").
    `measures`: loss, dictionary, repeat, slopes; "loss" takes a third of the time of all, or less.
    `same_targets`: key tokens are looked for among so many last tokens of each prompt.
    The other arguments are those of `probe_loss`.
    """
    asked = RemedyRequest(
        lengths=lengths,
        remedies=remedies,
        doses=doses,
        heads=heads,
        layers=layers,
        variance=variance,
        trained=trained,
        rope=rope,
        measures=measures,
        prompts=prompts,
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
        RemedyProbe, model, asked, tokenizer=tokenizer, output=output, overwrite=overwrite, **load
    )
    result: RemedyResult = run.execute(progress)
    return result


class RemedyTally(PromptTally):
    """Of every prompt: each measure untreated and treated; of all: moments of heads."""

    kind = RemedyResult.kind

    @staticmethod
    def shapes(layer: AttentionLayer, *, whole: bool) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys((UNTREATED, *REMEDIES), (1, layer.n_heads, layer.head_size))

    def update(self, layer: int, name: str, x: Tensor, prompts: Sequence[int]) -> None:
        """Take in head outputs (prompts, lengths, heads, size) under a remedy."""
        groups = self.groups.setdefault((layer, name), Groups(Moments))
        groups.update(x, [prompt % N_GROUPS for prompt in prompts])

    def state(self) -> State:
        groups = {f"{name}/{layer}": part.tensors() for (layer, name), part in self.groups.items()}
        flat = flatten(groups, "/")
        arrays = fetch_arrays(list(flat.values()))
        return super().state() | dict(zip(flat, arrays, strict=True))

    def merge(self, state: Mapping[str, Any], *, first: int = 0) -> None:
        super().merge(state, first=first)
        parts = by_layer(state)
        for name in (UNTREATED, *REMEDIES):
            for layer in self.numbers:
                if part := parts.get((str(layer), name)):
                    groups = self.groups.setdefault((layer, name), Groups(Moments))
                    groups.merge(Groups.from_state(Moments, part))


class RemedyProbe(Probe):
    """Losses, answers and moments of the same prompts, untreated and with every treatment."""

    tally = RemedyTally

    def __init__(self, loaded: LoadedModel, asked: RemedyRequest) -> None:
        self.rope = None if asked.rope is None else parse_rope(asked.rope)
        self.model: nn.Module = loaded.model
        self.trained = trained_context(loaded, asked)
        self.factor = max(1.0, max(asked.check()) / self.trained)
        with self.positions():
            prepared = prepare(loaded, asked, chunk=asked.chunk)
            ready = in_one_pass(prepared)
            check_sizes(ready)
            check_head(ready.model, ready.prompts.batch([0], max(ready.lengths)))
        self.case = make_case(ready, asked, self.trained)
        self.treatments = treatments(asked.names(), asked.all_doses())
        for remedy in asked.names():  # refuses by name what cannot be treated
            Treatment(remedy, 1.0).edit(self.case)
        self.n_targets = asked.same_targets or min(_MOST_TARGETS, max(1, min(ready.lengths) // 2))
        self.measured = asked.measured()
        kinds = [kind for kind in TASKS if kind in self.measured]
        self.tasks, left_out = make_tasks(ready, kinds, seed=asked.seed)
        notes = (*ready.warnings, *note_idle(ready, asked, self.trained), *left_out)
        self.ready = replace(ready, plan=asked.planned(ready.plan), warnings=notes)
        self.slope_layers = _spread(list(self.case.heads), _SLOPE_LAYERS)
        self.one_pass = prepared.plan.one_pass
        # Dynamic positions depend on the whole length, and this may be asked without them.
        dynamic = self.rope is not None and self.rope[0] == "dynamic"
        self.may_chunk = cache(  # type: ignore[method-assign]  # asked once: it runs a few tokens
            lambda: not dynamic and chunks_agree(ready.model, ready.prompts, ready.layers)
        )

    def positions(self) -> AbstractContextManager[None]:
        """Repaired, if that is wanted."""
        if self.rope is None:
            return nullcontext()
        kind, factor = self.rope
        default = 1.0 if kind == "dynamic" else self.factor
        return scaled_positions(self.model, kind, default if factor is None else factor)

    def forward(
        self, model: nn.Module, tokens: Tensor, positions: Any, chunk: int | None, observe: Any
    ) -> list[Mapping[int, Any]]:
        """Losses of all tokens by number of treatment, from 1; 0 is untreated, -1 short context."""
        n_head, short = self.ready.prompts.n_head, min(self.ready.lengths)
        with self.positions():
            near = ending(tokens, short, n_head)
            found = {-1: token_losses(model, near), 0: token_losses(model, tokens, chunk=chunk)}
            endings = cache(lambda n: self._ending(model, tokens, n, found[0]))
            for number, treatment in enumerate(self.treatments, start=1):
                begins = treatment.begins(self.case)
                n = tokens.shape[1] - begins
                if n <= 0:  # no token sees so many keys
                    found[number] = found[0]
                    continue
                again = endings(n) if chunk is None and begins > 1 else None
                with treatment.edit(self.case):
                    if again is not None:
                        found[number] = torch.cat([found[0][:, :-n], again()], dim=1)
                    else:
                        found[number] = token_losses(model, tokens, chunk=chunk)
        return [found]

    def _ending(
        self, model: nn.Module, tokens: Tensor, n: int, untreated: Tensor
    ) -> Callable[[], Tensor] | None:
        """The losses of the last n tokens behind a beginning that runs once.

        None if they are not those of the whole prompt. What a treatment leaves alone is the same to
        the bit: changes are taken among losses over the cache.
        """
        if not (self.one_pass and self.may_chunk()):
            return None
        again = ending_losses(model, tokens, n)
        plain, whole = again(), untreated[:, -n:]
        bound = 1e-3 if next(model.parameters()).dtype.itemsize > 2 else 0.1
        if not (plain - whole).abs().max() < bound:
            return None
        return lambda: whole + (again() - plain)

    def take(
        self, tally: RemedyTally, prompts: list[int], parts: Sequence[Mapping[int, Tensor]]
    ) -> None:
        losses, lengths = parts[0], self.ready.lengths
        every = [losses[number] for number in range(1 + len(self.treatments))]
        nats = torch.stack([sum_up_to(x, lengths) for x in every], dim=-1)
        tally.put("loss", nats, prompts)
        last, without = (x[:, -self.n_targets :] for x in (losses[0], losses[-1]))
        is_key = (without - last > KEY_GAIN) & (last < KEY_LOSS)
        key = [as_float64((x[:, -self.n_targets :] * is_key).sum(1)) for x in every]
        tally.put("key_loss", _at_longest(torch.stack(key, dim=-1), lengths), prompts)
        counts = as_float64(is_key.sum(1, keepdim=True))
        tally.put("key_count", _at_longest(counts, lengths), prompts)

    def examine(self, tally: RemedyTally, piece: Piece) -> None:
        """Right answers of other prompts, and moments of heads."""
        for name, task in self.tasks.items():
            self._ask(tally, piece, name, task)
        if "slopes" in self.measured:
            self._measure_heads(tally, piece)

    def _ask(self, tally: RemedyTally, piece: Piece, name: str, task: Task) -> None:
        """Share of right answers at the longest length, untreated and with every treatment."""
        ready = self.ready

        def forward(model: nn.Module, tokens: Tensor, *_: Any) -> list[Mapping[int, Any]]:
            with self.positions():
                found = {0: task.answers(model, tokens)}
                for number, treatment in enumerate(self.treatments, start=1):
                    with treatment.edit(self.case):
                        found[number] = task.answers(model, tokens)
            return [found]

        def take(some: list[int], _: Any, parts: Any) -> None:
            shares = [task.score(parts[0][number], some) for number in sorted(parts[0])]
            tally.put(name, _at_longest(torch.stack(shares, dim=-1), ready.lengths), some)

        sweep = Sweep(
            ready.model, task.prompts, ready.plan, self.observe, lambda: False, forward=forward
        )
        sweep.run(replace(piece, lengths=(task.length,)), take)

    def _measure_heads(self, tally: RemedyTally, piece: Piece) -> None:
        """Head outputs of the last tokens, untreated and with each remedy at the dose next to 1."""
        ready = self.ready
        chosen = [(UNTREATED, None), *((t.remedy, t) for t in with_slopes(self.treatments))]

        def observe(positions: list[int]) -> Any:
            return capture_attention(
                ready.model, self.slope_layers, positions=positions, at="heads", stop=True
            )

        sweep = Sweep(ready.model, ready.prompts, ready.plan, observe, self.may_chunk)
        with self.positions():
            for name, treatment in chosen:

                def take(some: list[int], _: Any, parts: Any, name: str = name) -> None:
                    for layer in self.slope_layers:
                        x = torch.cat([part[layer] for part in parts], dim=1)
                        tally.update(layer, name, x, some)

                with nullcontext() if treatment is None else treatment.edit(self.case):
                    sweep.run(piece, take)

    @classmethod
    def summarize(cls, evidence: Evidence) -> RemedyResult:
        arguments, lengths = evidence.provenance.arguments, evidence.lengths
        tallies = list(evidence.tallies.values())
        every = treatments(arguments["remedies"], arguments["doses"])
        nats = between(joined(tallies, "loss")) / n_between(lengths)[:, None]
        if not np.isfinite(nats).any():
            raise CaptureError(NOTHING_FINITE)
        measured = {
            "loss": compare_treatments(nats, every),
            "key_loss": compare_treatments(
                joined(tallies, "key_loss"), every, per=joined(tallies, "key_count")[..., 0]
            ),
        }
        for name in TASKS:
            if name in tallies[0].values:
                measured[name] = compare_treatments(joined(tallies, name), every)
        columns = {
            name: np.stack([columns[name] for columns in measured.values()])
            for name in measured["loss"]
        }
        notes = [*few_prompts(evidence), *evidence.warnings]
        return RemedyResult(
            provenance=evidence.provenance,
            warnings=tuple(notes),
            lengths=lengths,
            context_length=int(arguments["trained"] or evidence.context_length or 0),
            measures=tuple(measured),
            remedies=tuple(treatment.remedy for treatment in every),
            arms=tuple(treatment.arm for treatment in every),
            doses=np.array([treatment.dose for treatment in every]),
            **columns,
            **compare_slopes(evidence, every),
        )

    @classmethod
    def join(cls, folders: Sequence[Path]) -> tuple[Result, Also]:
        if len({Evidence.read(folder, cls.tally).lengths for folder in folders}) > 1:
            raise ValueError(
                "merge: got results of different lengths, but treatments depend on the longest; "
                "accepted: the same lengths, other seeds"
            )
        return super().join(folders)


join = RemedyProbe.join


def _spread(numbers: list[int], most: int) -> list[int]:
    """Some of the numbers, evenly, with the first and the last."""
    at = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(int)
    return [numbers[i] for i in dict.fromkeys(at.tolist())]


def _at_longest(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """(prompts, lengths, ...), NaN but at the longest."""
    found = values.new_full((len(values), len(lengths), *values.shape[1:]), torch.nan)
    found[:, -1] = values
    return found
