"""What results of the lab share is checked in all of them."""

import dataclasses

import numpy as np
import pytest
from legal_samples import make_legality_result
from mechanism_samples import make_mechanism_result
from samples import make_synthetic_result
from search_samples import make_search_result, make_set_search_result

from llmprobe.results.trained import SCORES, check_score

MAKERS = [make_synthetic_result, make_legality_result, make_search_result]
MAKERS += [make_set_search_result, make_mechanism_result]
every_kind = pytest.mark.parametrize("make", MAKERS)


@every_kind
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": 3}, "accepted: strings"),
        ({"schedule": None}, "accepted: strings"),
        ({"warnings": (1,)}, "accepted: strings"),
        ({"seeds": ()}, "one or more, all different"),
        ({"steps": 0}, "whole numbers, 1 or more"),
        ({"steps": 1.5}, "whole numbers"),
        ({"train_lengths": (4, 2)}, "shortest and longest"),
        ({"train_lengths": (4,)}, "shortest and longest"),
        ({"train_lengths": (0, 4)}, "1 or more"),
        ({"lengths": ()}, "one or more, increasing"),
    ],
)
def test_what_does_not_fit_is_refused(make, change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(make(), **change)


@every_kind
def test_seeds_lengths_and_tests_belong_together(make):
    result = make()
    n_tests = getattr(result, result.tests)
    for change, words in (
        ({"seeds": (*result.seeds[:-1], result.seeds[0])}, "all different"),
        ({"seeds": (*result.seeds[:-1], "x")}, "whole numbers"),
        ({"lengths": tuple(reversed(result.lengths))}, "increasing"),
        ({result.tests: n_tests[:-1]}, "one number per length"),
        ({result.tests: (0, *n_tests[1:])}, "1 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(result, **change)


@every_kind
def test_lists_of_a_file_become_tuples_and_beyond_is_what_training_never_saw(make):
    result = make()
    listed = dataclasses.replace(result, lengths=list(result.lengths), seeds=list(result.seeds))
    assert (listed.lengths, listed.seeds) == (result.lengths, result.seeds)
    assert all(length > result.train_lengths[1] for length in result.beyond)
    assert len(result.beyond) == sum(n > result.train_lengths[1] for n in result.lengths)


@pytest.mark.parametrize("name", SCORES)
def test_scores_have_their_range(name):
    check_score(name, np.array([0.0, 0.5, 1.0, np.nan]))
    wrong = {"kl": [-0.1, np.inf], "gap": [np.inf, -np.inf]}.get(name, [-0.1, 1.1, np.inf])
    for value in wrong:
        with pytest.raises(ValueError, match="out of range"):
            check_score(name, np.array([0.5, value]))
