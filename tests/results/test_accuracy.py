"""The lab's result: frames, tests over seeds, slopes, and refusal of what does not fit."""

import dataclasses
import json

import numpy as np
import pytest
from checkout import shown_text as text
from samples import NAMES, check_same, make_synthetic_result, spoil
from scipy import stats

from llmprobe import ResultFormatError, load_result
from llmprobe.base.intervals import holm
from llmprobe.results.accuracy import SyntheticResult

COLUMNS = [
    *("task", "variant", "seed", "length", "accuracy", "n_sets"),
    *("global_mean", "global_variance", "feature_variance", "entropy", "global_mean_error"),
]


def test_a_saved_result_comes_back_the_same(tmp_path):
    result = spoil(make_synthetic_result(3), "accuracy", (0, 1))
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is SyntheticResult
    check_same(result, loaded)
    assert loaded.headline() == result.headline()


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": np.zeros((2, 8, 5))},
        {"accuracy": np.full((2, 8, 6), 1.5)},
        {"accuracy": np.full((2, 8, 6), -np.inf)},
        {"entropy": np.zeros((2, 6))},
        {"diverged": np.zeros((2, 7), dtype=np.int64)},
        {"loss": np.zeros((2, 8, 3))},
        {"loss_steps": np.array(3)},
        {"feature_values": np.zeros((2, 6, 5), dtype=np.float32)},
        {"feature_values": np.zeros((2, 6, 9, 4), dtype=np.float32)},
        {"top_weights": np.zeros((2, 6, 16), dtype=np.float32)},
        {"top_weights": np.zeros((2, 6, 33, 16), dtype=np.float32)},
        {"top_weights": np.zeros((2, 6, 32, 17), dtype=np.float32)},
        {"variants": ("baseline", "baseline")},
        {"variants": (1, 2)},
        {"variants": ()},
        {"seeds": (0,) * 8},
        {"lengths": (16, 64, 256, 4096, 1024, 16384)},
        {"lengths": (0, 64, 256, 1024, 4096, 16384)},
        {"lengths": (16.0, 64, 256, 1024, 4096, 16384)},
        {"train_lengths": (16, 5)},
        {"train_lengths": (5, 16, 32)},
        {"n_sets": (4096,)},
        {"chance": 1.5},
        {"chance": "low"},
        {"steps": 1.5},
        {"warnings": (1,)},
        {"shared_tests": 1},
        {"margins": {"accuracy": -1}},
        {"margins": {"accuracy": "small"}},
        {"schedule": None},
    ],
)
def test_what_does_not_fit_is_refused(change):
    with pytest.raises(ValueError, match=r"needs?|accepted"):
        dataclasses.replace(make_synthetic_result(), **change)


def test_a_damaged_folder_is_refused_in_one_line(tmp_path):
    folder = make_synthetic_result().save(tmp_path / "run")
    document = json.loads((folder / "result.json").read_text())
    del document["checksums"]  # as older versions wrote it
    document["fields"]["seeds"] = [0, 1]
    (folder / "result.json").write_text(json.dumps(document))
    with pytest.raises(ResultFormatError, match="diverged has shape"):
        load_result(folder)


def test_the_frame_has_the_public_columns_and_a_row_for_each_number():
    result = make_synthetic_result(3)
    frame = result.to_frame()
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 3 * 8 * 6
    row = frame[(frame.variant == "layernorm") & (frame.seed == 5) & (frame.length == 4096)]
    assert row.accuracy.item() == result.accuracy[1, 5, 4]
    assert row.entropy.item() == result.entropy[1, 5, 4]
    assert row.n_sets.item() == 1024
    assert set(frame.task) == {"argmax"}


def test_the_other_frames_have_their_columns_too():
    result = make_synthetic_result(3)
    assert list(result.compare_frame().columns) == [
        *("variant", "reference", "length", "difference"),
        *("low", "high", "p", "significant", "n_seeds", "verdict"),
    ]
    assert list(result.drift_frame().columns) == [
        *("variant", "length", "rms", "low", "high", "noise", "p", "significant", "n_seeds")
    ]
    assert list(result.summary_frame().columns) == [
        *("variant", "length", "mean", "sd", "n_seeds", "low", "high")
    ]
    assert list(result.tail_frame().columns) == [
        *("variant", "slope", "low", "high", "first_length", "n_seeds", "global_variance_ratio")
    ]


def test_a_comparison_is_scipys_paired_test():
    result = make_synthetic_result(3)
    for row in result.compare_frame().itertuples():
        v, n = result.variants.index(row.variant), result.lengths.index(row.length)
        found = stats.ttest_rel(result.accuracy[v, :, n], result.accuracy[0, :, n])
        interval = found.confidence_interval()
        assert row.reference == "baseline"
        np.testing.assert_allclose(
            [row.p, row.low, row.high], [found.pvalue, interval.low, interval.high]
        )
        assert row.difference == pytest.approx((row.low + row.high) / 2)


