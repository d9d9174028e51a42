"""What a probe has seen stays beside its result, to the bit, and only whole."""

import json
import shutil
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from cases import thorough
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from llmprobe import probe_attention, probe_variance
from llmprobe.errors import CheckpointError
from llmprobe.probes.attention import AttentionProbe
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.variance import VarianceProbe
from llmprobe.results.opening import load_result
from llmprobe.runs.folder import EVIDENCE

PROBES = {
    "variance": probe_variance,
    "heads": partial(probe_variance, at="heads"),
    "attention": probe_attention,
}


KINDS = {"variance": VarianceProbe, "attention": AttentionProbe}


def read(folder):
    """The evidence in a folder, by the kind of the result that it was written with."""
    with safe_open(folder / EVIDENCE, framework="pt") as file:
        names = file.keys()
    kind = "attention" if any("/entropy/" in name for name in names) else "variance"
    return Evidence.read(folder, KINDS[kind].tally)


def summarize(evidence):
    return KINDS[evidence.kind].summarize(evidence)


@pytest.fixture(scope="module", params=PROBES)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    PROBES[request.param]("builtin", "4..16", layers=[0, 2], n_prompts=20, output=folder)
    return folder


@pytest.fixture(scope="module")
def evidence(folder):
    """For tests that change nothing in it."""
    return read(folder)


def test_what_was_written_is_read_to_the_bit(folder, tmp_path):
    first = read(folder)
    first.write(tmp_path)
    again = read(tmp_path)
    assert again.configuration == first.configuration
    assert (again.lengths, again.n_prompts) == ((4, 8, 16), 20)
    for length, tally in first.tallies.items():
        mine, theirs = tally.state(), again.tallies[length].state()
        assert mine.keys() == theirs.keys()
        assert all((mine[name] == theirs[name]).all() for name in mine)


def test_counts_are_kept_by_feature_only_where_they_differ(folder, tmp_path):
    def n_counts(where):
        tensors = load_file(where / EVIDENCE)
        return sum(x.size > 1 for name, x in tensors.items() if name.endswith("/count"))

    evidence = read(folder)
    assert n_counts(folder) == 0
    tally = evidence.tallies[8]
    next(iter(tally.moments.values())).count[..., 1:] += 5
    evidence.write(tmp_path)
    assert n_counts(tmp_path) == 1
    again = read(tmp_path).tallies[8].state()
    assert all((again[name] == value).all() for name, value in tally.state().items())


def test_the_result_follows_from_the_evidence_alone(folder):
    from_evidence, saved = summarize(read(folder)), load_result(folder)
    assert str(from_evidence.to_document()) == str(saved.to_document())


def test_it_names_no_path(folder):
    with safe_open(folder / EVIDENCE, framework="pt") as file:
        assert str(folder.parent) not in json.dumps(file.metadata())


def forge_facts(path, **changes):
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["llmprobe"])
    facts = {k: v for k, v in (facts | changes).items() if v is not None}
    save_file(load_file(path), path, metadata={"llmprobe": json.dumps(facts)})


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": None},
        {"layers": [{"layer": 0}]},
        {"lengths": [5]},
        {"lengths": "x"},
        {"parts": [[1]]},
        {"provenance": {"user": "somebody"}},
        {"run": 3},
    ],
)
def test_forged_facts_are_refused(folder, tmp_path, changes):
    shutil.copy(folder / EVIDENCE, tmp_path)
    forge_facts(tmp_path / EVIDENCE, **changes)
    with pytest.raises(CheckpointError, match="is not evidence that llmprobe wrote"):
        read(tmp_path)


@pytest.mark.parametrize("forge", [lambda n: 30_000_000, lambda n: None, float])
@pytest.mark.parametrize("name", ["n_heads", *thorough("n_kv_heads", "head_size", "hidden_size")])
def test_sizes_of_layers_are_those_of_the_arrays(folder, evidence, tmp_path, name, forge):
    shutil.copy(folder / EVIDENCE, tmp_path)
    heads = evidence.provenance.arguments.get("at", "heads") == "heads"
    used = {"n_heads", "head_size"} if heads else {"hidden_size"}
    used |= {"n_kv_heads"} if evidence.kind == "attention" else set()
    first, second = (asdict(layer) for layer in evidence.layers)
    forge_facts(tmp_path / EVIDENCE, layers=[first, second | {name: forge(second[name])}])
    if name in used:
        with pytest.raises(CheckpointError, match="is not evidence that llmprobe wrote"):
            read(tmp_path)
    else:  # nothing is made of it
        assert str(summarize(read(tmp_path))) == str(summarize(evidence))


def test_evidence_of_another_kind_is_refused(folder, tmp_path):
    shutil.copy(folder / EVIDENCE, tmp_path)
    forge_facts(tmp_path / EVIDENCE, kind="poetry")
    with pytest.raises(CheckpointError, match="holds another run: kind 'poetry'"):
        read(tmp_path)


def test_a_layer_is_there_once(folder, evidence, tmp_path):
    shutil.copy(folder / EVIDENCE, tmp_path)
    forge_facts(tmp_path / EVIDENCE, layers=[asdict(evidence.layers[0])] * 2)
    with pytest.raises(CheckpointError, match="is not evidence that llmprobe wrote"):
        read(tmp_path)


@pytest.mark.parametrize("forge", [lambda x: x[..., :3], lambda x: x[0], np.float32])
def test_forged_arrays_are_refused(folder, tmp_path, forge):
    shutil.copy(folder / EVIDENCE, tmp_path)
    path = tmp_path / EVIDENCE
    with safe_open(path, framework="pt") as file:
        metadata = {"llmprobe": file.metadata()["llmprobe"]}  # without the checksum
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("/mean"))
    tensors[name] = np.ascontiguousarray(forge(tensors[name]))
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(CheckpointError, match="is not evidence that llmprobe wrote"):
        read(tmp_path)


def test_cut_short_or_not_there_is_said(folder, tmp_path):
    with pytest.raises(CheckpointError, match=f"has no {EVIDENCE}"):
        Evidence.read(tmp_path, VarianceProbe.tally)
    shutil.copy(folder / EVIDENCE, tmp_path)
    path = tmp_path / EVIDENCE
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        Evidence.read(tmp_path, VarianceProbe.tally)
