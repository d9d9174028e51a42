"""The command line as a shell sees it."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

import llmprobe
from llmprobe import cli

STORIES = ROOT.parent / "shared" / "data" / "stories260K"


def run(*arguments):
    """As a shell would, in an interpreter of its own."""
    command = [sys.executable, "-m", "llmprobe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.fixture
def call(monkeypatch, capsys):
    """The same in this process, which has the heavy libraries already: (code, stdout, stderr)."""

    def run_here(*arguments):
        monkeypatch.setattr(sys, "argv", ["llmprobe", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code or 0, *capsys.readouterr()

    return run_here


def test_env_as_text_and_as_one_json_document():
    done = run("env", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["llmprobe"] == llmprobe.__version__
    assert done.stderr == ""
    assert f"llmprobe        {llmprobe.__version__}" in run("env").stdout


def test_version_and_help():
    assert run("--version").stdout.strip() == f"llmprobe {llmprobe.__version__}"
    assert "env" in run("--help").stdout
    assert "Example" in run("env", "--help").stdout
    assert run().returncode == 2


@pytest.mark.parametrize("wrong", [["nope"], ["env", "--nope"], ["env", "extra"]])
def test_wrong_usage_is_one_line_and_exit_code_2(wrong):
    done = run(*wrong)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


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


def test_an_error_is_one_line_unless_debugging(monkeypatch, call):
    def fail():
        raise llmprobe.ResultFormatError("a line\nand another")

    monkeypatch.setattr("llmprobe.runtime.environment", fail)
    assert call("env") == (1, "", "llmprobe: a line and another\n")
    monkeypatch.setattr(sys, "argv", ["llmprobe", "--debug", "env"])
    with pytest.raises(llmprobe.ResultFormatError):
        cli.main()
