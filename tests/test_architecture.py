"""The house rules: who imports whom, what stays light, and that everything has its place."""

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "llmprobe"
ROWS = [
    {"errors", "runtime"},
    {"stats", "decay", "lengths", "storage", "plots", "rows", "prompts", "refusals"}
    | {"synthetic.layers", "synthetic.variants", "synthetic.averaging", "synthetic.optimizer"}
    | {"synthetic.othello", "synthetic.pairs"},
    {"results", "models", "discovery", "checkpoints", "texts"}
    | {"synthetic.tasks", "synthetic.softmaxes", "synthetic.decoder"}
    | {"synthetic.charts"},
    {"hooks", "queries", "workspace", "tallies"}
    | {"synthetic.network", "synthetic.complement", "synthetic.training", "synthetic.trials"}
    | {"synthetic.legal_charts", "synthetic.search_charts"},
    {"capture", "patterns", "evidence", "synthetic.planning", "synthetic.scoring"}
    | {"synthetic.outcomes", "synthetic.legality", "synthetic.findings"},
    {"checks", "sweeps", "kinds", "synthetic.evaluation", "synthetic.choices", "synthetic.tables"},
    {"preparing", "reports", "summaries", "synthetic.sets", "synthetic.search", "synthetic.runs"},
    {"units", "synthetic.lab"},
    {"probing", "dispersion", "synthetic.joining"},
    {"merging", "commands.options", "commands.showing"},
    {"commands.probes", "commands.saved", "commands.trainer", "commands.listing"},
    {"cli"},
]
"""Lower rows first. A module imports from rows below its own, and `errors` from anywhere."""
COMMANDS = {"cli"} | {module for row in ROWS for module in row if module.startswith("commands.")}
TORCH_FREE = {
    *{"errors", "lengths", "decay", "storage", "results", "kinds", "plots"},
    *{"synthetic.charts", "synthetic.legal_charts", "synthetic.search_charts"},
    *{
        "synthetic.pairs",
        "synthetic.trials",
        "synthetic.outcomes",
        "synthetic.legality",
        "synthetic.findings",
    },
    *COMMANDS,
}
HEAVY = {"torch", "transformers", "accelerate", "datasets", "peft"}
MODULES = sorted(
    str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".")
    for path in PACKAGE.rglob("*.py")
    if not path.name.startswith("__")
)


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
            if node.module == "llmprobe":
                names |= {f"llmprobe.{alias.name}" for alias in node.names}
    return names


def _own(tree: ast.AST) -> set[str]:
    """The project's modules that a module imports, anywhere in it."""
    found = {name.removeprefix("llmprobe.") for name in _imports(tree)}
    return found & set(MODULES)


def _row(module: str) -> int:
    return next(number for number, row in enumerate(ROWS) if module in row)


def test_the_table_has_every_module_once():
    assert sorted(module for row in ROWS for module in row) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_its_own_row_or_a_higher_one(module):
    for other in _own(_tree(module)):
        assert other == "errors" or _row(other) < _row(module), f"{module} imports {other}"


@pytest.mark.parametrize("module", sorted(TORCH_FREE))
def test_light_modules_reach_no_heavy_library(module):
    tree = _tree(module)
    # The command line may reach for them inside a command, when it is clear what is wanted.
    later = module in COMMANDS
    outside = ast.Module([n for n in tree.body if not (later and _runs_later(n))], [])
    assert not {name.split(".")[0] for name in _imports(outside)} & HEAVY
    assert _own(outside) <= TORCH_FREE


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
    readme = (ROOT / "README.md").read_text()
    assert re.search(rf"^ +{name}\.py +\S", readme, re.MULTILINE), f"{name}.py is not in the map"


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_small_and_say_what_they_are_for(module):
    tree = _tree(module)
    lines = (PACKAGE / f"{module.replace('.', '/')}.py").read_text().count("\n")
    assert lines <= 450
    assert ast.get_docstring(tree)


def test_the_library_never_prints():
    for module in MODULES:
        calls = [n.func for n in ast.walk(_tree(module)) if isinstance(n, ast.Call)]
        assert not [f for f in calls if isinstance(f, ast.Name) and f.id == "print"], module
