"""Bad input to options, arguments, files and variables: one line that says what to do, no more."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest
from bad_files import bad_files
from bad_options import (
    BAD_BY_NAME,
    COMMANDS,
    PROBE,
    RIGHT,
    TOGETHER,
    TRAIN,
    bad_options,
    options_of,
)
from checkout import ROOT

from llmprobe import load_model, probe_attention, probe_variance, train_synthetic
from llmprobe.probes.variance import VarianceProbe

BUILTIN = ROOT / "llmprobe" / "capture" / "builtin"
ALL = [*bad_options(), *bad_files()]
CASES = dict(ALL)
VERBS = (
    "check choose compare convert copy correct download get give leave make name open remove run "
    "start try upgrade use"
)
WHAT_TO_DO = re.compile(rf"accepted|--help shows|needs --|; ({'|'.join(VERBS.split())})\b")
UNFORESEEN = re.compile(r"Traceback|--debug shows|invalid literal|\[Errno|object (is|has)|\x1b")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Results, texts and a model to give wrongly; tests have a copy of their own."""
    folder = tmp_path_factory.mktemp("stock")
    loaded, common = load_model("builtin"), {"n_prompts": 4, "layers": [0]}
    for name, seed in (("run", 0), ("other", 1)):
        probe_variance(loaded, "8,16", seed=seed, output=folder / name, **common)
    probe_attention(loaded, "8,16", output=folder / "attention", **common)
    training = {"steps": 4, "sets": 4, "lengths": "8", "batch": 4}
    train_synthetic(output=folder / "lab", **training)
    shutil.copytree(folder / "lab", folder / "half")
    for name in ("result.json", "arrays.npz"):
        (folder / "half" / name).unlink()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(VarianceProbe, "summarize", _stop)
        probe_variance(loaded, "8,16", output=folder / "begun", **common)
    shutil.copytree(folder / "run", folder / "same")
    shutil.copytree(folder / "run", folder / "bare")
    (folder / "bare" / "evidence.safetensors").unlink()
    shutil.copytree(BUILTIN, folder / "model")
    for name in ("empty", "here", "folder.png"):
        (folder / name).mkdir()
    (folder / "here" / "thesis.txt").write_text("mine")
    (folder / "file").write_text("")
    (folder / "short.txt").write_text("Only a few words.")
    (folder / "same.txt").write_text("a" * 5000)
    (folder / "long.txt").write_text("A text of a few words, and of a few more. " * 99)
    (folder / "link").symlink_to("nowhere")
    return folder


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def lay(stock, tmp_path, monkeypatch):
    """Lays out what a command names in a folder to work in; gives the folder and the command."""
    folder = tmp_path / "places"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def named(arguments: Iterable[str]) -> tuple[Path, list[str]]:
        words = [argument.replace("{}", str(folder)) for argument in arguments]
        for path in stock.iterdir():
            if any(word.startswith(str(folder / path.name)) for word in words):
                whole = path.is_dir() and not path.is_symlink()
                copy = shutil.copytree if whole else partial(shutil.copyfile, follow_symlinks=False)
                copy(path, folder / path.name)
        return folder, words

    return named


