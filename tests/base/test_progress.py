"""The one convention for progress."""

import io

import pytest
from rich.console import Console

from llmprobe.base import progress


def test_a_function_is_called_with_what_is_reported():
    seen = []
    with progress.reporting(lambda *step: seen.append(step)) as report:
        report("variance", 3, 10, "tokens")
    assert seen == [("variance", 3, 10, "tokens")]


@pytest.mark.parametrize("wanted", [True, False])
def test_off_a_terminal_nothing_is_shown(wanted, capfd):
    with progress.reporting(wanted) as report:
        report("work", 1, 3, "")
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_each_thing_has_its_bar(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with progress.reporting(True) as report:
        report("train", 5, 5, "loss 0.1")
        report("measure", 2, 4, "length 16")
    last = screen.getvalue()
    assert all(words in last for words in ("train", "5/5", "loss 0.1", "measure", "2/4"))


def test_no_word_of_a_bar_is_cut_in_80_columns(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with progress.reporting(True) as report:
        report("train layernorm 0-1", 50, 50, "loss 2.270, right 20.3%")
        report("measure layernorm 0-1", 24576, 24576, "length 32")
    shown = screen.getvalue()
    assert "…" not in shown
    for words in ("loss 2.270, right 20.3%", "measure layernorm 0-1", "24576/24576", "0:00:00"):
        assert words in shown


def test_anything_else_is_refused():
    with (
        pytest.raises(ValueError, match="progress: got 'yes', accepted: True, False or a function"),
        progress.reporting("yes"),
    ):
        pass
