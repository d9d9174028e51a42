"""Numbers of every prompt: kept in any order, merged, and given back in the prompts' order."""

import numpy as np
import pytest

from llmprobe.probes.by_prompt import PromptTally, joined
from llmprobe.probes.tallies import at_length

X = np.arange(24.0).reshape(4, 3, 2)


def tally(prompts=range(4)):
    one = PromptTally(())
    one.put("x", X[list(prompts)], list(prompts))
    return one


def test_parts_in_any_order_are_the_whole():
    whole = PromptTally(())
    for prompts in ([3, 1], [0], [2]):
        whole.merge(tally(prompts).state())
    np.testing.assert_array_equal(whole.of("x"), X)
    assert whole.state().keys() == tally().state().keys()


def test_lengths_are_cut_out_and_joined_again():
    parts = []
    for column in range(3):
        one = PromptTally(())
        one.merge(at_length(tally().state(), column))
        parts.append(one)
    np.testing.assert_array_equal(parts[1].of("x"), X[:, [1]])
    np.testing.assert_array_equal(joined(parts, "x"), X)


def test_prompts_of_another_seed_come_behind():
    both = tally()
    both.merge(tally([1, 0]).state(), first=4)
    np.testing.assert_array_equal(both.of("x"), X[[0, 1, 2, 3, 0, 1]])


@pytest.mark.parametrize("x", [np.arange(4), np.arange(8).reshape(4, 2), np.zeros(4)])
def test_what_cannot_be_numbers_of_prompts_is_refused(x):
    state = tally().state() | {"kept/x/values": x}
    with pytest.raises(ValueError, match="x has"):
        PromptTally(()).merge(state)
