"""What a summary says of the evidence beside its numbers; the numbers are held against brute force
in `test_variance` and `test_attention`."""

import copy

import numpy as np
import pytest
import torch
from families import no_positions, tiny

from llmprobe import probe_attention, probe_variance
from llmprobe.errors import CaptureError
from llmprobe.probes.variance import _columns


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
    result = probe_variance(spoiled(some), (4, 8), n_prompts=20, batch_tokens=16, at="heads")
    (note,) = [note for note in result.warnings if "NaN" in note]
    assert "in layer 0 at 8 tokens: " in note
    assert result.nonfinite.sum() > 0
    assert (result.n_prompts == 20).all()
    notes = probe_attention(spoiled(some), (4, 8), n_prompts=20, layers=None).warnings
    assert any("in layer 1 at 8 tokens: " in note for note in notes)


def test_attention_tells_of_outputs_that_overflow_where_its_weights_do_not():
    def overflow(module, args, output):
        changed = output.clone()
        if output.shape[1] > 6:
            changed[:13, 6:, :8] = float("inf")
        return changed

    result = probe_attention(spoiled(overflow), (4, 8), n_prompts=16)
    assert (result.n_prompts == 16).all()
    (note,) = [note for note in result.warnings if "NaN" in note]
    assert "in layer 0 at 8 tokens: " in note


@pytest.mark.parametrize("probe", [probe_variance, probe_attention])
def test_nothing_finite_is_an_error(probe):
    def everything(module, args, output):
        return output * float("nan")

    with pytest.raises(CaptureError, match="every number that was captured is NaN"):
        probe(spoiled(everything), (4, 8), n_prompts=4, layers=1)


def test_few_prompts_are_told_by_how_many_there_are_in_all(tmp_path):
    for n_prompts, told in ((8, True), (32, False)):
        result = probe_variance(tiny("llama"), (4, 8), n_prompts=n_prompts, output=tmp_path)
        assert any("are few: below 32" in note for note in result.warnings) == told


def test_a_reference_that_is_not_given_is_the_shortest_length():
    assert probe_variance(tiny("llama"), (8, 16), n_prompts=4).reference == 8
    given = probe_variance(tiny("llama"), (8, 16), n_prompts=4, reference=16)
    assert given.reference == 16
    assert np.all(given.mean_drift[:, 1] == 0)


def test_a_drift_is_over_the_features_that_are_known_at_both_lengths():
    generator = np.random.default_rng(0)
    mean, std = generator.normal(size=(1, 3, 6)), generator.uniform(1, 2, size=(1, 3, 6))
    mean[0, 1, 2], mean[0, 2] = np.nan, np.nan
    std[0, 0, 4] = np.nan  # a single prompt has a mean and no deviation
    drift = _columns(mean, std, generator.normal(size=(1, 3, 2)), 0, 0)["vector_drift"]
    known = [0, 1, 3, 5]
    gap = np.linalg.norm(mean[0, 1, known] - mean[0, 0, known])
    assert drift[0, 1] == pytest.approx(gap / np.linalg.norm(std[0, 0, known]))
    assert drift[0, 0] == 0
    assert np.isnan(drift[0, 2])


@pytest.mark.parametrize(("dtype", "warned"), [("bfloat16", True), ("float32", False)])
def test_attention_tells_of_heads_that_vary_less_than_they_are_rounded(dtype, warned):
    model = no_positions(n_heads=4, size=8, seed=2).to(getattr(torch, dtype))
    embedding = model.get_input_embeddings().weight
    embedding.data += 30 * embedding.data.std()
    result = probe_attention(model, (16, 256), n_prompts=20, batch_tokens=65536)
    told = [note for note in result.warnings if 'rounds them; use dtype="float32"' in note]
    assert len(told) == warned
    assert not warned or "layer 0: from" in told[0]
