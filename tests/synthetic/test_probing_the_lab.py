"""The lab's networks are probed like any language model, and every number equals brute force."""

from functools import cache

import numpy as np
import pytest
import torch
from cases import thorough

from llmprobe import attention_layers, capture_attention, probe_attention, probe_variance
from llmprobe.probes.prompts import make_prompts
from llmprobe.synthetic.set_network import PARTS, SetNetwork
from llmprobe.synthetic.set_tokens import VOCAB_SIZE
from llmprobe.synthetic.variants import BASELINE

LENGTHS, N_PROMPTS = (16, 64, 256), 20
DRAWN = {"query": "fixed", "n_queries": 1, "n_prompts": N_PROMPTS}
NAMES = [f"residual+{name}" if PARTS[name].place == "sum" else name for name in PARTS]
every_network = pytest.mark.parametrize(
    "network",
    [
        pytest.param((task, variant, heads), id=f"{task}-{variant}-{heads}")
        for task, heads in (("argmax", 1), ("dictionary", 4))
        for variant in (BASELINE, *NAMES, "layernorm+headnorm+ssmax+adaptive")
        if heads == 1 or variant != "outproj"
    ],
    indirect=True,
)


@pytest.fixture
def network(request):
    task, variant, heads = request.param
    return SetNetwork(task, variant, width=16, heads=heads)


def by_hook(network, tokens):
    """Outputs (batch, width) and heads (batch, heads, size), without any of the probes."""
    kept = {}

    def look(module, args, output):
        kept["output"] = output[0][:, 0].detach()

    def look_before(module, args):
        kept["heads"] = args[0][:, 0].detach().unflatten(-1, (network.heads, -1))

    handles = [
        network.attention.register_forward_hook(look),
        network.attention.o_proj.register_forward_pre_hook(look_before),
    ]
    network(tokens)
    for handle in handles:
        handle.remove()
    return kept


@every_network
def test_the_attention_of_a_network(network):
    (layer,) = attention_layers(network)
    assert (layer.path, layer.projection) == ("attention", "attention.o_proj")
    assert (layer.n_heads, layer.head_size) == (network.heads, 16 // network.heads)
    assert layer.last_only


@every_network
@pytest.mark.parametrize("stop", [False, True])
def test_captures_equal_plain_hooks(network, stop):
    tokens, _ = network.task.sample(3, 9, torch.Generator().manual_seed(0))
    expected = by_hook(network, tokens)
    for at in ("output", "heads"):
        with capture_attention(network, positions=-1, at=at, stop=stop) as captured:
            answer = network(tokens)
        assert torch.equal(captured[0][:, 0], expected[at])
        assert (answer is None) == stop


@cache
def prompt_by_prompt(task, variant, heads, length):
    """Outputs and heads (prompts, ...) of the same prompts as those of a probe, one at a time."""
    network = SetNetwork(task, variant, width=16, heads=heads)
    prompts = make_prompts("random", **DRAWN, lengths=LENGTHS, vocab_size=VOCAB_SIZE)
    seen = [by_hook(network, prompts.batch([i], length)) for i in range(N_PROMPTS)]
    return {at: torch.cat([one[at] for one in seen]).double().numpy() for at in seen[0]}


@every_network
@pytest.mark.parametrize("at", ["heads", *thorough("output")])
def test_the_variance_of_a_network_equals_brute_force(network, at):
    result = probe_variance(network, LENGTHS, at=at, component=2, **DRAWN)
    for column, length in enumerate(LENGTHS):
        alone = prompt_by_prompt(network.task.name, network.variant, network.heads, length)[at]
        std = np.std(alone, axis=0, ddof=1).reshape(len(result.slope), -1)
        np.testing.assert_allclose(result.component_std[:, column], std[:, 2], rtol=1e-5)
        np.testing.assert_allclose(result.std_median[:, column], np.median(std, -1), rtol=1e-5)
    assert (result.slope < 0).all()


@pytest.mark.parametrize(
    "variant",
    [
        variant
        for name, variant in zip(PARTS, NAMES, strict=True)
        if PARTS[name].place not in ("softmax", "projection")
    ],
)
def test_the_rows_of_a_network_are_its_weights(variant):
    network = SetNetwork("argmax", variant, width=16, heads=4)
    result = probe_attention(network, LENGTHS, query="fixed", n_prompts=N_PROMPTS)
    prompts = make_prompts(
        "random", n_prompts=N_PROMPTS, lengths=LENGTHS, vocab_size=VOCAB_SIZE, query="fixed"
    )
    for column, length in enumerate(LENGTHS):
        weights = network(prompts.batch(range(N_PROMPTS), length)).weights.detach()
        effective = (1 / weights.square().sum(-1)).mean(0)
        np.testing.assert_allclose(result.effective[:, column], effective, rtol=1e-5)
    assert np.isnan(result.predicted_variance).all()  # its values are not seen


def test_several_seeds_at_once_give_an_error_and_no_number():
    with pytest.raises((RuntimeError, ValueError)):  # a single prompt is no batch for them
        probe_variance(SetNetwork("argmax", seeds=(0, 1), width=16), LENGTHS, n_prompts=4)
