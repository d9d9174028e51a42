"""Texts are read whole and in silence; what is none is refused in one line."""

import json
import logging
import os
import time

import datasets
import pytest

from llmprobe import probe_variance
from llmprobe.errors import PromptError
from llmprobe.probes.texts import read_dataset, read_text, without_marks


def test_a_text_file_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffÄrger\nund Meer".encode())
    assert read_text(path) == read_text(str(path)) == "Ärger\nund Meer"
    with pytest.raises(FileNotFoundError, match=r"no\.txt' does not exist"):
        read_text(tmp_path / "no.txt")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_text(tmp_path)
    path.write_bytes("Ärger".encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_text(path)
    path.write_text(" \n")
    with pytest.raises(ValueError, match="is empty"):
        read_text(path)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "some data"
    folder.mkdir()
    for name in ("lines.txt", "lines [1]*.txt"):
        (folder / name).write_text("one\n\ntwo\nthree\n")
    rows = [{"n": 1, "title": None, "body": "x"}, {"n": 2, "title": "t", "body": "y"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "rows.json").write_text(json.dumps([{"a": "no", "text": "yes"}]))
    (folder / "rows.csv").write_text("a,text\nno,yes\nno,\nno,yes\n")
    datasets.Dataset.from_dict({"text": ["p", "q"]}).to_parquet(folder / "rows.parquet")
    (folder / "numbers.csv").write_text("a,b\n1,2\n")
    (folder / "empty.txt").write_text("")
    (folder / "broken.jsonl").write_text('{"text": ')
    (folder / "other.xyz").write_text("x")
    (folder / "splits").mkdir()
    (folder / "splits" / "train.txt").write_text("first\n")
    (folder / "splits" / "test.txt").write_text("second\n")
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.txt", "one\n\ntwo\nthree"),
        ("lines [1]*.txt:train", "one\n\ntwo\nthree"),
        ("rows.jsonl", "\nt"),
        ("rows.json", "yes"),
        ("rows.csv", "yes\n\nyes"),
        ("rows.parquet", "p\nq"),
        ("splits", "first"),
        ("splits:test", "second"),
    ],
)
def test_a_local_data_set_is_read_in_silence(folder, name, text, capfd):
    assert read_dataset(f"{folder}/{name}") == text
    assert capfd.readouterr() == ("", "")


def test_a_data_set_is_read_up_to_the_limit(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert [read_dataset("lines.txt", limit_chars=n) for n in (3, 7, 99)] == [
        "one",
        "one\n\ntw",
        "one\n\ntwo\nthree",
    ]
    (folder / "odd:name").mkdir()
    (folder / "odd:name" / "a.txt").write_text("odd\n")
    assert read_dataset("odd:name") == "odd"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("numbers.csv", "has no column of text: a, b"),
        ("empty.txt", "is empty"),
        ("broken.jsonl", "cannot be read: "),
        ("other.xyz", r"is none of \.txt, .*; give it as text=FILE"),
        ("missing.txt", "does not exist; check the path"),
        ("missing:test", "does not exist; check the path"),
        ("splits:dev", "Bad split: dev. Available splits: .*test"),
    ],
)
def test_a_data_set_that_gives_no_text_is_one_line(folder, name, line, capfd):
    with pytest.raises(PromptError, match=line) as caught:
        read_dataset(f"{folder}/{name}")
    assert str(caught.value).isprintable()
    assert f"{folder}/{name}" in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_hub_name_without_the_hub_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("no/such:test", "nosuch"):
        with pytest.raises(PromptError, match="the hub is not reachable; use a local file"):
            read_dataset(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "a:train[:5]", "json", "text:train"])
def test_what_cannot_be_a_name_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"dataset: got .* accepted: NAME or NAME:SPLIT"):
        read_dataset(name)


@pytest.mark.parametrize("name", ["lines.txt", "broken.jsonl"])
def test_settings_of_others_stay_as_they_were(folder, name):
    loggers = [logging.getLogger(n) for n in ("datasets", "huggingface_hub")]
    before = [x.level for x in loggers], datasets.are_progress_bars_disabled()
    try:
        read_dataset(f"{folder}/{name}")
    except PromptError:
        assert name == "broken.jsonl"
    assert ([x.level for x in loggers], datasets.are_progress_bars_disabled()) == before


def test_what_is_no_text_is_refused_at_once(tmp_path):
    for size in (5_000, 2**30):
        for name in ("x.txt", "x.jsonl"):
            (tmp_path / name).write_bytes(b"")
            os.truncate(tmp_path / name, size)
            start = time.monotonic()
            with pytest.raises(ValueError, match=r"^text: .* is not a text[^\n]*$"):
                read_text(tmp_path / name)
            with pytest.raises(PromptError, match=r"is not a text[^\n]*$"):
                read_dataset(str(tmp_path / name))
            assert time.monotonic() - start < 3


def test_a_text_is_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("llmprobe.probes.texts.MOST_TEXT_BYTES", 3_000_000)
    (tmp_path / "x.txt").write_text("a" * 2_999_999 + "b")
    assert read_text(tmp_path / "x.txt").endswith("ab")
    (tmp_path / "x.txt").write_text("a" * 3_000_001)
    with pytest.raises(ValueError, match=r"^text: .* more than 3,000,000 bytes; [^\n]*$"):
        read_text(tmp_path / "x.txt")


def test_a_link_to_a_device_is_refused(tmp_path):
    for name in ("x", "x.txt"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(ValueError, match="is a device"):
            read_text(tmp_path / name)
    with pytest.raises(PromptError, match="is a device"):
        read_dataset(str(tmp_path / "x.txt"))


def test_marks_of_wikitext_are_left_out_and_counted(tmp_path):
    text = " The <unk> sold 1 @,@ 000 well @-@ made @.@ things for 2 @.@ 5 a@b.c <unk>s <unks>\n"
    clean = " The sold 1,000 well-made.things for 2.5 a@b.c s <unks>\n"
    assert without_marks(text) == (clean, 6)
    assert without_marks(clean) == (clean, 0)
    for name, content in {"wiki": text, "clean": clean}.items():
        (tmp_path / f"{name}.txt").write_text(content * 100)
    results = [
        probe_variance("builtin", "4,8", prompts="unigram", text=tmp_path / f"{name}.txt")
        for name in ("wiki", "clean")
    ]
    assert (results[0].slope == results[1].slope).all()
    note = "600 marks of WikiText (<unk>, @-@) were left out"
    assert [note in result.warnings for result in results] == [True, False]
