"""Which modules of a model are its attention, found without a table of architectures.

First by what the model declares: transformers models name the class that yields `attentions`, and
a custom model can do the same with a class attribute

    _can_record_outputs = {"attentions": MyAttention}

Otherwise by behavior: a few tokens are run, and a module that returns a square matrix of weights
over them, with row sums of at most one, is attention. The output projection is found by behavior
too (`observing`), and so is whether a token sees those behind it, as in an encoder.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from llmprobe.base.machine import evaluating
from llmprobe.capture.calls import (
    BASES,
    AttentionCall,
    can_listen,
    lock,
    routed,
    uses_interface,
)
from llmprobe.capture.loading import AnyModel, module_of
from llmprobe.capture.observing import Seen, ends_in_heads, observe
from llmprobe.capture.parts import is_cross, whole_of
from llmprobe.capture.wrapping import check_plain
from llmprobe.errors import UnsupportedModelError

LayerChoice = int | str | slice | Sequence[int] | None
"""None for all, a layer number, text such as "0,4,8..12", a slice, or several numbers."""

_N_TOKENS = 7
"""Tokens of the run by behavior; a prime that is unlikely to be a number of heads."""
_N_PROMPTS = 2
"""Prompts of that run where a decoder reads one token only: it tells the two apart."""
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads")
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
_DIGITS = 5
"""Of a layer's number. A range is expanded before the model is known, so it must be short."""
_ACCEPTED = 'accepted: "all", 0, -1, "0,4,8..12", a list of numbers, a slice'
"""Ways to choose layers, for messages."""
_TYPES = {
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
}


@dataclass(frozen=True)
class AttentionLayer:
    """One attention module and its shape."""

    layer: int
    """The model's own layer number."""
    path: str
    """The module's path in the model, for `model.get_submodule`."""
    type: str
    """full, sliding (a window or a chunk) or linear."""
    n_heads: int
    n_kv_heads: int
    head_size: int
    """Of one head's output."""
    hidden_size: int
    """Of the module's output."""
    projection: str
    """Path of the output projection."""
    output: str
    """Path of the module whose output is the attention's: the module itself, or the projection
    where the module adds the residual stream (Bloom) or ends before the projection (BERT)."""
    interface: bool
    """True if the module looks up its attention function by name, so that single rows can be
    computed."""
    last_only: bool
    """True if the module returns the last token only: its output has one position."""
    window: int | None = None
    """Tokens that a sliding layer sees, if it says so."""
    causal: bool = True
    """False if a token sees those behind it, as in an encoder."""
    cross: bool = False
    """True if the queries are tokens of a decoder and the keys those of its encoder."""


_Found = tuple[int, tuple[AttentionLayer, ...]]
_known: "WeakKeyDictionary[nn.Module, dict[str | None, _Found]]" = WeakKeyDictionary()
"""By the part of an encoder-decoder."""


def attention_layers(model: AnyModel, *, part: str | None = None) -> tuple[AttentionLayer, ...]:
    """The attention modules of a language model, in the order in which they run.

    `model` is a name (hub id, folder, .gguf file, "builtin"), a module or a `LoadedModel`; `part`
    of an encoder-decoder is "encoder" (its default), "decoder" or "cross". The first call runs
    seven tokens through the model, and your own hooks fire on them too; the answer is cached until
    the model's structure changes.
    """
    model = module_of(model, part)
    whole, part = whole_of(model), getattr(model, "part", None)
    check_plain(whole)
    structure = hash(tuple((name, type(module)) for name, module in whole.named_modules()))
    with lock:  # one thread looks, the others wait for its answer
        found = _known.setdefault(whole, {})
        if part not in found or found[part][0] != structure:
            found[part] = structure, tuple(_discover(model))
        return found[part][1]


def choose_layers(
    layers: Sequence[AttentionLayer], choice: LayerChoice
) -> tuple[AttentionLayer, ...]:
    """The chosen ones: all (None), by number (negative from the end), by text or by a slice."""
    if isinstance(choice, str):
        choice = parse_layers(choice)
    if choice is None:
        return tuple(layers)
    if isinstance(choice, slice):
        chosen = list(layers)[choice]
    else:
        numbers = whole_numbers(choice)
        if numbers is None:
            raise ValueError(f"layers: got {choice!r}, {_ACCEPTED}")
        chosen = [_by_number(layers, number) for number in numbers]
    if not chosen:
        raise ValueError(f"layers: {choice!r} chooses none of {_numbers(layers)}")
    return tuple(layer for layer in layers if layer in chosen)


