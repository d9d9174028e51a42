"""Quantized weights: rounded here through torchao, or checkpoints that are rounded already.

torchao and not bitsandbytes: its weight-only types run on every device in plain torch and leave all
activations in float, so hooks see what they see in the float model. The int8 of bitsandbytes rounds
activations too, token by token, which adds noise to what is measured here, and its CPU path fetches
a kernel from the hub, which is code.

    int8   one scale for each row of a matrix
    int4   one scale for each 32 weights of a row; kept in a byte each
    nf4    one scale for each 64 weights, rounded to 8 bits; levels are quantiles of a Gaussian

Matrices of the layers are quantized; embeddings, norms and the head are not.
"""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as _METHODS

from llmprobe.base.machine import is_out_of_memory
from llmprobe.capture.refusals import Refusal

QUANTIZED = ("int8", "int4", "nf4")
_GROUP = {"int4": 32, "nf4": 64}
"""Weights that share a scale."""
_MOST_SCALES = 256
"""That share a scale of their own in nf4."""


def check_quantize(kind: str | None) -> None:
    """Refuse other names."""
    if kind is not None and kind not in QUANTIZED:
        raise ValueError(f"quantize: got {kind!r}, accepted: {', '.join(QUANTIZED)}")


def check_package(kind: str | None) -> None:
    """Refuse a model to be quantized, before anything is loaded, if the package is missing."""
    if kind is not None and find_spec("torchao") is None:
        raise Refusal("needs torchao to be quantized: pip install 'llmprobe[quantize]'")


def quantize(model: nn.Module, kind: str) -> None:
    """Replace the matrices of a model's layers by quantized ones, in place."""
    if getattr(model.config, "quantization_config", None) is not None:
        raise Refusal(f"is quantized already; leave quantize={kind!r} out")
    chosen = {id(module) for module in _matrices(model)}
    if not chosen:
        raise Refusal("has no nn.Linear in its layers, so nothing can be quantized")
    group = _GROUP.get(kind, 1)
    for name, module in model.named_modules():
        if id(module) in chosen and module.in_features % group:
            raise Refusal(
                f"has {name} with {module.in_features} inputs, which is no multiple of {group}; "
                "use quantize='int8'"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger = logging.getLogger("torchao")
        level = logger.level
        logger.setLevel(logging.ERROR)  # says at length which kernels for GPUs it does not find
        try:
            import torchao.quantization as ao

            if kind == "nf4":
                for matrix in _matrices(model):
                    matrix.weight = nn.Parameter(_as_nf4(matrix.weight), requires_grad=False)
            else:
                config = _config(ao, kind)
                ao.quantize_(model, config, filter_fn=lambda module, _: id(module) in chosen)
        finally:
            logger.setLevel(level)


def _matrices(model: nn.Module) -> list[nn.Linear]:
    """The matrices of the layers: whatever stands in lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inside = (part for one in lists for part in one.modules())
    return [part for part in inside if isinstance(part, nn.Linear)]


def _config(ao: Any, kind: str) -> Any:
    if kind == "int8":
        return ao.Int8WeightOnlyConfig()
    group = ao.PerGroup(_GROUP[kind])
    return ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group)


def _as_nf4(weight: torch.Tensor) -> torch.Tensor:
    from torchao.quantization import to_nf4

    n_scales = weight.numel() // _GROUP["nf4"]
    rounded: torch.Tensor = to_nf4(weight.detach(), _GROUP["nf4"], math.gcd(n_scales, _MOST_SCALES))
    return rounded


def quantization_of(config: Any) -> str | None:
    """How a checkpoint is quantized, by its config.json; None if it is not."""
    facts = getattr(config, "quantization_config", None)
    if facts is None:
        return None
    facts = facts if isinstance(facts, Mapping) else vars(facts)
    return str(facts.get("quant_method", "bitsandbytes"))  # old ones do not say it


@contextmanager
def running_quantized(config: Any) -> Iterator[None]:
    """Refuse a quantized checkpoint that transformers does not know, or cannot run here."""
    method = quantization_of(config)
    known = dict.fromkeys(name.removesuffix("_4bit").removesuffix("_8bit") for name in _METHODS)
    if method is not None and method not in known:
        raise Refusal(f"is quantized by {method!r}, accepted: {', '.join(known)}")
    try:
        yield
    except (ImportError, RuntimeError) as error:
        if method is None or is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise Refusal(f"is quantized by {method}, which cannot run here: {reason}") from error
