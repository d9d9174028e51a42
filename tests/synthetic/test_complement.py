"""Set complement in closed form: the construction, the prediction, and why v - 1 is needed."""

import itertools

import numpy as np
import pytest
import torch
from devices import DEVICE

from llmprobe.synthetic.complement import (
    balanced,
    logit_displacement,
    solve_complement,
    wrong_mass,
)
from llmprobe.synthetic.decoder_network import Decoder
from llmprobe.synthetic.decoder_scores import score
from llmprobe.synthetic.lab import load_synthetic, train_synthetic
from llmprobe.synthetic.tasks import ComplementTask


@pytest.mark.parametrize("vocab", [8, 16, 64])
def test_the_construction_reaches_the_target_and_then_the_predicted_mass(vocab):
    network = solve_complement(vocab, r=64.0).to(DEVICE)
    lengths = range(1, vocab)
    scores = score(network, ComplementTask(vocab), lengths, 64)
    for name in ("kl", "illegal_mass", "illegal_top1"):
        np.testing.assert_allclose(scores[name][0, :2], 0, atol=1e-6)
    predicted = wrong_mass(64.0, lengths, vocab=vocab)
    np.testing.assert_allclose(scores["illegal_mass"][0], predicted, atol=1e-6)
    np.testing.assert_allclose(scores["gap"][0], 64.0 / np.array(lengths), rtol=1e-6)


@pytest.mark.parametrize("vocab", [4, 8, 16])
def test_the_construction_has_width_and_rank_one_below_the_vocabulary(vocab):
    network = solve_complement(vocab, r=5.0).to(DEVICE)
    attention = network.layers[0].attention
    assert network.embedding.weight.shape[-1] == vocab - 1
    assert attention.v_proj.weight.shape[-1] == vocab - 1
    direct, attended = logit_displacement(network)
    centering = np.eye(vocab) - 1 / vocab
    np.testing.assert_allclose(attended, -5.0 * centering, atol=1e-9)
    assert np.abs(direct).max() < 1e-8
    assert np.linalg.matrix_rank(attended) == vocab - 1


@pytest.mark.parametrize("vocab", [4, 5, 6])
def test_even_absent_tokens_force_the_form_of_the_displacement(vocab):
    """For all i, j and absent k, l: D[i,k] - D[i,l] = D[j,k] - D[j,l].

    That is what lengths 1 and 2 leave when B is taken out. The solutions of these equations are
    u + k_i 1 - r_i e_i and nothing else: they have as many dimensions, 3 v - 1 (adding a constant
    to u is adding it to all k_i).
    """
    rows = []
    for i, j, k, m in itertools.permutations(range(vocab), 4):
        row = np.zeros((vocab, vocab))
        row[i, k], row[i, m], row[j, k], row[j, m] = 1, -1, -1, 1
        rows.append(row.ravel())
    constraints = np.array(rows)
    assert vocab**2 - np.linalg.matrix_rank(constraints) == 3 * vocab - 1
    rng = np.random.default_rng(vocab)
    for _ in range(20):
        u, k, r = rng.normal(size=(3, vocab))
        form = u + k[:, None] - np.diag(r)
        np.testing.assert_allclose(constraints @ form.ravel(), 0, atol=1e-12)


@pytest.mark.parametrize("vocab", [4, 8, 16])
def test_no_model_of_width_v_minus_2_has_that_form(vocab):
    """With every r_i above 0 the form has rank v - 1 at least; weights of width v - 2 have less."""
    rng = np.random.default_rng(vocab)
    for _ in range(50):
        u, k = rng.normal(size=(2, vocab))
        form = u + k[:, None] - np.diag(rng.uniform(0.1, 3, size=vocab))
        assert np.linalg.matrix_rank(form) >= vocab - 1
    for narrow in ({"width": vocab - 2}, {"width": vocab, "value_size": vocab - 2}):
        network = Decoder(vocab, seeds=(1,), **narrow).double().to(DEVICE)
        assert np.linalg.matrix_rank(logit_displacement(network).attended) <= vocab - 2


