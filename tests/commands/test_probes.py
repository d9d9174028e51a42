"""`check`, `variance` and `attention`."""

import json

import pytest
from conftest import ROOT
from families import tiny

import llmprobe

STORIES = ROOT.parent / "shared" / "data" / "stories260K"


@pytest.mark.skipif(not STORIES.is_dir(), reason="the shared data are not here")
def test_check_passes_every_line_on_a_real_model(call):
    code, out, err = call("check", STORIES)
    assert (code, err) == (0, "")
    assert out.startswith("stories260K: float32 on cpu, sdpa\n")
    lines = out.splitlines()[1:]
    assert len(lines) == 10
    assert all(line.startswith("ok ") for line in lines)
    document = json.loads(call("check", STORIES, "--length", "16", "--json")[1])
    assert document["passed"]
    assert document["model"]["context_length"] == 512


def test_check_of_a_model_that_is_not_there_is_one_line(call, tmp_path):
    for wrong in ("./nowhere", "no/such-model", tmp_path):
        code, out, err = call("check", wrong)
        assert (code, out) == (1, "")
        assert err.startswith(f"llmprobe: {wrong} ")
        assert len(err.splitlines()) == 1


def test_variance_prints_a_table_and_writes_the_result(call, tmp_path):
    target = tmp_path / "out"
    code, out, err = call("variance", "--lengths", "8..32", "--at", "heads", "--output", target)
    assert code == 0
    assert "one pass for all lengths" in err
    assert "95 % interval" in out
    assert "Of 6 heads" in out
    names = sorted(path.name for path in target.iterdir())
    figures = ["variance.pdf", "variance.png"]
    assert names == ["arrays.npz", "evidence.safetensors", "result.json", *figures]
    text = (target / "result.json").read_text()
    assert str(tmp_path) not in text
    code, out, err = call("variance", "--lengths", "8,16", "--output", target)
    assert (code, out) == (1, "")
    assert "lengths '8..32' (asked: '8,16')" in err
    assert "--overwrite" in err
    assert call("variance", "--lengths", "8,16", "--output", target, "--overwrite")[0] == 0
    assert llmprobe.load_result(target).lengths == (8, 16)


def test_json_is_one_document_on_stdout(call, tmp_path):
    for command in ("variance", "attention"):
        options = ("--lengths", "8,16", "--samples", 4, "--quiet", "--json")
        code, out, err = call(command, *options, "--output", tmp_path / command)
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["kind"] == command
        assert document["rows"][0]["n_prompts"] == 4


def test_a_dry_run_prints_the_plan_and_writes_nothing(call, tmp_path):
    code, out, _ = call("variance", "--dry-run", "--output", tmp_path / "out")
    assert code == 0
    assert "65,536 tokens" in out
    assert not (tmp_path / "out").exists()


@pytest.fixture
def places(tmp_path):
    """Files and folders to give wrongly."""
    (tmp_path / "short.txt").write_text("Only a few words.")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "thesis.txt").write_text("mine")
    return tmp_path


BAD = {
    "unknown model": ["./no-such-folder"],
    "hub id while offline": ["some/model"],
    "no model in the folder": ["{}/empty"],
    "text too short": ["--prompts", "text", "--text", "{}/short.txt"],
    "no text": ["--prompts", "text"],
    "text not there": ["--prompts", "text", "--text", "{}/nowhere.txt"],
    "data set not there": ["--prompts", "text", "--dataset", "{}/nowhere.jsonl"],
    "text and data set": ["--prompts", "text", "--text", "a", "--dataset", "b"],
    "one sample": ["--samples", "1"],
    "no samples": ["--samples", "0"],
    "layer 99": ["--layers", "99"],
    "layers": ["--layers", "first"],
    "backward layers": ["--layers", "4..2"],
    "component": ["--component", "1000000"],
    "negative component": ["--component", "-1"],
    "reference": ["--reference", "17"],
    "lengths": ["--lengths", "64..16"],
    "length 0": ["--lengths", "0"],
    "at": ["--at", "middle"],
    "prompts": ["--prompts", "poems"],
    "query": ["--query", "both"],
    "fixed dictionary": ["--prompts", "dictionary", "--query", "fixed"],
    "bos": ["--bos", "maybe"],
    "seed": ["--seed", "-1"],
    "device": ["--device", "gpu"],
    "dtype": ["--dtype", "int8"],
    "device and map": ["--device", "cpu", "--device-map", "auto"],
    "batch tokens": ["--batch-tokens", "-5"],
    "chunk": ["--chunk", "-5"],
    "revision of a folder": ["builtin", "--revision", "main"],
    "output exists": ["--output", "{}/here"],
    "output that cannot be": ["--output", "/proc/run"],
    "output below a file": ["--output", "{}/file/run"],
    "not a number": ["--samples", "many"],
    "unknown option": ["--sample", "3"],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(call, places, name):
    arguments = [argument.replace("{}", str(places)) for argument in BAD[name]]
    if "--output" not in arguments:
        arguments += ["--output", str(places / "out")]
    before = sorted(places.rglob("*"))
    code, out, err = call("variance", *arguments, "--quiet")
    assert code in (1, 2), (out, err)
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("llmprobe: ")
    assert sorted(places.rglob("*")) == before


def test_lengths_beyond_a_learned_table_are_one_line(call, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    code, _, err = call("variance", tmp_path / "gpt2", "--lengths", "16..256", "--quiet")
    assert code == 1
    assert "256 is beyond the 128 positions" in err
