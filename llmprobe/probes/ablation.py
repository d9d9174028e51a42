"""Which heads matter as prompts get longer: the loss without them, next to random heads.

    result = probe_ablation("builtin", "16..256", heads={"early": {0: [0, 1]}, "late": "4.0,4.1"})
    result = probe_ablation(model, "16..2048", variance="runs/variance-heads")   # by label
    result = probe_ablation(model, "16,256,4096", heads="each", same_targets=64)
    result.to_frame(), result.reading(), result.plot()

The outputs of a class of heads are replaced by their mean over tokens of the first few prompts, in
the same prompts that are scored without it, so changes of the loss are paired over prompts. Each
class has a control: as many heads of the same layers, drawn from the others.

With `same_targets` heads are ablated at the last tokens of each prompt alone, given contexts of
every length. That is what these tokens need a head for, and not what the context lost without it.
The context runs once for all classes, so every head of a model is affordable.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from llmprobe.base.intervals import Estimate, estimate, paired_p
from llmprobe.base.progress import Progress
from llmprobe.base.seeds import numpy_generator
from llmprobe.base.transfers import as_float64
from llmprobe.capture.digests import digest_model
from llmprobe.capture.discovery import AttentionLayer, LayerChoice
from llmprobe.capture.editing import edit_attention
from llmprobe.capture.edits import ablate
from llmprobe.capture.loading import AnyModel, LoadedModel
from llmprobe.capture.losses import check_head, ending_losses, token_losses
from llmprobe.capture.outputs import capture_attention
from llmprobe.errors import CaptureError
from llmprobe.probes.agreement import chunks_agree
from llmprobe.probes.by_prompt import PromptTally, joined
from llmprobe.probes.loss import (
    LossRequest,
    between,
    check_sizes,
    ending,
    in_one_pass,
    n_between,
    sum_up_to,
)
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.prompts import PromptSource
from llmprobe.probes.remedy_request import parse_heads
from llmprobe.probes.request import DEFAULT_LENGTHS, Prepared, check_count, prepare
from llmprobe.probes.summaries import NOTHING_FINITE, few_prompts
from llmprobe.probes.sweeps import SweepPlan
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.variance import VarianceTally
from llmprobe.results.ablation import AblationResult
from llmprobe.results.base import Also, Result
from llmprobe.results.opening import load_result
from llmprobe.results.variance import VarianceResult
from llmprobe.runs.folder import EVIDENCE

Heads: TypeAlias = Mapping[int, Sequence[int]]
"""Heads by the number of their layer."""
_MEAN_PROMPTS = 4
"""Prompts whose tokens give the mean output of each head."""


def probe_ablation(
    model: AnyModel = "builtin",
    lengths: str | int | Sequence[int] = DEFAULT_LENGTHS,
    *,
    heads: str | Mapping[str, str | Heads] = "labels",
    variance: str | Path | None = None,
    n_controls: int = 1,
    same_targets: int | None = None,
    prompts: PromptSource = "text",
    field: str | None = None,
    chat_template: bool = False,
    text: str | Path | None = None,
    dataset: str | None = None,
    n_prompts: int = 16,
    bos: str = "auto",
    seed: int = 0,
    batch_tokens: int | None = None,
    chunk: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
    **load: Unpack[LoadOptions],
) -> AblationResult:
    """Probe how the loss changes, by position, without classes of heads.

    `heads`: "labels", the classes of the variance result in the folder `variance` (dispersing,
    falling, flat, rising); "each", every head by itself; LAYER.HEAD, such as "0.3,2.1"; or classes
    by name. `n_controls`: random classes of equal size and the same layers, for each class.
    `same_targets`: heads are ablated at so many last tokens of each prompt alone, given contexts of
    every length, in place of the loss by position. The other arguments are those of `probe_loss`.
    """
    asked = AblationRequest(
        lengths=lengths,
        heads=heads,
        variance=variance,
        n_controls=n_controls,
        same_targets=same_targets,
        prompts=prompts,
        field=field,
        chat_template=chat_template,
        text=text,
        dataset=dataset,
        n_prompts=n_prompts,
        bos=bos,
        seed=seed,
        batch_tokens=batch_tokens,
        chunk=chunk,
    )
    run = start(
        AblationProbe, model, asked, tokenizer=tokenizer, output=output, overwrite=overwrite, **load
    )
    result: AblationResult = run.execute(progress)
    return result


@dataclass(frozen=True)
class HeadClass:
    """Heads that are ablated together."""

    name: str
    heads: dict[int, tuple[int, ...]]
    control_of: int = -1
    """The number of the class that this one is a control of; −1 for a class that is no control."""

    def __str__(self) -> str:
        return ",".join(f"{layer}.{head}" for layer, some in self.heads.items() for head in some)


@dataclass(frozen=True, kw_only=True)
class AblationRequest(LossRequest):
    """The arguments of `probe_ablation` that decide its numbers."""

    predicts = "the loss without heads"

    layers: LayerChoice = "all"
    n_prompts: int = 16
    heads: str | Mapping[str, str | Heads] = "labels"
    variance: str | Path | None = None
    n_controls: int = 1

    def check(self) -> tuple[int, ...]:
        wanted = super().check()
        check_count("n_controls", self.n_controls, least=0)
        if self.n_prompts < _MEAN_PROMPTS:
            raise ValueError(
                f"n_prompts: got {self.n_prompts}, accepted: {_MEAN_PROMPTS} or more, as their "
                "mean outputs take the place of heads"
            )
        if self.heads == "labels" and self.variance is None:
            raise ValueError(
                'heads: got "labels", but no variance result; give variance=FOLDER of a result '
                'with at="heads", or heads="each", or LAYER.HEAD such as "0.3,2.1"'
            )
        if self.heads != "labels" and self.variance is not None:
            raise ValueError('variance: it is used by heads="labels" alone; leave one of them out')
        self.named()
        return wanted

    def named(self) -> dict[str, Heads] | None:
        """Classes that are known without the model; None for every head by itself."""
        if self.heads == "each":
            return None
        if self.heads == "labels":
            assert self.variance is not None
            return labeled_heads(Path(self.variance))
        given = {self.heads: self.heads} if isinstance(self.heads, str) else self.heads
        found = {
            str(name): parse_heads(some) if isinstance(some, str) else some
            for name, some in given.items()
        }
        if len(found) < len(given):
            raise ValueError(
                f"heads: got a name twice, of {', '.join(found)}; name each class once"
            )
        if not found or not all(any(some.values()) for some in found.values()):
            raise ValueError("heads: got a class without heads; name at least one in each")
        return found

    def planned(self, plan: SweepPlan) -> SweepPlan:
        named = self.named()
        return self.with_runs(plan, 1 if named is None else (1 + self.n_controls) * len(named))

    def with_runs(self, plan: SweepPlan, n_classes: int) -> SweepPlan:
        """The plan of a run of all prompts with all heads and without each class."""
        n_runs: float = 1 + n_classes
        if self.same_targets is not None:
            tokens = sum(plan.lengths) + n_classes * len(plan.lengths) * self.same_targets
            n_runs = tokens / max(plan.lengths)
        return replace(plan, flops=n_runs * plan.flops, seconds=n_runs * plan.seconds)

    def record(self, lengths: tuple[int, ...], layers: Sequence[AttentionLayer]) -> dict[str, Any]:
        more: dict[str, Any] = {"heads": self.heads if isinstance(self.heads, str) else "classes"}
        if layers:  # else the model is not there yet, which has the heads
            classes = make_classes(self, layers)
            more["classes"] = {one.name: str(one) for one in classes}
            more["controls"] = [one.control_of for one in classes]
        return super().record(lengths, layers) | more


def labeled_heads(folder: Path) -> dict[str, Heads]:
    """The heads of a variance result by their label; undecided ones are no class."""
    result = load_result(folder)
    if not isinstance(result, VarianceResult) or result.at != "heads":
        raise ValueError(
            f'variance: {folder.name} is no variance result of heads; make one with at="heads"'
        )
    found: dict[str, dict[int, list[int]]] = {}
    for layer, head, label in zip(result.layer, result.head, result.labels(), strict=True):
        if label and label != "undecided":
            found.setdefault(str(label), {}).setdefault(int(layer), []).append(int(head))
    if not found:
        raise ValueError(f"variance: {folder.name} has no head with a label; use more prompts")
    return dict(found)


def _check_labels(folder: Path, ready: Prepared) -> None:
    """Labels must be those of this model's heads, not of another model of the same shape."""
    if (folder / EVIDENCE).is_file():
        evidence = Evidence.read(folder, VarianceTally)
        same = evidence.run.get("model_hash") == digest_model(ready.model)
        name = evidence.provenance.model
    else:  # a result that was saved by itself knows the model's name alone
        name = load_result(folder).provenance.model
        same = name == ready.provenance.model
    if not same:
        raise ValueError(
            f"variance: got a result of another model ({name}), accepted: one of "
            f"{ready.loaded.name} with the same weights and dtype; make it again"
        )


