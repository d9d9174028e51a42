"""Where each prompt begins and ends, whatever the padding."""

import pytest
import torch
from devices import DEVICE
from families import tiny

from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.session import _bounds
from llmprobe.errors import CaptureError
from llmprobe.synthetic.set_network import SetNetwork


def test_bounds_of_prompts_padded_on_either_side():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]], device=DEVICE)
    starts, lengths = _bounds(mask, 3, 4)
    assert starts.tolist() == [2, 0, 0]
    assert lengths.tolist() == [2, 3, 4]
    starts, lengths = _bounds(None, 2, 7)
    assert (starts.tolist(), lengths.tolist()) == ([0, 0], [7, 7])
    # Behind a cache only the last columns belong to this forward.
    starts, lengths = _bounds(torch.ones(1, 9), 1, 2)
    assert (starts.tolist(), lengths.tolist()) == ([0], [2])


def test_a_mask_given_by_position_is_seen_too():
    model = tiny("llama")
    tokens, mask = torch.ones(1, 6, dtype=int), torch.tensor([[0, 0, 1, 1, 1, 1]])
    with pytest.raises(CaptureError, match="which has 4"), capture_attention(model, positions=4):
        model(tokens.to(DEVICE), mask.to(DEVICE))


def test_an_empty_prompt_is_an_error_not_an_index():
    model = tiny("llama")
    mask = torch.tensor([[1, 1], [0, 0]], device=DEVICE)
    with pytest.raises(CaptureError), capture_attention(model, positions=-1):
        model(torch.ones_like(mask), attention_mask=mask)


@pytest.mark.parametrize("at", ["output", "heads"])
def test_attention_for_the_last_token_alone_counts_positions_in_tokens(at):
    model = SetNetwork("argmax", width=8).to(DEVICE)
    tokens = torch.arange(18, device=DEVICE).view(2, 9)
    with capture_attention(model, at=at) as every:
        model(tokens)
    assert every[0].shape[:2] == (2, 1)
    for positions, n in ((-1, 1), (8, 1), ([-1, 8], 2)):
        with capture_attention(model, positions=positions, at=at) as captured:
            model(tokens)
        assert torch.equal(captured[0], every[0].repeat_interleave(n, dim=1))
        assert captured[0].data_ptr() != every[0].data_ptr()
    for wrong in (0, -2, 7, [-1, 3]):
        with (
            pytest.raises(CaptureError, match=r"answers for the last token alone.*only -1"),
            capture_attention(model, positions=wrong, at=at),
        ):
            model(tokens)
    for beyond in (9, -10):
        with (
            pytest.raises(CaptureError, match="beyond prompt 0, which has 9"),
            capture_attention(model, positions=beyond, at=at),
        ):
            model(tokens)
