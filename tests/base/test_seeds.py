"""Generators by keys."""

import numpy as np
import pytest
import torch

from llmprobe.base import seeds


def test_generators_depend_on_seed_and_key_alone():
    draw = lambda *key: seeds.numpy_generator(*key).integers(2**62)  # noqa: E731
    keys = [(0,), (1,), (0, "prompt", 1), (0, "prompt", 2), (0, "words", 1), (1, "prompt", 1)]
    values = [draw(*key) for key in keys]
    assert len(set(values)) == len(keys)
    assert values == [draw(*key) for key in keys]
    for wrong in (-1, 2**63, 1.5, "1"):
        with pytest.raises(ValueError, match=f"seed: got {wrong!r}, accepted: 0 or more"):
            seeds.numpy_generator(wrong)


def test_generators_leave_the_global_ones_alone():
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    a = torch.randn(3, generator=seeds.torch_generator(0, "x"))
    b = torch.randn(3, generator=seeds.torch_generator(0, "x"))
    assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())
    assert (before_numpy == np.random.get_state()[1]).all()  # noqa: NPY002
