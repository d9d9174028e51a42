"""The registered attention functions change nothing, and single rows equal the whole."""

import copy

import pytest
import torch
from devices import DEVICE
from encoders import ENCODERS, encoder
from families import batch, tiny
from torch.nn import functional
from transformers import AttentionInterface

from llmprobe import (
    ModelLoadError,
    UnsupportedModelError,
    attention_layers,
    capture_attention,
    capture_rows,
    edit_attention,
    load_model,
)
from llmprobe.capture.calls import AttentionCall, listening, own_eager, uses_interface
from llmprobe.capture.edits import scale_logits


def attention_of(model):
    return [model.get_submodule(layer.path) for layer in attention_layers(model)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_listening_changes_no_bit_even_with_padding(attention, side):
    model, inputs = tiny("llama", attention), batch("llama", (5, 9, 12), side)
    calls = []
    before = model(**inputs, use_cache=False).logits
    with listening(attention_of(model), calls.append):
        assert torch.equal(model(**inputs, use_cache=False).logits, before)
    assert [call.module for call in calls] == attention_of(model)
    assert model.config._attn_implementation == attention
    assert torch.equal(model(**inputs, use_cache=False).logits, before)
    assert len(calls) == 2


def test_listeners_leave_in_any_order_and_after_an_error():
    model, inputs = tiny("llama"), batch("llama", (6,))
    first, second = [], []
    with (
        pytest.raises(RuntimeError, match="on purpose"),
        listening(attention_of(model), first.append),
    ):
        with listening(attention_of(model), second.append):
            model(**inputs, use_cache=False)
        model(**inputs, use_cache=False)
        raise RuntimeError("on purpose")
    assert (len(first), len(second)) == (4, 2)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral", "deepseek_v3"])
def test_rows_in_chunks_equal_rows_at_once(family, monkeypatch):
    model, inputs = tiny(family), batch(family, (12, 12))
    seen = []
    with listening(attention_of(model), seen.append):
        model(**inputs, use_cache=False)
    index = torch.tensor([[0, 3, 11], [7, 1, 5]], device=DEVICE)
    (weights,) = seen[0].rows(index)
    at = torch.arange(2, device=DEVICE)[:, None], index
    outputs = seen[0].outputs(index)
    torch.testing.assert_close(outputs, seen[0].compute()[0][at])
    monkeypatch.setattr("llmprobe.capture.calls._CHUNK_BYTES", 1)
    pieces = list(seen[0].rows(index))
    assert len(pieces) == 3
    torch.testing.assert_close(torch.cat(pieces, dim=2), weights)
    torch.testing.assert_close(seen[0].outputs(index), outputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_a_half_precision_model_are_float32(dtype):
    model, inputs = tiny("llama", seed=1), batch("llama", (12,))
    seen = []
    try:
        with listening(attention_of(model.to(dtype)), seen.append):
            model(**inputs, use_cache=False)
    finally:
        model.float()
    (weights,) = seen[0].rows(torch.tensor([[11]], device=DEVICE))
    assert weights.dtype == torch.float32
    assert weights.sum(-1).cpu() == pytest.approx(1, abs=1e-6)
    assert seen[0].outputs(torch.tensor([[11]], device=DEVICE)).dtype == dtype


def test_rows_behind_a_cache_see_the_tokens_before_them():
    model, inputs = tiny("llama"), batch("llama", (12,))
    whole, parts = [], []
    with listening(attention_of(model), whole.append):
        model(inputs["input_ids"], use_cache=False)
    cache = model(inputs["input_ids"][:, :8], use_cache=True).past_key_values
    with listening(attention_of(model), parts.append):
        model(inputs["input_ids"][:, 8:], past_key_values=cache, use_cache=True)
    for full, part in zip(whole, parts, strict=True):
        (expected,) = full.rows(torch.tensor([[9]], device=DEVICE))
        (got,) = part.rows(torch.tensor([[1]], device=DEVICE))
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_a_module_without_causal_order_gets_no_mask():
    model, inputs = tiny("llama"), batch("llama", (6,))
    seen = []
    with listening(attention_of(model), seen.append):
        model(**inputs, use_cache=False)
    call = seen[0]
    open_call = AttentionCall(**vars(call) | {"options": call.options | {"is_causal": False}})
    (weights,) = open_call.rows(torch.tensor([[0]]))
    assert (weights > 0).all()


def test_arguments_for_each_query_are_refused_by_name():
    module = attention_of(tiny("llama"))[0]
    attend = AttentionInterface()["llmprobe_sdpa"]
    x = torch.zeros(1, 4, 6, 8)
    with (
        listening([module], lambda call: None),
        pytest.raises(UnsupportedModelError, match=r"LlamaAttention.*position_bias"),
    ):
        attend(module, x, x, x, None, position_bias=torch.zeros(1))


def test_modules_that_compute_attention_themselves_are_told_apart():
    assert all(uses_interface(m) for m in attention_of(tiny("llama")))
    bloom = attention_of(tiny("bloom"))[0]
    assert not uses_interface(bloom)
    with pytest.raises(UnsupportedModelError, match="BloomAttention"):
        own_eager(bloom)


def _under(name, family):
    """What is captured and edited of a model with this attention function."""
    model = (encoder if family in ENCODERS else tiny)(family, name)
    tokens = torch.arange(5, 29, device=DEVICE)[None]
    with capture_attention(model, positions=[0, -1]) as outputs:
        model(tokens)
    with capture_rows(model, positions=[0, -1], weights=True) as rows:
        model(tokens)
    colder = edit_attention(model, queries=scale_logits(2.0))
    with colder, capture_attention(model, positions=-1) as edited:
        model(tokens)
    assert model.config._attn_implementation == name
    return outputs[1], rows[1].weights, edited[1]


@pytest.mark.parametrize("family", ["llama", "mistral", "electra", "modernbert"])
def test_rows_and_edits_are_the_same_under_each_attention_function(family):
    for got, expected in zip(_under("sdpa", family), _under("eager", family), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_kernels_for_gpus_are_refused_on_a_cpu():
    with pytest.raises(ModelLoadError, match="cannot run the attention 'flash_attention_2' on a C"):
        load_model("builtin", device="cpu", attn_implementation="flash_attention_2")


@pytest.mark.parametrize("lengths", [(12, 12), (5, 12)], ids=["whole", "padded"])
def test_under_a_flash_kernel_rows_and_edits_are_those_of_sdpa(lengths, monkeypatch):
    """The kernel needs a GPU. A stand-in gets what transformers gives it: a mask of tokens."""
    masks = []

    def kernel(module, query, key, value, attention_mask, **options):
        masks.append(attention_mask)
        seen = torch.ones(query.shape[2], key.shape[2], dtype=bool, device=query.device).tril()
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None, None]
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        output = functional.scaled_dot_product_attention(query, key, value, seen)
        return output.transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", kernel)
    inputs, found = batch("llama", lengths), {}
    for name in ("flash_attention_2", "eager"):
        model = copy.deepcopy(tiny("llama", "eager"))
        model.config._attn_implementation = name
        with capture_attention(model) as every:
            model(**inputs, use_cache=False)
        assert all(mask is None or mask.ndim == 2 for mask in masks)
        n_calls = len(masks)
        with capture_rows(model, positions=[0, -1], weights=True) as rows:
            model(**inputs, use_cache=False)
        colder = edit_attention(model, queries=scale_logits(2.0))
        with colder, capture_attention(model, positions=-1) as edited:
            model(**inputs, use_cache=False)
        assert len(masks) == n_calls == 2  # of two layers, without rows and edits
        assert model.config._attn_implementation == name
        last = torch.tensor(lengths, device=DEVICE) - 1
        outputs = every[1][torch.arange(2, device=DEVICE), last]
        found[name] = outputs, rows[1].weights, edited[1]
    for got, expected in zip(*found.values(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # flex attention is compiled: a minute on a CPU
def test_rows_and_edits_under_flex_attention():
    for got, expected in zip(
        _under("flex_attention", "llama"), _under("eager", "llama"), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
