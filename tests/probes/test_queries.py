"""A query is named by its text or its number, and several are told apart in the result."""

import numpy as np
import pytest
from families import tiny
from prompt_sets import TOKENIZERS, make

from llmprobe import attention_layers, load_model, load_result, probe_variance
from llmprobe.probes.queries import named_token, token_text


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_token_is_named_by_its_text_its_piece_or_its_number(tokenizer):
    size = len(tokenizer)
    for token in range(3, size):
        piece = tokenizer.convert_ids_to_tokens(token)
        assert named_token(f"id:{token}", tokenizer, size) == token
        found = tokenizer(piece, add_special_tokens=False).input_ids
        if len(found) != 1:
            assert named_token(piece, tokenizer, size) == token
        text = tokenizer.decode([token])
        if tokenizer(text, add_special_tokens=False).input_ids == [token]:
            assert named_token(text, tokenizer, size) == token
            assert token_text(token, tokenizer) == repr(text)


def test_a_named_query_ends_every_prompt():
    prompts = make("random", query="id:7", n_prompts=4)
    assert prompts.query_tokens == (7,)
    assert (prompts.batch(range(4), 40)[:, -1] == 7).all()
    free = make("random", n_prompts=4)
    assert (prompts.batch(range(4), 40)[:, :-1] == free.batch(range(4), 40)[:, :-1]).all()


def test_a_result_names_its_queries(tmp_path):
    loaded = load_model("builtin")
    options = {"at": "heads", "n_prompts": 8}
    several = probe_variance(
        loaded, (8, 16), query="fixed", n_queries=4, output=tmp_path / "run", **options
    )
    assert len(several.query_tokens) == 4
    again = load_result(tmp_path / "run")
    assert again.query_tokens == several.query_tokens
    token, text = several.query_tokens[0]
    assert text == repr(loaded.tokenizer.decode([token]))
    named = probe_variance(loaded, (8, 16), query=f"id:{token}", **options)
    assert named.query_tokens == ((token, text),)
    assert named.provenance.arguments["query"] == f"id:{token}"
    assert np.isnan(named.within_variance).all()
    assert probe_variance(loaded, (8, 16), **options).query_tokens == ()


def test_a_split_needs_two_prompts_for_a_query():
    model = tiny("llama")
    with pytest.raises(ValueError, match=r"n_queries: got 16 for 20 prompts.*accepted: up to 10"):
        probe_variance(model, (4, 8), query="fixed", n_prompts=20, n_queries=16)
    few = probe_variance(model, (4, 8), query="fixed", n_prompts=16)
    assert any("use n_prompts=32 or more" in note for note in few.warnings)
    assert np.isnan(few.slope_within).all()
    assert few.tested == "total"
    enough = probe_variance(model, (4, 8), query="fixed", n_prompts=32)
    assert enough.tested == "within"


def test_a_named_query_is_found_again_by_its_text_and_its_number(tmp_path):
    loaded = load_model("builtin")
    token = next(i for i in range(300, 400) if _round_trip(loaded.tokenizer, i))
    for query in (loaded.tokenizer.decode([token]), f"id:{token}"):
        result = probe_variance(loaded, (8, 16), n_prompts=4, query=query, output=tmp_path / "run")
        assert result.query_tokens[0][0] == token


def _round_trip(tokenizer, token):
    return tokenizer(tokenizer.decode([token]), add_special_tokens=False).input_ids == [token]


def test_prompts_are_added_to_the_same_queries(tmp_path):
    model = tiny("llama")
    options = {"query": "fixed", "n_queries": 4, "at": "heads"}
    probe_variance(model, (4, 8), n_prompts=8, output=tmp_path / "run", **options)
    more = probe_variance(model, (4, 8), n_prompts=24, output=tmp_path / "run", **options)
    whole = probe_variance(model, (4, 8), n_prompts=24, **options)
    np.testing.assert_allclose(more.within_variance, whole.within_variance, rtol=1e-9)
    np.testing.assert_allclose(more.slope_within_low, whole.slope_within_low, rtol=1e-9)


def test_uniform_attention_through_a_window_stops_falling():
    """Gemma 2 has a window of eight tokens in its first layer, and none in its second."""
    model = tiny("gemma2")
    [window] = {layer.window for layer in attention_layers(model)} - {None}
    lengths = (window, 2 * window, 4 * window)
    result = probe_variance(model, lengths, layers=None, n_prompts=4)
    expected = [0 if kind == "sliding" else -0.5 for kind in result.layer_type]
    np.testing.assert_allclose(result.slope_uniform, expected, atol=1e-12)
    assert set(result.layer_type) == {"full", "sliding"}
