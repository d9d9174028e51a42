"""The decoder of many seeds is the plain decoder of each, and is probed like any language model."""

import itertools

import numpy as np
import pytest
import torch
from devices import DEVICE
from plain_decoder import PlainDecoder
from torch.nn import functional as F

from llmprobe import (
    UnsupportedModelError,
    attention_layers,
    capture_attention,
    capture_rows,
    check_capture,
    probe_attention,
    probe_variance,
)
from llmprobe.probes.prompts import make_prompts
from llmprobe.synthetic.decoder_network import DECODER_PARTS, Decoder
from llmprobe.synthetic.layers import SeedDropout
from llmprobe.synthetic.variants import BASELINE

JOINED = [
    *("mlp+prenorm", "mlp+postnorm", "postnorm+rotary", "mlp+prenorm+learned"),
    *("mlp+prenorm+rotary+dropout+ema", "learned+bema", "mlp+subnorm"),
]
VARIANTS = [BASELINE, *DECODER_PARTS, *JOINED]
VOCAB, WIDTH, BATCH, LENGTH = 11, 8, 2, 6
SEEDS = (3, 8, 5)

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_part = pytest.mark.parametrize("variant", [BASELINE, *DECODER_PARTS])


def build(variant=BASELINE, *, seeds=(0,), layers=2, heads=2, dtype=torch.float32, **options):
    """A decoder whose parameters are all away from where they begin, and attention from uniform."""
    sizes = {"width": WIDTH, "layers": layers, "heads": heads, "context": LENGTH + 4}
    network = Decoder(VOCAB, variant, seeds=seeds, **(sizes | options))
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    return network.to(DEVICE, dtype)


def exact(*arguments, **options):
    """The same in float64, where a law holds to the last digits."""
    return build(*arguments, dtype=torch.float64, **options)


def draw(n=BATCH, length=LENGTH):
    drawn = torch.randint(VOCAB, (n, length), generator=torch.Generator().manual_seed(2))
    return drawn.to(DEVICE)


def of_seed(index):
    return slice(index * BATCH, (index + 1) * BATCH)


@every_variant
@pytest.mark.parametrize(("heads", "value_size"), [(1, None), (2, 3)])
def test_each_seed_of_a_stack_is_the_plain_decoder_and_so_are_its_gradients(
    variant, heads, value_size
):
    network = exact(variant, seeds=SEEDS, heads=heads, value_size=value_size)
    tokens, targets = draw(3 * BATCH), draw(3 * BATCH).flip(0)
    logits = network(tokens).logits
    assert logits.shape == (3 * BATCH, LENGTH, VOCAB)
    F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").backward()
    theirs = dict(network.named_parameters())
    for index in range(len(SEEDS)):
        plain = PlainDecoder.of(network, index)
        expected = plain(tokens[of_seed(index)])
        torch.testing.assert_close(logits[of_seed(index)], expected, rtol=1e-10, atol=1e-10)
        own = targets[of_seed(index)].flatten()
        F.cross_entropy(expected.flatten(0, 1), own, reduction="sum").backward()
        for name, parameter, turned in plain.pairs():
            gradient = parameter.grad.T if turned else parameter.grad
            torch.testing.assert_close(
                theirs[name].grad[index], gradient, rtol=1e-9, atol=1e-9, msg=name
            )


@every_part
@pytest.mark.parametrize("length", [1, 9])
def test_it_is_the_plain_decoder_in_single_precision_at_other_lengths(variant, length):
    network, tokens = build(variant), draw(length=length)
    logits = network(tokens).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, PlainDecoder.of(network)(tokens), rtol=1e-4, atol=1e-4)


