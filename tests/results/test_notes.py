"""Notes of several layers as one."""

import pytest

from llmprobe.results.notes import joined_notes


def test_notes_that_say_the_same_of_several_layers_are_one_with_the_sum_of_their_shares():
    notes = [
        "few prompts",
        "layer 0: heavy tails: 4 of 6 slopes, 95 %",
        "layer 2: 16 queries are few",
        "layer 1: heavy tails: 3 of 6 slopes, 95 %",
    ]
    assert joined_notes(notes) == [
        "few prompts",
        "layers 0 and 1: heavy tails: 7 of 12 slopes, 95 %",
        "layer 2: 16 queries are few",
    ]


@pytest.mark.parametrize(
    ("layers", "shown"),
    [
        ([3], "layer 3"),
        ([1, 0], "layers 0 and 1"),
        ([0, 1, 2, 3, 5, 9], "layers 0 to 3, 5 and 9"),
        ([2, 4, 6], "layers 2, 4 and 6"),
    ],
)
def test_layers_are_listed_as_people_write_them(layers, shown):
    assert joined_notes([f"layer {n}: x" for n in layers]) == [f"{shown}: x"]


def test_other_notes_stay_each_once():
    assert joined_notes(["a", "b", "a"]) == ["a", "b"]
    assert joined_notes(["layers 1, 2: without terms"]) == ["layers 1, 2: without terms"]
