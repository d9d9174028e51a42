"""The encoder over variates: tokens are windows, order does not matter, and it is probed."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from llmprobe import attention_layers, capture_attention, probe_variance
from llmprobe.synthetic.training import train
from llmprobe.synthetic.variates import (
    BITS,
    LARGEST,
    SIGNAL,
    VARIATE_PARTS,
    WINDOW,
    VariateEncoder,
    VariateTraining,
    draw_variates,
    forecast_errors,
    sample_variates,
    tokens_as_windows,
    train_variates,
    windows_as_tokens,
)

SMALL = VariateTraining(width=8, layers=1, batch=4, steps=6, seeds=(2, 5))
every_variant = pytest.mark.parametrize("variant", ["baseline", *VARIATE_PARTS])


def build(variant="baseline", seeds=(0,), **options):
    network = VariateEncoder(variant, seeds=seeds, width=8, **options).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    return network


def draw(n, n_variates=5):
    return sample_variates(n, n_variates, torch.Generator().manual_seed(3))


def test_a_window_is_a_token_and_back_but_for_rounding():
    windows = torch.randn(50, WINDOW, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    tokens = windows_as_tokens(windows)
    assert 0 <= tokens.min() <= tokens.max() < 2 ** (BITS * WINDOW)
    back = tokens_as_windows(tokens)
    assert (back - windows).abs().max() < LARGEST / (2**BITS - 1) + 1e-6
    assert torch.equal(windows_as_tokens(back), tokens)
    assert tokens_as_windows(windows_as_tokens(torch.full((1, WINDOW), 99.0))).max() == LARGEST


def test_samples_have_their_variance_and_share_their_waves():
    _, targets = sample_variates(4000, 3, torch.Generator().manual_seed(0))
    assert float(targets.var()) == pytest.approx(SIGNAL, rel=0.05)
    # Two waves: the forecasts of any variates of a sample lie in a plane.
    one = sample_variates(1, 30, torch.Generator().manual_seed(1))[1][0]
    assert torch.linalg.matrix_rank(one, atol=1e-4) == 2
    related, strangers = (
        tokens_as_windows(torch.tensor(draw_variates(200, 8, related=related)))
        for related in (True, False)
    )
    spread = [torch.linalg.svdvals(x.double()).square() for x in (related, strangers)]
    shares = [float((s[:, :2].sum(1) / s.sum(1)).mean()) for s in spread]
    assert shares[0] > shares[1] + 0.05
    assert draw_variates(2, 8) == draw_variates(2, 8) != draw_variates(2, 8, seed=1)


def test_the_encoder_is_a_loop_over_variates():
    network = build(layers=1, heads=2)
    tokens, _ = draw(2)
    layer, attention = network.layers[0], network.layers[0].attention
    maps = {name: getattr(attention, f"{name}_proj").weight[0] for name in "qkvo"}
    for row, values in zip(tokens, network(tokens).values, strict=True):
        x = network.embedding(row[None])[0]
        heads = []
        for features in (slice(0, 4), slice(4, 8)):
            q, k, v = ((x @ maps[name])[:, features] for name in "qkv")
            pooled = []
            for i in range(len(row)):
                e = torch.stack([torch.exp(q[i] @ k[j] / math.sqrt(4)) for j in range(len(row))])
                pooled.append(sum(e[j] / e.sum() * v[j] for j in range(len(row))))
            heads.append(torch.stack(pooled))
        y = norm(x + torch.cat(heads, dim=-1) @ maps["o"], layer.norms["attention_norm"])
        y = norm(y + layer.mlp(y[None])[0], layer.norms["mlp_norm"])
        torch.testing.assert_close(values, network.forecast(y[None])[0], rtol=1e-9, atol=1e-9)


def norm(x, layer):
    centered = x - x.mean(-1, keepdim=True)
    scaled = centered / torch.sqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
    return scaled * layer.gain[0] + layer.bias[0]


@every_variant
def test_variates_have_no_order_and_seeds_are_alone(variant):
    network, (tokens, _) = build(variant, seeds=(1, 4)), draw(4)
    values = network(tokens).values
    order = torch.tensor([3, 0, 4, 1, 2])
    if variant != "sparse-random":
        again = network(tokens[:, order]).values
        torch.testing.assert_close(again, values[:, order], rtol=1e-9, atol=1e-9)
    for index in range(2):
        alone = network.member(index)(tokens[2 * index : 2 * index + 2]).values
        torch.testing.assert_close(alone, values[2 * index : 2 * index + 2])


def test_a_stack_trains_as_each_alone_and_resumes(tmp_path):
    stack = train(SMALL)
    for index, seed in enumerate(SMALL.seeds):
        alone = train(dataclasses.replace(SMALL, seeds=(seed,)))
        torch.testing.assert_close(stack.losses[:, index], alone.losses[:, 0], rtol=0, atol=1e-5)
    options = {"width": 8, "layers": 1, "batch": 4, "steps": 6, "seeds": 2, "first_seed": 4}
    first = train_variates(output=tmp_path, **options)
    again = train_variates(output=tmp_path, **options)
    assert first.seeds == (4, 5)
    for name, weight in first.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)


def test_errors_are_those_of_single_samples_and_fall_with_training():
    trained = train_variates(seeds=1, steps=60, width=16, layers=1)
    errors = forecast_errors(trained, (2, 8), n=40)
    assert errors.shape == (1, 2)
    assert (errors < forecast_errors(VariateEncoder(width=16, layers=1), (2, 8), n=40)).all()


@pytest.mark.parametrize("at", ["output", "heads"])
def test_its_variance_over_samples_equals_brute_force(at):
    network = build(layers=2).float()
    layers = attention_layers(network)
    assert [(layer.n_heads, layer.head_size, layer.causal) for layer in layers] == [
        (2, 4, False)
    ] * 2
    prompts = draw_variates(12, 16)
    result = probe_variance(
        network, (4, 16), prompts=prompts, n_prompts=12, layers=1, at=at, position="first"
    )
    for column, length in enumerate((4, 16)):
        with capture_attention(network, 1, positions=0, at=at) as captured:
            network(torch.tensor(prompts)[:, :length])
        std = np.std(captured[1][:, 0].double().numpy(), axis=0, ddof=1)
        std = np.median(std.reshape(len(result.slope), -1), axis=-1)
        np.testing.assert_allclose(result.std_median[:, column], std, rtol=1e-4)
