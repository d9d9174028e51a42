"""Training on sets, and how pieces of it become a result."""

import dataclasses

import numpy as np
import pytest
import torch
from devices import DEVICE
from textbook import Textbook
from torch.nn import functional as F

from llmprobe.base.seeds import torch_generator
from llmprobe.results.accuracy import SyntheticResult
from llmprobe.synthetic import plan as planning
from llmprobe.synthetic.layers import no_drop
from llmprobe.synthetic.plan import Done
from llmprobe.synthetic.set_plan import SetPlan, SetTraining
from llmprobe.synthetic.set_scores import Measured, evaluate
from llmprobe.synthetic.tasks import SetTask
from llmprobe.synthetic.training import train

SMALL = SetTraining(width=16, batch=32, steps=50, seeds=(3, 4, 5))
CPU = torch.device("cpu")
VARIANTS = ("baseline", "layernorm", "adaptive", "layernorm+ema")


@pytest.mark.parametrize("variant", ["layernorm", "dropout"])
def test_a_step_is_that_of_torch_on_the_plain_network(variant):
    """Loss, gradient, dropout, clipping and AdamW, by torch's own parts on a textbook network."""
    training = dataclasses.replace(
        SMALL, seeds=(7,), steps=3, clip=0.1, variant=variant, dropout=0.25
    )
    textbook = Textbook.of(training.new_network().double().to(DEVICE))
    optimizer = torch.optim.AdamW(textbook.parameters(), lr=1e-3, weight_decay=1e-3)
    task = SetTask.named(training.task)
    masks = torch_generator(7, "dropout", 0, device=DEVICE)
    for tokens, labels in ([x.to(DEVICE) for x in drawn] for drawn in training.batches(0)):
        assert torch.equal(task.solve(tokens), labels)
        items, query = task.items(tokens[:, :-1]).double(), task.query(tokens[:, -1]).double()
        kept = 1.0
        if variant == "dropout":
            kept = (
                torch.empty(32, 16, device=DEVICE).bernoulli_(0.75, generator=masks).double() / 0.75
            )
        loss = F.cross_entropy(textbook(items, query, kept)[0], labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(textbook.parameters(), 0.1)
        optimizer.step()
    reached = Textbook.of(train(training, device=DEVICE).network.double())
    for name, weight in textbook.state_dict().items():
        torch.testing.assert_close(reached.state_dict()[name], weight, rtol=0, atol=1e-5)


def test_variants_of_a_seed_meet_the_same_sets():
    blocks = [
        [tokens for tokens, _ in training.batches(0)]
        for training in (SMALL, dataclasses.replace(SMALL, variant="layernorm+dropout"))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*blocks, strict=True))
    lengths = {tokens.shape[1] - 1 for tokens in blocks[0]}
    assert min(lengths) >= SMALL.shortest
    assert max(lengths) <= SMALL.longest
    assert len(lengths) > 6


def test_a_seed_meets_its_own_sets_whatever_stands_beside_it():
    alone = dataclasses.replace(SMALL, seeds=(4,))
    for block in (0, 1):
        training = dataclasses.replace(SMALL, steps=60)
        pairs = list(
            zip(
                training.batches(block),
                dataclasses.replace(alone, steps=60).batches(block),
                strict=True,
            )
        )
        assert len(pairs) == (50 if block == 0 else 10)
        for (tokens, labels), (own, answers) in pairs:
            assert torch.equal(tokens[32:64], own)
            assert torch.equal(labels[32:64], answers)
            assert not torch.equal(tokens[:32], own)
    first, second = (
        next(SMALL.batches(0))[0],
        next(dataclasses.replace(SMALL, steps=99).batches(1))[0],
    )
    assert not torch.equal(first, second)


def test_losses_are_those_of_each_seeds_own_examples():
    network = SMALL.new_network().to(DEVICE)
    tokens, labels = (x.to(DEVICE) for x in next(SMALL.batches(0)))
    loss, right = SMALL.losses(network, (tokens, labels), no_drop)
    for index in range(3):
        part = slice(32 * index, 32 * (index + 1))
        logits = network.member(index)(tokens[part]).logits
        torch.testing.assert_close(loss[index], F.cross_entropy(logits, labels[part]))
        assert right[index] == (logits.argmax(dim=1) == labels[part]).float().mean()
    silent, _ = SMALL.losses(network, (tokens, labels), torch.zeros_like)
    assert not torch.equal(silent, loss)


def test_a_projection_that_is_there_anyway_is_refused_before_training():
    with pytest.raises(ValueError, match="a network of 2 heads has W_O"):
        dataclasses.replace(SMALL, variant="layernorm+outproj", heads=2)


def test_who_ends_with_the_loss_of_guessing_has_not_learned():
    guess = F.cross_entropy(torch.zeros(4, 10), torch.arange(4))
    losses = torch.stack([guess, 0.99 * guess, 0.9 * guess, torch.tensor(torch.nan)])
    assert SMALL.has_learned(losses, losses).tolist() == [False, False, True, False]


