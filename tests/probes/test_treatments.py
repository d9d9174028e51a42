"""Remedies at dose 0 change no bit; a dose does what its formula says; shams miss their places."""

import numpy as np
import pytest
import torch
from families import FAMILIES, batch, no_positions, tiny
from samples import make_variance_result

from llmprobe import (
    attention_layers,
    capture_attention,
    capture_rows,
    probe_variance,
    restore,
)
from llmprobe.base.temperatures import entropy_scaling, information_scaling, log_scaling
from llmprobe.capture.edits import LengthMoments
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.treatments import (
    CONSTANT,
    GAINS,
    REMEDIES,
    SCALINGS,
    Case,
    Treatment,
    already_scaled,
    dispersing_heads,
    treatments,
)
from llmprobe.probes.variance import VarianceTally

TEN = ("llama", "gpt2", "qwen2", "qwen3", "mistral", "gpt_oss", "olmo2", "phi3", "gemma", "granite")
WITHOUT_INTERFACE = ("bloom", "mpt", "gptj")


def make_case(family, heads=None, **more):
    layers = attention_layers(tiny(family))
    generator = torch.Generator().manual_seed(0)
    moments = {}
    for layer in layers:
        shape = (3, layer.n_heads, layer.head_size)
        mean, std = (torch.rand(shape, generator=generator) + 0.1 for _ in range(2))
        moments[layer.layer] = LengthMoments((2, 6, 12), mean, std)
    given = {
        "model": tiny(family),
        "layers": layers,
        "heads": heads or {x.layer: tuple(range(x.n_heads)) for x in layers},
        "trained": 4,
        "longest": 12,
        "reference": 4,
        "moments": moments,
    }
    return Case(**given | more)


def logits(family, inputs):
    return tiny(family)(**inputs, use_cache=False).logits


@pytest.mark.parametrize("remedy", REMEDIES)
@pytest.mark.parametrize("family", [*TEN, *WITHOUT_INTERFACE])
def test_dose_zero_is_equal_to_the_bit_and_dose_one_is_not(family, remedy):
    if family in WITHOUT_INTERFACE and remedy in SCALINGS:
        return
    case = make_case(family, trained=2, reference=2)
    inputs = batch(family, (9, 12), "left")
    before = logits(family, inputs)
    for arm in ("remedy", "shuffled"):
        with Treatment(remedy, 0.0, arm).edit(case):
            assert torch.equal(logits(family, inputs), before)
        with Treatment(remedy, 1.0, arm).edit(case):
            assert not torch.allclose(logits(family, inputs), before)


def test_there_are_enough_families():
    assert set(TEN) | set(WITHOUT_INTERFACE) <= set(FAMILIES)
    assert len(TEN) == 10


