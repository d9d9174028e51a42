"""Queries see the keys that they are told to see, in all layers, and nothing is left behind."""

import pytest
import torch
from devices import DEVICE
from families import state, tiny

from llmprobe import UnsupportedModelError, capture_rows
from llmprobe.capture.seen_keys import seeing


def logits(model, tokens):
    with torch.inference_mode():
        return model(tokens, use_cache=False).logits


def tokens_for(length=8):
    return torch.arange(3, 3 + length)[None].to(DEVICE)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_the_causal_mask_gives_what_the_model_gives(family):
    model, tokens = tiny(family), tokens_for()
    before, expected = state(model), logits(model, tokens)
    with seeing(model, torch.ones(8, 8, dtype=torch.bool).tril().to(DEVICE)):
        got = logits(model, tokens)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert state(model) == before


def test_keys_that_are_not_shown_get_no_weight():
    model, tokens = tiny("llama"), tokens_for()
    shown = torch.ones(8, 8, dtype=torch.bool).tril().to(DEVICE)
    shown[6, 2:5] = False
    with capture_rows(model, positions=[5, 6], weights=True) as rows, seeing(model, shown):
        logits(model, tokens)
    for layer in rows.values():
        free, hidden = layer.weights[0, 0], layer.weights[0, 1]
        assert (hidden[:, 2:5] == 0).all()
        assert (hidden[:, [0, 1, 5, 6]] > 0).all()
        assert (free[:, :6] > 0).all()


def test_attention_that_takes_no_mask_is_refused():
    model = tiny("bloom")
    with pytest.raises(UnsupportedModelError), seeing(model, torch.ones(1, 1)):
        pass
