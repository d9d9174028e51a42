"""The result of a search: paired effects, correlations, words, and refusal of what does not fit."""

import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from checkout import shown_text as text
from scipy import stats
from search_samples import LENGTHS, RANGES, make_search_result

from llmprobe import ResultFormatError, load_result
from llmprobe.base.intervals import holm
from llmprobe.base.signs import minus
from llmprobe.results.search import OUTCOMES, SearchResult

METRICS = SearchResult.by_length
BEYOND = np.array(LENGTHS) > 8
# effect, where, and the (twin, weights) of the pair: with, without.
ROWS = [
    ("dropout", "raw weights", (1, 0), (0, 0)),
    ("dropout", "ema weights", (1, 1), (0, 1)),
    ("dropout", "bema weights", (1, 2), (0, 2)),
    ("ema", "without dropout", (0, 1), (0, 0)),
    ("bema", "without dropout", (0, 2), (0, 0)),
    ("ema", "with dropout", (1, 1), (1, 0)),
    ("bema", "with dropout", (1, 2), (1, 0)),
]


def spoil(result, index, value=np.nan, names=METRICS):
    changed = {name: getattr(result, name).copy() for name in names}
    for array in changed.values():
        array[index] = value
    return dataclasses.replace(result, **changed)


def arranged(result, order):
    names = (*OUTCOMES, *METRICS, "diverged")
    seeds = tuple(result.seeds[i] for i in order)
    return dataclasses.replace(
        result, seeds=seeds, **{name: getattr(result, name)[order] for name in names}
    )


@pytest.fixture(scope="module")
def result():
    return make_search_result()


def test_a_saved_result_comes_back_the_same(tmp_path, result):
    result = spoil(result, (3, 1))
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is SearchResult
    for field in dataclasses.fields(result):
        first, second = getattr(result, field.name), getattr(loaded, field.name)
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype
            np.testing.assert_array_equal(first, second)
        elif field.name != "provenance":
            assert first == second
    assert loaded.to_document() == result.to_document()


@pytest.mark.parametrize(
    "change",
    [
        {"kl": np.zeros((64, 2, 3, 7))},
        {"kl": np.full((64, 2, 3, 8), -0.1)},
        {"gap": np.zeros((64, 3, 8))},
        {"illegal_mass": np.full((64, 2, 3, 8), 1.5)},
        {"illegal_top1": np.full((64, 2, 3, 8), -0.5)},
        {"learning_rate": np.zeros(64)},
        {"learning_rate": np.full(64, np.inf)},
        {"learning_rate": np.ones((64, 1))},
        {"dropout": np.zeros(64)},
        {"dropout": np.full(64, np.nan)},
        {"ema_decay": np.ones(64)},
        {"ema_decay": np.full(64, -0.1)},
        {"width": np.full(64, 32.5)},
        {"depth": np.zeros(64, dtype=np.int64)},
        {"diverged": np.full((64, 2), -2)},
        {"diverged": np.zeros((64, 3), dtype=np.int64)},
        {"seeds": (0,) * 64},
        {"seeds": ()},
        {"seeds": tuple(range(63))},
        {"lengths": (1, 2, 4, 8, 12, 16, 31, 24)},
        {"lengths": (0, *LENGTHS[1:])},
        {"lengths": ()},
        {"train_lengths": (8, 1)},
        {"train_lengths": (8,)},
        {"n_sequences": (1024,)},
        {"n_sequences": (1024.0,) * 8},
        {"vocab": 0},
        {"steps": 1.5},
        {"target": "guessed"},
        {"weights": ("ema", "raw", "bema")},
        {"weights": ("raw", "ema")},
        {"task": None},
        {"warnings": (1,)},
        {"ranges": RANGES | {"depth": 4}},
        {"ranges": {"depth": "1..4"}},
    ],
)
def test_what_does_not_fit_is_refused(result, change):
    with pytest.raises(ValueError, match=r"needs?|accepted"):
        dataclasses.replace(result, **change)


def test_a_damaged_folder_is_refused_in_one_line(tmp_path, result):
    folder = result.save(tmp_path / "run")
    document = json.loads((folder / "result.json").read_text())
    del document["checksums"]  # as older versions wrote it
    document["fields"]["seeds"] = [0, 1]
    (folder / "result.json").write_text(json.dumps(document))
    with pytest.raises(ResultFormatError, match="learning_rate has shape"):
        load_result(folder)


@pytest.mark.parametrize("method", ["pairs_frame", "effect_frame", "correlation_frame", "best"])
def test_an_unknown_metric_is_named_with_the_known_ones(result, method):
    with pytest.raises(ValueError, match="'accuracy', accepted: kl, illegal_mass"):
        getattr(result, method)("accuracy")


