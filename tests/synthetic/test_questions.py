"""Parity, majority and recall: what counts, and what does not."""

import doctest

import pytest
import torch

from llmprobe.synthetic import questions
from llmprobe.synthetic.tasks import TASKS, AnswerTask

SPARSE = [name for name in TASKS if name.startswith("sparse-parity")]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_examples_in_the_manual_hold():
    results = doctest.testmod(questions)
    assert results.failed == 0
    assert results.attempted >= 10


@pytest.mark.parametrize("name", ["parity", "majority", *SPARSE])
def test_both_answers_are_about_equally_frequent(name):
    task = AnswerTask.named(name)
    for length in (9, 25):
        labels = task.sample(2000, length, generator())[:, -1]
        assert 0.45 < labels.float().mean() < 0.55


@pytest.mark.parametrize("name", SPARSE)
def test_k_bits_are_marked_and_the_others_do_not_matter(name):
    task = AnswerTask.named(name)
    k = int(name.removeprefix("sparse-parity").lstrip("-") or 4)
    tokens = task.sample(200, 20, generator())
    marked = tokens[:, :20] >= task.MARKED
    assert (marked.sum(dim=1) == k).all()
    assert (marked.float().mean(dim=0) > 0).all()  # anywhere
    flipped = torch.where(marked, tokens[:, :20], 1 - tokens[:, :20])
    for row, answer in zip(flipped.tolist(), tokens[:, -1].tolist(), strict=True):
        assert task.solve([*row, task.words.index("=")]) == [answer]
    assert (task.sample(5, 2, generator())[:, :2] >= task.MARKED).all()


def test_every_step_of_a_parity_is_the_parity_so_far():
    one, steps = (AnswerTask.named(name) for name in ("parity", "parity-steps"))
    tokens = steps.sample(20, 7, generator())
    for row in tokens.tolist():
        for end in range(1, 8):
            assert row[7 + end] == one.solve([*row[:end], questions.EQUALS])[0]


def test_every_key_is_asked_for_once_in_another_order():
    task = AnswerTask.named("recall")
    tokens = task.sample(200, 12, generator())
    keys, asked = tokens[:, :24:2], tokens[:, 24::2]
    assert torch.equal(keys.sort(dim=1).values, asked.sort(dim=1).values)
    assert all(len(set(row)) == 12 for row in keys.tolist())
    assert (keys >= task.N_VALUES).all()
    assert (tokens[:, 1::2] < task.N_VALUES).all()
    assert not (keys == asked).all(dim=1).any()
