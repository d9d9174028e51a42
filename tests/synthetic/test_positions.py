"""Places: drawn by each seed alone, and said by the second head as if one after the other."""

import dataclasses

import numpy as np
import pytest
import torch

from llmprobe import probe_variance
from llmprobe.synthetic.answer_plan import AnswerPlan, AnswerTraining
from llmprobe.synthetic.answer_scores import draw_test_examples, score_answers
from llmprobe.synthetic.decoder_network import DECODER_PARTS, Decoder, parse_decoder_variant
from llmprobe.synthetic.decoder_plan import DecoderTraining
from llmprobe.synthetic.decoder_scores import attention_entropy, score
from llmprobe.synthetic.layers import no_drop
from llmprobe.synthetic.positions import (
    check_couple,
    complete_places,
    draw_places,
    place_losses,
    settle_places,
)
from llmprobe.synthetic.tasks import ComplementTask
from llmprobe.synthetic.training import train

SEEDS, BATCH, LENGTH, CONTEXT = 3, 4, 6, 20
RANDOMIZED, COUPLED = {"drawn": "randomized"}, {"drawn": "coupled"}


def generators(seeds=SEEDS, first=0):
    return [torch.Generator().manual_seed(seed + first) for seed in range(seeds)]


def tokens(n=SEEDS * BATCH):
    return torch.randint(9, (n, LENGTH), generator=torch.Generator().manual_seed(7))


def couple(tokens):
    """Every other token, from 1; the last has none."""
    places = torch.arange(tokens.shape[1]).div(2, rounding_mode="floor") + 1
    places[-1] = 0
    return places.expand_as(tokens)


def test_places_that_are_not_drawn_are_none():
    for parts in ({}, {"positions": "rotary"}):
        assert draw_places(parts, tokens(), generators(), context=CONTEXT) is None


@pytest.mark.parametrize("training", [True, False])
def test_randomized_places_are_different_in_order_and_evenly_drawn(training):
    many = torch.zeros(2000 * SEEDS, LENGTH, dtype=torch.long)
    lots = generators()
    draws = [
        draw_places(RANDOMIZED, many, lots, context=CONTEXT, training=training)
        for _ in range(500 if training else 1)
    ]
    places = torch.cat(draws)
    assert places.shape == (500 * SEEDS if training else len(many), LENGTH)
    assert (places.diff(dim=1) > 0).all()
    counts = places.flatten().bincount(minlength=CONTEXT + 1)
    assert counts[0] == 0
    expected = places.numel() / CONTEXT
    assert ((counts[1:] - expected).abs() < 5 * expected**0.5).all()


@pytest.mark.parametrize("parts", [RANDOMIZED, COUPLED], ids=["randomized", "coupled"])
@pytest.mark.parametrize("training", [True, False])
def test_a_seed_draws_the_same_among_others_and_among_more(parts, training):
    options = {"context": CONTEXT, "couple": couple, "training": training}
    whole = draw_places(parts, tokens(), generators(), **options)
    rows = len(whole) // SEEDS
    for seed in range(SEEDS):
        own = slice(seed * BATCH, (seed + 1) * BATCH)
        alone = draw_places(parts, tokens()[own], generators(1, seed), **options)
        assert torch.equal(whole[seed * rows : (seed + 1) * rows], alone)
        few = draw_places(parts, tokens()[own][:2], generators(1, seed), **options)
        assert torch.equal(alone[:2], few)


