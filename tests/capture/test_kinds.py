"""Which models are loaded, by what their configs declare."""

from typing import Any

import pytest
import torch
from devices import DEVICE
from families import COMMON
from saved_models import make, make_tokenizer
from transformers import AutoConfig, BertConfig, BertForMaskedLM, BertModel, LlamaConfig, T5Config

from llmprobe import attention_layers, check_capture, load_model, probe_variance
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
    with pytest.raises(Refusal, match="is T5Config, an encoder-decoder"):
        loader(T5Config())
    with pytest.raises(Refusal, match="is ViTConfig, of another kind"):
        loader(AutoConfig.for_model("vit"))


def test_shapes_come_without_numbers():
    model = empty_model(BertConfig(**BERT), trust_remote_code=False)
    assert model.device.type == "meta"
    assert model.pooler is None


_TEXT = {k: v for k, v in COMMON.items() if k != "head_dim"}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1} | {
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
WITH_IMAGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[int]]] = {
    "gemma3": (
        {"query_pre_attn_scalar": 8, "layer_types": ["full_attention"] * 2, "head_dim": 8},
        _VISION,
        {"mm_tokens_per_image": 4, "image_token_index": 90, "boi_token_index": 91},
        [0, 1],
    ),
    "qwen2_5_vl": (
        {"rope_parameters": _PLAIN_ROPE | {"mrope_section": [1, 1, 2]}},
        {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48}
        | {"out_hidden_size": 32, "fullatt_block_indexes": [0]},
        {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92},
        [0, 1],
    ),
    "mllama": (
        {"cross_attention_layers": [1], "rope_parameters": _PLAIN_ROPE},
        _VISION
        | {"num_global_layers": 1, "attention_heads": 4, "intermediate_layers_indices": [0]}
        | {"vision_output_dim": 64, "supported_aspect_ratios": [[1, 1]]},
        {"image_token_index": 90},
        [0],
    ),
    "llava": (
        {"model_type": "llama"},
        _VISION | {"model_type": "clip_vision_model"},
        {"image_token_index": 90},
        [0, 1],
    ),
}


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_of_models_that_read_images_the_text_part_is_probed(family):
    """Cross-attention to images does not run without one, so it is no layer of a text."""
    text, vision, more, numbers = WITH_IMAGES[family]
    config = AutoConfig.for_model(family, text_config=_TEXT | text, vision_config=vision, **more)
    auto, options = loader(config)
    torch.manual_seed(0)
    model = auto.from_config(config, **options).eval()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.normal_(0, 0.2)
    assert sum(p.numel() for p in model.parameters()) < 200_000
    layers = attention_layers(model.to(DEVICE))
    assert [layer.layer for layer in layers] == numbers
    assert all("vision" not in layer.path and layer.causal for layer in layers)
    report = check_capture(model, length=24)
    assert report.passed, [line for line in report.checks if not line.passed]
    assert probe_variance(model, "4,8", layers=None, n_prompts=4).slope.shape == (len(numbers),)
