"""Right answers and attention on the source equal whole matrices and plain forwards."""

import numpy as np
import pytest
import torch
from devices import DEVICE
from families import tiny
from ranks import run_ranks
from torch.nn import functional

from llmprobe import UnsupportedModelError, load_model, merge_results, probe_retrieval
from llmprobe.probes import retrieval as module
from llmprobe.probes.prompts import make_prompts

LENGTHS = (40, 64)


@pytest.fixture(scope="module")
def builtin():
    return load_model("builtin", attn_implementation="eager")


@pytest.mark.parametrize("kind", ["dictionary", "repeat"])
def test_answers_and_sources_are_those_of_whole_matrices(builtin, kind):
    result = probe_retrieval("builtin", LENGTHS, prompts=kind, n_prompts=8)
    prompts = make_prompts(
        kind,
        n_prompts=8,
        lengths=LENGTHS,
        vocab_size=len(builtin.tokenizer),
        tokenizer=builtin.tokenizer,
        bos_token_id=builtin.bos_token_id,
    )
    right, nats, sources, norms = [], [], [], []
    for length in LENGTHS:
        tokens, targets = prompts.batch(range(8), length), prompts.targets(range(8), length)
        heads = []

        def keep(projection, args, heads=heads):
            heads.append(args[0][:, -1].unflatten(-1, (6, -1)).norm(dim=-1))

        projections = [layer.self_attn.o_proj for layer in builtin.model.model.layers]
        hooks = [projection.register_forward_pre_hook(keep) for projection in projections]
        with torch.no_grad():
            out = builtin.model(tokens.to(DEVICE), output_attentions=True, use_cache=False)
        for hook in hooks:
            hook.remove()
        norms.append(torch.cat(heads, 1).cpu().numpy())
        logits = out.logits[:, -targets.shape[1] :].double().cpu()
        right.append((logits[:, -1].argmax(-1) == targets[:, -1]).numpy())
        found = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        nats.append(-found.mean(1).numpy())
        rows = torch.cat([weights[:, :, -1] for weights in out.attentions], dim=1).cpu()
        spans = prompts.sources(range(8), length).tolist()
        sources.append([rows[i, :, a:b].sum(-1).numpy() for i, (a, b) in enumerate(spans)])
    np.testing.assert_allclose(result.accuracy, np.mean(right, axis=1))
    np.testing.assert_allclose(result.answer_loss, np.mean(nats, axis=1), atol=1e-4)
    np.testing.assert_allclose(result.source, np.mean(sources, axis=1).T, atol=1e-6)
    np.testing.assert_allclose(result.norm, np.mean(norms, axis=1).T, rtol=1e-4)
    half = (result.source_high - result.source_low)[3, 1] / 2
    spread = np.std(np.array(sources)[1, :, 3], ddof=1)
    assert half == pytest.approx(2.3646242516 * spread / 8**0.5, rel=1e-3)


def test_the_source_of_a_dictionary_is_the_asked_value(builtin):
    prompts = make_prompts(
        "dictionary",
        n_prompts=6,
        lengths=(40, 200),
        vocab_size=len(builtin.tokenizer),
        tokenizer=builtin.tokenizer,
        bos_token_id=builtin.bos_token_id,
    )
    for length in (40, 200):
        tokens = prompts.batch(range(6), length)
        facts = prompts.facts(range(6), length)
        spans = prompts.sources(range(6), length).tolist()
        for row, (start, end) in zip(tokens, spans, strict=True):
            *lines, query = builtin.tokenizer.decode(row, skip_special_tokens=True).split("\n")
            value = builtin.tokenizer.decode(row[start:end])
            assert f"{query}{value}" in lines
        assert prompts.answers(range(6), length).tolist() == [
            int(row[start]) for row, (start, _) in zip(tokens, spans, strict=True)
        ]
        whole = [t.count("->") for t in builtin.tokenizer.batch_decode(tokens)]
        for n_pairs, n_arrows in zip(facts["n_pairs"], whole, strict=True):
            assert n_arrows - 2 <= n_pairs <= n_arrows - 1  # the query, and a pair that was cut
        assert all(0 < chance <= 1 for chance in facts["chance"])


def test_an_oracle_is_always_right_and_noise_is_right_by_chance(monkeypatch):
    """The oracle reads the passage at the beginning of the prompt."""
    run = module.last_logits

    def oracle(model, tokens, n):
        run(model, tokens, n)  # for the captures
        return 20 * functional.one_hot(tokens[:, 1 : n + 1], 97).float()

    monkeypatch.setattr(module, "last_logits", oracle)
    result = probe_retrieval(tiny("llama"), LENGTHS, prompts="repeat", n_prompts=8)
    assert result.accuracy.tolist() == [1, 1]
    assert result.accuracy_low[0] > 0.6
    assert (result.answer_loss < 1e-5).all()
    assert np.isnan(result.right_source).all()
    assert np.isnan(result.n_pairs).all()
    monkeypatch.setattr(module, "last_logits", run)
    noise = probe_retrieval(tiny("llama"), LENGTHS, prompts="repeat", n_prompts=64, layers=0)
    assert (noise.accuracy_low <= noise.chance).all()
    np.testing.assert_allclose(noise.chance, 1 / 97)


def probe(**options):
    return probe_retrieval("builtin", LENGTHS, **{"n_prompts": 6, "layers": [0, 2]} | options)


def same(a, b, **tolerance):
    for name in (*a.of_answers, *a.of_series, *a.by_length):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), **tolerance)


@pytest.mark.thorough
def test_batches_prompts_seeds_and_processes(tmp_path):
    whole = probe(output=tmp_path / "0")
    same(probe(batch_tokens=64), whole, atol=1e-5)
    probe(n_prompts=4, output=tmp_path / "more")
    same(probe(output=tmp_path / "more"), whole, atol=1e-5)
    probe(seed=1, output=tmp_path / "1")
    both = merge_results([tmp_path / "0", tmp_path / "1"], tmp_path / "both")
    assert both.n_prompts.min() == 12
    for rank in run_ranks([lambda: probe().source.tolist()] * 2):
        assert rank == whole.source.tolist()


def test_lengths_are_joined(tmp_path):
    for length in LENGTHS:
        probe_retrieval(
            "builtin", length, n_prompts=6, layers=[0, 2], output=tmp_path / f"{length}"
        )
    joined = merge_results([tmp_path / "64", tmp_path / "40"], tmp_path / "both")
    same(joined, probe(), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompts": "random"}, "got 'random', which ask nothing, accepted: dictionary, repeat"),
        ({"lengths": 8}, "lengths: got 8, too short for one pair"),
        ({"model": tiny("gpt2"), "prompts": "repeat", "lengths": 256}, "beyond the 128 positions"),
        ({"model": tiny("llama")}, "dictionary prompts need a tokenizer|tokenizer"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(options, said):
    with pytest.raises(ValueError, match=said):
        probe_retrieval(**{"model": "builtin", "lengths": LENGTHS, "n_prompts": 4} | options)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(UnsupportedModelError, match="LlamaModel predicts no tokens"):
        probe_retrieval(tiny("llama").model, LENGTHS, prompts="repeat", n_prompts=4)


def test_prompts_beyond_the_trained_context_are_noted():
    result = probe_retrieval(tiny("llama"), (64, 200), prompts="repeat", n_prompts=4, layers=0)
    assert any("beyond the context" in note for note in result.warnings)
