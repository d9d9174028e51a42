"""Scores equal a loop over sequences and lengths; an oracle never errs, a guesser does as often as
chance."""

import math

import numpy as np
import pytest
import torch
from devices import DEVICE, KIND

from llmprobe.synthetic import decoder_scores as scoring
from llmprobe.synthetic.decoder_network import Decoder, Predicted
from llmprobe.synthetic.decoder_scores import (
    SCORES,
    attention_entropy,
    digest_test_sequences,
    draw_test_sequences,
    score,
)
from llmprobe.synthetic.tasks import ComplementTask, OthelloTask

COMPLEMENT, OTHELLO = ComplementTask(7), OthelloTask()
CASES = {"set-complement": (COMPLEMENT, (1, 2, 4, 6), 20), "othello": (OTHELLO, (1, 30, 59), 16)}
SEEDS = (4, 9)

every_task = pytest.mark.parametrize("name", CASES)


def build(task, seeds=SEEDS):
    """A decoder of strong opinions."""
    network = Decoder(task.vocab, "mlp+prenorm", seeds=seeds, width=8).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return network.to(DEVICE)


class Fake(torch.nn.Module):
    """A decoder whose logits are those of a function of its tokens."""

    def __init__(self, logits, seeds=(0,)):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, device=DEVICE))
        self.logits, self.seeds = logits, seeds
        self.parts, self.context, self.pairs = {}, None, 0

    def forward(self, tokens, places):
        return Predicted(self.logits(tokens))


def complement_oracle(tokens):
    given = torch.nn.functional.one_hot(tokens, COMPLEMENT.vocab).cumsum(dim=1)
    return -1e4 * given.float()


def sequences(task, length, n, seed=0):
    return torch.cat(list(draw_test_sequences(task, length, n, seed=seed)))


def naive(network, task, lengths, n):
    """With a forward for each sequence, length and seed, and the standard library."""
    shape = (len(network.seeds), len(lengths))
    found = {name: np.zeros(shape) for name in SCORES}
    counts, guessed = np.zeros(shape), np.zeros(shape)
    for seed, number in enumerate(network.seeds):
        tokens, alone = sequences(task, max(lengths), n, number), network.member(seed)
        allowed = task.allowed(tokens)
        for column, length in enumerate(lengths):
            for row in range(n):
                good = set(allowed[row, length - 1].nonzero()[:, 0].tolist())
                if not good:
                    continue
                bad = set(range(task.vocab)) - good
                counts[seed, column] += 1
                guessed[seed, column] += len(bad) / task.vocab
                logits = alone(tokens[row : row + 1, :length].to(DEVICE)).logits[0, -1].tolist()
                total = math.log(math.fsum(math.exp(x) for x in logits))
                target = 1 / len(good)
                values = {
                    "kl": sum(target * (math.log(target) - (logits[t] - total)) for t in good),
                    "illegal_mass": sum(math.exp(logits[t] - total) for t in bad),
                    "illegal_top1": logits.index(max(logits)) in bad,
                    "gap": sum(logits[t] for t in good) / len(good)
                    - sum(logits[t] for t in bad) / len(bad),
                }
                for name, value in values.items():
                    found[name][seed, column] += value
    means = {name: total / counts for name, total in found.items()}
    return means | {"uniform_mass": guessed / counts, "n_sequences": counts}


def check_equal(got, expected, columns=slice(None)):
    assert got.keys() == expected.keys() == {*SCORES, "uniform_mass", "n_sequences"}
    for name, values in expected.items():
        np.testing.assert_allclose(
            got[name], values[..., columns], rtol=1e-9, atol=1e-9, err_msg=name
        )


@every_task
def test_scores_equal_a_plain_loop(name):
    task, lengths, n = CASES[name]
    network = build(task)
    with torch.no_grad():
        expected = naive(network, task, lengths, n)
    got = score(network, task, lengths, n)
    assert got["kl"].shape == (2, len(lengths))
    assert (got["kl"] > 0).all()
    assert got["illegal_top1"].any()
    check_equal(got, expected)


