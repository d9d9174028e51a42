"""The lab: train small networks on a task, many seeds of each, and measure them by length.

    result = train_synthetic("argmax", ["baseline", "layernorm"], seeds=8)
    result = train_synthetic("othello", preset="desk")
    result = train_synthetic("set-complement", search=64)
    result.plot()

With an output folder every finished piece is kept, and the same call goes on where it stopped.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from llmprobe.base.files import as_path
from llmprobe.base.lengths import LONGEST, parse_lengths
from llmprobe.base.machine import resolve_device
from llmprobe.base.seeds import check_seed
from llmprobe.errors import CheckpointError
from llmprobe.results.base import Result
from llmprobe.runs.checkpoints import read_checkpoint
from llmprobe.runs.folder import read_training
from llmprobe.synthetic import decoder_plan as choices
from llmprobe.synthetic import set_plan as set_tasks
from llmprobe.synthetic.decoder_plan import ChoicePlan, ChoiceTraining
from llmprobe.synthetic.plan import Plan
from llmprobe.synthetic.runs import Watch, as_variant, run_plan
from llmprobe.synthetic.search_plan import SearchPlan
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.tasks import CHOICES, find_choice, find_task
from llmprobe.synthetic.training import Training, train

_SEARCHED = {"set-complement": "mlp+prenorm", "othello": "baseline"}
"""Networks of which a search has the settings, where none is named."""
_OTHERS = {"task", "preset", "search", "first_seed", "device", "output", "overwrite", "watch"}
"""Arguments that are no setting of a training or a test."""
_MOST = 1_000_000
"""Seeds or sets: more are a slip of the hand."""


def train_synthetic(
    task: str = "argmax",
    variants: str | Sequence[str] | None = None,
    *,
    preset: str = "quick",
    search: int | None = None,
    seeds: int | None = None,
    first_seed: int = 0,
    steps: int | None = None,
    train_lengths: str | tuple[int, int] | None = None,
    lengths: str | Sequence[int] | None = None,
    sets: int | None = None,
    vocab: int | None = None,
    target: str | None = None,
    width: int | None = None,
    heads: int | None = None,
    layers: int | None = None,
    value_size: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    clip: float = 1.0,
    schedule: str | None = None,
    warmup: int | None = None,
    dropout: float | None = None,
    ema_decay: float | None = None,
    device: str | torch.device = "auto",
    output: str | Path | None = None,
    overwrite: bool = False,
    watch: Watch = lambda what, done, total, note: None,
) -> Result:
    """Train `variants` on a task and measure them at many lengths.

    Gives a `SyntheticResult` for argmax and dictionary, a `LegalityResult` for set-complement and
    othello, a `SearchResult` with `search`. What is None is the task's own, or its `preset`'s
    (quick, desk, paper).

    `variants`: `baseline` and parts joined by a plus (`layernorm+ssmax`); the first one is what the
    others are compared with. `train_lengths`: shortest and longest in training. `sets`: tests at
    each length. `search`: so many draws of learning rate, dropout, EMA, width and depth, one for
    each seed, in pairs with and without dropout; `variants` is then one network. For set-complement
    and othello alone: `target` (sampled: the loss is taken against the token that came; exact:
    against all that are allowed), `layers`, `value_size` of a head, and `vocab` of set-complement.
    With an `output` folder the run is kept there piece by piece, and the same call goes on where it
    was stopped. `watch` is told what is under way, how much of it is done, of how much, and a note.
    """
    arguments = dict(locals())
    given = {k: v for k, v in arguments.items() if k not in _OTHERS and v is not None}
    plan = make_plan(task, given, preset=preset, search=search, first_seed=first_seed)
    folder = None if output is None else as_path("output", output)
    return run_plan(plan, resolve_device(device), folder, overwrite=overwrite, watch=watch)


def make_plan(
    task: str, given: Mapping[str, Any], *, preset: str, search: int | None, first_seed: int
) -> Plan:
    """What a call asks for; `given` are the arguments that were."""
    several = task in CHOICES
    if not several:
        find_task(task)  # refuses an unknown name
        of_others = ("vocab", "target", "layers", "value_size")
        _refuse(given, of_others, f"is not for {task}; leave it out")
        if search is not None:
            raise ValueError(f"search: got {search} for {task}, accepted for: {', '.join(CHOICES)}")
    presets = choices.PRESETS[task] if several else set_tasks.PRESETS
    defaults = choices.DEFAULTS[task] if several else set_tasks.DEFAULTS
    if preset not in presets:
        raise ValueError(f"preset: got {preset!r}, accepted: {', '.join(presets)}")
    chosen = {"schedule": "cosine", **defaults, **presets[preset], **given}
    if "warmup" not in given:  # a short run has no room for the whole of it
        chosen["warmup"] = min(chosen.get("warmup", 0), int(chosen["steps"]) // 10)
    if search is not None:
        drawn = ("seeds", "width", "layers", "learning_rate", "dropout", "ema_decay")
        _refuse(given, drawn, "is drawn by the search; leave it out")
        # A rate that falls to nothing would leave no noise for an average to take away.
        chosen |= {"schedule": "constant", "variants": _SEARCHED[task], "seeds": search, **given}
    for name in ("seeds", "sets"):
        if not isinstance(chosen[name], int) or not 1 <= chosen[name] <= _MOST:
            named = "search" if search is not None and name == "seeds" else name
            raise ValueError(f"{named}: got {chosen[name]!r}, accepted: 1 or more, to {_MOST:,}")
    if chosen.get("dropout") == 0:
        raise ValueError(
            "dropout: got 0, accepted: more than 0; variants without the part have none"
        )
    for seed in (first_seed, first_seed + chosen["seeds"] - 1):
        check_seed(seed, "first_seed")
    chosen["seeds"] = tuple(range(first_seed, first_seed + chosen["seeds"]))
    shortest, longest = _train_lengths(chosen.pop("train_lengths"))
    if several and "train_lengths" not in given:
        longest = min(longest, find_choice(task, chosen.get("vocab")).longest)
    chosen |= {"shortest": shortest, "longest": longest}
    plan = _choice_plan(task, chosen, search) if several else _set_plan(task, chosen)
    # Every training is made, which refuses what it cannot be, before any is begun.
    trainings = [piece.training for piece in plan.pieces()]
    used = {place for training in trainings for place in training.parse(training.variant)}
    if "dropout" in given and "dropout" not in used:
        raise ValueError(f"dropout: got {given['dropout']}, but no variant has dropout; name one")
    if "ema_decay" in given and "ema" not in {plan.average_of(name) for name in plan.variants}:
        raise ValueError(f"ema_decay: got {given['ema_decay']}, but no variant has ema; name one")
    return plan


def _set_plan(task: str, chosen: dict[str, Any]) -> Plan:
    names, lengths, sets = (chosen.pop(name) for name in ("variants", "lengths", "sets"))
    lengths = parse_lengths(lengths)
    base = SetTraining(task=task, **chosen)
    find_task(task).check(base.longest, "train_lengths")
    find_task(task).check(lengths[-1])
    return SetPlan(_variants(names, base), base, lengths, sets)


def _choice_plan(task: str, chosen: dict[str, Any], search: int | None) -> Plan:
    names, sets = chosen.pop("variants"), chosen.pop("sets")
    choice = find_choice(task, chosen.get("vocab"))
    asked = chosen.pop("lengths", None)
    lengths = tuple(range(1, choice.longest + 1)) if asked is None else parse_lengths(asked)
    choice.check(lengths[-1], "lengths")
    base = ChoiceTraining(task=task, **chosen)
    names = _variants(names, base)
    if search is None:
        return ChoicePlan(names, base, lengths, sets)
    places = {place for name in names for place in base.parse(name)}
    if len(names) > 1 or places & {"dropout", "weights"}:
        raise ValueError(
            f"variants: got {', '.join(names)!r}, accepted with search: one network; dropout, ema "
            "and bema are what it compares"
        )
    return SearchPlan(names, base, lengths, sets)


def _refuse(given: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    for name in names:
        if name in given:
            raise ValueError(f"{name}: got {given[name]!r}, but it {why}")


def load_synthetic(
    folder: str | Path, variant: str | None = None, *, seed: int | None = None
) -> torch.nn.Module:
    """A trained network from a run's folder, ready to be probed.

    The run's first variant and the first seed, if not told.
    """
    folder = as_path("folder", folder)
    checkpoints = folder / "checkpoints"
    name = read_training(folder)["variants"][0] if variant is None else variant
    found: list[int] = []
    for path in sorted(checkpoints.glob("*.safetensors"), key=_first_seed):
        _, facts = read_checkpoint(path)
        if "training" not in facts:  # an evaluation
            continue
        training = training_of(facts["training"])
        known = [s for i, s in enumerate(training.seeds) if training.gives(i, name)]
        found += known
        wanted = next(iter(known), None) if seed is None else seed
        if wanted not in known:
            continue
        if facts["step"] < training.steps:
            raise CheckpointError(f"{path} is not trained to its end; run its command again")
        stack = as_variant(training, train(training, checkpoint=path), name)
        index = next(
            i for i, s in enumerate(training.seeds) if s == wanted and training.gives(i, name)
        )
        return stack.member(index).eval()
    if found:
        raise CheckpointError(f"{checkpoints} has no seed {seed} of {name}; it has {found}")
    raise CheckpointError(f"{checkpoints} has no trained {name}")


def training_of(facts: Mapping[str, Any]) -> Training:
    """The training that a checkpoint is of."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
    try:
        kind = ChoiceTraining if given["task"] in CHOICES else SetTraining
        return kind(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint of another version: {error}") from None


def _first_seed(path: Path) -> tuple[int, str]:
    match = re.search(r"\.(\d+)-\d+\.", path.name)
    return (int(match[1]) if match else -1, path.name)


def _variants(variants: str | Sequence[str], training: Training) -> tuple[str, ...]:
    given = variants.split(",") if isinstance(variants, str) else variants
    names = tuple(str(name).strip() for name in given)
    parsed = [tuple(sorted(training.parse(name).items())) for name in names]
    if not names or len(set(parsed)) < len(parsed):
        raise ValueError(
            f"variants: got {', '.join(names)!r}, accepted: different ones, at least one"
        )
    return names


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
