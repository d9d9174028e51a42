"""Training on several right answers: what the loss counts, and that seeds are alone in it."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from devices import DEVICE
from plain_decoder import PlainDecoder

from llmprobe.synthetic import training as module
from llmprobe.synthetic.decoder_network import DECODER_PARTS, Predicted
from llmprobe.synthetic.decoder_plan import DecoderPlan, DecoderTraining
from llmprobe.synthetic.decoder_scores import SCORES, score
from llmprobe.synthetic.layers import no_drop
from llmprobe.synthetic.tasks import TASKS, OthelloTask

train = partial(module.train, device=DEVICE)
SMALL = DecoderTraining(
    vocab=6, width=8, batch=16, steps=12, shortest=2, longest=4, seeds=(3, 4, 5), averages=("ema",)
)
OTHELLO = DecoderTraining(
    task="othello", width=8, heads=2, batch=4, steps=2, shortest=3, longest=59, seeds=(0, 11)
)
"""A game of seed 11 ends before its board is full."""
BOTH = {"set-complement": SMALL, "othello": OTHELLO}

every_task = pytest.mark.parametrize("base", BOTH.values(), ids=BOTH)
every_target = pytest.mark.parametrize("target", ["sampled", "exact"])


@pytest.fixture
def _small_blocks(monkeypatch):
    """Blocks of five steps, with a checkpoint behind each."""
    monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(module, "SECONDS", 0.0)


def opinionated(training):
    """The network of a training, moved away from where it begins."""
    network = training.new_network().double()
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return network.to(DEVICE)


def first_batch(training):
    return tuple(x.to(DEVICE) for x in next(training.batches(0)))


def naive(training, network, tokens):
    """The loss and the share of right answers by seed, a position at a time."""
    allowed = training.sequences.allowed(tokens.cpu())
    found = []
    for seed in range(len(training.seeds)):
        alone = network.member(seed)
        losses, hits = [], []
        for row in range(seed * training.batch, (seed + 1) * training.batch):
            sequence = tokens[row].tolist()
            logits = alone(tokens[row : row + 1, :-1]).logits[0].tolist()
            for given in range(training.shortest, training.longest + 1):
                good = allowed[row, given - 1].nonzero()[:, 0].tolist()
                if not good:
                    continue
                here = logits[given - 1]
                total = math.log(math.fsum(math.exp(x) for x in here))
                answers = good if training.target == "exact" else [sequence[given]]
                losses.append(sum(total - here[answer] for answer in answers) / len(answers))
                hits.append(here.index(max(here)) in good)
        found.append((np.mean(losses), np.mean(hits)))
    return np.array(found).T


@every_task
@every_target
def test_the_loss_equals_a_plain_loop(base, target):
    training = dataclasses.replace(base, target=target)
    network = opinionated(training)
    tokens, allowed = first_batch(training)
    assert allowed.any(dim=-1).all() == (training.task != "othello")
    with torch.no_grad():
        got = training.losses(network, (tokens, allowed), no_drop)
        expected = naive(training, network, tokens)
    np.testing.assert_allclose(
        np.array([x.cpu().numpy() for x in got]), expected, rtol=1e-5, atol=1e-6
    )


def test_the_exact_loss_is_the_mean_of_the_sampled_one():
    base = dataclasses.replace(SMALL, batch=40_000, steps=1, seeds=(0,))
    network = opinionated(base)
    batch = first_batch(base)
    with torch.no_grad():
        sampled, exact = (
            float(dataclasses.replace(base, target=target).losses(network, batch, no_drop)[0])
            for target in ("sampled", "exact")
        )
    assert exact > 2  # the draws matter: opinions differ
    assert sampled == pytest.approx(exact, rel=0.02)


@every_target
def test_only_the_positions_from_shortest_to_longest_count(target):
    training = dataclasses.replace(SMALL, target=target)
    network = opinionated(training)
    batch = first_batch(training)
    assert batch[0].shape == (3 * SMALL.batch, SMALL.longest + 1)
    forward = network.forward

    def spoiled(tokens, drop, places):
        logits = forward(tokens, drop=drop, places=places).logits.clone()
        assert logits.shape[1] == SMALL.longest
        logits[:, : SMALL.shortest - 1] = 1e4 * torch.arange(SMALL.sequences.vocab, device=DEVICE)
        return Predicted(logits)

    expected = training.losses(network, batch, no_drop)
    network.forward = spoiled
    for got, value in zip(training.losses(network, batch, no_drop), expected, strict=True):
        assert torch.equal(got, value)


@every_target
def test_positions_behind_the_end_of_a_game_do_not_count(target):
    training = dataclasses.replace(OTHELLO, target=target, batch=64, seeds=(0,), steps=1)
    tokens, allowed = first_batch(training)
    live = allowed.any(dim=-1)
    assert torch.equal(live, tokens[:, 1:] != OthelloTask.END)
    assert not live.all()
    network = opinionated(training)
    logits = network(tokens[:, :-1]).logits.detach().requires_grad_()
    network.forward = lambda tokens, drop, places: Predicted(logits)
    loss, _ = training.losses(network, (tokens, allowed), no_drop)
    loss.sum().backward()
    counts = live.clone()
    counts[:, : training.shortest - 1] = False
    assert torch.equal(logits.grad.abs().sum(dim=-1) > 0, counts)


@pytest.mark.parametrize(
    "variant",
    ["baseline", "mlp+prenorm+learned", "dropout", "xpos+randomized", "randomized+entmax"],
)
@pytest.mark.parametrize("rates", [3e-3, (1e-2, 1e-3, 0.0)], ids=["one rate", "a rate each"])
def test_a_seed_of_a_stack_ends_where_it_ends_alone(variant, rates):
    target = "exact" if variant == "dropout" else "sampled"
    training = dataclasses.replace(SMALL, variant=variant, learning_rate=rates, target=target)
    stack = train(training)
    for index, seed in enumerate(training.seeds):
        rate = training.each("learning_rate")[index]
        alone = train(dataclasses.replace(training, seeds=(seed,), learning_rate=rate))
        for kind, ended in (("raw", stack.network.state_dict()), ("ema", stack.averages["ema"])):
            other = alone.network.state_dict() if kind == "raw" else alone.averages["ema"]
            for name, weight in ended.items():
                torch.testing.assert_close(weight[index], other[name][0], rtol=0, atol=1e-5)
        torch.testing.assert_close(stack.losses[:, index], alone.losses[:, 0], rtol=0, atol=1e-5)
        assert stack.diverged[index] == alone.diverged[0]


def test_a_step_is_that_of_torch_on_the_plain_decoder():
    """Loss, gradient, clipping and AdamW, by torch's own parts."""
    training = dataclasses.replace(
        SMALL, seeds=(7,), steps=3, clip=0.1, weight_decay=0.1, variant="mlp+prenorm"
    )
    plain = PlainDecoder.of(training.new_network().double()).to(DEVICE)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)
    for drawn, _ in training.batches(0):
        tokens = drawn.to(DEVICE)
        logits = plain(tokens[:, :-1])[:, 1:]  # from two tokens on
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizer.step()
    reached = PlainDecoder.of(train(training).network.double())
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(reached.state_dict()[name], weight, rtol=0, atol=1e-5)


