"""Quantized weights: what they are, what hooks see, and what is refused."""

import json

import pytest
import torch
from families import tiny
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from llmprobe import ModelLoadError, capture_attention, check_capture, load_model, probe_variance
from llmprobe.capture import quantizing
from llmprobe.capture.refusals import Refusal


def test_names_are_checked_before_anything_is_loaded(monkeypatch):
    with pytest.raises(ValueError, match="quantize: got 'int3', accepted: int8, int4, nf4"):
        quantizing.check_quantize("int3")
    quantizing.check_quantize(None)
    monkeypatch.setattr(quantizing, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"needs torchao .*pip install 'llmprobe\[quantize\]'"):
        load_model("builtin", quantize="int8")


def test_what_cannot_be_quantized_is_refused():
    with pytest.raises(Refusal, match=r"no nn\.Linear"):
        quantizing.quantize(torch.nn.Module.__new__(_Bare), "int8")
    for kind, group in (("int4", 32), ("nf4", 64)):  # 48 inputs, and 32
        with pytest.raises(Refusal, match=f"no multiple of {group}; use quantize='int8'"):
            quantizing.quantize(tiny("llama"), kind)


class _Bare(torch.nn.Module):
    config = None

    def modules(self):
        return iter(())


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.02), ("int4", 0.3), ("nf4", 0.3)])
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
    assert check_capture(rounded, length=16).passed
    assert probe_variance(rounded, "4,8", n_prompts=4).provenance.arguments["quantize"] == kind
    with pytest.raises(ValueError, match=f"rounded to {kind} and their entries cannot be moved"):
        probe_variance(rounded, "4,8", n_prompts=4, null="shuffled")


def checkpoint(folder, **quantization):
    """A tiny Llama whose config says that it is quantized."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    facts = json.loads((folder / "config.json").read_text())
    facts["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize(
    ("method", "package"),
    [
        ("gptq", "optimum|gptqmodel|GPU"),
        ("awq", "gptqmodel"),
        ("compressed-tensors", "compressed-tensors"),
        ("fbgemm_fp8", "GPU"),
    ],
)
def test_checkpoints_that_cannot_run_here_name_what_is_missing(method, package, tmp_path):
    said = f"is quantized by {method}, which cannot run here: .*({package})"
    with pytest.raises(ModelLoadError, match=said) as told:
        load_model(checkpoint(tmp_path, quant_method=method, bits=4, group_size=32))
    assert "\n" not in str(told.value)


def test_a_method_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"is quantized by 'mine', accepted: .*awq.*fp8"):
        load_model(checkpoint(tmp_path, quant_method="mine"))
    assert quantizing.quantization_of(LlamaConfig()) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs FP8 weights as they are")
def test_fp8_weights_become_the_floats_they_stand_for(tmp_path):
    """By blocks of 32 × 32 weights, as transformers unpacks them where there is no GPU."""
    size = 32
    settings = {"weight_block_size": [size, size], "activation_scheme": "dynamic"}
    file = checkpoint(tmp_path, quant_method="fp8", **settings) / "model.safetensors"
    stored, meant = {}, {}
    for name, weight in load_file(file).items():
        if ".layers." not in name or weight.ndim < 2:
            stored[name] = weight
            continue
        blocks = weight.unflatten(1, (-1, size)).unflatten(0, (-1, size))
        scales = blocks.abs().amax((1, 3)) / 448
        packed = (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1)
        stored[name] = packed.to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
        by_block = stored[name].float().unflatten(1, (-1, size)).unflatten(0, (-1, size))
        meant[name] = (by_block * scales[:, None, :, None]).flatten(2).flatten(0, 1)
    save_file(stored, file, metadata={"format": "pt"})
    loaded = load_model(tmp_path)
    weights = dict(loaded.model.named_parameters())
    assert loaded.dtype == "float32"
    assert len(meant) == 14
    for name, expected in meant.items():
        torch.testing.assert_close(weights[name].data.cpu(), expected, rtol=2**-7, atol=0)
    assert check_capture(loaded, length=16).passed
