"""Loss results: columns, words, comparison, and refusal of what does not fit."""

import dataclasses
import json

import numpy as np
import pytest
from checkout import shown_text as text
from samples import check_same, make_loss_result

from llmprobe import LossResult, load_result


def test_a_saved_result_comes_back_the_same(tmp_path):
    for same_targets in (8, None):
        result = make_loss_result(same_targets=same_targets)
        loaded = load_result(result.save(tmp_path / f"{same_targets}"))
        assert type(loaded) is LossResult
        check_same(loaded, result)


def test_the_frame_has_a_row_for_each_length():
    frame = make_loss_result().to_frame()
    assert frame.length.tolist() == [16, 64, 256]
    assert frame.start.tolist() == [1, 16, 64]
    assert frame.loss.tolist() == [3.25, 3.0, 3.25]
    assert set(LossResult.by_length) < set(frame.columns)
    assert make_loss_result(same_targets=None).to_frame().context_loss.isna().all()


def test_the_table_shows_what_was_measured():
    shown = text(make_loss_result().table()).splitlines()
    assert shown[2].split()[:5] == ["16", "3.250", "3.150", "to", "3.450"]
    assert "loss of the same last 8 tokens, by length of their context" in shown
    assert "share of key tokens" in shown[-1]
    assert "key" not in text(make_loss_result(same_targets=None).table())


def test_the_words_say_where_the_loss_is_lowest_and_what_context_buys():
    result = make_loss_result()
    assert "lowest up to 64 tokens, 3.000 (95 % CI 2.900 to 3.200)" in result.reading()
    assert "does not clearly change" in result.reading()
    more = {"context_gain": 0.5, "context_gain_low": 0.4, "context_gain_high": 0.6}
    better = dataclasses.replace(result, **{name: np.full(3, x) for name, x in more.items()})
    assert "lowers the loss of the same tokens: −0.500 nats (95 % CI −0.600 to −0.400)" in (
        better.reading()
    )
    assert "2.0% of them are key tokens" in better.reading()
    assert "key" not in make_loss_result(same_targets=None).reading()
    nothing = dataclasses.replace(result, loss=np.full(3, np.nan))
    assert nothing.reading() == "No loss is finite."
    assert json.dumps(nothing.to_document(), allow_nan=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss", np.zeros(2)),
        ("key_share", np.zeros((3, 1))),
        ("lengths", (1, 2, 3)),
        ("same_targets", -1),
        ("context_length", "4096"),
    ],
)
def test_what_does_not_fit_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}|shape"):
        dataclasses.replace(make_loss_result(), **{field: value})


def test_results_of_different_models_are_compared_in_bits_per_byte():
    one = make_loss_result()
    provenance = dataclasses.replace(one.provenance, model="other")
    other = dataclasses.replace(one, provenance=provenance)
    table, axes = LossResult.compare({"a": one, "b": other})
    assert "bits per byte" in text(table)
    assert axes.get_ylabel().startswith("bits per byte")
    table, axes = LossResult.compare({"a": one, "b": make_loss_result()})
    assert "nats per token" in text(table)
    assert text(table).splitlines()[2].split()[0] == "a"
