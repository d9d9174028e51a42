"""What the documents print is true: code runs as it stands, commands exist, links lead somewhere.

Every ```python and ```sh block and every `$ llmprobe ...` block of every document is run in a
folder with the checkout's recipes and figures, except for blocks with a comment on the line before
that says what they need:

    <!-- needs: gpu -->     <!-- needs: hub -->     <!-- needs: minutes -->

`make` and `pip install` are not run: their targets, extras and files are looked up.

Where output is printed, each line must be a line of the real output, in the same order. A line
`...` stands for any lines, and ` ...` at the end for the rest of a line. Lines are the same
(`same_shape`) if words and whole numbers are. Times and sizes may be any, and decimals may differ
in their last digits, because another machine sums in another order. A training amplifies that, so
estimates with intervals agree if each lies in the other's interval.
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from checkout import ROOT

DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        *ROOT.glob("*.md"),
        *sorted(ROOT.glob("docs/*.md")),
        *ROOT.glob("figures/README.md"),
        *ROOT.glob("benchmarks/README.md"),
    )
}
README = DOCUMENTS["README.md"]
FIGURES = ROOT.resolve() / "figures"
"""A source package has none."""
MAX_LINES, MAX_BYTES = 210, 13_000
"""Of README.md: people decide in half a minute."""
NEEDS = ("gpu", "hub", "minutes")
SLOW = ("llmprobe train-synthetic", "train_synthetic(", "torchrun")
"""What trains takes more than half a minute."""
RETIRED = {
    "goes on": "resumes, continues",
    "go on": "resume, continue",
    "gone on with": "resumed",
    "told": "reported",
    "beside": "next to, besides",
    "a pass a length": "one pass per length",
    "slip of the hand": "mistake",
    r"of (?:one's|its|their|your|his) own(?! \w)": "own, separate",
    "strangers?": "anybody, unknown",
    "levers?": "options",
    "what was asked for": "the request, the settings",
    "refuted": "reversed, undecided",
}
"""Words that few people understand at first reading, and what to write instead."""
_NUMBER = r"[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
_ESTIMATE = rf"({_NUMBER})(?: points)? \[({_NUMBER}), ({_NUMBER})\]"
_MEASURED = rf"{_NUMBER} (?:ms|s|min|h|KiB|MiB|GiB|[GTP]FLOP)\b"


@dataclass(frozen=True)
class Block:
    place: str
    """Document and line."""
    language: str
    text: str
    needs: str | None

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """What a shell is told, and the lines that are printed as its output."""
        text = self.text.replace("\\\n", " ")
        if self.language == "sh":
            lines = text.splitlines()
            return [(line, []) for line in lines if shlex.split(line, comments=True)]
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        return [(lines[0], lines[1:]) for lines in map(str.splitlines, parts)]


def find_blocks(name: str, text: str) -> list[Block]:
    """The fenced blocks, each with the line that opens it."""
    blocks = []
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for match in fence.finditer(text):
        above = text[: match.start()].splitlines()
        mark = re.fullmatch(r"<!-- needs: (.*) -->", above[-1]) if above else None
        blocks.append(
            Block(f"{name} {len(above) + 1}", match[1], match[2], mark[1] if mark else None)
        )
    return blocks


def same_shape(printed: str, real: str) -> bool:
    """Whether two lines differ in nothing but times, sizes and the last digits of decimals.

    A decimal may be off by a twentieth of itself or by five of its last digit, an estimate with its
    interval by what both intervals allow. Where the printed line ends in ` ...` the rest is not
    compared.
    """
    printed, real = (re.sub(_MEASURED, "<measured>", " ".join(x.split())) for x in (printed, real))
    if printed.endswith(" ..."):
        printed = printed.removesuffix(" ...")
        real = real[: len(printed)]
    if re.sub(_NUMBER, "#", printed) != re.sub(_NUMBER, "#", real):
        return False
    estimates = zip(re.findall(_ESTIMATE, printed), re.findall(_ESTIMATE, real), strict=True)
    printed, real = (re.sub(_ESTIMATE, "", line) for line in (printed, real))
    pairs = zip(re.findall(_NUMBER, printed), re.findall(_NUMBER, real), strict=True)
    return all(a == b or _near(a, b) for a, b in pairs) and all(
        _compatible(a, b) for a, b in estimates
    )


def _value(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def _compatible(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    (x, x_low, x_high), (y, y_low, y_high) = (map(_value, estimate) for estimate in (a, b))
    return x_low <= y <= x_high and y_low <= x <= y_high


def _near(a: str, b: str) -> bool:
    if "." not in a + b:
        return False
    digits = re.search(r"\.(\d*)(?:e(.*))?", a if "." in a else b)
    assert digits is not None
    last = 10.0 ** (int(digits[2] or 0) - len(digits[1]))
    x, y = _value(a), _value(b)
    return abs(x - y) <= max(0.05 * abs(x), 5.001 * last)


BLOCKS = [block for name, text in DOCUMENTS.items() for block in find_blocks(name, text)]
RUN = [block for block in BLOCKS if block.needs is None]


def _cases(pairs):
    """Parameters with readable names, and the mark of how long they take."""
    return [pytest.param(*case, marks=_marks(place, case[0]), id=place) for place, *case in pairs]


def _marks(place, what):
    if any(word in str(what) for word in SLOW):
        return [pytest.mark.slow]
    return [] if place.startswith("README.md") else [pytest.mark.thorough]


PROGRAMS = _cases((block.place, block.text) for block in RUN if block.language == "python")
COMMANDS = [
    (block.place, command, printed)
    for block in RUN
    if block.language in ("sh", "")
    for command, printed in block.commands
]
LOOKED_UP = ("make ", "pip install ")
_SHELL = [
    (block.place, [pair for pair in block.commands if not pair[0].startswith(LOOKED_UP)])
    for block in RUN
    if block.language in ("sh", "")
]
SHELL = _cases((place, commands) for place, commands in _SHELL if commands)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what a reader has in the checkout and commands may name."""
    for name in ("recipes", "figures"):
        if (ROOT / name).is_dir():  # a source package has no figures
            shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def run_in_a_shell(command: str, folder: Path) -> tuple[int, str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_python_in_the_documents_runs(program, folder, run_script, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "program.py").write_text(program)
    code, _, err = run_script(folder / "program.py")
    assert (code, "Warning" in err) == (0, False), err


@pytest.mark.parametrize("commands", SHELL)
def test_commands_in_the_documents_run_in_turn_and_print_what_is_printed(
    commands, folder, call, monkeypatch
):
    monkeypatch.chdir(folder)
    for command, printed in commands:
        program, *words = shlex.split(command, comments=True)
        # Other programs, and what only a shell understands, take a process of their own.
        here = program == "llmprobe" and not set("|&;<>$`*?~") & set("".join(words))
        code, out, err = call(*words) if here else run_in_a_shell(command, folder)
        assert code == 0, err
        missing = first_missing(printed, [*err.splitlines(), *out.splitlines()])
        assert missing is None, f"{missing!r} is not in {err}{out}"


def first_missing(printed: list[str], real: list[str]) -> str | None:
    """The first printed line that is not among the real ones, in their order."""
    left = iter(real)
    for line in printed:
        if line != "..." and not any(same_shape(line, other) for other in left):
            return line
    return None


@pytest.mark.parametrize("command", _cases(c[:2] for c in COMMANDS if c[1].startswith("make ")))
def test_a_target_in_the_documents_is_in_the_makefile(command):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(shlex.split(command, comments=True)[1:]) <= set(targets)


@pytest.mark.parametrize(
    "command", _cases(c[:2] for c in COMMANDS if c[1].startswith("pip install "))
)
def test_what_the_documents_install_is_there(command):
    words = shlex.split(command, comments=True)[2:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for option, value in pairwise(words):
        if option in ("-c", "-r"):
            assert (ROOT / value).is_file()
        if option == "-e":
            wanted = re.fullmatch(r"\.(?:\[([\w,]+)\])?", value)
            assert wanted, value
            assert set((wanted[1] or "").split(",")) - {""} <= set(extras)


def test_targets_named_in_the_text_are_in_the_makefile():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for text in DOCUMENTS.values():
        for words in re.findall(r"`make ([\w -]+)`", text):
            assert set(words.split()) <= set(targets), words


def test_marks_are_known_and_stand_before_a_block():
    assert {block.needs for block in BLOCKS} <= {None, *NEEDS}
    marks = sum(text.count("<!-- needs:") for text in DOCUMENTS.values())
    assert marks == sum(block.needs is not None for block in BLOCKS)


def test_every_shell_line_is_found():
    found = " ".join(command for block in BLOCKS for command, _ in block.commands)
    for text in DOCUMENTS.values():
        for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
            assert line.rstrip("\\").strip() in found
    n_python = sum(text.count("```python") for text in DOCUMENTS.values())
    assert sum(block.language == "python" for block in BLOCKS) == n_python
    assert len(PROGRAMS) > 2
    assert len(COMMANDS) > 4


def test_the_readme_is_short():
    assert README.count("\n") <= MAX_LINES
    assert len(README.encode()) <= MAX_BYTES


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_a_document_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+)", DOCUMENTS[name]):
        if target.startswith(("http://", "https://")):
            continue
        path = (ROOT / name).parent.joinpath(target).resolve()
        packaged = path.is_relative_to(FIGURES) and not FIGURES.is_dir()
        assert packaged or path.exists(), target


def retired_in(text: str) -> list[str]:
    """What a text has of `RETIRED`, with the words to write instead."""
    text = " ".join(text.split())
    return [
        f"{match[0]}: write {instead}"
        for phrase, instead in RETIRED.items()
        for match in re.finditer(rf"\b(?:{phrase})\b", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_in_plain_words(name):
    assert not retired_in(DOCUMENTS[name])


def test_docstrings_and_messages_are_in_plain_words():
    folders = ("llmprobe", "recipes", "docs")
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert not retired_in(node.value), place


def test_retired_words_are_found_across_lines_and_others_are_left_alone():
    assert len(retired_in("It goes\non beside it.")) == 2
    assert retired_in("a scale of its own.") == ["of its own: write own, separate"]
    assert not retired_in("the calls of its own thread, besides others")


SAMPLE = """text
<!-- needs: gpu -->
```sh
llmprobe variance \\
    some/model  # long
```

```
$ llmprobe env
llmprobe 0.1.0
more
```
"""


def test_blocks_have_their_marks_commands_and_output():
    first, second = find_blocks("a.md", SAMPLE)
    assert (first.place, first.language, first.needs) == ("a.md 3", "sh", "gpu")
    assert [shlex.split(c, comments=True) for c, _ in first.commands] == [
        ["llmprobe", "variance", "some/model"]
    ]
    assert (second.language, second.needs) == ("", None)
    assert second.commands == [("llmprobe env", ["llmprobe 0.1.0", "more"])]


@pytest.mark.parametrize(
    ("printed", "real", "same"),
    [
        ("64 prompts, slope -0.48", "64 prompts,  slope -0.47", True),
        ("64 prompts, slope -0.48", "63 prompts, slope -0.48", False),
        ("slope -0.48", "slope -0.20", False),
        ("slope -0.48", "slopes -0.48", False),
        ("about 0.1 TFLOP, 3 s and 132 MiB", "about 0.1 TFLOP, 2 min and 1.5 GiB", True),
        ("523,264 tokens", "523,265 tokens", False),
        ("at 4096: -3.6 [-5.5, -1.6]", "at 4096: -4.1 [-6.3, -1.8]", True),
        ("at 4096: -3.6 [-5.5, -1.6]", "at 4096: -1.5 [-3.9, +1.0]", False),
        ("mass +10.2 points [+9.9, +10.5]", "mass +9.0 points [+8.0, +11.0]", False),
        ("mass +10.2 points [+9.9, +10.5]", "loss +10.2 points [+9.9, +10.5]", False),
        ("ok 5.9e-06 worst", "ok 6.0e-06 worst", True),
        ("a b ...", "a b c d", True),
        ("...", "a b c d", False),
    ],
)
def test_lines_are_compared_but_for_times_and_last_digits(printed, real, same):
    assert same_shape(printed, real) == same


def test_output_is_looked_up_line_by_line_in_its_order():
    real = ["a 1.00", "b", "c d"]
    assert first_missing(["a 1.01", "...", "c ..."], real) is None
    assert first_missing(["b", "a 1.00"], real) == "a 1.00"
    assert first_missing(["a 2.00"], real) == "a 2.00"
    assert first_missing([], real) is None
