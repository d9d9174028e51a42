"""Tallies of parts, stored as plain arrays and joined, are the tally of the whole."""

from dataclasses import replace

import numpy as np
import pytest
import simulated
import torch
from devices import DEVICE
from families import tiny

from llmprobe import attention_layers
from llmprobe.capture.rows import Rows
from llmprobe.capture.value_sums import ValueSums
from llmprobe.probes.attention import AttentionTally
from llmprobe.probes.variance import VarianceTally

LAYERS = attention_layers(tiny("llama"))
N = 40
GENERATOR = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(N, 3, 8, generator=GENERATOR)
WEIGHTS = torch.rand(N, 4, 3, 20, generator=GENERATOR).softmax(dim=-1)
HEADS = torch.randn(N, 3, 4, 8, generator=GENERATOR)
VALUES = torch.randn(N, 3, 2, 8, generator=GENERATOR)
OF_KEYS = torch.randn(N, 2, 20, 8, generator=GENERATOR)


def variance_of(prompts, *, device=DEVICE):
    tally, outputs = VarianceTally(LAYERS), OUTPUTS[prompts].to(device)
    with simulated.watching() as seen:
        for layer in (0, 1):
            tally.update(layer, outputs + layer, prompts)
    assert not seen.n_waits
    return tally


def attention_of(prompts, *, values=True, device=DEVICE):
    tally = AttentionTally(LAYERS)
    starts, queries = torch.zeros(len(prompts), dtype=int), torch.full((len(prompts), 3), 19)
    observed = (WEIGHTS, HEADS, VALUES, OF_KEYS)
    weights, heads, means, of_keys = (x[prompts].to(device) for x in observed)
    starts, queries = starts.to(device), queries.to(device)
    with simulated.watching() as seen:
        rows, given = Rows.of(weights, starts, k=4, keep=False), None
        if values:
            given = means, means**2
            sums = ValueSums.of(weights, of_keys, starts=starts, queries=queries)
            rows = replace(rows, values=sums)
        for layer in (0, 1):
            tally.update(layer, rows, heads, given, prompts)
    assert not seen.n_waits
    return tally


@pytest.mark.parametrize("make", [variance_of, attention_of])
def test_a_joined_tally_is_the_tally_of_all(make):
    parts = [make(list(range(first, min(first + 7, N)))) for first in range(0, N, 7)]
    joined = type(parts[0])(LAYERS)
    for part in parts:
        joined.merge(part.state())
    whole = make(list(range(N)))
    mine, theirs = joined.state(), whole.state()
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(
            torch.from_numpy(mine[name]), torch.from_numpy(theirs[name]), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("make", [variance_of, attention_of])
def test_what_is_stored_is_what_was_there_to_the_bit(make):
    tally = make(list(range(N)))
    again = type(tally)(LAYERS)
    again.merge(tally.state())
    mine, theirs = again.state(), tally.state()
    assert mine.keys() == theirs.keys()
    assert all((mine[name] == theirs[name]).all() for name in mine)


def test_values_that_a_module_does_not_show_stay_away():
    joined = AttentionTally(LAYERS)
    joined.merge(attention_of(list(range(5)), values=False).state())
    assert joined.moments[0, "value"].shape is None
    assert joined.groups[0, "value_row"].parts == {}
    assert joined.groups[0, "heads"].total().n_prompts == 5


def test_single_values_are_kept_of_the_first_prompts_alone():
    tally = VarianceTally(LAYERS)
    tally.update(0, OUTPUTS[:3].to(DEVICE), [VarianceTally.n_kept + 1, 4, VarianceTally.n_kept - 1])
    assert [x.shape for x in tally.kept_of(0)] == [(3, 5)] * 2
    assert torch.equal(tally.kept_of(0)[0].cpu(), OUTPUTS[1, :, :5])
    assert len(attention_of(list(range(N))).kept_of(1)) == AttentionTally.n_kept


@pytest.mark.parametrize("make", [variance_of, attention_of])
def test_everything_leaves_a_device_together(make):
    simulated.start()
    tally = make(list(range(N)), device="sim")
    with simulated.watching() as seen:
        state = tally.state()
    assert seen.waits == {"fetch": 1}
    expected = make(list(range(N))).state()
    assert list(state) == list(expected)
    for name in expected:
        np.testing.assert_allclose(state[name], expected[name], rtol=1e-12, atol=1e-12)