def state(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def check_refused(code: int, out: str, err: str, words: str) -> None:
    assert code in (1, 2), (out, err)
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("llmprobe: ")
    assert words in err
    assert WHAT_TO_DO.search(err), err
    assert not UNFORESEEN.search(err), err


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(call, lay, name):
    case = CASES[name]
    folder, words = lay(case.arguments)
    case.spoil(folder)
    before = state(folder)
    code, out, err = call(*words)
    check_refused(code, out, err, case.words)
    assert case.came in err
    assert state(folder) == before


GOES_ON = {
    "probe": ("variance", *PROBE, "--output", "{}/begun"),
    "training": ("train-synthetic", *TRAIN, "--output", "{}/half"),
    "more prompts": ("variance", *PROBE, "--output", "{}/run", "--n-prompts", "6"),
    "model": ("check", "{}/model"),
}


@pytest.mark.parametrize(
    "right",
    [*((command, *sum(RIGHT[command], ())) for command in COMMANDS), *GOES_ON.values()],
    ids=[*COMMANDS, *GOES_ON],
)
def test_what_the_cases_spoil_is_right_before(call, lay, right):
    code, out, err = call(*lay(right)[1])
    assert (code, err) == (0, "")
    assert out


def test_every_option_of_every_command_is_given_wrongly():
    assert RIGHT.keys() == TOGETHER.keys() == COMMANDS.keys()
    for command in COMMANDS:
        for option, (kind, *_) in options_of(command).items():
            known = {option, f"{command} {option}"} & BAD_BY_NAME.keys()
            assert kind is bool or known, f"{command} {option}: what is bad by its meaning?"
            if kind is bool:  # in the first command that has it
                assert any(name.endswith(f" --{option}=3") for name in CASES), option
            else:
                assert any(name.startswith(f"{command} {option} ") for name in CASES), option


def test_there_are_many_cases_and_no_two_of_one_name():
    assert len(CASES) == len(ALL)
    assert len(CASES) >= 170


LAUNCHED = [
    ({"WORLD_SIZE": "abc"}, "WORLD_SIZE: got 'abc', accepted: 1 to"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE: got ''"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE: got '0'"),
    ({"WORLD_SIZE": "-2"}, "WORLD_SIZE: got '-2'"),
    ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE: got '999"),
    ({"WORLD_SIZE": "2"}, "RANK: got nothing, accepted: 0 to 1; start with torchrun"),
    ({"WORLD_SIZE": "2", "RANK": "abc"}, "RANK: got 'abc'"),
    ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK: got '2', accepted: 0 to 1"),
    ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "-1"}, "LOCAL_RANK: got '-1'"),
    ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "65536"}, "MASTER_PORT: got '65536'"),
    ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "no host"}, "MASTER_ADDR: got 'no host'"),
]


@pytest.mark.parametrize("command", ["variance", "train-synthetic"])
@pytest.mark.parametrize(("variables", "words"), LAUNCHED)
def test_what_no_launcher_leaves_behind_is_one_line(
    call, lay, monkeypatch, variables, words, command
):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder, right = lay((command, *sum(RIGHT[command], ())))
    check_refused(*call(*right), words)
    assert not any(folder.iterdir())


TEXT = ("variance", *PROBE, "--prompts", "text", "--dataset", "{}/long.txt")
# Libraries read these when they are imported, so each takes an interpreter of its own.
VARIABLES = {
    "MPLBACKEND": ("nonsense", ("plot", "{}/run"), "MPLBACKEND: got 'nonsense'; unset it"),
    "HF_HOME": (os.devnull, TEXT, "check its files and the cache (HF_HOME)"),
    "HF_HUB_DOWNLOAD_TIMEOUT": ("soon", ("check",), "'soon' (in huggingface_hub.constants"),
    "TORCH_LOGS": ("nonsense", ("train-synthetic", *TRAIN), "nonsense"),
}
HARMLESS = {"COLUMNS": "wide", "TMPDIR": "nowhere", "HOME": "nowhere", "PYTHONIOENCODING": "ascii"}


def run(words: Iterable[str], variables: Mapping[str, str]) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "llmprobe", *words]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "name",
    # Each starts an interpreter: one stands for all, unless there is time.
    [pytest.param(n, marks=[pytest.mark.slow] if n != "TORCH_LOGS" else []) for n in VARIABLES],
)
def test_a_variable_that_a_library_refuses_is_one_line(lay, name):
    value, arguments, words = VARIABLES[name]
    folder, right = lay(arguments)
    before = state(folder)
    code, out, err = run(right, {name: value})
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("llmprobe: ")
    assert words in err
    assert state(folder) == before


@pytest.mark.slow  # starts an interpreter
def test_variables_that_matter_to_nobody_are_let_be(lay):
    folder, _ = lay(("{}/run", "{}/other"))
    (folder / "other").rename(folder / "é")
    code, out, err = run(("compare", "run", "é"), HARMLESS)
    assert (code, err) == (0, "")
    assert r"\xe9" in out
