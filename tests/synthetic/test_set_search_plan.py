"""The search over sets: settings of their seeds alone, trained with and without each part."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from llmprobe import load_result, load_synthetic, merge_results, search_synthetic
from llmprobe.errors import CheckpointError
from llmprobe.results.set_search import MEASURED, PARAMETERS, SetSearchResult
from llmprobe.synthetic import set_search_plan as search
from llmprobe.synthetic.pieces import as_variant, one_as_variant
from llmprobe.synthetic.plan import Done
from llmprobe.synthetic.set_network import PARTS as PARTS_OF_SETS
from llmprobe.synthetic.set_plan import SetTraining
from llmprobe.synthetic.set_scores import evaluate
from llmprobe.synthetic.set_search_plan import DRAWN, RANGES, SetSearchPlan, draw_set_setting
from llmprobe.synthetic.settings import plan_of, plan_search
from llmprobe.synthetic.training import train
from llmprobe.synthetic.variants import trained_as

PARTS = ("layernorm", "concatnorm", "postnorm", "adaptive")
BASE = SetTraining(seeds=tuple(range(40)), steps=500, batch=8)
PLAN = SetSearchPlan(PARTS, BASE, (1, 4), 16)
TINY = {"n": 3, "steps": 3, "sets": 8, "lengths": (1, 2), "batch": 4}
SMALL = {"width": (8,), "heads": (1, 2), "longest": (6,)}


@pytest.fixture
def small(monkeypatch):
    """Settings of small networks, all of their places drawn."""
    for name, values in SMALL.items():
        monkeypatch.setitem(search.RANGES, name, RANGES[name]._replace(of=values))


def test_settings_lie_in_their_ranges_and_depend_on_their_seed_alone():
    settings = [draw_set_setting(seed, 50_000) for seed in range(300)]
    assert settings[::-1] == [draw_set_setting(seed, 50_000) for seed in reversed(range(300))]
    steps = np.log([s.n_steps for s in settings])
    assert np.histogram(steps, bins=4, range=np.log((1999, 50_001)))[0].min() > 45  # of 75
    for name, range_ in RANGES.items():
        drawn = np.array([getattr(s, name) for s in settings])
        if range_.of:
            assert set(drawn.tolist()) == set(range_.of)
        else:
            assert range_.ends[0] <= drawn.min() <= drawn.max() <= range_.ends[1]
    assert all(s.projection for s in settings if s.heads > 1)
    assert any(s.projection for s in settings if s.heads == 1)


def test_a_part_stands_only_in_networks_that_it_changes():
    for setting in PLAN.settings():
        own = setting.network
        assert ("outproj" in own) == (setting.heads == 1 and setting.projection == 1)
        assert ("residual" in own) == bool(setting.residual)
        assert (setting.with_part("postnorm") is None) == (not setting.residual)
        assert (setting.with_part("concatnorm") is None) == (not setting.projection)
        name = setting.with_part("layernorm")
        assert name == ("layernorm" if own == "baseline" else f"{own}+layernorm")


def test_pieces_are_the_settings_trainings_and_adaptive_needs_none():
    pieces = PLAN.pieces()
    assert len({piece.name for piece in pieces}) == len(pieces)
    for setting in PLAN.settings():
        (piece,) = (piece for piece in pieces if set(piece.training.seeds) == {setting.seed})
        named = [setting.with_part(part) for part in PARTS]
        wanted = {setting.network, *(name for name in named if name)}
        assert set(piece.variants) == wanted
        training = piece.training
        assert len(training.seeds) == len(wanted) - 1  # trained together
        assert len(set(training.each_variant)) == len(wanted) - 1
        for variant in wanted:
            (index,) = training.members(variant)
            assert training.each_variant[index] == trained_as(variant, training.parts)
        assert training.steps == setting.n_steps
        assert training.longest == setting.longest
        assert training.schedule == ("cosine" if setting.cosine else "constant")
        assert (training.clip, training.batch) == (BASE.clip, BASE.batch)
        for name in ("learning_rate", "weight_decay", "width", "heads", "mlp_layers"):
            assert getattr(training, name) == getattr(setting, name)
    costs = [p.training.steps * p.training.width * p.training.longest for p in pieces]
    assert costs == sorted(costs, reverse=True)


def test_what_one_network_cannot_hold_is_trained_apart():
    compared = ("layernorm", "standardize", "ssmax", "dropout", "ema", "postnorm")
    pieces = SetSearchPlan(compared, BASE, (1, 4), 16).pieces()
    assert len({piece.name for piece in pieces}) == len(pieces)
    for setting in PLAN.settings():
        own = [piece for piece in pieces if set(piece.training.seeds) == {setting.seed}]
        found = [name for piece in own for name in piece.variants]
        named = [setting.with_part(part) for part in compared]
        assert sorted(found) == sorted({setting.network, *(name for name in named if name)})
        for piece in own:
            piece.training.new_network()  # refuses what cannot share one
            average = any("ema" in name for name in piece.variants)
            assert piece.training.averages == (("ema",) if average else ())
    assert min(len(piece.training.seeds) for piece in pieces) == 1


@pytest.mark.parametrize(
    ("parts", "n"),
    [
        (PARTS, 4),  # all but adaptive, and none
        (("dropout", "layernorm+dropout", "headnorm+dropout+ema"), 3),
        (("clipped", "layernorm+clipped", "layernorm+ema"), 2),
    ],
)
def test_trainings_done_together_are_those_done_alone(small, parts, n):
    clip = 0.0 if "clipped" in parts else 1.0
    base = dataclasses.replace(BASE, steps=100, clip=clip, ema_decay=0.9)
    plan = SetSearchPlan(parts, base, (1,), 8)
    # The last stack is that of the parts which no setting has by itself.
    piece = [piece for piece in plan.pieces() if len(piece.training.seeds) == n][-1]
    together = train(piece.training)
    for variant in piece.variants:
        (index,) = piece.training.members(variant)
        alone = dataclasses.replace(
            piece.training,
            variant=trained_as(variant, PARTS_OF_SETS),
            each_variant=None,
            seeds=piece.training.seeds[:1],
        )
        expected = as_variant(alone, train(alone), variant)
        got = as_variant(piece.training, together, variant)
        assert got.variant == expected.variant == variant
        assert got.seeds == expected.seeds
        torch.testing.assert_close(got.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
        one = one_as_variant(piece.training, together, variant, index)
        torch.testing.assert_close(one.state_dict(), got.state_dict(), rtol=0, atol=0)


def test_a_stack_gives_no_other_variants():
    (piece,) = SetSearchPlan(
        PARTS, dataclasses.replace(BASE, seeds=(0,), steps=1), (1,), 8
    ).pieces()
    trained = train(dataclasses.replace(piece.training, steps=1))
    with pytest.raises(CheckpointError, match="ssmax: its training is not among those of this"):
        as_variant(piece.training, trained, "ssmax")
    alone = dataclasses.replace(piece.training, each_variant=None, seeds=(0,), variant="layernorm")
    with pytest.raises(RuntimeError, match=r"norm\.gain"):
        as_variant(alone, train(alone), "baseline")


@pytest.mark.parametrize("wrong", [("layernorm", "baseline"), ("baseline",)])
def test_the_variants_of_a_stack_fit_its_seeds(wrong):
    with pytest.raises(
        ValueError, match=r"each_variant: got .*accepted: one for each of the 2 seeds"
    ):
        SetTraining(variant="baseline", each_variant=wrong, seeds=(0, 0))


def test_numbers_are_put_where_they_belong():
    def coded(piece):
        setting = draw_set_setting(piece.training.seeds[0], BASE.steps)
        names = [setting.network, *(setting.with_part(part) for part in PARTS)]
        measured = {
            variant: {
                name: np.array(
                    [[code(name, setting.seed, names.index(variant), n) for n in (0, 1)]]
                )
                for name in MEASURED
            }
            for variant in piece.variants
        }
        firsts = [piece.training.members(variant)[0] for variant in piece.variants]
        rows = [names.index(piece.variants[firsts.index(i)]) for i in range(max(firsts) + 1)]
        ended = 100 * setting.seed + np.array(rows)
        return Done(piece, measured, np.zeros((1, len(rows))), ended)

    def code(name, seed, part, n):
        return sum(x / 100 ** (i + 1) for i, x in enumerate((MEASURED.index(name), seed, part, n)))

    done = [coded(piece) for piece in PLAN.pieces()]
    for order in (done, done[::-1]):
        result = PLAN.join(order, torch.device("cpu"))
        for index, setting in enumerate(PLAN.settings()):
            for name in PARAMETERS:
                assert getattr(result, name)[index] == getattr(setting, name)
            for part, name in enumerate((None, *PARTS)):
                applies = name is None or setting.with_part(name) is not None
                for kind in MEASURED:
                    got = getattr(result, kind)[index, part]
                    expected = [code(kind, setting.seed, part, n) for n in (0, 1)]
                    np.testing.assert_array_equal(got, expected if applies else [np.nan] * 2)
                # `adaptive`, the last, is the training of the network without any part.
                trained = 100 * setting.seed + (0 if name == "adaptive" else part)
                assert result.diverged[index, part] == (trained if applies else -1)
    taken = {one.piece.name: one for one in PLAN.apart(result)}
    for one in done:
        assert taken[one.piece.name].piece == one.piece
        np.testing.assert_array_equal(taken[one.piece.name].diverged, one.diverged)
        np.testing.assert_equal(taken[one.piece.name].measured, one.measured)


def check_equal(one, other):
    for field in dataclasses.fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if isinstance(first, np.ndarray):
            np.testing.assert_array_equal(first, second, err_msg=field.name)
        elif field.name != "provenance":
            assert first == second


def test_a_search_resumes_merges_and_gives_its_networks(small, tmp_path):
    whole = search_synthetic("argmax", **TINY, variant="layernorm,adaptive")
    assert isinstance(whole, SetSearchResult)
    folder = tmp_path / "run"
    given = {**TINY, "variant": "layernorm,adaptive"}
    check_equal(search_synthetic("argmax", **given, output=folder), whole)
    (folder / "result.json").unlink()
    for path in sorted(folder.glob("checkpoints/*1-1.*"))[:2]:
        path.unlink()
    check_equal(search_synthetic("argmax", **given, output=folder), whole)
    check_equal(load_result(folder), whole)
    assert plan_of(json.loads((folder / "configuration.json").read_text())).pieces()

    more = given | {"n": 2, "first_seed": 3, "output": tmp_path / "more"}
    search_synthetic("argmax", **more)
    merged = merge_results([folder, tmp_path / "more"], tmp_path / "both")
    check_equal(merged, search_synthetic("argmax", **(given | {"n": 5})))

    setting = draw_set_setting(1, TINY["steps"])
    network = load_synthetic(folder, setting.with_part("layernorm"), seed=1)
    length = 2 * setting.longest
    np.testing.assert_array_equal(
        evaluate(network, length, TINY["sets"]).accuracy, whole.accuracy[1, 1, 1]
    )


def test_the_configuration_tells_the_ranges_and_not_what_is_drawn():
    facts = PLAN.configuration()
    assert facts["search"].keys() == {"n_steps", *RANGES} == set(PARAMETERS)
    assert facts.keys().isdisjoint(DRAWN)
    json.dumps(facts)


def test_the_default_search_is_that_of_the_documents():
    plan = plan_search("dictionary", 2, {}, preset="desk")
    assert plan.ranges()["n_steps"] == "2000 to 50000, log-uniform"
    assert plan.lengths == (1, 4, 16, 64, 256)
    assert plan.variants == ("layernorm", "headnorm", "concatnorm", "postnorm", "adaptive")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"n": 0}, "n: got 0, accepted: 1 or more"),
        ({"variant": "residual"}, "variant: got 'residual', accepted: different parts"),
        ({"variant": "layernorm,layernorm"}, "variant: got 'layernorm, layernorm', accepted"),
        ({"variant": "baseline"}, "variant: got 'baseline', accepted: different parts"),
        ({"variant": "batchnorm"}, "variants: got 'batchnorm', accepted"),
        ({"heads": 2}, "heads: got 2, but it is drawn by the search"),
        ({"schedule": "cosine"}, "schedule: got 'cosine', but it is drawn by the search"),
        ({"train_lengths": "2..4"}, "train_lengths: got '2..4', but it is drawn by the search"),
        ({"vocab": 8}, "vocab: got 8, but the tokens of argmax are given"),
        ({"lengths": (10**9,)}, "lengths: got "),
        ({"steps": 0}, "steps: got 0, accepted"),
    ],
)
def test_what_cannot_be_searched_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        search_synthetic("argmax", **(TINY | wrong))
