"""Attention results: columns, and refusal of what does not fit."""

import dataclasses

import numpy as np
import pytest
from checkout import shown_text as text
from samples import check_same, make_attention_result

from llmprobe import load_result
from llmprobe.results.attention import AttentionResult


def test_a_saved_result_comes_back_the_same(tmp_path):
    result = make_attention_result()
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is AttentionResult
    check_same(loaded, result)


def test_the_frame_has_every_statistic_of_every_head():
    frame = make_attention_result().to_frame()
    assert set(AttentionResult.by_length) < set(frame.columns)
    head = frame[(frame.layer == 1) & (frame["head"] == 1)]
    assert head.effective.tolist() == [16, 64, 256]


def test_largest_weights_have_a_place_for_each_length():
    result = make_attention_result()
    with pytest.raises(ValueError, match="top has shape"):
        dataclasses.replace(result, top=np.zeros((4, 2, 8, 16), np.float32))


def test_the_table_has_the_numbers_of_the_longest_prompts():
    result = make_attention_result()
    shown = text(result.table()).splitlines()
    assert shown[1].split()[:5] == ["layer", "head", "16", "64", "256"]
    assert shown[1].endswith("H / ln n  no first  spread     Λ  first")
    head = shown[3].split()
    assert head[:5] == ["0", "1", "4", "8", "16"]
    columns = (result.entropy_share, result.entropy_share_rest, result.spread)
    numbers = [*(x[1, -1] for x in columns), np.exp(result.log_lambda[1, -1]), result.first[1, -1]]
    assert head[5:] == [f"{x:.2f}" for x in numbers]
    assert shown[6].startswith("at 256 tokens: H / ln n: entropy over that of uniform attention;")
    header, first, second, *_ = shown[8:]
    assert header.rstrip().endswith("= disp.  + values  + coh.  decides")
    assert first.split()[-4:] == ["−0.48", "+0.00", "+0.01", "dispersion"]
    assert second.split()[-4:] == ["−0.13", "+0.20", "+0.06", "values"]
    assert shown[-1].startswith("slope = dispersion + values + coherence; decides: ")


def test_columns_that_an_older_folder_lacks_are_nan_and_not_shown():
    result = make_attention_result()
    older = dataclasses.replace(
        result, **dict.fromkeys(("entropy_share", "entropy_share_rest", "spread", "log_lambda"))
    )
    assert np.isnan(older.spread).all()
    header = next(x for x in text(older.table()).splitlines() if x.startswith("layer"))
    assert header.split()[5:] == ["first"]
    older = dataclasses.replace(result, slope_coherence=None)
    assert "coherence" not in text(older.table())


def test_sinks_and_dispersed_heads_are_said_in_words():
    result = make_attention_result()
    sinks, dispersed, adding_up = result.remarks()
    assert sinks.endswith("by length: 16: 25%, 64: 50%, 256: 75%")
    assert dispersed.startswith("2 of 4 heads have Λ > 1 at 256 tokens")
    assert "grows with the length in 3 " in dispersed
    assert "2 of 2 heads disperse" in adding_up
    assert "In 1 of these the variance does not clearly fall" in adding_up
    assert adding_up.endswith(
        "2 heads have a slope that differs from 0; what decides it: "
        "dispersion in 1, values in 1, coherence in 0."
    )
    nothing = dict.fromkeys(("sink_rate", "log_lambda", "slope_dispersion_high"))
    assert dataclasses.replace(result, **nothing).remarks() == []
    columns = ["layer", "head", *AttentionResult.by_series, "decides"]
    assert list(result.head_frame().columns) == columns
    assert result.to_document()["heads"][3]["lambda_exponent"] == 0.5


def test_what_decides_is_the_largest_term_that_has_the_sign_of_the_slope():
    result = make_attention_result()
    assert result.decides() == ["dispersion", "values", "", ""]
    # A slope that falls by -0.11 although coherence makes up for most of the dispersion.
    terms = {"slope_dispersion": -0.49, "slope_values": 0.02, "slope_coherence": 0.36}
    ends = {"slope_total": -0.11, "slope_total_low": -0.15, "slope_total_high": -0.07}
    made = {name: np.full(4, value) for name, value in (terms | ends).items()}
    assert dataclasses.replace(result, **made).decides() == ["dispersion"] * 4
    unclear = made | {"slope_total_high": np.full(4, 0.01)}
    assert dataclasses.replace(result, **unclear).decides() == [""] * 4
