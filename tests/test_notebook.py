"""The notebook is clean as it is kept, runs from top to bottom, and any cell can be run again."""

import ast
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient

import llmprobe

NOTEBOOK = ROOT / "recipes" / "quickstart.ipynb"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotebookClient:
    """The notebook in a folder of its own, with figures as a reader sees them."""
    monkeypatch.delenv("MPLBACKEND")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    return NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources)


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cells, kind):
    """How many outputs of a kind (image/png, text/html) there are."""
    return sum(kind in output.get("data", {}) for cell in cells for output in cell.outputs)


def check_streams(cells):
    """A reader of the notebook meets no warning."""
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]


def test_the_notebook_is_valid_and_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}, "no version of somebody's Python"
    assert not any(cell.metadata for cell in notebook.cells)
    for cell in code_of(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None


def test_the_notebook_uses_public_names_only():
    sources = [cell.source for cell in code_of(nbformat.read(NOTEBOOK, as_version=4))]
    lines = [line for source in sources for line in source.splitlines()]
    tree = ast.parse("\n".join(line for line in lines if not line.startswith("%")))
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not [a.name for a in node.names if a.name.startswith("llmprobe.")]
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("llmprobe"):
            assert node.module == "llmprobe"
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")
    assert {"load_model", "capture_attention", "probe_variance", "train_synthetic"} <= set(names)
    assert set(names) <= set(llmprobe.__all__)


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(client, tmp_path):
    cells = code_of(client.execute())
    check_streams(cells)
    n_plots = sum(".plot(" in cell.source for cell in cells)
    assert shown(cells, "image/png") == n_plots > 3
    assert shown(cells, "text/html") > 3  # results and frames
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_every_cell_of_the_notebook_can_be_run_again_at_once(client):
    with client.setup_kernel():
        for index, cell in enumerate(client.nb.cells):
            if cell.cell_type == "code":
                for _ in range(2):
                    client.execute_cell(cell, index)
                check_streams([cell])
                assert shown([cell], "image/png") == (".plot(" in cell.source)
