"""Attention rows equal the whole matrix's, in every family, without making it where possible."""

import copy

import numpy as np
import pytest
import torch
from brute import row_numbers
from devices import DEVICE
from families import FAMILIES, batch, reference, tiny

from llmprobe import CaptureError, OutOfMemoryError, UnsupportedModelError, capture_rows
from llmprobe.capture.calls import listening
from llmprobe.capture.rows import Rows
from llmprobe.synthetic.set_network import SetNetwork


def check_close(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_the_whole_matrix(family):
    model, inputs = tiny(family), batch(family, (12, 12))
    expected = reference(family, inputs).weights
    plain = model(**inputs, use_cache=False).logits
    with capture_rows(model, positions=[0, 5, -1], k=4, weights=True) as rows:
        logits = model(**inputs, use_cache=False).logits
    # These take another path to show their weights at all; the others are not touched.
    assert torch.equal(logits, plain) or family in ("falcon", "glm_moe_dsa")
    check_close(logits, plain)
    assert list(rows) == list(expected)
    for layer in rows:
        weights = expected[layer][:, :, [0, 5, 11]].transpose(1, 2)
        got = rows[layer]
        check_close(got.weights, weights)
        check_close(got.mass, weights.sum(-1))
        check_close(got.first, weights[..., 0])
        check_close(got.effective, 1 / (weights**2).sum(-1))
        check_close(got.entropy, -torch.xlogy(weights, weights).sum(-1))
        top, where = weights.sort(dim=-1, descending=True)
        check_close(got.top, top[..., :4])
        gap = -top.diff(dim=-1, prepend=torch.full_like(top[..., :1], torch.inf)) > 1e-4
        distinct = gap[..., :4] & gap[..., 1:5]  # of ties, any order is right
        assert torch.equal(got.top_positions[distinct], where[..., :4][distinct])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_padded_batch_equal_those_of_each_prompt_alone(family, side):
    model, lengths, wanted = tiny(family), (5, 9, 12), [0, 3, -1]
    inputs = batch(family, lengths, side)
    with capture_rows(model, positions=wanted) as together:
        model(**inputs, use_cache=False)
    for row in range(len(lengths)):
        tokens = inputs["input_ids"][row, inputs["attention_mask"][row].bool()]
        with capture_rows(model, positions=wanted) as alone:
            model(tokens[None], use_cache=False)
        for layer in together:
            for name in ("entropy", "effective", "first", "mass", "top"):
                check_close(getattr(together[layer], name)[row], getattr(alone[layer], name)[0])


def test_learned_sinks_take_their_share_of_the_mass():
    model, inputs = tiny("gpt_oss"), batch("gpt_oss", (12,))
    with capture_rows(model) as rows:
        model(**inputs)
    assert (rows[0].mass < 0.999).all()
    with capture_rows(tiny("llama")) as rows:
        tiny("llama")(**inputs)
    check_close(rows[0].mass, torch.ones(1, 1, 4, device=DEVICE))


def test_stop_into_and_several_forwards():
    model = tiny("llama")
    seen = []
    with capture_rows(model, layers=0, stop=True, into=lambda layer, rows: seen.append(rows)):
        assert model(**batch("llama", (6,))) is None
        assert model(**batch("llama", (9, 9))) is None
    with capture_rows(model, layers=0, k=16) as rows:
        model(**batch("llama", (6,)))
        model(**batch("llama", (9, 9)))
    assert rows[0].entropy.shape == (3, 1, 4)
    assert rows[0].top.shape == (3, 1, 4, 16)
    check_close(rows[0].entropy, torch.cat([part.entropy for part in seen]))
    # A prompt of six tokens has six weights; the rest is said to be missing.
    assert (rows[0].top_positions[0, ..., 6:] == -1).all()
    assert (rows[0].top[0, ..., 6:] == 0).all()


def test_uniform_and_peaked_rows_have_the_entropies_they_must():
    uniform = torch.full((1, 1, 1, 8), 1 / 8)
    peaked = torch.eye(8)[None, None, 3:4]
    for weights, entropy, effective in [(uniform, torch.tensor(8.0).log(), 8), (peaked, 0, 1)]:
        rows = Rows.of(weights.to(DEVICE), torch.tensor([0], device=DEVICE), k=2, keep=False)
        assert rows.entropy.item() == pytest.approx(float(entropy))
        assert rows.effective.item() == pytest.approx(effective)


def check_numbers(got, row, weights, logits=None):
    """All statistics of one row of `Rows` against plain numpy in float64."""
    for name, expected in row_numbers(weights, logits).items():
        value = float(getattr(got, name)[row])
        assert value == pytest.approx(expected, rel=2e-4, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("n_tokens", [2, 5, 300])
def test_statistics_of_random_rows_equal_numpy(n_tokens):
    generator = torch.Generator().manual_seed(n_tokens)
    logits = 4 * torch.randn(2, 3, 2, n_tokens, generator=generator)
    hidden = torch.rand(logits.shape, generator=generator) < 0.3
    hidden[..., 0] = False
    logits = logits.masked_fill(hidden, -np.inf)
    weights = 0.9 * logits.softmax(-1)  # a learned sink takes the rest
    for given in (logits, None):
        there = None if given is None else given.to(DEVICE)
        starts = torch.zeros(2, dtype=int, device=DEVICE)
        rows = Rows.of(weights.to(DEVICE), starts, k=1, keep=False, logits=there)
        for prompt, head, position in np.ndindex(2, 3, 2):
            at = prompt, head, position
            row = prompt, position, head
            check_numbers(rows, row, weights[at].numpy(), logits[at].numpy())


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "bloom"])
def test_statistics_of_real_rows_equal_numpy(family):
    inputs = batch(family, (12, 12))
    weights = reference(family, inputs).weights
    with capture_rows(tiny(family), positions=[0, 1, 7, -1]) as rows:
        tiny(family)(**inputs, use_cache=False)
    for layer in rows:
        for prompt, column, head in np.ndindex(2, 4, 4):
            row = weights[layer][prompt, head, (0, 1, 7, 11)[column]].cpu().numpy()
            check_numbers(rows[layer], (prompt, column, head), row)


