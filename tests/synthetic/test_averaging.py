"""Averages of weights against plain Python."""

import random

import pytest
import torch
from devices import DEVICE

from llmprobe.synthetic.averaging import Average, Bema, Ema


def _path(n_steps, n_weights=3):
    rng = random.Random(0)
    return [[rng.gauss(0, 1) for _ in range(n_weights)] for _ in range(n_steps + 1)]


def _reference(path, averaging):
    """The recurrences as they are written, number by number."""
    start = mean = path[0]
    for t, now in enumerate(path[1:], start=1):
        if isinstance(averaging, Ema):
            beta = 1 - averaging.decay
        else:
            beta = (averaging.rho + averaging.gamma * t) ** -averaging.kappa
        mean = [(1 - beta) * m + beta * w for m, w in zip(mean, now, strict=True)]
    if isinstance(averaging, Ema):
        return mean
    alpha = (averaging.rho + averaging.gamma * (len(path) - 1)) ** -averaging.eta
    return [m + alpha * (w - s) for m, w, s in zip(mean, path[-1], start, strict=True)]


@pytest.mark.parametrize(
    "averaging",
    [Ema(decay=0.9), Ema(decay=0.99), Bema(), Bema(rho=3, kappa=0.3, eta=0.4, gamma=2)],
)
def test_the_recurrence_equals_plain_python(averaging):
    path = _path(100)
    average = Average(averaging)
    for step, weights in enumerate(path):
        now = {"w": torch.tensor([weights], dtype=torch.float64, device=DEVICE)}
        average.update(step, now)
    result = average.weights(100, now)["w"][0]
    assert result.tolist() == pytest.approx(_reference(path, averaging), rel=1e-12, abs=1e-12)


def test_seeds_are_averaged_each_on_its_own():
    paths = torch.randn(30, 4, 5, dtype=torch.float64, device=DEVICE)
    together, alone = Average(Bema()), Average(Bema())
    for step, weights in enumerate(paths):
        together.update(step, {"w": weights})
        alone.update(step, {"w": weights[2:3]})
    stacked = together.weights(29, {"w": paths[-1]})["w"]
    assert torch.equal(stacked[2:3], alone.weights(29, {"w": paths[-1][2:3]})["w"])


def test_a_tuple_of_decays_is_an_average_with_each_of_them():
    decays = (0.0, 0.5, 0.9, 0.999)
    generator = torch.Generator().manual_seed(0)
    path = {
        name: torch.randn(31, len(decays), *shape, generator=generator).double().to(DEVICE)
        for name, shape in {"map": (3, 2), "bias": (3,), "scale": ()}.items()
    }
    together = Average(Ema(decay=decays))
    alone = [Average(Ema(decay=decay)) for decay in decays]
    for step in range(31):
        now = {name: weights[step] for name, weights in path.items()}
        together.update(step, now)
        for index, average in enumerate(alone):
            average.update(step, {name: w[index : index + 1] for name, w in now.items()})
    for index, average in enumerate(alone):
        own = average.weights(30, {name: w[index : index + 1] for name, w in now.items()})
        for name, weights in together.weights(30, now).items():
            torch.testing.assert_close(weights[index], own[name][0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("averaging", [Ema(), Bema()])
def test_before_the_first_step_the_weights_are_the_average(averaging):
    average = Average(averaging)
    weights = {"w": torch.ones(2, device=DEVICE)}
    average.update(0, weights)
    assert torch.equal(average.weights(0, weights)["w"], weights["w"])


def test_it_goes_on_from_its_state():
    path = torch.randn(21, 3, device=DEVICE)
    whole, first, second = (Average(Bema()) for _ in range(3))
    for step in range(21):
        whole.update(step, {"w": path[step]})
    for step in range(11):
        first.update(step, {"w": path[step]})
    second.load(first.state())
    for step in range(11, 21):
        second.update(step, {"w": path[step]})
    last = {"w": path[-1]}
    assert torch.equal(whole.weights(20, last)["w"], second.weights(20, last)["w"])


def test_an_update_never_changes_the_weights():
    weights = {"w": torch.nn.Parameter(torch.ones(3, device=DEVICE))}
    average = Average(Ema(decay=0.5))
    for step in range(5):
        average.update(step, weights)
    average.weights(4, weights)["w"].zero_()
    assert (weights["w"].data == 1).all()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Ema, {"decay": 1.0}),
        (Ema, {"decay": (0.5, 1.0)}),
        (Ema, {"decay": (-0.1, 0.5)}),
        (Bema, {"kappa": -1}),
        (Bema, {"rho": 0.0}),
    ],
)
def test_settings_without_meaning_are_refused(kind, wrong):
    with pytest.raises(ValueError, match="accepted"):
        kind(**wrong)
