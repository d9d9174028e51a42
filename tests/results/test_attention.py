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
    assert shown[1].endswith("H / ln n  no first  spread     Λ  first  variance / predicted")
    head = shown[3].split()
    assert head[:5] == ["0", "1", "4", "8", "16"]
    columns = (result.entropy_share, result.entropy_share_rest, result.spread)
    numbers = [*(x[1, -1] for x in columns), np.exp(result.log_lambda[1, -1]), result.first[1, -1]]
    assert head[5:] == [*(f"{x:.2f}" for x in numbers), "1.50"]
    assert shown[4].split()[-1] == "nan"


def test_columns_that_an_older_folder_lacks_are_nan_and_not_shown():
    result = make_attention_result()
    older = dataclasses.replace(
        result, **dict.fromkeys(("entropy_share", "entropy_share_rest", "spread", "log_lambda"))
    )
    assert np.isnan(older.spread).all()
    header = text(older.table()).splitlines()[1]
    assert header.split()[5:] == ["first", "variance", "/", "predicted"]


def test_sinks_and_dispersed_heads_are_said_in_words():
    result = make_attention_result()
    sinks, dispersed = result.remarks()
    assert sinks.endswith("by length: 16: 25%, 64: 50%, 256: 75%")
    assert dispersed.startswith("2 of 4 heads have Λ > 1 at 256 tokens")
    assert "grows with the length in 3 " in dispersed
    nothing = dict.fromkeys(("sink_rate", "log_lambda"))
    assert dataclasses.replace(result, **nothing).remarks() == []
    assert list(result.head_frame().columns) == ["layer", "head", *AttentionResult.by_series]
    assert result.to_document()["heads"][3]["lambda_exponent"] == 0.5
