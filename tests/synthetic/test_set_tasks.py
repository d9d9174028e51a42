"""The answer of a set is where a slow solver finds it, and nothing else gives it away."""

import pytest
import torch
from scipy.stats import chisquare

from llmprobe.synthetic import tasks
from llmprobe.synthetic.set_tokens import N_BITS, N_CLASSES, VOCAB_SIZE
from llmprobe.synthetic.tasks import TASKS, DictionaryTask, SetTask

SETS = [task() for task in TASKS.values() if issubclass(task, SetTask)]
every_task = pytest.mark.parametrize("task", SETS, ids=lambda task: task.name)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def place(name, tokens):
    """Where the answer of one set stands, by pure Python."""
    numbers = [token // 10 for token in tokens]
    *numbers, asked = numbers
    if name == "argmax":
        # Two items of the same priority are told apart by their class.
        return max(range(len(numbers)), key=lambda i: (numbers[i], tokens[i] % 10))
    assert numbers.count(asked) == 1
    return numbers.index(asked)


@every_task
def test_labels_equal_those_of_a_slow_solver(task):
    rng = generator()
    for length in range(1, 201):
        tokens, labels = task.sample(6, length, rng)
        assert tokens.shape == (6, length + 1)
        assert labels.shape == (6,)
        assert tokens.min() >= 0
        assert tokens.max() < VOCAB_SIZE
        slow = [row[place(task.name, row)] % 10 for row in tokens.tolist()]
        assert labels.tolist() == slow
        assert task.solve(tokens).tolist() == slow


@every_task
def test_an_oracle_that_sees_what_a_network_sees_is_always_right(task):
    tokens, labels = task.sample(200, 50, generator())
    items, query = task.items(tokens[:, :-1]), task.query(tokens[:, -1])
    described, classes = items.split([task.item_size - N_CLASSES, N_CLASSES], dim=-1)
    score = described[..., 0] if task.name == "argmax" else (described @ query[..., None])[..., 0]
    best = score.argmax(dim=1)
    assert torch.equal(classes[torch.arange(200), best].argmax(dim=-1), labels)


@every_task
def test_items_and_queries_mean_the_digits_of_their_tokens(task):
    tokens, _ = task.sample(3, 7, generator())
    items, query = task.items(tokens[:, :-1]), task.query(tokens[:, -1:])
    assert items.shape == (3, 7, task.item_size)
    assert query.shape == (3, 1, task.query_size)
    for row, described, asked in zip(tokens.tolist(), items, query[:, 0], strict=True):
        for token, numbers in zip(row, [*described, asked], strict=True):
            number, kind = divmod(token, 10)
            if task.name == "argmax":
                expected = [number / 2**24]
            else:
                expected = [(1 if number >> bit & 1 else -1) / 24**0.5 for bit in range(24)]
            one_hot = [float(kind == k) for k in range(10)] if numbers is not asked else []
            torch.testing.assert_close(numbers, torch.tensor(expected + one_hot))


@every_task
def test_the_query_tells_no_class(task):
    tokens, _ = task.sample(5, 4, generator())
    other = tokens // N_CLASSES * N_CLASSES + 3
    assert torch.equal(task.query(tokens[:, -1]), task.query(other[:, -1]))


@every_task
def test_the_generator_alone_decides(task):
    def draw(seed):
        torch.manual_seed(seed)  # must not matter
        rng = generator(5)
        return [task.sample(4, length, rng)[0] for length in (3, 9)]

    for first, second in zip(draw(1), draw(2), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(draw(1)[0], task.sample(4, 3, generator(6))[0])


@every_task
def test_classes_and_places_of_the_answer_are_uniform(task):
    tokens, labels = task.sample(4000, 8, generator())
    places = torch.tensor([place(task.name, row) for row in tokens.tolist()])
    kinds = tokens[:, :-1].flatten() % N_CLASSES
    assert chisquare(labels.bincount(minlength=10)).pvalue > 1e-3
    assert chisquare(places.bincount(minlength=8)).pvalue > 1e-3
    assert chisquare(kinds.bincount(minlength=10)).pvalue > 1e-3
    # The class says nothing about the place.
    both = (places * 10 + labels).bincount(minlength=80)
    assert chisquare(both).pvalue > 1e-3


def test_numbers_are_uniform_over_all_their_bits():
    for task in SETS:
        numbers = task.sample(500, 40, generator())[0] // N_CLASSES
        for shift in (0, N_BITS - 4):
            digit = (numbers >> shift & 15).flatten()
            assert chisquare(digit.bincount(minlength=16)).pvalue > 1e-3


def test_keys_that_occur_twice_are_drawn_again(monkeypatch):
    monkeypatch.setattr(tasks, "N_BITS", 4)
    task, rng = DictionaryTask(), generator()
    for length in range(1, 17):
        tokens, labels = task.sample(30, length, rng)
        for row, label in zip(tokens.tolist(), labels.tolist(), strict=True):
            assert len({token // 10 for token in row[:-1]}) == length
            assert row[place("dictionary", row)] % 10 == label
    tokens, _ = task.sample(2000, 3, rng)
    keys = tokens[:, :-1] // N_CLASSES
    for column in keys.unbind(dim=1):  # the later ones too
        assert chisquare(column.bincount(minlength=16)).pvalue > 1e-3
