"""The folded network of many seeds is the textbook's network, one for each of them."""

import pytest
import torch
from devices import DEVICE
from textbook import Textbook
from torch.nn import functional as F

from llmprobe.synthetic.set_network import PARTS, SetNetwork, parse_set_variant
from llmprobe.synthetic.softmaxes import COLDER
from llmprobe.synthetic.tasks import TASKS, SetTask
from llmprobe.synthetic.variants import BASELINE, trained_as

WIDTH, BATCH, LENGTH = 16, 5, 7


def whole(variant):
    """With the residual that a norm behind its sum needs."""
    parts = variant.split("+")
    needs = any(PARTS[part].place == "sum" for part in parts if part != BASELINE)
    return f"residual+{variant}" if needs and "residual" not in parts else variant


SINGLE = [BASELINE, *map(whole, PARTS)]
PAIRS = [f"{a}+{b}" for a in PARTS for b in PARTS if PARTS[a].place < PARTS[b].place]
WARM = {name for name, part in PARTS.items() if part.place == "softmax"} - {*COLDER}
PAIRS = [pair for pair in PAIRS if not ("adaptive" in pair and WARM & {*pair.split("+")})]
VARIANTS = list(dict.fromkeys([*SINGLE, *map(whole, PAIRS)]))
TASKS_OF_SETS = [name for name, task in TASKS.items() if issubclass(task, SetTask)]
CASES = [(task, variant, heads) for task in TASKS_OF_SETS for variant in SINGLE for heads in (1, 4)]
CASES += [
    (TASKS_OF_SETS[number % 2], variant, (1, 4)[number // 2 % 2])
    for number, variant in enumerate(v for v in VARIANTS if v not in SINGLE)
]

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_part = pytest.mark.parametrize("variant", SINGLE)
every_task = pytest.mark.parametrize("task", TASKS_OF_SETS)
one_and_four_heads = pytest.mark.parametrize("heads", [1, 4])


def build(task, variant, *, heads=1, seeds=(0,), dtype=torch.float64, mlp_layers=2):
    """A network whose parameters are all away from where they begin, and attention from uniform."""
    heads = 1 if "outproj" in variant else heads
    shape = {"width": WIDTH, "heads": heads, "mlp_layers": mlp_layers}
    network = SetNetwork(task, variant, seeds=seeds, **shape).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator).to(dtype)
    return network.to(DEVICE)


def sets(task, *, n_seeds=1, length=LENGTH):
    drawn = SetTask.named(task).sample(n_seeds * BATCH, length, torch.Generator().manual_seed(2))
    return tuple(x.to(DEVICE) for x in drawn)


def by_textbook(book, task, tokens, kept=1.0):
    dtype = next(book.parameters()).dtype
    task = SetTask.named(task)
    items, query = task.items(tokens[:, :-1]), task.query(tokens[:, -1])
    return book(items.to(dtype), query.to(dtype), kept)


@pytest.mark.parametrize(("task", "variant", "heads"), CASES)
def test_it_equals_the_textbook_and_so_do_its_gradients(task, variant, heads):
    check_against_the_textbook(task, variant, heads=heads)


@every_task
def test_deeper_mlps_equal_the_textbooks(task):
    check_against_the_textbook(task, "residual+postnorm+headnorm", heads=4, mlp_layers=3)
    with pytest.raises(ValueError, match="mlp_layers: got 1, accepted: a whole number, 2 to 100"):
        SetNetwork(task, mlp_layers=1)


def check_against_the_textbook(task, variant, **shape):
    network = build(task, variant, **shape)
    book = Textbook.of(network)
    tokens, labels = sets(task)
    answer, expected = network(tokens), by_textbook(book, task, tokens)
    for got, value in zip(answer, expected, strict=True):
        torch.testing.assert_close(got, value, rtol=1e-10, atol=1e-10)
    F.cross_entropy(answer.logits, labels).backward()
    F.cross_entropy(expected[0], labels).backward()
    parameters = dict(network.named_parameters())
    for name, parameter, turned in book.pairs():
        gradient = parameter.grad.T if turned else parameter.grad
        torch.testing.assert_close(
            parameters[name].grad[0], gradient, rtol=1e-9, atol=1e-10, msg=name
        )


@every_task
@every_part
def test_it_equals_the_textbook_in_single_precision(task, variant):
    network = build(task, variant, heads=4, dtype=torch.float32)
    tokens, _ = sets(task)
    answer, expected = network(tokens), by_textbook(Textbook.of(network), task, tokens)
    for got, value in zip(answer, expected, strict=True):
        torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 300])
