"""Null models: what slopes look like where nothing was learned.

    untrained   the same architecture with fresh random weights
    shuffled    the same weights, the entries of each tensor in a random order

Untrained attention is nearly uniform, so its variance falls as N^-0.5 by itself. A head has learned
to do so, or not to, only where it differs from the null on the same prompts.
"""

import copy

import torch
from torch import nn

from llmprobe.base.machine import evaluating
from llmprobe.base.seeds import torch_generator
from llmprobe.capture.editing import edits_here
from llmprobe.capture.loading import LoadedModel
from llmprobe.capture.parts import part_of, whole_of

NULLS = ("untrained", "shuffled")


def null_model(loaded: LoadedModel, null: str, *, seed: int) -> nn.Module:
    """A model of the same shape, on the same device, of which nothing is learned."""
    model: nn.Module = loaded.model
    if edits_here(model):
        raise ValueError(
            f"null: attention of {loaded.name} is edited, and that of a null model would not be; "
            "leave null out, or the edit"
        )
    if loaded.quantized is not None and null == "shuffled":
        raise ValueError(
            f"null: got 'shuffled', but weights of {loaded.name} are rounded to {loaded.quantized} "
            "and their entries cannot be moved; use 'untrained', or leave quantize out"
        )
    whole = whole_of(model)
    made = _untrained(whole, loaded.name, seed) if null == "untrained" else copy.deepcopy(whole)
    if null == "shuffled":
        with torch.no_grad():
            for name, weight in made.named_parameters():
                order = torch.randperm(
                    weight.numel(), generator=torch_generator(seed, "null", name)
                )
                weight.copy_(weight.flatten()[order.to(weight.device)].view_as(weight))
    weight = next(model.parameters())
    made = made.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)
    return part_of(made, loaded.part)


def _untrained(model: nn.Module, name: str, seed: int) -> nn.Module:
    config = getattr(model, "config", None)
    if not hasattr(model, "init_weights") or config is None:
        raise ValueError(
            f'null: {name} has no config to make an untrained model of; use null="shuffled"'
        )
    start = torch_generator(seed, "null").initial_seed()
    with evaluating(model), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(start)
        made: nn.Module = type(model)(copy.deepcopy(config))
    return made
