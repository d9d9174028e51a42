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
    assert shown[1].endswith("entropy  first token  variance / predicted")
    head = shown[3].split()
    assert head[:5] == ["0", "1", "4", "8", "16"]
    assert head[5:] == [f"{np.log(16):.2f}", f"{result.first[1, -1]:.2f}", "1.50"]
    assert shown[4].split()[-1] == "nan"
