"""One registry of tasks, and all that is a task's own is in its class."""

import doctest
import inspect

import numpy as np
import pytest
import torch

from llmprobe import search_synthetic, train_synthetic
from llmprobe.synthetic import tasks
from llmprobe.synthetic.set_tokens import N_CLASSES
from llmprobe.synthetic.settings import plan_search, plan_training
from llmprobe.synthetic.tasks import (
    TASKS,
    AnswerTask,
    ArgmaxTask,
    ComplementTask,
    SequenceTask,
    SetTask,
    Task,
)

KINDS = (SetTask, SequenceTask, AnswerTask)
SMALL = {"seeds": 1, "steps": 3, "sets": 8, "width": 8}


def test_the_examples_in_the_manual_hold():
    results = doctest.testmod(tasks)
    assert results.failed == 0
    assert results.attempted >= 6


def test_tasks_are_found_by_name_and_kind():
    assert list(TASKS)[:4] == ["argmax", "dictionary", "set-complement", "othello"]
    for name, task in TASKS.items():
        assert task.name == name
        assert type(Task.named(name)) is task
        (kind,) = (kind for kind in KINDS if issubclass(task, kind))
        assert type(kind.named(name)) is task
        assert task.kind == kind.kind
        for other in set(KINDS) - {kind}:
            with pytest.raises(ValueError, match=f"^task: got '{name}', accepted: "):
                other.named(name)
    with pytest.raises(ValueError, match=r"^task: got 'chess', accepted: argmax, .*, unshift$"):
        Task.named("chess")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_describes_itself_and_refuses_lengths_it_does_not_have(name):
    task = Task.named(name)
    assert (inspect.getdoc(task) or "").splitlines()[0].strip()
    task.check(1)
    task.check(task.longest)
    for length in (0, -1, task.longest + 1):
        with pytest.raises(ValueError, match=f"^here: got {length}, accepted for {name}: 1 to "):
            task.check(length, "here")


@pytest.mark.parametrize("name", TASKS)
def test_every_preset_is_a_plan(name):
    assert list(TASKS[name].presets) == ["quick", "desk", "paper"]
    for preset, chosen in TASKS[name].presets.items():
        plan = plan_training(name, {}, preset=preset)
        assert (len(plan.base.seeds), plan.base.steps, plan.sets) == (
            *(chosen["seeds"], chosen["steps"]),
            chosen["sets"],
        )
        for key, value in (TASKS[name].defaults | chosen).items():
            if key == "warmup":  # at most a tenth of the steps
                assert plan.base.warmup == min(value, plan.base.steps // 10)
            elif key not in ("seeds", "variants", "train_lengths", "lengths", "sets"):
                assert getattr(plan.base, key) == value
        if issubclass(TASKS[name], SequenceTask):
            search = plan_search(name, 2, {}, preset=preset)
            assert search.variants == (TASKS[name].searched,)


@pytest.mark.parametrize("task", [ArgmaxTask, TASKS["othello"]])
def test_a_vocabulary_is_refused_where_the_tokens_are_given(task):
    with pytest.raises(ValueError, match=f"^vocab: got 8, but the tokens of {task.name} are given"):
        Task.named(task.name, 8)
    assert ComplementTask().vocab == ComplementTask.defaults["vocab"]


@pytest.fixture
def registry(monkeypatch):
    """The registry, put back afterwards."""
    monkeypatch.setattr(tasks, "TASKS", dict(TASKS))


@pytest.mark.usefixtures("registry")
def test_a_set_task_takes_one_class():
    class ArgminTask(ArgmaxTask):
        """Which class has the item of the lowest priority?"""

        name = "argmin"

        def solve(self, tokens):
            return tokens[:, :-1].amin(dim=1) % N_CLASSES

    result = train_synthetic("argmin", lengths="16", **SMALL)
    assert (result.kind, result.task) == ("synthetic", "argmin")
    assert result.accuracy.shape == (2, 1, 1)


@pytest.mark.usefixtures("registry")
def test_a_question_takes_one_class():
    class LastTask(AnswerTask):
        """Which number came last?"""

        name = "last"
        unit, longest, words = "numbers", 9, ("0", "1", "?")

        def sample(self, n, length, generator):
            numbers = torch.randint(2, (n, length), generator=generator)
            return torch.cat([numbers, torch.full((n, 1), 2), numbers[:, -1:]], dim=1)

        def answer(self, length):
            return slice(length + 1, length + 2)

        def solve(self, tokens):
            return [tokens[-3]]

    result = train_synthetic("last", train_lengths="2..3", **SMALL)
    assert (result.kind, result.task, result.unit) == ("answers", "last", "numbers")
    assert result.lengths == (1, 2, 3, 4, 6, 7, 9)
    assert np.isfinite(result.exact).all()


@pytest.mark.usefixtures("registry")
def test_a_sequence_task_takes_one_class():
    class CountingTask(SequenceTask):
        """Which number comes next? Those above the last one, up to the end."""

        name = "counting"
        vocab, longest = 8, 3

        def sample(self, n, length, generator):
            step = torch.randint(1, 3, (n, 1), generator=generator)
            return step * torch.arange(length + 1)

        def allowed(self, tokens):
            return torch.arange(self.vocab) > tokens[:, :-1, None]

    result = train_synthetic("counting", **SMALL)
    assert (result.kind, result.task) == ("legality", "counting")
    assert result.lengths == (1, 2, 3)
    assert np.isfinite(result.kl).all()
    found = search_synthetic("counting", 2, steps=3, sets=8)
    assert found.kind == "search"
