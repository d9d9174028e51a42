"""The optimizer of many seeds does for each of them what torch's AdamW does for it alone."""

import pytest
import torch
from devices import DEVICE
from torch import nn

from llmprobe.synthetic.optimizer import SeedAdamW, clip_by_seed

SEEDS, STEPS, DECAY = 3, 20, 0.1
SHAPES = {"map.weight": (4, 5), "map.bias": (5,), "scale": ()}
RATES = [(1e-2, 3e-3, 5e-2), (1e-2, 1e-2, 1e-2), (1e-2, 1e-2, 0.0)]
every_rates = pytest.mark.parametrize("rates", RATES, ids=["different", "equal", "one at rest"])


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(SEEDS, *s, generator=generator) for name, s in SHAPES.items()}
    return {name: x.to(DEVICE) for name, x in drawn.items()}


def parameters(tensors):
    return {name: nn.Parameter(tensor.clone()) for name, tensor in tensors.items()}


def share(step):
    """Of the rates, as a schedule gives it."""
    return (step + 1) / STEPS


def loss(weights, step):
    """Something that differs from step to step; the sum of each seed's own."""
    return sum(
        (weight - target).square().sum() + (weight**2 * target).cos().sum()
        for weight, target in zip(weights.values(), draw(100 + step).values(), strict=True)
    )


def run(optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(optimizer.weights, step).backward()
        optimizer.step(share(step))


@every_rates
def test_each_seed_goes_as_torchs_adamw_takes_it_alone(rates):
    weights = parameters(draw(0))
    run(SeedAdamW(weights, rates, DECAY), range(STEPS))
    for seed, rate in enumerate(rates):
        alone = {name: nn.Parameter(w[seed].clone()) for name, w in draw(0).items()}
        adamw = torch.optim.AdamW(alone.values(), weight_decay=DECAY)
        for step in range(STEPS):
            adamw.param_groups[0]["lr"] = rate * share(step)
            targets = {name: target[seed] for name, target in draw(100 + step).items()}
            adamw.zero_grad()
            sum(
                (alone[n] - t).square().sum() + (alone[n] ** 2 * t).cos().sum()
                for n, t in targets.items()
            ).backward()
            adamw.step()
        for name, weight in alone.items():
            torch.testing.assert_close(weights[name][seed], weight, rtol=0, atol=1e-6)
            moved = not torch.equal(weight, draw(0)[name][seed])
            assert moved == (rate > 0)


@every_rates
def test_it_goes_on_from_its_state_to_the_same_bits(rates):
    whole = SeedAdamW(parameters(draw(0)), rates, DECAY)
    run(whole, range(STEPS))
    first = SeedAdamW(parameters(draw(0)), rates, DECAY)
    run(first, range(7))
    # As a file keeps it, nothing shared with what goes on.
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    second = SeedAdamW(parameters({n: w.data for n, w in first.weights.items()}), rates, DECAY)
    second.load(state, 7)
    run(second, range(7, STEPS))
    for name, weight in whole.weights.items():
        assert torch.equal(weight, second.weights[name])
    for name, moment in whole.state().items():
        assert torch.equal(moment, second.state()[name])


@every_rates
def test_its_state_has_the_shape_of_the_weights_whatever_the_rates(rates):
    optimizer = SeedAdamW(parameters(draw(0)), rates, DECAY)
    run(optimizer, range(2))
    state = optimizer.state()
    assert state.keys() == {f"{k}.{n}" for k in ("exp_avg", "exp_avg_sq") for n in SHAPES}
    for name, moment in state.items():
        assert moment.shape == (SEEDS, *SHAPES[name.split(".", 1)[1]])
    # The moments do not depend on how the seeds are grouped, where the gradients do not.
    one, other = (SeedAdamW(parameters(draw(0)), r, DECAY) for r in (rates, (0.5, 0.25, 0.125)))
    for each in (one, other):
        run(each, range(1))
    for name, moment in one.state().items():
        torch.testing.assert_close(moment, other.state()[name], rtol=1e-6, atol=1e-7)


@every_rates
def test_gradients_begin_anew_with_each_step(rates):
    optimizer = SeedAdamW(parameters(draw(0)), rates, DECAY)
    loss(optimizer.weights, 3).backward()
    once = {name: weight.grad.clone() for name, weight in optimizer.weights.items()}
    assert all(gradient.any() for gradient in once.values())
    optimizer.zero_grad()
    for weight in optimizer.weights.values():
        assert weight.grad is None or not weight.grad.any()
    loss(optimizer.weights, 3).backward()
    for name, weight in optimizer.weights.items():
        assert torch.equal(weight.grad, once[name])


def test_weights_stay_where_they_are_so_that_a_network_sees_each_step():
    for rates in RATES:
        weights = parameters(draw(0))
        places = {name: weight.data_ptr() for name, weight in weights.items()}
        run(SeedAdamW(weights, rates, DECAY), range(2))
        assert places == {name: weight.data_ptr() for name, weight in weights.items()}


def test_a_seed_whose_gradient_is_broken_spoils_no_other():
    for rates in RATES:
        calm, broken = (SeedAdamW(parameters(draw(0)), rates, DECAY) for _ in range(2))
        for step in range(3):
            for optimizer in (calm, broken):
                optimizer.zero_grad()
                loss(optimizer.weights, step).backward()
            for weight in broken.weights.values():
                weight.grad[1] = torch.nan
            calm.step(1.0)
            broken.step(1.0)
        for name, weight in calm.weights.items():
            assert torch.equal(weight[[0, 2]], broken.weights[name][[0, 2]])
            assert broken.weights[name][1].isnan().all()


def test_clipping_is_each_seeds_own():
    gradients = [torch.randn(3, 4, 5, device=DEVICE), torch.randn(3, 7, device=DEVICE)]
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
