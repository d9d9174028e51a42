"""Pieces of a run, what becomes of them, and what it warns of."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from llmprobe.synthetic.decoder_plan import DecoderTraining
from llmprobe.synthetic.plan import Done, Plan, stack_size
from llmprobe.synthetic.set_plan import SetPlan, SetTraining

VARIANTS = ("baseline", "layernorm", "adaptive", "layernorm+ema", "bema")


@pytest.fixture
def plan():
    base = SetTraining(seeds=tuple(range(40)), steps=10, width=64)
    return SetPlan(VARIANTS, base, (16, 32), 8)


def of_width(plan, width):
    return dataclasses.replace(plan, base=dataclasses.replace(plan.base, width=width))


@pytest.mark.parametrize(("width", "n_stacks"), [(128, 2), (256, 3), (2000, 20)])
def test_every_seed_of_every_training_is_in_one_piece(plan, width, n_stacks):
    pieces = of_width(plan, width).pieces()
    assert len(pieces) == 2 * n_stacks
    for trained in ("baseline", "layernorm"):
        stacks = [p.training.seeds for p in pieces if p.training.variant == trained]
        assert [seed for stack in stacks for seed in stack] == list(range(40))
        assert max(map(len, stacks)) == stack_size(of_width(plan, width).base)
    assert len({piece.name for piece in pieces}) == len(pieces)


def test_a_stack_is_no_larger_than_gains_anything_or_fits():
    widths = [1, 64, 128, 256, 1024, 4096]
    small = [SetTraining(width=width, longest=8, shortest=1, batch=8) for width in widths]
    sizes = [stack_size(training) for training in small]
    assert sizes == [32, 32, 32, 16, 4, 1]
    # A GPT on whole games: what a step keeps for its gradient is far more than for sets.
    shape = {"width": 512, "layers": 8, "longest": 30}
    assert stack_size(DecoderTraining(task="othello", batch=8, **shape)) == 8
    assert stack_size(DecoderTraining(task="othello", batch=1024, **shape)) == 1


def test_a_piece_serves_all_variants_that_differ_at_test_time_only(plan):
    served = {piece.training.variant: piece for piece in plan.pieces()}
    assert served["baseline"].variants == ("baseline", "adaptive", "bema")
    assert served["baseline"].training.averages == ("bema",)
    assert served["layernorm"].variants == ("layernorm", "layernorm+ema")
    assert served["layernorm"].training.averages == ("ema",)
    assert [plan.average_of(variant) for variant in VARIANTS] == [None, None, None, "ema", "bema"]


def test_a_piece_trains_as_the_plan_says(plan):
    for piece in plan.pieces():
        own = dataclasses.asdict(piece.training)
        base = dataclasses.asdict(plan.base)
        differ = {name for name in own if own[name] != base[name]}
        assert differ <= {"variant", "seeds", "averages"}
        assert isinstance(piece.training, SetTraining)


def test_the_configuration_has_all_that_decides_the_numbers(plan):
    asked = plan.configuration()
    assert {"task", "steps", "seeds", "variants", "lengths", "sets", "llmprobe"} <= asked.keys()
    assert {"dropout", "ema_decay", "learning_rate", "width", "heads"} <= asked.keys()
    assert not {"variant", "averages"} & asked.keys()


@pytest.mark.parametrize("change", [{"variants": VARIANTS[:2]}, {"lengths": (16,)}, {"sets": 9}])
def test_another_plan_has_another_configuration(plan, change):
    assert dataclasses.replace(plan, **change).configuration() != plan.configuration()


@pytest.mark.parametrize(
    "change", [{"dropout": 0.2}, {"ema_decay": 0.9}, {"batch": 1}, {"task": "dictionary"}]
)
def test_another_training_has_another_configuration(plan, change):
    other = dataclasses.replace(plan, base=dataclasses.replace(plan.base, **change))
    assert other.configuration() != plan.configuration()


def test_plans_of_the_same_numbers_have_the_same_configuration(plan):
    base = dataclasses.replace(plan.base, variant="layernorm", averages=("ema",))
    assert dataclasses.replace(plan, base=base).configuration() == plan.configuration()


def finished(plan, piece):
    """A piece whose numbers are its seeds, with the variant's place in front."""
    seeds = np.array(piece.training.seeds)
    measured = {v: {"n": 100 * plan.variants.index(v) + seeds} for v in piece.variants}
    return Done(piece, measured, seeds[None].astype(float), seeds)


def test_what_the_pieces_gave_is_put_together_by_variant_and_seed(plan):
    done = [finished(plan, piece) for piece in plan.pieces()]
    serving = plan.serving(done)
    assert list(serving) == list(VARIANTS)
    for variant, ones in serving.items():
        assert all(variant in one.piece.variants for one in ones)
        seeds = itertools.chain(*(one.piece.training.seeds for one in ones))
        assert list(seeds) == list(range(40))
    expected = 100 * np.arange(5)[:, None] + np.arange(40)
    np.testing.assert_array_equal(plan.stacked(done, "n"), expected)
    trained = plan.trained(done)
    assert trained["loss_steps"].tolist() == [10]
    assert trained["loss"].shape == (5, 40, 1)
    np.testing.assert_array_equal(trained["loss"][:, :, 0], [range(40)] * 5)
    np.testing.assert_array_equal(trained["diverged"], [range(40)] * 5)


@pytest.mark.parametrize(
    ("steps", "ends"), [(7, [7]), (50, [50]), (51, [50, 51]), (170, [50, 100, 150, 170])]
)
def test_losses_stand_at_the_ends_of_their_blocks(plan, steps, ends):
    base = dataclasses.replace(plan.base, steps=steps)
    plan = dataclasses.replace(plan, base=base)
    done = [finished(plan, piece) for piece in plan.pieces()]
    assert plan.trained(done)["loss_steps"].tolist() == ends


def test_an_average_that_has_not_forgotten_its_beginning_is_a_warning(plan):
    calm = [[-1] * 40] * 5
    words = list(plan.warnings(calm))
    assert len(words) == 1
    assert words[0].startswith("the average ema still has 99% of the initial weights in it")
    for decay, warned in ((0.5, False), ((0.5,) * 39 + (0.999,), True), ((0.5,) * 40, False)):
        base = dataclasses.replace(plan.base, ema_decay=decay)
        assert bool(list(dataclasses.replace(plan, base=base).warnings(calm))) == warned
    without = dataclasses.replace(plan, variants=("baseline", "bema"))
    assert not list(without.warnings(calm[:2]))


def test_few_seeds_and_those_that_learned_nothing_are_a_warning(plan):
    base = dataclasses.replace(plan.base, seeds=(4, 5, 6))
    few = SetPlan(("baseline", "layernorm"), base, (16,), 8)
    words = list(few.warnings([[-1, 50, 10], [-1, -1, -1]]))
    assert words[0] == "baseline diverged or learned nothing: seed 5 (step 50), seed 6 (step 10)"
    assert words[1].startswith("fewer than 8 seeds decide little here")
    assert len(words) == 2


def test_the_provenance_has_the_configuration(plan):
    found = plan.provenance("SetNetwork", "abc", torch.device("cpu"))
    assert (found.model, found.prompts, found.prompts_hash) == ("SetNetwork", "argmax", "abc")
    assert found.device == "cpu"
    assert found.seed == 0
    assert found.arguments["sets"] == 8
    assert found.arguments["dropout"] == 0.1


def test_a_plan_is_of_something(plan):
    with pytest.raises(TypeError, match="abstract"):
        Plan(VARIANTS, plan.base, (16,), 8)
