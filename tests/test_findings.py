"""Tables of the documents are what the saved results say, byte for byte."""

import dataclasses
import importlib.util
import json
import re
import shutil
import sys

import numpy as np
import pytest
from checkout import ROOT
from legal_samples import make_legality_result
from mechanism_samples import make_mechanism_result
from samples import make_synthetic_result
from search_samples import make_set_search_result

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


@pytest.fixture
def runs(tmp_path):
    """A checkout with made-up results in the folders of the runs on norms."""
    sets = make_synthetic_result(2, lengths=(16, 1024))
    early = np.stack([0.5 * sets.accuracy], axis=2)
    parts = {
        "main": ("baseline", "layernorm", "standardize", "clipped", "adaptive"),
        "projected": ("outproj", "outproj+concatnorm", "outproj+layernorm"),
        "residual": ("residual", "residual+postnorm"),
    }
    made = {}
    for part, names in parts.items():
        take = [min(n, 1) for n in range(len(names))]
        arrays = {
            name: getattr(sets, name)[take]
            for name in (*sets.by_length, "loss", "diverged", "feature_values", "top_weights")
        }
        made[f"anchor_argmax_{part}"] = dataclasses.replace(
            sets, variants=names, score_steps=(100,), step_accuracy=early[take], **arrays
        )
    search = make_set_search_result(12)
    five = [0, 1, 2, 1, 3, 2]
    arrays = {name: getattr(search, name)[:, five] for name in (*search.by_length, "diverged")}
    names = ("layernorm", "headnorm", "concatnorm", "postnorm", "adaptive")
    made["norm_search_argmax"] = dataclasses.replace(search, variants=names, **arrays)
    made["why_larger_sets_fail_argmax"] = make_mechanism_result()
    legal = make_legality_result()
    places = ("nonorm", "prenorm", "postnorm", "subnorm", "nonorm+ema")
    take = [n % len(legal.variants) for n in range(5)]
    arrays = {
        name: getattr(legal, name)[take]
        for name in ("kl", "illegal_mass", "illegal_top1", "gap", "entropy", "loss", "diverged")
    }
    made["norm_place_decoders_othello_constant"] = dataclasses.replace(
        legal, variants=places, **arrays
    )
    for name, result in made.items():
        result.save(tmp_path / "figures" / name)
    return tmp_path, made


def test_a_claim_has_a_line_for_each_run_that_is_there(tables, runs):
    root, made = runs
    lines = tables.TABLES["claims"](root).splitlines()[2:]
    assert len(lines) == 1 + 2 + 1 + 4 + 1 + 1 + 1 + 1 + 2 + 1 + 3
    row = made["anchor_argmax_main"].compare_frame().query("variant == 'layernorm'").iloc[-1]
    effect = f"{100 * row.difference:+.1f} [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"
    (line,) = [line for line in lines if line.startswith("| LayerNorm") and "argmax, 8 s" in line][
        :1
    ]
    assert f"| {effect.replace('-', '−')} points | {row.verdict} |" in line
    assert tables.TABLES["claims"](root / "nothing").count("\n") == 2


def test_sections_on_norms_are_those_of_the_runs_that_are_there(tables, runs):
    root, made = runs
    text = tables.TABLES["norms"](root)
    assert text.count("\n### ") == len(made)
    for name, result in made.items():
        assert f"({name}.png)" in text
        assert f"{len(result.seeds)} " in text
    ours = 100 * made["anchor_argmax_main"].accuracy[0, :, 0].mean()
    assert f"| 16 | 98.6 | {ours:.1f} | " in text
    step = made["anchor_argmax_main"].step_frame().query("step == 100 and length == 1024").iloc[0]
    assert f"| 100 | {100 * step['mean']:.1f} | " in text
    assert "what repairs accuracy on larger sets" in text
    assert not re.search(r"^\|[-:|]+\|\n(?!\|)", text, re.MULTILINE)  # no table without rows
    assert tables.TABLES["norms"](root / "nothing") == ""
    recipes = sys.modules["front"].norm_recipes
    assert set(recipes(root / "figures")) == {
        *("anchor", "norm_search", "why_larger_sets_fail", "norm_place_decoders"),
    }
    assert recipes(root / "figures")["anchor"][1].startswith("argmax: `layernorm` ")
    assert recipes(root / "nothing") == {}


def test_unknown_tables_and_open_ends_are_refused(tables):
    for text in ("<!-- table: nothing -->\n<!-- end -->\n", "<!-- table: dictionary -->\n"):
        with pytest.raises(ValueError, match="unknown or has no end"):
            tables.fill(text)


def test_lengths_become_ranges(tables):
    spans = sys.modules["cells"].spans
    assert spans((16, 32, 64, 1024), (64, 16, 1024)) == "16, 64 to 1,024"
    assert spans((16, 32), ()) == "–"