def test_the_frame_has_a_row_for_each_evaluation_with_means_beyond_training(result):
    frame = result.to_frame()
    assert list(frame.columns) == [
        *("setting", "seed", "learning_rate", "dropout", "ema_decay", "width", "depth"),
        *("weights", "diverged", *METRICS),
    ]
    assert len(frame) == 64 * 2 * 3
    with_dropout = frame.dropout > 0
    row = frame[(frame.setting == 7) & with_dropout & (frame.weights == "bema")].iloc[0]
    assert row.dropout == result.dropout[7]
    assert row.width == result.width[7]
    for name in METRICS:
        assert row[name] == pytest.approx(getattr(result, name)[7, 1, 2, BEYOND].mean())
    assert with_dropout.mean() == 0.5


def test_outcomes_are_over_all_lengths_where_none_is_beyond_training(result):
    near = dataclasses.replace(result, train_lengths=(1, 31))
    assert near.region == "at all lengths"
    assert near.to_frame().kl[0] == pytest.approx(result.kl[0, 0, 0].mean())
    assert "KL at all lengths: dropout" in near.headline()
    assert "KL at all lengths" in near.reading()


def test_a_length_at_which_there_is_no_gap_is_passed_over(result):
    last = spoil(result, (..., -1), names=["gap"])
    shorter = result.gap[..., BEYOND][..., :-1].mean(axis=-1)
    np.testing.assert_allclose(last.to_frame().gap, shorter.ravel())
    assert (last.effect_frame("gap").n_settings == 64).all()


def test_sums_in_single_precision_are_let_through(result):
    kept = spoil(spoil(result, (0, 0), -1e-7, ["kl"]), (0, 0), 1 + 1e-7, ["illegal_mass"])
    assert kept.effect_frame().n_settings[0] == 63  # a ratio with what is not positive is none


@pytest.mark.parametrize("metric", METRICS)
def test_effects_are_scipys(result, metric):
    frame = result.effect_frame(metric)
    values = getattr(result, metric)[..., BEYOND].mean(axis=-1)
    ratio = metric in ("kl", "illegal_mass")
    assert list(zip(frame.effect, frame["where"], strict=True)) == [row[:2] for row in ROWS]
    for row, (_, _, with_it, without) in zip(frame.itertuples(), ROWS, strict=True):
        a, b = values[:, *with_it], values[:, *without]
        change = np.log(a) - np.log(b) if ratio else np.round(a - b, 12)
        interval = stats.ttest_1samp(change, 0).confidence_interval()
        expected = np.array([change.mean(), interval.low, interval.high])
        found = [row.effect_size, row.low, row.high]
        np.testing.assert_allclose(found, np.exp(expected) if ratio else expected)
        assert row.p == pytest.approx(stats.wilcoxon(change).pvalue)
        better = change > 0 if metric == "gap" else change < 0
        assert row.helps == pytest.approx(better.mean() + (change == 0).mean() / 2)
        assert (row.scale, row.n_settings) == ("ratio" if ratio else "difference", 64)
    assert frame.significant.tolist() == holm(frame.p).tolist()


def with_factor(result, dropout, averaging=1.0):
    """KL of the raw weights without dropout, multiplied exactly."""
    factor = np.array([1, dropout])[:, None] * np.array([1, averaging, averaging])
    return dataclasses.replace(result, kl=result.kl[:, :1, :1] * factor[..., None])


def test_an_exact_effect_is_found_and_confirmed(result):
    exact = with_factor(result, 0.8)
    effects = exact.effect_frame()
    np.testing.assert_allclose(effects.effect_size, [0.8] * 3 + [1] * 4)
    np.testing.assert_allclose(effects[["low", "high"]].iloc[:3], 0.8)
    assert effects.helps.tolist() == [1] * 3 + [0.5] * 4
    assert effects.p.isna().tolist() == [False] * 3 + [True] * 4
    assert "“dropout helps”: confirmed for raw weights, ema weights and bema weights." in (
        exact.reading()
    )
    assert "dropout ×0.80 [0.80, 0.80], ema ×1.00 [1.00, 1.00]" in exact.headline()


def test_the_words_are_right_for_every_combination(result):
    words = {0.8: "confirmed", 1.0: "equivalent", 1.01: "equivalent", 1.25: "reversed"}
    for dropout, averaging in itertools.product(words, words):
        first, second, *last = with_factor(result, dropout, averaging).reading().split(". ")
        assert first == (
            "With a constant learning rate, "
            f"“dropout helps”: {words[dropout]} for raw weights, ema weights and bema weights"
        )
        assert second == (
            f"“Averaging helps”: {words[averaging]} for ema without dropout, bema without "
            "dropout, ema with dropout and bema with dropout"
        )
        assert "ratio of KL beyond training, over settings (n = 64), and Wilcoxon" in last[0]
        assert "lies within 2 % of 0" in last[1]