@every_task
def test_variants_of_a_seed_meet_the_same_sequences(base):
    others = [dataclasses.replace(base, variant="dropout", target="exact", width=16)]
    others += [dataclasses.replace(base, seeds=base.seeds[1:])]
    own = slice(base.batch, None)
    for other, rows in zip(others, (slice(None), own), strict=True):
        for a, b in zip(base.batches(0), other.batches(0), strict=True):
            assert torch.equal(a[0][rows], b[0])


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("rates", [3e-3, (1e-2, 1e-3, 3e-3)], ids=["one rate", "a rate each"])
def test_a_training_that_was_stopped_ends_with_the_same_bits(tmp_path, rates):
    training = dataclasses.replace(
        SMALL,
        variant="mlp+prenorm+dropout+fire+randomized",
        steps=18,
        learning_rate=rates,
        dropout=(0.0, 0.1, 0.3),
        ema_decay=(0.9, 0.5, 0.99),
        averages=("bema", "ema"),
        schedule="cosine",
        warmup=3,
    )
    undisturbed = train(training)

    class Killed(Exception):
        pass

    path = tmp_path / "a.safetensors"
    for stop in (5, 15):

        def report(step, loss, accuracy, stop=stop):
            # A report comes before its block's checkpoint: the last block is lost.
            if step > stop:
                raise Killed

        with pytest.raises(Killed):
            train(training, checkpoint=path, report=report)
    resumed = train(training, checkpoint=path)
    again = train(training, checkpoint=path)  # from the finished one
    for other in (resumed, again):
        assert torch.equal(other.losses, undisturbed.losses)
        assert torch.equal(other.diverged, undisturbed.diverged)
        for name, weight in undisturbed.network.state_dict().items():
            assert torch.equal(other.network.state_dict()[name], weight)
        for kind in training.averages:
            for name, weight in undisturbed.averages[kind].items():
                assert torch.equal(other.averages[kind][name], weight)


