"""Results about sets of allowed tokens: frames, tests over seeds, refusal of what does not fit."""

import dataclasses
import json

import numpy as np
import pytest
from checkout import shown_text as text
from legal_samples import make_legality_result
from samples import NAMES, check_same, spoil
from scipy import stats

from llmprobe import ResultFormatError, load_result
from llmprobe.base.intervals import holm
from llmprobe.base.signs import minus
from llmprobe.results.legality import METRICS, LegalityResult
from llmprobe.results.trained import TARGETS


def kill(result, index):
    """As a seed is whose weights are not finite."""
    for name in METRICS:
        result = spoil(result, name, index)
    return result


@pytest.mark.parametrize("task", ["set-complement", "othello"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_saved_result_comes_back_the_same(task, target, tmp_path):
    result = dataclasses.replace(kill(make_legality_result(3, task=task), (0, 1)), target=target)
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is LegalityResult
    check_same(result, loaded)
    assert loaded.headline() == result.headline()


@pytest.mark.parametrize(
    "change",
    [
        {"kl": np.zeros((2, 8, 5))},
        {"kl": np.full((2, 8, 31), -0.1)},
        {"kl": np.full((2, 8, 31), np.inf)},
        {"illegal_mass": np.zeros((2, 31))},
        {"illegal_mass": np.full((2, 8, 31), 1.1)},
        {"illegal_top1": np.full((2, 8, 31), -0.1)},
        {"illegal_top1": np.full((2, 8, 31), "a")},
        {"gap": np.zeros(31)},
        {"gap": np.full((2, 8, 31), -np.inf)},
        {"uniform_mass": np.zeros(30)},
        {"uniform_mass": np.full(31, np.nan)},
        {"uniform_mass": np.full(31, 1.5)},
        {"diverged": np.zeros((2, 7), dtype=np.int64)},
        {"loss": np.zeros((2, 8, 3))},
        {"loss_steps": np.array(3)},
        {"variants": ("baseline", "baseline")},
        {"variants": (1, 2)},
        {"variants": ()},
        {"seeds": (0,) * 8},
        {"seeds": tuple("01234567")},
        {"lengths": ()},
        {"lengths": tuple(range(31))},
        {"lengths": tuple(range(31, 0, -1))},
        {"lengths": tuple(np.arange(1.0, 32.0))},
        {"train_lengths": (8, 1)},
        {"train_lengths": (1, 8, 9)},
        {"train_lengths": (0, 8)},
        {"train_lengths": ()},
        {"n_sequences": (4096,)},
        {"n_sequences": (0,) * 31},
        {"vocab": 0},
        {"vocab": "many"},
        {"target": "uniform"},
        {"target": None},
        {"steps": 1.5},
        {"warnings": (1,)},
        {"schedule": None},
        {"task": 7},
    ],
)
def test_what_does_not_fit_is_refused(change):
    with pytest.raises(ValueError, match=r"needs?|accepted"):
        dataclasses.replace(make_legality_result(), **change)


def test_rounding_is_no_fault():
    result = make_legality_result()
    shape = result.kl.shape
    dataclasses.replace(result, kl=np.full(shape, -1e-7), illegal_mass=np.full(shape, 1 + 1e-7))


def test_a_damaged_folder_is_refused_in_one_line(tmp_path):
    folder = make_legality_result().save(tmp_path / "run")
    document = json.loads((folder / "result.json").read_text())
    del document["checksums"]  # as older versions wrote it
    document["fields"]["seeds"] = [0, 1]
    (folder / "result.json").write_text(json.dumps(document))
    with pytest.raises(ResultFormatError, match="diverged has shape"):
        load_result(folder)


def test_the_frame_has_the_public_columns_and_a_row_for_each_number():
    result = make_legality_result(3, tuple(range(1, 60)), task="othello")
    frame = result.to_frame()
    assert list(frame.columns) == [
        *("task", "variant", "seed", "length", "n_sequences"),
        *("kl", "illegal_mass", "illegal_top1", "gap", "entropy"),
    ]
    assert len(frame) == 3 * 8 * 59
    row = frame[(frame.variant == "layernorm") & (frame.seed == 5) & (frame.length == 55)]
    for name in METRICS:
        assert row[name].item() == getattr(result, name)[1, 5, 54]
    assert row.n_sequences.item() == 1000
    assert set(frame.task) == {"othello"}


def test_the_other_frames_have_their_columns_too():
    result = make_legality_result(3)
    assert list(result.summary_frame().columns) == [
        *("variant", "length", "mean", "sd", "low", "high", "n_seeds")
    ]
    assert list(result.compare_frame().columns) == [
        *("variant", "reference", "length", "difference"),
        *("low", "high", "p", "significant", "n_seeds"),
    ]
    assert list(result.beyond_frame().columns) == [
        *("metric", "variant", "n_lengths", "mean", "low", "high", "difference"),
        *("difference_low", "difference_high", "p", "n_seeds", "n_pairs", "verdict"),
    ]
    assert list(result.gap_frame().columns) == [
        *("variant", "slope", "low", "high", "n_lengths", "n_seeds")
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_a_summary_is_the_plain_mean_with_its_t_interval(metric):
    result = make_legality_result(2)
    summary = result.summary_frame(metric).set_index(["variant", "length"])
    values = getattr(result, metric)[1, :, 11]
    row = summary.loc[("layernorm", 12)]
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    np.testing.assert_allclose([row.low, row.high], expected)
    np.testing.assert_allclose([row["mean"], row.sd], [values.mean(), values.std(ddof=1)])
    assert row.n_seeds == 8


@pytest.mark.parametrize("metric", METRICS)
def test_a_comparison_is_scipys_paired_test_with_holm_over_lengths(metric):
    result = make_legality_result(3, (1, 4, 9, 20))
    frame, values = result.compare_frame(metric), getattr(result, metric)
    for row in frame.itertuples():
        v, n = result.variants.index(row.variant), result.lengths.index(row.length)
        found = stats.ttest_rel(values[v, :, n], values[0, :, n])
        interval = found.confidence_interval()
        assert row.reference == "baseline"
        np.testing.assert_allclose(
            [row.p, row.low, row.high], [found.pvalue, interval.low, interval.high]
        )
        assert row.difference == pytest.approx((row.low + row.high) / 2)
    for _, rows in frame.groupby("variant"):
        assert rows.significant.tolist() == holm(rows.p).tolist()
    assert frame.significant.any()
    assert not frame.significant.all()


def test_an_unknown_metric_is_refused_with_the_known_ones():
    result = make_legality_result()
    for ask in (result.summary_frame, result.compare_frame):
        with pytest.raises(ValueError, match="'accuracy', accepted: illegal_top1, illegal_mass"):
            ask("accuracy")


def test_beyond_is_one_number_a_seed_over_the_lengths_that_training_never_reached():
    result = make_legality_result(3)
    assert result.beyond == tuple(range(9, 32))
    frame = result.beyond_frame()
    assert list(frame.metric) == [name for name in METRICS for _ in range(3)]
    assert (frame.n_lengths == 23).all()
    assert (frame.n_seeds == 8).all()
    for row in frame.itertuples():
        v = result.variants.index(row.variant)
        seeds = getattr(result, row.metric)[..., 8:].mean(axis=-1)
        np.testing.assert_allclose(
            [row.mean, row.low, row.high],
            [seeds[v].mean(), *stats.ttest_1samp(seeds[v], 0).confidence_interval()],
        )
        found = [row.difference, row.difference_low, row.difference_high, row.p]
        if v == 0:
            assert np.isnan(found).all()
            assert row.n_pairs == 0
        else:
            test = stats.ttest_rel(seeds[v], seeds[0])
            difference = (seeds[v] - seeds[0]).mean()
            expected = [difference, *test.confidence_interval(), test.pvalue]
            np.testing.assert_allclose(found, expected)
            assert row.n_pairs == 8


def test_seeds_without_numbers_are_left_out_in_pairs_and_not_counted():
    result = make_legality_result()
    spoiled = kill(kill(result, (0, 2)), (1, 5))
    assert (spoiled.compare_frame().n_seeds == 6).all()
    assert (spoiled.summary_frame("kl").n_seeds == 7).all()
    beyond = spoiled.beyond_frame()
    assert (beyond.n_seeds == 7).all()
    assert beyond.n_pairs.tolist() == [0, 6] * 4
    assert spoiled.gap_frame().n_seeds.tolist() == [7, 7]
    kept = [0, 1, 3, 4, 6, 7]
    seeds = result.illegal_top1[:, kept, 8:].mean(axis=-1)
    assert beyond.p[1] == pytest.approx(stats.ttest_rel(seeds[1], seeds[0]).pvalue)


def test_a_length_without_a_gap_counts_for_no_seed():
    result = make_legality_result()
    free = spoil(result, "gap", (..., 30))  # no token is left: there is nothing to be apart from
    beyond = free.beyond_frame().set_index(["metric", "variant"])
    assert beyond.n_lengths["gap", "layernorm"] == 22
    assert beyond.n_lengths["kl", "layernorm"] == 23
    expected = result.gap[1, :, 8:30].mean()
    assert beyond["mean"]["gap", "layernorm"] == pytest.approx(expected)
    assert free.gap_frame().n_lengths.tolist() == [30, 30]
    assert free.gap_frame().n_seeds.tolist() == [8, 8]
    nowhere = spoil(result, "gap", (..., slice(8, None))).beyond_frame()
    assert nowhere[nowhere.metric == "gap"].n_lengths.tolist() == [0, 0]
    assert nowhere[nowhere.metric == "gap"]["mean"].isna().all()


def test_nothing_is_beyond_where_training_saw_all_lengths():
    result = dataclasses.replace(make_legality_result(), train_lengths=(1, 31))
    assert result.beyond == ()
    assert result.beyond_frame().empty
    assert result.to_document()["comparisons"] == []
    row = result.compare_frame("illegal_mass").iloc[-1]
    assert f"at 31: baseline {100 * result.illegal_mass[0, :, -1].mean():.1f} %" in (
        result.headline()
    )
    assert minus(f"layernorm {100 * row.difference:+.1f} points [") in result.headline()


@pytest.mark.parametrize("slope", [-1.0, -0.5, 0.25])
def test_the_gap_finds_the_slope_of_an_exact_law(slope):
    result = make_legality_result()
    level = np.exp(np.random.default_rng(1).normal(size=(2, 8, 1)))
    law = level * np.array(result.lengths, dtype=float) ** slope
    frame = dataclasses.replace(result, gap=law).gap_frame()
    np.testing.assert_allclose(frame[["slope", "low", "high"]], slope)
    assert frame.variant.tolist() == list(NAMES[:2])


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_a_seed_whose_gap_is_not_positive_has_no_slope(value):
    result = make_legality_result()
    frame = spoil(result, "gap", (1, 3, 20), value).gap_frame()
    assert frame.n_seeds.tolist() == [8, 7]
    x, others = np.log(result.lengths), np.delete(result.gap[1], 3, axis=0)
    slopes = [np.polyfit(x, np.log(gap), 1)[0] for gap in others]
    assert frame.slope[1] == pytest.approx(np.mean(slopes))


def test_one_length_has_no_slope():
    assert make_legality_result(lengths=(16,)).gap_frame().empty
    assert spoil(make_legality_result(), "gap", ...).gap_frame().empty


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_without_spread_there_is_no_test(shift):
    result = make_legality_result()
    same = np.clip(np.stack([result.illegal_top1[0]] * 2), 0, 0.5)
    same[1] += shift
    twice = dataclasses.replace(result, illegal_top1=same)
    comparisons = twice.compare_frame()
    np.testing.assert_allclose(comparisons.difference, shift)
    assert comparisons.p.isna().all()
    assert not comparisons.significant.any()
    beyond = twice.beyond_frame().iloc[1]
    np.testing.assert_allclose([beyond.difference_low, beyond.difference_high], shift)
    assert np.isnan(beyond.p)


@pytest.mark.parametrize("n_seeds", [1, 2])
def test_few_seeds_say_little_but_break_nothing(n_seeds):
    result = make_legality_result(n_seeds=n_seeds)
    assert result.compare_frame().p.isna().all() == (n_seeds == 1)
    assert result.summary_frame().sd.isna().all() == (n_seeds == 1)
    assert ("[" in result.headline()) == (n_seeds == 2)
    assert "\n" not in repr(result)
    hopeless = kill(result, ...)
    assert hopeless.compare_frame().difference.isna().all()
    assert hopeless.beyond_frame()["mean"].isna().all()
    assert (hopeless.summary_frame().n_seeds == 0).all()
    assert "nan" in hopeless.headline()
    json.dumps(hopeless.to_document(), allow_nan=False)


def test_one_variant_has_nothing_to_compare():
    result = make_legality_result(1)
    assert result.compare_frame().empty
    assert result.beyond_frame().difference.isna().all()
    assert "points" not in result.headline()
    assert result.headline().endswith(" %")


def test_the_headline_is_one_line_with_what_is_beyond_training():
    result = make_legality_result()
    beyond = result.beyond_frame()
    first, second = beyond[beyond.metric == "illegal_mass"].itertuples()
    line = result.headline()
    assert line == (
        "legality set-complement: 2 variants, 1..31 tokens (trained to 8), 8 seeds, 2000 steps; "
        f"illegal mass beyond training: baseline {100 * first.mean:.1f} %, layernorm "
        + minus(
            f"{100 * second.difference:+.1f} points [{100 * second.difference_low:+.1f}, "
            f"{100 * second.difference_high:+.1f}]"
        )
    )
    assert line in repr(result)
    assert make_legality_result(9).headline().endswith("and 6 more")
    assert "more" not in make_legality_result(3).headline()
    othello = make_legality_result(2, tuple(range(1, 60)), task="othello")
    assert "1..59 moves" in othello.headline()
    assert "illegal top-1 beyond" in othello.headline()
    assert (othello.default_plot, result.default_plot) == ("illegal", "mass")
    assert make_legality_result(task="dyck").main_metric == "illegal_mass"


def test_a_document_has_rows_comparisons_gap_and_no_nan():
    document = kill(make_legality_result(3), (0, 0)).to_document()
    json.dumps(document, allow_nan=False)
    assert document["rows"][0]["kl"] is None
    assert len(document["comparisons"]) == 4 * 3
    assert document["comparisons"][0]["difference"] is None
    assert [row["variant"] for row in document["gap"]] == list(NAMES[:3])
    assert document["warnings"] == ["short training"]


def test_a_decoder_has_a_row_a_length_and_its_means_beyond_training():
    result = make_legality_result()
    shown = text(result.table())
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["31"])
    mean, chance = result.illegal_mass[0, :, -1].mean(), result.uniform_mass[-1]
    assert f"{100 * mean:.1f} ± " in row
    assert row.split()[-1] == f"{100 * chance:.0f}"
    beyond = result.beyond_frame()
    for found in beyond[beyond.variant == result.variants[1]].to_dict("records"):
        share = 100 if found["metric"].startswith("illegal") else 1
        low, high = share * found["difference_low"], share * found["difference_high"]
        assert minus(f"{share * found['difference']:+.3g}") in shown
        assert minus(f"[{low:+.3g}, {high:+.3g}]") in shown
    spoiled = result.illegal_mass.copy()
    spoiled[:, 2] = np.nan
    fewer = text(dataclasses.replace(result, illegal_mass=spoiled).table())
    assert "mean ± standard deviation over 7 seeds" in fewer
    assert minus(f"{result.gap_frame().slope[0]:+.3f}") in shown
    assert "mean ± standard deviation over 8 seeds" in shown


def test_othello_has_no_law_of_the_gap():
    shown = text(make_legality_result(task="othello").table())
    assert "log gap" not in shown
    assert "illegal top-1, in %" in shown
    assert "beyond training" in shown


def test_verdicts_know_which_way_is_better():
    result = make_legality_result()
    spread = np.linspace(-1e-4, 1e-4, 8)[:, None]
    changed = {name: getattr(result, name).copy() for name in METRICS}
    for name, shift in {"kl": 0.001, "illegal_mass": 0.05, "illegal_top1": -0.05, "gap": 1}.items():
        changed[name][0] = 0.5
        changed[name][1] = 0.5 + shift + spread
    result = dataclasses.replace(result, **changed)
    frame = result.beyond_frame().set_index(["variant", "metric"]).verdict
    assert (frame["baseline"] == "").all()
    assert frame["layernorm"].to_dict() == {
        "illegal_top1": "confirmed",
        "illegal_mass": "reversed",
        "kl": "equivalent",
        "gap": "confirmed",
    }
    assert result.reading().startswith(
        "Beyond training: “layernorm is better than baseline”: confirmed for illegal top-1 and "
        "logit gap, reversed for illegal mass, equivalent for KL divergence. Equivalent:"
    )
    assert "reversed" in text(result.table())
    assert result.remarks() == [result.reading()]
    inside = dataclasses.replace(result, train_lengths=(1, 31))
    assert inside.remarks() == make_legality_result(1).remarks() == []
