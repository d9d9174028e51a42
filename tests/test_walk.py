"""Through how many modules a call goes: `pytest tests/test_walk.py -s` prints the walk.

An edge is a call from a function of one module into a function of another, whatever library stands
between them. It goes up where the called module's folder is in a higher row of the house than the
caller's: a callback. What runs while a module is imported does not count.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

import pytest
import torch
from house import row_of

from llmprobe import capture_attention, cli, load_model, probe_variance


@dataclass
class Walk:
    modules: set[str] = field(default_factory=set)
    edges: set[tuple[str, str]] = field(default_factory=set)

    @property
    def upward(self) -> list[tuple[str, str]]:
        return sorted((a, b) for a, b in self.edges if row_of(b) > row_of(a))

    def __str__(self) -> str:
        lines = [f"{len(self.modules)} modules, {len(self.edges)} edges, {len(self.upward)} upward"]
        lines += [f"  {a} -> {b}  (up)" for a, b in self.upward]
        return "\n".join(lines + [f"  {module}" for module in sorted(self.modules)])


def module_of(frame: FrameType) -> str | None:
    """The module of ours that a frame runs a function of."""
    name = frame.f_globals.get("__name__", "")
    ours = name.startswith("llmprobe.") and frame.f_code.co_filename.endswith(".py")
    return name.removeprefix("llmprobe.") if ours else None


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: its body, a class's body, or what they call."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and module_of(frame) is not None:
            return True
        frame = frame.f_back
    return False


def walk(call: Callable[[], object]) -> Walk:
    seen = Walk()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (module := module_of(frame)) is None or importing(frame):
            return
        seen.modules.add(module)
        caller = frame.f_back
        while caller is not None and module_of(caller) is None:
            caller = caller.f_back
        if caller is not None and (other := module_of(caller)) != module:
            seen.edges.add((str(other), module))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


def test_a_capture_stays_in_its_folder():
    model = load_model("builtin").model

    def capture() -> None:
        with capture_attention(model, 0, positions=-1):
            model(torch.arange(8)[None])

    capture()  # discovery is once for a model
    seen = walk(capture)
    print(seen)
    assert {module.split(".")[0] for module in seen.modules} <= {"capture", "base"}
    assert len(seen.modules) <= 9
    assert not seen.upward


def test_a_probe_goes_through_few_modules_and_hardly_ever_up():
    loaded = load_model("builtin")
    seen = walk(lambda: probe_variance(loaded, "16..64", n_prompts=4))
    print(seen)
    assert len([module for module in seen.modules if row_of(module) > row_of("base")]) <= 26
    assert len(seen.upward) <= 1


def test_the_command_goes_through_few_modules_and_hardly_ever_up(monkeypatch, tmp_path, capsys):
    words = ["variance", "builtin", "--lengths", "16..64", "--n-prompts", "4", "--output"]
    monkeypatch.setattr(sys, "argv", ["llmprobe", *words, str(tmp_path / "run")])

    def command() -> None:
        with pytest.raises(SystemExit):
            cli.main()

    seen = walk(command)
    with capsys.disabled():
        print(f"\n{seen}")
    assert len(seen.upward) <= 4
