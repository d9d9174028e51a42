"""The variance probe equals brute force, and finds the law that Proposition 1 promises."""

import copy
import random
import re

import brute
import numpy as np
import pytest
import torch
from families import no_positions, tiny

from llmprobe import OutOfMemoryError, fit_decay, load_model, probe_variance
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.texts import read_text

WORDS = ("the", "old", "man", "said", "that", "she", "had", "been", "by", "sea", ",", ".")


def check_columns(result, expected, rtol):
    for name, values in expected.items():
        np.testing.assert_allclose(
            getattr(result, name), values, rtol=rtol, atol=1e-14, err_msg=name
        )


@pytest.mark.parametrize("at", ["output", "heads"])
@pytest.mark.parametrize("query", ["free", "fixed"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_every_number_equals_brute_force_on_a_tiny_model(family, at, query):
    model, lengths = copy.deepcopy(tiny(family)).double(), (4, 9, 24)
    queries = {"query": query, "n_queries": 5 if query == "fixed" else None}
    try:
        result = probe_variance(
            model, lengths, layers=None, at=at, n_prompts=20, component=3, reference=9, **queries
        )
        prompts = make_prompts("random", n_prompts=20, lengths=lengths, vocab_size=97, **queries)
        x = brute.gather(model, prompts, lengths, at, left_padded=False)
    finally:
        model.float()
    # Eager functions compute their softmax in float32 even then.
    expected = brute.statistics(x, 3, 1, n_queries=len(prompts.query_tokens))
    check_columns(result, expected, rtol=1e-9 if family == "llama" else 1e-3)
    assert result.provenance.prompts_hash == prompts.digest()
    for name in ("total", "within")[: 1 + (query == "fixed")]:
        std = np.sqrt(expected[f"{name}_variance"])
        slopes = np.polyfit(np.log(lengths), np.log(std).T, 1)[0]
        np.testing.assert_allclose(getattr(result, f"slope_{name}"), slopes, rtol=1e-3)
    np.testing.assert_array_equal(result.slope, result.slope_total)


@pytest.fixture(scope="module")
def trained():
    return load_model("builtin", dtype="float64")


@pytest.mark.parametrize("at", ["output", "heads"])
@pytest.mark.parametrize("query", ["free", "fixed"])
@pytest.mark.parametrize("kind", ["random", "text"])
def test_every_number_equals_brute_force_on_a_trained_model(trained, kind, query, at, tmp_path):
    loaded, text = trained, None
    if kind == "text":
        text = tmp_path / "chapters.txt"
        text.write_text(" ".join(random.Random(0).choices(WORDS, k=5000)))
    result = probe_variance(
        loaded, "16..128", layers=None, at=at, prompts=kind, text=text, query=query, n_prompts=4
    )
    prompts = make_prompts(
        kind,
        n_prompts=4,
        lengths=result.lengths,
        tokenizer=loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        bos_token_id=loaded.bos_token_id,
        text=text and read_text(text),
        query=query,
    )
    # With text, the reference runs all lengths of a prompt in one batch, padded on the left.
    x = brute.gather(loaded.model, prompts, result.lengths, at, left_padded=kind == "text")
    check_columns(result, brute.statistics(x, 0, 0), rtol=1e-6)


def test_kept_values_of_features_are_those_of_the_first_prompts():
    model, lengths = tiny("llama"), (4, 9)
    result = probe_variance(model, lengths, layers=[0, 1], at="heads", n_prompts=20)
    prompts = make_prompts("random", n_prompts=20, lengths=lengths, vocab_size=97)
    x = brute.gather(model, prompts, lengths, "heads", left_padded=False)
    expected = x.transpose(2, 3, 1, 4, 0).reshape(8, 2, 8, 20)[:, :, :5]
    np.testing.assert_allclose(result.feature_values, expected, atol=1e-5)


def test_proposition_1_slope_is_minus_one_half_within_its_interval():
    result = probe_variance(
        no_positions(), "16..1024", at="heads", query="fixed", n_prompts=256, batch_tokens=65536
    )
    assert (np.abs(result.slope_within + 0.5) < 0.03).all()
    expected = fit_decay(result.lengths, [(n - 1) ** 0.5 / n for n in result.lengths]).slope
    np.testing.assert_allclose(result.slope_uniform, expected)
    assert (result.slope_within_low <= expected).all()
    assert (result.slope_within_high >= expected).all()
    assert (result.r2 > 0.98).all()
    assert "Of 4 heads, 4 are dispersing" in result.reading()


@pytest.mark.slow  # the interval's own coverage is in test_intervals
def test_the_interval_of_a_probe_covers_the_true_slope():
    """The query is the same in all prompts: of N tokens N − 1 vary, each with a weight of 1/N."""
    model, lengths = no_positions(n_heads=16, size=4, seed=1), (16, 32, 64, 128)
    truth = fit_decay(lengths, [(n - 1) ** 0.5 / n for n in lengths]).slope
    covered = []
    for seed in range(25):  # of sixteen heads each: 400 cases
        found = probe_variance(
            model, lengths, at="heads", query="fixed", n_prompts=64, seed=seed, batch_tokens=65536
        )
        low, high = found.slope_within_low, found.slope_within_high
        covered += ((low <= truth) & (truth <= high)).tolist()
    assert len(covered) == 400
    assert 0.92 <= np.mean(covered) <= 0.98, np.mean(covered)


def test_nonfinite_outputs_are_counted_and_the_rest_goes_on():
    model = tiny("llama", seed=8)

    def spoil(module, args, output):
        changed = output[0].clone()
        changed[0, -1, 3] = float("nan")
        return (changed, *output[1:])

    handle = model.model.layers[0].self_attn.register_forward_hook(spoil)
    result = probe_variance(model, (4, 8), n_prompts=20, batch_tokens=8)
    handle.remove()
    assert result.nonfinite.tolist() == [20]
    assert np.isfinite(result.std_median).all()
    assert any("NaN or infinity in layer 0" in warning for warning in result.warnings)


@pytest.mark.parametrize(("dtype", "warned"), [("bfloat16", True), ("float32", False)])
def test_features_that_vary_less_than_they_are_rounded_are_told(dtype, warned):
    """Heads that spread evenly over values with a mean: their variance goes, their mean stays."""
    model = no_positions(n_heads=4, size=8, seed=2).to(getattr(torch, dtype))
    embedding = model.get_input_embeddings().weight
    embedding.data += 30 * embedding.data.std()
    result = probe_variance(model, (16, 256), at="heads", n_prompts=20, batch_tokens=65536)
    told = [note for note in result.warnings if 'rounds them; use dtype="float32"' in note]
    assert len(told) == warned
    assert not warned or "layer 0: from" in told[0]
    assert all(note in result.to_document()["warnings"] for note in told)


def test_layers_with_a_window_have_a_slope_on_each_side_of_it():
    model = tiny("gemma2")  # layer 0 sees 4 tokens
    result = probe_variance(model, "2,4,8,16,32", layers=None, n_prompts=32)
    [note] = [note for note in result.warnings if "the window of" in note]
    assert note.startswith("layer 0: slope ")
    ends = [probe_variance(model, lengths, n_prompts=32).slope[0] for lengths in ("2,4", "8,16,32")]
    found = [float(x.replace("−", "-")) for x in re.findall(r"([+−]\d\.\d\d) \(95 % CI", note)]
    np.testing.assert_allclose(found, ends, atol=0.006)
    heads = probe_variance(model, "2,4,8,16", at="heads", n_prompts=32).warnings
    assert any("(median of 4) beyond the window of 4 tokens" in note for note in heads)
    assert not any("the window of" in n for n in probe_variance(model, "2,4,8").warnings)


def test_a_reference_beyond_training_is_told():
    near = probe_variance("builtin", (16, 300), n_prompts=16)
    far = probe_variance("builtin", (16, 300), n_prompts=16, reference=300)
    assert not [note for note in near.warnings if "reference" in note]
    assert any("reference length 300 is beyond the context of 256" in n for n in far.warnings)


def test_dictionaries_come_with_the_share_of_right_answers():
    loaded = load_model("builtin")
    result = probe_variance(loaded, "32,64", prompts="dictionary", n_prompts=4)
    assert len(result.accuracy) == 2
    assert all(0 <= share <= 1 for share in result.accuracy)
    options = {"n_prompts": 4, "lengths": (32, 64), "tokenizer": loaded.tokenizer}
    bos = loaded.bos_token_id if loaded.adds_bos else None
    prompts = make_prompts(
        "dictionary", **options, vocab_size=len(loaded.tokenizer), bos_token_id=bos
    )
    for length, chance in zip((32, 64), result.accuracy_chance, strict=True):
        shares = []
        answers = prompts.answers(range(4), length)
        for row, answer in zip(prompts.batch(range(4), length), answers, strict=True):
            _, *lines, _ = loaded.tokenizer.decode(row).split("\n")
            values = [prompts._pieces([x.split("->")[1]], after="\n")[0][0] for x in lines]
            shares.append(np.mean([value == answer for value in values]))
        # The first line may be cut: then it is no candidate, or it is one that is not seen here.
        assert chance == pytest.approx(np.mean(shares), abs=0.2)
    assert result.accuracy_chance[0] > result.accuracy_chance[1] > 0


def asked_for_answers(hook, lengths="32,64", **options):
    """A probe of dictionaries, with a hook behind which only the whole model comes."""
    loaded = load_model("builtin")
    handle = loaded.model.get_output_embeddings().register_forward_pre_hook(hook)
    try:
        return probe_variance(loaded, lengths, prompts="dictionary", n_prompts=4, **options)
    finally:
        handle.remove()


def test_answers_in_chunks_are_those_of_whole_prompts():
    expected = probe_variance("builtin", "32,64", prompts="dictionary", n_prompts=4)
    n_logits = []
    got = asked_for_answers(lambda module, args: n_logits.append(args[0].shape[1]), chunk=16)
    assert n_logits.count(1) == 32 // 16 + 64 // 16  # of a chunk's last token alone
    assert max(n_logits) < 16
    assert got.accuracy == expected.accuracy


@pytest.mark.parametrize("most", [200, 100])
def test_answers_go_in_halves_and_then_in_chunks_where_memory_runs_out(most):
    expected = probe_variance("builtin", "64,128", prompts="dictionary", n_prompts=4)
    loaded, seen = load_model("builtin"), []

    def check(module, args, kwargs):
        tokens = args[0] if args else kwargs["input_ids"]
        seen.append(tokens.numel())
        if tokens.numel() > most:
            raise torch.OutOfMemoryError("on purpose")

    handle = loaded.model.register_forward_pre_hook(check, with_kwargs=True)
    got = probe_variance(loaded, "64,128", prompts="dictionary", n_prompts=4)
    handle.remove()
    assert max(seen) > most
    assert got.accuracy == expected.accuracy


def test_answers_that_fit_in_no_way_are_said_with_the_length_and_what_helps(tmp_path):
    def run_out(module, args):
        if args[0].shape[1] == 1:  # not where the model is looked at before
            raise torch.OutOfMemoryError("on purpose")

    with pytest.raises(
        OutOfMemoryError,
        match=r"32 tokens.* MiB are free.*shorter lengths.*other prompts.*keeps what",
    ):
        asked_for_answers(run_out, output=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": "middle"}, "accepted: output, heads"),
        ({"n_prompts": 1}, "n_prompts: got 1, accepted: 2 or more"),
        ({"component": 10**6}, "accepted: 0 to 31"),
        ({"component": 8, "at": "heads"}, "accepted: 0 to 7"),
        ({"reference": 5}, "accepted: one of"),
        ({"layers": 99}, "no attention layer 99"),
        ({"query": "both"}, "query"),
        ({"prompts": "poems"}, "accepted"),
        ({"prompts": "text"}, "need a text"),
        ({"bos": "maybe"}, "accepted: auto, yes, no"),
        ({"text": "a", "dataset": "b"}, "only one"),
        ({"text": "a"}, "random prompts use no text"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"batch_tokens": -1}, "batch_tokens"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(options, said):
    with pytest.raises(ValueError, match=said):
        probe_variance(tiny("llama"), (4, 8), **options)
