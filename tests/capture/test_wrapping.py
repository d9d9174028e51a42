"""Wrapped methods: any order of leaving restores what was there."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn

from llmprobe.capture.wrapping import wrap_method


def doubled(forward, *args):
    return 2 * forward(*args)


def raised(forward, *args):
    return forward(*args) + 1


@pytest.mark.parametrize("first_out", [0, 1])
def test_users_leave_in_any_order(first_out):
    module, x = nn.Identity(), torch.ones(1)
    stacks = [ExitStack(), ExitStack()]
    wrap_method(module, doubled, stacks[0])
    wrap_method(module, raised, stacks[1])
    assert module(x) == 3  # the later one is outside
    stacks[first_out].close()
    assert module(x) == 2
    stacks[1 - first_out].close()
    assert module(x) == 1
    assert "forward" not in vars(module)


def test_a_method_that_somebody_wrapped_meanwhile_stays():
    module, stack = nn.Identity(), ExitStack()
    wrap_method(module, doubled, stack)
    inner = module.forward
    module.forward = lambda x: inner(x) + 10
    stack.close()
    assert module(torch.ones(1)) == 11