def whole_numbers(given: Any) -> list[int] | None:
    """One number or several as a list; None if anything else is among them."""
    try:
        return [index(item) for item in (given if isinstance(given, Iterable) else [given])]
    except TypeError:
        return None


def parse_layers(text: str) -> list[int] | None:
    """Layers as text: `all`, `0`, `-1`, `0,4,8..12` (both ends included)."""
    if text.strip() == "all":
        return None
    numbers: list[int] = []
    for item in text.replace(" ", "").split(","):
        match = re.fullmatch(rf"(-?\d{{1,{_DIGITS}}})(?:\.\.(\d{{1,{_DIGITS}}}))?", item)
        if match is None:
            raise ValueError(
                f"layers: got {text!r}, accepted: all, 0, -1, 0,4,8..12; {_DIGITS} digits at most"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"layers: {item!r} runs backwards; accepted: all, 0, -1, 0,4,8..12")
        numbers += range(first, last + 1)
    return numbers


def decoder_of(model: nn.Module) -> nn.Module:
    """The stack that runs the layers, without wrappers or a language model head."""
    find = getattr(model, "get_decoder", None)
    decoder = find() if callable(find) else model
    return decoder if isinstance(decoder, nn.Module) else model


def _by_number(layers: Sequence[AttentionLayer], number: int) -> AttentionLayer:
    if -len(layers) <= number < 0:
        return layers[number]
    for layer in layers:
        if layer.layer == number:
            return layer
    raise ValueError(f"layers: no attention layer {number}, accepted: {_numbers(layers)}")


def _numbers(layers: Sequence[AttentionLayer]) -> str:
    numbers = [layer.layer for layer in layers]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _discover(model: nn.Module) -> Iterator[AttentionLayer]:
    decoder, whole, cross = decoder_of(model), whole_of(model), is_cross(model)
    sparse = getattr(getattr(decoder, "config", None), "attention_type", "") == "block_sparse"
    if sparse and hasattr(decoder, "set_attention_type"):
        raise UnsupportedModelError(
            f"{type(whole).__name__} replaces its sparse attention by a full one for short "
            "prompts, so lengths cannot be compared; use another model"
        )
    attention = declared_attention(decoder, cross=cross) or _behaving(model, decoder)
    if not attention:
        raise UnsupportedModelError(
            f"{type(whole).__name__} has no attention that llmprobe can find: the model declares "
            "none, and no module returns attention weights; use another model, or declare the "
            "attention class in _can_record_outputs"
        )
    paths = {id(module): path for path, module in whole.named_modules()}
    attention = [module for module in model.modules() if module in set(attention)]
    try:
        seen = observe(model, attention, filter(can_listen, attention), partial(_run, model))
    except UnsupportedModelError:  # sparse attention: its calls cannot be observed
        seen = observe(model, attention, (), partial(_run, model))
    # Layers that look at images do not run without one.
    attention = [module for module in attention if seen[id(module)].hidden_size] or attention
    if cross:
        _check_order(model, seen[id(attention[0])].given)
    both_ways = cross or _see_both_ways(model, seen[id(attention[0])])
    numbers = [layer_number(paths[id(module)], module) for module in attention]
    if len(set(numbers)) < len(numbers):
        numbers = list(range(len(numbers)))
    note = seen[id(attention[0])]
    separate = note.outside and not note.calls and _returns_heads(model, attention[0])
    for number, module in zip(numbers, attention, strict=True):
        note = seen[id(module)]
        layer = _describe(module, paths, number, note, decoder, separate=separate)
        # A window in both directions has another size than it says; across stacks there is none.
        layer = replace(layer, causal=False, window=None) if both_ways else layer
        yield replace(layer, type="full", cross=True) if cross else layer


def _returns_heads(model: nn.Module, attention: nn.Module) -> bool:
    with eager_weights(model):
        return ends_in_heads(attention, partial(_run, model, output_attentions=True))


