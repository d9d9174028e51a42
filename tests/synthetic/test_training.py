"""The loop: seeds are alone, time does not matter, schedules do as they say."""

import dataclasses
import gc
import math
import weakref
from functools import partial

import pytest
import torch
from devices import DEVICE

from llmprobe.errors import CheckpointError
from llmprobe.runs.checkpoints import read_checkpoint, write_checkpoint
from llmprobe.synthetic import training as module
from llmprobe.synthetic.decoder_plan import DecoderTraining
from llmprobe.synthetic.optimizer import SeedAdamW
from llmprobe.synthetic.set_plan import SetTraining
from llmprobe.synthetic.training import (
    BLOCK,
    SCHEDULES,
    Training,
    seed_generators,
    steps_of,
    take_step,
)

train = partial(module.train, device=DEVICE)
SMALL = SetTraining(width=16, batch=32, steps=50, seeds=(3, 4, 5))
DECODER = DecoderTraining(width=16, batch=8, steps=50, seeds=(3, 4))


def _weights(trained, index):
    return {name: weight[index] for name, weight in trained.network.state_dict().items()}


@pytest.mark.parametrize("variant", ["baseline", "layernorm", "dropout", "differential+headnorm"])
def test_a_seed_of_a_stack_ends_where_it_ends_alone(variant):
    stack = train(dataclasses.replace(SMALL, variant=variant))
    alone = train(dataclasses.replace(SMALL, variant=variant, seeds=(4,)))
    for name, weight in _weights(stack, 1).items():
        torch.testing.assert_close(weight, _weights(alone, 0)[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", ["baseline", "layernorm+dropout"])
def test_a_seed_with_settings_of_its_own_ends_where_it_ends_alone_with_them(variant):
    own = {
        "learning_rate": (3e-4, 2e-3, 1e-3),
        "ema_decay": (0.5, 0.9, 0.99),
        "dropout": (0.3, 0.0, 0.1),
    }
    training = dataclasses.replace(SMALL, variant=variant, steps=20, averages=("ema",))
    stack = train(dataclasses.replace(training, **own))
    for index, seed in enumerate(SMALL.seeds):
        settings = {name: values[index] for name, values in own.items()}
        alone = train(dataclasses.replace(training, seeds=(seed,), **settings))
        torch.testing.assert_close(stack.losses[:, index], alone.losses[:, 0], rtol=1e-5, atol=0)
        for name, weight in _weights(stack, index).items():
            torch.testing.assert_close(weight, _weights(alone, 0)[name], rtol=0, atol=1e-5)
            average, expected = stack.averages["ema"][name][index], alone.averages["ema"][name][0]
            torch.testing.assert_close(average, expected, rtol=0, atol=1e-5)
            assert not torch.equal(average, weight)


def test_a_dropout_of_zero_is_a_training_without():
    """Whatever the others of its stack have: what a search compares within a stack."""
    rates = (0.2, 0.0, 0.0)
    stack = train(dataclasses.replace(SMALL, variant="dropout", dropout=rates))
    plain = train(SMALL)
    for index, rate in enumerate(rates):
        same = [
            torch.equal(weight, _weights(plain, index)[name])
            for name, weight in _weights(stack, index).items()
        ]
        assert all(same) if not rate else not any(same)


EACH = {"learning_rate": (1e-3, 2e-3, 4e-3), "ema_decay": (0.9, 0.99, 0.999)}


@pytest.mark.parametrize(
    ("averages", "own"), [((), {}), (("bema", "ema"), {}), (("bema", "ema"), EACH)]
)
def test_a_training_that_was_stopped_ends_with_the_same_bits(tmp_path, monkeypatch, averages, own):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    training = dataclasses.replace(
        SMALL, variant="dropout", steps=170, averages=averages, schedule="cosine", **own
    )
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


@pytest.mark.parametrize("lost", ["losses", "weights.attention.q_proj.weight", "facts"])
def test_a_checkpoint_that_lacks_something_is_named(tmp_path, lost):
    path = tmp_path / "a.safetensors"
    train(SMALL, checkpoint=path)
    state, facts = read_checkpoint(path)
    kept = {name: tensor for name, tensor in state.items() if name != lost}
    assert lost == "facts" or len(kept) < len(state), sorted(state)
    write_checkpoint(path, kept, {} if lost == "facts" else facts)
    with pytest.raises(CheckpointError, match=r"a\.safetensors is no checkpoint of this training"):
        train(SMALL, checkpoint=path)


@pytest.mark.parametrize("rate", [3e-3, (3e-3, 2e-3, 4e-3)])
def test_a_seed_that_diverges_is_named_and_stops_no_other(monkeypatch, rate):
    training = dataclasses.replace(SMALL, steps=100, learning_rate=rate)
    calm = train(training)
    made = SetTraining.new_network

    def poisoned(training):
        network = made(training)
        network.readout.second.weight.data[1] = math.nan
        return network

    monkeypatch.setattr(SetTraining, "new_network", poisoned)
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


def test_a_schedule_says_which_share_of_the_learning_rate_a_step_has():
    constant = SetTraining(steps=100, learning_rate=2.0)
    assert {constant.share(step) for step in range(100)} == {1.0}
    cosine = SetTraining(steps=110, learning_rate=2.0, schedule="cosine", warmup=10)
    assert [cosine.share(step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert cosine.share(60) == pytest.approx(0.5)
    assert 0 < cosine.share(109) < 0.0005
    for schedule in SCHEDULES:
        for warmup in (0, 1, 7, 30):
            training = SetTraining(steps=30, schedule=schedule, warmup=warmup)
            shares = [training.share(step) for step in range(30)]
            assert all(0 < share <= 1 for share in shares)
            assert shares[:warmup] == sorted(shares[:warmup])
            assert shares[warmup:] == sorted(shares[warmup:], reverse=True)


def test_a_step_moves_by_the_share_of_its_own_time():
    training = dataclasses.replace(SMALL, steps=10, warmup=10, weight_decay=0.0)
    moved = []
    for step in (0, 4):
        network = training.new_network().to(DEVICE)
        weights = dict(network.named_parameters())
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer = SeedAdamW(weights, training.each("learning_rate"), training.weight_decay)
        batch = tuple(x.to(DEVICE) for x in next(training.batches(0)))
        numbers = take_step(training, network, optimizer, batch, step)
        assert numbers.shape == (2, 3)
        assert not numbers.requires_grad
        moved.append({name: weight.detach() - before[name] for name, weight in weights.items()})
    for name, way in moved[0].items():
        torch.testing.assert_close(5 * way, moved[1][name], rtol=1e-2, atol=1e-6)


def test_a_number_for_each_seed():
    assert SMALL.each("learning_rate") == (1e-3, 1e-3, 1e-3)
    own = dataclasses.replace(SMALL, learning_rate=(0.1, 0.2, 0.3), dropout=(0.0, 0.5, 0.1))
    assert own.each("learning_rate") == (0.1, 0.2, 0.3)
    assert own.each("dropout") == (0.0, 0.5, 0.1)
    assert own.each("clip") == (1.0, 1.0, 1.0)


def test_a_network_is_that_of_every_variant_that_trains_like_it():
    plain = dataclasses.replace(SMALL, variant="layernorm+ssmax")
    for index in range(3):
        for name in ("layernorm+ssmax", "ssmax+layernorm", "ssmax+layernorm+adaptive"):
            assert plain.gives(index, name)
            assert plain.gives(index, f"{name}+ema")
        for name in ("baseline", "layernorm", "ssmax", "rmsnorm+ssmax", "layernorm+ssmax+dropout"):
            assert not plain.gives(index, name)
    assert SMALL.gives(0, "adaptive+bema")
    with pytest.raises(ValueError, match="variants: got 'batchnorm'"):
        SMALL.gives(0, "batchnorm")


def test_one_that_was_trained_without_dropout_is_not_one_with():
    twins = dataclasses.replace(SMALL, variant="rmsnorm+dropout", dropout=(0.0, 0.2, 0.0))
    assert [twins.gives(index, "rmsnorm") for index in range(3)] == [True, False, True]
    assert [twins.gives(index, "rmsnorm+dropout") for index in range(3)] == [False, True, False]
    assert [twins.gives(index, "dropout+ema+rmsnorm") for index in range(3)] == [False, True, False]
    with_all = dataclasses.replace(twins, dropout=0.1)
    assert [with_all.gives(index, "rmsnorm+dropout") for index in range(3)] == [True] * 3
    # The rate says nothing of a variant that has no dropout.
    assert dataclasses.replace(SMALL, dropout=0.0).gives(0, "baseline")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"schedule": "linear"}, "schedule: got 'linear', accepted: constant, cosine"),
        ({"steps": 0}, "steps: got 0, accepted: a whole number"),
        ({"batch": 1.5}, r"batch: got 1.5, accepted: a whole number"),
        ({"heads": 3}, "heads: got 3, accepted: a divisor of the width, 16"),
        ({"warmup": 51}, "warmup: got 51, accepted: 0 to the 50 steps"),
        ({"dropout": 1.0}, "dropout: got 1.0, accepted: 0 or more, less than 1"),
        ({"dropout": (0.0, 0.1, -0.1)}, "dropout: got -0.1, accepted"),
        ({"ema_decay": 1.0}, "ema_decay: got 1.0, accepted: 0 or more, less than 1"),
        ({"ema_decay": (0.9, 0.9, 1.0)}, "ema_decay: got 1.0, accepted"),
        ({"learning_rate": math.nan}, "learning_rate: got nan, accepted: 0 or more"),
        ({"learning_rate": (1e-3, math.inf, 1e-3)}, "learning_rate: got inf, accepted"),
        ({"clip": -1.0}, "clip: got -1.0, accepted"),
        ({"longest": 4}, "longest: got 4, accepted: the shortest, 5, or more"),
        (
            {"learning_rate": (1e-3,)},
            "learning_rate: got 1 of them, accepted: one for all of the 3",
        ),
        ({"learning_rate": (1e-3,) * 2}, "learning_rate: got 2 of them, accepted"),
        ({"dropout": (0.1,) * 4}, "dropout: got 4 of them, accepted"),
        ({"ema_decay": ()}, "ema_decay: got 0 of them, accepted"),
    ],
)
def test_settings_without_meaning_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(SMALL, **wrong)


