"""The result of what repairs accuracy: paired differences, predictors, words and refusals."""

import dataclasses
import json

import numpy as np
import pytest
from checkout import shown_text
from mechanism_samples import make_mechanism_result
from scipy import stats

from llmprobe import load_result
from llmprobe.results.mechanism import CONDITIONS, PREDICTORS, MechanismResult


@pytest.fixture(scope="module")
def result():
    return make_mechanism_result()


def test_a_saved_result_comes_back_the_same(tmp_path, result):
    loaded = load_result(result.save(tmp_path / "run"))
    assert type(loaded) is MechanismResult
    assert loaded.to_document() == result.to_document()
    json.dumps(result.to_document(), allow_nan=False)
    assert result.command() is None


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": np.zeros((5, 2, 8, 3))},
        {"accuracy": np.full((5, 2, 8, 4), 1.5)},
        {"set_correlation": np.full((4, 2, 8), -2.0)},
        {"set_correlation": np.zeros((4, 2, 7))},
        {"logit_gap": np.zeros((2, 8))},
        {"conditions": ("as is",)},
        {"variants": ("baseline", "baseline")},
        {"variants": (1, 2)},
        {"chance": 1.5},
        {"chance": "0.1"},
    ],
)
def test_what_does_not_fit_is_refused(result, change):
    with pytest.raises(ValueError, match=r"accepted|needs"):
        dataclasses.replace(result, **change)


def test_repairs_are_scipys_paired_over_seeds(result):
    frame = result.repair_frame()
    assert len(frame) == 4 * 2 * 3
    for row in frame.itertuples():
        c, v = CONDITIONS.index(row.condition), result.variants.index(row.variant)
        n = result.lengths.index(row.length)
        a, b = result.accuracy[c, v, :, n], result.accuracy[0, v, :, n]
        found = stats.ttest_rel(a, b)
        interval = found.confidence_interval()
        np.testing.assert_allclose(
            [row.difference, row.low, row.high, row.p],
            [(a - b).mean(), interval.low, interval.high, found.pvalue],
        )
        lost = (result.accuracy[0, v, :, 0] - b).mean()
        assert row.repaired == pytest.approx(
            (a - b).mean() / lost if lost > 0.01 else np.nan, nan_ok=True
        )
    words = frame[frame.length == 1024].set_index(["condition", "variant"]).verdict
    assert words[("moments", "baseline")] == "equivalent"
    assert words[("shorter", "baseline")] == "confirmed"


def test_predictors_are_means_over_seeds_and_ranks_of_networks_within_lengths(result):
    frame = result.predictor_frame().set_index(["scope", "variant", "predictor"])
    own = frame.loc[("sets", "layernorm", "logit_gap")]
    assert own.rho == pytest.approx(result.set_correlation[1, 1].mean())
    ranks = [
        [stats.rankdata(x[..., n].ravel()) for n in range(4)]
        for x in (result.accuracy[0], result.attention_on_target)
    ]
    a, b = (np.concatenate([r - r.mean() for r in part]) for part in ranks)
    varies = np.repeat([np.ptp(r) > 0 for r in ranks[0]], 16)
    expected = np.corrcoef(a[varies], b[varies])[0, 1]
    assert frame.loc[("networks", "all", PREDICTORS[0])].rho == pytest.approx(expected)


def test_the_interval_over_networks_is_over_seeds(result):
    """A variant with the weights of another adds nothing to what is known."""
    own = result.predictor_frame()
    twice = dataclasses.replace(
        result,
        variants=(*result.variants, "adaptive", "layernorm+adaptive"),
        accuracy=np.concatenate([result.accuracy] * 2, axis=1),
        set_correlation=np.concatenate([result.set_correlation] * 2, axis=1),
        **{name: np.concatenate([getattr(result, name)] * 2) for name in PREDICTORS},
    ).predictor_frame()
    for column in ("rho", "low", "high", "n"):
        a, b = (f[f.scope == "networks"][column].to_numpy() for f in (own, twice))
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert set(own.n) == {len(result.seeds)}


def test_where_all_guess_nothing_is_repaired(result):
    accuracy = result.accuracy.copy()
    accuracy[:3, ..., -1] = 0.1  # as is, and under two changes
    known = dataclasses.replace(result, accuracy=accuracy, chance=0.1)
    words = known.repair_frame().set_index(["condition", "variant", "length"]).verdict
    assert words[("moments", "baseline", 1024)] == "both at chance"
    assert words[("moments", "baseline", 256)] == "equivalent"
    assert words[("shorter", "baseline", 1024)] == "confirmed"
    assert "Both at chance: neither is above guessing" in known.reading()
    older = dataclasses.replace(known, chance=None)  # which did not say what guessing is
    assert "both at chance" not in set(older.repair_frame().verdict)
    assert "Both at chance" not in older.reading()


def test_the_words_say_which_change_repairs(result):
    words = result.reading()
    assert words.startswith("At 1024 items, in points: baseline: “it repairs accuracy”: confirmed")
    assert "the attention of a shorter set" in words
    assert "equivalent for the moments of training" in words
    assert "accuracy of baseline at 1024, in points: moments " in result.headline()
    shown = " ".join(shown_text(result.table()).split())
    for row in result.summary_frame().to_dict("records"):
        assert f"{100 * row['mean']:.1f}" in shown


def test_within_training_nothing_is_changed():
    short = make_mechanism_result(lengths=(8, 16))
    assert short.repair_frame().empty
    assert "nothing was changed" in short.reading()
    assert "in points" not in short.headline()
    json.dumps(short.to_document(), allow_nan=False)
    shown_text(short.table())


def test_one_seed_breaks_nothing():
    one = make_mechanism_result(1)
    assert one.repair_frame().low.isna().all()
    json.dumps(one.to_document(), allow_nan=False)
    for kind in one.plots:
        one.plot(kind)
