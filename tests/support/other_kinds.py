"""Tiny random models that read images and text, and kinds of models that are refused.

Without an image only the part that reads text runs. Its modules are named by hand here.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from families import COMMON, Reference
from transformers import AutoConfig, AutoModelForImageTextToText

_TEXT = {name: value for name, value in COMMON.items() if name != "head_dim"}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1} | {
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
_DEEP_VISION = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_SECTIONS: dict[str, Any] = {"rope_parameters": _ROPE | {"mrope_section": [1, 1, 2]}}
_IDS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92}


@dataclass(frozen=True)
class WithImages:
    text: dict[str, Any]
    vision: dict[str, Any]
    more: dict[str, Any]
    numbers: tuple[int, ...] = (0, 1)
    """Layers that run without an image."""
    path: str = "model.language_model.layers"


def _llava(text: str, vision: str, **more: Any) -> WithImages:
    return WithImages(
        {"model_type": text}, _VISION | {"model_type": vision}, {"image_token_index": 90} | more
    )


def _idefics() -> WithImages:
    more = {"image_token_id": 90, "scale_factor": 2}
    return WithImages({"model_type": "llama"}, _VISION, more, path="model.text_model.layers")


WITH_IMAGES: dict[str, WithImages] = {
    "gemma3": WithImages(
        {"query_pre_attn_scalar": 8, "layer_types": ["full_attention"] * 2, "head_dim": 8},
        _VISION,
        {"mm_tokens_per_image": 4, "image_token_index": 90, "boi_token_index": 91},
    ),
    "qwen2_vl": WithImages(
        _SECTIONS,
        {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 1},
        _IDS,
    ),
    "qwen2_5_vl": WithImages(
        _SECTIONS, _DEEP_VISION | {"out_hidden_size": 32, "fullatt_block_indexes": [0]}, _IDS
    ),
    "qwen3_vl": WithImages(
        {"head_dim": 8, "rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]}},
        _DEEP_VISION
        | {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        _IDS,
    ),
    "glm4v": WithImages(
        _SECTIONS | {"head_dim": 8},
        _DEEP_VISION | {"out_hidden_size": 32, "image_size": 16, "patch_size": 8},
        {"image_token_id": 90, "video_token_id": 91},
    ),
    "mllama": WithImages(
        {"cross_attention_layers": [1], "rope_parameters": _ROPE},
        _VISION
        | {"num_global_layers": 1, "attention_heads": 4, "intermediate_layers_indices": [0]}
        | {"vision_output_dim": 64, "supported_aspect_ratios": [[1, 1]]},
        {"image_token_index": 90},
        numbers=(0,),
    ),
    "llava": _llava("llama", "clip_vision_model"),
    "llava_next": _llava("llama", "clip_vision_model"),
    "llava_onevision": _llava("qwen2", "siglip_vision_model", video_token_index=91),
    "mistral3": WithImages(
        {"model_type": "mistral", "head_dim": 8, "sliding_window": None},
        _VISION | {"model_type": "pixtral", "head_dim": 8},
        {"image_token_index": 90},
    ),
    "internvl": WithImages(
        {"model_type": "qwen2"},
        _VISION | {"image_size": [16, 16], "patch_size": [8, 8]},
        {"image_token_id": 90},
    ),
    "idefics3": _idefics(),
    "smolvlm": _idefics(),
}

_BOTH = {"encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert"}}
OTHER_KINDS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("vit", "dinov2", "clip", "whisper", "wav2vec2")},
    "encoder-decoder": _BOTH,
}
"""Models of images or sound, and pairs of models that only a config joins."""


@cache
def with_images(family: str, attention: str | None = None) -> Any:
    """A model with weights that make its attention anything but uniform."""
    facts = WITH_IMAGES[family]
    config = AutoConfig.for_model(
        family, text_config=_TEXT | facts.text, vision_config=facts.vision, **facts.more
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.data.normal_(0, 0.2)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200_000
    return model.eval().requires_grad_(False)


def path_of(family: str, number: int) -> str:
    return f"{WITH_IMAGES[family].path}.{number}.self_attn"


def plain(family: str, tokens: torch.Tensor) -> Reference:
    """By hooks on a model that was built with eager attention."""
    model, found = with_images(family, "eager"), Reference(torch.empty(0), {}, {}, {})
    handles = []
    for number in WITH_IMAGES[family].numbers:

        def project(module, args, output, n=number):
            found.heads[n], found.outputs[n] = args[0].unflatten(-1, (4, -1)), output

        def after(module, args, output, n=number):
            found.weights[n] = output[1]

        module = model.get_submodule(path_of(family, number))
        handles.append(module.register_forward_hook(after))
        handles.append(module.o_proj.register_forward_hook(project))
    try:
        model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return found
