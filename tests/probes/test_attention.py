"""The attention probe equals brute force, and its prediction holds for dispersing heads."""

import brute
import numpy as np
import pandas as pd
import pytest
import torch
from devices import DEVICE
from families import batch, no_positions, reference, tiny

from llmprobe import OutOfMemoryError, probe_attention
from llmprobe.probes import attention as dispersion
from llmprobe.probes.prompts import make_prompts


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "bloom"])
def test_rows_by_length_equal_whole_matrices(family):
    model, lengths = tiny(family), (4, 9, 12)
    result = probe_attention(model, lengths, layers=None, n_prompts=6)
    prompts = make_prompts("random", n_prompts=6, lengths=lengths, vocab_size=97)
    inputs = batch(family, (12,) * 6) | {"input_ids": prompts.batch(range(6), 12).to(DEVICE)}
    weights = reference(family, inputs).weights
    for series, (layer, head) in enumerate(zip(result.layer, result.head, strict=True)):
        for column, length in enumerate(lengths):
            rows = weights[int(layer)][:, head, length - 1, :length].double().cpu().numpy()
            entropy = -(rows * np.log(rows.clip(1e-300))).sum(axis=1)
            at = series, column
            numbers = pd.DataFrame([brute.row_numbers(row) for row in rows])
            for name in numbers:
                mean, std = numbers[name].mean(), numbers[name].std()
                assert getattr(result, name)[at] == pytest.approx(mean, rel=1e-3), name
                if hasattr(result, f"{name}_std"):
                    spread = getattr(result, f"{name}_std")[at]
                    assert spread == pytest.approx(std, rel=2e-3, abs=1e-5), name
            assert result.sink_rate[at] == (rows[:, 0] > 0.3).mean()
            assert result.entropy[at] == pytest.approx(entropy.mean(), rel=1e-4)
            assert result.entropy_std[at] == pytest.approx(entropy.std(ddof=1), rel=1e-3)
            assert result.effective[at] == pytest.approx((1 / (rows**2).sum(1)).mean(), rel=1e-4)
            assert result.first[at] == pytest.approx(rows[:, 0].mean(), rel=1e-4)
            assert result.mass[at] == pytest.approx(rows.sum(1).mean(), rel=1e-4)
            largest = np.sort(rows, axis=1)[:, ::-1]
            np.testing.assert_allclose(result.top[series, column, :, :4], largest[:, :4], atol=1e-5)
    x = brute.gather(model, prompts, lengths, "heads", left_padded=False)
    measured = x.reshape(6, 3, -1, 8).var(axis=0, ddof=1).mean(axis=-1).T
    np.testing.assert_allclose(result.measured_variance, measured, rtol=1e-4)
    if family == "bloom":  # does not show its values
        assert np.isnan(result.predicted_variance).all()


def test_dispersion_alone_predicts_the_variance_of_heads_that_disperse():
    result = probe_attention(no_positions(), "32..512", query="fixed", n_prompts=256)
    ratio = result.measured_variance / result.predicted_variance
    assert (np.abs(ratio - 1) < 0.15).all(), ratio
    # Nearly uniform attention: as many effective tokens as there are.
    np.testing.assert_allclose(result.effective, np.tile(result.lengths, (4, 1)), rtol=0.05)


def test_a_single_length_is_drawn_too(tmp_path):
    result = probe_attention(tiny("llama"), 8, n_prompts=6)
    for kind in set(result.plots) - {"terms", "map"}:  # those are of slopes
        result.save_figure(tmp_path / f"{kind}.png", kind)
    with pytest.raises(ValueError, match="does not show its values"):
        probe_attention(tiny("bloom"), (4, 8), n_prompts=6).plot("prediction")


def test_the_table_and_the_figures_of_an_attention_result(tmp_path):
    result = probe_attention(tiny("llama"), (4, 8), n_prompts=6)
    assert list(result.to_frame().columns)[:5] == [
        "layer",
        "head",
        "length",
        "n_prompts",
        "entropy",
    ]
    for kind in result.plots:
        result.save_figure(tmp_path / f"{kind}.png", kind)
        assert (tmp_path / f"{kind}.png").stat().st_size > 5000


def test_batches_are_halved_where_whole_matrices_of_all_prompts_do_not_fit(monkeypatch):
    whole = probe_attention(tiny("bloom"), (4, 16), n_prompts=16)
    room = 3 * (3 * 4 * 4 * 16**2)  # for three prompts of four heads
    monkeypatch.setattr("llmprobe.capture.rows.free_memory", lambda device: room)
    halved = probe_attention(tiny("bloom"), (4, 16), n_prompts=16)
    for name in ("n_prompts", "entropy", "measured_variance"):
        np.testing.assert_allclose(getattr(halved, name), getattr(whole, name), rtol=1e-4)


def test_a_matrix_that_does_not_fit_is_said_with_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr("llmprobe.capture.rows.free_memory", lambda device: 2**13)
    said = r"0.01 MiB for a prompt of 16 tokens, 0.01 MiB are free; use shorter prompts; .* keeps"
    with pytest.raises(OutOfMemoryError, match=said):
        probe_attention(tiny("bloom"), (4, 16), n_prompts=4, output=tmp_path / "run")


def test_positions_go_to_the_device_once_a_forward(monkeypatch):
    """On a GPU that waits for the device, which must not happen in each layer."""
    compute, given = dispersion._value_moments, []

    def see(value, index):
        given.append(index)
        return compute(value, index)

    monkeypatch.setattr(dispersion, "_value_moments", see)
    probe_attention(tiny("llama"), (4, 8), n_prompts=4, layers=None)
    assert len(given) == 2
    assert torch.is_tensor(given[0])
    assert given[0] is given[1]


def test_the_exponent_of_lambda_is_the_slope_over_the_logarithm_of_ln_n():
    lengths = (8, 16, 32, 64)
    result = probe_attention("builtin", lengths, n_prompts=20, layers=1)
    x = np.log(np.log(lengths))
    for head in range(6):
        slope, _ = np.polyfit(x, result.log_lambda[head], 1)
        assert result.lambda_exponent[head] == pytest.approx(slope, rel=1e-9)
    inside = (result.lambda_exponent_low < result.lambda_exponent) & (
        result.lambda_exponent < result.lambda_exponent_high
    )
    assert inside.all()


def test_behind_a_window_no_exponent_is_fitted():
    result = probe_attention(tiny("gemma2"), (8, 16, 32), layers=None, n_prompts=6)
    sliding = np.array(result.layer_type) == "sliding"
    assert (result.n_keys[sliding] == 4).all()
    assert (result.n_keys[~sliding] == [8, 16, 32]).all()
    assert np.isnan(result.lambda_exponent[sliding]).all()
    assert np.isfinite(result.lambda_exponent[~sliding]).all()


def test_ties_at_the_top_are_said():
    """Without positions the same token twice has the same logit twice."""
    result = probe_attention(no_positions(), (64, 512), n_prompts=6)
    assert any("largest logit is there twice" in note for note in result.warnings)
