"""Results about exact answers: frames, tests over seeds, the longest length solved."""

import dataclasses
import json

import numpy as np
import pytest
from answer_samples import make_answers_result
from checkout import shown_text as text
from samples import NAMES, check_same, spoil
from scipy import stats

from llmprobe import load_result
from llmprobe.base.intervals import holm
from llmprobe.results.answers import METRICS, AnswersResult


def kill(result, index):
    """As a seed is whose weights are not finite."""
    for name in METRICS:
        result = spoil(result, name, index)
    return result


def test_a_saved_result_comes_back_the_same(tmp_path):
    result = kill(make_answers_result(3), (0, 1))
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is AnswersResult
    check_same(result, loaded)
    assert loaded.headline() == result.headline()


@pytest.mark.parametrize(
    "change",
    [
        {"exact": np.zeros((2, 8, 5))},
        {"exact": np.full((2, 8, 7), 1.1)},
        {"token_accuracy": np.full((2, 8, 7), -0.1)},
        {"chance": np.zeros(6)},
        {"chance": np.full(7, 2.0)},
        {"counted": 3},
        {"n_examples": (256,)},
        {"train_lengths": (10, 5)},
        {"variants": ("baseline", "baseline")},
    ],
)
def test_what_does_not_fit_is_refused(change):
    with pytest.raises(ValueError, match=r"needs?|accepted"):
        dataclasses.replace(make_answers_result(), **change)


def test_frames_have_the_public_columns_and_a_row_for_each_number():
    result = make_answers_result(3)
    frame = result.to_frame()
    assert list(frame.columns) == [
        *("task", "variant", "seed", "length", "n_examples", "exact", "token_accuracy"),
    ]
    assert len(frame) == 3 * 8 * 7
    row = frame[(frame.variant == "layernorm") & (frame.seed == 5) & (frame.length == 15)]
    assert row.exact.item() == result.exact[1, 5, 4]
    assert list(result.summary_frame().columns) == [
        *("variant", "length", "mean", "sd", "low", "high", "n_seeds")
    ]
    assert list(result.compare_frame().columns) == [
        *("variant", "reference", "length", "difference"),
        *("low", "high", "p", "significant", "n_seeds", "verdict"),
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_a_comparison_is_scipys_paired_test_with_holm_over_lengths(metric):
    result = make_answers_result(3)
    frame, values = result.compare_frame(metric), getattr(result, metric)
    for row in frame.itertuples():
        v, n = result.variants.index(row.variant), result.lengths.index(row.length)
        found = stats.ttest_rel(values[v, :, n], values[0, :, n])
        interval = found.confidence_interval()
        np.testing.assert_allclose(
            [row.p, row.low, row.high], [found.pvalue, interval.low, interval.high]
        )
    for _, rows in frame.groupby("variant"):
        assert rows.significant.tolist() == holm(rows.p).tolist()
    assert "confirmed" in set(frame.verdict)
    with pytest.raises(ValueError, match=r"metric: got 'kl', accepted: exact, token_accuracy"):
        result.compare_frame("kl")


def test_what_is_solved_is_summed_up_over_seeds_and_paired():
    result = make_answers_result(2)
    solved, frame = result.longest_solved, result.solved_frame().set_index("variant")
    for v, name in enumerate(result.variants):
        row = frame.loc[name]
        assert row["mean"] == pytest.approx(solved[v].mean())
        assert (row.least, row.most) == (solved[v].min(), solved[v].max())
    test = stats.ttest_rel(solved[1], solved[0])
    row = frame.loc["layernorm"]
    found = [row.difference, row.difference_low, row.difference_high, row.p]
    expected = [(solved[1] - solved[0]).mean(), *test.confidence_interval(), test.pvalue]
    np.testing.assert_allclose(found, expected)
    assert np.isnan(frame.loc["baseline"].p)


def test_seeds_without_numbers_are_left_out_in_pairs_and_not_counted():
    spoiled = kill(kill(make_answers_result(), (0, 2)), (1, 5))
    assert (spoiled.compare_frame().n_seeds == 6).all()
    assert (spoiled.summary_frame().n_seeds == 7).all()
    assert spoiled.solved_frame().n_seeds.tolist() == [7, 7]
    hopeless = kill(make_answers_result(), ...)
    assert hopeless.solved_frame()["mean"].isna().all()
    assert "nan" in hopeless.headline()
    json.dumps(hopeless.to_document(), allow_nan=False)


def test_the_headline_is_one_line_with_how_far_each_variant_gets():
    result = make_answers_result()
    first, second = result.solved_frame().to_dict("records")
    assert result.headline() == (
        "answers addition: 2 variants, 1..30 digits (trained on 5 to 10), 8 seeds, 2000 steps; "
        "longest solved over training, mean [least, most]: "
        f"baseline {first['mean']:.2f} [{first['least']:.2f}, {first['most']:.2f}], "
        f"layernorm {second['mean']:.2f} [{second['least']:.2f}, {second['most']:.2f}]"
    )
    assert make_answers_result(9).headline().endswith("and 6 more")


def test_the_table_marks_training_lengths_and_has_both_parts():
    shown = text(make_answers_result(3).table())
    assert "exact match, in %" in shown
    assert shown.count("trained  ") == 2  # 5 and 10 of the lengths
    assert "longest length solved (at least 90% exact)" in shown
    assert text(make_answers_result(1).table())


def test_the_reading_names_lengths_units_and_settings():
    reading = make_answers_result().reading()
    assert reading.startswith("“layernorm is better than baseline”: ")
    assert " digits." in reading
    assert "2000 steps" in reading
    assert make_answers_result(1).remarks() == []


def test_a_document_has_rows_comparisons_and_what_is_solved():
    document = kill(make_answers_result(3), (0, 0)).to_document()
    json.dumps(document, allow_nan=False)
    assert document["rows"][0]["exact"] is None
    assert len(document["comparisons"]) == 2 * 7
    assert [row["variant"] for row in document["solved"]] == list(NAMES[:3])


def test_the_command_has_what_was_trained():
    command = make_answers_result().command()
    assert command.startswith("llmprobe train-synthetic --task addition --seeds 8")
    assert "--train-lengths 5..10" in command
