"""Which models are loaded, by what their configs declare."""

import pytest
import torch
from saved_models import make, make_tokenizer
from transformers import AutoConfig, BertConfig, BertForMaskedLM, BertModel, LlamaConfig, T5Config

from llmprobe import attention_layers, load_model
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
    tokens = torch.arange(6)[None]
    assert torch.equal(loaded.model(tokens)[0], body(tokens)[0])


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
    with pytest.raises(Refusal, match="is T5Config, an encoder-decoder"):
        loader(T5Config())
    with pytest.raises(Refusal, match="is ViTConfig, of another kind"):
        loader(AutoConfig.for_model("vit"))


def test_shapes_come_without_numbers():
    model = empty_model(BertConfig(**BERT), trust_remote_code=False)
    assert model.device.type == "meta"
    assert model.pooler is None
