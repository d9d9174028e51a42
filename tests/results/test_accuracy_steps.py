"""A frame by steps is the result's own frames, as of each step."""

import dataclasses

import numpy as np
import pytest
from samples import make_synthetic_result

from llmprobe.results.accuracy_steps import by_steps


def with_steps(result, steps=(1000, 3000)):
    early = np.stack([0.5 * result.accuracy, 0.9 * result.accuracy], axis=2)
    return dataclasses.replace(result, score_steps=steps, step_accuracy=early)


def test_every_step_has_the_summary_and_the_comparisons_of_its_accuracy():
    result = with_steps(make_synthetic_result(3))
    frame = by_steps(result)
    assert sorted(set(frame.step)) == [1000, 3000, 8000]
    for step, factor in ((1000, 0.5), (3000, 0.9), (8000, 1.0)):
        there = dataclasses.replace(result, accuracy=factor * result.accuracy)
        part = frame[frame.step == step]
        np.testing.assert_allclose(
            part[["mean", "low", "high"]], there.summary_frame()[["mean", "low", "high"]]
        )
        others = part[part.variant != result.variants[0]]
        expected = there.compare_frame()
        np.testing.assert_allclose(
            others[["difference", "difference_low", "difference_high", "p"]],
            expected[["difference", "low", "high", "p"]],
        )
        assert others.verdict.tolist() == expected.verdict.tolist()


def test_steps_that_do_not_fit_are_refused():
    result = make_synthetic_result()
    for change, words in (
        ({"score_steps": (8000,)}, "rising, below 8000"),
        ({"score_steps": (30, 10)}, "rising, below 8000"),
        ({"score_steps": (10,)}, "step_accuracy has shape"),
        ({"score_steps": (0,)}, "whole numbers, 1 or more"),
        ({"step_accuracy": np.zeros((1, 1, 1, 1))}, "step_accuracy has shape"),
    ):
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(result, **change)
    early = 2 + np.stack([result.accuracy], axis=2)
    with pytest.raises(ValueError, match="step_accuracy has values out of range"):
        dataclasses.replace(result, score_steps=(10,), step_accuracy=early)