def make_classes(asked: AblationRequest, layers: Sequence[AttentionLayer]) -> list[HeadClass]:
    """The classes of a request, each followed by its controls."""
    sizes = {layer.layer: layer.n_heads for layer in layers}
    named = asked.named()
    if named is None:
        return [HeadClass(f"{n}.{h}", {n: (h,)}) for n in sizes for h in range(sizes[n])]
    classes: list[HeadClass] = []
    for name, some in named.items():
        for number, heads in some.items():
            wrong = [head for head in heads if not 0 <= head < sizes.get(number, 0)]
            if wrong:
                raise ValueError(
                    f"heads: got {number}.{wrong[0]}, accepted: layers {min(sizes)} to "
                    f"{max(sizes)} with {sizes[min(sizes)]} heads"
                )
        chosen = {n: tuple(sorted(set(heads))) for n, heads in sorted(some.items()) if heads}
        number = len(classes)
        classes.append(HeadClass(name, chosen))
        for control in range(asked.n_controls):
            generator = numpy_generator(asked.seed, "control", name, control)
            classes.append(
                HeadClass(
                    f"{name}, random {control + 1}",
                    {n: _others(own, sizes[n], generator) for n, own in chosen.items()},
                    control_of=number,
                )
            )
    names = [one.name for one in classes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"heads: {twice!r} is also the name of a control; use another name")
    return classes


