"""The result of a search over sets: paired effects, what decides them, and refusals."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats
from search_samples import SET_RANGES, TIMES, make_set_search_result

from llmprobe import load_result
from llmprobe.base.intervals import holm
from llmprobe.results.set_search import PARAMETERS, SetSearchResult


@pytest.fixture(scope="module")
def result():
    return make_set_search_result()


def test_a_saved_result_comes_back_the_same(tmp_path, result):
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is SetSearchResult
    for field in dataclasses.fields(result):
        first, second = getattr(result, field.name), getattr(loaded, field.name)
        if isinstance(first, np.ndarray):
            np.testing.assert_array_equal(first, second)
        elif field.name != "provenance":
            assert first == second
    assert loaded.to_document() == result.to_document()
    json.dumps(result.to_document(), allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": np.zeros((32, 4, 4))},
        {"accuracy": np.full((32, 4, 5), 1.5)},
        {"entropy": np.zeros((32, 3, 5))},
        {"n_steps": np.zeros(32, dtype=np.int64)},
        {"width": np.full(32, 32.5)},
        {"learning_rate": np.zeros(32)},
        {"weight_decay": np.full(32, np.inf)},
        {"cosine": np.full(32, 2)},
        {"residual": np.full(32, -1)},
        {"diverged": np.full((32, 3), -1)},
        {"variants": ("layernorm", "layernorm", "postnorm")},
        {"variants": (1, 2, 3)},
        {"ranges": {"width": "32"}},
        {"ranges": SET_RANGES | {"width": 32}},
        {"chance": 2.0},
    ],
)
def test_what_does_not_fit_is_refused(result, change):
    with pytest.raises(ValueError, match=r"accepted|needs"):
        dataclasses.replace(result, **change)


def test_where_all_settings_guess_nothing_is_compared(result):
    accuracy = result.accuracy.copy()
    accuracy[:, :2, -1] = 0.1  # without a part, and with the first
    guessed = dataclasses.replace(result, accuracy=accuracy)
    words = guessed.effect_frame().set_index(["variant", "times"]).verdict
    assert words[("layernorm", 256)] == "both at chance"
    assert words[("postnorm", 256)] == "confirmed"
    assert (words.drop([("layernorm", 256)]) != "both at chance").all()
    assert "Both at chance: neither is above guessing" in guessed.reading()
    assert "Both at chance" not in result.reading()


def test_settings_without_a_part_do_not_say_whether_it_was_compared_at_chance(result):
    accuracy = result.accuracy.copy()
    applies = ~np.isnan(accuracy[:, 3, -1])
    accuracy[applies, :, -1] = 0.1  # the other settings have a baseline far above
    accuracy[~applies, 0, -1] = 0.9
    words = dataclasses.replace(result, accuracy=accuracy).effect_frame()
    words = words.set_index(["variant", "times"]).verdict
    assert words[("postnorm", 256)] == "both at chance"
    assert words[("layernorm", 256)] != "both at chance"


def test_effects_are_scipys_paired_within_settings(result):
    frame = result.effect_frame()
    assert len(frame) == 3 * len(TIMES)
    for row in frame.itertuples():
        v, n = 1 + result.variants.index(row.variant), TIMES.index(row.times)
        change = np.round(result.accuracy[:, v, n] - result.accuracy[:, 0, n], 12)
        change = change[np.isfinite(change)]
        assert row.n_settings == len(change)
        if row.times == 1:  # nothing changes there
            assert (row.difference, row.helps, row.better, row.worse) == (0, 0.5, 0, 0)
            assert np.isnan(row.p)
            assert row.verdict == "equivalent"
            continue
        interval = stats.ttest_1samp(change, 0).confidence_interval()
        found = [row.difference, row.low, row.high]
        np.testing.assert_allclose(found, [change.mean(), interval.low, interval.high])
        assert row.p == pytest.approx(stats.wilcoxon(change).pvalue)
        assert row.helps == pytest.approx((change > 0).mean() + (change == 0).mean() / 2)
        assert (row.better, row.worse) == ((change > 0.01).sum(), (change < -0.01).sum())
    for _, part in frame.groupby("variant"):
        assert part.significant.tolist() == holm(part.p).tolist()
    far = frame[frame.times == 256].set_index("variant")
    assert far.verdict[["layernorm", "postnorm"]].tolist() == ["reversed", "confirmed"]
    assert far.verdict["headnorm"] in ("equivalent", "undecided")
    assert far.n_settings["postnorm"] == result.residual.sum()


def test_the_frame_has_what_was_trained_and_nothing_else(result):
    frame = result.to_frame()
    assert len(frame) == np.isfinite(result.accuracy).sum()
    assert (frame.length == frame.times * frame.longest).all()
    assert (frame[frame.variant == "postnorm"].residual == 1).all()
    row = frame[(frame.setting == 7) & (frame.variant == "headnorm") & (frame.times == 64)].iloc[0]
    assert row.accuracy == result.accuracy[7, 2, 3]
    for name in PARAMETERS:
        assert row[name] == getattr(result, name)[7]


def test_what_decides_is_found_by_ranks_and_by_the_tree():
    result = make_set_search_result(48, seed=2, wide=0.2, noise=0.02)
    ranks = result.correlation_frame().set_index(["variant", "parameter"])
    change = result.accuracy[:, 1, 1:].mean(axis=-1) - result.accuracy[:, 0, 1:].mean(axis=-1)
    expected = stats.spearmanr(result.width, np.round(change, 12)).statistic
    row = ranks.loc[("layernorm", "width")]
    assert row.rho == pytest.approx(expected)
    assert row.low < row.rho < row.high
    assert row.significant
    tree = result.tree_frame()
    own = tree[tree.variant == "layernorm"].set_index("settings")
    assert own.index.tolist() == ["width ≤ 64", "width > 64"]  # and no more, for these numbers
    assert own.n_settings.tolist() == [(result.width < 128).sum(), (result.width == 128).sum()]
    for words, members in (("width ≤ 64", result.width < 128), ("width > 64", result.width == 128)):
        assert own.difference[words] == pytest.approx(change[members].mean())
    assert tree[tree.variant == "headnorm"].settings.tolist() == ["all settings"]


def test_the_words_say_where_it_helps_and_in_how_many_settings(result):
    words = result.reading()
    worse = (result.effect_frame().set_index(["variant", "times"]).worse)[("layernorm", 256)]
    assert "“layernorm helps”: reversed at 4, 16, 64 and 256, equivalent at 1 times" in words
    assert f"in {worse} it hurts. “headnorm helps”" in words
    assert "lies within 1 point of 0" in words
    assert "Trained for 2000 to 50000 steps" in words
    assert result.headline().startswith(
        "set-search argmax: 32 settings, to 256 times the training length, up to 50000 steps"
    )
    assert result.command().startswith("llmprobe train-synthetic --task argmax")


@pytest.mark.parametrize("case", ["one", "all NaN", "as many as a test needs"])
def test_hard_cases_break_nothing(case):
    result = make_set_search_result({"one": 1, "as many as a test needs": 6}.get(case, 16))
    if case == "all NaN":
        result = dataclasses.replace(result, accuracy=np.full_like(result.accuracy, np.nan))
    json.dumps(result.to_document(), allow_nan=False)
    assert "undecided" in result.reading()
    for kind in result.plots:
        result.plot(kind)


def test_lengths_within_training_alone_are_all_there_is():
    result = make_set_search_result()
    near = dataclasses.replace(
        result,
        lengths=(1,),
        n_sets=(256,),
        **{name: getattr(result, name)[..., :1] for name in SetSearchResult.by_length},
    )
    assert set(near.tree_frame().settings) == {"all settings"}
