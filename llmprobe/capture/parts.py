"""The attentions of an encoder-decoder (T5, BART), one at a time, as a model that reads tokens.

    encoder   self-attention of the encoder: it reads the prompt, and every token sees all of it
    decoder   self-attention of the decoder: it reads the prompt, the encoder an empty text
    cross     attention of the decoder to the encoder: the encoder reads the prompt, and the one
              query is the decoder's start token

A `Part` is called with the tokens of prompts, as any other model is, and gives the encoder and the
decoder what they need. It shares all modules with the whole model: hooks that a capture of a part
attaches also see calls of the whole model. Paths of modules are those of the whole model.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import Cache, DynamicCache, EncoderDecoderCache

PARTS = ("encoder", "decoder", "cross")
_START = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
_EMPTY = ("eos_token_id", "pad_token_id")


_without_padding = WeakTensorKeyDictionary()
"""Masks that a part made: nobody has to look at their numbers, which may be on a GPU."""


def shows_all(mask: Any) -> bool:
    """True for a mask that a part made for prompts without one."""
    return isinstance(mask, Tensor) and mask in _without_padding


def check_part(part: str | None) -> None:
    """Refuse what is no part of any model."""
    if part is not None and part not in PARTS:
        raise ValueError(f"part: got {part!r}, accepted: {', '.join(PARTS)}")


def part_of(model: nn.Module, part: str | None = None) -> nn.Module:
    """A part of an encoder-decoder, the encoder if none is named; other models as they are."""
    check_part(part)
    if isinstance(model, Part):
        return model if part in (None, model.part) else Part(model.whole, part)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return Part(model, part or "encoder")
    if part is not None:
        raise ValueError(
            f"part: got {part!r}, but {type(model).__name__} is no encoder-decoder and has one "
            "attention per layer; leave part out"
        )
    return model


def whole_of(model: nn.Module) -> nn.Module:
    """The model that a part belongs to; other models as they are."""
    return model.whole if isinstance(model, Part) else model


def is_cross(model: nn.Module) -> bool:
    """True for the attention of a decoder to its encoder."""
    return isinstance(model, Part) and model.part == "cross"


class Part(nn.Module):
    """One attention of an encoder-decoder; `forward` takes the tokens of prompts."""

    def __init__(self, whole: nn.Module, part: str) -> None:
        super().__init__()
        self.whole: Any = whole
        self.part = part
        self.config: Any = whole.config
        self.training = whole.training

    def get_encoder(self) -> nn.Module:
        encoder: nn.Module = self.whole.get_encoder()
        return encoder

    def get_decoder(self) -> nn.Module:
        """The stack whose attention this is."""
        stack: nn.Module = (
            self.get_encoder() if self.part == "encoder" else self.whole.get_decoder()
        )
        return stack

    def get_input_embeddings(self) -> nn.Module:
        """Of the stack that reads the prompt."""
        reads: Any = self.whole.get_decoder() if self.part == "decoder" else self.get_encoder()
        of = reads if hasattr(reads, "get_input_embeddings") else self.whole
        embeddings: nn.Module = of.get_input_embeddings()
        return embeddings

    def get_submodule(self, target: str) -> nn.Module:
        """By the path in the whole model."""
        module: nn.Module = self.whole.get_submodule(target)
        return module

    @property
    def start_token_id(self) -> int:
        """The token that the decoder begins with."""
        return self._token(_START)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        **options: Any,
    ) -> Any:
        if attention_mask is None:  # some take a padding token in a prompt for padding
            n_before = 0 if past_key_values is None else past_key_values.get_seq_length()
            batch, length = input_ids.shape
            attention_mask = input_ids.new_ones((batch, n_before + length))
            _without_padding[attention_mask] = True
        if self.part == "encoder":
            return self.get_encoder()(input_ids=input_ids, attention_mask=attention_mask, **options)
        options |= {"use_cache": use_cache}
        if self.part == "cross":
            return self.whole(
                input_ids=input_ids,
                attention_mask=attention_mask,
                decoder_input_ids=self._one(self.start_token_id, input_ids),
                **options,
            )
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = EncoderDecoderCache(past_key_values, DynamicCache())
        empty = self._one(self._token(_EMPTY), input_ids)
        return self.whole(
            input_ids=empty,
            encoder_outputs=self.get_encoder()(input_ids=empty),  # which knows no use_cache
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            **options,
        )

    def _token(self, names: tuple[str, ...]) -> int:
        found = (getattr(self.config, name, None) for name in names)
        return next((token for token in found if isinstance(token, int)), 0)

    def _one(self, token: int, like: Tensor) -> Tensor:
        """One token for each prompt."""
        return torch.full_like(like[:, :1], token)
