"""Sums are right, formats are what they say, and equal significance shares a place."""

import doctest
from collections import Counter

import pytest
import torch

from llmprobe.synthetic import arithmetic
from llmprobe.synthetic.arithmetic import END, add_digits, draw_numbers
from llmprobe.synthetic.tasks import AnswerTask

FORMATS = ("addition", "addition-reversed", "addition-hints", "addition-padded")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_examples_in_the_manual_hold():
    results = doctest.testmod(arithmetic)
    assert results.failed == 0
    assert results.attempted >= 10


def test_digits_are_added_as_pythons_integers_are():
    a, b = (draw_numbers(50, 30, generator(seed)) for seed in (1, 2))
    for x, y, z in zip(a.tolist(), b.tolist(), add_digits(a, b).tolist(), strict=True):
        numbers = [int("".join(map(str, digits[::-1]))) for digits in (x, y, z)]
        assert numbers[0] + numbers[1] == numbers[2]


@pytest.mark.parametrize("name", FORMATS)
def test_a_sum_reads_as_its_format_says(name):
    task = AnswerTask.named(name)
    for row in task.sample(200, 3, generator()):
        words = task.show(row).replace("+", "=").split("=")
        digits = [[w for w in part.split() if w.isdigit()] for part in words]
        reverse = {"addition": (), "addition-padded": (2,)}.get(name, (0, 1, 2))
        a, b, total = (
            "".join(part[::-1] if at in reverse else part) for at, part in enumerate(digits)
        )
        assert int(a) + int(b) == int(total)
        padded = name == "addition-padded"
        assert (len(a), len(b)) == (3, 3)
        assert len(total) == (4 if padded else len(str(int(total))))
        assert padded or "0" not in (a[0], b[0], total[0])


@pytest.mark.parametrize("name", [*FORMATS[1:], "successor"])
def test_digits_of_equal_significance_share_a_place_and_no_others_do(name):
    task = AnswerTask.named(name)
    (row,) = task.sample(1, 5, generator())
    found = Counter(
        place
        for token, place in zip(row.tolist(), task.places(5), strict=True)
        if token < 10 or token == END
    )
    numbers = 2 if name == "successor" else 3
    digits = [found[place] for place in range(2, 7)]
    assert digits == [numbers] * 5
    assert found[1] == 0


def test_places_do_not_tell_how_long_a_sum_is():
    assert AnswerTask.named("addition").places(5) is None
    task = AnswerTask.named("addition-reversed")
    tokens = task.sample(100, 2, generator())
    assert len(tokens[:, task.answer(2)][:, 2].unique()) > 1  # some sums end there
    assert (task.couple(tokens) == task.couple(tokens)[0]).all()


def test_hints_are_consecutive_and_begin_anywhere():
    task = AnswerTask.named("addition-hints")
    tokens = task.sample(4000, 2, generator())
    first = tokens[:, 0] - task.FIRST
    assert torch.equal(tokens[:, 2] - tokens[:, 0], torch.ones_like(first))
    assert sorted(first.unique().tolist()) == list(range(task.longest - 1))


def test_a_smaller_vocabulary_has_fewer_hints():
    task = AnswerTask.named("addition-hints", vocab=14 + 6)
    assert (task.vocab, task.longest) == (20, 6)
    for length in (1, 6):
        tokens = task.sample(2000, length, generator())
        hints = tokens[:, : 2 * length : 2] - task.FIRST
        assert sorted(hints.unique().tolist()) == list(range(6 if length == 1 else length))
        assert tokens.max() < task.vocab
    with pytest.raises(ValueError, match="lengths: got 7, accepted for addition-hints: 1 to 6"):
        task.check(7)
    for vocab in (14, 115, 15.0):
        with pytest.raises(ValueError, match="accepted: 15 to 114 tokens, 14 more than"):
            AnswerTask.named("addition-hints", vocab=vocab)


def test_long_carries_are_not_rare():
    task = AnswerTask.named("successor")
    tokens = task.sample(1000, 10, generator())
    carries = (tokens[:, :10] == 9).cumprod(dim=1).sum(dim=1)
    assert 0.03 < (carries >= 8).float().mean() < 0.3
    padded = AnswerTask.named("addition-padded").sample(1000, 10, generator())
    zeros = (padded[:, 1:11] == 0).cumprod(dim=1).sum(dim=1)
    assert len(zeros.unique()) == 11 or zeros.max() >= 9