@every_task
@pytest.mark.parametrize("chunk", [1, 500])
def test_the_size_of_a_chunk_changes_nothing(name, chunk, monkeypatch):
    task, lengths, n = CASES[name]
    network, told = build(task), []
    whole = score(network, task, lengths, n, advance=told.append)
    assert told == [n]
    monkeypatch.setattr(scoring, "_CHUNK", {KIND: chunk})
    check_equal(score(network, task, lengths, n, advance=told.append), whole)
    assert sum(told) == 2 * n
    assert max(told[1:]) < n


@every_task
def test_fewer_lengths_and_seeds_have_the_same_numbers(name):
    task, lengths, n = CASES[name]
    network = build(task)
    whole = score(network, task, lengths, n)
    for columns in ([0], [-1], [0, 2]):
        some = [lengths[column] for column in columns]
        check_equal(score(network, task, some, n), whole, columns)
    for seed in range(2):
        alone = score(network.member(seed), task, lengths, n)
        for key in SCORES:
            np.testing.assert_allclose(alone[key][0], whole[key][seed], rtol=1e-9, atol=1e-9)


def test_more_sequences_begin_with_the_same():
    many = sequences(COMPLEMENT, 4, 1500)
    assert many.shape == (1500, 5)
    for n in (1, 40, 1024, 1030):
        assert torch.equal(sequences(COMPLEMENT, 4, n), many[:n])
        assert torch.equal(sequences(COMPLEMENT, 2, n), many[:n, :3])
    assert not torch.equal(many[1024:], many[: 1500 - 1024])  # a block of its own
    found = score(build(COMPLEMENT), COMPLEMENT, (1, 4), 1030)
    assert found["n_sequences"].tolist() == [[1030, 1030]] * 2


def test_a_seed_has_its_own_sequences():
    assert torch.equal(sequences(COMPLEMENT, 4, 30, 5), sequences(COMPLEMENT, 4, 30, 5))
    assert not torch.equal(sequences(COMPLEMENT, 4, 30, 5), sequences(COMPLEMENT, 4, 30, 6))
    twins = score(build(COMPLEMENT, seeds=(5, 5)), COMPLEMENT, (2, 4), 30)
    assert (twins["n_sequences"] == 30).all()
    other = build(COMPLEMENT, seeds=(6, 5))
    other.load_state_dict(build(COMPLEMENT, seeds=(5, 5)).state_dict())
    moved = score(other, COMPLEMENT, (2, 4), 30)["kl"]
    assert (moved[0] != twins["kl"][0]).all()
    np.testing.assert_allclose(moved[1], twins["kl"][1], rtol=1e-12)


def test_the_digest_is_of_the_sequences():
    tasks = (COMPLEMENT, ComplementTask(8), OTHELLO)
    digests = [digest_test_sequences(task, (0, 1)) for task in tasks]
    digests += [digest_test_sequences(COMPLEMENT, seeds) for seeds in ((0,), (1,))]
    assert len(set(digests)) == 5
    assert digest_test_sequences(ComplementTask(7), (0, 1)) == digests[0]


def test_an_oracle_makes_no_mistake():
    """At every length, also where one token is left."""
    lengths = tuple(range(1, COMPLEMENT.vocab))
    found = score(Fake(complement_oracle), COMPLEMENT, lengths, 30)
    np.testing.assert_allclose(found["kl"], 0, atol=1e-12)
    assert not found["illegal_mass"].any()
    assert not found["illegal_top1"].any()
    np.testing.assert_allclose(found["gap"], 1e4)


def test_an_oracle_of_othello_makes_no_mistake():
    tokens = sequences(OTHELLO, 59, 30)
    allowed = OTHELLO.allowed(tokens).to(DEVICE)
    found = score(Fake(lambda _: torch.where(allowed, 0.0, -1e4)), OTHELLO, (1, 20, 58, 59), 30)
    np.testing.assert_allclose(found["kl"], 0, atol=1e-12)
    assert not found["illegal_mass"].any()
    assert not found["illegal_top1"].any()


