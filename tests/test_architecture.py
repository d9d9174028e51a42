"""The house rules: the folders are the architecture, in six rows, and everything has its place."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from checkout import ROOT
from house import ROWS, folder_of, row_of

PACKAGE = ROOT / "llmprobe"
HEAVY = {"torch", "transformers", "accelerate", "datasets", "peft"}
MODULES = sorted(
    str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".")
    for path in PACKAGE.rglob("*.py")
    if not path.name.startswith("__")
)
FOLDERS = sorted({module.split(".")[0] for module in MODULES})
MAP = (ROOT / "CONTRIBUTING.md").read_text()
LATER = {"commands", "cli"}
"""Folders whose functions may reach for heavy libraries, once it is clear what is wanted."""


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _own(tree: ast.AST) -> set[str]:
    """The project's modules that a module imports, anywhere in it."""
    return {name.removeprefix("llmprobe.") for name in _imports(tree)} & set(MODULES)


def test_the_picture_has_every_folder_once():
    assert sorted(folder for row in ROWS for folder in row) == FOLDERS


def test_the_first_screen_is_short():
    shown = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(shown) <= 12, sorted(path.name for path in shown)


@pytest.mark.parametrize("module", MODULES)
def test_a_folder_uses_those_below_it(module):
    for other in _own(_tree(module)):
        inside = folder_of(other) == folder_of(module)
        beside = {folder_of(other), folder_of(module)} == {"cli", "commands"} and module == "cli"
        assert inside or beside or row_of(other) < row_of(module), f"{module} imports {other}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_there_is_no_cycle_inside_afolder_of(folder):
    left = {m: _own(_tree(m)) for m in MODULES if folder_of(m) == folder}
    while left:
        done = [m for m, needs in left.items() if not needs & left.keys()]
        assert done, f"a cycle among {sorted(left)}"
        for module in done:
            del left[module]


def _reached(module: str) -> set[str]:
    """The project's modules that importing a module brings along."""
    found, queue = set(), [module]
    while queue:
        new = _own(_tree(queue.pop())) - found
        found |= new
        queue += new
    return found


@pytest.mark.parametrize("module", [m for m in MODULES if folder_of(m) in ("results", "errors")])
def test_results_reach_no_heavy_library(module):
    for reached in {module} | _reached(module):
        heavy = {name.split(".")[0] for name in _imports(_tree(reached))} & HEAVY
        assert not heavy, f"{module} reaches {heavy} by {reached}"


@pytest.mark.parametrize("module", [m for m in MODULES if folder_of(m) in LATER])
def test_the_command_line_imports_nothing_heavy_before_a_command_runs(module):
    now = ast.Module([n for n in _tree(module).body if not _runs_later(n)], [])
    assert not {name.split(".")[0] for name in _imports(now)} & HEAVY
    assert {folder_of(other) for other in _own(now)} <= LATER | {"errors"}


def _runs_later(node: ast.AST) -> bool:
    """A function's body, or what only a type checker reads."""
    return isinstance(node, ast.FunctionDef | ast.If)


def test_help_loads_nothing_heavy(run_python):
    script = (
        "import sys; sys.argv = ['llmprobe', '--help']\n"
        "from llmprobe.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code in (0, None), e.code\n"
        "print('loaded', *{'torch', 'transformers', 'matplotlib'} & set(sys.modules))"
    )
    done = run_python(script)
    assert done.stdout.splitlines()[-1] == "loaded", done.stdout + done.stderr


def test_no_public_name_is_a_module_name():
    import llmprobe

    assert not set(llmprobe.__all__) & {part for name in MODULES for part in name.split(".")}


def test_every_public_name_resolves():
    import llmprobe

    for name in llmprobe.__all__:
        assert getattr(llmprobe, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = llmprobe.nonsense


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_test_file_and_its_line_in_the_map(module):
    *folder, name = module.split(".")
    assert (ROOT / "tests" / Path(*folder) / f"test_{name}.py").is_file()
    folder = "".join(f"{name}/\n(?:.*\n)*? +" for name in folder)
    assert re.search(rf"\n  (?:  )?{folder}{name}\.py +\S", MAP), f"{module} is not in the map"


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_small_and_say_what_they_are_for(module):
    lines = (PACKAGE / f"{module.replace('.', '/')}.py").read_text().count("\n")
    assert lines <= 450
    assert ast.get_docstring(_tree(module))


def test_the_library_never_prints():
    for module in MODULES:
        calls = [n.func for n in ast.walk(_tree(module)) if isinstance(n, ast.Call)]
        assert not [f for f in calls if isinstance(f, ast.Name) and f.id == "print"], module
