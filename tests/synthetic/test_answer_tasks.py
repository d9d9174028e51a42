"""Laws of all tasks with one right answer: a slow solver agrees, and the generator decides."""

import itertools

import pytest
import torch

from llmprobe.synthetic.tasks import TASKS, AnswerTask, SetTask

QUESTIONS = [task() for task in TASKS.values() if issubclass(task, AnswerTask)]
every_task = pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def without_answer(task, row, length):
    """An example whose answer is not there to be seen."""
    hidden = set(range(len(row))[task.answer(length)])
    return [-1 if at in hidden else token for at, token in enumerate(row)]


@every_task
def test_answers_equal_those_of_a_slow_solver(task):
    rng = generator()
    for length in (1, 2, 3, 7, 20, task.longest):
        tokens = task.sample(40 if length <= 20 else 2, length, rng)
        assert tokens.shape[1] == task.size(length)
        assert 0 <= tokens.min() <= tokens.max() < task.vocab == len(task.words)
        for row in tokens.tolist():
            assert task.solve(without_answer(task, row, length)) == row[task.answer(length)]


@every_task
def test_the_generator_alone_decides(task):
    def draw(seed):
        torch.manual_seed(seed)  # must not matter
        rng = generator(5)
        return [task.sample(16, length, rng) for length in (9, 3)]

    for first, second in zip(draw(1), draw(2), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(draw(1)[0], task.sample(16, 9, generator(6)))


@every_task
def test_sizes_grow_evenly_and_tell_the_length(task):
    for length in (1, 2, 5, 50, task.longest):
        answer = task.answer(length)
        assert 0 < answer.start < answer.stop == task.size(length)
        assert task.length_of(torch.zeros(1, task.size(length))) == length


@every_task
def test_what_is_written_can_be_read(task):
    for row in task.sample(5, 4, generator()):
        assert task.read(task.show(row)) == row.tolist()


@every_task
def test_places_are_of_the_length_alone_and_begin_at_one(task):
    for length in (1, 2, 6):
        tokens = task.sample(3, length, generator())
        places = task.couple(tokens)
        if places is None:
            continue
        assert places.shape == tokens.shape
        assert (places == places[0]).all()
        there = places[places > 0]
        assert there.unique().tolist() == list(range(1, int(there.max()) + 1))


@pytest.mark.parametrize(
    "task",
    [task for task in QUESTIONS if task.places(1) is not None],
    ids=lambda task: task.name,
)
def test_each_token_of_an_answer_has_the_place_next_to_the_one_before(task):
    """So what a token needs is always as many places away."""
    for length in (1, 2, 6):
        places, answer = task.places(length), task.answer(length)
        path = places[answer.start - 1 : answer.stop - 1]  # the last token may have none
        steps = {abs(b - a) for a, b in itertools.pairwise(path)}
        # A hint has the place of its digit.
        assert steps <= ({0, 1} if task.name == "addition-hints" else {1})


@every_task
def test_lengths_are_tested_on_both_sides_of_training(task):
    lengths = task.tested(10, 15)
    assert lengths == sorted(set(lengths))
    assert {1, 5, 9, 10, 15, 16, 30, 60} <= set(lengths)
    assert max(task.tested(1, task.longest)) == task.longest


@every_task
def test_answers_depend_on_the_question(task):
    """None is right for most examples, except of one bit."""
    answers = task.sample(400, 8, generator())[:, task.answer(8)]
    _, counts = answers.unique(dim=0, return_counts=True)
    assert counts.max() < 0.75 * 400


def test_a_set_is_no_question():
    with pytest.raises(ValueError, match=r"^task: got 'argmax', accepted: addition, "):
        AnswerTask.named("argmax")
    with pytest.raises(ValueError, match=r"^task: got 'copy', accepted: argmax, dictionary"):
        SetTask.named("copy")
    with pytest.raises(ValueError, match=r"^vocab: got 8, but the tokens of copy are given"):
        AnswerTask.named("copy", 8)
