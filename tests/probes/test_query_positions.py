"""Encoders are measured at any token, and every number equals brute force."""

import brute
import numpy as np
import pytest
import torch
from devices import DEVICE
from encoders import ENCODERS, REFUSED, encoder, gather, plain
from families import tiny

from llmprobe import (
    UnsupportedModelError,
    attention_layers,
    check_capture,
    probe_attention,
    probe_loss,
    probe_retrieval,
    probe_variance,
)
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.query_positions import check_position, places, resolve_position

LENGTHS = (4, 9, 24)
POSITIONS: dict[str | int, str] = {
    "auto": "first",
    "first": "first",
    "last": "last",
    -2: "-2",
    "mean": "mean",
}
CASES = [(family, "auto") for family in ENCODERS]
CASES += [(family, "mean") for family in ("bert", "modernbert", "mpnet", "deberta-v2", "esm")]
CASES += [("bert", position) for position in ("first", "last", -2)]


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_are_found_and_their_captures_are_right(family):
    layers = attention_layers(encoder(family))
    assert [layer.layer for layer in layers] == [0, 1]
    assert all((x.n_heads, x.head_size, x.hidden_size) == (4, 8, 32) for x in layers)
    assert not any(layer.causal or layer.window for layer in layers)
    report = check_capture(encoder(family), length=24)
    assert report.passed, [line for line in report.checks if not line.passed]


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(family):
    with pytest.raises(UnsupportedModelError, match=REFUSED[family][1]) as error:
        attention_layers(encoder(family))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("family", "position"), CASES)
def test_the_variance_of_encoders_equals_brute_force(family, position):
    result = probe_variance(
        encoder(family), LENGTHS, layers=None, at="heads", n_prompts=5, position=position
    )
    recorded = result.provenance.arguments.get("position", "last")
    assert recorded == POSITIONS[position]
    prompts = make_prompts("random", n_prompts=5, lengths=LENGTHS, vocab_size=97)
    x = gather(family, prompts, LENGTHS, recorded)
    for name, values in brute.statistics(x, 0, 0).items():
        np.testing.assert_allclose(
            getattr(result, name), values, rtol=2e-3, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet", "deberta-v2", "roformer"])
@pytest.mark.parametrize("position", ["first", "2"])
def test_the_attention_of_encoders_equals_brute_force(family, position):
    result = probe_attention(encoder(family), LENGTHS, layers=None, n_prompts=4, position=position)
    prompts = make_prompts("random", n_prompts=4, lengths=LENGTHS, vocab_size=97)
    at = {"first": 0}.get(position, 2)
    for column, length in enumerate(LENGTHS):
        found: dict[int, list[dict[str, float]]] = {series: [] for series in range(8)}
        for index in range(4):
            _, weights = plain(family, prompts.batch([index], length))
            for layer in (0, 1):
                for head in range(4):
                    row = brute.row_numbers(weights[layer][0, head, at].cpu().numpy())
                    found[4 * layer + head].append(row)
        for series, rows in found.items():
            for name in ("entropy", "effective", "first", "n_keys", "squares"):
                expected = np.mean([row[name] for row in rows])
                got = getattr(result, name)[series, column]
                np.testing.assert_allclose(got, expected, rtol=1e-4)
    if family == "bert":
        assert np.isfinite(result.predicted_variance).all()


def test_a_dispersing_encoder_falls_as_uniform_attention_does():
    """With logits of zero every token sees all others alike, wherever it is."""
    model = encoder("bert")
    kept = [layer.attention.self.query for layer in model.encoder.layer]
    before = [(q.weight.clone(), q.bias.clone()) for q in kept]
    try:
        for q in kept:
            q.weight.data.zero_()
            q.bias.data.zero_()
        slopes = [
            probe_variance(
                model, "8..64", at="heads", n_prompts=128, query="id:5", position=position
            )
            for position in ("first", "mean")
        ]
    finally:
        for q, (weight, bias) in zip(kept, before, strict=True):
            q.weight.data.copy_(weight)
            q.bias.data.copy_(bias)
    np.testing.assert_allclose(slopes[0].slope, slopes[1].slope, atol=1e-4)
    assert (np.abs(slopes[0].slope - slopes[0].slope_uniform) < 0.08).all()


def test_causal_models_are_measured_at_their_last_token_only():
    model = tiny("llama")
    plain_result = probe_variance(model, "4,8", n_prompts=4)
    assert "position" not in plain_result.provenance.arguments
    same = probe_variance(model, "4,8", n_prompts=4, position="last")
    assert same.provenance.arguments == plain_result.provenance.arguments
    with pytest.raises(ValueError, match=r"position: got 'first', but .* is causal"):
        probe_variance(model, "4,8", n_prompts=4, position="first")


def test_what_has_no_meaning_for_encoders_is_refused():
    model = encoder("bert")
    with pytest.raises(UnsupportedModelError, match=r"is an encoder, .* the loss has no meaning"):
        probe_loss(model, "4,8", prompts="random", n_prompts=4)
    with pytest.raises(UnsupportedModelError, match="is an encoder"):
        probe_retrieval(model, "16,32", prompts="repeat", n_prompts=4)
    with pytest.raises(ValueError, match=r"chunk: .* is an encoder"):
        probe_variance(model, "4,8", n_prompts=4, chunk=2)
    with pytest.raises(ValueError, match="the rows of all tokens"):
        probe_attention(model, "4,8", n_prompts=4, position="mean")


def test_positions_are_checked():
    for wrong in ("middle", "", "1.5"):
        with pytest.raises(ValueError, match="position: got"):
            check_position(wrong)
    layers = attention_layers(encoder("bert"))
    with pytest.raises(ValueError, match="the shortest prompts have 4 tokens; use -4 to 3"):
        resolve_position(4, layers, LENGTHS, "x")
    assert [resolve_position(p, layers, LENGTHS, "x") for p in (0, "-1", "3")] == [
        "first",
        "last",
        "3",
    ]
    assert places("last", [7]) == [7]
    assert places("first", [7]) == [0]
    assert places("-2", [7]) == [-2]


def test_tokens_that_follow_change_an_encoder_and_no_decoder():
    tokens = torch.tensor([[5, 6, 7], [5, 6, 8]], device=DEVICE)
    assert not torch.allclose(*(encoder("bert")(tokens)[0][:, 0]))
    assert torch.allclose(*(tiny("bert")(tokens).logits[:, 0]))
