"""The three attentions of an encoder-decoder equal brute force, whichever model is called."""

import pytest
import torch
from encoder_decoders import ENCODER_DECODERS, REFUSED, SERVED, encoder_decoder, plain, read
from families import tiny

from llmprobe import (
    UnsupportedModelError,
    attention_layers,
    capture_attention,
    capture_rows,
    check_capture,
    edit_attention,
    scale_logits,
)
from llmprobe.capture.digests import digest_model
from llmprobe.capture.parts import PARTS, Part, part_of, whole_of

BOTH = [(family, part) for family in ("t5", "bart") for part in PARTS]


def close(got, expected):
    got, expected = got.double(), expected.double()
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def padded() -> dict[str, torch.Tensor]:
    """Three prompts and three texts of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 97, (3, 12), generator=generator)
    mask = (torch.arange(12) < torch.tensor([[12], [7], [5]])).long()
    written = torch.randint(3, 97, (3, 6), generator=generator)
    written_mask = (torch.arange(6) < torch.tensor([[4], [6], [5]])).long()
    return {
        "input_ids": tokens * mask,
        "attention_mask": mask,
        "decoder_input_ids": written * written_mask,
        "decoder_attention_mask": written_mask,
    }


@pytest.mark.parametrize(("family", "part"), SERVED)
def test_captures_of_the_whole_model_equal_brute_force(family, part):
    model, inputs = encoder_decoder(family), padded()
    expected = plain(family, part, inputs)
    before = model(**inputs, use_cache=False)[0]
    with (
        capture_attention(model, part=part) as outputs,
        capture_attention(model, part=part, at="heads") as heads,
    ):
        assert torch.equal(model(**inputs, use_cache=False)[0], before)
    with capture_rows(model, part=part, positions=[0, -1], weights=True) as rows:
        model(**inputs, use_cache=False)
    mask = inputs["attention_mask" if part == "encoder" else "decoder_attention_mask"]
    last = mask.sum(1) - 1
    for n in (0, 1):
        close(outputs[n], expected.outputs[n])
        close(heads[n], expected.heads[n])
        for prompt in range(3):
            for at, where in enumerate((0, last[prompt])):
                close(rows[n].weights[prompt, at], expected.weights[n][prompt, :, where])
    n_keys = (inputs["attention_mask"] if part == "cross" else mask).sum(1)
    if part != "decoder" and attention_layers(model, part=part)[1].type == "full":
        assert rows[1].n_keys[:, 0, 0].tolist() == n_keys.tolist()


@pytest.mark.parametrize(("family", "part"), SERVED)
def test_a_part_reads_prompts(family, part):
    model = part_of(encoder_decoder(family), part)
    layers = attention_layers(model)
    facts = ENCODER_DECODERS[family]
    assert [layer.path for layer in layers] == [facts.paths[part].format(n) for n in (0, 1)]
    assert all(layer.causal == (part == "decoder") for layer in layers)
    assert all(layer.cross == (part == "cross") for layer in layers)
    tokens = torch.arange(3, 23)[None]
    expected = plain(family, part, read(family, part, tokens))
    with capture_attention(model, positions=-1, at="heads", stop=True) as captured:
        assert model(tokens) is None
    for n in (0, 1):
        close(captured[n], expected.heads[n][:, -1:])


@pytest.mark.parametrize("family", ["t5", "t5gemma", "bart", "mvp"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_pass_the_check(family, part):
    report = check_capture(encoder_decoder(family), part=part, length=16)
    assert report.passed, [line for line in report.checks if not line.passed]


@pytest.mark.parametrize(("family", "part"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(family, part):
    with pytest.raises(UnsupportedModelError, match=ENCODER_DECODERS[family].refused[part]) as told:
        attention_layers(encoder_decoder(family), part=part)
    assert "\n" not in str(told.value)
    assert type(encoder_decoder(family)).__name__ in str(told.value)


@pytest.mark.parametrize(("family", "part"), BOTH)
def test_few_queries_are_computed_where_that_is_less(family, part):
    model = part_of(encoder_decoder(family), part)
    with capture_attention(model, 1, positions=-1, stop=True) as captured:
        model(torch.arange(3, 23)[None])
    assert captured.narrow == (part != "cross")  # which has one query


@pytest.mark.parametrize(("family", "part"), BOTH)
def test_logits_are_scaled_with_their_bias(family, part):
    """The weights of twice the logits are the squares of the weights, scaled to sum to one."""
    model, inputs = encoder_decoder(family), padded()
    expected = plain(family, part, inputs).weights[0].square()
    expected /= expected.sum(-1, keepdim=True)
    with (
        edit_attention(model, 0, part=part, queries=scale_logits(2.0)),
        capture_rows(model, 0, part=part, positions=0, weights=True) as rows,
    ):
        model(**inputs, use_cache=False)
    close(rows[0].weights[:, 0], expected[:, :, 0])


@pytest.mark.parametrize("family", ["bart", "mvp"])
def test_edits_know_how_many_tokens_an_encoder_sees(family):
    """`mvp` does not look up its attention function by name."""
    inputs, seen = padded(), []
    with edit_attention(
        encoder_decoder(family), 0, outputs=lambda layer, x, n: seen.append(n.expand(3, 12, 1))
    ):
        encoder_decoder(family)(**inputs, use_cache=False)
    assert torch.equal(seen[0][:, 0, 0], inputs["attention_mask"].sum(1))


def test_edits_of_cross_attention_without_a_number_of_keys_are_refused():
    with pytest.raises(UnsupportedModelError, match="how many keys a token sees is unknown"):
        edit_attention(encoder_decoder("mvp"), part="cross", outputs=lambda layer, x, n: x)


def test_parts_share_the_model_and_differ_in_their_digest():
    model = encoder_decoder("t5")
    parts = [part_of(model, name) for name in PARTS]
    assert all(whole_of(part) is model for part in parts)
    assert len({digest_model(part) for part in parts}) == 3
    assert part_of(model).part == "encoder"
    assert part_of(parts[1]) is parts[1]
    assert part_of(parts[1], "cross").part == "cross"


def test_an_edit_of_another_part_is_another_model():
    model, digests = encoder_decoder("bart"), []
    for part in ("decoder", "cross"):
        with edit_attention(model, 0, part=part, outputs=lambda layer, x: 0 * x):
            digests.append(digest_model(part_of(model)))
            part_of(model, "cross")(torch.arange(3, 9)[None])
    assert digests[0] != digests[1]


@pytest.mark.parametrize("part", PARTS)
def test_nobody_waits_for_the_mask_of_a_prompt_without_padding(part):
    model, tokens = part_of(encoder_decoder("bart"), part), torch.arange(3, 23)[None]
    with capture_rows(model, positions=-1) as rows:
        model(tokens)
        assert rows._mask is None
        assert rows._encoder_mask is None
        model(tokens, attention_mask=torch.ones_like(tokens))
        given = rows._encoder_mask if part == "cross" else rows._mask
        assert given is not None


def test_generate_is_captured_at_the_newest_token():
    from transformers import AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(encoder_decoder("t5").config).eval()
    tokens = torch.arange(3, 9)[None]
    with (
        capture_attention(model, part="cross", positions=-1) as cross,
        capture_attention(model, part="encoder", positions=-1) as encoder,
    ):
        model.generate(tokens, max_new_tokens=3, min_new_tokens=3)
    assert cross[0].shape == (3, 1, 32)
    assert encoder[0].shape == (1, 1, 32)


def test_other_models_have_no_parts():
    assert not isinstance(part_of(tiny("llama")), Part)
    with pytest.raises(ValueError, match=r"part: got 'cross', but LlamaForCausalLM is no encoder"):
        capture_attention(tiny("llama"), part="cross")
    with pytest.raises(ValueError, match="part: got 'head', accepted: encoder, decoder, cross"):
        attention_layers(encoder_decoder("t5"), part="head")
