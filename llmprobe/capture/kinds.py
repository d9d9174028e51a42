"""Which class loads a model, by what its config declares: decoders, encoders, both, or with images.

A causal language model and an encoder-decoder (T5) are loaded with their head. An encoder (BERT) is
loaded without heads and without its pooler, which come behind the attention and are missing from
many checkpoints. Of a model that reads images too, the part that reads text is probed. All others
are refused by name.
"""

import inspect
from typing import Any

import transformers
from accelerate import init_empty_weights

from llmprobe.capture.refusals import Refusal

_WITHOUT_POOLER = "add_pooling_layer"


def loader(config: Any) -> tuple[Any, dict[str, Any]]:
    """The Auto class that loads a model, and its options; refuses what llmprobe cannot probe."""
    if is_encoder(config):
        model = transformers.MODEL_MAPPING[type(config)]
        pools = _WITHOUT_POOLER in inspect.signature(model.__init__).parameters
        return transformers.AutoModel, {_WITHOUT_POOLER: False} if pools else {}
    foreign = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if getattr(config, "is_encoder_decoder", False):
        # Those that are no model of their own join two others by a config.
        writes = type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
        if writes and type(config) in transformers.MODEL_MAPPING:
            return transformers.AutoModelForSeq2SeqLM, {}
    elif foreign or type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM, {}
    elif type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText, {}
    architecture = (config.architectures or [type(config).__name__])[0]
    raise Refusal(
        f"is {architecture}, of a kind that cannot be probed; give a causal language model, an "
        "encoder of text, or an encoder-decoder such as T5"
    )


def is_encoder(config: Any) -> bool:
    """By its class: made to fill in masked tokens, and not declared a decoder.

    transformers would load it as a causal model, with attention in both directions.
    """
    masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    return masked and not decodes and type(config) in transformers.MODEL_MAPPING


def empty_model(config: Any, trust_remote_code: bool) -> Any:
    """The model of a config on the meta device: shapes, no numbers."""
    auto, options = loader(config)
    with init_empty_weights(include_buffers=True):
        return auto.from_config(config, trust_remote_code=trust_remote_code, **options)
