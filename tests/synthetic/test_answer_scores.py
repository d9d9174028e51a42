"""Scores of answers: an oracle has 1, noise has chance, and greedy decoding gives the same."""

import numpy as np
import pytest
import torch
from torch import nn

from llmprobe.synthetic import answer_scores
from llmprobe.synthetic.answer_scores import (
    digest_test_examples,
    draw_test_examples,
    guessed,
    score_answers,
)
from llmprobe.synthetic.decoder_network import Decoder, Predicted
from llmprobe.synthetic.tasks import TASKS, AnswerTask

QUESTIONS = [task() for task in TASKS.values() if issubclass(task, AnswerTask)]
every_task = pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)


class Player(nn.Module):
    """Stands for a network: its logits are those of a function of the tokens."""

    def __init__(self, play, seeds=(0,)):
        super().__init__()
        self.play, self.seeds = play, seeds
        self.weight = nn.Parameter(torch.zeros(1))
        self.parts, self.context, self.pairs = {}, None, 0

    def forward(self, tokens, places):
        return Predicted(self.play(tokens))


def oracle(task, length):
    """Solves each question slowly; where no answer is asked for it is wrong."""
    places = range(task.size(length))[task.answer(length)]

    def play(tokens):
        logits = torch.zeros(*tokens.shape, task.vocab)
        for row, given in enumerate(tokens.tolist()):
            hidden = [-1 if at in places else token for at, token in enumerate([*given, -1])]
            for at, token in zip(places, task.solve(hidden), strict=True):
                logits[row, at - 1, token] = 1
        return logits

    return Player(play, seeds=(0, 1))


@every_task
def test_an_oracle_is_always_right_and_one_wrong_token_spoils_an_answer(task):
    for length in (1, 4):
        right = oracle(task, length)
        scores = score_answers(right, task, (length,), 12)
        for name in ("exact", "token_accuracy"):
            np.testing.assert_array_equal(scores[name], np.ones((2, 1)))
        n = len(range(task.size(length))[task.answer(length)])
        last = range(task.size(length))[task.answer(length)][-1] - 1

        def spoiled(tokens, right=right, last=last):
            logits = right.play(tokens)
            logits[:, last] = logits[:, last].roll(1, dims=-1)
            return logits

        scores = score_answers(Player(spoiled), task, (length,), 12)
        assert scores["exact"] == 0
        np.testing.assert_allclose(scores["token_accuracy"], (n - 1) / n, rtol=1e-6)


@every_task
def test_noise_has_chance(task):
    noise = torch.Generator().manual_seed(0)
    player = Player(lambda tokens: torch.rand(*tokens.shape, task.vocab, generator=noise))
    scores = score_answers(player, task, (3,), 1000)
    n = 1000 * len(range(task.size(3))[task.answer(3)])
    expected = 1 / task.vocab
    error = (expected * (1 - expected) / n) ** 0.5
    assert abs(scores["token_accuracy"].item() - expected) < 5 * error
    assert scores["exact"].item() <= 0.5


@every_task
def test_greedy_decoding_gives_the_same_answers(task):
    network = Decoder(task.vocab, "mlp+rotary", width=8, heads=2)
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    for length in (1, 2):
        (tokens,) = draw_test_examples(task, length, 40, seed=0)
        places = range(tokens.shape[1])[task.answer(length)]
        written = tokens.clone()
        for at in range(places[0], tokens.shape[1]):
            if at in places:
                written[:, at] = network(written[:, :at]).logits[:, -1].argmax(dim=-1)
        same = (written == tokens).all(dim=1).double().mean()
        assert score_answers(network, task, (length,), 40)["exact"].item() == pytest.approx(
            float(same)
        )


def test_seeds_and_lengths_are_scored_as_if_each_were_alone():
    task = AnswerTask.named("successor")
    network = Decoder(task.vocab, "mlp+prenorm+rotary", seeds=(3, 5), width=8, heads=2)
    together = score_answers(network, task, (1, 2, 6), 300)
    assert together["token_accuracy"].max() > 0
    for index in range(2):
        for at, length in enumerate((1, 2, 6)):
            alone = score_answers(network.member(index), task, (length,), 300)
            for name, found in together.items():
                assert found[index, at] == pytest.approx(alone[name].item(), abs=1e-6)


def test_chunks_change_nothing_and_progress_is_reported(monkeypatch):
    task = AnswerTask.named("copy")
    network = Decoder(task.vocab, "rotary", seeds=(0, 1), width=8, heads=2)
    whole, told = score_answers(network, task, (2, 3), 20), []
    monkeypatch.setattr(answer_scores, "_CHUNK", {"cpu": 40})
    parts = score_answers(network, task, (2, 3), 20, advance=lambda *n: told.append(n))
    for name, found in whole.items():
        np.testing.assert_allclose(parts[name], found)
    assert {length: sum(n for at, n in told if at == length) for length in (2, 3)} == {2: 20, 3: 20}
    assert len(told) > 2


def test_a_seed_without_finite_logits_has_no_score():
    task = AnswerTask.named("copy")
    network = Decoder(task.vocab, "rotary", seeds=(0, 1), width=8, heads=2)
    network.unembedding.weight.data[1] = torch.nan
    for found in score_answers(network, task, (2,), 8).values():
        assert np.isfinite(found[:, 0]).tolist() == [True, False]


def test_tests_are_of_the_seed_and_more_of_them_begin_alike():
    task = AnswerTask.named("addition")
    few, many = (torch.cat(list(draw_test_examples(task, 3, n, seed=1))) for n in (5, 600))
    assert torch.equal(many[:5], few)
    assert len(many) == 600
    (other,) = draw_test_examples(task, 3, 5, seed=2)
    assert not torch.equal(few, other)
    digests = {digest_test_examples(task, lengths, (0,)) for lengths in ((1,), (2,), (1, 2))}
    assert len(digests) == 3


def test_guesses_know_the_answers_but_no_question():
    exact, tokens = guessed(AnswerTask.named("parity"), 9)
    assert 0.5 <= exact == tokens < 0.56
    exact, tokens = guessed(AnswerTask.named("copy"), 9)
    assert exact < 0.01
    assert 0.15 < tokens < 0.2  # the end, and 9 letters of 16
