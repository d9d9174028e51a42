"""Calibration: lines of strong attention equal a loop's, and a training of two stages resumes."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from llmprobe import load_synthetic, train_synthetic
from llmprobe.synthetic import training as module
from llmprobe.synthetic.answer_plan import AnswerTraining
from llmprobe.synthetic.calibration import OUTSIDE, STRENGTH, Calibrated
from llmprobe.synthetic.decoder_plan import DecoderTraining
from llmprobe.synthetic.training import train

SMALL = DecoderTraining(vocab=9, width=8, heads=2, batch=8, steps=12, longest=5, seeds=(3, 4))
STAGED = ["calibrated", "rotary+linear-swap"]


def mean_attention(n, seeds=2, heads=3):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(seeds, heads, n, n, generator=generator, dtype=torch.float64)
    return logits.masked_fill(torch.ones(n, n).triu(1) > 0, -math.inf).softmax(dim=-1)


def slow(weights, n):
    """The bias of one head for n tokens, from its weights for fewer: lists of lists."""
    m = len(weights)
    found = [[OUTSIDE] * n for _ in range(n)]
    for line_of in (lambda i, j: i - j, lambda i, j: j, lambda i, j: i + j):
        cells = {}
        for i in range(m):
            for j in range(i + 1):
                cells.setdefault(line_of(i, j), []).append(float(weights[i][j]))
        means = {line: sum(values) / len(values) for line, values in cells.items()}
        least = np.mean(list(means.values())) + STRENGTH * np.std(list(means.values()))
        for i in range(n):
            for j in range(i + 1):
                mean = means.get(line_of(i, j), 0)
                if mean > least:
                    found[i][j] = max(found[i][j], mean)
    return found


@pytest.mark.parametrize("n", [3, 6, 11])
def test_the_bias_is_that_of_a_loop_at_any_length(n):
    weights = mean_attention(6)
    calibrated = Calibrated(2, 3, 11).double()
    assert (calibrated(n) == 0).all()
    calibrated.calibrate(weights)
    seen = torch.ones(n, n).tril() > 0
    kept = 0
    for seed in range(2):
        for head in range(3):
            expected = torch.tensor(slow(weights[seed, head], n), dtype=torch.float64)
            torch.testing.assert_close(calibrated(n)[seed, head][seen], expected[seen])
            kept += int((expected[seen] > OUTSIDE).sum())
    assert 0 < kept < 6 * int(seen.sum())
    with pytest.raises(ValueError, match="got 12 tokens, accepted: up to the context, 11"):
        calibrated(12)


def test_attention_on_the_token_before_is_kept_at_any_length():
    weights = torch.eye(6).roll(-1, dims=1)[None, None] * 0.9
    weights[..., 0, 0] = 1.0
    calibrated = Calibrated(1, 1, 40)
    calibrated.calibrate(weights.tril())
    bias = calibrated(40)[0, 0].masked_fill(torch.ones(40, 40).triu(1) > 0, -math.inf)
    # Before, anti-diagonals of one or two such pairs are as strong.
    assert (bias.softmax(dim=-1).argmax(dim=-1)[11:] == torch.arange(40)[10:-1]).all()


@pytest.mark.parametrize("variant", STAGED)
def test_a_training_of_two_stages_begins_with_the_first(variant):
    training = dataclasses.replace(SMALL, variant=variant, averages=("ema",))
    first = training.first()
    assert first.variant == ("baseline" if variant == "calibrated" else "rotary")
    assert training.all_steps == 2 * first.all_steps == 24
    before, network = train(first).network, training.new_network()
    fresh = {name: weight.clone() for name, weight in network.state_dict().items()}
    training.begin(network, before)
    for name, weight in before.state_dict().items():
        begun = weight if "swap" in variant else fresh[name]
        assert torch.equal(network.state_dict()[name], begun), name
    trained = train(training)
    for name, weight in trained.network.state_dict().items():
        held = name.endswith("lines")
        assert torch.equal(weight, network.state_dict()[name]) == held, name
        assert torch.equal(trained.averages["ema"][name], weight) == held, name
    if variant == "calibrated":
        assert (trained.network.layers[0].attention.calibrated.lines == OUTSIDE).any()
        assert (trained.network.layers[0].attention.calibrated.lines > 0).any()


@pytest.mark.parametrize("variant", STAGED)
def test_a_seed_is_alone_in_both_stages_and_a_stop_in_either_changes_no_bit(
    tmp_path, monkeypatch, variant
):
    monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(module, "SECONDS", 0.0)
    training = dataclasses.replace(SMALL, variant=variant, averages=("ema",))
    whole = train(training)
    for index, seed in enumerate(training.seeds):
        alone = train(dataclasses.replace(training, seeds=(seed,)))
        torch.testing.assert_close(whole.losses[:, index], alone.losses[:, 0], rtol=0, atol=1e-5)

    class Killed(Exception):
        pass

    path, steps = tmp_path / "a.safetensors", []
    for stop in (5, 10, 17, 22):

        def report(step, loss, accuracy, stop=stop):
            steps.append(step)
            if step > stop:
                raise Killed

        with pytest.raises(Killed):
            train(training, checkpoint=path, report=report)
    resumed = train(training, checkpoint=path)
    assert steps == [5, 10, 10, 12, 12, 17, 22, 22, 24]
    assert torch.equal(resumed.losses, whole.losses)
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], weight)
        assert torch.equal(resumed.averages["ema"][name], whole.averages["ema"][name])


def test_questions_are_calibrated_too_and_the_folder_has_the_networks(tmp_path):
    options = {"width": 8, "heads": 2, "layers": 1, "steps": 4, "batch": 4, "seeds": 2, "sets": 4}
    result = train_synthetic(
        "copy",
        "rotary,rotary+calibrated,coupled+calibrated,rotary+linear-swap",
        train_lengths="1..3",
        lengths="2,8",
        output=tmp_path,
        context=30,
        **options,
    )
    assert result.exact.shape == (4, 2, 2)
    network = load_synthetic(tmp_path, "rotary+calibrated", seed=1)
    assert (network.layers[0].attention.calibrated.lines > 0).any()
    # Two examples in a sequence have twice the lines.
    base = AnswerTraining(task="copy", width=8, heads=2, batch=4, steps=2, longest=3, context=30)
    for concatenate in (1, 2):
        training = dataclasses.replace(base, variant="calibrated", concatenate=concatenate)
        network = train(training).network
        known = (network.layers[0].attention.calibrated.lines[0, :, :30] > OUTSIDE).any(dim=0)
        assert int(known.nonzero().max()) < concatenate * training.sequences.size(3) - 1