def declared_attention(decoder: nn.Module, *, cross: bool = False) -> list[nn.Module]:
    """Modules of the classes that the model names as the source of its attentions."""
    found: list[nn.Module] = []
    declared = getattr(type(decoder), "_can_record_outputs", None) or {}
    wanted = declared.get("cross_attentions" if cross else "attentions", ())
    for item in wanted if isinstance(wanted, list | tuple) else [wanted]:
        kind = item if isinstance(item, type) else getattr(item, "target_class", None)
        within = getattr(item, "layer_name", None)
        for path, module in decoder.named_modules():
            named = within is None or f".{within.strip('.')}." in f".{path}."
            if kind is not None and named and isinstance(module, kind):
                found.append(_inner(module))
    return found


def _inner(module: nn.Module) -> nn.Module:
    """The attention inside a declared module that also has its norm and residual (T5)."""
    inside = [] if uses_interface(module) else [x for x in module.modules() if uses_interface(x)]
    return inside[0] if len(inside) == 1 else module


def _behaving(model: nn.Module, decoder: nn.Module) -> list[nn.Module]:
    """Innermost modules that return weights (1, heads, queries, tokens) of an attention."""
    found: dict[int, nn.Module] = {}

    def look(module: nn.Module, args: Any, output: Any) -> None:
        given = output[1:] if isinstance(output, tuple) else ()
        if any(_are_weights(item, 1 if is_cross(model) else _N_TOKENS) for item in given):
            inner = {id(child) for child in module.modules()} - {id(module)}
            if not inner & found.keys():
                found[id(module)] = module

    with ExitStack() as stack:
        for module in decoder.modules():
            stack.enter_context(module.register_forward_hook(look))
        stack.enter_context(eager_weights(model))
        _run(model, output_attentions=True)
    return list(found.values())


def _are_weights(item: Any, n_queries: int) -> bool:
    shape = (n_queries, _N_TOKENS)
    if not isinstance(item, Tensor) or item.ndim != 4 or item.shape[-2:] != shape:
        return False
    mass = item.float().sum(-1)
    if (item < 0).any() or (mass > 1.01).any():
        return False
    causal = item.float().triu(1).sum() == 0
    return bool(causal or (mass > 0.99).all())  # an encoder's rows have no learned sinks


@contextmanager
def eager_weights(model: nn.Module, layers: Sequence[AttentionLayer] = ()) -> Iterator[None]:
    """Switch all modules to eager attention, which computes the weights.

    Raises if one of `layers` has no weights.
    """
    for layer in layers:
        module = model.get_submodule(layer.path)
        name = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if layer.type == "linear" or (uses_interface(module) and name not in (*BASES, None)):
            raise UnsupportedModelError(
                f"{layer.path} ({type(module).__name__}, {layer.type} attention, "
                f"attn_implementation={name!r}) computes no attention weights; choose other layers"
            )
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    with ExitStack() as stack:
        for config in configs.values():
            if getattr(config, "_attn_implementation", None) is not None:
                stack.enter_context(routed(config, eager=True))
        yield


def _describe(
    module: nn.Module,
    paths: dict[int, str],
    number: int,
    seen: Seen,
    decoder: nn.Module,
    *,
    separate: bool,
) -> AttentionLayer:
    path = paths[id(module)]
    what = f"{path} ({type(module).__name__})"
    if seen.projection is None or not (seen.returns_projected or seen.adds_residual):
        raise UnsupportedModelError(
            f"{what} does not end in an output projection, so its heads cannot be captured"
        )
    if seen.outside and not seen.calls and not separate:
        raise UnsupportedModelError(
            f"{what} computes attention on its own, and what it returns is not its weights times "
            "its values, so its heads cannot be captured"
        )
    if len(seen.calls) > 1:
        raise UnsupportedModelError(
            f"{what} computes attention more than once in a forward: several layers share it, or "
            "it combines several attentions, so its heads cannot be captured"
        )
    if seen.calls:
        call = seen.calls[0]
        n_heads, n_kv_heads = call.query.shape[1], call.key.shape[1]
        fits = n_heads * call.value.shape[-1] == seen.projection_size
    else:
        n_heads = number_of(module, HEADS) or 0
        n_kv_heads = number_of(module, KV_HEADS) or n_heads
        fits = n_heads > 0 and seen.projection_size % n_heads == 0
    if not fits:
        raise UnsupportedModelError(
            f"{what} has {n_heads} heads, but its projection takes {seen.projection_size} "
            "features, so its heads cannot be captured"
        )
    kind = _type(module, number, decoder, seen.calls)
    return AttentionLayer(
        layer=number,
        path=path,
        type=kind,
        window=number_of(module, _WINDOWS) if kind == "sliding" else None,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_size=seen.projection_size // n_heads,
        hidden_size=seen.hidden_size,
        projection=paths[id(seen.projection)],
        output=paths[id(seen.projection)] if seen.adds_residual or seen.outside else path,
        interface=bool(seen.calls) and not seen.last_only,  # one row only: nothing to skip
        last_only=seen.last_only,
    )


