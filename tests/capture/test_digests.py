"""A digest is the same for the same computation, and another one for any other."""

import copy
import functools
import subprocess
import sys

import peft
import pytest
import torch
from accelerate import cpu_offload, disk_offload, init_empty_weights
from devices import DEVICE, KIND
from families import FAMILIES, tiny
from tokenizers import decoders, normalizers
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from llmprobe import attention_layers, load_model
from llmprobe.capture.digests import digest_model, digest_tokenizer

TOKENS = torch.arange(12).reshape(1, 12).to(DEVICE)


@pytest.fixture
def model():
    return copy.deepcopy(tiny("llama"))


def flip_signs(model):
    model.model.layers[1].mlp.up_proj.weight.data[0, [0, 1]] *= -1


def flip_far_signs(model):
    model.lm_head.weight.data[[0, -1], [0, -1]] *= -1


def swap_rows(model):
    weight = model.model.layers[1].self_attn.o_proj.weight.data
    weight[[0, 1]] = weight[[1, 0]]


def change_last_bit(model):
    model.model.norm.weight.data.view(torch.int32)[-1] ^= 1


def other_frequencies(model):
    model.model.rotary_emb.inv_freq *= 0.5


def other_config(model):
    model.config.rms_norm_eps *= 2


def other_epsilon(model):
    model.model.norm.variance_epsilon *= 2


def other_scaling(model):
    model.model.layers[0].self_attn.scaling *= 2


def other_activation(model):
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def other_function(model):
    del model.model.layers[0].mlp.act_fn
    model.model.layers[0].mlp.act_fn = torch.tanh


def another_function(model):
    del model.model.layers[0].mlp.act_fn
    model.model.layers[0].mlp.act_fn = torch.relu


def plain_tensor(model):
    model.model.layers[0].mlp.gate = torch.ones(3)


def another_type(model):
    model.model.norm.weight.data = model.model.norm.weight.data.double()


def another_shape(model):
    model.model.norm.weight.data = model.model.norm.weight.data[None]


def own_forward(model):
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: 2 * type(mlp).forward(mlp, x)


def hook(model):
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: 2 * output)


def other_hook(model):
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: 3 * output)


def hook_elsewhere(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: 2 * output)


def pre_hook(model):
    model.lm_head.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def edit(factor, module, args, output):
    return factor * output


def held_hook(factor):
    def put(model):
        model.lm_head.register_forward_hook(lambda module, args, output: factor * output)

    return put


def partial_hook(factor):
    return lambda model: model.lm_head.register_forward_hook(functools.partial(edit, factor))


class Edit:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, module, args, output):
        return self.factor * output

    def method(self, module, args, output):
        return self.factor * output


CHANGES = {
    function.__name__: function
    for function in (
        *(flip_signs, flip_far_signs, swap_rows, change_last_bit, other_frequencies),
        *(other_config, other_epsilon, other_scaling, other_activation),
        *(other_function, another_function),
        *(plain_tensor, another_type, another_shape, own_forward),
        *(hook, other_hook, hook_elsewhere, pre_hook),
    )
} | {
    f"{name} {factor}": change
    for factor in (2.0, torch.full((3,), 2.0), torch.full((3,), 3.0))
    for name, change in {
        "a closure of": held_hook(factor),
        "a partial of": partial_hook(factor),
        "an object of": lambda m, f=factor: m.lm_head.register_forward_hook(Edit(f)),
        "a method of": lambda m, f=factor: m.lm_head.register_forward_hook(Edit(f).method),
    }.items()
}


def test_no_two_of_many_changes_have_one_digest(model):
    found = {"nothing": digest_model(model)}
    for name, change in CHANGES.items():
        changed = copy.deepcopy(model)
        change(changed)
        found[name] = digest_model(changed)
        assert digest_model(changed) == found[name]
    same = [(a, b) for a in found for b in found if a < b and found[a] == found[b]]
    assert not same
    assert digest_model(model) == found["nothing"]


def test_the_arithmetic_that_torch_is_set_to_counts(model):
    plain = digest_model(model)
    with torch.autocast(KIND, torch.bfloat16):
        assert digest_model(model) != plain
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert digest_model(model) != plain
    finally:
        torch.set_float32_matmul_precision(before)
    assert digest_model(model) == plain


def test_a_tokenizer_counts_by_its_rules_and_not_by_its_use():
    tokenizer = load_model("builtin").tokenizer
    plain = digest_tokenizer(tokenizer)
    used = copy.deepcopy(tokenizer)
    used.pad_token = used.eos_token
    used(["once", "upon a time"], padding=True, truncation=True, max_length=2)
    assert digest_tokenizer(used) == plain
    found = [plain, digest_tokenizer(None)]
    used.add_tokens(["upon a"])
    found.append(digest_tokenizer(used))
    used.backend_tokenizer.normalizer = normalizers.Lowercase()
    found.append(digest_tokenizer(used))
    used.backend_tokenizer.decoder = decoders.Fuse()
    found.append(digest_tokenizer(used))
    assert len(set(found)) == len(found)