def test_significance_is_holms_over_the_lengths_of_a_variant():
    comparisons = make_synthetic_result(5).compare_frame()
    assert comparisons.significant.any()
    assert not comparisons.significant.all()
    for _, rows in comparisons.groupby("variant"):
        assert rows.significant.tolist() == holm(rows.p).tolist()


def test_seeds_without_numbers_are_left_out_in_pairs_and_not_counted():
    result = make_synthetic_result()
    spoiled = spoil(spoil(result, "accuracy", (0, 2)), "accuracy", (1, 5, -1))
    comparisons = spoiled.compare_frame()
    assert comparisons.n_seeds.tolist() == [7, 7, 7, 7, 7, 6]
    kept = [0, 1, 3, 4, 6, 7]
    found = stats.ttest_rel(result.accuracy[1, kept, -1], result.accuracy[0, kept, -1])
    assert comparisons.p.iloc[-1] == pytest.approx(found.pvalue)
    summary = spoiled.summary_frame().set_index(["variant", "length"])
    assert summary.n_seeds["baseline", 16384] == 7
    assert summary.n_seeds["layernorm", 1024] == 8
    others = np.delete(result.accuracy[0, :, -1], 2)
    assert summary.sd["baseline", 16384] == pytest.approx(others.std(ddof=1))


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_without_spread_there_is_no_test(shift):
    result = make_synthetic_result(1)
    same = np.clip(np.stack([result.accuracy[0]] * 2), 0, 0.5)
    same[1] += shift
    twice = dataclasses.replace(make_synthetic_result(), accuracy=same)
    comparisons = twice.compare_frame()
    np.testing.assert_allclose(comparisons.difference, shift)
    np.testing.assert_array_equal(comparisons.low, comparisons.difference)
    np.testing.assert_array_equal(comparisons.high, comparisons.difference)
    assert comparisons.p.isna().all()
    assert not comparisons.significant.any()


@pytest.mark.parametrize("n_seeds", [1, 2])
def test_few_seeds_say_little_but_break_nothing(n_seeds):
    result = make_synthetic_result(n_seeds=n_seeds)
    assert result.compare_frame().p.isna().all() == (n_seeds == 1)
    assert result.summary_frame().sd.isna().all() == (n_seeds == 1)
    assert "\n" not in repr(result)
    hopeless = spoil(result, "accuracy", slice(None))
    assert hopeless.compare_frame().difference.isna().all()
    assert (hopeless.summary_frame().n_seeds == 0).all()
    assert "nan" in hopeless.headline()


def test_one_variant_has_nothing_to_compare():
    result = make_synthetic_result(1)
    assert result.compare_frame().empty
    assert "against" not in result.headline()
    assert result.to_document()["comparisons"] == []


def test_the_tail_finds_the_slope_of_an_exact_law():
    lengths = tuple(2**k for k in range(4, 15))
    result = make_synthetic_result(lengths=lengths)
    law = np.array([1.0, 0.5])[:, None, None] * np.array([1 / n for n in lengths])
    exact = dataclasses.replace(
        result,
        feature_variance=np.broadcast_to(law, result.accuracy.shape).copy(),
        global_variance=np.broadcast_to(law**0.5, result.accuracy.shape).copy(),
    )
    tail = exact.tail_frame()
    np.testing.assert_allclose(tail[["slope", "low", "high"]], -1)
    assert tail.first_length.tolist() == [1024, 1024]  # 64 times the longest of training, 16
    np.testing.assert_allclose(tail.global_variance_ratio, (16 / 16384) ** 0.5)


def test_the_tail_is_the_last_three_lengths_where_few_are_far_and_nothing_where_there_are_fewer():
    near = make_synthetic_result(lengths=(16, 32, 64, 128, 256))
    assert near.tail_frame().first_length.tolist() == [64, 64]
    assert make_synthetic_result(lengths=(16, 4096)).tail_frame().empty
    broken = spoil(spoil(near, "feature_variance", (0, 3, 4), 0.0), "feature_variance", (1, 0))
    assert broken.tail_frame().n_seeds.tolist() == [7, 7]
    dead = spoil(near, "global_variance", 0, 0.0)
    assert dead.tail_frame().global_variance_ratio.isna().tolist() == [True, False]
    assert dead.shift_frame()["mean"].isna().any()


def test_drift_is_measured_from_the_length_next_to_the_longest_of_training():
    result = dataclasses.replace(make_synthetic_result(), train_lengths=(5, 90))
    assert result.reference == 64
    shift = result.shift_frame().set_index(["statistic", "variant", "length"])
    assert shift["mean"]["mean_drift", "layernorm", 64] == 0
    change = result.global_mean[1, :, 5] - result.global_mean[1, :, 1]
    drift = (change / result.global_variance[1, :, 1]).mean()
    assert shift["mean"]["mean_drift", "layernorm", 16384] == pytest.approx(drift)
    typical = stats.gmean(result.feature_variance[1, :, 3])
    assert shift["mean"]["feature_variance", "layernorm", 1024] == pytest.approx(typical)


