"""Pieces of a run, and what it warns of."""

import pytest

from llmprobe.synthetic import planning
from llmprobe.synthetic.planning import Plan
from llmprobe.synthetic.training import Training

VARIANTS = ("baseline", "layernorm", "adaptive", "layernorm+ema", "bema")


@pytest.fixture
def plan():
    return Plan(VARIANTS, Training(seeds=tuple(range(40)), steps=10), (16, 32), 8)


def test_every_seed_of_every_training_is_in_one_piece(plan):
    pieces = plan.pieces()
    assert len(pieces) == 2 * 3
    for trained in ("baseline", "layernorm"):
        stacks = [p.training.seeds for p in pieces if p.training.variant == trained]
        assert [seed for stack in stacks for seed in stack] == list(range(40))
        assert max(map(len, stacks)) == planning.STACK
    assert len({piece.name for piece in pieces}) == len(pieces)


def test_a_piece_serves_all_variants_that_differ_at_test_time_only(plan):
    served = {piece.training.variant: piece for piece in plan.pieces()}
    assert served["baseline"].variants == ("baseline", "adaptive", "bema")
    assert served["baseline"].training.averages == ("bema",)
    assert served["layernorm"].training.averages == ("ema",)


def test_the_configuration_has_all_that_decides_the_numbers(plan):
    asked = plan.configuration()
    assert {"task", "steps", "seeds", "variants", "lengths", "sets", "llmprobe"} <= asked.keys()
    assert not {"variant", "averages"} & asked.keys()


def test_an_average_that_has_not_forgotten_its_beginning_is_a_warning(plan):
    words = list(plan._warnings([[-1] * 40] * 5))
    assert len(words) == 1
    assert words[0].startswith("the average ema still has 99% of the initial weights in it")
