"""Prompts with a fixed query give in one pass, as branches, what each length gives alone."""

import pandas as pd
import pytest
import torch
from devices import DEVICE
from families import FAMILIES, tiny
from forging import Stopped, stopping

from llmprobe import attention_layers, capture_attention, probe_attention, probe_variance
from llmprobe.probes import request, variance
from llmprobe.probes.agreement import prefixes_agree
from llmprobe.probes.forwards import forward, forward_branches
from llmprobe.probes.plans import plan_probe
from llmprobe.probes.probe import start
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.variance import VarianceProbe, VarianceRequest

LENGTHS = (4, 9, 40)
WITHOUT_BRANCHES = ("glm_moe_dsa", "lfm2", "jamba", "qwen3_next")
"""Families with a state that cannot be cut to a prefix, or a cache that only they know."""

ONE_BY_ONE = (
    *("gemma2", "gemma3_text", "mistral", "cohere2", "gpt_oss", "olmo3", "llama4_text"),
    *("bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "xglm"),
)
"""Families whose branches cannot run together: windows, or attention that takes no mask of ours."""


def prompts_for(lengths=LENGTHS, n=3):
    return make_prompts(
        "random", n_prompts=n, lengths=lengths, vocab_size=97, query="fixed", n_queries=2
    )


def both_ways(model, prompts, *, chunk=None, together=False):
    """Head outputs by layer of all lengths, from branches and from one pass per length."""
    every = range(prompts.n_prompts)

    def observe(positions):
        return capture_attention(model, positions=positions, at="heads", stop=True)

    with torch.inference_mode():
        tokens = prompts.batch(every, max(LENGTHS)).to(DEVICE)
        parts = forward_branches(
            model, tokens, LENGTHS, chunk, observe, n_tail=prompts.n_tail, together=together
        )
        alone = [
            forward(model, prompts.batch(every, n).to(DEVICE), [n - 1], None, observe)[0]
            for n in LENGTHS
        ]
    for layer in attention_layers(model):
        yield tuple(torch.cat([part[layer.layer] for part in way], 1) for way in (parts, alone))


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_give_what_each_length_gives_alone_or_are_refused(family):
    model, prompts = tiny(family), prompts_for()
    agree = prefixes_agree(model, prompts, LENGTHS, attention_layers(model))
    assert agree == (family not in WITHOUT_BRANCHES)
    for got, expected in both_ways(model, prompts) if agree else ():
        scale = expected.square().mean().sqrt().item()
        torch.testing.assert_close(got, expected, atol=5e-6 * scale, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_together_give_what_each_length_gives_alone_or_are_refused(family):
    model, prompts = tiny(family), prompts_for()
    agree = prefixes_agree(model, prompts, LENGTHS, attention_layers(model), together=True)
    assert agree == (family not in (*WITHOUT_BRANCHES, *ONE_BY_ONE))
    for got, expected in both_ways(model, prompts, together=True) if agree else ():
        scale = expected.square().mean().sqrt().item()
        torch.testing.assert_close(got, expected, atol=5e-6 * scale, rtol=0)


@pytest.mark.parametrize("lengths", [(4, 9, 40), (38, 39, 40), (39, 40)])
@pytest.mark.parametrize("n_tail", [1, 3])
def test_branches_together_see_their_prefix_and_themselves(lengths, n_tail):
    """Close lengths too, whose branches need more room than follows the prefix in the cache."""
    model, whole = tiny("llama"), tokens_of(40)

    def observe(positions):
        return capture_attention(model, positions=positions, at="heads", stop=True)

    with torch.inference_mode():
        parts = forward_branches(model, whole, lengths, None, observe, n_tail=n_tail, together=True)
        alone = []
        for n in lengths:
            tokens = torch.cat([whole[:, : n - n_tail], whole[:, -n_tail:]], 1)
            alone += forward(model, tokens, [n - 1], None, observe)
    assert len(parts) == 2
    for layer in attention_layers(model):
        got, expected = (torch.cat([x[layer.layer] for x in y], 1) for y in (parts, alone))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def tokens_of(length):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 97, (2, length), generator=generator).to(DEVICE)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_branches_grow_out_of_chunks_too(family, together):
    for got, expected in both_ways(tiny(family), prompts_for(), chunk=11, together=together):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("probe", [probe_variance, probe_attention])
@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_probe_has_the_numbers_of_one_pass_per_length(probe, family, monkeypatch):
    options = {"layers": None, "n_prompts": 6, "query": "fixed", "n_queries": 2}
    one_pass = probe(tiny(family), LENGTHS, **options).to_frame()
    monkeypatch.setattr(request, "prefixes_agree", lambda *_, **__: False)
    per_length = probe(tiny(family), LENGTHS, **options).to_frame()
    assert not one_pass.equals(per_length)  # they differ by rounding, so both ways were taken
    pd.testing.assert_frame_equal(one_pass, per_length, rtol=1e-3, atol=1e-5)


def test_own_prompts_of_different_sizes_branch_as_far_as_they_reach(monkeypatch):
    rows = [[(7 * i + 3 * j) % 90 + 3 for j in range(n)] for i, n in enumerate((50, 50, 12, 12))]
    options = {"prompts": rows, "query": "id:5"}
    one_pass = probe_variance(tiny("llama"), LENGTHS, **options).to_frame()
    monkeypatch.setattr(request, "prefixes_agree", lambda *_, **__: False)
    per_length = probe_variance(tiny("llama"), LENGTHS, **options).to_frame()
    pd.testing.assert_frame_equal(one_pass, per_length, rtol=1e-3, atol=1e-5)


def test_the_plan_knows_that_keys_are_kept():
    asked = VarianceRequest(lengths="8..64", n_prompts=4, layers="all")
    fixed = VarianceRequest(lengths="8..64", n_prompts=4, layers="all", query="fixed")
    plans = [start(VarianceProbe, "builtin", one).plan for one in (asked, fixed)]
    assert plans[1].one_pass
    assert plans[1].n_tokens == plans[0].n_tokens
    assert plans[1].token_bytes > plans[0].token_bytes
    assert plan_probe(VarianceProbe, "builtin", fixed).memory == plans[1].memory


def typed(monkeypatch):
    """Keep what `find_types` finds."""
    found, find = [], variance.find_types

    def keep(*args, **kwargs):
        found.append(find(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(variance, "find_types", keep)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"at": "heads", "query": "fixed", "n_queries": 2}, {"batch_tokens": 200}]
)
def test_a_probe_of_the_first_layer_has_the_same_numbers_by_token_types(options, monkeypatch):
    found = typed(monkeypatch)
    by_types = probe_variance(tiny("llama"), LENGTHS, n_prompts=16, **options).to_frame()
    monkeypatch.setattr(variance, "find_types", lambda *_, **__: None)
    without = probe_variance(tiny("llama"), LENGTHS, n_prompts=16, **options).to_frame()
    assert [types is None for types in found] == [False]
    pd.testing.assert_frame_equal(by_types, without, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gpt2", {}),
        ("llama", {"n_prompts": 4}),
        ("llama", {"lengths": 16}),
        ("llama", {"chunk": 7}),
    ],
)
def test_token_types_are_left_out_where_they_do_not_pay(family, options, monkeypatch):
    """Learned positions; few prompts; as many distinct tokens as tokens; chunks."""
    found = typed(monkeypatch)
    lengths = options.pop("lengths", LENGTHS)
    probe_variance(tiny(family), lengths, **({"n_prompts": 8} | options))
    assert not any(found)


@pytest.mark.parametrize("query", ["free", "fixed"])
def test_a_resumed_run_by_types_has_the_bits_of_an_undisturbed_one(query, monkeypatch, tmp_path):
    options = {"n_prompts": 32, "query": query, "batch_tokens": 80}
    found = typed(monkeypatch)
    whole = probe_variance(tiny("llama"), LENGTHS, **options, output=tmp_path / "whole")
    with pytest.raises(Stopped), stopping(2):
        probe_variance(tiny("llama"), LENGTHS, **options, output=tmp_path / "run")
    again = probe_variance(tiny("llama"), LENGTHS, **options, output=tmp_path / "run")
    assert again.to_frame().equals(whole.to_frame())
    assert all(types is not None for types in found)