def _see_both_ways(model: nn.Module, seen: Seen) -> bool:
    """Whether an attention module's last token but one changes with the last."""
    if seen.calls:
        return seen.calls[0].sees_later()
    if seen.last_only or seen.projection is None:
        return False
    kept: list[Tensor] = []

    def look(projection: nn.Module, args: Any, kwargs: Any) -> None:
        kept.append(args[0] if args else next(iter(kwargs.values())))

    with seen.projection.register_forward_pre_hook(look, with_kwargs=True):
        _run(model)
        _run(model, last=0)
    _check_order(model, kept[0])
    a, b = (heads[:, -2].float() for heads in (kept[0], kept[-1]))
    return bool((a - b).abs().max() > 1e-4 * a.square().mean().sqrt())


def _check_order(model: nn.Module, heads: Tensor | None) -> None:
    """Refuse modules whose heads are not (prompts, tokens, features)."""
    wanted = (_N_PROMPTS, 1) if is_cross(model) else (1, _N_TOKENS)
    if heads is not None and (heads.ndim != 3 or heads.shape[:2] != wanted):
        raise UnsupportedModelError(
            f"{type(whole_of(model)).__name__} keeps head outputs in shape {tuple(heads.shape)}, "
            f"accepted: (prompts, tokens, features), here {wanted}; use another model"
        )


def layer_number(path: str, module: nn.Module) -> int:
    """The number in the path, which differs between layers; else what the module says."""
    in_path = next((int(part) for part in path.split(".") if part.isdecimal()), None)
    said = getattr(module, "layer_idx", getattr(module, "layer_id", 0))
    return in_path if in_path is not None else said or 0


def number_of(module: nn.Module, names: Iterable[str]) -> int | None:
    """What the module, or its config, has under one of these names."""
    for source in (module, getattr(module, "config", None)):
        for name in names:
            if isinstance(value := getattr(source, name, None), int):
                return value
    return None


def _type(
    module: nn.Module, number: int, decoder: nn.Module, calls: Sequence[AttentionCall]
) -> str:
    config = getattr(module, "config", None) or getattr(decoder, "config", None)
    declared = getattr(config, "layer_types", None)
    if declared and number < len(declared):
        return _TYPES.get(declared[number], "full")
    if calls:
        return "sliding" if calls[0].options.get("sliding_window") else "full"
    local = getattr(module, "attention_type", None) == "local"
    return "sliding" if local or getattr(module, "sliding_window", None) else "full"


def input_device(model: nn.Module) -> torch.device:
    """The device for tokens; with weights offloaded by accelerate, the one that they run on."""
    embedding = model.get_input_embeddings()
    device = next(embedding.parameters()).device
    if device.type == "meta":
        device = torch.device(getattr(embedding._hf_hook, "execution_device", None) or "cpu")
    return device


def _run(model: nn.Module, *, last: int = _N_TOKENS, **options: Any) -> None:
    """Run a few tokens; the model's mode and the random state are restored."""
    tokens = torch.arange(1, _N_TOKENS + 1, device=input_device(model))[None]
    tokens[0, -1] = last
    tokens = tokens.expand(_N_PROMPTS if is_cross(model) else 1, -1)
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model(input_ids=tokens % vocab_size(model), **without_cache(model), **options)


def vocab_size(model: nn.Module) -> int:
    """How many tokens a model knows; an embedding may be no table (I-BERT)."""
    size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    known: int = model.config.vocab_size if size is None else size
    return known


def without_cache(model: nn.Module) -> dict[str, Any]:
    """The argument that keeps a model from filling a KV cache; encoders have none."""
    parameters = inspect.signature(model.forward).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"use_cache": False} if free or "use_cache" in parameters else {}
