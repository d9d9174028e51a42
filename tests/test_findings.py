"""Tables of the documents are what the saved results say, byte for byte."""

import importlib.util
import json
import shutil
import sys

import pytest
from checkout import ROOT

from llmprobe import load_result

FIGURES = ROOT / "figures"
pytestmark = pytest.mark.skipif(not FIGURES.is_dir(), reason="a source package has no figures")


@pytest.fixture(scope="module")
def tables():
    """The script as a module, with the modules next to it."""
    folder = ROOT / "docs" / "tables"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        spec = importlib.util.spec_from_file_location("documents", folder / "__main__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("name", ["README.md", "figures/README.md", "benchmarks/README.md"])
def test_a_document_has_the_tables_of_the_saved_results(name, tables):
    assert name in tables.DOCUMENTS
    text = (ROOT / name).read_text()
    assert "<!-- table: " in text
    assert tables.fill(text) == text, "run `make tables` and read what has changed"


def test_every_table_is_in_one_document(tables):
    text = "".join((ROOT / name).read_text() for name in tables.DOCUMENTS)
    for name in tables.TABLES:
        assert text.count(f"<!-- table: {name} -->\n") == 1, name


def test_a_changed_number_in_a_saved_result_changes_a_table(tables, tmp_path):
    folder = tmp_path / "figures" / "table_dictionary"
    shutil.copytree(FIGURES / "table_dictionary", folder)
    assert tables.TABLES["dictionary"](tmp_path) == tables.TABLES["dictionary"](ROOT)
    result = load_result(folder)
    accuracy = result.accuracy.copy()
    accuracy[1, :, 6] -= 0.01  # LayerNorm at 1,024 items
    changed = type(result)(**(vars(result) | {"accuracy": accuracy}))
    changed.save(tmp_path / "other" / "figures" / "table_dictionary")
    assert "+4.1 [+2.7, +5.5]" in tables.TABLES["dictionary"](ROOT)
    assert "+3.1 [+1.7, +4.5]" in tables.TABLES["dictionary"](tmp_path / "other")


def test_a_changed_benchmark_changes_a_table(tables, tmp_path):
    document = json.loads((ROOT / "benchmarks" / "baseline.json").read_text())
    document["findings"][0]["ratio"] *= 2
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "baseline.json").write_text(json.dumps(document))
    assert tables.TABLES["bench"](tmp_path) != tables.TABLES["bench"](ROOT)


def test_unknown_tables_and_open_ends_are_refused(tables):
    for text in ("<!-- table: nothing -->\n<!-- end -->\n", "<!-- table: dictionary -->\n"):
        with pytest.raises(ValueError, match="unknown or has no end"):
            tables.fill(text)


def test_lengths_become_ranges(tables):
    spans = sys.modules["cells"].spans
    assert spans((16, 32, 64, 1024), (64, 16, 1024)) == "16, 64 to 1,024"
    assert spans((16, 32), ()) == "–"