@pytest.mark.parametrize("remedy", SCALINGS)
def test_logits_are_scaled_as_the_formula_says(remedy):
    case, inputs = make_case("llama"), batch("llama", (12,))
    with capture_rows(case.model, 0, positions=list(range(12)), weights=True) as plain:
        logits("llama", inputs)
    with (
        Treatment(remedy, 2.0).edit(case),
        capture_rows(case.model, 0, positions=list(range(12)), weights=True) as treated,
    ):
        logits("llama", inputs)
    n = torch.arange(1, 13)
    scale = {
        "logn": log_scaling(n, trained=4),
        "yarn": torch.full((12,), (0.1 * np.log(3) + 1) ** 2),
        "floor": 1 + 0.1 * torch.tensor([1, 2, 3])[(n - 1) // 4].log(),
        "infoscale": information_scaling(n, trained=4, head_size=8),
        "temperature": torch.full((12,), CONSTANT),
    }
    weights = plain[0].weights.cpu()
    factor = (
        entropy_scaling(weights) if remedy == "adaptive" else scale[remedy][None, :, None, None]
    )
    expected = (weights.log() * factor.float() ** 2).softmax(-1)
    torch.testing.assert_close(treated[0].weights.cpu(), expected, atol=1e-5, rtol=1e-4)


def heads_of(case, treatment=None):
    model, inputs = case.model, batch("llama", (12,))
    with capture_attention(model, at="heads") as captured:
        if treatment is None:
            model(**inputs, use_cache=False)
        else:
            with treatment.edit(case):
                model(**inputs, use_cache=False)
    return captured


def changed(case, treatment):
    """Which heads of the first layer a treatment changes."""
    before, after = (heads_of(case, x)[0] for x in (None, treatment))
    return [h for h in range(4) if not torch.equal(before[:, :, h], after[:, :, h])]


@pytest.mark.parametrize("remedy", REMEDIES)
def test_some_heads_are_treated_and_the_sham_treats_as_many_others(remedy):
    case = make_case("llama", heads={0: (1, 3)})
    assert changed(case, Treatment(remedy, 1.0)) == [1, 3]
    sham = Treatment(remedy, 1.0, "shuffled")
    assert set(changed(case, sham)) <= {0, 2}
    n_treated = sum(
        not torch.equal(a[:, :, h], b[:, :, h])
        for h in range(4)
        for a, b in [(heads_of(case)[0], heads_of(case, sham)[0])]
    )
    others = make_case("llama", heads={0: (1, 3)}, layers=case.layers[:1])
    assert changed(others, sham) == [0, 2]
    assert n_treated <= 2


def test_where_all_heads_are_treated_half_of_them_get_the_inverse():
    case = make_case("llama")
    doses = torch.cat(list(Treatment("logn", 2.0, "shuffled")._doses(case).values()))
    assert sorted(doses.tolist()) == [-2.0] * 4 + [2.0] * 4
    again = torch.cat(list(Treatment("logn", 2.0, "shuffled")._doses(case).values()))
    assert torch.equal(doses, again)


@pytest.mark.parametrize("remedy", GAINS)
def test_the_sham_of_a_gain_gives_every_head_that_of_another(remedy):
    from llmprobe.probes.treatments import _donors

    case = make_case("llama")
    donors = _donors(case)
    assert donors.keys() == set(donors.values()) == set(case.treated)
    assert all(head != donor for head, donor in donors.items())
    some = _donors(make_case("llama", heads={1: (0,)}))
    assert list(some.values()) == [(1, 0)]
    assert (1, 0) not in some
    assert Treatment(remedy, 1.0, "shuffled").edit(case)


def test_every_remedy_has_its_shams_next_to_it():
    found = treatments(["logn", "restore"], [0.0, 1.0])
    assert [(x.remedy, x.arm) for x in found] == [
        ("logn", "remedy"),
        ("logn", "shuffled"),
        ("restore", "remedy"),
        ("restore", "shuffled"),
        ("restore", "norm kept"),
    ]
    assert {x.dose for x in found} == {1.0}


def test_restoring_needs_heads():
    result = make_variance_result()
    assert restore(result)
    whole = result.__class__(**{**vars(result), "at": "output"})
    with pytest.raises(ValueError, match='at="output", accepted: one of heads'):
        restore(whole)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, []),
        ({"attn_temperature_tuning": True}, ["attn_temperature_tuning"]),
        ({"rope_parameters": {"llama_4_scaling_beta": 0.1}}, ["llama_4_scaling_beta = 0.1"]),
        ({"use_logn_attn": True}, ["use_logn_attn"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["logits by 1.30"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.2}}, ["by 1.44"]),
    ],
)
def test_models_that_scale_themselves_are_recognized(facts, words):
    class Config:
        def to_dict(self):
            return facts

    notes = already_scaled(Config())
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_dispersing_heads_are_those_that_the_result_labels(tmp_path):
    ask = {"lengths": "16..256", "at": "heads", "n_prompts": 64, "query": "fixed"}
    result = probe_variance(no_positions(), output=tmp_path / "run", **ask)
    found = dispersing_heads(Evidence.read(tmp_path / "run", VarianceTally))
    expected = result.head[result.labels() == "dispersing"]
    assert found == {0: expected.tolist()}
    assert len(expected) >= 3
