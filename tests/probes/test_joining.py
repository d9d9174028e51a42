"""Results that are joined, or to which prompts were added, are those of one run that did all."""

import copy

import numpy as np
import pytest
from cases import thorough
from families import tiny
from prompt_sets import ragged

from llmprobe import load_result, merge_results, probe_attention, probe_variance
from llmprobe.errors import CheckpointError, ResultExistsError
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.variance import VarianceTally

MODEL = copy.deepcopy(tiny("llama")).double()
COMMON = {"lengths": "4..32", "layers": None, "n_prompts": 20, "batch_tokens": 100}
PROBES = {
    "variance": lambda **more: probe_variance(MODEL, at="heads", **COMMON | more),
    "attention": lambda **more: probe_attention(MODEL, **COMMON | more),
    "own": lambda **more: probe_variance(MODEL, prompts=ragged(20), **COMMON | more),
    "rows": lambda **more: probe_attention(MODEL, prompts=ragged(20), **COMMON | more),
}
OWN = (PROBES["own"], PROBES["rows"])
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)


def check_numbers(a, b, *, rtol=1e-12):
    assert a.lengths == b.lengths
    for name in (*a.by_length, "n_prompts", *getattr(a, "by_series", ())):
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol / 10, err_msg=name
        )


@every_probe
@pytest.mark.parametrize("steps", [(16, 17, 20), *thorough((7, 20), (19, 20))])
def test_more_prompts_add_the_missing_prompts(probe, steps, tmp_path):
    whole = probe()
    for n_prompts in steps:
        advanced = []
        result = probe(
            n_prompts=n_prompts,
            output=tmp_path / "run",
            progress=lambda *step, advanced=advanced: advanced.append(step),
        )
    done, total = advanced[-1][1:3]
    assert done == total
    assert probe in OWN or total == 32 * (steps[-1] - steps[-2])
    check_numbers(result, whole)
    check_numbers(load_result(tmp_path / "run"), whole)
    assert result.warnings == whole.warnings
    kept = "feature_values" if result.kind == "variance" else "top"
    np.testing.assert_allclose(getattr(result, kept), getattr(whole, kept), rtol=1e-6)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"result.json", "arrays.npz", "evidence.safetensors"}
    assert not names & {"configuration.json", "checkpoints"}


def test_the_same_call_again_does_nothing_and_gives_the_same(tmp_path):
    first = PROBES["variance"](output=tmp_path / "run")
    stamp = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    advanced = []
    again = PROBES["variance"](
        output=tmp_path / "run", progress=lambda *step: advanced.append(step)
    )
    assert advanced == []
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == stamp
    check_numbers(first, again, rtol=0)


def test_what_prompts_cannot_be_added_to_is_refused_and_stays(tmp_path):
    run = tmp_path / "run"
    PROBES["variance"](output=run)
    before = (run / "result.json").read_bytes()
    with pytest.raises(CheckpointError, match="has 20 prompts, more than the 8"):
        PROBES["variance"](output=run, n_prompts=8)
    for other, said in (
        ({"seed": 1}, "seed 0"),
        ({"lengths": "4..16"}, r"lengths \[4, 8, 16, 32\]"),
        ({"lengths": "4..16", "n_prompts": 8}, r"lengths \[4, 8, 16, 32\]"),
    ):
        with pytest.raises(CheckpointError, match=said) as caught:
            PROBES["variance"](output=run, **{"n_prompts": 30} | other)
        assert "hash" not in str(caught.value)
    with pytest.raises(CheckpointError, match="kind 'variance'"):
        PROBES["attention"](output=run, n_prompts=30)
    weight = MODEL.model.layers[0].self_attn.v_proj.weight
    weight.data += 1e-3
    with pytest.raises(CheckpointError, match="model_hash"):
        PROBES["variance"](output=run, n_prompts=30)
    weight.data -= 1e-3
    assert (run / "result.json").read_bytes() == before
    (run / "evidence.safetensors").unlink()
    with pytest.raises(ResultExistsError, match="already there; use another folder"):
        PROBES["variance"](output=run, n_prompts=30)


@pytest.mark.parametrize("probe", [probe for probe in PROBES.values() if probe not in OWN])
def test_results_of_other_seeds_are_joined(probe, tmp_path):
    parts = [probe(seed=seed, output=tmp_path / str(seed)) for seed in (0, 1, 2)]
    joined = merge_results([tmp_path / "2", tmp_path / "0", tmp_path / "1"], tmp_path / "all")
    assert (joined.n_prompts == 60).all()
    assert joined.provenance.arguments["n_prompts"] == 60
    assert [part["seed"] for part in joined.provenance.arguments["merged"]] == [0, 1, 2]
    # A mean of means, as all have the same number of prompts.
    name = "global_mean" if joined.kind == "variance" else "entropy"
    means = np.mean([getattr(part, name) for part in parts], axis=0)
    np.testing.assert_allclose(getattr(joined, name), means, rtol=1e-9, atol=1e-13)
    check_numbers(load_result(tmp_path / "all"), joined, rtol=0)


