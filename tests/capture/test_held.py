"""Whatever a hook takes its numbers from, other numbers give the model another digest."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from families import tiny
from torch import nn
from transformers import LlamaConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from llmprobe.capture.digests import digest_model


@pytest.fixture
def model():
    return copy.deepcopy(tiny("llama"))


@dataclass
class Settings:
    factor: object


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


class Adapter(nn.Module):
    """A part that is no part of the model, such as a sparse autoencoder."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.as_tensor(factor).clone(), requires_grad=False)

    def forward(self, module, args, output):
        return self.factor * output


GLOBAL = {}


def use_global(module, args, output):
    return next(GLOBAL["factor"] * x for x in [output])


def call_helper(module, args, output):
    return use_global(module, args, output)


def with_global(hook, factor):
    def put(model):
        GLOBAL["factor"] = factor
        model.lm_head.register_forward_hook(hook)

    return put


def around(thing):
    """A hook whose closure has a thing that has the factor."""

    def put(model):
        model.lm_head.register_forward_hook(lambda module, args, output: thing.factor * output)

    return put


def calls_layer(number):
    def put(model):
        layer = model.model.layers[number].mlp
        model.lm_head.register_forward_hook(lambda module, args, output: layer)

    return put


HOOKS = {
    f"{name} {factor}": put
    for factor in (2.0, 3.0, torch.full((3,), 2.0), torch.full((3,), 3.0))
    for name, put in {
        "a module of": lambda m, f=factor: m.lm_head.register_forward_hook(Adapter(f)),
        "a module's method of": lambda m, f=factor: m.lm_head.register_forward_hook(
            Adapter(f).forward
        ),
        "a closure with a module of": around(Adapter(factor)),
        "a closure with an object of": around(Settings(factor)),
        "a closure with slots of": around(Slotted(factor)),
        "a closure with a namespace of": around(SimpleNamespace(factor=factor)),
        "a closure with a module inside an object of": around(Settings(Adapter(factor))),
        "a global of": with_global(use_global, factor),
        "a helper's global of": with_global(call_helper, factor),
    }.items()
} | {f"layer {n} called": calls_layer(n) for n in (0, 1)}


def test_no_two_hooks_that_hold_different_things_have_one_digest(model):
    found = {"nothing": digest_model(model)}
    for name, put in HOOKS.items():
        changed = copy.deepcopy(model)
        put(changed)
        found[name] = digest_model(changed)
        assert digest_model(changed) == found[name]
    assert len(set(found.values())) == len(found)


class OwnConfig(LlamaConfig):
    """As in code that comes with a model: it knows where it was read from."""


def test_a_config_behind_a_hook_is_no_difference(model):
    found = set()
    for place in ("a", "b"):
        changed = copy.deepcopy(model)
        around(Settings(OwnConfig(name_or_path=place)))(changed)
        changed.model.cfg = OwnConfig(name_or_path=place)
        found.add(digest_model(changed))
    assert len(found) == 1


def other_rotation(q, k, cos, sin, unsqueeze_dim=1):
    return q, k


def other_forward(self, x):
    return self.down_proj(x)


def other_attention(module, query, key, value, attention_mask, **options):
    return value.transpose(1, 2), None


def test_functions_of_transformers_that_were_replaced_count(model, monkeypatch):
    plain = digest_model(model)
    found = [plain]
    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama.LlamaMLP, "forward", other_forward)
        found.append(digest_model(model))
    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama, "apply_rotary_pos_emb", other_rotation)
        found.append(digest_model(model))
    with monkeypatch.context() as patch:
        patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", other_attention)
        found.append(digest_model(model))
    assert len(set(found)) == 4
    assert digest_model(model) == plain


def test_objects_that_hold_each_other_have_an_end(model):
    first, second = Settings(1.0), Settings(2.0)
    first.factor, second.factor = [second, model], [first, second]
    around(first)(model)
    assert digest_model(model) == digest_model(model)


@pytest.mark.parametrize("depth", range(10))
def test_an_object_counts_whole_wherever_it_is_met_first(model, depth):
    """First at the end of a chain, where little more of it is read, and then near."""

    def digest(factor):
        near = far = Settings(factor)
        for _ in range(depth):
            far = [far]

        def scale(module, args, output, held=(far, near)):
            return output * held[1].factor

        handle = model.model.layers[0].mlp.register_forward_hook(scale)
        try:
            return digest_model(model)
        finally:
            handle.remove()

    assert digest(1.0) != digest(2.0)
