"""The search: settings of their seeds alone, every one trained with its twin, numbers in place."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from devices import DEVICE

from llmprobe import load_result
from llmprobe.results.search import SearchResult
from llmprobe.synthetic import search_plan as search
from llmprobe.synthetic.decoder_plan import DecoderTraining
from llmprobe.synthetic.decoder_scores import SCORES, score
from llmprobe.synthetic.lab import search_synthetic
from llmprobe.synthetic.plan import Done
from llmprobe.synthetic.search_plan import RANGES, WEIGHTS, SearchPlan, draw_setting
from llmprobe.synthetic.training import train

NETWORK = "mlp+prenorm"
BASE = DecoderTraining(vocab=6, batch=8, steps=3, shortest=1, longest=2, seeds=tuple(range(40)))
PLAN = SearchPlan((NETWORK,), BASE, (1, 3, 5), 16)
TINY = {"n": 3, "vocab": 6, "steps": 4, "sets": 16, "train_lengths": "1..2"}


def test_settings_lie_in_their_ranges():
    settings = [draw_setting(seed) for seed in range(300)]
    for name, range_ in RANGES.items():
        drawn = np.array([getattr(setting, name) for setting in settings])
        if range_.of:
            assert set(drawn.tolist()) == set(range_.of)
            assert all(type(getattr(setting, name)) is int for setting in settings)
            assert np.unique(drawn, return_counts=True)[1].min() > 60
            continue
        if name == "ema_decay":
            drawn = 1 - drawn
        low, high = range_.ends
        assert low <= drawn.min()
        assert drawn.max() <= high
        if range_.log:
            drawn, low, high = np.log(drawn), np.log(low), np.log(high)
        quarters = np.histogram(drawn, bins=4, range=(low - 1e-9, high + 1e-9))[0]
        assert quarters.sum() == 300
        assert quarters.min() > 45  # of 75: nearly flat


def test_a_setting_depends_on_its_seed_alone():
    torch.manual_seed(0)
    first = [draw_setting(seed) for seed in range(20)]
    drawn = torch.rand(1)
    assert [draw_setting(seed) for seed in reversed(range(20))][::-1] == first
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    assert [setting.seed for setting in first] == list(range(20))
    assert len({setting.learning_rate for setting in first}) == 20


@pytest.mark.parametrize("seeds", [range(5), range(12), range(3, 9), (7, 2)])
def test_more_settings_change_none_of_the_others(seeds):
    some = dataclasses.replace(PLAN, base=dataclasses.replace(BASE, seeds=tuple(seeds)))
    whole = PLAN.settings()
    assert some.settings() == [whole[seed] for seed in seeds]


@pytest.mark.parametrize("stack", [2, 4, 16])
def test_pieces_have_every_setting_once_with_its_twin(stack, monkeypatch):
    monkeypatch.setattr(search, "STACK", stack)
    pieces = PLAN.pieces()
    assert len({piece.name for piece in pieces}) == len(pieces)
    seen = []
    for piece in pieces:
        training = piece.training
        assert piece.variants == (NETWORK, f"{NETWORK}+ema", f"{NETWORK}+bema")
        assert training.parse(training.variant) == BASE.parse(f"{NETWORK}+dropout")
        assert set(training.averages) == {"ema", "bema"}
        assert 2 <= len(training.seeds) <= stack
        for index, seed in enumerate(training.seeds):
            setting = draw_setting(seed)
            rate = training.dropout[index]
            assert rate in (0, setting.dropout)
            assert training.learning_rate[index] == setting.learning_rate
            assert training.ema_decay[index] == setting.ema_decay
            assert (training.width, training.layers) == (setting.width, setting.depth)
            seen.append((seed, rate > 0))
        for name in ("vocab", "batch", "steps", "shortest", "longest", "target", "schedule"):
            assert getattr(training, name) == getattr(BASE, name)
    assert sorted(seen) == list(itertools.product(range(40), (False, True)))
    sizes = [piece.training.width**2 * piece.training.layers for piece in pieces]
    assert sizes == sorted(sizes, reverse=True)


def code(metric, seed, dropped, weights, length):
    """A number that says whose it is, between 0 and 1 as masses and shares are."""
    parts = (SCORES.index(metric), seed, dropped, WEIGHTS.index(weights), length)
    return sum(part / 100 ** (i + 1) for i, part in enumerate(parts))


def coded(piece):
    """What a piece would have come to, told from its training and the variants' names."""
    training, measured = piece.training, {}
    twins = list(zip(training.seeds, training.dropout, strict=True))
    for variant in piece.variants:
        weights = next((w for w in WEIGHTS if w in variant.split("+")), "raw")
        measured[variant] = {
            name: np.array(
                [[code(name, s, rate > 0, weights, n) for n in PLAN.lengths] for s, rate in twins]
            )
            for name in SCORES
        }
        measured[variant]["n_sequences"] = np.full((len(twins), len(PLAN.lengths)), 16.0)
    diverged = np.array([s if rate > 0 and s % 3 == 0 else -1 for s, rate in twins])
    return Done(piece, measured, np.zeros((1, len(twins))), diverged)


