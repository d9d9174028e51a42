"""The loop: seeds are alone, time does not matter, schedules do as they say."""

import dataclasses
import math

import pytest
import torch
from synthetic.textbook import Textbook

from llmprobe.errors import CheckpointError
from llmprobe.synthetic import training as module
from llmprobe.synthetic.tasks import find_task
from llmprobe.synthetic.training import Training, clip_by_seed, new_network, train

SMALL = Training(width=16, batch=32, steps=50, seeds=(3, 4, 5))


def _weights(trained, index):
    return {name: weight[index] for name, weight in trained.network.state_dict().items()}


@pytest.mark.parametrize("variant", ["baseline", "layernorm", "dropout", "differential+headnorm"])
def test_a_seed_of_a_stack_ends_where_it_ends_alone(variant):
    stack = train(dataclasses.replace(SMALL, variant=variant))
    alone = train(dataclasses.replace(SMALL, variant=variant, seeds=(4,)))
    for name, weight in _weights(stack, 1).items():
        torch.testing.assert_close(weight, _weights(alone, 0)[name], rtol=0, atol=1e-5)


def test_a_step_is_that_of_torch_on_the_plain_network():
    """Loss, gradient, clipping and AdamW, by torch's own parts on a textbook network."""
    training = dataclasses.replace(SMALL, seeds=(7,), steps=3, clip=0.1, variant="layernorm")
    textbook = Textbook.of(new_network(training).double())
    optimizer = torch.optim.AdamW(textbook.parameters(), lr=1e-3, weight_decay=1e-3)
    task = find_task(training.task)
    for tokens, labels, _ in module._batches(training, 0, torch.device("cpu")):
        assert torch.equal(task.solve(tokens), labels)
        items, query = task.items(tokens[:, :-1]).double(), task.query(tokens[:, -1]).double()
        loss = torch.nn.functional.cross_entropy(textbook(items, query)[0], labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(textbook.parameters(), 0.1)
        optimizer.step()
    reached = Textbook.of(train(training).network.double())
    for name, weight in textbook.state_dict().items():
        torch.testing.assert_close(reached.state_dict()[name], weight, rtol=0, atol=1e-5)


def test_variants_of_a_seed_meet_the_same_sets():
    blocks = [
        [tokens for tokens, _, _ in module._batches(training, 0, torch.device("cpu"))]
        for training in (SMALL, dataclasses.replace(SMALL, variant="layernorm+dropout"))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*blocks, strict=True))
    lengths = {tokens.shape[1] - 1 for tokens in blocks[0]}
    assert min(lengths) >= SMALL.shortest
    assert max(lengths) <= SMALL.longest
    assert len(lengths) > 6


@pytest.mark.parametrize("averages", [(), ("bema", "ema")])
def test_a_training_that_was_stopped_ends_with_the_same_bits(tmp_path, monkeypatch, averages):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    training = dataclasses.replace(SMALL, steps=170, averages=averages, schedule="cosine")
    undisturbed = train(training)

    class Killed(Exception):
        pass

    path = tmp_path / "a.safetensors"
    for stop in (50, 150):

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
        for name, weight in undisturbed.network.state_dict().items():
            assert torch.equal(other.network.state_dict()[name], weight)
        for kind in averages:
            for name, weight in undisturbed.averages[kind].items():
                assert torch.equal(other.averages[kind][name], weight)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    train(SMALL, checkpoint=path)
    with pytest.raises(CheckpointError, match=r"batch 32 \(asked: 16\)"):
        train(dataclasses.replace(SMALL, batch=16), checkpoint=path)


def test_a_seed_that_diverges_is_named_and_stops_no_other(monkeypatch):
    training = dataclasses.replace(SMALL, steps=100, learning_rate=3e-3)
    calm = train(training)
    made = module.new_network

    def poisoned(training):
        network = made(training)
        network.readout.second.weight.data[1] = math.nan
        return network

    monkeypatch.setattr(module, "new_network", poisoned)
    trained = train(training)
    assert trained.diverged.tolist() == [-1, 50, -1]
    for index in (0, 2):
        for name, weight in _weights(trained, index).items():
            assert torch.equal(weight, _weights(calm, index)[name])


def test_a_loss_above_that_of_guessing_is_named():
    trained = train(dataclasses.replace(SMALL, learning_rate=0.0, seeds=(0,)))
    assert (trained.losses[-1] > math.log(10)).tolist() == [True]
    assert trained.diverged.tolist() == [SMALL.steps]


def test_it_learns():
    trained = train(dataclasses.replace(SMALL, steps=400, width=32, learning_rate=3e-3, seeds=(0,)))
    assert trained.losses[-1, 0] < 0.6
    assert trained.diverged.tolist() == [-1]


def test_clipping_is_each_seeds_own():
    gradients = [torch.randn(3, 4, 5), torch.randn(3, 7)]
    gradients[0][2], gradients[1][2] = 1e-3, 1e-3
    expected = []
    for seed in range(3):
        parts = [torch.nn.Parameter(torch.zeros_like(g[seed])) for g in gradients]
        for part, g in zip(parts, gradients, strict=True):
            part.grad = g[seed].clone()
        torch.nn.utils.clip_grad_norm_(parts, 1.0)
        expected.append([part.grad for part in parts])
    clip_by_seed([*gradients, None], 1.0)
    for seed, parts in enumerate(expected):
        for g, part in zip(gradients, parts, strict=True):
            torch.testing.assert_close(g[seed], part)


def test_schedules():
    constant = Training(steps=100, learning_rate=2.0)
    assert {constant.rate(step) for step in range(100)} == {2.0}
    cosine = Training(steps=110, learning_rate=2.0, schedule="cosine", warmup=10)
    assert [cosine.rate(step) for step in (0, 4, 9, 10)] == pytest.approx([0.2, 1.0, 2.0, 2.0])
    assert cosine.rate(60) == pytest.approx(1.0)
    assert 0 < cosine.rate(109) < 0.001
