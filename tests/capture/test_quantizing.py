"""Quantized weights: what they are, what hooks see, and what is refused."""

import pytest
import torch
from families import tiny

from llmprobe import ModelLoadError, capture_attention, load_model
from llmprobe.capture import quantizing
from llmprobe.capture.refusals import Refusal


def test_names_are_checked_before_anything_is_loaded(monkeypatch):
    with pytest.raises(ValueError, match="quantize: got 'int3', accepted: int8, int4"):
        quantizing.check_quantize("int3")
    quantizing.check_quantize(None)
    monkeypatch.setattr(quantizing, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"needs torchao .*pip install 'llmprobe\[quantize\]'"):
        load_model("builtin", quantize="int8")


def test_what_cannot_be_quantized_is_refused():
    with pytest.raises(Refusal, match=r"no nn\.Linear"):
        quantizing.quantize(torch.nn.Module.__new__(_Bare), "int8")
    with pytest.raises(Refusal, match="no multiple of 32; use quantize='int8'"):
        quantizing.quantize(tiny("llama"), "int4")  # 48 inputs


class _Bare(torch.nn.Module):
    config = None

    def modules(self):
        return iter(())


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.02), ("int4", 0.3)])
def test_activations_stay_float_and_near_those_of_the_float_model(kind, error):
    pytest.importorskip("torchao")
    plain, rounded = load_model("builtin"), load_model("builtin", quantize=kind)
    assert (plain.quantized, rounded.quantized) == (None, kind)
    assert rounded.model.get_input_embeddings().weight.equal(
        plain.model.get_input_embeddings().weight
    )
    tokens = torch.arange(3, 35)[None]
    found = []
    for loaded in (plain, rounded):
        with capture_attention(loaded, layers=-1, positions=-1, at="heads") as captured:
            loaded.model(tokens)
        found.append(captured[-1])
    assert found[1].dtype == torch.float32
    difference = (found[1] - found[0]).norm() / found[0].norm()
    assert 0 < difference < error
