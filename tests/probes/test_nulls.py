"""Null models have learned nothing, and what they do as well is no finding."""

import numpy as np
import pytest
import torch
from families import no_positions, tiny
from samples import check_same

from llmprobe import (
    attention_layers,
    edit_attention,
    load_model,
    load_result,
    merge_results,
    probe_variance,
)
from llmprobe.capture.edits import ablate
from llmprobe.capture.loading import as_loaded
from llmprobe.probes.nulls import NULLS, null_model


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("null", NULLS)
def test_a_null_model_has_the_shape_and_other_weights(family, null):
    loaded = as_loaded(tiny(family))
    before = torch.get_rng_state()
    made, again = (null_model(loaded, null, seed=1) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert attention_layers(made) == attention_layers(loaded)
    assert not made.training
    changed = 0
    for (name, new), old in zip(made.named_parameters(), loaded.model.parameters(), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert torch.equal(new, again.get_parameter(name))
        if null == "shuffled":
            assert torch.equal(new.flatten().sort().values, old.flatten().sort().values)
        changed += not torch.equal(new, old)
    assert changed >= 4


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("edit", [{"queries": lambda call, n: 0.1}, {"outputs": ablate()}])
def test_a_model_that_is_edited_has_no_null(null, edit):
    model = tiny("llama")
    with edit_attention(model, 0, **edit), pytest.raises(ValueError, match="is edited"):
        probe_variance(model, (4, 8), n_prompts=4, null=null)


def test_an_untrained_model_is_no_finding():
    """All of its heads disperse; none differs from another untrained model."""
    model = null_model(load_model("builtin"), "untrained", seed=7)
    result = probe_variance(model, (16, 64, 256), at="heads", n_prompts=64, null="untrained")
    assert result.labels().tolist() == ["dispersing"] * 6
    assert result.null == "untrained"
    assert "None of 6 differ from the untrained model" in result.reading()
    assert result.reading().endswith("they show nothing learned.")
    plain = probe_variance(model, (16, 64, 256), at="heads", n_prompts=64)
    assert plain.labels().tolist() == ["dispersing"] * 6
    assert "this alone shows nothing learned" in plain.reading()


@pytest.mark.thorough
def test_heads_that_learned_something_differ_from_the_null():
    options = {"at": "heads", "n_prompts": 64, "layers": None}
    result = probe_variance("builtin", (16, 64, 256), null="untrained", **options)
    assert np.abs(result.slope_null[:6] + 0.5).max() < 0.1
    assert np.abs(result.slope_null[-6:]).max() < 0.1  # deep layers: tokens have become alike
    assert (result.p_null < 1e-3).any()
    plain = probe_variance("builtin", (16, 64, 256), **options)
    np.testing.assert_array_equal(plain.slope, result.slope)  # the null changes no other number
    assert np.isnan(plain.p_null).all()
    assert plain.null is None


def test_the_slope_of_the_null_is_that_of_a_probe_of_it():
    loaded = load_model("builtin")
    options = {"at": "heads", "n_prompts": 16, "query": "fixed", "n_queries": 4, "seed": 2}
    found = probe_variance(loaded, (16, 32, 64), null="shuffled", **options)
    made = null_model(loaded, "shuffled", seed=2)
    alone = probe_variance(made, (16, 32, 64), tokenizer=loaded.tokenizer, **options)
    assert found.tested == "within"
    for end in ("", "_low", "_high"):
        expected = getattr(alone, f"slope_within{end}")
        np.testing.assert_allclose(getattr(found, f"slope_null{end}"), expected, rtol=1e-5)


def test_a_null_is_kept_resumed_and_joined(tmp_path):
    options = {"at": "heads", "null": "shuffled"}
    model = no_positions(n_heads=2)
    whole = probe_variance(model, (4, 8), n_prompts=24, output=tmp_path / "whole", **options)
    probe_variance(model, (4, 8), n_prompts=8, output=tmp_path / "grown", **options)
    grown = probe_variance(model, (4, 8), n_prompts=24, output=tmp_path / "grown", **options)
    np.testing.assert_allclose(grown.p_null, whole.p_null, rtol=1e-6)
    check_same(load_result(tmp_path / "whole"), whole)
    probe_variance(model, 16, n_prompts=24, output=tmp_path / "long", **options)
    joined = merge_results([tmp_path / "whole", tmp_path / "long"], tmp_path / "all")
    assert np.isfinite(joined.p_null).all()
    assert joined.lengths == (4, 8, 16)


def test_what_is_no_null_is_refused():
    with pytest.raises(ValueError, match="null: got 'random', accepted: untrained, shuffled"):
        probe_variance("builtin", (8, 16), null="random")
