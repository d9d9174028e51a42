"""What a summary says of the evidence beside its numbers; the numbers are held against brute force
in `test_probing` and `test_dispersion`."""

import copy

import numpy as np
import pytest
from families import tiny

from llmprobe import probe_attention, probe_variance
from llmprobe.errors import CaptureError


def spoiled(change):
    """A model whose first attention puts something else into its values."""
    model = copy.deepcopy(tiny("llama", seed=8))
    model.model.layers[0].self_attn.v_proj.register_forward_hook(change)
    return model


def some(module, args, output):
    changed = output.clone()
    if output.shape[1] > 6:
        changed[0, 6:, 3] = float("nan")
    return changed


def test_nonfinite_numbers_are_told_by_layer_and_length():
    result = probe_variance(spoiled(some), (4, 8), samples=20, batch_tokens=16, at="heads")
    (note,) = [note for note in result.warnings if "NaN" in note]
    assert "in layer 0 at 8 tokens: " in note
    assert result.nonfinite.sum() > 0
    assert (result.n_prompts == 20).all()
    notes = probe_attention(spoiled(some), (4, 8), samples=20, layers=None).warnings
    assert any("in layer 1 at 8 tokens: " in note for note in notes)


@pytest.mark.parametrize("probe", [probe_variance, probe_attention])
def test_nothing_finite_is_an_error(probe):
    def everything(module, args, output):
        return output * float("nan")

    with pytest.raises(CaptureError, match="every number that was captured is NaN"):
        probe(spoiled(everything), (4, 8), samples=4, layers=1)


def test_few_prompts_are_told_by_how_many_there_are_in_all(tmp_path):
    for samples, told in ((8, True), (16, False)):
        result = probe_variance(tiny("llama"), (4, 8), samples=samples, output=tmp_path)
        assert any("are few: intervals are wide" in note for note in result.warnings) == told


def test_a_reference_that_is_not_given_is_the_shortest_length():
    assert probe_variance(tiny("llama"), (8, 16), samples=4).reference == 8
    given = probe_variance(tiny("llama"), (8, 16), samples=4, reference=16)
    assert given.reference == 16
    assert np.all(given.mean_drift[:, 1] == 0)
