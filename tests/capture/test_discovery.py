"""Attention is found in every family, with its true shape, and refused where there is none."""

import copy

import pytest
import torch
from families import COMMON, FAMILIES, tiny
from torch import nn
from transformers import AutoModelForCausalLM, MambaConfig

from llmprobe import UnsupportedModelError, attention_layers, load_model
from llmprobe.capture.discovery import choose_layers

HYBRIDS = {"lfm2": [1], "jamba": [1, 3], "qwen3_next": [1]}
SLIDING = {"gemma2": [0], "gemma3_text": [0], "cohere2": [0], "gpt_oss": [0], "gpt_neo": [1]}
SLIDING |= {"mistral": [0, 1], "olmo3": [0], "llama4_text": [0]}
MULTI_QUERY = ("falcon", "gpt_bigcode")
OLD = ("bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "xglm", "glm_moe_dsa")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_attention_layers_of_every_family(family):
    layers = attention_layers(tiny(family))
    assert [layer.layer for layer in layers] == HYBRIDS.get(family, [0, 1])
    sliding = [layer.layer for layer in layers if layer.type == "sliding"]
    assert sliding == SLIDING.get(family, [])
    windows = {layer.window for layer in layers if layer.type == "sliding"}
    assert windows == ({4} if sliding else set())
    assert all(layer.window is None for layer in layers if layer.type != "sliding")
    for layer in layers:
        assert (layer.n_heads, layer.head_size, layer.hidden_size) == (4, 8, 32)
        assert layer.projection.startswith(layer.path) == (family != "bert")
        assert layer.output == (layer.projection if family in ("bloom", "bert") else layer.path)
        assert layer.causal
        assert layer.interface == (family not in OLD)
        assert not layer.last_only
        if family in MULTI_QUERY:
            assert layer.n_kv_heads == 1
        elif family in ("llama", "gemma2", "mistral", "qwen3", "jamba"):
            assert layer.n_kv_heads == 2


def test_base_models_are_searched_as_well_as_those_with_a_head():
    model = tiny("llama")
    inner = attention_layers(model.model)
    assert [f"model.{layer.path}" for layer in inner] == [
        layer.path for layer in attention_layers(model)
    ]


def test_looking_leaves_no_trace():
    model = tiny("gemma2")
    before = torch.get_rng_state(), model.config._attn_implementation
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    attention_layers(model.train())
    model.eval()
    assert torch.equal(before[0], torch.get_rng_state())
    assert model.config._attn_implementation == before[1]
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_attention_free_models_are_refused():
    mamba = AutoModelForCausalLM.from_config(
        MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=50, state_size=4)
    )
    with pytest.raises(UnsupportedModelError, match=r"Mamba.*no attention"):
        attention_layers(mamba)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("jetmoe", "JetMoeAttention.*does not end in an output projection"),
        ("diffllama", "DiffLlamaAttention.*more than once"),
    ],
)
def test_modules_that_would_give_wrong_heads_are_refused_by_name(family, said):
    with pytest.raises(UnsupportedModelError, match=said):
        attention_layers(tiny(family))


def test_layers_of_several_classes_stand_in_the_order_in_which_they_run():
    layers = attention_layers(tiny("minimax"))
    assert [layer.layer for layer in layers] == [0, 1, 2, 3]
    assert [layer.type for layer in layers] == ["linear", "full"] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_residual_is_told_from_the_output_in_any_precision_and_mode(dtype):
    model = copy.deepcopy(tiny("bloom")).to(dtype).train()
    assert all(layer.output == layer.projection for layer in attention_layers(model))
    assert model.training


def test_layers_are_chosen_by_number_from_the_end_and_by_slice():
    layers = attention_layers(tiny("jamba"))  # 1 and 3
    numbers = lambda choice: [x.layer for x in choose_layers(layers, choice)]  # noqa: E731
    assert numbers(None) == [1, 3]
    assert numbers(3) == [3]
    assert numbers(-1) == [3]
    assert numbers([-2]) == [1]
    assert numbers([3, 1]) == [1, 3]  # in the order in which they run
    assert numbers(slice(0, 1)) == [1]
    for wrong in (0, 99, -3, [1, 2]):
        with pytest.raises(ValueError, match=r"no attention layer.*1, 3"):
            choose_layers(layers, wrong)
    for none in ([], slice(5, 9)):
        with pytest.raises(ValueError, match="chooses none"):
            choose_layers(layers, none)
    with pytest.raises(ValueError, match="accepted: 0 to 1"):
        choose_layers(attention_layers(tiny("llama")), 7)


def test_layers_are_chosen_by_the_text_of_the_command_line():
    layers = attention_layers("builtin")  # 0 to 4
    for text, expected in [
        ("all", [0, 1, 2, 3, 4]),
        ("0", [0]),
        ("-1", [4]),
        ("0,2..4", [0, 2, 3, 4]),
        (" 3, 1 ", [1, 3]),
    ]:
        assert [x.layer for x in choose_layers(layers, text)] == expected
    assert choose_layers(layers, torch.tensor([1, -1])) == (layers[1], layers[4])
    for wrong in ("", "first", "1;2", "4..2", "0,,1", "9"):
        with pytest.raises(ValueError, match=r"^layers: [^\n]*accepted: [^\n]*$"):
            choose_layers(layers, wrong)
    for wrong in (1.5, [0, "1"], [None], object()):
        with pytest.raises(ValueError, match=r'^layers: got .*, accepted: "all", 0, -1'):
            choose_layers(layers, wrong)


def test_layers_are_found_by_name_in_a_module_and_in_a_loaded_model():
    loaded = load_model("builtin")
    layers = attention_layers(loaded.model)
    assert len(layers) == 5
    assert attention_layers(loaded) is layers  # remembered for the module
    assert attention_layers("builtin") == layers


class Attention(nn.Module):
    """A model of one's own that honors the contract."""

    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.value = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(self.value(x).cumsum(1))


class Own(nn.Module):
    _can_record_outputs = {"attentions": Attention}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(COMMON["vocab_size"], 8)
        self.attention = Attention()

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, use_cache=False):
        return self.attention(self.embedding(input_ids))


def test_a_model_of_ones_own_declares_its_attention():
    (layer,) = attention_layers(Own())
    assert (layer.path, layer.projection, layer.n_heads) == ("attention", "attention.out", 2)


class Single(Attention):
    """One head, whose values are already where they go."""

    def __init__(self, last_only=False):
        super().__init__()
        self.num_heads, self.last_only = 1, last_only
        self.out = nn.Identity()

    def forward(self, x):
        x = self.value(x).cumsum(1)
        return self.out(x[:, -1:] if self.last_only else x)


class Changed(Attention):
    """The identity behind the projection must not pass for it."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(super().forward(x) * 2)


def own(attention):
    model = Own()
    model.attention = attention
    return model


@pytest.mark.parametrize("last_only", [False, True])
def test_an_identity_may_stand_where_the_projection_would(last_only):
    (layer,) = attention_layers(own(Single(last_only)))
    assert (layer.projection, layer.output) == ("attention.out", "attention")
    assert (layer.n_heads, layer.head_size, layer.hidden_size) == (1, 8, 8)
    assert layer.last_only == last_only


def test_an_identity_behind_a_projection_is_not_taken_for_it():
    with pytest.raises(UnsupportedModelError, match="does not end in an output projection"):
        attention_layers(own(Changed()))
    assert [x.projection for x in attention_layers(tiny("gpt2"))] == [
        f"transformer.h.{n}.attn.c_proj" for n in (0, 1)
    ]
