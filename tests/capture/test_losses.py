"""Losses in slices equal those of a plain forward with labels, for every family's head."""

import copy

import pytest
import torch
from devices import DEVICE, KIND
from families import FAMILIES, tiny

from llmprobe import (
    UnsupportedModelError,
    ablate,
    capture_attention,
    edit_attention,
    token_losses,
)
from llmprobe.capture import losses as module
from llmprobe.capture.losses import check_head, ending_losses

TOKENS = torch.randint(3, 97, (3, 40), generator=torch.Generator().manual_seed(0))
TOKENS = TOKENS.to(DEVICE)


def plain(model, tokens=TOKENS):
    """All logits at once."""
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[:, :-1].double()
    return -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


@pytest.fixture
def narrow(monkeypatch):
    """Slices of a few positions."""
    monkeypatch.setitem(module._SLICE, KIND, 7 * 3 * 97)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_in_slices_are_those_of_all_logits(family, narrow):
    model = tiny(family)
    found = token_losses(model, TOKENS)
    assert found.shape == (3, 39)
    torch.testing.assert_close(found.double(), plain(model), atol=1e-5, rtol=0)
    check_head(model, TOKENS)


@pytest.mark.parametrize("family", ["llama", "gemma2", "cohere", "granite"])
def test_the_mean_is_the_models_own_loss(family, narrow):
    model = tiny(family)
    with torch.no_grad():
        own = model(TOKENS, labels=TOKENS, use_cache=False).loss
    assert float(token_losses(model, TOKENS).mean()) == pytest.approx(float(own), abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 13, 39, 40, 64])
def test_chunks_over_a_cache_give_the_same(chunk, narrow):
    model = tiny("llama")
    found = token_losses(model, TOKENS, chunk=chunk)
    torch.testing.assert_close(found.double(), plain(model), atol=1e-5, rtol=0)


def test_the_head_sees_few_positions_at_a_time_and_the_layers_run_once(narrow):
    model, widths, forwards = tiny("llama"), [], []
    hooks = [
        model.lm_head.register_forward_hook(lambda m, args, out: widths.append(out.shape[1])),
        model.model.layers[0].register_forward_hook(lambda m, args, out: forwards.append(1)),
    ]
    try:
        token_losses(model, TOKENS)
    finally:
        for hook in hooks:
            hook.remove()
    assert max(widths) == 7
    assert sum(widths) == 39
    assert len(forwards) == 1


def test_a_capture_around_it_sees_one_forward(narrow):
    model = tiny("llama")
    with capture_attention(model, positions=-1) as seen:
        model(TOKENS, use_cache=False)
    with capture_attention(model, positions=-1) as both:
        found = token_losses(model, TOKENS)
    torch.testing.assert_close(both[1], seen[1])
    torch.testing.assert_close(found.double(), plain(model), atol=1e-5, rtol=0)


def test_nothing_stays_attached():
    model = tiny("llama")
    token_losses(model, TOKENS)
    assert "forward" not in model.model.__dict__


def test_bfloat16_logits_are_widened_before_the_softmax():
    model = tiny("llama", seed=1)
    half = type(model)(model.config).to(DEVICE, torch.bfloat16).eval()
    half.load_state_dict({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()})
    found = token_losses(half, TOKENS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), plain(half), atol=1e-5, rtol=0)


def test_a_model_without_a_head_is_refused_in_one_line():
    for base in (tiny("llama").model, tiny("gpt2").transformer):
        with pytest.raises(UnsupportedModelError, match="predicts no tokens"):
            token_losses(base, TOKENS)


def test_a_head_that_mixes_positions_is_refused_by_name(monkeypatch):
    model = tiny("llama", seed=2)

    def mix(head, args, output):
        return output + output.mean(1, keepdim=True)

    hook = model.lm_head.register_forward_hook(mix)
    try:
        with pytest.raises(UnsupportedModelError, match="head of LlamaForCausalLM gives other"):
            check_head(model, TOKENS)
    finally:
        hook.remove()


def test_one_token_has_no_loss():
    with pytest.raises(ValueError, match="tokens: got 1 in a prompt, accepted: 2 or more"):
        token_losses(tiny("llama"), TOKENS[:, :1])


# Jamba's state does not resume, and sparse attention chooses by the length of the whole prompt.
CACHED = [family for family in FAMILIES if family not in ("jamba", "glm_moe_dsa")]
SIZES = [(1, None), (9, 7), (38, 3), (39, None)]


@pytest.mark.parametrize(
    ("family", "n", "chunk"),
    [*((family, 9, None) for family in CACHED), *(("llama", *size) for size in SIZES)],
)
def test_endings_behind_a_kept_context_have_the_losses_of_the_whole(family, n, chunk):
    model = tiny(family)
    with torch.no_grad():
        again = ending_losses(model, TOKENS, n, chunk=chunk)
        first, second = again(), again()
    torch.testing.assert_close(first.double(), plain(model)[:, -n:], atol=1e-5, rtol=0)
    assert torch.equal(first, second)


def test_an_ending_runs_with_gradients_too():
    model = copy.deepcopy(tiny("llama")).requires_grad_()
    losses = ending_losses(model, TOKENS, 9)()
    assert losses.requires_grad
    torch.testing.assert_close(losses.detach().double(), plain(model)[:, -9:], atol=1e-5, rtol=0)


def test_an_edit_of_an_ending_leaves_its_context_alone():
    model = tiny("llama")
    with torch.no_grad():
        again = ending_losses(model, TOKENS, 9)
        before = again()
        with edit_attention(model, heads={0: [0]}, outputs=ablate()):
            edited = again()
            everywhere = token_losses(model, TOKENS)[:, -9:]
        after = again()
    assert torch.equal(before, after)
    assert not torch.allclose(edited, before)
    assert not torch.allclose(edited, everywhere)


@pytest.mark.parametrize("n", [0, -1, 40])
def test_an_ending_is_shorter_than_the_prompt(n):
    with pytest.raises(ValueError, match=f"n: got {n}, accepted: 1 to 39"):
        ending_losses(tiny("llama"), TOKENS, n)
