"""The logits behind weights: what a softmax got, of the keys that a query sees."""

import threading

import pytest
import torch

from llmprobe.capture.logits import SoftmaxInputs, seen_logits

LOGITS = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "softmax",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(input=x, dim=-1),
        lambda x: x.softmax(dim=-1),
        lambda x: torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32),
    ],
)
def test_every_way_to_call_softmax_is_seen_and_unchanged(softmax):
    plain = softmax(LOGITS)
    with torch.inference_mode(), SoftmaxInputs() as seen:
        assert torch.equal(softmax(LOGITS), plain)
    assert seen.latest is LOGITS
    softmax(LOGITS + 1)
    assert seen.latest is LOGITS


def test_other_threads_are_not_watched():
    with SoftmaxInputs() as seen:
        thread = threading.Thread(target=lambda: LOGITS.softmax(-1))
        thread.start()
        thread.join()
    assert seen.latest is None


def test_masked_keys_have_no_logit_and_biases_stay():
    weights, visible = LOGITS.softmax(-1), torch.ones(2, 1, 4, 7, dtype=torch.bool)
    visible[..., 5:] = False
    expected = LOGITS.masked_fill(~visible, -torch.inf)
    assert torch.equal(seen_logits(LOGITS, weights, visible), expected)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        added = torch.full(visible.shape, -100.0, dtype=dtype)  # a bias, and no mask
        added[..., 5:] = torch.finfo(dtype).min
        assert torch.equal(seen_logits(LOGITS, weights, added), expected)
    assert torch.equal(seen_logits(LOGITS, weights, None), LOGITS)


def test_sinks_are_left_out_and_unknown_layouts_leave_the_weights():
    weights = LOGITS.softmax(-1)[..., :-1]
    assert torch.equal(seen_logits(LOGITS, weights, None), LOGITS[..., :-1])
    for given in (None, LOGITS[0], LOGITS[:, :1], LOGITS[..., :3]):
        assert torch.equal(seen_logits(given, weights, None), weights.log())