def test_the_closed_form_is_the_networks_own():
    network = Decoder(7, seeds=(3,), width=5, value_size=3).double().eval().to(DEVICE)
    direct, attended = logit_displacement(network)
    tokens = torch.tensor([[4, 0, 6, 2]], device=DEVICE)
    seen = {}
    attention = network.layers[0].attention
    for name in ("q_proj", "k_proj"):
        getattr(attention, name).register_forward_hook(
            lambda module, args, output, name=name: seen.update({name: output[0].detach()})
        )
    logits = network(tokens).logits[0, -1].detach().cpu().numpy()
    weights = torch.softmax(seen["k_proj"] @ seen["q_proj"][-1] / 5**0.5, dim=0).cpu().numpy()
    np.testing.assert_allclose(logits, direct[2] + weights @ attended[[4, 0, 6, 2]], rtol=1e-12)


def test_what_is_balanced_at_lengths_1_and_2_generalizes_and_its_gap_falls_as_2_over_s(tmp_path):
    result = train_synthetic(
        "set-complement",
        "baseline",
        **{"vocab": 8, "width": 7, "target": "exact", "train_lengths": "1..2", "seeds": 2},
        **{"steps": 400, "batch": 32, "sets": 128, "learning_rate": 1e-2, "output": tmp_path},
    )
    for seed in result.seeds:
        for balance in balanced(load_synthetic(tmp_path, seed=seed)):
            assert balance.absent_spread < 0.01
            assert balance.present_spread < 0.25
    assert (result.illegal_top1 == 0).all()
    gap, s = result.gap[0], np.array(result.lengths)
    np.testing.assert_allclose(gap, 2 * gap[:, 1:2] / s, rtol=0.05)
    assert result.gap_frame().slope[0] == pytest.approx(-1, abs=0.1)


def test_balance_is_zero_for_the_construction_and_not_for_a_tilted_one():
    network = solve_complement(9, r=6.0).to(DEVICE)
    for balance in balanced(network):
        assert balance.gap == pytest.approx(6.0 / balance.length)
        assert balance.absent_spread < 1e-9
        assert balance.present_spread < 1e-9
    value = network.layers[0].attention.v_proj.weight
    with torch.no_grad():
        value[0, 0] *= 1.5  # one direction of the displacement is larger
    tilted = balanced(network)
    assert min(b.absent_spread for b in tilted) > 0.01
    assert min(b.present_spread for b in tilted) > 0.01


def test_the_mass_is_that_of_a_softmax():
    for r, s, v in [(3.0, 1, 4), (3.0, 2, 8), (10.0, 7, 8)]:
        logits = np.zeros(v)
        logits[:s] = -r / s
        p = np.exp(logits) / np.exp(logits).sum()
        assert wrong_mass(r, s, vocab=v) == pytest.approx(p[:s].sum())


def test_averaged_weights_of_a_minimal_model_are_one():
    for variant in ("ema", "bema", "dropout", "dropout+ema"):
        first, second = balanced(Decoder(6, variant).to(DEVICE))
        assert (first.length, second.length) == (1, 2)


def test_without_a_gap_there_is_no_balance():
    network = Decoder(6).to(DEVICE)
    with torch.no_grad():
        network.unembedding.weight.zero_()
    assert all(np.isnan(balance.absent_spread) for balance in balanced(network))
    with pytest.raises(ValueError, match="accepted: 3 or more"):
        balanced(Decoder(2))


@pytest.mark.parametrize(
    "network",
    [
        Decoder(6, "mlp"),
        Decoder(6, layers=2),
        Decoder(6, width=8, heads=2),
        Decoder(6, seeds=(0, 1)),
    ],
)
def test_only_the_minimal_model_has_a_closed_form(network):
    for function in (balanced, logit_displacement):
        with pytest.raises(ValueError, match="accepted: the minimal model"):
            function(network)


@pytest.mark.parametrize(
    ("vocab", "r"), [(1, 1.0), (0, 1.0), (5, 0.0), (5, -1.0), (5, float("nan"))]
)
def test_what_cannot_be_built_is_refused(vocab, r):
    with pytest.raises(ValueError, match="accepted"):
        solve_complement(vocab, r)