@pytest.mark.parametrize("stack", [2, 6, 16])
def test_numbers_are_put_where_they_belong(stack, monkeypatch):
    monkeypatch.setattr(search, "STACK", stack)
    done = [coded(piece) for piece in PLAN.pieces()]
    for order in (done, done[::-1]):
        result = PLAN.join(order, torch.device("cpu"))
        assert result.seeds == tuple(range(40))
        for index, setting in enumerate(PLAN.settings()):
            for name in RANGES:
                assert getattr(result, name)[index] == getattr(setting, name)
        for name in SCORES:
            expected = [
                [
                    [[code(name, s, on, w, n) for n in PLAN.lengths] for w in WEIGHTS]
                    for on in (0, 1)
                ]
                for s in range(40)
            ]
            np.testing.assert_array_equal(getattr(result, name), expected)
        bad = [s for s in range(40) if s % 3 == 0]
        assert (result.diverged[:, 0] == -1).all()
        assert np.flatnonzero(result.diverged[:, 1] >= 0).tolist() == bad
        assert any(str(bad) in warning for warning in result.warnings)


@pytest.fixture(scope="module")
def result():
    return search_synthetic("set-complement", **TINY)


def check_equal(one, other):
    for field in dataclasses.fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if isinstance(first, np.ndarray):
            np.testing.assert_array_equal(first, second, err_msg=field.name)
        elif field.name != "provenance":
            assert first == second


def test_a_search_runs_and_is_the_same_each_time(result):
    assert isinstance(result, SearchResult)
    assert result.kl.shape == (3, 2, 3, 5)
    assert np.isfinite(result.kl).all()
    assert result.n_sequences == (16,) * 5
    check_equal(search_synthetic("set-complement", **TINY), result)


def test_a_longer_search_begins_with_the_shorter_one(result):
    longer = search_synthetic("set-complement", **(TINY | {"n": 5}))
    for name in SCORES:
        np.testing.assert_allclose(
            getattr(longer, name)[:3], getattr(result, name), rtol=1e-4, atol=1e-5
        )


def test_a_search_that_was_stopped_ends_the_same(result, tmp_path, monkeypatch):
    monkeypatch.setattr(SearchResult, "save_figure", lambda *arguments: None)
    folder = tmp_path / "run"
    check_equal(search_synthetic("set-complement", **TINY, output=folder), result)
    trained = sorted(folder.glob("checkpoints/width*.safetensors"))
    assert len(trained) > 1
    kept = trained[1].stat().st_mtime_ns
    (folder / "result.json").unlink()
    for path in folder.glob(f"checkpoints/*{trained[0].name.removesuffix('.safetensors')}.*"):
        path.unlink()
    next(folder.glob("checkpoints/*+ema.*")).unlink()
    check_equal(search_synthetic("set-complement", **TINY, output=folder), result)
    assert sorted(folder.glob("checkpoints/width*.safetensors")) == trained
    assert trained[1].stat().st_mtime_ns == kept
    check_equal(load_result(folder), result)


def test_the_configuration_tells_the_ranges_and_not_what_is_drawn():
    facts = PLAN.configuration()
    assert facts["search"].keys() == RANGES.keys()
    assert facts.keys().isdisjoint({"learning_rate", "dropout", "ema_decay", "width", "layers"})
    json.dumps(facts)


def test_the_twins_are_plain_trainings_without_and_with_dropout():
    """To the weights, the averages and the scores."""
    base = dataclasses.replace(BASE, seeds=tuple(range(12)), steps=6)
    plan = dataclasses.replace(PLAN, base=base)
    piece = max(plan.pieces(), key=lambda piece: len(piece.training.seeds))
    stack = train(piece.training, device=DEVICE)
    assert len(piece.training.seeds) >= 4
    for index, seed in list(enumerate(piece.training.seeds))[:4]:
        setting, on = draw_setting(seed), index % 2
        plain = dataclasses.replace(
            base,
            variant=f"{NETWORK}+dropout" if on else NETWORK,
            seeds=(seed,),
            width=setting.width,
            layers=setting.depth,
            learning_rate=setting.learning_rate,
            ema_decay=setting.ema_decay,
            averages=("bema", "ema"),
            **({"dropout": setting.dropout} if on else {}),
        )
        alone = train(plain, device=DEVICE)
        pairs = [(stack.network.state_dict(), alone.network.state_dict())]
        pairs += [(stack.averages[kind], alone.averages[kind]) for kind in ("ema", "bema")]
        for ours, theirs in pairs:
            for name, weight in ours.items():
                torch.testing.assert_close(weight[index], theirs[name][0], rtol=0, atol=3e-5)
        got, expected = (
            score(network, base.sequences, (1, 5), 16)["kl"][0]
            for network in (stack.network.member(index), alone.network)
        )
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"n": 0}, "n: got 0, accepted: 1 or more"),
        ({"variant": "baseline,mlp"}, "variant: got 'baseline, mlp', accepted: one network"),
        ({"variant": "mlp+dropout"}, "variant: got 'mlp.dropout', accepted: one network"),
        ({"variant": "ema"}, "variant: got 'ema', accepted: one network"),
        ({"task": "chess"}, "task: got 'chess', accepted: argmax, dictionary, set-complement"),
    ],
)
def test_what_cannot_be_searched_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        search_synthetic(**(TINY | wrong))
