"""Why accuracy falls on larger sets: what predicts it, and which change at test time repairs it.

    result = explain_synthetic("runs/argmax", lengths="16..4096")
    result.repair_frame()       # accuracy with the moments, or the attention, of training
    result.predictor_frame()    # attention on the right item, variance, ... against being right

Every trained network of a run is tested as it is and under changes that need no training. Each
changes one thing about the attention output, from what it is at N items to what it was at the
longest training length L:

    moments      o becomes μ_L + (o − μ_N) σ_L / σ_N by feature: the variance comes back
    strongest    the query attends to the L items with the largest weights alone
    shorter      the query attends to the right item and L − 1 random ones: the attention of a set
                 as large as in training
    shorter, lost moments    the same, with the moments of N put back

Moments come from other sets than the tests. `capture.edits` has the formula, which is that of the
remedy `restore` for pretrained models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmprobe.base.files import as_path
from llmprobe.base.lengths import parse_lengths
from llmprobe.base.machine import without_denormals
from llmprobe.base.moments import Moments
from llmprobe.base.progress import Progress, Report, reporting
from llmprobe.base.ranks import correlate_ranks
from llmprobe.base.seeds import torch_generator
from llmprobe.capture.edits import LengthMoments, restore_moments
from llmprobe.errors import CheckpointError
from llmprobe.results.base import Result
from llmprobe.results.mechanism import CONDITIONS, MARGINS, PREDICTORS, MechanismResult
from llmprobe.results.opening import load_result
from llmprobe.runs.checkpoints import check_same, read_checkpoint, read_facts
from llmprobe.runs.folder import RunFolder, read_training
from llmprobe.runs.jobs import State, run_pieces
from llmprobe.synthetic.pieces import one_as_variant
from llmprobe.synthetic.set_network import SetNetwork
from llmprobe.synthetic.set_plan import SetPlan
from llmprobe.synthetic.set_scores import chunk_size, digest_test_sets, draw_test_sets
from llmprobe.synthetic.set_search_plan import SetSearchPlan
from llmprobe.synthetic.set_tokens import N_CLASSES
from llmprobe.synthetic.settings import plan_of, training_of
from llmprobe.synthetic.tasks import SetTask
from llmprobe.synthetic.training import Training, train

Map = Callable[[Tensor], Tensor]
_NO_DISTRIBUTION = ("differential", "normalized")
_FLOOR = 1e-30
"""Of a weight whose logarithm is taken."""


def explain_synthetic(
    folder: str | Path,
    variants: str | Sequence[str] | None = None,
    *,
    lengths: str | Sequence[int] | None = None,
    sets: int = 256,
    progress: Progress = False,
) -> Result:
    """Test the networks of a finished run on sets under changes of their attention output.

    Returns a `MechanismResult`. Several processes share the networks.

    Args:
        folder: of a `train_synthetic` on a task of sets.
        variants: those of the run, or some of them.
        lengths: sizes of sets; those of the run if None. Sizes up to the longest in training are
            left as they are by every change.
        sets: tests of each network at each length, and as many other sets for the moments.
    """
    place = as_path("folder", folder)
    asked = read_training(place)
    plan = plan_of(asked)
    if not isinstance(plan, SetPlan) or isinstance(plan, SetSearchPlan):
        raise ValueError(f"folder: got {folder}, accepted: a run of train_synthetic on sets")
    given = variants.split(",") if isinstance(variants, str) else variants
    names = plan.variants if given is None else tuple(given)
    for name in names:
        if name not in plan.variants:
            raise ValueError(f"variants: got {name!r}, accepted: {', '.join(plan.variants)}")
        if plan.base.parse(name).get("softmax") in _NO_DISTRIBUTION:
            raise ValueError(
                f"variants: got {name!r}, whose attention weights are no distribution; leave it out"
            )
    if not isinstance(sets, int) or sets < 2:
        raise ValueError(f"sets: got {sets!r}, accepted: 2 or more")
    sizes = plan.lengths if lengths is None else parse_lengths(lengths)
    space = RunFolder(place, asked)
    jobs = list(_jobs(space, names))
    for name in names:
        if missing := set(plan.base.seeds) - {job.seed for job in jobs if name in job.variants}:
            raise CheckpointError(
                f"{space.checkpoints} has no trained {name} of seeds "
                f"{', '.join(map(str, sorted(missing)))}; explain needs the networks of the run"
            )
    with reporting(progress) as report:
        work = _Work(sizes, sets, plan.base.longest, len(jobs), report)
        states = run_pieces(jobs, work.do)
    return _joined(plan, names, sizes, sets, jobs, states)


@dataclass(frozen=True)
class _Job:
    """One network of a run, with the variants that it is tested as."""

    path: Path
    training: Training
    index: int
    variants: tuple[str, ...]

    @property
    def seed(self) -> int:
        return self.training.seeds[self.index]

    @property
    def name(self) -> str:
        return f"{self.path.stem}.{self.seed}"


def _jobs(space: RunFolder, variants: tuple[str, ...]) -> Iterator[_Job]:
    """By the checkpoints that are there: runs that were joined are stacked in other ways."""
    for path in sorted(space.checkpoints.glob("*.safetensors")):
        facts = read_facts(path) or read_checkpoint(path)[1]  # which says what is wrong with it
        if "training" not in facts:  # an evaluation
            continue
        training = training_of(facts["training"])
        for index in range(len(training.seeds)):
            own = tuple(name for name in variants if training.gives(index, name))
            if own and facts["step"] < training.steps:
                raise CheckpointError(f"{path} is not trained to its end; run its command again")
            if own:
                yield _Job(path, training, index, own)


@dataclass
class _Work:
    """What is done with each network."""

    lengths: tuple[int, ...]
    sets: int
    longest: int
    total: int
    report: Report
    done: int = 0

    def do(self, job: _Job) -> State:
        trained = train(job.training, checkpoint=job.path)
        found: State = {}
        for variant in job.variants:
            network = one_as_variant(job.training, trained, variant, job.index)
            numbers = explain_network(network, self.lengths, self.sets, longest=self.longest)
            found |= {f"{variant}/{name}": array for name, array in numbers.items()}
        self.done += 1
        self.report("explain", self.done, self.total, job.name)
        return found


def explain_network(
    network: SetNetwork, lengths: Sequence[int], n_sets: int, *, longest: int
) -> State:
    """One network of one seed: `accuracy` (conditions, lengths), the mean of each predictor
    (lengths,), and `set_correlation` (predictors,), by ranks among the sets of each length."""
    right, values = [], []
    accuracy = np.zeros((len(CONDITIONS), len(lengths)))
    with torch.inference_mode(), without_denormals():
        usual = _moments(network, longest, n_sets, longest)[0]
        for n, length in enumerate(lengths):
            own, own_shorter = _moments(network, length, n_sets, longest)
            hits, seen = _test(network, length, n_sets, longest, (usual, own, own_shorter))
            accuracy[:, n] = hits.mean(axis=1)
            right.append(hits[0])
            values.append(seen)
    x, y = np.stack(values, axis=1), np.stack(right, axis=1)  # (sets, lengths[, predictors])
    rho, _, _ = correlate_ranks(y, x)
    means = dict(zip(PREDICTORS, x.mean(axis=0).T, strict=True))
    return {"accuracy": accuracy, "set_correlation": rho, **means}


Usual = tuple[Tensor, Tensor]
"""Mean and standard deviation of each feature, (width,)."""


def _moments(network: SetNetwork, length: int, n_sets: int, longest: int) -> tuple[Usual, Usual]:
    """Of the attention output at a length, and of that among the right item and random ones."""
    found = Moments(), Moments()
    generator = torch_generator(network.seeds[0], "random items for moments", length)
    for tokens, _ in _chunks(network, length, n_sets, "sets for moments"):
        attended, _, _ = network.attend(tokens)
        found[0].update(attended.double())
        shorter, _, _ = network.attend(_shorter(tokens, network, longest, generator))
        found[1].update(shorter.double())
    return _usual(found[0]), _usual(found[1])


def _usual(moments: Moments) -> Usual:
    found = moments.summary()
    return torch.tensor(found.mean).float(), torch.tensor(np.sqrt(found.variance)).float()


def _test(
    network: SetNetwork, length: int, n_sets: int, longest: int, moments: Sequence[Usual]
) -> tuple[Any, Any]:
    """Right or not under each condition, (conditions, sets), and predictors (sets, predictors)."""
    usual, own, own_shorter = moments
    generator = torch_generator(network.seeds[0], "random items", length)
    hits, seen = [], []
    for tokens, labels in _chunks(network, length, n_sets, "test sets"):
        attended, query, weights = network.attend(tokens)
        outputs = [attended] * len(CONDITIONS)
        if length > longest:
            strongest, _, _ = network.attend(_strongest(tokens, weights, longest))
            shorter, _, _ = network.attend(_shorter(tokens, network, longest, generator))
            outputs = [
                attended,
                _moved(own, usual)(attended),
                strongest,
                shorter,
                _moved(own_shorter, own)(shorter),
            ]
        answers = [network.read(output, query)[0].argmax(dim=1) for output in outputs]
        hits.append(torch.stack([answer == labels for answer in answers]).double())
        seen.append(_predictors(attended, weights, network.task.target(tokens), own[0]))
    return torch.cat(hits, dim=1).numpy(), torch.cat(seen).numpy()


def _moved(current: Usual, wanted: Usual) -> Map:
    """A map of outputs from their own moments to others: `restore`, from "2" items to "1"."""
    mean, std = (torch.stack(pair)[:, None] for pair in zip(wanted, current, strict=True))
    edit = restore_moments({0: LengthMoments((1, 2), mean, std)}, reference=1)

    def move(x: Tensor) -> Tensor:
        heads = x[:, None]
        new = edit(0, heads, torch.full(heads.shape[:-1], 2))
        return heads[:, 0] if new is None else new[:, 0]

    return move


def _predictors(attended: Tensor, weights: Tensor, target: Tensor, mean: Tensor) -> Tensor:
    """Of each set, in the order of `PREDICTORS`: (sets, predictors)."""
    place = target[:, None, None].expand(-1, weights.shape[1], 1)
    on_target = weights.gather(2, place)[..., 0]
    others = weights.scatter(2, place, 0.0).amax(dim=2)
    gap = on_target.clamp(min=_FLOOR).log() - others.clamp(min=_FLOOR).log()
    columns = (
        on_target.mean(dim=1),
        gap.mean(dim=1),
        attended.var(dim=1, correction=0),
        (attended - mean).square().mean(dim=1),
    )
    return torch.stack(columns, dim=1).double()


def _strongest(tokens: Tensor, weights: Tensor, k: int) -> Tensor:
    """The k items with the largest weights, averaged over heads, and the query."""
    kept = weights.mean(dim=1).topk(k, dim=1).indices
    return torch.cat([tokens.gather(1, kept), tokens[:, -1:]], dim=1)


def _shorter(tokens: Tensor, network: SetNetwork, k: int, generator: torch.Generator) -> Tensor:
    """The right item, k − 1 random others, and the query; all items where there are no more."""
    if tokens.shape[1] - 1 <= k:
        return tokens
    keys = torch.rand(len(tokens), tokens.shape[1] - 1, generator=generator)
    keys.scatter_(1, network.task.target(tokens)[:, None], 2.0)
    kept = keys.topk(k, dim=1).indices
    return torch.cat([tokens.gather(1, kept), tokens[:, -1:]], dim=1)


def _chunks(
    network: SetNetwork, length: int, n_sets: int, purpose: str
) -> Iterator[tuple[Tensor, Tensor]]:
    size = chunk_size(torch.device("cpu"), length)
    seed = network.seeds[0]
    for tokens, labels in draw_test_sets(network.task, length, n_sets, seed=seed, purpose=purpose):
        for start in range(0, len(tokens), size):
            yield tokens[start : start + size], labels[start : start + size]


def _joined(
    plan: SetPlan,
    variants: tuple[str, ...],
    lengths: tuple[int, ...],
    n_sets: int,
    jobs: Sequence[_Job],
    states: Sequence[State],
) -> MechanismResult:
    base = plan.base
    order = {seed: index for index, seed in enumerate(base.seeds)}
    shape = (len(variants), len(base.seeds))
    numbers = {name: np.full((*shape, len(lengths)), np.nan) for name in PREDICTORS}
    accuracy = np.full((len(CONDITIONS), *shape, len(lengths)), np.nan)
    correlation = np.full((len(PREDICTORS), *shape), np.nan)
    for job, state in zip(jobs, states, strict=True):
        for v, variant in enumerate(variants):
            if f"{variant}/accuracy" not in state:
                continue
            at = v, order[job.seed]
            accuracy[:, *at] = state[f"{variant}/accuracy"]
            correlation[:, *at] = state[f"{variant}/set_correlation"]
            for name, array in numbers.items():
                array[at] = state[f"{variant}/{name}"]
    measured = {"accuracy": accuracy, "set_correlation": correlation, **numbers}
    return _result(plan, variants, lengths, (n_sets,) * len(lengths), measured)


def join(folders: Sequence[Path]) -> tuple[MechanismResult, Callable[[Path], None]]:
    """Saved results of other networks as one; there is nothing else to be written."""
    results: list[Any] = [load_result(folder) for folder in folders]
    asked = [_alike(result) for result in results]
    for folder, own in zip(folders, asked, strict=True):
        check_same(folder, own, asked[0])
    seeds = [seed for result in results for seed in result.seeds]
    if twice := [seed for seed in dict.fromkeys(seeds) if seeds.count(seed) > 1]:
        raise ValueError(
            f"merge: seed {twice[0]} is in two folders; give results of networks of other seeds"
        )
    order = np.argsort(seeds)
    measured = {}
    for name in ("accuracy", "set_correlation", *PREDICTORS):
        # Correlations are of all lengths together.
        axis = -1 if name == "set_correlation" else -2
        found = np.concatenate([getattr(result, name) for result in results], axis=axis)
        measured[name] = found.take(order, axis=axis)
    first = results[0]
    plan = plan_of(first.provenance.arguments)
    assert isinstance(plan, SetPlan)
    whole = replace(plan, base=replace(plan.base, seeds=tuple(sorted(seeds))))
    joined = _result(whole, first.variants, first.lengths, first.n_sets, measured)
    return joined, lambda folder: None


def _alike(result: Any) -> dict[str, Any]:
    """What results that are joined have to agree in."""
    arguments = {k: v for k, v in result.provenance.arguments.items() if k != "seeds"}
    own = {name: getattr(result, name) for name in ("variants", "lengths", "n_sets", "conditions")}
    return arguments | {f"explained {name}": list(value) for name, value in own.items()}


def _result(
    plan: SetPlan,
    variants: tuple[str, ...],
    lengths: tuple[int, ...],
    n_sets: tuple[int, ...],
    measured: Mapping[str, Any],
) -> MechanismResult:
    base = plan.base
    return MechanismResult(
        provenance=plan.provenance(
            "SetNetwork",
            digest_test_sets(SetTask.named(base.task), lengths, base.seeds),
            torch.device("cpu"),
        ),
        task=base.task,
        variants=variants,
        seeds=base.seeds,
        lengths=lengths,
        train_lengths=(base.shortest, base.longest),
        n_sets=n_sets,
        shared_tests=False,
        margins=MARGINS,
        chance=1 / N_CLASSES,
        schedule=base.schedule,
        steps=base.steps,
        warnings=tuple(_weak(base.seeds)),
        conditions=CONDITIONS,
        **measured,
    )


def _weak(seeds: Sequence[int]) -> Iterator[str]:
    if len(seeds) < 8:
        yield "fewer than 8 seeds decide little; use 16 or more for a claim"
