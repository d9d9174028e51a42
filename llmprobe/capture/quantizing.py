"""Weights as int8 or int4, through torchao.

torchao and not bitsandbytes: its weight-only types run on every device in plain torch and leave all
activations in float, so hooks see what they see in the float model. The int8 of bitsandbytes rounds
activations too, token by token, which adds noise to what is measured here.

    int8   one scale for each row of a matrix
    int4   one scale for each 32 weights of a row; kept in a byte each

Matrices of the layers are quantized; embeddings, norms and the head are not.
"""

import logging
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from llmprobe.capture.refusals import Refusal

QUANTIZED = ("int8", "int4")
_GROUP = 32


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
    if kind == "int4":
        for name, module in model.named_modules():
            if id(module) in chosen and module.in_features % _GROUP:
                raise Refusal(
                    f"has {name} with {module.in_features} inputs, which is no multiple of "
                    f"{_GROUP}; use quantize='int8'"
                )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger = logging.getLogger("torchao")
        level = logger.level
        logger.setLevel(logging.ERROR)  # says at length which kernels for GPUs it does not find
        try:
            from torchao.quantization import quantize_

            quantize_(model, _config(kind), filter_fn=lambda module, _: id(module) in chosen)
        finally:
            logger.setLevel(level)


def _matrices(model: nn.Module) -> list[nn.Linear]:
    """The matrices of the layers: whatever stands in lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inside = (part for one in lists for part in one.modules())
    return [part for part in inside if isinstance(part, nn.Linear)]


def _config(kind: str) -> Any:
    import torchao.quantization as ao

    if kind == "int8":
        return ao.Int8WeightOnlyConfig()
    group = ao.PerGroup(_GROUP)
    return ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group)
