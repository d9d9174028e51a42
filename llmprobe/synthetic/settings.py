"""The settings of a training: from the arguments of a call, or from a run's folder, to its plan.

plan = plan_training("argmax", {"steps": 100}, preset="quick", first_seed=0)
plan = plan_search("othello", 64, {}, preset="quick", first_seed=0)
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from llmprobe.base.lengths import LONGEST, parse_lengths
from llmprobe.base.seeds import check_seed
from llmprobe.errors import CheckpointError
from llmprobe.synthetic.answer_plan import AnswerPlan, AnswerTraining
from llmprobe.synthetic.decoder_plan import DecoderPlan, DecoderTraining
from llmprobe.synthetic.plan import TESTS, Plan
from llmprobe.synthetic.search_plan import SearchPlan
from llmprobe.synthetic.set_network import PARTS
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.set_search_plan import COMPARED, STEPS, TIMES, SetSearchPlan
from llmprobe.synthetic.tasks import TASKS, AnswerTask, SequenceTask, SetTask, Task
from llmprobe.synthetic.training import Training
from llmprobe.synthetic.variants import BASELINE, parse_variant

_TESTS = ("variants", "lengths", "sets", "score_at")
"""What a plan has besides its training."""
_TRAININGS: dict[type[Task], type[Training]] = {
    SetTask: SetTraining,
    SequenceTask: DecoderTraining,
    AnswerTask: AnswerTraining,
}
_PLANS: dict[type[Training], type[Plan]] = {
    SetTraining: SetPlan,
    DecoderTraining: DecoderPlan,
    AnswerTraining: AnswerPlan,
}
_SEARCHES: dict[type[Training], type[Plan]] = {
    SetTraining: SetSearchPlan,
    DecoderTraining: SearchPlan,
}
_DRAWN_PLACES = {"residual", "projection"}
"""Parts that a search over sets draws."""
_WITH_CONTEXT = ("learned", "randomized", "coupled", "predicted", "calibrated")
_MOST = 1_000_000
"""Seeds or sets: nobody wants more."""


def plan_training(
    task: str, given: Mapping[str, Any], *, preset: str = "quick", first_seed: int = 0
) -> Plan:
    """The plan of `train_synthetic`; `given` are the arguments that the caller gave."""
    plan = _plan(task, _chosen(task, given, preset), first_seed)
    trainings = [piece.training for piece in plan.pieces()]
    used = {part for training in trainings for part in training.parse(training.variant).values()}
    if "dropout" in given and "dropout" not in used:
        raise ValueError(f"dropout: got {given['dropout']}, but no variant has dropout; name one")
    if "ema_decay" in given and "ema" not in {plan.average_of(name) for name in plan.variants}:
        raise ValueError(f"ema_decay: got {given['ema_decay']}, but no variant has ema; name one")
    if "context" in given and not used & {*_WITH_CONTEXT}:
        raise ValueError(
            f"context: got {given['context']}, but no variant has one of "
            f"{', '.join(_WITH_CONTEXT)}; name one"
        )
    return plan


def plan_search(
    task: str, n: int, given: Mapping[str, Any], *, preset: str = "quick", first_seed: int = 0
) -> SearchPlan | SetSearchPlan:
    """The plan of `search_synthetic`; `given` are the arguments that the caller gave."""
    _check_count("n", n)
    searched = Task.named(task, given.get("vocab"))
    if isinstance(searched, SetTask):
        return _plan_set_search(searched, n, given, preset=preset, first_seed=first_seed)
    if not isinstance(searched, SequenceTask):
        known = (name for name, kind in TASKS.items() if issubclass(kind, SetTask | SequenceTask))
        raise ValueError(f"task: got {task!r}, accepted for a search: {', '.join(known)}")
    # A learning rate that falls to 0 would leave no noise for an average to remove.
    own = {"schedule": "constant", "variants": searched.searched, "seeds": n}
    chosen = _chosen(task, own | dict(given), preset)
    found = _plan(task, chosen, first_seed)
    places = {place for name in found.variants for place in found.base.parse(name)}
    if len(found.variants) > 1 or places & {"dropout", "weights"}:
        raise ValueError(
            f"variant: got {', '.join(found.variants)!r}, accepted: one network; dropout, ema and "
            "bema are what a search compares"
        )
    assert isinstance(found.base, DecoderTraining)
    plan = SearchPlan(found.variants, found.base, found.lengths, found.sets)
    plan.pieces()  # refuses a shape that only one of its groups has, before any is trained
    return plan


def _plan_set_search(
    task: SetTask, n: int, given: Mapping[str, Any], *, preset: str, first_seed: int
) -> SetSearchPlan:
    """The same for tasks of sets, where `variants` are the parts that are compared."""
    for name in ("train_lengths", "heads", "weight_decay", "schedule"):
        if name in given:
            raise ValueError(
                f"{name}: got {given[name]!r}, but it is drawn by the search; leave it out"
            )
    own = {"variants": COMPARED, "lengths": TIMES, "seeds": n, "steps": STEPS.get(preset)}
    chosen = _chosen(task.name, own | dict(given), preset)
    parts = _names(chosen["variants"])
    places = [parse_variant(part, PARTS) for part in parts]
    if len(set(parts)) < len(parts) or not all(places) or _DRAWN_PLACES & set().union(*places):
        raise ValueError(
            f"variant: got {', '.join(parts)!r}, accepted: different parts to compare with none, "
            f"such as {COMPARED}; residual and outproj are drawn by the search"
        )
    found = _plan(task.name, chosen | {"variants": BASELINE}, first_seed)
    assert isinstance(found.base, SetTraining)
    plan = SetSearchPlan(parts, found.base, found.lengths, found.sets)
    task.check(max(plan.lengths) * max(setting.longest for setting in plan.settings()))
    plan.pieces()  # refuses a training that only one of the settings has, before any is trained
    return plan


def plan_of(configuration: Mapping[str, Any]) -> Plan:
    """The plan that a run's configuration is of."""
    if configuration.get("tests") != TESTS:
        raise CheckpointError(
            "a training of an older version, whose seeds share their tests; train it again"
        )
    try:
        names = _fields_of(_training_class(configuration["task"]))
        base = training_of({name: x for name, x in configuration.items() if name in names})
        variants, lengths, sets = (configuration[name] for name in _TESTS[:3])
        tests = (tuple(lengths), sets, tuple(configuration.get("score_at", ())))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"a training of another version: {error!r}") from None
    kinds = _SEARCHES if "search" in configuration else _PLANS
    return kinds[type(base)](tuple(variants), base, *tests)