def test_who_answers_no_better_than_by_guessing_has_not_learned():
    chance = np.mean([(6 - given) / 6 for given in (2, 3, 4)])
    right = torch.tensor([chance - 0.1, chance, chance + 0.1, 1.0, torch.nan])
    assert SMALL.has_learned(torch.zeros(5), right).tolist() == [False, False, True, True, False]
    few = torch.tensor([0.05, 0.3])  # of 61 tokens about ten are legal
    assert OTHELLO.has_learned(torch.zeros(2), few).tolist() == [False, True]


def test_a_batch_whose_games_have_all_ended_is_no_number_but_no_harm():
    late = dataclasses.replace(OTHELLO, shortest=59, longest=59, batch=1, steps=50)
    trained = train(late)
    assert all(weight.isfinite().all() for weight in trained.network.parameters())


def test_who_learned_nothing_is_named():
    rates = (0.0, 1e-2, 1e-2)
    trained = train(dataclasses.replace(SMALL, learning_rate=rates, steps=60, target="exact"))
    assert trained.diverged.tolist() == [60, -1, -1]


@every_task
@pytest.mark.parametrize("variant", ["baseline", *DECODER_PARTS])
def test_a_variant_changes_its_place_in_the_tasks_baseline(base, variant):
    if variant in ("coupled", "predicted"):
        with pytest.raises(ValueError, match=f"{variant} needs tokens that belong together, but"):
            dataclasses.replace(base, variant=variant)
        return
    network = dataclasses.replace(base, variant=variant, heads=2).new_network().to(DEVICE)
    expected = set(TASKS[base.task].baseline.values()) - {"baseline"}
    if variant == "randomized":
        expected = (expected - {"rotary"}) | {"learned"}
    if variant != "baseline":
        expected -= {p for p in expected if DECODER_PARTS[p].place == DECODER_PARTS[variant].place}
        expected |= {variant}
    assert set(network.variant.split("+")) - {"baseline"} == expected
    tokens, _ = first_batch(base)
    assert network(tokens[:, :-1]).logits.isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"target": "soft"}, "target: got 'soft', accepted: sampled, exact"),
        ({"layers": 0}, "layers: got 0, accepted: a whole number, 1 or more"),
        ({"layers": 1.5}, "layers: got 1.5, accepted: a whole number"),
        ({"value_size": 0}, "value_size: got 0, accepted: a whole number"),
        ({"vocab": 1}, "vocab: got 1, accepted: 2 to"),
        ({"longest": 6}, "train_lengths: got 6, accepted for set-complement: 1 to 5 tokens"),
        ({"context": 0}, "context: got 0, accepted: a whole number"),
        ({"variant": "differential"}, "heads: got 1, accepted for differential: an even number"),
        ({"heads": 3}, "heads: got 3, accepted: a divisor of the width, 8"),
        ({"task": "othello"}, "vocab: got 6, but the tokens of othello are given"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        dataclasses.replace(SMALL, **wrong)


def test_a_plan_measures_what_score_does():
    plan = DecoderPlan(("baseline",), SMALL, (1, 5), 24)
    network, told = SMALL.new_network().to(DEVICE), []
    found = plan.measure(network, lambda n, note: told.append((n, note)))
    expected = score(network, SMALL.sequences, (1, 5), 24)
    for name in SCORES:
        np.testing.assert_array_equal(found[name], expected[name])
    assert sum(n for n, _ in told) == plan.work(network) == 24
    assert {note for _, note in told} == {"sequences"}
