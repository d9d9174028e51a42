"""A sweep gives the same numbers however it is cut: in one pass or many, in batches, in chunks."""

import copy

import pytest
import torch
from devices import DEVICE
from families import FAMILIES, tiny
from transformers import LlamaConfig, LlamaForCausalLM

from llmprobe import (
    OutOfMemoryError,
    attention_layers,
    capture_attention,
    probe_attention,
    probe_variance,
)
from llmprobe.probes.agreement import chunks_agree, forget_lengths, prefixes_agree
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.sweeps import Sweep, plan_sweep
from llmprobe.synthetic.set_network import SetNetwork

LENGTHS = (4, 8, 24, 100)


def prompts_for(query="free", n=5):
    return make_prompts("random", n_prompts=n, lengths=LENGTHS, vocab_size=97, query=query)


def run_sweep(model, prompts, *, one_pass=True, batch_tokens=256, chunk=None):
    """Everything that a sweep captures, by layer, length and prompt."""
    layers = attention_layers(model)
    plan = plan_sweep(
        model,
        layers,
        LENGTHS,
        n_prompts=prompts.n_prompts,
        one_pass=one_pass,
        batch_tokens=batch_tokens,
        chunk=chunk,
    )
    found, done = {}, []

    def observe(positions):
        return capture_attention(model, positions=positions, stop=True)

    def consume(indices, lengths, parts):
        for layer in layers:
            x = torch.cat([part[layer.layer] for part in parts], dim=1)
            for row, index in enumerate(indices):
                for column, length in enumerate(lengths):
                    key = layer.layer, length, index
                    assert key not in found
                    found[key] = x[row, column]

    if not one_pass:
        forget_lengths(model, prompts)
    sweep = Sweep(model, prompts, plan, observe, lambda: chunks_agree(model, prompts, layers))
    with torch.inference_mode():
        for piece in plan.pieces():
            sweep.run(piece, consume, done.append)
            assert sum(done) <= plan.n_tokens
    assert sum(done) == plan.n_tokens
    return found


def check_same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral", "bloom", "gpt_oss"])
def test_one_pass_equals_one_pass_per_length(family):
    model, prompts = tiny(family), prompts_for()
    assert prefixes_agree(model, prompts, LENGTHS, attention_layers(model))
    check_same(run_sweep(model, prompts), run_sweep(model, prompts, one_pass=False))


@pytest.mark.parametrize("n_prompts", [2, 5, 16, 37, 100])
@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 100, 250, 10_000])
def test_pieces_have_every_prompt_of_every_pass_once(n_prompts, one_pass, batch_tokens):
    model = tiny("llama")
    plan = plan_sweep(
        model,
        attention_layers(model),
        LENGTHS,
        n_prompts=n_prompts,
        one_pass=one_pass,
        batch_tokens=batch_tokens,
        chunk=None,
    )
    pieces = plan.pieces()
    assert len({piece.name for piece in pieces}) == len(pieces)
    assert sum(piece.n_tokens for piece in pieces) == plan.n_tokens
    for lengths, prompts in plan.passes():
        assert prompts == list(range(n_prompts))
        own = [piece for piece in pieces if piece.lengths == lengths]
        assert 1 <= len(own) <= 16
        batches = [batch for piece in own for batch in piece.batches]
        assert sorted(i for batch in batches for i in batch) == list(range(n_prompts))
        assert max(len(batch) for batch in batches) <= max(batch_tokens // lengths[-1], 1)
        # Nobody waits for one that has much more to do.
        sizes = [len(piece.batches) for piece in own]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("batch_tokens", [1, 100, 250, 10_000])
def test_the_size_of_batches_changes_nothing(batch_tokens):
    model, prompts = tiny("llama"), prompts_for()
    check_same(run_sweep(model, prompts), run_sweep(model, prompts, batch_tokens=batch_tokens))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [16])
def test_chunks_over_a_cache_change_nothing_or_are_refused(family, chunk):
    model, prompts = tiny(family), prompts_for(n=2)
    agree = chunks_agree(model, prompts, attention_layers(model))
    assert agree == (family not in ("jamba", "glm_moe_dsa"))
    if agree:
        check_same(run_sweep(model, prompts), run_sweep(model, prompts, chunk=chunk))
    else:
        with pytest.raises(ValueError, match="gives other numbers in chunks"):
            probe_variance(model, LENGTHS, layers=None, n_prompts=2, chunk=chunk)


@pytest.mark.parametrize("shortest", [1, 16])
def test_positions_that_scale_with_the_length_are_found_out(shortest):
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=32,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
        initializer_range=0.3,
    )
    model, lengths = LlamaForCausalLM(config).eval().to(DEVICE), (shortest, 64, 128, 256)
    prompts = make_prompts("random", n_prompts=2, lengths=lengths, vocab_size=97)
    assert not prefixes_agree(model, prompts, lengths, attention_layers(model))


def test_attention_is_not_cut_into_chunks():
    model = copy.deepcopy(tiny("llama"))
    handle = limit_memory(model, 110)
    with pytest.raises(OutOfMemoryError, match="128 tokens"):
        probe_attention(model, (64, 128), n_prompts=2, query="fixed")
    handle.remove()