def test_a_new_network_is_that_of_the_training_or_of_another_variant_of_its_shape():
    training = dataclasses.replace(SMALL, variant="layernorm", task="dictionary", heads=2)
    for network, variant in (
        (training.new_network(), "layernorm"),
        (training.new_network("layernorm+adaptive"), "layernorm+adaptive"),
    ):
        assert (network.task.name, network.variant) == ("dictionary", variant)
        assert (network.seeds, network.width, network.heads) == ((3, 4, 5), 16, 2)


def test_measuring_is_evaluation_at_each_length():
    plan = SetPlan(("layernorm",), SMALL, (16, 20, 40), 12)
    network, told = SMALL.new_network("layernorm").to(DEVICE), []
    found = plan.measure(network, lambda n, note: told.append((n, note)))
    assert found.keys() == {field.name for field in dataclasses.fields(Measured)}
    for column, length in enumerate(plan.lengths):
        alone = vars(evaluate(network, length, 12))
        for name in SyntheticResult.by_length:
            assert found[name].shape == (3, 3)
            np.testing.assert_array_equal(found[name][:, column], alone[name])
        for name in ("feature_values", "top_weights"):
            np.testing.assert_array_equal(found[name][column], alone[name])
    assert sum(n for n, _ in told) == plan.work(network)
    assert list(dict.fromkeys(note for _, note in told)) == ["length 16", "length 20", "length 40"]


def invented(plan):
    """Pieces whose every number says where it belongs: variant, seed, then length or block."""
    done = []
    for piece in plan.pieces():
        seeds = np.array(piece.training.seeds)
        measured = {}
        for variant in piece.variants:
            place = plan.variants.index(variant) / 10 + seeds[:, None] / 1000
            number = place + np.arange(len(plan.lengths)) / 1e5
            one = dict.fromkeys(SyntheticResult.by_length, number)
            first = number[0][:, None, None].astype(np.float32)
            measured[variant] = one | {
                "feature_values": np.broadcast_to(first, (len(plan.lengths), plan.sets, 5)),
                "top_weights": np.broadcast_to(first, (len(plan.lengths), plan.sets, 16)),
            }
        losses = np.arange(3.0)[:, None] + seeds / 1000 + len(piece.training.variant)
        done.append(Done(piece, measured, losses, np.where(seeds == 7, 50, -1)))
    return done


@pytest.mark.parametrize("stack", [16, 4, 1])
def test_joined_numbers_stand_where_they_belong(monkeypatch, stack):
    monkeypatch.setattr(planning, "STACK", stack)
    base = dataclasses.replace(SMALL, seeds=tuple(range(2, 11)), steps=120, schedule="cosine")
    plan = SetPlan(VARIANTS, base, (16, 64), 8)
    result = plan.join(invented(plan), CPU)
    assert isinstance(result, SyntheticResult)
    for v, _ in enumerate(VARIANTS):
        for s, seed in enumerate(base.seeds):
            expected = v / 10 + seed / 1000 + np.arange(2) / 1e5
            for name in SyntheticResult.by_length:
                np.testing.assert_allclose(getattr(result, name)[v, s], expected)
        of_first = v / 10 + 2 / 1000 + np.arange(2) / 1e5
        np.testing.assert_allclose(result.feature_values[v, :, 3, 2], of_first, rtol=1e-6)
        np.testing.assert_allclose(result.top_weights[v, :, 7, 15], of_first, rtol=1e-6)
    assert result.loss_steps.tolist() == [50, 100, 120]
    lengths_of_names = [len(name) for name in ("baseline", "layernorm", "baseline", "layernorm")]
    for v, number in enumerate(lengths_of_names):
        np.testing.assert_allclose(result.loss[v, 4], np.arange(3) + 6 / 1000 + number)
    assert result.diverged.tolist() == [[50 if seed == 7 else -1 for seed in base.seeds]] * 4
    assert len(result.warnings) == 4 + 1  # each variant has that seed, and the ema is short
    assert "layernorm diverged or learned nothing: seed 7 (step 50)" in result.warnings


def test_a_result_says_what_was_trained_and_tested():
    base = dataclasses.replace(SMALL, task="dictionary", shortest=3, longest=9, steps=120)
    plan = SetPlan(VARIANTS, base, (16, 64), 8)
    result = plan.join(invented(plan), CPU)
    assert (result.task, result.variants, result.seeds) == ("dictionary", VARIANTS, (3, 4, 5))
    assert (result.lengths, result.train_lengths, result.n_sets) == ((16, 64), (3, 9), (8, 8))
    assert (result.chance, result.schedule, result.steps) == (0.1, "constant", 120)
    assert result.feature_indices == (0, 1, 2, 3, 4)
    assert result.provenance.model == "SetNetwork"
    assert result.provenance.seed == 3
    assert result.provenance.prompts == "dictionary"
    other = dataclasses.replace(plan, lengths=(16, 32))
    assert other.join(invented(other), CPU).provenance.prompts_hash != (
        result.provenance.prompts_hash
    )