@every_task
def test_a_guesser_has_the_mass_of_guessing(name):
    task, lengths, n = CASES[name]
    found = score(
        Fake(lambda x: torch.full((*x.shape, task.vocab), 3.0, device=DEVICE)), task, lengths, n
    )
    np.testing.assert_allclose(found["illegal_mass"], found["uniform_mass"], rtol=1e-12)
    np.testing.assert_allclose(found["gap"], 0, atol=1e-12)
    if name == "set-complement":
        share = np.array(lengths) / task.vocab
        np.testing.assert_allclose(found["uniform_mass"][0], share, rtol=1e-12)
        np.testing.assert_allclose(found["kl"][0], -np.log(1 - share), rtol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_seed_that_is_not_finite_is_alone_in_that(bad):
    network = build(COMPLEMENT, seeds=(4, 9, 2))
    calm = score(network, COMPLEMENT, (1, 3), 10)
    network.unembedding.weight.data[1] = bad
    found = score(network, COMPLEMENT, (1, 3), 10)
    for name in SCORES:
        assert np.isnan(found[name][1]).all()
        np.testing.assert_array_equal(found[name][[0, 2]], calm[name][[0, 2]])
    np.testing.assert_array_equal(found["uniform_mass"], calm["uniform_mass"])


def test_a_single_token_that_is_not_finite_counts_only_where_it_stands():
    def logits(tokens):
        found = complement_oracle(tokens)
        found[0, 2, 0] = math.nan
        return found

    found = score(Fake(logits), COMPLEMENT, (1, 2, 3, 4), 5)
    for name in SCORES:
        assert np.isnan(found[name][0]).tolist() == [False, False, True, False]


def test_what_comes_out_after_the_end_of_a_game_does_not_count():
    ended = ~OTHELLO.allowed(sequences(OTHELLO, 59, 400)).any(dim=-1)
    assert ended[:, -1].any()

    def logits(tokens):
        found = torch.zeros(*tokens.shape, OTHELLO.vocab, device=DEVICE)
        found[ended.to(DEVICE)] = math.nan
        return found

    found = score(Fake(logits), OTHELLO, (1, 59), 400)
    assert found["n_sequences"].tolist() == [[400, 400 - int(ended[:, -1].sum())]]
    assert np.isfinite(found["kl"]).all()


def test_where_all_or_none_are_allowed_nothing_warns():
    class Odd(ComplementTask):
        """Everything is allowed after one token, nothing after three."""

        def allowed(self, tokens):
            found = super().allowed(tokens)
            found[:, 0], found[:, 2] = True, False
            return found

    with np.errstate(all="raise"):
        found = score(build(COMPLEMENT), Odd(7), (1, 2, 3), 12)
    assert found["n_sequences"].tolist() == [[12, 12, 0]] * 2
    assert (found["uniform_mass"][:, 0] == 0).all()
    assert (found["illegal_mass"][:, 0] == 0).all()
    assert np.isfinite(found["kl"]).tolist() == [[True, True, False]] * 2
    assert np.isfinite(found["gap"]).tolist() == [[False, True, False]] * 2


@pytest.mark.parametrize("task", [ComplementTask(vocab=6), OthelloTask()], ids=["sets", "games"])
def test_entropy_is_that_of_every_row_of_attention(task):
    network = Decoder(task.vocab, "prenorm", seeds=(2, 5), width=8, heads=2, layers=2)
    for parameter in network.to(DEVICE).parameters():
        parameter.data *= 4
    lengths = (1, 3, task.longest)
    found = attention_entropy(network, task, lengths, 5)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found[:, 0], 0, atol=1e-7)
    for index, seed in enumerate(network.seeds):
        one = network.member(index)
        (tokens,) = draw_test_sequences(task, max(lengths), 5, seed=seed)
        live = task.allowed(tokens).any(dim=-1)
        rows = []
        with torch.no_grad():
            x = one.embedding(tokens[:, :-1].to(DEVICE))
            for layer in one.layers:
                y = layer.norms["attention_norm"](x)
                q, k = (
                    p(y).unflatten(-1, (2, 4))
                    for p in (layer.attention.q_proj, layer.attention.k_proj)
                )
                rows.append((q, k))
                x = layer(x)
        for n, length in enumerate(lengths):
            entropies = []
            for sequence in range(5):
                if not live[sequence, length - 1]:
                    continue
                for q, k in rows:
                    for head in range(2):
                        scores = k[sequence, :length, head] @ q[sequence, length - 1, head] / 2
                        p = torch.softmax(scores.double(), dim=0)
                        entropies.append(float(-(p * p.log()).sum()))
            assert found[index, n] == pytest.approx(np.mean(entropies), abs=1e-5)
    assert all(layer.attention.config._attn_implementation == "sdpa" for layer in network.layers)
    assert not any(layer.attention._forward_hooks for layer in network.layers)
