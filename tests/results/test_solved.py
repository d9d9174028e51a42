"""What results that count right answers share: the longest length solved, and the reading."""

import dataclasses

import numpy as np
import pytest
from answer_samples import make_answers_result
from samples import make_synthetic_result

from llmprobe.results.solved import AT_CHANCE, SOLVED, at_chance

every_kind = pytest.mark.parametrize("make", [make_answers_result, make_synthetic_result])


def with_score(result, values):
    return dataclasses.replace(result, **{result.score: np.asarray(values, dtype=np.float64)})


@every_kind
def test_the_longest_length_solved_is_that_of_a_plain_loop(make):
    result = make(2)
    score = getattr(result, result.score).copy()
    score[0, 0] = 0.5  # nothing is solved
    score[1, 1, 2] = SOLVED  # just so
    score[1, 3, 1] = np.nan
    result = with_score(result, score)
    for v, s in np.ndindex(2, 8):
        solved = [n for n, share in zip(result.lengths, score[v, s], strict=True) if share >= 0.9]
        expected = np.nan if (v, s) == (1, 3) else max(solved, default=0) / result.train_lengths[1]
        np.testing.assert_equal(result.longest_solved[v, s], expected)
    assert result.longest_solved[0, 0] == 0
    assert len(np.unique(result.longest_solved[1])) > 1


@every_kind
def test_a_reading_has_a_verdict_for_every_length_and_the_unit(make):
    result = make(3)
    reading, unit = result.reading(), {"answers": "digits", "synthetic": "items"}[result.kind]
    for variant in result.variants[1:]:
        assert f"“{variant} is better than {result.variants[0]}”: " in reading
    assert reading.count(f" {unit}.") == 2
    assert result.remarks() == [reading]
    assert make(1).remarks() == []


def test_two_that_answer_nothing_are_not_called_equivalent():
    exact = make_answers_result(3).exact.copy()
    exact[0, :, 3:] = exact[1, :, 3:] = 0
    exact[1, :, 6] = 1 / 256  # one lucky answer of each seed
    exact[2, :, 3:] = 0.5 + 0.01 * np.arange(8)[:, None]
    result = with_score(make_answers_result(3), exact)
    found = result.compare_frame().set_index(["variant", "length"]).verdict
    first, second = result.variants[1:]
    assert [found[first, n] for n in (12, 15, 20, 30)] == [AT_CHANCE] * 4
    assert found[second, 30] == "confirmed"
    assert AT_CHANCE not in set(result.compare_frame("token_accuracy").verdict)
    reading = result.reading()
    assert "both at chance at 12, 15, 20 and 30 digits." in reading
    assert "Both at chance: neither is above guessing there" in reading
    assert "chance" not in make_answers_result(3, (1, 5, 10)).reading()


def test_two_that_guess_on_sets_are_not_called_equivalent():
    """Nor are they at an earlier step; one that is above chance is compared."""
    made = make_synthetic_result(3)
    accuracy = made.accuracy.copy()
    accuracy[:, :, 3:] = 0.1 + 0.001 * np.arange(8)[:, None]
    accuracy[2, :, 5] = 0.1 + 0.01 * np.arange(8)
    early = np.stack([np.full_like(accuracy, 0.1), accuracy], axis=2)
    steps = {"score_steps": (100, 200), "step_accuracy": early}
    result = with_score(dataclasses.replace(made, margins={"accuracy": 0.01}, **steps), accuracy)
    found = result.compare_frame().set_index(["variant", "length"]).verdict
    first, second = result.variants[1:]
    assert [found[first, n] for n in (1024, 4096, 16384)] == [AT_CHANCE] * 3
    assert found[first, 16] != AT_CHANCE
    assert found[second, 16384] == "confirmed"
    assert f"both at chance at 1024, 4096 and 16384 {result.unit}." in result.reading()
    by_step = result.step_frame().set_index(["step", "variant"]).verdict
    assert set(by_step[100, first]) == {AT_CHANCE}
    assert by_step[200, first].tolist() == found[first].tolist()


def test_two_that_answer_all_are_equivalent():
    result = with_score(make_answers_result(), np.ones((2, 8, 7)))
    assert set(result.compare_frame().verdict) == {"equivalent"}


def test_chance_is_what_no_seed_exceeds_by_more_than_the_noise_of_its_tests():
    score = np.full((1, 4, 3), 0.5)
    score[0, 2, 1] = 0.55  # 1.6 standard errors
    score[0, 3, 2] = 0.65  # 4.8
    assert at_chance(score, [0.5] * 3, [256] * 3).tolist() == [[True, True, False]]
    assert at_chance(score, 0.5, [4, 4, 4]).all()
    score[0, 3, 2] = np.nan  # a seed without numbers says nothing
    assert at_chance(score, 0.5, 256).all()
    score[0, :, 0] = np.nan
    assert at_chance(score, 0.5, 256).tolist() == [[False, True, True]]
    assert not at_chance(np.full((1, 2, 1), 1e-6), 0.0, 256).any()
