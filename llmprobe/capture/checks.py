"""A self-check: are captures of this model correct?

`check_capture(model)` compares captures with the model without hooks, with eager attention, with
shorter prompts and with padded batches. A check that fails names the layer, the difference and the
tolerance, and says what to try. Differences are relative: the largest one divided by the root mean
square of the expected values. Rounding adds up from layer to layer, so deeper layers may differ
more: the tolerance grows with the root of the depth.
"""

import inspect
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.base.machine import evaluating
from llmprobe.base.seeds import torch_generator
from llmprobe.capture.discovery import (
    AttentionLayer,
    attention_layers,
    eager_weights,
    input_device,
    vocab_size,
    without_cache,
)
from llmprobe.capture.loading import AnyModel, LoadedModel, as_loaded
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.parts import Part
from llmprobe.capture.rows import capture_rows
from llmprobe.errors import UnsupportedModelError

_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.1}
"""In the first layer. Models round parts of float64 computations to float32. Half precision rounds
at 2^-8 to 2^-11, and one output has several roundings."""
_DEPTH = 4
"""Layers after which differences of independent roundings have grown by the root of 2."""
_LONGEST = 2**16
"""Eager attention computes the square of it as weights."""


@dataclass(frozen=True)
class Check:
    """One check of the report."""

    name: str
    passed: bool
    difference: float | None
    """None if the check is a fact and not a comparison."""
    detail: str
    tolerance: float | None = None
    """What the difference may be, in the layer that is nearest to its tolerance or beyond it."""