def test_the_variance_of_joined_seeds_is_that_of_all_their_prompts(tmp_path):
    values = []
    for seed in (0, 1):
        result = probe_variance(MODEL, 8, n_prompts=20, seed=seed, output=tmp_path / str(seed))
        values.append(result.feature_values[0, 0])  # (features, prompts)
    joined = merge_results([tmp_path / "0", tmp_path / "1"], tmp_path / "all")
    together = np.concatenate(values, axis=1)
    np.testing.assert_array_equal(joined.feature_values[0, 0], together)
    expected = together[0].astype(np.float64).std(ddof=1)
    assert joined.component_std[0, 0] == pytest.approx(expected, rel=1e-6)


@every_probe
@pytest.mark.parametrize("query", ["free", *thorough("fixed")])
def test_results_at_other_lengths_are_joined(probe, query, tmp_path):
    for name, lengths in (("long", "16,32"), ("short", "4"), ("middle", "8")):
        probe(lengths=lengths, query=query, output=tmp_path / name)
    folders = [tmp_path / name for name in ("long", "short", "middle")]
    joined = merge_results(folders, tmp_path / "all")
    # Rows are float32 whatever the model is, and lengths that run alone take other kernels.
    whole = probe(query=query)
    check_numbers(joined, whole, rtol=1e-9 if joined.kind == "variance" else 1e-6)
    assert joined.provenance.prompts_hash == whole.provenance.prompts_hash
    assert joined.provenance.arguments == whole.provenance.arguments


def test_a_joined_result_is_joined_further(tmp_path):
    for seed in (0, 1, 2):
        PROBES["variance"](seed=seed, output=tmp_path / str(seed))
    merge_results([tmp_path / "0", tmp_path / "1"], tmp_path / "01")
    twice = merge_results([tmp_path / "01", tmp_path / "2"], tmp_path / "012")
    once = merge_results([tmp_path / n for n in "012"], tmp_path / "all")
    check_numbers(twice, once)
    assert (
        Evidence.read(tmp_path / "012", VarianceTally).parts
        == Evidence.read(tmp_path / "all", VarianceTally).parts
    )


def test_shares_of_right_answers_are_joined_too(tmp_path):
    options = {"prompts": "dictionary", "n_prompts": 4}
    for seed in (0, 1):
        probe_variance("builtin", "32,64", seed=seed, output=tmp_path / str(seed), **options)
    shares = [load_result(tmp_path / n).accuracy for n in "01"]
    joined = merge_results([tmp_path / "0", tmp_path / "1"], tmp_path / "all")
    assert joined.accuracy == pytest.approx(np.mean(shares, axis=0))


def test_what_does_not_fit_together_is_refused(tmp_path):
    made = {
        "a": {},
        "copy": {},
        "seed": {"seed": 1},
        "few": {"seed": 2, "n_prompts": 17},
        "short": {"lengths": "4,8", "seed": 3},
        "bos": {"seed": 4, "component": 1},
        "fixed": {"query": "fixed"},
        "fixed 1": {"query": "fixed", "seed": 1},
    }
    for name, options in made.items():
        PROBES["variance"](output=tmp_path / name, **options)
    PROBES["attention"](output=tmp_path / "attention")
    for others, said in (
        (["a"], "two or more different folders"),
        (["a", "a"], "two or more different folders"),
        (["a", "copy"], "seed 0 at length 4 is in two folders"),
        (["a", "short"], r"length 4 has 20 prompts of seed 0, 20 prompts of seed 3, length 16"),
        (["a", "bos"], r"component 1 \(asked: 0\)"),
        (["a", "attention"], "accepted: results of one kind"),
        (["fixed", "fixed 1"], "each seed draws its own query tokens"),
    ):
        with pytest.raises((ValueError, CheckpointError), match=said):
            merge_results([tmp_path / name for name in others], tmp_path / "all")
        assert not (tmp_path / "all").exists()
    merge_results([tmp_path / "a", tmp_path / "few"], tmp_path / "all")
    with pytest.raises(ResultExistsError):
        merge_results([tmp_path / "a", tmp_path / "seed"], tmp_path / "all")


def test_a_run_goes_on_however_its_lengths_and_layers_are_written(tmp_path):
    first = probe_variance(MODEL, "4..16", layers=None, n_prompts=8, output=tmp_path / "run")
    again = probe_variance(MODEL, [4, 8, 16], layers=[0, 1], n_prompts=12, output=tmp_path / "run")
    assert (first.n_prompts.min(), again.n_prompts.min()) == (8, 12)


def test_prompts_of_other_texts_of_the_same_name_are_not_joined(tmp_path):
    for seed, words in ((0, "The sea is wide and blue. "), (1, "A dog sat by the old door. ")):
        text = tmp_path / f"text-{seed}" / "book.txt"
        text.parent.mkdir()
        text.write_text(words * 99)
        options = {"prompts": "unigram", "text": text, "n_prompts": 4, "seed": seed}
        probe_variance("builtin", "8", output=tmp_path / str(seed), **options)
    with pytest.raises(CheckpointError, match="text_hash"):
        merge_results([tmp_path / "0", tmp_path / "1"], tmp_path / "both")