@every_part
def test_it_equals_the_textbook_at_other_lengths(variant, length):
    network = build("argmax", variant, heads=4)
    tokens, _ = sets("argmax", length=length)
    answer = network(tokens)
    for got, value in zip(answer, by_textbook(Textbook.of(network), "argmax", tokens), strict=True):
        torch.testing.assert_close(got, value, rtol=1e-10, atol=1e-10)
    assert answer.weights.shape == (BATCH, network.heads, length)
    assert answer.output.shape == (BATCH, WIDTH)
    assert answer.logits.shape == (BATCH, 10)


@every_part
@one_and_four_heads
def test_a_seed_does_the_same_among_others_as_alone(variant, heads):
    network = build("dictionary", variant, heads=heads, seeds=(3, 8, 5))
    tokens, labels = sets("dictionary", n_seeds=3)
    answer = network(tokens)
    F.cross_entropy(answer.logits, labels).mul(3).backward()
    for index, seed in enumerate((3, 8, 5)):
        alone = network.member(index)
        assert alone.seeds == (seed,)
        part = slice(index * BATCH, (index + 1) * BATCH)
        own = alone(tokens[part])
        for got, value in zip(own, answer, strict=True):
            torch.testing.assert_close(got, value[part], rtol=1e-10, atol=1e-12)
        F.cross_entropy(own.logits, labels[part]).backward()
        for a, b in zip(alone.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(a.grad[0], b.grad[index], rtol=1e-9, atol=1e-12)


@every_part
@every_task
def test_the_order_of_the_items_does_not_matter(variant, task):
    network = build(task, variant, heads=4)
    tokens, _ = sets(task)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    mixed = torch.cat([tokens[:, :-1][:, order], tokens[:, -1:]], dim=1)
    answer, again = network(tokens), network(mixed)
    torch.testing.assert_close(again.logits, answer.logits)
    torch.testing.assert_close(again.output, answer.output)
    torch.testing.assert_close(again.weights, answer.weights[..., order])


@every_part
@one_and_four_heads
def test_all_variants_of_a_seed_begin_alike(variant, heads):
    """Whatever the other seeds are, and where among them it stands."""
    sizes = {"width": WIDTH, "heads": 1 if variant == "outproj" else heads}
    plain = SetNetwork("argmax", seeds=(7,), **sizes).state_dict()
    own = SetNetwork("argmax", variant, seeds=(2, 7), **sizes).state_dict()
    missing = plain.keys() - own.keys()
    assert not missing
    for name, values in plain.items():
        if variant == "differential" and name.endswith(("q_proj.weight", "k_proj.weight")):
            continue  # of twice the size
        assert torch.equal(own[name][1], values[0]), name
        assert not torch.equal(own[name][0], values[0]), name


def test_a_network_is_the_same_each_time_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    first = SetNetwork("argmax", "differential", seeds=(1, 2), width=8).state_dict()
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    second = SetNetwork("argmax", "differential", seeds=(1, 2), width=8).state_dict()
    for name, values in first.items():
        assert torch.equal(values, second[name])


NORMS = ("layernorm", "rmsnorm", "headnorm", "headnorm-gain", "concatnorm", "postnorm-fixed")


@one_and_four_heads
@pytest.mark.parametrize("norms", [NORMS[::2], NORMS[1::2]])
def test_seeds_may_differ_in_their_norms(norms, heads):
    variants = ["residual", *(f"residual+{norm}" for norm in norms), f"residual+{norms[0]}"]
    n = len(variants)
    network = build("dictionary", variants, heads=heads, seeds=(3,) * n)
    assert network.variant == variants
    tokens, labels = sets("dictionary", n_seeds=n)
    answer = network(tokens)
    F.cross_entropy(answer.logits, labels).mul(n).backward()
    gradients = {name: weight.grad for name, weight in network.named_parameters()}
    for index, variant in enumerate(variants):
        alone = network.member(index)
        assert (alone.variant, alone.seeds) == (variant, (3,))
        part = slice(index * BATCH, (index + 1) * BATCH)
        own = alone(tokens[part])
        by_book = by_textbook(Textbook.of(alone), "dictionary", tokens[part])
        for got, value, written in zip(own, answer, by_book, strict=True):
            torch.testing.assert_close(got, value[part], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(got, written, rtol=1e-10, atol=1e-10)
        F.cross_entropy(own.logits, labels[part]).backward()
        own_gradients = {name: weight.grad[0] for name, weight in alone.named_parameters()}
        for name, gradient in gradients.items():
            expected = own_gradients.get(name, torch.zeros_like(gradient[index]))
            torch.testing.assert_close(gradient[index], expected, rtol=1e-9, atol=1e-12)


def test_some_members_keep_their_variants():
    variants = ["residual", "residual+layernorm", "residual+headnorm"]
    network = build("argmax", variants, seeds=(4, 5, 6))
    some = network.members([2, 0])
    assert (some.variant, some.seeds) == (["residual+headnorm", "residual"], (6, 4))
    tokens, _ = sets("argmax", n_seeds=3)
    logits = network(tokens).logits.unflatten(0, (3, -1))
    own = tokens.unflatten(0, (3, -1))
    torch.testing.assert_close(
        some(own[[2, 0]].flatten(0, 1)).logits, logits[[2, 0]].flatten(0, 1), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize(
    "variants",
    [
        ["baseline", "layernorm"],  # for three seeds
        ["baseline", "layernorm", "standardize"],
        ["baseline", "residual", "baseline"],
        ["ssmax", "ssmax+layernorm", "layernorm"],
        ["baseline", "dropout", "baseline"],
    ],
)
def test_seeds_that_cannot_share_a_network_are_refused(variants):
    with pytest.raises(ValueError, match=r"variant: got .* accepted: one for each, which"):
        SetNetwork("argmax", variants, seeds=(0, 1, 2), width=8)


def test_a_member_is_a_copy_in_the_same_precision():
    network = build("argmax", "layernorm", seeds=(1, 2))
    alone = network.member(1)
    assert next(alone.parameters()).dtype == torch.float64
    for parameter in alone.parameters():
        parameter.data.zero_()
    assert all(p.any() for p in network.parameters())


@pytest.mark.parametrize("variant", ["dropout", "layernorm+dropout"])
def test_dropout_changes_what_is_read_and_nothing_else(variant):
    network = build("argmax", variant, heads=4)
    tokens, _ = sets("argmax")
    kept = (torch.rand(BATCH, WIDTH, generator=torch.Generator().manual_seed(4)) > 0.1) / 0.9
    assert not kept.all()
    kept = kept.to(DEVICE)
    seen = []

    def drop(x):
        seen.append(x)
        return x * kept.double()

    dropped, plain = network(tokens, drop=drop), network(tokens)
    expected = by_textbook(Textbook.of(network), "argmax", tokens, kept.double())
    torch.testing.assert_close(dropped.logits, expected[0], rtol=1e-10, atol=1e-10)
    assert torch.equal(dropped.output, plain.output)
    assert torch.equal(dropped.weights, plain.weights)
    assert [x.shape for x in seen] == [(BATCH, WIDTH)]  # in one place, behind the norm
    assert torch.equal(seen[0], plain.output)
    network.readout.first.weight.data[:, :, :] = 0
    network.readout.first.weight.data[0, 3, 3] = 1
    lost = kept[:, 3] == 0
    assert lost.any()
    without = network(torch.zeros_like(tokens), drop=torch.zeros_like).logits
    torch.testing.assert_close(network(tokens, drop=drop).logits[lost], without[lost])


def test_adaptive_is_its_training_variant_made_colder_at_long_lengths():
    network, cold = build("argmax", BASELINE), build("argmax", "adaptive")
    cold.load_state_dict(network.state_dict())  # no parameters of its own
    for length, differs in ((1, False), (200, True)):
        tokens, _ = sets("argmax", length=length)
        warm, answer = network(tokens).weights, cold(tokens).weights
        assert torch.equal(warm, answer) != differs
        if differs:
            entropy = [-(w * w.log()).sum(dim=-1) for w in (warm, answer)]
            assert (entropy[1] < entropy[0]).all()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("layernorm+rmsnorm", "layernorm and rmsnorm for the norm; choose one"),
        ("ssmax+dropout+differential", "ssmax and differential for the softmax; choose one"),
        ("headnorm+headnorm", "headnorm and headnorm for the heads"),
        ("normalized+adaptive", "no softmax whose temperature"),
        ("adaptive+normalized", "no softmax whose temperature"),
        ("postnorm", "no residual sum for its norm; write residual.postnorm"),
        ("layernorm+postnorm-fixed", "no residual sum for its norm; write residual.postnorm-fixed"),
        ("headnorm+headnorm-gain", "headnorm and headnorm-gain for the heads; choose one"),
    ],
)
def test_parts_that_exclude_each_other_are_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        SetNetwork("argmax", wrong)


@every_variant
def test_a_variant_has_the_parameters_of_what_it_is_trained_as(variant):
    own = SetNetwork("argmax", variant, width=8).state_dict()
    SetNetwork("argmax", trained_as(variant, PARTS), width=8).load_state_dict(own)


def test_a_variant_of_sets_is_parsed_like_any_other():
    for variant in VARIANTS:
        parts = parse_set_variant(variant)
        assert {part: PARTS[part].place for part in parts.values()} == {
            part: place for place, part in parts.items()
        }
        assert set(parts.values()) == set(variant.split("+")) - {BASELINE}
    with pytest.raises(ValueError, match=r"variants: got .*baseline, layernorm, .*adaptive"):
        parse_set_variant("batchnorm")


@pytest.mark.parametrize(("width", "heads"), [(16, 3), (16, 0), (16, -1), (0, 1)])
def test_heads_must_divide_the_width(width, heads):
    with pytest.raises(ValueError, match=f"heads: got {heads}, accepted: a divisor"):
        SetNetwork("argmax", width=width, heads=heads)


def test_a_projection_that_is_there_anyway_is_refused():
    assert "attention.o_proj.weight" in SetNetwork("argmax", "outproj", width=8).state_dict()
    assert "attention.o_proj.weight" in SetNetwork("argmax", width=8, heads=2).state_dict()
    with pytest.raises(ValueError, match="a network of 2 heads has W_O; leave outproj out"):
        SetNetwork("argmax", "outproj", width=8, heads=2)


def test_a_norm_stands_where_its_name_says():
    """What each place leaves standardized, and what it does not."""

    def is_standard(x):
        far = x.mean(dim=-1), x.var(dim=-1, correction=0) - 1
        return all(bool((d.abs() < 1e-2).all()) for d in far)

    tokens, _ = sets("argmax")
    for norm, place in {
        "headnorm": "heads",
        "concatnorm-fixed": "joined",
        "standardize": "output",
        "postnorm-fixed": "sum",
    }.items():
        network = build("argmax", f"residual+{norm}", heads=4, dtype=torch.float32)
        for parameter in network.parameters():
            parameter.data *= 3  # so that a variance stands out against the norm's epsilon
        seen = {}
        network.attention.o_proj.register_forward_hook(
            lambda _, given, made, seen=seen: seen.update(joined=given[0][:, 0], projected=made)
        )
        network.norm.register_forward_hook(lambda _, __, made, seen=seen: seen.update(output=made))
        answer = network(tokens)
        found = {
            "heads": is_standard(seen["joined"].unflatten(-1, (4, -1))),
            "joined": is_standard(seen["joined"]),
            "output": is_standard(seen["output"]),
            "sum": is_standard(answer.output),
        }
        expected = {name: name == place for name in found}
        expected["joined"] |= place == "heads"  # heads that are standard are so together
        assert found == expected, norm
