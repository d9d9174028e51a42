"""Scaled positions are transformers' own, without YaRN's temperature, and leave nothing behind."""

import copy

import pytest
import torch
from devices import DEVICE
from families import COMMON, batch, state, tiny
from transformers import LlamaConfig, LlamaForCausalLM

from llmprobe import UnsupportedModelError, attention_layers
from llmprobe.capture.positions import parse_rope, positions_agree, scaled_positions


def logits(model, inputs):
    return model(**inputs, use_cache=False).logits


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_positions_are_those_of_a_model_that_was_made_with_them(kind):
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (9, 12))
    model.config.max_position_embeddings = 8
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config).to(DEVICE)
    config = copy.deepcopy(model.config)
    config.rope_parameters = {**config.rope_parameters, "rope_type": kind, "factor": 2.0}
    if kind == "yarn":
        config.rope_parameters |= {
            "original_max_position_embeddings": 8,
            "attention_factor": 1.0,
        }
    other = LlamaForCausalLM(config).eval()
    other.load_state_dict(model.state_dict())
    other.to(DEVICE)
    attention_layers(model)
    plain, before = logits(model, inputs), state(model)
    with scaled_positions(model, kind, 2.0):
        got = logits(model, inputs)
    torch.testing.assert_close(got, logits(other, inputs))
    assert not torch.allclose(got, plain)
    assert state(model) == before
    assert torch.equal(logits(model, inputs), plain)


def test_linear_positions_are_divided_by_the_factor():
    model, inputs = tiny("llama"), batch("llama", (12,))
    with scaled_positions(model, "linear", 2.0):
        got = logits(model, inputs)
    halves = inputs | {"position_ids": torch.arange(12.0, device=DEVICE)[None] / 2}
    torch.testing.assert_close(got, logits(model, halves), atol=1e-5, rtol=1e-5)


def test_models_without_plain_rotary_positions_are_refused():
    with (
        pytest.raises(UnsupportedModelError, match="no rotary positions"),
        scaled_positions(tiny("gpt2"), "yarn", 2.0),
    ):
        pass
    model = copy.deepcopy(tiny("llama"))
    model.model.rotary_emb.rope_type = "llama3"
    with (
        pytest.raises(UnsupportedModelError, match="already scales"),
        scaled_positions(model, "yarn", 2.0),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "expected"), [("yarn", ("yarn", None)), ("linear:4", ("linear", 4.0))]
)
def test_positions_are_named_with_or_without_a_factor(text, expected):
    assert parse_rope(text) == expected


@pytest.mark.parametrize("text", ["", "ntk", "yarn:", "yarn:0.5", "linear:nan", "dynamic:1e9"])
def test_other_positions_are_refused(text):
    with pytest.raises(ValueError, match=r"rope: got .*, accepted: dynamic, yarn, linear"):
        parse_rope(text)


@pytest.mark.parametrize("factors", [([1.0] * 4, [1.0, 1.0, 1.0, 1.001]), ([2.0] * 4, [1.0] * 4)])
def test_frequencies_that_a_long_prompt_chooses_are_found_however_near_they_are(factors):
    short, long = factors
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": short,
        "long_factor": long,
    }
    config = LlamaConfig(**COMMON, rope_parameters=rope)
    model = LlamaForCausalLM(config).eval()
    assert not positions_agree(model, [8, 16, 32])
    assert positions_agree(model, [8, 12, 16])
    assert positions_agree(model, [20, 32])
    assert positions_agree(tiny("llama"), [2, 8, 32])