def test_the_first_token_is_where_a_padded_prompt_begins():
    model, inputs = tiny("llama"), batch("llama", (5, 9), "left")
    with capture_rows(model, weights=True) as together:
        model(**inputs, use_cache=False)
    for row, length in enumerate((5, 9)):
        for head in range(4):
            weights = together[1].weights[row, 0, head, -length:].cpu().numpy()
            check_numbers(together[1], (row, 0, head), weights)


def test_spread_and_lambda_know_logits_whose_weights_are_rounded_to_zero():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    model.model.layers[1].self_attn.q_proj.weight.data *= 300
    calls = []
    with (
        listening([model.model.layers[1].self_attn], calls.append),
        capture_rows(model, layers=1, weights=True) as rows,
    ):
        model(**inputs, use_cache=False)
    call = calls[-1]
    key = call.key.double().repeat_interleave(2, dim=1)
    logits = (key @ call.query[:, :, -1:].double().mT).squeeze(-1)[0] * 8**-0.5
    logits = logits.cpu()
    assert (rows[1].weights == 0).any()  # the weights have forgotten
    for head in range(4):
        numbers = row_numbers(logits[head].softmax(-1).numpy(), logits[head].numpy())
        assert numbers["spread"] > 200
        for name in ("spread", "log_lambda"):
            assert float(getattr(rows[1], name)[0, 0, head]) == pytest.approx(
                numbers[name], rel=1e-4
            )


def test_lambda_has_the_limits_it_must():
    def rows_of(logits):
        logits = torch.tensor(logits, device=DEVICE)[None, None, None]
        start = torch.tensor([0], device=DEVICE)
        rows = Rows.of(logits.softmax(-1), start, k=1, keep=False, logits=logits)
        return rows.log_lambda.exp().item(), rows.spread.item(), rows.entropy_share.item()

    inf = float("inf")
    assert rows_of([2.0, 2.0, 2.0, 2.0]) == (inf, 0, pytest.approx(1))  # uniform
    assert rows_of([7.0, 7.0, 0.0])[0] == inf  # two tokens share the top at any temperature
    assert rows_of([5.0, -inf, -inf])[:2] == (0, 0)  # one-hot: no other key is seen
    assert rows_of([0.0, -3e38])[0] == pytest.approx(0, abs=1e-30)
    assert rows_of([0.0])[0] == 0
    # Logits −2 ln k over k: every gap is 2 ln k, so Λ is 1/2.
    logits = (-2 * torch.arange(1, 50).log()).tolist()
    assert rows_of(logits)[0] == pytest.approx(0.5, rel=1e-5)


