"""Losses by position and by context equal plain forwards, however prompts are cut into forwards."""

import numpy as np
import pytest
import torch
from checkout import ROOT
from devices import DEVICE
from families import tiny
from ranks import run_ranks

from llmprobe import UnsupportedModelError, load_model, merge_results, probe_loss
from llmprobe.probes import loss as module
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.texts import read_text

LENGTHS = (4, 9, 24)
STORIES = ROOT.parent / "shared/data/stories260K"


@pytest.fixture(scope="module")
def builtin():
    return load_model("builtin")


def plain(model, tokens):
    """Losses (prompts, tokens − 1) from all logits."""
    with torch.no_grad():
        logits = model(tokens.to(DEVICE), use_cache=False).logits[:, :-1].double().cpu()
    return -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0].numpy()


def windows(loaded, n_prompts, lengths=LENGTHS, seed=0):
    return make_prompts(
        "text",
        n_prompts=n_prompts,
        lengths=lengths,
        vocab_size=loaded.vocab_size,
        tokenizer=loaded.tokenizer,
        bos_token_id=loaded.bos_token_id,
        text=read_text("builtin"),
        seed=seed,
    )


def check_positions(result, losses):
    """Against the losses (prompts, tokens − 1) of the longest prompts."""
    for column, (start, end) in enumerate(zip((1, *LENGTHS), LENGTHS, strict=False)):
        means = losses[:, start - 1 : end - 1].mean(axis=1)
        assert result.loss[column] == pytest.approx(means.mean(), abs=1e-5)
        half = (result.loss_high - result.loss_low)[column] / 2
        t = 2.2621571628  # of 9 degrees of freedom
        assert half == pytest.approx(t * means.std(ddof=1) / 10**0.5, rel=1e-4)


def test_losses_by_position_are_those_of_a_plain_forward(builtin):
    result = probe_loss("builtin", LENGTHS, n_prompts=10)
    tokens = windows(builtin, 10).batch(range(10), 24)
    check_positions(result, plain(builtin.model, tokens))
    assert result.n_tokens.tolist() == [3, 5, 15]
    assert result.provenance.arguments["text"] == "builtin"
    with torch.no_grad():
        there = tokens.to(DEVICE)
        own = float(builtin.model(there, labels=there, use_cache=False).loss)
    assert (result.loss * result.n_tokens).sum() / 23 == pytest.approx(own, abs=1e-5)


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs the shared data")
def test_losses_of_a_trained_llama_are_its_own():
    loaded = load_model(STORIES)
    result = probe_loss(loaded, LENGTHS, prompts="random", n_prompts=10)
    prompts = make_prompts(
        "random",
        n_prompts=10,
        lengths=LENGTHS,
        vocab_size=min(loaded.vocab_size, len(loaded.tokenizer)),
        tokenizer=loaded.tokenizer,
        bos_token_id=loaded.bos_token_id if loaded.adds_bos else None,
    )
    check_positions(result, plain(loaded.model, prompts.batch(range(10), 24)))


@pytest.mark.parametrize("options", [{"batch_tokens": 24}, {"chunk": 7}, {"chunk": 5}])
def test_batches_and_chunks_do_not_matter(builtin, options):
    whole, cut = (
        probe_loss(builtin, LENGTHS, text="builtin", n_prompts=6, same_targets=3, **more)
        for more in ({}, options)
    )
    for name in whole.by_length:
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), atol=1e-5)


def test_bits_per_byte_are_bits_over_bytes_of_the_decoded_text(builtin):
    result = probe_loss("builtin", LENGTHS, n_prompts=10)
    tokens = windows(builtin, 10).batch(range(10), 24)
    nats = plain(builtin.model, tokens)[:, 8:].sum()
    decode = builtin.tokenizer.decode
    n_bytes = sum(len(decode(row[9:], skip_special_tokens=True).encode()) for row in tokens)
    assert result.bits_per_byte[-1] == pytest.approx(nats / np.log(2) / n_bytes, rel=1e-5)
    assert result.bits_per_byte_low[-1] < result.bits_per_byte[-1] < result.bits_per_byte_high[-1]


def test_without_a_tokenizer_there_are_no_bytes():
    result = probe_loss(tiny("llama"), LENGTHS, prompts="random", n_prompts=4)
    assert np.isnan(result.bits_per_byte).all()
    assert np.isfinite(result.loss).all()