@dataclass(frozen=True)
class CheckReport:
    """All checks; `passed` if every one has passed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def check_capture(
    model: AnyModel,
    *,
    part: str | None = None,
    tokenizer: Any = None,
    length: int = 64,
    seed: int = 0,
) -> CheckReport:
    """Check captures of a language model on random prompts of `length` tokens.

    `model` is a name (hub id, folder, .gguf file, "builtin"), a module or a `LoadedModel`; a
    `tokenizer` is used instead of the model's own. `part`: as in `capture_attention`.
    """
    if not isinstance(length, int) or not 8 <= length <= _LONGEST:
        raise ValueError(f"length: got {length!r}, accepted: 8 or more, to {_LONGEST:,}")
    loaded = as_loaded(model, tokenizer=tokenizer, part=part)
    if loaded.learned_positions is not None and length > loaded.learned_positions:
        raise ValueError(
            f"length: got {length}, accepted: 8 to the {loaded.learned_positions} positions that "
            f"{loaded.name} has learned"
        )
    with evaluating(loaded.model), torch.inference_mode():
        return CheckReport(tuple(_checks(loaded, length, seed)))


def _takes_mask(model: nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return free or "attention_mask" in parameters


def _check_zeros(model: nn.Module) -> Check:
    """A file of zeros has the right shapes, and all else about it passes."""
    matrices = {
        name: weight
        for name, weight in model.named_parameters()
        # An adapter starts with one zero matrix, so that it changes nothing yet.
        if weight.dim() > 1 and weight.numel() and not weight.is_meta and "lora_" not in name
    }
    zeros = [name for name, weight in matrices.items() if not _plain(weight).any()]
    some = f"all zero: {zeros[0]}, {len(zeros)} of {len(matrices)}; get them" if zeros else ""
    return Check("no matrix of weights is all zero", not zeros, None, some and f"{some} again")


def _checks(loaded: LoadedModel, length: int, seed: int) -> Iterator[Check]:
    model: nn.Module = loaded.model
    layers = attention_layers(model)
    if any(layer.last_only for layer in layers):
        raise UnsupportedModelError(
            f"{type(model).__name__} answers for the last token alone, but the check compares all "
            "tokens; use capture_attention with positions=-1"
        )
    if not _takes_mask(model):
        raise UnsupportedModelError(
            f"{type(model).__name__} takes no attention mask, but the check pads prompts; use a "
            "model whose forward takes attention_mask"
        )
    yield Check("attention layers", True, None, _describe(layers))
    yield _check_zeros(model)
    tokens = _tokens(model, (3, length), seed)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    inputs |= without_cache(model)

    plain = _returned(model(**inputs))
    with capture_attention(model) as outputs, capture_attention(model, at="heads") as heads:
        hooked = _returned(model(**inputs))
    same = float((hooked - plain).abs().max())
    yield Check("hooked logits equal unhooked", same == 0, same, "largest difference of a logit")

    def compare(name: str, got: Any, expected: Any, detail: str) -> Check:
        found = []
        for depth, layer in enumerate(layers):
            tolerance = tolerance_of(plain.dtype, depth)
            difference = _difference(got[layer.layer], expected[layer.layer])
            found.append((difference / tolerance, difference, tolerance, layer.layer))
        ratio, worst, tolerance, number = max(found)
        if ratio > 1:
            detail = f"layer {number}, tolerance {tolerance:.1e}; {_advice(plain.dtype)}"
        return Check(name, ratio <= 1, worst, detail, tolerance)

    with eager_weights(model), capture_attention(model) as eager:
        model(**inputs)
    yield compare("outputs equal eager attention's", outputs, eager, "worst layer")

    projected = {x.layer: _project(model, x, heads[x.layer]) for x in layers}
    yield compare("projected heads equal the outputs", projected, outputs, "worst layer")

    served = sum(layer.interface for layer in layers)
    kind = "single rows" if served == len(layers) else f"{len(layers) - served} by whole matrices"
    yield compare("attention rows equal eager's", *_rows(model, layers, inputs, [0, -1]), kind)

    few = [0, outputs[layers[0].layer].shape[1] // 2, -1]  # cross-attention has one query
    some = {layers[0].layer, layers[len(layers) // 2].layer, layers[-1].layer}
    stopped = {x.layer: outputs[x.layer][:, few] for x in layers}
    for number in some:  # one forward per layer
        with capture_attention(model, number, positions=few, stop=True) as narrow:
            model(**inputs)
        stopped[number] = narrow[number]
    wanted = {x.layer: outputs[x.layer][:, few] for x in layers}
    yield compare("single queries equal the whole", stopped, wanted, "first, middle, last layer")

    causal = all(layer.causal for layer in layers)
    if causal:
        half = {
            name: x[:, : length // 2] if isinstance(x, Tensor) else x for name, x in inputs.items()
        }
        with capture_attention(model, positions=-1) as prefix:
            model(**half)
        wanted = {x.layer: outputs[x.layer][:, [length // 2 - 1]] for x in layers}
        yield compare("prefixes are consistent", prefix, wanted, "one pass serves all lengths")

    # Encoders see what follows, and count positions in their own ways: prompts alone are compared.
    # Decoders of encoder-decoders count the padding on their left as tokens.
    sides = ("right",) if isinstance(model, Part) else ("left", "right")
    for side in sides if causal else ():
        padded, starts = _pad(model, tokens, side)
        with capture_attention(model, positions=-1) as captured:
            model(**padded)
        wanted = {x.layer: _last(outputs[x.layer], starts) for x in layers}
        yield compare(f"padding on the {side} changes nothing", captured, wanted, "worst layer")

    if not causal:
        yield compare("padding changes nothing", *_padded(model, tokens, layers), "on the right")
    if loaded.tokenizer is not None:
        yield Check("beginning of sequence", True, None, _describe_bos(loaded))


def tolerance_of(dtype: torch.dtype, depth: int) -> float:
    """What captures may differ by in the attention layer at a depth, from 0."""
    return _TOLERANCE.get(dtype, _TOLERANCE[torch.bfloat16]) * math.sqrt(1 + depth / _DEPTH)


def _advice(dtype: torch.dtype) -> str:
    """What to try where a comparison fails."""
    finer = {torch.float32: "float64", torch.float64: None}.get(dtype, "float32")
    if finer is None:
        return 'try attn_implementation="eager"; if that fails too, captures here are wrong'
    return f'try dtype="{finer}": rounding passes there, and a wrong capture does not'


def _rows(
    model: nn.Module, layers: tuple[AttentionLayer, ...], inputs: Any, few: list[int]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Weights of a few queries as they are captured, and as eager modules return them."""
    with capture_rows(model, positions=few, weights=True) as rows:
        model(**inputs)
    whole: dict[int, Tensor] = {}
    with ExitStack() as stack:
        stack.enter_context(eager_weights(model))
        for layer in layers:

            def hook(module: nn.Module, args: Any, output: Any, number: int = layer.layer) -> None:
                # T5 returns a bias of positions before them.
                weights = [x for x in output[1:] if isinstance(x, Tensor) and x.ndim == 4][-1]
                whole[number] = weights.transpose(1, 2)[:, few]

            module = model.get_submodule(layer.path)
            stack.enter_context(module.register_forward_hook(hook))
        asks = not all(layer.interface for layer in layers)  # some return weights if asked only
        model(**inputs, **({"output_attentions": True} if asks else {}))
    return {x.layer: rows[x.layer].weights for x in layers}, whole


