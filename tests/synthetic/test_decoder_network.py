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
    *("fire+randomized", "rotary+coupled", "rotary+predicted", "xpos+ssmax", "alibi+differential"),
    *(
        "relative+coupled",
        "fire+normalized",
        "rotary+linear",
        "ssmax+adaptive",
        "differential+adaptive+alibi",
    ),
]
ORDERED = {name for name, part in DECODER_PARTS.items() if part.place in ("positions", "drawn")}
ORDERED -= {"nope"}
IN_ORDER = {*ORDERED, "calibrated"}
"""The bias is by order, whatever the places."""
VARIANTS = [BASELINE, *DECODER_PARTS, *JOINED]
VOCAB, WIDTH, BATCH, LENGTH = 11, 8, 2, 6
SEEDS = (3, 8, 5)

SHAPES = [(1, None), (2, 3)]
SHAPED = [(variant, *SHAPES[number % 2]) for number, variant in enumerate(VARIANTS)]
SHAPED += [(variant, *SHAPES[0]) for variant in (BASELINE, "rotary", "mlp+prenorm", "fire")]

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_part = pytest.mark.parametrize("variant", [BASELINE, *DECODER_PARTS])


def build(variant=BASELINE, *, seeds=(0,), layers=2, heads=2, dtype=torch.float32, **options):
    """A decoder whose parameters are all away from where they begin, and attention from uniform."""
    heads = 2 if "differential" in variant else heads
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


def draw_own(n=BATCH, length=LENGTH, most=LENGTH + 4):
    """Places that are all over the context, and not in order."""
    return torch.randint(most, (n, length), generator=torch.Generator().manual_seed(5)).to(DEVICE)


def of_seed(index):
    return slice(index * BATCH, (index + 1) * BATCH)


@pytest.mark.parametrize(("variant", "heads", "value_size"), SHAPED)
def test_each_seed_of_a_stack_is_the_plain_decoder_and_so_are_its_gradients(
    variant, heads, value_size
):
    network = exact(variant, seeds=SEEDS, heads=heads, value_size=value_size)
    tokens, targets = draw(3 * BATCH), draw(3 * BATCH).flip(0)
    logits, placed = network(tokens)
    assert logits.shape == (3 * BATCH, LENGTH, VOCAB)

    def loss(logits, placed, targets):
        found = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return found if placed is None else found + placed.square().sum()

    loss(logits, placed, targets).backward()
    theirs = dict(network.named_parameters())
    for index in range(len(SEEDS)):
        plain = PlainDecoder.of(network, index)
        expected = plain(tokens[of_seed(index)])
        torch.testing.assert_close(logits[of_seed(index)], expected, rtol=1e-10, atol=1e-10)
        loss(expected, plain.placed, targets[of_seed(index)]).backward()
        for name, parameter, turned in plain.pairs():
            if not theirs[name].requires_grad:
                assert parameter.grad is None
                continue
            gradient = parameter.grad.T if turned else parameter.grad
            torch.testing.assert_close(
                theirs[name].grad[index], gradient, rtol=1e-9, atol=1e-9, msg=name
            )


@every_variant
def test_places_from_outside_are_those_of_the_plain_decoder(variant):
    network, tokens, places = exact(variant, seeds=SEEDS), draw(3 * BATCH), draw_own(3 * BATCH)
    logits, shared = network(tokens, places=places).logits, network(tokens, places=places[:3])
    explicit = network(tokens, places=places, drop=lambda x: x * 1.0).logits
    torch.testing.assert_close(explicit, logits, rtol=1e-11, atol=1e-11)
    plain = network(tokens).logits
    unordered = ORDERED.isdisjoint(variant.split("+"))
    assert torch.allclose(logits, plain) == unordered
    if not unordered:
        reference, own = PlainDecoder.of(network, 1), of_seed(1)
        expected = reference(tokens[own], places=places[own])
        torch.testing.assert_close(logits[own], expected, rtol=1e-10, atol=1e-10)
        one = reference(tokens[own], places=places[[1] * BATCH])
        torch.testing.assert_close(shared.logits[own], one, rtol=1e-10, atol=1e-10)
    ordinary = torch.arange(LENGTH, device=DEVICE).expand(3 * BATCH, -1)
    torch.testing.assert_close(network(tokens, places=ordinary).logits, plain)


@pytest.mark.parametrize("variant", [name for name in DECODER_PARTS if "sparse" in name])
def test_sparse_attention_of_many_tokens_is_that_of_the_plain_decoder(variant):
    """Up to 15 tokens all queries and keys are kept."""
    network, tokens = exact(variant, seeds=SEEDS), draw(3 * BATCH, length=21)
    logits = network(tokens).logits
    expected = PlainDecoder.of(network, 1)(tokens[of_seed(1)])
    torch.testing.assert_close(logits[of_seed(1)], expected, rtol=1e-10, atol=1e-10)
    full = exact(seeds=SEEDS)
    full.load_state_dict(network.state_dict())
    same = torch.isclose(logits, full(tokens).logits, rtol=1e-9).all(dim=-1).all(dim=0)
    assert same[:15].all()
    assert not same[15:].all()


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
    shape = {"width": WIDTH, "layers": 2, "heads": 2}
    plain = Decoder(VOCAB, seeds=(7,), **shape).state_dict()
    own = Decoder(VOCAB, variant, seeds=(2, 7), context=9, **shape).state_dict()
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
    assert same == IN_ORDER.isdisjoint(variant.split("+"))


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
        ("learned", {"context": None}, "learned and drawn positions and calibrated"),
        ("calibrated", {"context": None}, "calibrated attention need a context"),
        ("calibrated+ssmax", {}, "calibrates ssmax; accepted: the softmax"),
        ("linear-swap+alibi", {}, "has no logits that alibi could be added to"),
        ("rotary+randomized", {"context": None}, "learned and drawn positions"),
        ("xpos", {"width": 6, "heads": 2}, "width: got 6, accepted for rotary positions"),
        ("alibi+coupled", {}, "has coupled places for alibi; accepted: learned, rotary"),
        ("nope+randomized", {}, "has randomized places for nope; accepted: learned, rotary, xpos"),
        ("randomized+coupled", {}, "randomized and coupled for the drawn; choose one"),
        ("linear+fire", {}, "has no logits that fire could be added to"),
        ("linear+relative", {}, "has no logits that relative could be added to"),
        ("relative+predicted", {}, "has predicted places for relative; accepted: learned, rotary"),
        ("normalized+adaptive", {}, "has no softmax whose temperature could change"),
        ("sparse+adaptive", {}, "has no softmax whose temperature could change"),
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


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        (
            torch.zeros(2, 6),
            r"places: got \(2, 6\), accepted: \(6, 6\), or one row for each of the 3",
        ),
        (torch.full((6, 6), 10), "places: got 10, accepted: less than the 10 learned"),
    ],
)
def test_places_that_are_none_are_refused(places, reason):
    with pytest.raises(ValueError, match=reason):
        build("learned", seeds=SEEDS)(draw(3 * BATCH), places=places.long())


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
        shape = (1, 6) if "differential" in variant else (2, 3)
        assert (layer.n_heads, layer.head_size) == shape
        assert not layer.last_only


@pytest.mark.parametrize(
    ("variant", "stop", "value_size"),
    [(variant, heads == 1, size) for variant, heads, size in SHAPED],
)
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
    for number, (module, given) in enumerate(seen[-2:]):
        module.config._attn_implementation = "eager"
        _, weights = module(*given)
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