def test_a_model_whose_short_prompts_differ_is_found_out():
    model, prompts = tiny("llama"), prompts_for()

    def spread(module, args, output):
        return output + output.mean(dim=1, keepdim=True)

    handle = model.model.layers[0].input_layernorm.register_forward_hook(spread)
    agree = prefixes_agree(model, prompts, LENGTHS, attention_layers(model))
    handle.remove()
    assert not agree


def limit_memory(model, limit):
    """Have the model run out of memory for more tokens than that in one forward."""

    def check(module, args, kwargs):
        tokens = args[0] if args else kwargs["input_ids"]
        if tokens.numel() > limit:
            raise torch.OutOfMemoryError("on purpose")

    return model.register_forward_pre_hook(check, with_kwargs=True)


@pytest.mark.parametrize("limit", [300, 100, 70])
def test_where_memory_runs_out_batches_are_halved_and_then_chunked(limit, monkeypatch):
    monkeypatch.setattr("llmprobe.probes.sweeps._SMALLEST_CHUNK", 8)
    model, prompts = copy.deepcopy(tiny("llama")), prompts_for()
    whole = run_sweep(model, prompts, batch_tokens=500)
    handle = limit_memory(model, limit)
    backed_off = run_sweep(model, prompts, batch_tokens=500)
    handle.remove()
    check_same(whole, backed_off)


def test_what_fits_in_no_way_is_said_with_its_length_and_what_helps():
    model, prompts = copy.deepcopy(tiny("llama")), prompts_for()
    handle = limit_memory(model, 20)
    with pytest.raises(
        OutOfMemoryError, match=r"100 tokens.* MiB.* MiB are free.*shorter lengths.*dtype="
    ):
        run_sweep(model, prompts)
    handle.remove()


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    model, prompts = copy.deepcopy(tiny("llama")), prompts_for()

    def fail(module, args):
        raise RuntimeError("something else")

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="something else"):
        run_sweep(model, prompts)
    handle.remove()


def test_a_plan_counts_tokens_and_grows_with_what_is_asked():
    model = tiny("llama")
    layers = attention_layers(model)

    def plan(chosen=layers, lengths=LENGTHS, n_prompts=8, **options):
        defaults = {"one_pass": True, "batch_tokens": 256, "chunk": None}
        return plan_sweep(model, chosen, lengths, n_prompts=n_prompts, **defaults | options)

    assert plan().n_tokens == 8 * 100
    assert plan(one_pass=False).n_tokens == 8 * sum(LENGTHS)
    assert [lengths for lengths, _ in plan().passes()] == [LENGTHS]
    by_length = [lengths for lengths, _ in plan(one_pass=False).passes()]
    assert by_length == [(4,), (8,), (24,), (100,)]
    assert plan(layers[:1]).flops < plan().flops < plan(n_prompts=16).flops
    assert plan(batch_tokens=100).memory < plan(batch_tokens=400).memory
    assert "8 prompts, 4 lengths, one pass for all lengths" in plan().describe()
    assert "8 prompts, 1 length, " in plan(lengths=(4,)).describe()
    # Layer 0 alone: four projections of its attention, each token meets them once.
    weights = sum(p.numel() for p in model.model.layers[0].self_attn.parameters())
    assert plan(layers[:1]).flops == 2 * weights * 8 * 100


@pytest.mark.parametrize("batch_tokens", [16384, 65536])
def test_long_prompts_are_spread_over_pieces_and_short_ones_are_not(batch_tokens):
    model = tiny("llama")

    def n_pieces(length, n_prompts=64):
        plan = plan_sweep(
            model,
            attention_layers(model),
            (length,),
            n_prompts=n_prompts,
            one_pass=True,
            batch_tokens=batch_tokens,
            chunk=None,
        )
        return len(plan.pieces())

    assert n_pieces(16) == n_pieces(64) == 1
    assert n_pieces(256) == 4
    assert n_pieces(1024) == n_pieces(16384) == 16
    assert n_pieces(4096, n_prompts=5) == 5
    assert n_pieces(1024, n_prompts=1000) == 16


@pytest.mark.parametrize("variant", ["baseline", "ssmax", "normalized"])
def test_attention_for_the_last_token_alone_takes_one_pass_per_length(variant):
    model, prompts = SetNetwork("argmax", variant, width=8, heads=2).to(DEVICE), prompts_for()
    layers = attention_layers(model)
    handle = limit_memory(model, 0)  # nothing is tried
    assert not prefixes_agree(model, prompts, LENGTHS, layers)
    assert not chunks_agree(model, prompts, layers)
    handle.remove()
    found = run_sweep(model, prompts, one_pass=False)
    assert len(found) == len(LENGTHS) * prompts.n_prompts
    with pytest.raises(ValueError, match="leave chunk out"):
        probe_variance(model, LENGTHS, n_prompts=2, chunk=4)


def test_a_plan_for_parameters_with_an_axis_for_seeds():
    model = SetNetwork("argmax", width=16)
    plan = plan_sweep(
        model,
        attention_layers(model),
        LENGTHS,
        n_prompts=8,
        one_pass=False,
        batch_tokens=256,
        chunk=None,
    )
    assert plan.flops == 2 * sum(p.numel() for p in model.attention.parameters()) * plan.n_tokens
    assert 0 < plan.memory < 2**20