def test_an_adapter_counts_by_what_it_does_now(model):
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    found = [digest_model(adapted)]
    with adapted.disable_adapter():
        found.append(digest_model(adapted))
    adapted.add_adapter("second", config)
    found.append(digest_model(adapted))
    adapted.set_adapter("second")
    found.append(digest_model(adapted))
    adapted.base_model.model.model.layers[0].self_attn.q_proj.scaling["second"] *= 2
    found.append(digest_model(adapted))
    adapted.merge_adapter()
    found.append(digest_model(adapted))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_was_saved_used_or_moved_is_the_same(family, tmp_path):
    model = copy.deepcopy(tiny(family)).eval()
    model.save_pretrained(tmp_path)
    before = digest_model(model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert digest_model(loaded) == before
    assert digest_model(copy.deepcopy(loaded)) == before
    loaded.requires_grad_(False)
    loaded.train()
    loaded.eval()
    with torch.no_grad():
        loaded(TOKENS.cpu())
        attention_layers(loaded)  # for some families that records weights, and leaves a note
    assert digest_model(loaded) == before


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 8,
        },
    ],
)
def test_a_model_is_the_same_after_a_long_prompt(rope):
    config = copy.deepcopy(tiny("llama").config)
    config.rope_parameters = {"rope_theta": 10000.0, **rope}
    config.max_position_embeddings = 8
    model = LlamaForCausalLM(config).eval()
    before = digest_model(model)
    model(torch.arange(40)[None])
    assert digest_model(model) == before
    config.rope_parameters["rope_theta"] = 500.0
    assert digest_model(LlamaForCausalLM(config)) != before


def test_offloaded_weights_count_as_those_in_memory(model, tmp_path):
    before = digest_model(model)
    other = copy.deepcopy(model)
    flip_signs(other)
    for number, (given, same) in enumerate(((model, True), (other, False))):
        for offload in (
            cpu_offload,
            functools.partial(disk_offload, offload_dir=tmp_path / f"{number}"),
        ):
            moved = copy.deepcopy(given)
            offload(moved, execution_device=DEVICE)
            assert any(weight.is_meta for weight in moved.parameters())
            assert (digest_model(moved) == before) == same
    with init_empty_weights():
        empty = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, hidden_size=64))
    with pytest.raises(ValueError, match=r"^model: .* is on the meta device[^\n]*$"):
        digest_model(empty)


def test_tied_and_equal_weights_are_the_same_whatever_their_layout():
    one, other = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
    one[1] = one[0]
    other.load_state_dict(one.state_dict())
    assert digest_model(one) == digest_model(other)
    other[0].weight.data = other[0].weight.data.T.contiguous().T
    assert digest_model(one) == digest_model(other)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.zeros(0),
        torch.zeros(3, 0, 2),
        torch.ones(3, dtype=torch.bool),
        torch.ones(5, 3, dtype=torch.bfloat16).T,
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.zeros(1).expand(2**20),
        torch.ones(3, 3).to_sparse(),
    ],
)
def test_every_kind_of_tensor_has_a_digest(tensor):
    module = nn.Module()
    module.register_buffer("x", tensor)
    other = nn.Module()
    other.register_buffer("y", tensor)
    assert digest_model(module) != digest_model(other)


def test_a_large_tensor_is_hashed_to_its_end(monkeypatch):
    monkeypatch.setattr("llmprobe.capture.digests._BLOCK_BYTES", 100)
    found = set()
    for place in (None, 0, 24, 25, 600, 999):
        layer = nn.Linear(1000, 1, bias=False)
        layer.weight.data.fill_(1)
        layer.weight.data = layer.weight.data.reshape(-1)
        if place is not None:
            layer.weight.data[place] = -1
        found.add(digest_model(layer))
    assert len(found) == 6


@pytest.mark.slow  # starts an interpreter with transformers
def test_another_process_comes_to_the_same():
    code = (
        "import torch; from llmprobe.capture.digests import digest_model\n"
        "m = torch.nn.Linear(2, 2); m.weight.data.fill_(1); m.bias.data.fill_(2)\n"
        "m.kinds = {'b', 'a', 'c'}\n"
        "m.register_forward_hook(lambda m, a, o: o * (o in {'x', 'y', 'z'}))\n"
        "class Held: pass\n"
        "held = Held(); held.inner, held.names, held.me = torch.nn.Tanh(), {'q', 'p'}, held\n"
        "m.register_forward_hook(lambda m, a, o: held.inner(o))\n"
        "print(digest_model(m))"
    )
    found = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)}
    assert len(found) == 1