def test_a_training_is_of_something():
    with pytest.raises(TypeError, match="abstract"):
        Training(task="argmax")


def test_blocks_hold_all_steps_and_seeds_draw_alone():
    training = dataclasses.replace(SMALL, steps=2 * BLOCK + 7)
    assert [steps_of(training, block) for block in range(3)] == [BLOCK, BLOCK, 7]
    drawn = {
        (seed, purpose, block): float(torch.rand(1, generator=generator))
        for purpose in ("sets", "dropout")
        for block in range(2)
        for seed, generator in zip(
            training.seeds, seed_generators(training, purpose, block), strict=True
        )
    }
    assert len(set(drawn.values())) == len(drawn)
    alone = dataclasses.replace(training, seeds=(4,), variant="layernorm", steps=9)
    (generator,) = seed_generators(alone, "sets", 1)
    assert float(torch.rand(1, generator=generator)) == drawn[4, "sets", 1]


@pytest.mark.parametrize("training", [SMALL, DECODER], ids=["sets", "decoder"])
def test_a_step_leaves_no_tensor_behind(training):
    """What a step computes is freed with it: a leak of one batch fills any memory in time."""
    network = training.new_network()
    optimizer = SeedAdamW(dict(network.named_parameters()), training.each("learning_rate"), 0.0)
    batches = training.batches(0)
    seen = []
    hooks = [
        module.register_forward_hook(
            lambda _, __, made: seen.extend(map(weakref.ref, _tensors(made)))
        )
        for module in network.modules()
    ]
    gc.disable()  # a cycle that the collector cannot see would be hidden by one that it can
    try:
        take_step(training, network, optimizer, next(batches), 0)
    finally:
        gc.enable()
        for hook in hooks:
            hook.remove()
    assert len(seen) > 5
    assert not [one for one in seen if one() is not None]


def _tensors(made):
    return [
        x for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, torch.Tensor)
    ]
