"""A hash of all that decides what a model computes, so a run is never resumed with another model.

It covers the raw bytes of every parameter and buffer, the config, and the state of every module:
its class, its attributes (an adapter that is switched off, a scale), the functions that users
hooked into it with all that those hold, functions of transformers that were replaced, autocast, and
the edits of its attention that are active here. It does not depend on where the model lies: the
same weights on another device, or offloaded by accelerate, have the same digest.

sha256 is the fastest hash of the standard library on processors that have instructions for it (all
current ones), and releases Python's lock, so blocks of weights are hashed by several threads. The
digest is of the model in memory and is not cached by file: edits and adapters count, and hashing
takes a small part of the time that loading takes.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from llmprobe.capture.editing import edits_here
from llmprobe.capture.held import LOADERS, Held, origin, replaced_parts

_BLOCK_BYTES = 2**26
"""Bytes that one thread hashes at a time."""
_NOT_OF_A_MODEL = ("architectures", "dtype", "torch_dtype", "transformers_version")
"""Config fields that do not change the computation; the number type is in the weights' facts."""
_NOT_OF_A_MODULE = {
    *nn.Module().__dict__,
    "config",  # read by itself, once
    "name_or_path",
    "hf_device_map",
    "warnings_issued",
    "gradient_checkpointing",
    "_hf_hook",
    "_old_forward",
    "_is_hf_initialized",
    "_weight_conversions",
    "_use_kernels",  # then modules have another forward, which counts
}
"""Attributes that do not change the computation: torch's tables, where a model came from."""


def digest_model(model: nn.Module) -> str:
    """A hash of the weights, the buffers, the config and the state of every module."""

    def of_tensor(tensor: Tensor) -> Any:
        return [fact for _, fact in _digest_tensors({"": tensor})]

    def of_module(module: nn.Module) -> Any:
        return [[*_states(module, held)], [*_digest_tensors(dict(_tensors(module)))]]

    names = {id(module): name for name, module in model.named_modules()}
    held = Held(names, of_tensor, of_module)
    whole = hashlib.sha256(_text(_config_facts(model)))
    for state in _states(model, held):
        whole.update(_text(state))
    whole.update(_text([_hook(hook, held) for hook in _hooks(torch_module, "_global")]))
    for edit in edits_here(model):
        whole.update(_text(held.facts(edit.facts())))
    for function in _replaced(model):
        whole.update(_text(held.facts(function)))
    for setting in _arithmetic(model):
        whole.update(_text(setting))
    for fact in _digest_tensors(dict(_tensors(model))):
        whole.update(_text(fact))
    return whole.hexdigest()


def digest_tokenizer(tokenizer: Any) -> str | None:
    """A hash of what decides how a tokenizer encodes and decodes; None without a tokenizer."""
    if tokenizer is None:
        return None
    facts: dict[str, Any] = {"class": type(tokenizer).__qualname__}
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        rules = json.loads(backend.to_str())
        # Calls with padding or truncation leave their settings there.
        facts |= {name: rules[name] for name in rules if name not in ("padding", "truncation")}
    elif hasattr(tokenizer, "get_vocab"):
        facts["vocab"] = tokenizer.get_vocab()
    return hashlib.sha256(_text(facts)).hexdigest()


def _text(facts: Any) -> bytes:
    return json.dumps(facts, sort_keys=True, default=lambda x: type(x).__name__).encode()


def _config_facts(model: nn.Module) -> dict[str, Any]:
    config: Any = getattr(model, "config", None)
    facts: dict[str, Any] = _of_a_model(config.to_dict() if hasattr(config, "to_dict") else {})
    return facts


def _of_a_model(facts: Any) -> Any:
    """Without the fields that do not change the computation, also in configs inside it."""
    if not isinstance(facts, Mapping):
        return facts
    return {
        str(name): _of_a_model(value)
        for name, value in facts.items()
        if name not in _NOT_OF_A_MODEL and not str(name).startswith("_")
    }


