"""Opening a saved result: of every kind, of older and newer versions, for ever.

`tests/data/results/schema-N/KIND` holds one small folder of each kind and each schema that was ever
written. They are never made again: whatever changes, they have to open. For a new schema or a new
kind a folder is added.
"""

import dataclasses
import json
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import iter_modules
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np
import pytest
from checkout import ROOT
from checkout import shown_text as text
from samples import check_same, make_variance_result

import llmprobe.results
from llmprobe import ResultFormatError, VarianceResult, load_result
from llmprobe.results import opening
from llmprobe.results.base import SCHEMA, Result, missing_as_nan
from llmprobe.results.opening import known_kinds, unfinished
from llmprobe.results.series import Array

KEPT = ROOT / "tests" / "data" / "results"
FOLDERS = sorted(path.parent for path in KEPT.glob("**/result.json"))
PUBLISHED = sorted(path.parent for path in ROOT.glob("figures/**/result.json"))


def name_of(folder: Path) -> str:
    return str(folder.relative_to(ROOT))


def test_every_kind_is_known_by_the_module_it_is_in():
    modules = {
        f"llmprobe.results.{module.name}" for module in iter_modules(llmprobe.results.__path__)
    }
    assert {kind.__module__ for kind in known_kinds().values()} <= modules
    assert known_kinds().keys() == {
        *("variance", "attention", "loss", "retrieval", "remedy", "ablation"),
        *("synthetic", "legality", "answers", "search", "set-search", "mechanism"),
    }
    assert all(
        issubclass(kind, Result) and kind.kind == name for name, kind in known_kinds().items()
    )


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    result = make_variance_result()
    check_same(load_result(result.save(tmp_path / "run")), result)


def test_a_folder_of_each_kind_and_schema_is_kept():
    found = {(folder.parent.name, folder.name) for folder in FOLDERS}
    wanted = {(f"schema-{n}", kind) for n in range(1, SCHEMA + 1) for kind in known_kinds()}
    assert found == wanted


def check_everything(folder: Path) -> None:
    """It opens; its frames, its table, its words and all its figures can be made.

    Figures are laid out only in the tests of figures: that takes seconds for a large one.
    """
    result = load_result(folder)
    frames = [name for name in dir(result) if name.endswith("_frame") and name[0] != "_"]
    assert "to_frame" in frames
    assert all(len(getattr(result, name)().columns) for name in frames)
    assert len(result.to_frame())
    assert text(result.table())
    assert result.headline()
    assert json.dumps(result.to_document(), allow_nan=False)
    for kind in result.plots:
        try:
            result.plot(kind)
        except ValueError as error:
            # Not of every model, and not of every version.
            known = ("does not show its values", "is older than these columns")
            assert any(reason in str(error) for reason in known)  # noqa: PT017
            continue
        plt.close("all")


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_kept_folder_opens_and_shows_all_it_has(folder):
    check_everything(folder)


@pytest.mark.slow  # those above have every figure of every kind; here are thousands of lines
@pytest.mark.parametrize("folder", PUBLISHED, ids=name_of)
def test_a_published_result_opens_and_shows_all_it_has(folder):
    check_everything(folder)


@pytest.mark.parametrize("folder", PUBLISHED, ids=name_of)
def test_a_published_result_opens_as_what_its_folder_says(folder):
    result = load_result(folder)
    document = json.loads((folder / "result.json").read_text())
    assert result.kind == document["kind"]
    assert len(result.to_frame()) > 0
    assert text(result.table())


OPEN_ALL = """
import sys
from llmprobe import load_result
for folder in sys.argv[1:]:
    result = load_result(folder)
    result.plot()
    result.to_document()
    print(result.kind, 'torch' in sys.modules)
"""