def training_of(facts: Mapping[str, Any]) -> Training:
    """The training that a checkpoint is of."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
    try:
        return _training_class(given["task"])(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint of another version: {error}") from None


def _training_class(task: str) -> type[Training]:
    found = type(Task.named(task))
    return next(training for kind, training in _TRAININGS.items() if issubclass(found, kind))


def _fields_of(training: type[Training]) -> set[str]:
    return {field.name for field in fields(training)}


def _chosen(task: str, given: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """All settings: the given ones, those of the preset, those of the task, in this order."""
    known = {*_fields_of(_training_class(task)), *_TESTS, "train_lengths"}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{name}: got {value!r}, but it is not for {task}; leave it out")
    of_task = Task.named(task, given.get("vocab"))
    if preset not in of_task.presets:
        raise ValueError(f"preset: got {preset!r}, accepted: {', '.join(of_task.presets)}")
    chosen = {"schedule": "cosine", **of_task.defaults, **of_task.presets[preset], **given}
    if isinstance(of_task, SequenceTask):  # one forward gives all lengths
        chosen.setdefault("lengths", range(1, of_task.longest + 1))
    if "warmup" not in given:  # a short run has no room for all of it
        chosen["warmup"] = min(chosen.get("warmup", 0), int(chosen["steps"]) // 10)
    for name in ("seeds", "sets"):
        _check_count(name, chosen[name])
    if chosen.get("dropout") == 0:
        raise ValueError(
            "dropout: got 0, accepted: more than 0; variants without the part have none"
        )
    shortest, longest = _train_lengths(chosen.pop("train_lengths"))
    if "train_lengths" not in given:
        longest = min(longest, of_task.longest)
    if isinstance(of_task, AnswerTask):
        chosen.setdefault("lengths", of_task.tested(shortest, longest))
    return chosen | {"shortest": shortest, "longest": longest}


def _plan(task: str, chosen: dict[str, Any], first_seed: int) -> Plan:
    """Every training is made, which refuses what it cannot be, before any is begun."""
    n = chosen["seeds"]
    for seed in (first_seed, first_seed + n - 1):
        check_seed(seed, "first_seed")
    chosen["seeds"] = tuple(range(first_seed, first_seed + n))
    names, lengths, sets, score_at = (chosen.pop(name, ()) for name in _TESTS)
    lengths = parse_lengths(lengths)
    Task.named(task, chosen.get("vocab")).check(lengths[-1])
    base = _training_class(task)(task=task, **chosen)
    kind = _PLANS[type(base)]
    if score_at and kind is not SetPlan:
        raise ValueError(f"score_at: got {score_at!r}, but it is not for {task}; leave it out")
    return kind(_variants(names, base), base, lengths, sets, _steps(score_at))


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or not 1 <= value <= _MOST:
        raise ValueError(f"{name}: got {value!r}, accepted: 1 or more, to {_MOST:,}")


def _variants(variants: str | Sequence[str], training: Training) -> tuple[str, ...]:
    names = _names(variants)
    parsed = [tuple(sorted(training.parse(name).items())) for name in names]
    if not names or len(set(parsed)) < len(parsed):
        raise ValueError(
            f"variants: got {', '.join(names)!r}, accepted: different ones, at least one"
        )
    return names


def _steps(given: str | Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(int(step) for step in (given.split(",") if isinstance(given, str) else given))
    except (TypeError, ValueError):
        raise ValueError(f"score_at: got {given!r}, accepted: steps such as 1000,3000") from None


def _names(variants: str | Sequence[str]) -> tuple[str, ...]:
    given = variants.split(",") if isinstance(variants, str) else variants
    return tuple(str(name).strip() for name in given)


def _train_lengths(text: str | int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(text, int):
        bounds = (text, text)
    elif isinstance(text, str):
        match = re.fullmatch(r"(\d{1,99})(?:\.\.(\d{1,99}))?", text.replace(" ", ""))
        bounds = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    else:
        bounds = (int(text[0]), int(text[-1])) if len(text) == 2 else (0, 0)
    if not 1 <= bounds[0] <= bounds[1] <= LONGEST:
        raise ValueError(
            f"train_lengths: got {text!r}, accepted: 5..16 (from 1, to {LONGEST:,}), or one length"
        )
    return bounds
