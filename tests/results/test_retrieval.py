"""Retrieval results: frames, words, tables, and refusal of what does not fit."""

import dataclasses
import json

import numpy as np
import pytest
from checkout import shown_text as text
from samples import check_same, make_retrieval_result

from llmprobe import RetrievalResult, load_result


def test_a_saved_result_comes_back_the_same(tmp_path):
    result = make_retrieval_result()
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is RetrievalResult
    check_same(loaded, result)


def test_frames_have_answers_heads_and_links():
    result = make_retrieval_result()
    answers = result.answers_frame()
    assert answers.length.tolist() == [64, 128, 256]
    assert answers.n_pairs.tolist() == [8, 16, 32]
    assert set(result.of_answers) < set(answers.columns)
    assert len(result.to_frame()) == 36
    assert set(result.by_length) < set(result.to_frame().columns)
    links = result.links_frame()
    assert len(links) == 12
    assert set(result.of_series) < set(links.columns)
    assert json.dumps(result.to_document(), allow_nan=False)


def test_the_table_has_accuracy_and_the_leading_heads():
    shown = text(make_retrieval_result().table())
    assert "90.0%" in shown
    first = shown[shown.index("layer") :].splitlines()[1].split()
    assert first[:4] == ["1", "5", "0.600", "0.200"]
    assert "and 4 more heads" in shown


def test_the_words_name_the_lengths_above_chance_and_the_leading_head():
    result = make_retrieval_result()
    said = result.reading()
    assert "better than chance and the most frequent value at 64, 128, 256 tokens" in said
    assert "layer 1 head 5: 0.600 at 64, 0.200 at 256 tokens" in said
    assert f"right answers in {(result.right_source_low > 0).sum()} of 12 heads" in said
    nothing = np.zeros(3)
    bad = dataclasses.replace(result, accuracy=nothing, accuracy_low=nothing)
    words = "not clearly better than chance and the most frequent value at any length"
    assert words in bad.reading()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accuracy", np.zeros(2)),
        ("source", np.zeros(12)),
        ("right_norm", np.zeros((12, 3))),
        ("context_length", -1),
    ],
)
def test_what_does_not_fit_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(make_retrieval_result(), **{field: value})


def test_a_single_length_is_named_once():
    result = make_retrieval_result((64,))
    assert result.headline().count(" at 64") == 1
    assert result.reading().count(" at 64") <= 2  # right answers, and the leading head's weight
    shown = text(result.table()).split("attention on the source")[1]
    assert shown.count("at 64") == 1