def _project(model: nn.Module, layer: AttentionLayer, heads: Tensor) -> Tensor:
    projected: Tensor = model.get_submodule(layer.projection)(heads.flatten(-2))
    return projected


def _pad(model: nn.Module, tokens: Tensor, side: str) -> tuple[dict[str, Any], list[int]]:
    """The prompts cut to three lengths in one padded batch, and those lengths."""
    length = tokens.shape[1]
    lengths = [length, length // 2, length // 4]
    padded, mask = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for row, n in enumerate(lengths):
        where = slice(length - n, None) if side == "left" else slice(n)
        padded[row, where], mask[row, where] = tokens[row, :n], 1
    inputs = {"input_ids": padded, "attention_mask": mask, "use_cache": False}
    # Models with absolute positions count the padding unless given position_ids.
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return inputs, lengths


def _padded(
    model: nn.Module, tokens: Tensor, layers: tuple[AttentionLayer, ...]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """First and last outputs of an encoder's prompts in a padded batch, and of each prompt alone.

    Padded with the model's own padding token: some count positions by it.
    """
    length = tokens.shape[1]
    pad = getattr(model.config, "pad_token_id", None) or 0
    lengths = [length, length // 2, length // 4]
    padded, mask = torch.full_like(tokens, pad), torch.zeros_like(tokens)
    alone: dict[int, list[Tensor]] = {layer.layer: [] for layer in layers}
    for row, n in enumerate(lengths):
        padded[row, :n], mask[row, :n] = tokens[row, :n], 1
        with capture_attention(model, positions=[0, -1]) as captured:
            model(input_ids=tokens[row : row + 1, :n], **without_cache(model))
        for number, found in alone.items():
            found.append(captured[number])
    with capture_attention(model, positions=[0, -1]) as together:
        model(input_ids=padded, attention_mask=mask, **without_cache(model))
    got = {layer.layer: together[layer.layer] for layer in layers}
    return got, {number: torch.cat(found) for number, found in alone.items()}


def _returned(output: Any) -> Tensor:
    """The logits, or what a model without a head returns first."""
    return output.logits if hasattr(output, "logits") else output[0]


def _last(outputs: Tensor, lengths: list[int]) -> Tensor:
    return torch.stack([outputs[row, n - 1] for row, n in enumerate(lengths)])[:, None]


def _difference(got: Tensor, expected: Tensor) -> float:
    expected = expected.float()
    scale = expected.square().mean().sqrt().clamp(min=1e-30)
    worst = float((got.float() - expected).abs().max() / scale)
    return worst if math.isfinite(worst) else math.inf  # NaN would compare as small


def _tokens(model: nn.Module, shape: tuple[int, int], seed: int) -> Tensor:
    size, generator = vocab_size(model), torch_generator(seed, "check")
    tokens = torch.randint(size, shape, generator=generator)
    pad = getattr(getattr(model, "config", None), "pad_token_id", None)
    if not all(layer.causal for layer in attention_layers(model)) and pad is not None:
        tokens[tokens == pad] = (pad + 1) % size  # counts as no token
    return tokens.to(input_device(model))


def _describe(layers: tuple[AttentionLayer, ...]) -> str:
    kinds = [layer.type for layer in layers]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    one = layers[0]
    heads = f"{one.n_heads} heads of {one.head_size}"
    if one.n_kv_heads != one.n_heads:
        heads += f", {one.n_kv_heads} KV heads"
    return f"{counted}; {heads}; output of {one.hidden_size}"


def _describe_bos(loaded: LoadedModel) -> str:
    if loaded.bos_token_id is None:
        return "the tokenizer has none"
    adds = "added" if loaded.adds_bos else "not added"
    token = loaded.tokenizer.convert_ids_to_tokens(loaded.bos_token_id)
    return f"{token} is {adds} to every prompt"


def _plain(weight: Tensor) -> Tensor:
    """Quantized weights have few operations."""
    if type(weight) in (Tensor, nn.Parameter):
        return weight
    nf4: Any = getattr(weight, "get_original_weight", None)
    return weight.dequantize() if nf4 is None else nf4()