def test_the_same_last_tokens_are_predicted_from_contexts_of_every_length(builtin, monkeypatch):
    monkeypatch.setattr(module, "KEY_GAIN", 0.3)
    monkeypatch.setattr(module, "KEY_LOSS", 4.0)
    result = probe_loss("builtin", LENGTHS, n_prompts=10, same_targets=3)
    tokens = windows(builtin, 10).batch(range(10), 24)
    bos = tokens[:, :1]
    losses = np.stack(
        [
            plain(builtin.model, torch.cat([bos, tokens[:, 24 - n + 1 :]], dim=1))[:, -3:]
            for n in LENGTHS
        ],
        axis=1,
    )
    np.testing.assert_allclose(result.context_loss, losses.mean(axis=(0, 2)), atol=1e-5)
    gain = (losses[:, :1] - losses).mean(axis=2)
    np.testing.assert_allclose(result.context_gain, gain.mean(axis=0), atol=1e-5)
    half = 2.2621571628 * gain.std(axis=0, ddof=1) / 10**0.5
    np.testing.assert_allclose(result.context_gain_high - result.context_gain, half, atol=1e-5)
    key = (losses[:, :1] - losses > 0.3) & (losses < 4)
    np.testing.assert_allclose(result.key_share, key.mean(axis=(0, 2)), atol=1e-12)
    assert key[:, -1].any()
    of_key = [losses[:, n][key[:, -1]].mean() for n in range(3)]
    np.testing.assert_allclose(result.key_loss, of_key, atol=1e-5)
    assert not result.key_share[0]


def test_losses_of_a_model_that_depends_on_the_length_are_of_the_longest_prompts():
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=8,
        rope_parameters=rope,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.2)
    result = probe_loss(model.to(DEVICE), LENGTHS, prompts="random", n_prompts=10)
    tokens = make_prompts("random", n_prompts=10, lengths=LENGTHS, vocab_size=97).batch(
        range(10), 24
    )
    check_positions(result, plain(model, tokens))
    assert any("are those in the longest prompts" in note for note in result.warnings)


def same(a, b, **tolerance):
    for name in a.by_length:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), **tolerance)


def probe(**options):
    return probe_loss("builtin", LENGTHS, **{"n_prompts": 6, "same_targets": 3} | options)


def test_a_stopped_run_resumes_to_the_bit(tmp_path, monkeypatch):
    whole, losses, calls = probe(batch_tokens=24), module.token_losses, []

    def stop(*args, **kwargs):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return losses(*args, **kwargs)

    monkeypatch.setattr(module, "token_losses", stop)
    with pytest.raises(KeyboardInterrupt):
        probe(batch_tokens=24, output=tmp_path / "run")
    assert any((tmp_path / "run").rglob("*.safetensors"))
    same(probe(batch_tokens=24, output=tmp_path / "run"), whole, rtol=0, atol=0)


@pytest.mark.thorough
def test_prompts_are_added_and_processes_share_them_to_the_bit(tmp_path):
    whole = probe(batch_tokens=24)
    probe(batch_tokens=24, n_prompts=4, output=tmp_path / "run")
    same(probe(batch_tokens=24, output=tmp_path / "run"), whole, rtol=1e-12)
    for ranks in run_ranks([lambda: probe(batch_tokens=24).loss.tolist()] * 2):
        assert ranks == whole.loss.tolist()


@pytest.mark.thorough
def test_seeds_and_lengths_are_joined(tmp_path):
    for name, lengths in (("short", (4, 9)), ("long", 24), ("all", LENGTHS)):
        probe_loss("builtin", lengths, n_prompts=6, output=tmp_path / name)
    found = merge_results([tmp_path / "long", tmp_path / "short"], tmp_path / "both")
    wanted = probe_loss("builtin", LENGTHS, n_prompts=6)
    same(found, wanted, atol=1e-5)
    probe_loss("builtin", LENGTHS, n_prompts=6, seed=1, output=tmp_path / "seed")
    seeds = merge_results([tmp_path / "all", tmp_path / "seed"], tmp_path / "seeds")
    assert seeds.n_prompts.tolist() == [12] * 3
    other = probe_loss("builtin", LENGTHS, n_prompts=6, seed=1)
    np.testing.assert_allclose(seeds.loss, (wanted.loss + other.loss) / 2, atol=1e-9)


def test_same_targets_of_other_lengths_are_other_tokens(tmp_path):
    for name, lengths in (("short", (4, 9)), ("long", 24)):
        probe_loss("builtin", lengths, n_prompts=6, same_targets=2, output=tmp_path / name)
    with pytest.raises(ValueError, match="merge: got results of different lengths"):
        merge_results([tmp_path / "short", tmp_path / "long"], tmp_path / "both")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"same_targets": 4}, "same_targets: got 4, accepted: fewer than the shortest length, 4"),
        ({"same_targets": 0}, "same_targets: got 0, accepted: 1 or more"),
        ({"lengths": (1, 4)}, "lengths: got 1, accepted: 2 or more tokens"),
        ({"prompts": "dictionary"}, "prompts: got 'dictionary', accepted: text, unigram"),
        ({"lengths": "16..128k"}, r"text: has \d+ tokens, but the longest length is 131072"),
        ({"model": tiny("llama")}, "prompts: text prompts need a text"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(options, said):
    with pytest.raises(ValueError, match=said):
        probe_loss(**{"model": "builtin", "lengths": LENGTHS, "n_prompts": 4} | options)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(UnsupportedModelError, match="LlamaModel predicts no tokens"):
        probe_loss(tiny("llama").model, LENGTHS, prompts="random", n_prompts=4)
