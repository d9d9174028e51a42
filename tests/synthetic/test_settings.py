"""From arguments, or from a folder, to a plan: what is refused, and what is chosen."""

import dataclasses
import json

import pytest

from llmprobe.errors import CheckpointError
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.settings import plan_of as plan_of_configuration
from llmprobe.synthetic.settings import plan_search, plan_training, training_of
from llmprobe.synthetic.tasks import ArgmaxTask


def plan_of(task="argmax", preset="quick", first_seed=0, **given):
    return plan_training(task, given, preset=preset, first_seed=first_seed)


@pytest.mark.parametrize("preset", ArgmaxTask.presets)
def test_a_plan_is_the_preset_where_nothing_is_given(preset):
    plan = plan_of(preset=preset)
    assert isinstance(plan, SetPlan)
    assert plan.variants == ("baseline", "layernorm")
    assert plan.sets == ArgmaxTask.presets[preset]["sets"]
    assert plan.base.seeds == tuple(range(ArgmaxTask.presets[preset]["seeds"]))
    steps = ArgmaxTask.presets[preset]["steps"]
    expected = SetTraining(seeds=plan.base.seeds, steps=steps, schedule="cosine")
    assert plan.base == expected
    asked = {"seeds": 2, "steps": 7, "warmup": 3, "dropout": 0.2}
    given = plan_of(preset=preset, variants="dropout", lengths=[16], sets=5, **asked)
    assert (given.lengths, given.sets) == ((16,), 5)
    assert given.base == dataclasses.replace(expected, **asked | {"seeds": (0, 1)})


def test_what_a_plan_is_given_is_what_it_has():
    plan = plan_of("dictionary", first_seed=3, seeds=2, train_lengths=(2, 4), variants="ssmax, ema")
    assert plan.base.seeds == (3, 4)
    assert (plan.base.task, plan.base.shortest, plan.base.longest) == ("dictionary", 2, 4)
    assert plan.variants == ("ssmax", "ema")
    assert plan_of(train_lengths="7").base.longest == 7


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": "sorting"}, "task: got 'sorting', accepted: argmax, dictionary"),
        ({"preset": "huge"}, "preset: got 'huge', accepted: quick, desk, paper"),
        ({"vocab": 8}, "vocab: got 8, but it is not for argmax"),
        ({"target": "exact"}, "target: got 'exact', but it is not for argmax"),
        ({"layers": 2}, "layers: got 2, but it is not for argmax"),
        ({"value_size": 2}, "value_size: got 2, but it is not for argmax"),
        ({"seeds": 0}, "seeds: got 0, accepted: 1 or more"),
        ({"sets": 1.5}, "sets: got 1.5, accepted: 1 or more"),
        ({"first_seed": -1}, "first_seed: got -1, accepted: 0 or more"),
        ({"first_seed": 2**63 - 1, "seeds": 2}, "first_seed: got 9223372036854775808, accepted"),
        ({"steps": 10**30}, "steps: got 1000.*, accepted: a whole number, 1 or more, to 1,000,000"),
        ({"width": 10**6}, "width: got 1000000, accepted: a whole number, 1 or more, to 65,536"),
        ({"batch": 1.5}, "batch: got 1.5, accepted: a whole number, 1 or more, to 65,536"),
        ({"task": "othello", "layers": 10**6}, "layers: got 1000000, .* to 1,000"),
        ({"train_lengths": 2**28}, "train_lengths: got 268435456, accepted: .* to 134,217,728"),
        ({"train_lengths": "9..5"}, "train_lengths: got '9..5', accepted"),
        ({"train_lengths": (1, 2, 3)}, "train_lengths: got"),
        ({"variants": "baseline,ssmax+baseline,ssmax"}, "accepted: different ones"),
        ({"variants": []}, "accepted: different ones, at least one"),
        ({"variants": "normalized+adaptive"}, "no softmax whose temperature"),
        ({"dropout": 1.0}, "dropout: got 1.0, accepted"),
        ({"task": "dictionary", "lengths": [2**24]}, "8,388,608 items"),
        ({"task": "dictionary", "train_lengths": (5, 2**24)}, "8,388,608 items"),
    ],
)
def test_what_cannot_be_planned_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        plan_of(**wrong)


@pytest.mark.parametrize(
    ("task", "given", "words"),
    [
        ("argmax", {"dropout": 0.2}, "no variant has dropout"),
        ("argmax", {"context": 20}, "context: got 20, but it is not for argmax"),
        ("othello", {"context": 80}, "no variant has one of learned, randomized"),
        (
            "othello",
            {"context": 59, "variants": "learned,rotary+randomized"},
            r"context: got 59, accepted for rotary\+randomized: the 60 places",
        ),
        ("othello", {"variants": "coupled"}, "coupled needs tokens that belong together"),
        ("addition", {"variants": "nope,coupled"}, "coupled needs tokens that belong together"),
        ("argmax", {"ema_decay": 0.9}, "no variant has ema"),
        ("othello", {"variants": "baseline,mlp"}, "accepted: different ones"),
        ("othello", {"variants": "rotary,baseline"}, "accepted: different ones"),
        ("set-complement", {"variants": "baseline,rotary", "width": 15}, "an even size"),
        ("set-complement", {"vocab": 4, "train_lengths": "1..4"}, "train_lengths: got 4"),
        ("set-complement", {"vocab": 4, "lengths": "4"}, "lengths: got 4"),
    ],
)
def test_what_would_fail_later_or_do_nothing_is_refused_at_once(task, given, words):
    with pytest.raises(ValueError, match=words):
        plan_training(task, given)


def test_a_search_refuses_a_shape_that_only_one_of_its_groups_has():
    with pytest.raises(ValueError, match="an even size"):
        plan_search("othello", 16, {"heads": 16})


def test_default_lengths_fit_a_small_vocabulary_and_a_search_has_a_constant_rate():
    plan = plan_training("set-complement", {"vocab": 3})
    assert (plan.base.longest, plan.base.schedule) == (2, "cosine")
    search = plan_search("set-complement", 4, {})
    assert search.base.schedule == "constant"
    assert len(search.base.seeds) == 4


@pytest.mark.parametrize(
    "plan",
    [
        plan_training("dictionary", {"variants": "ssmax,ema", "seeds": 2}, first_seed=3),
        plan_training("othello", {"lengths": "7,9"}),
        plan_training("addition", {"concatenate": 3}),
        plan_search("set-complement", 3, {"vocab": 6}),
    ],
    ids=lambda plan: type(plan).__name__,
)
def test_a_plan_comes_back_from_its_configuration(plan):
    again = plan_of_configuration(json.loads(json.dumps(plan.configuration())))
    assert type(again) is type(plan)
    assert again.pieces() == plan.pieces()
    assert again.configuration() == plan.configuration()


def test_a_training_of_a_task_that_is_not_known_is_refused():
    facts = dataclasses.asdict(SetTraining()) | {"task": "sorting"}
    with pytest.raises(CheckpointError, match="task: got 'sorting', accepted"):
        training_of(facts)