def test_mixed_verdicts_are_told_apart(result):
    kl = with_factor(result, 0.8).kl.copy()
    kl[:, 1, 1] = 1.25 * kl[:, 0, 1]
    kl[:, 1, 2] = kl[:, 0, 2]
    first, second, *_ = dataclasses.replace(result, kl=kl).reading().split(". ")
    assert first.endswith(
        "confirmed for raw weights, reversed for ema weights, equivalent for bema weights"
    )
    assert second.endswith(
        "reversed for ema with dropout and bema with dropout, "
        "equivalent for ema without dropout and bema without dropout"
    )


def test_without_a_test_nothing_is_decided(result):
    few = with_factor(make_search_result(5), 0.8)
    assert few.effect_frame().p.isna().all()
    assert "undecided for raw weights, ema weights and bema weights" in few.reading()
    enough = with_factor(make_search_result(6), 0.8)
    assert enough.effect_frame().p[0] == pytest.approx(2 / 2**6)


def test_an_interval_without_a_significant_test_decides_nothing():
    exact = with_factor(make_search_result(6), 0.8)  # p is 1/32, too much for Holm over three
    assert (exact.effect_frame().high[:3] < 1).all()
    assert "undecided for raw weights" in exact.reading()


@pytest.mark.slow  # the intervals' own coverage is in test_intervals
def test_intervals_cover_the_truth_and_false_alarms_are_rare():
    covered, alarms = [], []
    for seed in range(200):
        null = make_search_result(12, (16,), seed=seed, dropout=1, averaging=1)
        effects = null.effect_frame()
        covered.append((effects.low < 1) & (effects.high > 1))
        alarms.append(effects.significant.any())
    assert np.mean(covered) == pytest.approx(0.95, abs=0.025)
    assert np.mean(alarms) <= 0.08


def test_the_order_of_settings_says_nothing(result):
    result = spoil(result, (9, 1))
    other = arranged(result, np.random.default_rng(1).permutation(64))
    for method in ("effect_frame", "correlation_frame"):
        for metric in METRICS:
            first, second = getattr(result, method)(metric), getattr(other, method)(metric)
            pd.testing.assert_frame_equal(first, second, rtol=1e-9)
    assert other.headline() == result.headline()
    assert other.reading() == result.reading()
    best = [r.best(n=7).drop(columns="setting") for r in (result, other)]
    pd.testing.assert_frame_equal(*best)


def test_settings_without_numbers_are_left_out_in_pairs_and_not_counted(result):
    spoiled = spoil(spoil(spoil(result, (2, 1)), (5, 0, 1)), (8, 0, 0, -1))
    for metric in METRICS:
        effects = spoiled.effect_frame(metric)
        assert effects.n_settings.tolist() == [62, 62, 63, 62, 63, 63, 63]
    # raw: 2 and 8 are gone; ema: 2 and 5.
    kept = np.delete(np.arange(64), [2, 8])
    expected = arranged(result, kept).effect_frame().iloc[0]
    found = spoiled.effect_frame().iloc[0]
    assert found.drop("significant").to_dict() == pytest.approx(
        expected.drop("significant").to_dict()
    )
    assert spoiled.correlation_frame().n_settings.tolist() == [63, 62, 62, 63, 63]
    assert "(n = 62 to 63)" in spoiled.reading()
    assert spoiled.pairs_frame().change.isna().sum() == 7 * 64 - effects.n_settings.sum()


def test_what_has_no_ratio_is_left_out_too(result):
    perfect = spoil(result, (4, 1, 0), 0.0, ["kl", "illegal_top1"])
    assert perfect.effect_frame().n_settings[0] == 63
    assert perfect.effect_frame("illegal_top1").n_settings[0] == 64


def plain_interval(x, y):
    """As in the textbook, resample by resample."""
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    draws = np.random.default_rng(0).integers(len(x), size=(2000, len(x)))
    return np.percentile([stats.spearmanr(x[d], y[d]).statistic for d in draws], [2.5, 97.5])


def test_correlations_are_scipys_with_the_plain_bootstrap(result):
    frame = result.correlation_frame()
    kl = result.kl[..., BEYOND].mean(axis=-1)
    plain = kl[:, 0, 0]
    outcomes = {"dropout": kl[:, 1, 0] / plain, "ema_decay": kl[:, 0, 1] / plain}
    assert frame.parameter.tolist() == list(OUTCOMES)
    for row in frame.itertuples():
        x, y = getattr(result, row.parameter), outcomes.get(row.parameter, plain)
        found = stats.spearmanr(x, y)
        np.testing.assert_allclose([row.rho, row.p], [found.statistic, found.pvalue])
        assert row.low < row.rho < row.high
        if row.parameter in ("dropout", "width"):  # one without ties, one with many
            np.testing.assert_allclose([row.low, row.high], plain_interval(x, y))
    assert frame.outcome.tolist()[:3] == [
        *("raw weights without dropout", "dropout, raw weights", "ema, without dropout")
    ]


