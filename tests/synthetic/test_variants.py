"""Variants: how their names are read, by the registry of a network and by any other."""

import pytest

from llmprobe.synthetic.set_network import PARTS
from llmprobe.synthetic.variants import (
    AT_TEST,
    AVERAGES,
    BASELINE,
    Part,
    parse_variant,
    trained_as,
)

FEW = {"wings": Part("top", "two"), "wheels": Part("bottom", "four"), **AVERAGES}
NAMES = [BASELINE, *PARTS] + [
    f"{a}+{b}" for a in PARTS for b in PARTS if PARTS[a].place != PARTS[b].place
]


def test_variants_are_parsed_by_place():
    assert parse_variant(BASELINE, PARTS) == {}
    assert parse_variant("ssmax+layernorm", PARTS) == {"norm": "layernorm", "softmax": "ssmax"}
    for name, part in PARTS.items():
        assert parse_variant(name, PARTS) == {part.place: name}
        assert parse_variant(f"{BASELINE}+{name}", PARTS) == {part.place: name}
    assert parse_variant("wheels+ema+wings", FEW) == {
        "top": "wings",
        "bottom": "wheels",
        "weights": "ema",
    }


@pytest.mark.parametrize("wrong", ["", "batchnorm", "layernorm+", "layernorm ssmax", "LayerNorm"])
def test_an_unknown_variant_is_refused_with_the_known_ones(wrong):
    with pytest.raises(ValueError, match=r"variants: got .*baseline, layernorm, .*adaptive"):
        parse_variant(wrong, PARTS)
    with pytest.raises(ValueError, match="accepted: baseline, wings, wheels, ema, bema; a plus"):
        parse_variant(wrong, FEW)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("layernorm+rmsnorm", "layernorm and rmsnorm for the norm; choose one"),
        ("ssmax+dropout+differential", "ssmax and differential for the softmax; choose one"),
        ("headnorm+headnorm", "headnorm and headnorm for the heads"),
        ("ema+layernorm+bema", "ema and bema for the weights; choose one"),
    ],
)
def test_two_parts_of_one_place_are_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        parse_variant(wrong, PARTS)
    with pytest.raises(ValueError, match=reason):
        trained_as(wrong, PARTS)


def test_what_a_variant_is_trained_as():
    assert trained_as("adaptive", PARTS) == trained_as(BASELINE, PARTS) == BASELINE
    assert trained_as("adaptive+ssmax+layernorm", PARTS) == trained_as("layernorm+ssmax", PARTS)
    assert trained_as("ssmax+layernorm", PARTS) == trained_as("layernorm+ssmax", PARTS)
    assert trained_as("bema+wings", FEW) == "wings"


@pytest.mark.parametrize("variant", NAMES)
def test_training_has_all_parts_but_those_of_test_time(variant):
    training = trained_as(variant, PARTS)
    parts = parse_variant(variant, PARTS)
    seen = {place: part for place, part in parts.items() if place not in AT_TEST}
    assert parse_variant(training, PARTS) == seen
    assert trained_as(training, PARTS) == training