def test_whole_matrices_are_only_made_where_they_fit(monkeypatch):
    model, inputs = tiny("bloom"), batch("bloom", (12, 12))
    monkeypatch.setattr("llmprobe.capture.rows.free_memory", lambda device: 1000)
    said = r"0.01 MiB for 2 prompts of 12 tokens, .*MiB are free; use fewer prompts at a time"
    for kind in (CaptureError, OutOfMemoryError):  # whichever of them a caller is prepared for
        with pytest.raises(kind, match=said), capture_rows(model):
            model(**inputs)
    with capture_rows(tiny("llama")):
        tiny("llama")(**inputs)


def test_linear_layers_and_foreign_attention_functions_have_no_rows():
    from transformers import AttentionInterface

    with (
        pytest.raises(UnsupportedModelError, match=r"MiniMaxLightningAttention, linear"),
        capture_rows(tiny("minimax")),
    ):
        pass
    model = copy.deepcopy(tiny("llama"))
    AttentionInterface.register("mine", AttentionInterface()["sdpa"])
    model.config._attn_implementation = "mine"
    with pytest.raises(UnsupportedModelError, match="'mine'"), capture_rows(model):
        pass
    assert model.config._attn_implementation == "mine"


def test_rows_behind_a_cache_know_where_prompts_begin():
    model, inputs = tiny("llama"), batch("llama", (5, 9), "left")
    inputs.pop("position_ids")
    with capture_rows(model, layers=0) as rows:
        generated = model.generate(**inputs, max_new_tokens=2, do_sample=False)
    for row, length in enumerate((5, 9)):
        whole = generated[row, 9 - length : -1][None]
        with capture_rows(model, layers=0) as alone:
            model(whole)
        check_close(rows[0].first[2 + row], alone[0].first[0])
        check_close(rows[0].top[2 + row], alone[0].top[0])
        assert torch.equal(rows[0].top_positions[2 + row], alone[0].top_positions[0])


def test_masked_tokens_have_no_position():
    with capture_rows(tiny("llama"), positions=0, k=4) as rows:
        tiny("llama")(**batch("llama", (6,)))
    assert rows[0].top_positions[0, 0].tolist() == [[0, -1, -1, -1]] * 4


def test_whole_rows_of_several_lengths_are_not_joined():
    with capture_rows(tiny("llama"), weights=True) as rows:
        tiny("llama")(**batch("llama", (6,)))
        tiny("llama")(**batch("llama", (9,)))
    with pytest.raises(CaptureError, match="lengths 6, 9"):
        _ = rows[0]


def test_wrong_arguments_are_refused():
    for wrong in ({"positions": None}, {"k": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            capture_rows(tiny("llama"), **wrong)


@pytest.mark.parametrize("heads", [1, 4])
def test_rows_of_attention_for_the_last_token_alone(heads, monkeypatch):
    monkeypatch.setattr("llmprobe.capture.rows.free_memory", lambda device: 0)  # no matrix is made
    model = SetNetwork("dictionary", width=8, heads=heads).to(DEVICE)
    tokens = torch.arange(18, device=DEVICE).view(2, 9)
    with capture_rows(model, positions=[-1, 8], k=4, weights=True) as rows:
        weights = model(tokens).weights
    assert torch.equal(rows[0].weights, weights[:, None].expand(-1, 2, -1, -1))
    assert torch.equal(rows[0].first[:, 0], weights[..., 0])
    with pytest.raises(CaptureError, match="last token alone"), capture_rows(model, positions=0):
        model(tokens)


def test_negative_weights_have_no_rows():
    model = SetNetwork("argmax", "normalized", width=8)
    with (
        pytest.raises(CaptureError, match="no attention weights, or negative"),
        capture_rows(model),
    ):
        model(torch.arange(18).view(2, 9))
