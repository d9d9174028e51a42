"""Tasks with several right answers: fair draws of what is allowed, and nothing else is allowed."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llmprobe.synthetic.decoder_plan import DecoderTraining
from llmprobe.synthetic.othello import SQUARES, as_squares, legal_moves, replay
from llmprobe.synthetic.tasks import TASKS, ComplementTask, OthelloTask, SequenceTask

CASES = {name: task for name, task in TASKS.items() if issubclass(task, SequenceTask)}
CASES |= {"set-complement": lambda: ComplementTask(9)}
LEAST = 1e-6
"""Of a p-value: fair draws fall below it once in a million."""

every_task = pytest.mark.parametrize("name", CASES)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@every_task
def test_a_sample_is_that_of_its_generator(name):
    task = CASES[name]()
    torch.manual_seed(0)
    first, second = (task.sample(7, 5, generator(3)) for _ in range(2))
    assert first.shape == (7, 6)
    assert torch.equal(first, second)
    assert not torch.equal(first, task.sample(7, 5, generator(4)))
    shared = generator(3)
    assert torch.equal(task.sample(7, 5, shared), first)
    assert not torch.equal(task.sample(7, 5, shared), first)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))  # the global one was left alone


@every_task
def test_a_shorter_sample_is_the_beginning_of_a_longer_one(name):
    task = CASES[name]()
    whole = task.sample(5, task.longest, generator())
    for length in (1, 2, task.longest - 1):
        assert torch.equal(task.sample(5, length, generator()), whole[:, : length + 1])


@every_task
def test_what_came_next_was_allowed_and_what_is_allowed_looks_back_alone(name):
    task = CASES[name]()
    tokens = task.sample(64, task.longest, generator())
    allowed = task.allowed(tokens)
    assert allowed.shape == (64, task.longest, task.vocab)
    assert allowed.dtype == torch.bool
    came = allowed.gather(-1, tokens[:, 1:, None])[..., 0]
    assert torch.equal(came, allowed.any(dim=-1))
    for length in (1, 4, task.longest - 1):
        assert torch.equal(task.allowed(tokens[:, : length + 1]), allowed[:, :length])


@every_task
def test_every_token_is_a_fair_draw_of_those_allowed(name):
    task = CASES[name]()
    tokens = task.sample(400, min(task.longest, 30), generator())
    allowed = task.allowed(tokens)
    # Which of the allowed tokens came, by how many there were.
    rank = (allowed.cumsum(dim=-1) - 1).gather(-1, tokens[:, 1:, None])[..., 0]
    for n in allowed.sum(dim=-1).unique().tolist():
        counts = rank[allowed.sum(dim=-1) == n].bincount(minlength=n) if n else []
        assert n < 2 or stats.chisquare(counts).pvalue > LEAST


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_exactly_the_complement_is_allowed(data):
    vocab = data.draw(st.integers(2, 40), "vocab")
    length = data.draw(st.integers(1, vocab - 1), "length")
    task = ComplementTask(vocab)
    tokens = task.sample(4, length, generator(data.draw(st.integers(0, 99), "seed")))
    assert tokens.shape == (4, length + 1)
    allowed = task.allowed(tokens)
    for row, sequence in enumerate(tokens.tolist()):
        assert len(set(sequence)) == length + 1
        assert set(sequence) <= set(range(vocab))
        for n in range(1, length + 1):
            missing = set(range(vocab)) - set(sequence[:n])
            assert set(allowed[row, n - 1].nonzero()[:, 0].tolist()) == missing


def test_every_order_of_the_tokens_is_equally_likely():
    """So each next token is uniform over those that are missing."""
    tokens = ComplementTask(4).sample(12_000, 3, generator())
    seen = Counter(map(tuple, tokens.tolist()))
    counts = [seen[order] for order in itertools.permutations(range(4))]
    assert sum(counts) == 12_000
    assert stats.chisquare(counts).pvalue > LEAST


@pytest.fixture(scope="module")
def games():
    """Tokens (1024, 60) and the squares that they are, −1 behind the end."""
    tokens = OthelloTask().sample(1024, OthelloTask.longest, generator())
    names = [*OthelloTask.squares, None]
    squares = {token: SQUARES.index(name) if name else -1 for token, name in enumerate(names)}
    return tokens, np.vectorize(squares.get)(tokens.numpy()).astype(np.int8)


def test_othello_tokens_are_legal_games(games):
    tokens, squares = games
    list(replay(squares))  # refuses an illegal move
    legal = as_squares(legal_moves(squares))
    played = squares >= 0
    made = np.take_along_axis(legal, np.maximum(squares, 0)[..., None].astype(int), -1)[..., 0]
    assert made[played].all()
    assert not legal[~played].any()  # a game ends only where nobody can move
    assert (~played).any()
    assert sorted({*tokens.unique().tolist()}) == list(range(61))


def test_othello_allows_the_legal_moves_and_nothing_after_the_end(games):
    tokens, squares = games
    task = OthelloTask()
    allowed = task.allowed(tokens).numpy()
    legal = as_squares(legal_moves(squares))[:, 1:]
    starts = [SQUARES.index(name) for name in ("d4", "e4", "d5", "e5")]
    assert not legal[..., starts].any()
    others = [square for square in range(64) if square not in starts]
    np.testing.assert_array_equal(allowed[..., :60], legal[..., others])
    assert not allowed[..., task.END].any()
    np.testing.assert_array_equal(allowed.any(axis=-1), squares[:, 1:] >= 0)


def test_an_othello_move_is_a_fair_draw():
    tokens = OthelloTask().sample(4000, 1, generator())
    first, second = tokens.unbind(dim=1)
    counts = np.bincount(first, minlength=61)
    assert stats.chisquare(counts[counts > 0]).pvalue > LEAST
    assert (counts > 0).sum() == 4
    for move in first.unique():
        counts = np.bincount(second[first == move])
        assert (counts > 0).sum() == 3
        assert stats.chisquare(counts[counts > 0]).pvalue > LEAST


@pytest.mark.parametrize("vocab", [1, 0, -3, ComplementTask.most + 1, 4.0, "8", True])
def test_a_vocabulary_that_is_no_number_from_two_to_the_most_is_refused(vocab):
    with pytest.raises(
        ValueError, match=rf"^vocab: got .*, accepted: 2 to {ComplementTask.most} tokens$"
    ):
        ComplementTask(vocab)


@every_task
def test_a_length_at_which_nothing_is_left_is_refused(name):
    task = CASES[name]()
    task.check(1)
    task.check(task.longest)
    for length in (task.longest + 1, 10**6, 0, -1):
        with pytest.raises(
            ValueError, match=rf"^lengths: got {length}, .* 1 to {task.longest} tok"
        ):
            task.check(length)
    vocab = task.vocab if name == "set-complement" else None
    with pytest.raises(ValueError, match=rf"^train_lengths: got {task.longest + 1}, .*tokens$"):
        DecoderTraining(task=name, vocab=vocab, longest=task.longest + 1, shortest=1, width=8)


def test_the_vocabulary_of_set_complement_is_a_choice():
    assert SequenceTask.named("set-complement").vocab == ComplementTask().vocab == 16
    assert SequenceTask.named("set-complement", 5).longest == 4
    assert SequenceTask.named("othello").vocab == 61
