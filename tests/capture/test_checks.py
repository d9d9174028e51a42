"""The self-check passes on every family, and fails where it should."""

import copy
import re

import pytest
import torch
from families import FAMILIES, tiny
from torch import nn

from llmprobe import UnsupportedModelError, check_capture, load_model
from llmprobe.capture.checks import tolerance_of
from llmprobe.synthetic.set_network import SetNetwork


@pytest.mark.parametrize("family", FAMILIES)
def test_every_line_holds_in_every_family(family):
    report = check_capture(tiny(family), length=24)
    failed = {line.name for line in report.checks if not line.passed}
    # Sparse attention chooses its keys among the padding too: the check finds that out.
    assert failed == ({"padding on the left changes nothing"} if family == "glm_moe_dsa" else set())
    assert report.passed == (not failed)
    assert len(report.checks) == 10


def failing(model):
    return [line.name for line in check_capture(model, length=24).checks if not line.passed]


def test_a_model_that_looks_ahead_is_found_out():
    model = copy.deepcopy(tiny("llama"))

    def spread(module, args, output):
        return output + output.mean(dim=1, keepdim=True)

    handle = model.model.layers[0].input_layernorm.register_forward_hook(spread)
    found = failing(model)
    handle.remove()
    assert "prefixes are consistent" in found
    assert "hooked logits equal unhooked" not in found
    assert failing(model) == []


def test_a_hook_that_changes_what_is_captured_is_found_out():
    model = copy.deepcopy(tiny("llama"))
    attention = model.model.layers[1].self_attn
    handle = attention.register_forward_hook(lambda m, a, output: (output[0] * 1.5, *output[1:]))
    found = failing(model)
    handle.remove()
    assert "projected heads equal the outputs" in found


def test_nan_is_no_small_difference():
    model = copy.deepcopy(tiny("llama"))

    def spoil(module, args, output):
        return (output[0] * float("nan"), *output[1:])

    handle = model.model.layers[1].self_attn.register_forward_hook(spoil)
    found = failing(model)
    handle.remove()
    assert "padding on the left changes nothing" in found


def test_the_mode_of_the_model_is_given_back():
    model = copy.deepcopy(tiny("llama")).train()
    check_capture(model, length=8)
    assert model.training


def test_a_failure_names_the_layer_the_tolerance_and_what_to_try():
    model = copy.deepcopy(tiny("llama"))
    attention = model.model.layers[1].self_attn
    with attention.register_forward_hook(lambda m, a, output: (output[0] * 1.5, *output[1:])):
        lines = {line.name: line for line in check_capture(model, length=24).checks}
    failed = lines["projected heads equal the outputs"]
    assert failed.detail.startswith('layer 1, tolerance 1.1e-04; try dtype="float64"')
    assert failed.difference > failed.tolerance
    right = lines["outputs equal eager attention's"]
    assert right.difference <= right.tolerance


def test_the_tolerance_grows_with_the_depth_and_the_rounding():
    types = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    for depths in ([tolerance_of(dtype, depth) for depth in range(100)] for dtype in types):
        assert depths == sorted(depths)
        assert depths[0] < depths[-1] < 6 * depths[0]
    first = [tolerance_of(dtype, 0) for dtype in types]
    assert first == sorted(first)
    assert tolerance_of(torch.float32, 17) > 1.2e-4  # what Gemma 3 rounds to in 18 layers


def test_half_precision_is_held_to_what_it_can_do():
    model = copy.deepcopy(tiny("llama")).to(torch.bfloat16)
    assert check_capture(model, length=24).passed


def test_a_tokenizer_is_asked_for_its_beginning():
    class Tokenizer:
        bos_token, bos_token_id = "<s>", 1

        def __call__(self, text):
            return {"input_ids": [1, 5]}

        def convert_ids_to_tokens(self, token):
            return {1: "<s>"}[token]

    report = check_capture(tiny("llama"), tokenizer=Tokenizer(), length=8)
    assert report.checks[-1].detail == "<s> is added to every prompt"
    Tokenizer.bos_token_id = None
    report = check_capture(tiny("llama"), tokenizer=Tokenizer(), length=8)
    assert "none" in report.checks[-1].detail


def test_a_name_a_module_and_a_loaded_model_are_checked_alike():
    loaded = load_model("builtin")
    report = check_capture(loaded, length=8)
    assert report.passed
    assert report.checks[-1].detail == "<s> is added to every prompt"  # the model's own
    assert check_capture("builtin", length=8) == report
    assert check_capture(loaded.model, length=8).checks == report.checks[:-1]


def test_too_short_a_check_is_refused():
    with pytest.raises(ValueError, match="length: got 4"):
        check_capture(nn.Identity(), length=4)


def test_a_check_beyond_the_learned_positions_is_refused():
    model = tiny("gpt2")
    longest = model.config.max_position_embeddings
    with pytest.raises(
        ValueError, match=f"length: got {longest + 1}, accepted: 8 to the {longest}"
    ):
        check_capture(model, length=longest + 1)


def test_attention_for_the_last_token_alone_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"SetNetwork answers for the last token alone"):
        check_capture(SetNetwork("argmax", width=8))


def test_a_matrix_of_zeros_fails_and_is_named():
    for names in (["lm_head.weight"], None):
        model = copy.deepcopy(tiny("llama"))
        for name, weight in model.named_parameters():
            if names is None or name in names:
                weight.data.zero_()
        report = check_capture(model, length=8)
        (line,) = [line for line in report.checks if "all zero" in line.name]
        assert not line.passed
        assert not report.passed
        assert re.search(r"^all zero: \S+\.weight, \d+ of \d+; ", line.detail)
