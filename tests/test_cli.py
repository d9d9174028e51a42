"""The command line as a shell sees it: usage, version, errors."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

import llmprobe
from llmprobe import cli

MODULE = (sys.executable, "-m", "llmprobe")
SCRIPT = (Path(sys.executable).parent / "llmprobe",)


def run(program, *arguments):
    """As a shell would, in an interpreter of its own."""
    command = [*program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_module_gives_one_json_document():
    done = run(MODULE, "env", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["llmprobe"] == llmprobe.__version__


def test_the_installed_script_prints_its_version_and_ends_with_an_exit_code():
    done = run(SCRIPT, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"llmprobe {llmprobe.__version__}"
    assert run(SCRIPT, "nope").returncode == 2


def test_env_as_text(call):
    assert f"llmprobe        {llmprobe.__version__}" in call("env")[1]


def test_version_and_help(call):
    assert call("--version") == (0, f"llmprobe {llmprobe.__version__}\n", "")
    assert "env" in call("--help")[1]
    assert "Example" in call("env", "--help")[1]
    assert call()[0] == 2


def test_the_help_has_one_line_for_each_command_and_no_type_of_python(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    _, out, _ = call("--help")
    panels = out[out.index("Probe a model") :].splitlines()
    lines = [line.split()[1] for line in panels if line.startswith("│")]
    names = [command.name or command.callback.__name__ for command in cli.app.registered_commands]
    assert lines == [name.replace("_", "-") for name in names]
    for name in ("", *lines):
        assert not re.search(r"<(?:bool|str|Path|list)", call(*name.split(), "--help")[1]), name


def test_wrong_lengths_are_refused_before_torch_is_imported(run_python):
    script = """
import sys
sys.modules["torch"] = None
sys.argv = ["llmprobe", "variance", "builtin", "--lengths", "16-64"]
from llmprobe import cli
cli.main()
"""
    done = run_python(script)
    assert done.returncode == 1
    assert done.stderr.startswith("llmprobe: lengths: '16-64' is not understood; accepted: ")


@pytest.mark.parametrize("wrong", [["nope"], ["env", "--nope"], ["env", "extra"]])
def test_wrong_usage_is_one_line_and_exit_code_2(call, wrong):
    code, out, err = call(*wrong)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_reader_that_leaves_early_sees_no_traceback(tmp_path):
    script = f"{sys.executable} -m llmprobe variance --lengths 8,16 --output {tmp_path / 'o'}"
    done = subprocess.run(
        ["bash", "-c", f"{script} | head -1"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("odd"), "ValueError: odd (in tests.test_cli; --debug shows where)"),
        (FileNotFoundError("x is not there"), "x is not there"),
        (
            FileNotFoundError(2, "No such file", "a/b"),
            "a/b cannot be used (No such file); check it",
        ),
        (
            OSError(28, "No space left"),
            "OSError: [Errno 28] No space left (in tests.test_cli; --debug",
        ),
        (MemoryError("7 GiB"), "this does not fit the memory (7 GiB); ask for less"),
        (RuntimeError("can't allocate memory"), "this does not fit the memory (can't allocate"),
        (KeyError("x"), "KeyError: 'x' (in tests.test_cli; --debug shows where)"),
        (ValueError(""), "ValueError: (in tests.test_cli; --debug shows where)"),
        (llmprobe.ResultFormatError("\x1b[31m\u2028\udcff"), r"\x1b[31m \udcff"),
    ],
)
def test_what_was_not_foreseen_says_what_it_is_and_where(monkeypatch, call, error, line):
    def fail():
        raise error

    monkeypatch.setattr("llmprobe.base.machine.environment", fail)
    code, out, err = call("env")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith(f"llmprobe: {line}")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("n_prompts: got 1, accepted: 2 or more", "--n-prompts: got 1, accepted: 2 or more"),
        ("a is there; overwrite=True replaces it", "a is there; --overwrite replaces it"),
        ('NaN; try dtype="float32", or bos="no"', "NaN; try --dtype float32, or --bos no"),
        ("model: got 'x=True', text a=b", "model: got 'x=True', text a=b"),
    ],
)
def test_arguments_of_the_library_are_options_here(monkeypatch, call, said, shown):
    def fail():
        raise llmprobe.CheckpointError(said)

    monkeypatch.setattr("llmprobe.base.machine.environment", fail)
    assert call("env") == (1, "", f"llmprobe: {shown}\n")


def test_an_error_is_one_line_unless_debugging(monkeypatch, call):
    def fail():
        raise llmprobe.ResultFormatError("a line\nand another")

    monkeypatch.setattr("llmprobe.base.machine.environment", fail)
    assert call("env") == (1, "", "llmprobe: a line and another\n")
    monkeypatch.setattr(sys, "argv", ["llmprobe", "--debug", "env"])
    with pytest.raises(llmprobe.ResultFormatError):
        cli.main()
