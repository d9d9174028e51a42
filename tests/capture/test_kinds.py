"""Which models are loaded, by what their configs declare."""

import pytest
import torch
from devices import DEVICE
from other_kinds import OTHER_KINDS, WITH_IMAGES, path_of, plain, with_images
from saved_models import make, make_tokenizer
from transformers import AutoConfig, BertConfig, BertForMaskedLM, BertModel, LlamaConfig, T5Config

from llmprobe import (
    attention_layers,
    capture_attention,
    capture_rows,
    check_capture,
    load_model,
    probe_variance,
)
from llmprobe.capture.kinds import empty_model, is_encoder, loader
from llmprobe.capture.refusals import Refusal

SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = SIZE | {"intermediate_size": 48, "max_position_embeddings": 24}


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM])
def test_encoders_are_loaded_without_heads_whatever_was_saved(kind, tmp_path):
    torch.manual_seed(0)
    saved = kind(BertConfig(**BERT)).eval()
    saved.save_pretrained(tmp_path)
    make_tokenizer(adds_bos=False).save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.learned_positions == 24
    assert [layer.causal for layer in attention_layers(loaded)] == [False, False]
    body = saved if kind is BertModel else saved.bert
    tokens = torch.arange(6, device=DEVICE)[None]
    assert torch.equal(loaded.model(tokens)[0], body.to(DEVICE)(tokens)[0])


def test_an_encoder_begins_its_prompts_as_its_tokenizer_does(tmp_path):
    make("Bert", intermediate_size=48).save_pretrained(tmp_path)
    tokenizer = make_tokenizer(adds_bos=True)
    tokenizer.bos_token, tokenizer.cls_token = None, "<s>"
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.bos_token_id, loaded.adds_bos) == (0, True)


def test_decoders_of_encoder_families_stay_decoders():
    assert is_encoder(BertConfig())
    assert not is_encoder(BertConfig(is_decoder=True))
    assert not is_encoder(LlamaConfig())
    assert not is_encoder(T5Config())


def test_other_kinds_are_refused_by_name():
    for name, settings in OTHER_KINDS.items():
        config = AutoConfig.for_model(name, **settings)
        with pytest.raises(Refusal, match=f"is {type(config).__name__}, of a kind that cannot"):
            loader(config)


def test_shapes_come_without_numbers():
    model = empty_model(BertConfig(**BERT), trust_remote_code=False)
    assert model.device.type == "meta"
    assert model.pooler is None


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_of_models_that_read_images_the_text_part_is_captured(family):
    """Cross-attention to images does not run without one, so it is no layer of a text."""
    model, numbers = with_images(family), WITH_IMAGES[family].numbers
    layers = attention_layers(model)
    assert [layer.path for layer in layers] == [path_of(family, n) for n in numbers]
    assert all(layer.causal for layer in layers)
    tokens = torch.arange(3, 27).reshape(2, 12)
    expected = plain(family, tokens)
    with capture_attention(model, at="heads") as heads, capture_attention(model) as outputs:
        model(tokens)
    with capture_rows(model, positions=[4, -1], weights=True) as rows:
        model(tokens)
    for n in numbers:
        for got, wanted in (
            (heads[n], expected.heads[n]),
            (outputs[n], expected.outputs[n]),
            (rows[n].weights, expected.weights[n].transpose(1, 2)[:, [4, -1]]),
        ):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl", "mllama", "llava"])
def test_models_that_read_images_pass_the_check_and_are_probed(family):
    model, numbers = with_images(family), WITH_IMAGES[family].numbers
    report = check_capture(model, length=24)
    assert report.passed, [line for line in report.checks if not line.passed]
    assert probe_variance(model, "4,8", layers=None, n_prompts=4).slope.shape == (len(numbers),)