def test_kept_values_stand_in_their_rows():
    result = make_synthetic_result(3)
    frame = result.feature_frame().set_index(["variant", "length", "set", "feature"])
    assert frame.value["layernorm", 256, 7, 3] == result.feature_values[1, 2, 7, 3]


def test_the_headline_is_one_line_with_the_difference_at_the_longest():
    result = make_synthetic_result()
    row = result.compare_frame().iloc[-1]
    line = result.headline()
    assert line.startswith("synthetic argmax: 2 variants, lengths 16..16384, 8 seeds, 8000 steps")
    assert f"layernorm {100 * row.difference:+.1f} [{100 * row.low:+.1f}, " in line
    assert "\n" not in line
    assert line in repr(result)
    assert make_synthetic_result(9).headline().endswith("and 6 more")


def test_a_document_has_rows_comparisons_tail_and_no_nan():
    document = spoil(make_synthetic_result(3), "accuracy", (0, 0)).to_document()
    json.dumps(document, allow_nan=False)
    assert document["rows"][0]["accuracy"] is None
    assert len(document["comparisons"]) == 2 * 6
    assert [row["variant"] for row in document["tail"]] == list(NAMES[:3])
    assert document["warnings"] == ["short training"]


def test_a_folder_of_an_older_version_had_shared_tests_and_no_errors(tmp_path):
    folder = make_synthetic_result().save(tmp_path / "run")
    document = json.loads((folder / "result.json").read_text())
    del document["checksums"], document["fields"]["shared_tests"], document["fields"]["margins"]
    del document["arrays"]["global_mean_error"]
    with np.load(folder / "arrays.npz") as arrays:
        kept = {name: arrays[name] for name in arrays.files if name != "global_mean_error"}
    np.savez(folder / "arrays.npz", **kept)
    (folder / "result.json").write_text(json.dumps(document))
    old = load_result(folder)
    assert old.shared_tests
    assert "equivalent" not in set(old.compare_frame().verdict)
    drift = old.drift_frame()
    assert drift[["noise", "p"]].isna().all(axis=None)
    assert drift.rms.notna().all()
    assert not drift.significant.any()
    assert "the same for all seeds" in text(old.table())


def test_drifts_that_cancel_over_seeds_are_seen_and_held_against_noise():
    result = make_synthetic_result()
    mean = np.zeros_like(result.global_mean)
    mean[0, :, -1] = 0.5 * np.array([1, -1] * 4)
    result = dataclasses.replace(result, global_mean=mean, global_variance=np.full_like(mean, 2.0))
    signed = result.shift_frame().set_index(["statistic", "variant", "length"])["mean"]
    assert signed["mean_drift", "baseline", 16384] == 0
    drift = result.drift_frame().set_index(["variant", "length"])
    row = drift.loc[("baseline", 16384)]
    assert row.rms == pytest.approx(0.25)
    assert row.noise == pytest.approx(np.hypot(0.01, 0.01) / 2)
    assert row.p < 1e-9
    assert row.significant
    assert drift.loc[("layernorm", 16384)].p == 1
    assert np.isnan(drift.loc[("baseline", 16)].p)  # the length that it is measured from
    assert "0.25" in text(result.table()).split("drift of the global mean")[1]


def test_verdicts_are_by_interval_test_and_margin():
    result = make_synthetic_result()
    rng = np.random.default_rng(0)
    accuracy = np.full_like(result.accuracy, 0.5)
    noise = 1e-3 * rng.normal(size=8)
    for n, (shift, scale) in enumerate(
        [(0.1, 1), (-0.1, 1), (0.002, 1), (0, 1), (0, 60), (0.004, 1)]
    ):
        accuracy[1, :, n] += shift + scale * (noise - noise.mean())
    result = dataclasses.replace(result, accuracy=accuracy)
    words = ["confirmed", "reversed", *["equivalent"] * 2, "undecided", "equivalent"]
    assert result.compare_frame().verdict.tolist() == words
    before = dataclasses.replace(result, margins={})  # as in older versions
    assert before.compare_frame().verdict.tolist() == [
        *("confirmed", "reversed", "confirmed", "undecided", "undecided", "confirmed")
    ]
    assert "No margin was set before the run, so nothing is equivalent." in before.reading()
    assert result.reading().startswith(
        "“layernorm is better than baseline”: confirmed at 16, reversed at 64, equivalent at 256, "
        "1024 and 16384, undecided at 4096 items. Equivalent: the 95 % CI lies within 1 point of 0"
    )
    assert result.remarks() == [result.reading()]
