"""Strings are edited as Python would, and letters keep their places."""

import doctest

import pytest
import torch

from llmprobe.synthetic import string_editing
from llmprobe.synthetic.string_editing import N_LETTERS
from llmprobe.synthetic.tasks import AnswerTask

EDIT = {
    "copy": lambda letter, string: string,
    "reverse": lambda letter, string: string[::-1],
    "push": lambda letter, string: string + letter,
    "unshift": lambda letter, string: letter + string,
}


def test_the_examples_in_the_manual_hold():
    results = doctest.testmod(string_editing)
    assert results.failed == 0
    assert results.attempted >= 8


@pytest.mark.parametrize("name", EDIT)
def test_an_answer_is_the_edited_string(name):
    task = AnswerTask.named(name)
    for row in task.sample(50, 6, torch.Generator().manual_seed(0)):
        question, answer = task.show(row).replace(" ", "").split("=")
        letter, _, string = question.rpartition(":")
        assert len(string) == 6
        assert answer == EDIT[name](letter, string) + "$"


@pytest.mark.parametrize("name", EDIT)
def test_a_letter_of_the_answer_has_the_place_of_the_one_that_it_repeats(name):
    task = AnswerTask.named(name)
    (row,) = task.sample(1, 6, torch.Generator().manual_seed(0))
    places, start = task.places(6), task.answer(6).start
    given = {
        place: token
        for token, place in zip(row[: start - 1].tolist(), places, strict=False)
        if place
    }
    repeated = [given[place] for place in places[start:-1]]
    assert repeated == row[start:-1].tolist()
    assert len(given) == len(repeated)


@pytest.mark.parametrize("name", EDIT)
def test_all_letters_occur(name):
    tokens = AnswerTask.named(name).sample(500, 4, torch.Generator().manual_seed(0))
    assert set(range(N_LETTERS)) <= set(tokens.unique().tolist())