def test_coupled_places_are_moved_together_over_the_whole_context():
    many = torch.zeros(SEEDS * 1000, LENGTH, dtype=torch.long)
    drawn = draw_places(COUPLED, many, generators(), context=CONTEXT, couple=couple)
    still = draw_places(COUPLED, many, generators(), context=CONTEXT, couple=couple, training=False)
    own = couple(many)
    assert torch.equal(still, torch.where(own > 0, own + (CONTEXT - 3) // 2, 0))  # in the middle
    assert (drawn[:, -1] == 0).all()
    moved = drawn[:, :-1] - own[:, :-1]
    assert (moved == moved[:, :1]).all()
    assert moved[:, 0].unique().tolist() == list(range(CONTEXT - 3 + 1))
    assert drawn.max() == CONTEXT


@pytest.mark.parametrize("parts", [RANDOMIZED, COUPLED], ids=["randomized", "coupled"])
def test_a_context_that_is_too_small_is_refused(parts):
    needed = 6 if parts is RANDOMIZED else 3
    draw_places(parts, tokens(), generators(), context=needed, couple=couple)
    with pytest.raises(ValueError, match=f"context: got 2, accepted: the {needed} places"):
        draw_places(parts, tokens(), generators(), context=2, couple=couple)


def test_drawn_places_are_learned_where_nothing_else_is_said():
    assert parse_decoder_variant("coupled") == {"drawn": "coupled", "positions": "learned"}
    assert parse_decoder_variant("coupled", {"positions": "rotary"})["positions"] == "learned"
    assert parse_decoder_variant("rotary+coupled", {})["positions"] == "rotary"
    for name, part in DECODER_PARTS.items():
        if part.place == "drawn":
            with pytest.raises(ValueError, match=f"{name} places for nope; accepted: learned"):
                complete_places(name, {"drawn": name, "positions": "nope"})
    check_couple(COUPLED, "addition", couple)
    with pytest.raises(ValueError, match="coupled needs tokens that belong together, but parity"):
        check_couple(COUPLED, "parity", None)


def test_the_loss_of_places_is_that_of_a_loop():
    predicted = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).double()
    places = torch.tensor([[0, 4, 2], [1, 1, 3]])
    losses = place_losses(predicted, places)
    for row in range(2):
        for n in range(3):
            logp = predicted[row, n] - predicted[row, n].exp().sum().log()
            assert losses[row, n] == pytest.approx(-float(logp[places[row, n]]))


def opinionated(variant, seeds=(0, 1), **options):
    network = Decoder(9, variant, seeds=seeds, width=8, heads=2, layers=2, **options).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return network


@pytest.mark.parametrize("variant", ["predicted", "rotary+predicted+mlp"])
@torch.no_grad()
def test_settled_places_are_those_of_one_token_after_the_other(variant):
    network, given = opinionated(variant, context=CONTEXT), tokens(8)
    places = couple(given)
    own = torch.arange(LENGTH).expand_as(given) >= 2
    settled = settle_places(network, given, places, own)
    expected = places.clone()
    for n in range(2, LENGTH):
        said = network(given[:, :n], places=expected[:, :n]).places[:, -1]
        expected[:, n] = said.argmax(dim=-1)
    assert torch.equal(settled, expected)
    assert not torch.equal(settled, places)
    assert torch.equal(settled[:, :2], places[:, :2])


@torch.no_grad()
def test_tests_have_places_of_their_own_that_no_stack_or_chunk_changes(monkeypatch):
    task, lengths = ComplementTask(9), (2, 8)
    network = opinionated("fire+randomized", context=12)
    whole, entropy = score(network, task, lengths, 20), attention_entropy(network, task, lengths, 8)
    for seed in range(2):
        alone = score(network.member(seed), task, lengths, 20)
        np.testing.assert_allclose(alone["kl"], whole["kl"][[seed]], rtol=1e-9)
    monkeypatch.setattr("llmprobe.synthetic.decoder_scores._CHUNK", {"cpu": 1})
    monkeypatch.setattr("llmprobe.synthetic.decoder_scores._ENTROPY_CHUNK", 3)
    np.testing.assert_allclose(score(network, task, lengths, 20)["kl"], whole["kl"], rtol=1e-9)
    np.testing.assert_allclose(attention_entropy(network, task, lengths, 8), entropy, rtol=1e-9)
    # And they matter: with 0, 1, 2, ... the scores are others.
    network.parts = {}
    assert not np.allclose(score(network, task, lengths, 20)["kl"], whole["kl"])


POSITIONED = [name for name, part in DECODER_PARTS.items() if part.place == "positions"]


@pytest.mark.parametrize("variant", [*POSITIONED, "fire+randomized"])
def test_a_trained_decoder_is_probed_like_any_model(variant):
    training = DecoderTraining(
        variant=variant, vocab=40, width=8, heads=2, batch=8, steps=2, longest=4, seeds=(1, 2)
    )
    stack = train(training)
    result = probe_variance(stack.network.member(1), (4, 8, 16), n_prompts=6, at="heads")
    assert np.isfinite(result.std_median).all()
    assert len(result.slope) == 2
    alone = train(dataclasses.replace(training, seeds=(2,)))
    torch.testing.assert_close(stack.losses[:, 1], alone.losses[:, 0], rtol=0, atol=1e-5)


SUM = AnswerTraining(
    task="addition-reversed",
    width=8,
    heads=2,
    batch=3,
    steps=3,
    longest=3,
    seeds=(4, 9),
    context=12,
)


@pytest.mark.parametrize("concatenate", [1, 2])
@pytest.mark.parametrize("variant", ["coupled", "rotary+predicted"])
def test_questions_have_the_tasks_places_and_the_second_head_learns_those_of_answers(
    variant, concatenate
):
    training = dataclasses.replace(SUM, variant=variant, concatenate=concatenate)
    network = opinionated_as(training)
    for given, places in training.batches(0):
        example = given.shape[1] // concatenate
        own = torch.tensor(
            training.sequences.places(training.sequences.length_of(given[:, :example]))
        )
        for row in places.split(example, dim=1):
            moved = row - own
            assert (moved[:, own > 0] == moved[:, :1]).all()
            assert (row[:, own == 0] == 0).all()
        loss, _ = training.losses(network, (given, places), no_drop)
        logits, placed = network(given[:, :-1], places=places[:, :-1])
        asked = training.sequences.answer(training.sequences.length_of(given[:, :example]))
        at = [n + k * example for k in range(concatenate) for n in range(example)[asked]]
        before = [n - 1 for n in at]
        expected = -logits.log_softmax(-1)[:, before].gather(-1, given[:, at, None])[..., 0]
        if placed is not None:
            found = placed.log_softmax(-1)[:, before]
            expected = expected - found.gather(-1, places[:, at, None])[..., 0]
        means = expected.unflatten(0, (2, -1)).flatten(1).mean(dim=1)
        torch.testing.assert_close(loss, means.float(), rtol=1e-5, atol=1e-6)


def opinionated_as(training):
    network = training.new_network().double()
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return network


@pytest.mark.parametrize("variant", ["coupled", "predicted", "fire+randomized"])
@torch.no_grad()
def test_answers_are_scored_with_places_as_one_token_after_the_other(variant, monkeypatch):
    training = dataclasses.replace(SUM, variant=variant, context=20)
    network, task = opinionated_as(training), training.sequences
    found = score_answers(network, task, (2, 4), 12)
    for seed in range(2):
        alone = score_answers(network.member(seed), task, (2, 4), 12)
        np.testing.assert_allclose(alone["token_accuracy"], found["token_accuracy"][[seed]])
    monkeypatch.setattr("llmprobe.synthetic.answer_scores._CHUNK", {"cpu": 1})
    again = score_answers(network, task, (2, 4), 12)
    np.testing.assert_allclose(again["token_accuracy"], found["token_accuracy"])
    if variant == "fire+randomized":
        return
    (given,) = draw_test_examples(task, 4, 12, seed=9)
    alone, asked = network.member(1), task.answer(4)
    places = torch.tensor(task.places(4)).expand_as(given)
    places = torch.where(places > 0, places + (training.context - places.max()) // 2, 0)
    right = torch.zeros(12, asked.stop - asked.start)
    for n in range(asked.start, asked.stop):
        logits, placed = alone(given[:, :n], places=places[:, :n])
        right[:, n - asked.start] = (logits[:, -1].argmax(-1) == given[:, n]).float()
        if placed is not None:
            places[:, n] = placed[:, -1].argmax(-1)
    assert found["token_accuracy"][1, 1] == pytest.approx(float(right.mean()))


def test_places_of_questions_are_refused_where_there_are_too_few_or_none():
    with pytest.raises(ValueError, match="coupled needs tokens that belong together, but parity "):
        dataclasses.replace(SUM, task="parity", variant="coupled")
    AnswerPlan(("coupled",), dataclasses.replace(SUM, context=6), (4,), 8)
    with pytest.raises(ValueError, match="context: got 6, accepted for coupled: the 7 places"):
        AnswerPlan(("coupled",), dataclasses.replace(SUM, context=6), (5,), 8)
    with pytest.raises(ValueError, match="context: got 6, accepted for learned: the 16 places"):
        AnswerPlan(("rotary", "learned"), dataclasses.replace(SUM, context=6), (4,), 8)
