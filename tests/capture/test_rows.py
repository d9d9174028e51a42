"""Attention rows equal the whole matrix's, in every family, without making it where possible."""

import copy

import pytest
import torch
from families import FAMILIES, batch, reference, tiny

from llmprobe import CaptureError, OutOfMemoryError, UnsupportedModelError, capture_rows
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
    check_close(rows[0].mass, torch.ones(1, 1, 4))


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
        rows = Rows.of(weights, torch.tensor([0]), k=2, keep=False)
        assert rows.entropy.item() == pytest.approx(float(entropy))
        assert rows.effective.item() == pytest.approx(effective)


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
    model, tokens = SetNetwork("dictionary", width=8, heads=heads), torch.arange(18).view(2, 9)
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