# ---------------------------------------------------------------- weights and buffers


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name, read from where accelerate keeps it if it is offloaded.

    Weights that are tied come under each of their names: whether two equal weights share their
    memory does not change the computation.
    """
    for path, module in model.named_modules(remove_duplicate=False):
        own = {**module._parameters, **module._buffers, **vars(module)}
        for name, tensor in own.items():
            if isinstance(tensor, Tensor) and not _is_history(module, name):
                shown = f"{path}.{name}".lstrip(".")
                yield shown, _offloaded(module, name, shown) if tensor.is_meta else tensor


def _is_history(module: nn.Module, name: str) -> bool:
    """True for what rotary embeddings keep of the longest or the last prompt they have seen."""
    if name.endswith("max_seq_len_cached"):
        return True
    match = re.fullmatch(r"(?:(.+)_)?(?:long_)?inv_freq", name)
    if match is None or name.endswith("original_inv_freq"):
        return False
    kind = getattr(module, "rope_type", None)
    if isinstance(kind, Mapping):
        kind = kind.get(match[1])
    return isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")


def _offloaded(module: nn.Module, name: str, shown: str) -> Tensor:
    hook: Any = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        weights = getattr(one, "weights_map", None)
        try:
            tensor = None if weights is None else weights[name]
        except KeyError:
            continue
        if isinstance(tensor, Tensor) and not tensor.is_meta:
            return tensor
    raise ValueError(
        f"model: {shown} is on the meta device and has no numbers; load the model's weights first"
    )


def _digest_tensors(tensors: Mapping[str, Tensor]) -> Iterator[list[Any]]:
    """Name, type, shape and hash of each tensor, in the order of the names; each hashed once."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        hashed: dict[int, list[Any]] = {}
        for name in sorted(tensors):
            tensor = tensors[name]
            if id(tensor) not in hashed:
                parts = [
                    [str(part.dtype), list(part.shape), threads.map(_hash_block, _blocks(part))]
                    for part in _plain(tensor.detach())
                ]
                hashed[id(tensor)] = parts
        found = {
            key: [[dtype, shape, [*blocks]] for dtype, shape, blocks in parts]
            for key, parts in hashed.items()
        }
    for name in sorted(tensors):
        yield [name, found[id(tensors[name])]]


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """Dense tensors with the same content: wrapped and packed ones consist of several."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _plain(getattr(tensor, name))
    elif tensor.layout != torch.strided:
        yield tensor.to_dense()
    else:
        yield tensor.resolve_conj().resolve_neg()
    state: Any = getattr(tensor, "quant_state", None)  # of bitsandbytes: scales apart from weights
    if state is not None:
        for item in state.as_dict().values():
            if isinstance(item, Tensor):
                yield from _plain(item)


def _blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Some rows at a time: the same ones however the tensor lies in memory."""
    rows = tensor if tensor.dim() else tensor.reshape(1)
    n_bytes = max(1, rows[:1].numel() * rows.element_size())
    return rows.split(max(1, _BLOCK_BYTES // n_bytes))


def _hash_block(block: Tensor) -> str:
    flat = block.cpu().contiguous().reshape(-1)
    return hashlib.sha256(memoryview(flat.view(torch.uint8).numpy())).hexdigest()


# ---------------------------------------------------------------- modules


def _states(root: nn.Module, held: Held) -> Iterator[list[Any]]:
    for name, module in root.named_modules(remove_duplicate=False):
        yield [name, type(module).__qualname__, _state(module, held)]


def _state(module: nn.Module, held: Held) -> dict[str, Any]:
    """What decides a module's outputs besides its tensors and its class."""
    kept = {
        name: value
        for name, value in vars(module).items()
        if name not in _NOT_OF_A_MODULE
        and not _is_history(module, name)
        # Plans and notes of transformers, some of which it adds when a model runs.
        and not (isinstance(module, PreTrainedModel) and name.startswith("_"))
    }
    forward = vars(module).get("_old_forward", kept.pop("forward", None))
    if getattr(forward, "__func__", None) is not type(module).forward and forward is not None:
        kept["forward"] = forward
    state = {
        name: held.facts(value) for name, value in kept.items() if not isinstance(value, Tensor)
    }
    return {
        "state": {name: fact for name, fact in state.items() if fact is not None},
        "hooks": [_hook(hook, held) for hook in _hooks(module)],
    }


def _hooks(owner: Any, start: str = "") -> Iterator[Callable[..., Any]]:
    for name in (f"{start}_forward_pre_hooks", f"{start}_forward_hooks"):
        yield from (hook for hook in getattr(owner, name).values() if origin(hook) not in LOADERS)


def _hook(hook: Callable[..., Any], held: Held) -> Any:
    return held.facts(hook) or type(hook).__qualname__


def _replaced(model: nn.Module) -> Iterator[Callable[..., Any]]:
    """Functions that somebody put in the place of those of torch and transformers."""
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        yield from replaced_parts(kind)
    configs: dict[int, Any] = {
        id(module.config): module.config for module in model.modules() if hasattr(module, "config")
    }
    for config in configs.values():
        name = str(getattr(config, "_attn_implementation", None)).removeprefix("llmprobe_")
        function: Any = ALL_ATTENTION_FUNCTIONS.get(name)
        if function is not None and origin(function) not in (*LOADERS, "torch"):
            yield function


def _arithmetic(model: nn.Module) -> list[str]:
    """Settings of torch that have a model compute in other number types than its weights'."""
    kinds = sorted({weight.device.type for weight in model.parameters()} - {"meta"})
    found = [
        f"autocast {kind} {torch.get_autocast_dtype(kind)}"
        for kind in kinds
        if torch.is_autocast_enabled(kind)
    ]
    precision = torch.get_float32_matmul_precision()
    return found + ([] if precision == "highest" else [f"matmul {precision}"])