def test_a_perfect_order_correlates_perfectly_and_what_does_not_vary_does_not(result):
    kl = np.broadcast_to(result.learning_rate[:, None, None, None], result.kl.shape)
    same = dataclasses.replace(result, kl=kl.copy(), depth=np.full(64, 2))
    frame = same.correlation_frame().set_index("parameter")
    np.testing.assert_allclose(frame.loc["learning_rate", ["rho", "low", "high"]].tolist(), 1)
    assert frame.loc["depth", ["rho", "low", "high", "p"]].isna().all()
    assert frame.n_settings["depth"] == 64
    assert make_search_result(5).correlation_frame().rho.isna().all()


def test_the_best_are_the_lowest_but_the_widest_gap(result):
    spoiled = spoil(result, (0, 1))
    frame = spoiled.to_frame()
    for metric in METRICS:
        best = spoiled.best(metric, n=4)
        values = frame[metric].dropna().sort_values(ascending=metric != "gap")
        assert best[metric].tolist() == values.iloc[:4].tolist()
        assert list(best.columns) == list(frame.columns)
    assert len(spoiled.best()) == 5


def test_the_headline_is_one_line_with_three_effects(result):
    line = result.headline()
    effects = result.effect_frame()
    assert line.startswith(
        "search set-complement: 64 settings, 1..31 tokens (trained to 8), 2000 steps; "
        "KL beyond training: dropout ×"
    )
    for number in (0, 3, 4):
        row = effects.iloc[number]
        size = f"{row.effect} ×{row.effect_size:.2f} [{row.low:.2f}, {row.high:.2f}]"
        assert size in line
    assert line.count("×") == 3
    assert line in repr(result)


def test_one_setting_and_no_finite_one_break_nothing():
    one = make_search_result(1)
    assert one.effect_frame().low.isna().all()
    assert "1 setting, " in one.headline()
    assert "[" not in one.headline()
    hopeless = spoil(make_search_result(8), slice(None))
    assert (hopeless.effect_frame().n_settings == 0).all()
    assert hopeless.effect_frame().helps.isna().all()
    assert hopeless.best().empty
    assert "nan" in hopeless.headline()
    assert "undecided" in hopeless.reading()
    json.dumps(hopeless.to_document(), allow_nan=False)


def test_a_document_has_effects_correlations_words_and_no_nan(result):
    document = spoil(result, (0, 0)).to_document()
    json.dumps(document, allow_nan=False)
    assert document["rows"][0]["kl"] is None
    assert [row["effect"] for row in document["effects"]] == [row[0] for row in ROWS]
    assert [row["parameter"] for row in document["correlations"]] == list(OUTCOMES)
    assert document["reading"].startswith("With a constant learning rate, “dropout helps”:")
    assert document["warnings"] == ["short training"]
    assert document["ranges"] == RANGES


def test_a_search_shows_effects_correlations_and_its_reading():
    result = make_search_result()
    shown = " ".join(text(result.table()).split())
    for row in result.effect_frame().to_dict("records"):
        assert f"{row['effect_size']:.3f} {row['low']:.3f} to {row['high']:.3f}" in shown
        assert f"{row['helps']:.0%}" in shown
    for row in result.correlation_frame().to_dict("records"):
        assert minus(f"{row['rho']:+.2f} {row['low']:+.2f} to {row['high']:+.2f}") in shown
        assert result.ranges[row["parameter"]] in shown
    assert result.remarks() == [result.reading()]


def test_the_strength_of_a_remedy_is_held_against_its_paired_effect(result):
    """What makes all of a setting's networks worse alike is not dropout's doing."""
    hard = np.argsort(np.argsort(result.dropout)) / 10  # the stronger dropout, the worse both
    kl = result.kl * np.exp(hard)[:, None, None, None]
    confounded = dataclasses.replace(result, kl=kl)
    frames = [r.correlation_frame().set_index("parameter") for r in (result, confounded)]
    assert frames[0].rho["dropout"] == pytest.approx(frames[1].rho["dropout"])
    assert abs(frames[1].rho["dropout"]) < 0.3
    alone = stats.spearmanr(result.dropout, kl[:, 1, 0][:, BEYOND].mean(axis=-1)).statistic
    assert alone > 0.7
    scale = result.scatter_frame().groupby("parameter", sort=False).scale.first()
    assert scale.tolist() == ["value", "ratio", "ratio", "value", "value"]
    assert set(result.scatter_frame("gap").scale) == {"value", "difference"}