def test_every_kind_opens_and_draws_without_torch(run_python):
    done = run_python(OPEN_ALL, *FOLDERS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{folder.name} False" for folder in FOLDERS]


def test_a_result_opens_without_the_modules_of_other_kinds(run_python):
    script = (
        "import sys\n"
        "from llmprobe import load_result\n"
        "kind = type(load_result(sys.argv[1]))\n"
        "modules = {k.__module__ for k in kind.kinds.values()}\n"
        "print(kind.kind, *(modules - {c.__module__ for c in kind.__mro__}))"
    )
    for folder in FOLDERS:
        if folder.name != "synthetic":  # its module is `accuracy`, which is found by importing all
            assert run_python(script, folder).stdout.split() == [folder.name]


@pytest.mark.parametrize(
    ("kind", "headline", "numbers"),
    [
        (
            "variance",
            "variance of toy: 4 heads, lengths 16..256, 64 prompts, median slope −0.50",
            {"std_median": 0.283494051038268, "vector_drift": 0.4858353588317891},
        ),
        (
            "attention",
            "attention of toy: 4 heads, lengths 16..256, 64 prompts",
            {"effective": 1.7411011265922482, "predicted_variance": 0.5743491774985175},
        ),
        (
            "remedy",
            "remedies for toy: of 3 at 2 doses, restore helps at 65 to 256 tokens, 16 prompts",
            {"baseline": 4.0, "change": 0.0},
        ),
        (
            "synthetic",
            "synthetic argmax: 2 variants, lengths 16..2048, 3 seeds",
            {"accuracy": 0.9994346730075169, "global_variance": 0.8985364229066641},
        ),
        (
            "legality",
            "legality set-complement: 2 variants, 1..12 tokens (trained to 3), 3 seeds",
            {"kl": 0.01720449663705196, "gap": 8.32656955282881},
        ),
        (
            "search",
            "search set-complement: 8 settings, 4..16 tokens (trained to 8)",
            {"learning_rate": 0.0018789852661499486, "kl": 0.03233326721381638},
        ),
        (
            "mechanism",
            "mechanism argmax: 2 variants, lengths 16..64, 4 seeds",
            {"accuracy": 0.65, "logit_gap": 0.002514604421867866},
        ),
        (
            "set-search",
            "set-search argmax: 8 settings, to 256 times the training length",
            {"n_steps": 7054, "accuracy": 0.8737484612680583},
        ),
    ],
)
def test_a_kept_folder_has_its_numbers(kind, headline, numbers):
    result = load_result(KEPT / "schema-1" / kind)
    assert result.headline().startswith(headline)
    assert result.to_frame().iloc[0][list(numbers)].to_dict() == pytest.approx(numbers, rel=1e-12)
    assert result.warnings == ("few prompts",)
    assert result.provenance.created == "2026-01-01T00:00:00+00:00"


@pytest.fixture
def newer(monkeypatch):
    """The variance result of a later version, which has a column, a text and a vector more."""
    monkeypatch.setattr(Result, "kinds", dict(Result.kinds))

    @dataclass(frozen=True, kw_only=True, eq=False, repr=False)
    class Newer(VarianceResult, kind="variance"):
        by_length: ClassVar[tuple[str, ...]] = (*VarianceResult.by_length, "excess")
        excess: Array = missing_as_nan("layer_type", "lengths")
        weight: Array = missing_as_nan("layer_type")
        unit: str = "tokens"

    return Newer


def test_a_folder_without_a_newer_column_opens_with_nan(newer):
    folder = KEPT / "schema-1" / "variance"
    result = load_result(folder)
    assert type(result) is newer
    frame = result.to_frame()
    assert frame.excess.isna().all()
    assert frame.excess.dtype == np.float64
    assert (result.weight.shape, result.unit) == ((4,), "tokens")
    assert result.to_document()["rows"][0]["excess"] is None
    assert frame.columns[-1] == "excess"
    check_everything(folder)


def test_a_newer_column_is_kept_where_it_is_there(newer, tmp_path):
    old = make_variance_result()
    values = {field.name: getattr(old, field.name) for field in fields(old)}
    result = newer(**values, excess=np.ones((6, 3)))
    folder = result.save(tmp_path / "run")
    check_same(load_result(folder), result)
    with pytest.raises(ValueError, match="excess has shape"):
        newer(**values, excess=np.ones((6, 2)))


def test_a_folder_of_a_newer_version_says_to_upgrade(newer, tmp_path, monkeypatch):
    old = make_variance_result()
    values = {field.name: getattr(old, field.name) for field in fields(old)}
    folder = newer(**values).save(tmp_path / "run")
    monkeypatch.setitem(Result.kinds, "variance", VarianceResult)
    said = r"variance result has excess, unit, weight, which .*; upgrade llmprobe to open it$"
    with pytest.raises(ResultFormatError, match=said) as caught:
        load_result(folder)
    assert "\n" not in str(caught.value)


def rewrite(folder, change):
    document = json.loads((folder / "result.json").read_text())
    change(document)
    (folder / "result.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["fields"].pop("reference"), "variance result lacks reference; copy or make"),
        (lambda d: d["fields"].pop("warnings"), "variance result lacks warnings; copy or make"),
        (lambda d: d["arrays"].pop("slope"), "variance result lacks slope; copy or make"),
        (lambda d: d["fields"]["provenance"].pop("seed"), "provenance lacks seed; copy or make"),
        (lambda d: d["fields"]["provenance"].update(host="x"), "provenance has host, .* upgrade"),
        (lambda d: d["fields"].update({"a\nb": 1}), r"has 'a\\nb', which .* upgrade"),
    ],
)
def test_what_is_required_or_unknown_is_named_in_one_line(change, said, tmp_path):
    folder = make_variance_result().save(tmp_path / "run")
    rewrite(folder, change)
    with pytest.raises(ResultFormatError, match=said) as caught:
        load_result(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("moment", ["gone", "other files"])
def test_a_result_that_is_being_replaced_is_read_again(tmp_path, monkeypatch, moment):
    """Never the document of one result with the arrays of another."""
    old = make_variance_result()
    new = dataclasses.replace(old, std_median=old.std_median * 2, reference=64)
    old.save(tmp_path / "run")
    read, waited = opening.read_arrays, []

    def in_between(path, expected):
        if not waited and moment == "other files":
            new.save(tmp_path / "run", overwrite=True)
            waited.append("replaced")
        return read(path, expected)

    def finish(_):
        if (tmp_path / ".run.1.replaced").exists():
            new.save(tmp_path / "run")

    monkeypatch.setattr(opening, "read_arrays", in_between)
    monkeypatch.setattr(opening.time, "sleep", finish)
    if moment == "gone":
        (tmp_path / "run").rename(tmp_path / ".run.1.replaced")
    loaded = load_result(tmp_path / "run")
    assert loaded.reference == 64
    np.testing.assert_array_equal(loaded.std_median, new.std_median)


def test_what_is_not_there_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(opening.time, "sleep", lambda _: pytest.fail("it waited"))
    with pytest.raises(ResultFormatError, match="does not exist"):
        load_result(tmp_path / "run")


@pytest.mark.parametrize("file", ["result.json", "arrays.npz"])
def test_the_files_of_two_results_are_never_taken_for_one(tmp_path, file):
    one = make_variance_result()
    other = dataclasses.replace(one, std_median=one.std_median * 2, reference=64)
    folder = one.save(tmp_path / "one")
    (folder / file).write_bytes((other.save(tmp_path / "other") / file).read_bytes())
    with pytest.raises(ResultFormatError, match="was changed, or is of another result"):
        load_result(folder)


def test_a_changed_number_in_the_document_is_seen(tmp_path):
    folder = make_variance_result().save(tmp_path / "run")
    document = (folder / "result.json").read_text()
    assert '"component": 0' in document
    (folder / "result.json").write_text(document.replace('"component": 0', '"component": 1'))
    with pytest.raises(ResultFormatError, match="was changed"):
        load_result(folder)


def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path):
    assert unfinished(tmp_path) is None
    for words in ("", "[]", "{}", '{"kind": 3', "[" * 100_000):
        (tmp_path / "configuration.json").write_text(words)
        with pytest.raises(llmprobe.ResultFormatError, match="cannot be read"):
            unfinished(tmp_path)


def test_a_folder_of_results_names_them(tmp_path):
    for name in ("b", "a"):
        make_variance_result().save(tmp_path / "all" / name)
    with pytest.raises(ResultFormatError, match="has 2 results; open one of them: a, b"):
        load_result(tmp_path / "all")
