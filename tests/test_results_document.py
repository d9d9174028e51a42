"""docs/results.md names every field of every kind of result, and every column of every frame."""

import dataclasses
import inspect
import json
import re

import pytest
from checkout import ROOT

from llmprobe import load_result
from llmprobe.results.base import Provenance
from llmprobe.results.opening import known_kinds

TEXT = (ROOT / "docs" / "results.md").read_text()
KINDS = known_kinds()
SAVED = ROOT / "tests" / "data" / "results" / "schema-1"
"""A small result of every kind."""


def section(heading: str, text: str) -> str:
    """What stands below a heading, up to the next one of its rank."""
    rank = heading.partition(" ")[0]
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"docs/results.md has no {heading!r}"
    return re.split(rf"^#{{1,{len(rank)}}} ", rest, flags=re.MULTILINE)[0]


def of_kind(kind: str) -> str:
    return section(f"## {KINDS[kind].__name__}, kind `{kind}`", TEXT)


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def first_cells(text: str) -> set[str]:
    return names("".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_result_is_named(kind):
    fields = {field.name for field in dataclasses.fields(KINDS[kind])}
    assert names(section("### Fields", of_kind(kind))) == fields


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_of_a_frame_is_named(kind):
    result = load_result(SAVED / kind)
    methods = [name for name, _ in inspect.getmembers(KINDS[kind]) if name.endswith("_frame")]
    public = [name for name in methods if not name.startswith("_") and name != "key_frame"]
    assert set(result.key_frame().columns) <= first_cells(of_kind(kind))
    assert "to_frame" in public
    for name in public:
        columns = set(getattr(result, name)().columns)
        assert first_cells(section(f"### `{name}()`", of_kind(kind))) == columns, name


def test_every_key_of_the_provenance_is_named():
    on_disk = section("## The folder on disk", TEXT)
    table = section("### `result.json`", on_disk).partition("`provenance` holds:")[2]
    assert first_cells(table) == {field.name for field in dataclasses.fields(Provenance)}


def test_every_key_of_the_file_is_named(variance_result, tmp_path):
    variance_result.save(tmp_path / "result")
    document = json.loads((tmp_path / "result" / "result.json").read_text())
    on_disk = section("### `result.json`", section("## The folder on disk", TEXT))
    assert first_cells(on_disk.partition("`provenance` holds:")[0]) == set(document)
    assert all(f"`{kind}`" in on_disk for kind in KINDS)
