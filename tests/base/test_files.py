"""Folders are whole or absent; arrays from strangers are read without trust."""

import copy
import io
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from attack import Forked
from samples import make_variance_result

from llmprobe import ResultExistsError, ResultFormatError, load_result
from llmprobe.base.files import as_path, read_arrays, replacing, write_arrays, write_folder

SPEC = {"a": {"dtype": "<f8", "shape": [3]}}


def write_result(name):
    def write(folder):
        document = {"format": "llmprobe", "name": name}
        (folder / "result.json").write_text(json.dumps(document))

    return write


def name_of(folder):
    return json.loads((folder / "result.json").read_text())["name"]


def test_a_path_is_what_its_text_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_path("output", "~/run") == tmp_path / "run"
    assert as_path("output", tmp_path) == tmp_path
    for wrong in ("", " ", "a\0b", "x" * 300, "~no-such-user/x"):
        with pytest.raises(ValueError, match="output: got '") as caught:
            as_path("output", wrong)
        assert str(caught.value).isprintable()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "run", tmp_path / "file" / "deep" / "run"):
        with pytest.raises(OSError, match=r"run cannot be written \(.*\); use another one"):
            write_folder(target, write_result("x"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "run", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_keeps_the_old(tmp_path):
    target = tmp_path / "run"
    write_folder(target, write_result("old"))

    def fail(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(target, fail, overwrite=True)
    assert name_of(target) == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_overwriting_must_be_asked_for_and_replaces_results_only(tmp_path):
    target = tmp_path / "deep" / "run"
    write_folder(target, write_result("old"))
    with pytest.raises(ResultExistsError, match="already there"):
        write_folder(target, write_result("new"))
    write_folder(target, write_result("new"), overwrite=True)
    assert name_of(target) == "new"
    assert list(target.parent.iterdir()) == [target]
    (target / "thesis.tex").write_text("years of work")
    for others in (None, "", "{}", '{"format": "another"}', "[" * 100_000):
        (target / "result.json").unlink(missing_ok=True)
        if others is not None:
            (target / "result.json").write_text(others)
        with pytest.raises(ResultExistsError, match="is no result"):
            write_folder(target, write_result("new"), overwrite=True)
        assert (target / "thesis.tex").exists()


def test_what_a_dead_process_left_is_cleared_and_a_begun_replacement_undone(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    target, pid = tmp_path / "run", child.pid
    (tmp_path / f".run.{pid}.partial").mkdir()
    replaced = tmp_path / f".run.{pid}.replaced"
    replaced.mkdir()
    write_result("old")(replaced)
    alive = tmp_path / f".run.{os.getppid()}.partial"
    alive.mkdir()
    with pytest.raises(ResultExistsError):
        write_folder(target, write_result("new"))
    assert name_of(target) == "old"
    assert sorted(tmp_path.iterdir()) == [alive, target]


def test_what_belongs_to_a_longer_name_is_left_alone(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    other = tmp_path / f".Llama-3.2-1B.{child.pid}.replaced"
    other.mkdir()
    write_folder(tmp_path / "Llama-3", write_result("new"))
    assert other.is_dir()
    (tmp_path / "link").symlink_to(tmp_path / "Llama-3")
    with pytest.raises(ResultExistsError, match="is a link"):
        write_folder(tmp_path / "link", write_result("new"), overwrite=True)


@pytest.mark.thorough
def test_a_killed_save_leaves_a_complete_folder_or_none(tmp_path):
    """The process is a fork, which is there at once; an interpreter takes seconds to start."""
    rng, result = random.Random(0), make_variance_result(n_heads=200)
    found = []
    for attempt in range(50):
        folder = tmp_path / str(attempt)

        def save(folder=folder):
            for number in itertools.count():
                result.save(folder / f"{number % 8}", overwrite=True)

        child = Forked(save)
        deadline = time.monotonic() + 60
        while not (folder / "0").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.06))
        child.kill()
        child.answer()
        found.append([*folder.glob("[!.]*")])
        for target in found[-1]:
            assert len(load_result(target).to_frame()) == 1200
    assert all(found)
    assert len({len(targets) for targets in found}) > 1  # they were stopped at different places


def test_arrays_round_trip_and_numpy_reads_them_too(tmp_path):
    arrays = {
        "a": np.random.default_rng(0).normal(size=(3, 4)),
        "b": np.arange(5),
        "c": np.asfortranarray(np.ones((2, 3), dtype=np.float32)),
        "d": np.zeros((0, 2)),
        "e": np.array(1.5),
    }
    path = tmp_path / "arrays.npz"
    write_arrays(path, arrays)
    spec = {name: {"dtype": a.dtype.str, "shape": list(a.shape)} for name, a in arrays.items()}
    for got in (read_arrays(path, spec), np.load(path, allow_pickle=False)):
        for name, array in arrays.items():
            np.testing.assert_array_equal(got[name], array)


def test_objects_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="accepted: numbers"):
        write_arrays(tmp_path / "a.npz", {"a": np.array([{}], dtype=object)})


def forge(path, header=None, body=b"", name="a.npy", compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            file, header or {"descr": "<f8", "fortran_order": False, "shape": (3,)}
        )
        archive.writestr(name, file.getvalue() + body)


class Bomb:
    def __reduce__(self):
        return (os.abort, ())


def test_forged_files_are_refused_and_run_nothing(tmp_path):
    path = tmp_path / "arrays.npz"
    eight = np.zeros(3).tobytes()
    huge = {"descr": "<f8", "fortran_order": False, "shape": (2**48,)}
    objects = {"descr": "|O", "fortran_order": False, "shape": (1,)}
    cases = [
        (SPEC, lambda: forge(path, body=eight[:-1])),
        (SPEC, lambda: forge(path, body=eight + b"x")),
        (SPEC, lambda: forge(path, body=eight, name="../a.npy")),
        (SPEC, lambda: forge(path, body=eight, compression=zipfile.ZIP_DEFLATED)),
        (SPEC, lambda: forge(path, huge, body=eight)),
        ({"a": {"dtype": "<f8", "shape": [2**48]}}, lambda: forge(path, huge, body=eight)),
        (SPEC, lambda: forge(path, objects, body=pickle.dumps(Bomb()))),
        ({"a": {"dtype": "|O", "shape": [1]}}, lambda: forge(path, objects, pickle.dumps(Bomb()))),
        (SPEC, lambda: path.write_bytes(pickle.dumps(Bomb()))),
        (SPEC, lambda: path.write_bytes(b"")),
        ({}, lambda: forge(path, body=eight)),
        (SPEC | {"b": SPEC["a"]}, lambda: forge(path, body=eight)),
    ]
    for number, (spec, write) in enumerate(cases):
        write()
        with pytest.raises(ResultFormatError, match=r"arrays\.npz"):
            print(number, read_arrays(path, spec))
    path.unlink()
    with pytest.raises(ResultFormatError, match="missing"):
        read_arrays(path, SPEC)


def overlapping(path, n_members, n_bytes):
    """A file whose table of contents names the same bytes under many names."""
    header = io.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": (n_bytes,)}
    np.lib.format.write_array_header_1_0(header, facts)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(n_bytes))
        (first,) = archive.filelist
        for number in range(1, n_members):
            other = copy.copy(first)
            other.filename = f"{number}.npy"
            archive.filelist.append(other)
            archive.NameToInfo[other.filename] = other
    names = ["a", *map(str, range(1, n_members))]
    return {name: {"dtype": "|u1", "shape": [n_bytes]} for name in names}


def test_members_that_share_bytes_are_refused_before_any_is_read(tmp_path, monkeypatch):
    path = tmp_path / "arrays.npz"
    spec = overlapping(path, 500, 100_000)
    monkeypatch.setattr("llmprobe.base.files._read_array", lambda *_: pytest.fail("read"))
    with pytest.raises(ResultFormatError, match=r"arrays\.npz: .* overlaps"):
        read_arrays(path, spec)


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "arrays.npz"
    forge(path, body=np.zeros(3).tobytes())
    with zipfile.ZipFile(path) as archive:
        data = archive.read("a.npy")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.npy", data)
    with pytest.raises(ResultFormatError, match=r"arrays\.npz"):
        read_arrays(path, SPEC)


def test_every_truncation_and_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "arrays.npz"
    write_arrays(path, {"a": np.array([1.0, 2.0, 3.0])})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ResultFormatError):
            read_arrays(path, SPEC)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            got = read_arrays(path, SPEC)["a"]
        except ResultFormatError:
            continue
        assert got.tolist() == [1, 2, 3]  # the byte was one that nothing depends on


def test_a_file_is_replaced_whole_or_stays(tmp_path):
    path = tmp_path / "figure.png"
    for old, new in ((None, b"first"), (b"first", b"second")):
        with pytest.raises(RuntimeError), replacing(path) as file:
            file.write(b"half")
            raise RuntimeError
        assert (path.read_bytes() if old else path.exists()) == (old or False)
        with replacing(path) as file:
            file.write(new)
        assert path.read_bytes() == new
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for target in (tmp_path / "mine", tmp_path / "nowhere"):
        path = tmp_path / f"{target.name}.png"
        path.symlink_to(target)
        beside = tmp_path / f".{path.name}.{os.getpid()}.partial"
        beside.symlink_to(target)
        with replacing(path) as file:
            file.write(b"ours")
        assert path.read_bytes() == b"ours"
        assert not path.is_symlink()
        assert not beside.is_symlink()
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_place_where_no_file_can_be_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "nowhere" / "x"):
        with pytest.raises(OSError, match=f"'{path}'$"), replacing(path) as file:
            file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
