"""Shapes from the config alone are those that a run of the model finds."""

import pytest
from families import FAMILIES, tiny

from llmprobe import load_model
from llmprobe.capture.discovery import attention_layers
from llmprobe.capture.kinds import empty_model
from llmprobe.capture.outlines import load_outline, outline_layers

UNDECLARED = {"bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "llama4_text"}
"""Their classes name no attention: only a run tells which modules it is."""


def shape(layer):
    return layer.layer, layer.path, layer.n_heads, layer.head_size, layer.hidden_size


@pytest.mark.parametrize("name", FAMILIES)
def test_an_outline_has_the_layers_that_a_run_finds(name):
    model = tiny(name)
    found = outline_layers(empty_model(model.config, trust_remote_code=False))
    if name in UNDECLARED:
        assert found is None
    else:
        assert list(map(shape, found)) == list(map(shape, attention_layers(model)))


def test_an_outline_has_the_facts_of_the_model_and_no_numbers():
    outline, loaded = load_outline("builtin"), load_model("builtin")
    assert {weight.device.type for weight in outline.model.parameters()} == {"meta"}
    shapes = [{n: tuple(w.shape) for n, w in x.model.named_parameters()} for x in (outline, loaded)]
    assert shapes[0] == shapes[1]
    assert outline.tokenizer is None
    differ = {"bos_token_id", "adds_bos"}
    facts = [
        {n: x for n, x in one.describe().items() if n not in differ} for one in (outline, loaded)
    ]
    assert facts[0] == facts[1]