@every_part
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_member_is_its_seed_of_the_stack(variant, dtype, near):
    network = build(variant, seeds=SEEDS, value_size=3, dtype=dtype)
    tokens = draw(3 * BATCH)
    logits = network(tokens).logits
    for index, seed in enumerate(SEEDS):
        alone = network.member(index)
        assert alone.seeds == (seed,)
        own = alone(tokens[of_seed(index)]).logits
        torch.testing.assert_close(own, logits[of_seed(index)], rtol=near, atol=near)
        for parameter in alone.parameters():
            parameter.data.zero_()
    assert all(parameter.any() for parameter in network.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_member_keeps_the_precision_and_the_bits(dtype):
    network = build("mlp+prenorm+learned", seeds=SEEDS, dtype=dtype)
    member = dict(network.member(2).named_parameters())
    for name, values in network.named_parameters():
        assert member[name].dtype == dtype
        assert torch.equal(member[name][0], values[2])


@every_variant
def test_all_variants_of_a_seed_begin_alike(variant):
    """Whatever the other seeds are, and where among them it stands."""
    plain = Decoder(VOCAB, seeds=(7,), width=WIDTH, layers=2).state_dict()
    own = Decoder(VOCAB, variant, seeds=(2, 7), width=WIDTH, layers=2, context=9).state_dict()
    for name, values in plain.items():
        assert torch.equal(own[name][1], values[0]), name
        assert not torch.equal(own[name][0], values[0]), name


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    first = Decoder(VOCAB, "mlp", seeds=(1, 2), width=WIDTH).state_dict()
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    second = Decoder(VOCAB, "mlp", seeds=(1, 2), width=WIDTH).state_dict()
    assert all(torch.equal(values, second[name]) for name, values in first.items())


@every_variant
def test_later_tokens_change_nothing_before(variant):
    network, tokens = exact(variant, seeds=SEEDS), draw(3 * BATCH)
    logits = network(tokens).logits
    for n in range(1, LENGTH):
        changed = tokens.clone()
        changed[:, n:] = (changed[:, n:] + 1) % VOCAB
        both = network(changed).logits, network(tokens[:, :n]).logits
        for other in both:
            torch.testing.assert_close(other[:, :n], logits[:, :n], rtol=1e-12, atol=1e-12)
        assert not torch.allclose(both[0][:, n], logits[:, n])


@every_variant
def test_the_order_of_what_came_before_counts_only_with_positions(variant):
    """In one layer: a second one sees how far its inputs saw."""
    network, tokens = exact(variant, layers=1), draw()
    order = torch.tensor([3, 0, 4, 1, 2], device=DEVICE)
    mixed = torch.cat([tokens[:, order], tokens[:, -1:]], dim=1)
    same = torch.allclose(network(mixed).logits[:, -1], network(tokens).logits[:, -1], atol=1e-10)
    assert same == ({"learned", "rotary"}.isdisjoint(variant.split("+")))


@every_variant
def test_a_dropout_that_keeps_all_changes_nothing(variant):
    """It is the path of explicit attention weights, so that equals torch's own attention."""
    network, tokens = exact(variant, seeds=SEEDS), draw(3 * BATCH)
    explicit = network(tokens, drop=lambda x: x * 1.0).logits
    rates = SeedDropout((0, 0, 0), [torch.Generator(DEVICE) for _ in SEEDS])
    for logits in (explicit, network(tokens, drop=rates).logits):
        torch.testing.assert_close(logits, network(tokens).logits, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "variant", ["dropout", "mlp+prenorm+dropout", "mlp+postnorm+dropout", "mlp+subnorm+dropout"]
)
def test_dropout_stands_where_the_plain_decoder_has_it(variant):
    network, tokens = exact(variant), draw()

    def dropping(generator):
        return lambda x: x * (torch.rand(x.shape, generator=generator) > 0.3).to(DEVICE) / 0.7

    network_drop, plain_drop = (dropping(torch.Generator().manual_seed(4)) for _ in range(2))
    got = network(tokens, drop=network_drop).logits
    expected = PlainDecoder.of(network)(tokens, plain_drop)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(got, network(tokens).logits)


def test_the_minimal_model_has_its_closed_form():
    """arXiv 2510.08341: logits are B[last] + Σ a(last, i) D[i]."""
    network, tokens = exact(layers=1, heads=1), draw()
    attention = network.layers[0].attention
    e, u = network.embedding.weight[0], network.unembedding.weight[0]
    q, k, v, o = (getattr(attention, f"{name}_proj").weight[0] for name in "qkvo")
    b, d = e @ u, e @ v @ o @ u
    scores = (e @ q) @ (e @ k).T / WIDTH**0.5
    logits = network(tokens).logits
    for row, n in itertools.product(range(BATCH), range(1, LENGTH + 1)):
        given = tokens[row, :n]
        weights = scores[given[-1], given].exp()
        expected = b[given[-1]] + (weights / weights.sum()) @ d[given]
        torch.testing.assert_close(logits[row, n - 1], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("variant", "options", "reason"),
    [
        (BASELINE, {"heads": 3}, "heads: got 3, accepted: a divisor of the width, 8"),
        (BASELINE, {"heads": 0}, "heads: got 0, accepted: a divisor"),
        (BASELINE, {"heads": -1}, "heads: got -1, accepted: a divisor"),
        (BASELINE, {"width": 0}, "accepted: a divisor of the width, 0"),
        ("rotary", {"width": 6, "heads": 2}, "width: got 6, accepted for rotary positions"),
        ("rotary", {"width": 7, "heads": 1}, "width: got 7, accepted for rotary"),
        ("layernorm", {}, r"variants: got 'layernorm', accepted: baseline, mlp, .*bema"),
        ("", {}, "variants: got '', accepted"),
        ("mlp+", {}, "variants: got '', accepted"),
        ("MLP", {}, "variants: got 'MLP', accepted"),
        ("prenorm+mlp+postnorm", {}, "prenorm and postnorm for the norm; choose one"),
        ("learned+rotary", {}, "learned and rotary for the positions; choose one"),
        ("mlp+mlp", {}, "mlp and mlp for the mlp; choose one"),
        ("learned", {"context": None}, "learned positions need a context"),
        (BASELINE, {"layers": 0}, "layers: got 0, accepted: 1 or more"),
        (BASELINE, {"value_size": 0}, "value_size: got 0, accepted: 1 or more"),
        (BASELINE, {"seeds": ()}, "seeds: got 0, accepted: 1 or more"),
    ],
)
def test_what_cannot_be_built_is_refused(variant, options, reason):
    with pytest.raises(ValueError, match=reason):
        build(variant, **options)


def test_a_batch_that_the_seeds_cannot_share_is_refused():
    with pytest.raises(ValueError, match="got 4 sequences, accepted: as many for each of the 3"):
        build(seeds=SEEDS)(draw(4))


@pytest.mark.parametrize("token", [-1, VOCAB, 10**6])
def test_a_token_that_is_none_is_refused(token):
    with pytest.raises(ValueError, match=f"not of the {VOCAB}"):
        build(seeds=SEEDS)(torch.full((3, 2), token))


def test_more_tokens_than_learned_positions_are_refused():
    with pytest.raises(ValueError, match="got 11 tokens, accepted: up to the 10 learned"):
        build("learned")(torch.zeros(1, LENGTH + 5, dtype=torch.long, device=DEVICE))


# Decoders go through the project's capture like any causal language model.

LENGTHS, N_PROMPTS = (2, 4, 8), 12


def by_hook(network, tokens):
    """Outputs and heads of the last token by layer, without any of the probes."""
    kept = {"output": [], "heads": []}

    def look(module, args, output):
        kept["output"].append(output[0][:, -1].detach())

    def look_before(module, args):
        kept["heads"].append(args[0][:, -1].detach().unflatten(-1, (network.heads, -1)))

    handles = []
    for layer in network.layers:
        handles.append(layer.attention.register_forward_hook(look))
        handles.append(layer.attention.o_proj.register_forward_pre_hook(look_before))
    network(tokens)
    for handle in handles:
        handle.remove()
    return kept


@every_variant
def test_the_attention_of_a_decoder_is_found(variant):
    layers = attention_layers(build(variant, seeds=SEEDS, value_size=3).member(0))
    assert [layer.path for layer in layers] == ["layers.0.attention", "layers.1.attention"]
    for layer in layers:
        assert layer.projection == f"{layer.path}.o_proj"
        assert (layer.n_heads, layer.head_size) == (2, 3)
        assert not layer.last_only


@every_variant
@pytest.mark.parametrize(("stop", "value_size"), [(False, 3), (True, None)])
def test_captures_equal_plain_hooks(variant, stop, value_size):
    network = build(variant, seeds=SEEDS, value_size=value_size).member(0)
    expected = by_hook(network, draw())
    for at in ("output", "heads"):
        with capture_attention(network, positions=-1, at=at, stop=stop) as captured:
            answer = network(draw())
        for layer in range(2):
            torch.testing.assert_close(captured[layer][:, 0], expected[at][layer])
        assert (answer is None) == stop


@pytest.mark.parametrize("variant", [BASELINE, "mlp+prenorm+rotary"])
@pytest.mark.parametrize("at", ["output", "heads"])
def test_the_variance_of_a_decoder_equals_brute_force(variant, at):
    network = build(variant)
    options = {"prompts": "random", "query": "fixed", "n_prompts": N_PROMPTS, "layers": [0, 1]}
    result = probe_variance(network, "2..8", at=at, component=2, **options)
    assert result.lengths == LENGTHS
    assert len(result.slope) == (2 if at == "output" else 4)
    vocab = network.get_input_embeddings().num_embeddings
    prompts = make_prompts(
        "random", n_prompts=N_PROMPTS, lengths=LENGTHS, vocab_size=vocab, query="fixed"
    )
    for column, length in enumerate(LENGTHS):
        found = by_hook(network, prompts.batch(range(N_PROMPTS), length).to(DEVICE))[at]
        std = np.std(torch.stack(found).cpu().double().numpy(), axis=1, ddof=1)
        std = std.reshape(len(result.slope), -1)
        np.testing.assert_allclose(result.component_std[:, column], std[:, 2], rtol=1e-4)
        np.testing.assert_allclose(result.std_median[:, column], np.median(std, -1), rtol=1e-4)


def test_several_seeds_at_once_give_an_error_and_no_number():
    with pytest.raises((RuntimeError, ValueError)):  # a single prompt is no batch for them
        probe_variance(build(seeds=(0, 1)), LENGTHS, n_prompts=4)


@pytest.mark.parametrize("variant", [BASELINE, "mlp+prenorm+rotary", "postnorm+learned"])
def test_rows_are_the_softmax_of_the_queries_own_keys(variant):
    network, tokens = build(variant), draw()
    seen = []
    for layer in network.layers:
        layer.attention.register_forward_pre_hook(lambda module, args: seen.append((module, args)))
    with capture_rows(network, positions=-1) as rows:
        network(tokens)
    for number, (module, (x, drop)) in enumerate(seen[-2:]):
        module.config._attn_implementation = "eager"
        _, weights = module(x, drop)
        module.config._attn_implementation = "sdpa"
        last = weights[:, :, -1].detach()
        entropy = torch.special.entr(last).sum(dim=-1)
        torch.testing.assert_close(rows[number].entropy[:, 0], entropy.to(rows[number].entropy))
        torch.testing.assert_close(last.sum(dim=-1), torch.ones_like(entropy))
    assert all(layer.attention.config._attn_implementation == "sdpa" for layer in network.layers)
    assert len(probe_attention(network, "2..8", n_prompts=4).entropy) == 2


def test_the_check_says_why_it_cannot_hold_a_decoder_against_itself():
    with pytest.raises(UnsupportedModelError, match="no attention mask"):
        check_capture(build())