def _others(own: tuple[int, ...], n_heads: int, generator: np.random.Generator) -> tuple[int, ...]:
    """As many heads of a layer, of the others as far as there are enough."""
    others = [head for head in range(n_heads) if head not in own]
    first = generator.permutation(others)[: len(own)].tolist()
    rest = generator.permutation(own)[: len(own) - len(first)].tolist()
    return tuple(sorted(int(head) for head in [*first, *rest]))


class AblationTally(PromptTally):
    """Of every prompt, with all heads and without each class: nats up to each length, or of the
    last tokens given contexts of each length."""

    kind = AblationResult.kind


class AblationProbe(Probe):
    """Losses of the same prompts, with all heads and without each class."""

    tally = AblationTally

    def __init__(self, loaded: LoadedModel, asked: AblationRequest) -> None:
        prepared = prepare(loaded, asked, chunk=asked.chunk)
        self.ready = ready = in_one_pass(prepared)
        check_head(ready.model, ready.prompts.batch([0], max(ready.lengths)))
        check_sizes(ready)
        if asked.variance is not None:
            _check_labels(Path(asked.variance), ready)
        self.classes, self.same_targets = make_classes(asked, ready.layers), asked.same_targets
        self.ready = replace(ready, plan=asked.with_runs(ready.plan, len(self.classes)))
        self.means = cache(self._means)
        self.may_chunk = cache(  # type: ignore[method-assign]  # asked once: it runs a few tokens
            lambda: chunks_agree(ready.model, ready.prompts, ready.layers)
        )
        by_context = asked.same_targets is not None
        if by_context and not (prepared.plan.one_pass and self.may_chunk()):
            raise ValueError(
                f"same_targets: got {asked.same_targets}, but {ready.loaded.name} gives other "
                "outputs over a KV cache than in one pass; leave same_targets out"
            )

    def _means(self) -> dict[int, Tensor]:
        """The mean output of each head (heads, size) over the tokens of the first prompts."""
        ready, length = self.ready, max(self.ready.lengths)
        sums: dict[int, Tensor] = {}
        counts: dict[int, int] = {}

        def add(layer: int, x: Tensor) -> None:
            sums[layer] = sums.get(layer, 0) + as_float64(x).sum(dim=(0, 1))
            counts[layer] = counts.get(layer, 0) + x.shape[0] * x.shape[1]

        for index in range(_MEAN_PROMPTS):  # the same when prompts are added
            with capture_attention(ready.model, ready.numbers, at="heads", into=add):
                tokens = ready.prompts.batch([index], length)
                token_losses(ready.model, tokens, chunk=ready.plan.chunk)
        return {layer: (total / counts[layer]).float() for layer, total in sums.items()}

    def forward(
        self, model: nn.Module, tokens: Tensor, positions: Any, chunk: int | None, observe: Any
    ) -> list[Mapping[int, Any]]:
        """Nats (prompts, lengths) by number of class, from 1; 0 is with all heads."""
        if self.same_targets is None:
            return [self._everywhere(model, tokens, chunk)]
        return [self._at_targets(model, tokens, chunk, self.same_targets)]

    def _edits(self, model: nn.Module) -> list[AbstractContextManager[Any]]:
        """None, then those that ablate each class."""
        edit = ablate(self.means())
        return [
            nullcontext(),
            *(edit_attention(model, heads=one.heads, outputs=edit) for one in self.classes),
        ]

    def _everywhere(self, model: nn.Module, tokens: Tensor, chunk: int | None) -> dict[int, Any]:
        found = {}
        for number, edit in enumerate(self._edits(model)):
            with edit:
                losses = token_losses(model, tokens, chunk=chunk)
            found[number] = sum_up_to(losses, self.ready.lengths)
        return found

    def _at_targets(
        self, model: nn.Module, tokens: Tensor, chunk: int | None, n: int
    ) -> dict[int, Any]:
        found: dict[int, list[Any]] = {}
        for length in self.ready.lengths:  # one after the other: each has its cache
            some = ending(tokens, length, self.ready.prompts.n_head)
            again = ending_losses(model, some, n, chunk=chunk)
            for number, edit in enumerate(self._edits(model)):
                with edit:
                    nats = as_float64(again()).sum(1)
                found.setdefault(number, []).append(nats)
        return {number: torch.stack(sums, dim=1) for number, sums in found.items()}

    def take(
        self, tally: AblationTally, prompts: list[int], parts: Sequence[Mapping[int, Any]]
    ) -> None:
        every = [parts[0][number] for number in range(1 + len(self.classes))]
        tally.put("nats", torch.stack(every, dim=-1), prompts)

    @classmethod
    def summarize(cls, evidence: Evidence) -> AblationResult:
        arguments, lengths = evidence.provenance.arguments, evidence.lengths
        nats, n_tokens = joined(list(evidence.tallies.values()), "nats"), n_between(lengths)
        same_targets = arguments.get("same_targets")
        if same_targets is None:
            nats = between(nats)
        else:
            n_tokens = np.full_like(n_tokens, same_targets)
        nats = nats / n_tokens[:, None]
        if not np.isfinite(nats).any():
            raise CaptureError(NOTHING_FINITE)
        before, changes = nats[..., 0], nats[..., 1:] - nats[..., :1]
        controls = [int(n) for n in arguments["controls"]]
        versus = np.full_like(changes, np.nan)
        for number, of in enumerate(controls):
            drawn = [n for n, other in enumerate(controls) if other == number]
            if of < 0 and drawn:
                versus[..., number] = changes[..., number] - changes[..., drawn].mean(axis=-1)
        columns = _columns("baseline", before[..., None])
        columns = {name: x[0] for name, x in columns.items()}
        columns |= _columns("change", changes) | _columns("versus_random", versus)
        p = [[paired_p(estimate(x)) for x in one.T] for one in np.moveaxis(changes, -1, 0)]
        classes = arguments["classes"]
        return AblationResult(
            provenance=evidence.provenance,
            warnings=(*few_prompts(evidence), *evidence.warnings),
            lengths=lengths,
            context_length=evidence.context_length,
            classes=tuple(classes),
            heads=tuple(classes.values()),
            control_of=tuple(controls),
            n_prompts=np.isfinite(before).sum(axis=0),
            n_tokens=n_tokens,
            same_targets=same_targets,
            p=np.array(p),
            **columns,
        )

    @classmethod
    def join(cls, folders: Sequence[Path]) -> tuple[Result, Also]:
        every = [Evidence.read(folder, cls.tally) for folder in folders]
        if len({(one.lengths, str(one.provenance.arguments["classes"])) for one in every}) > 1:
            raise ValueError(
                "merge: got results of different lengths or classes; accepted: the same, other "
                "seeds with n_controls=0, as controls are drawn by the seed"
            )
        return super().join(folders)


join = AblationProbe.join


def _columns(name: str, values: Any) -> dict[str, Any]:
    """NAME, NAME_low and NAME_high of values (prompts, lengths, classes): (classes, lengths)."""
    every: list[list[Estimate]] = [
        [estimate(x) for x in one.T] for one in np.moveaxis(values, -1, 0)
    ]
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {
        f"{name}{end}": np.array([[getattr(x, what) for x in row] for row in every])
        for end, what in ends.items()
    }
