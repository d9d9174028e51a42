"""The command line as a shell sees it."""

import json
import subprocess
import sys

import pytest

import llmprobe


def run(*arguments):
    command = [sys.executable, "-m", "llmprobe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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


def test_an_error_is_one_line_unless_debugging(monkeypatch, capsys):
    from llmprobe import cli

    def fail():
        raise llmprobe.ResultFormatError("a line\nand another")

    monkeypatch.setattr("llmprobe.runtime.environment", fail)
    monkeypatch.setattr(sys, "argv", ["llmprobe", "env"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "llmprobe: a line and another\n"
    monkeypatch.setattr(sys, "argv", ["llmprobe", "--debug", "env"])
    with pytest.raises(llmprobe.ResultFormatError):
        cli.main()
