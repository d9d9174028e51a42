"""Paths as people give them, folders written whole or not at all, arrays read without trust.

A folder is written next to its place and renamed, so one that exists is complete whatever killed
the writer. Arrays are kept in numpy's own `.npz` format, so `numpy.load` opens them too; the
reader accepts less than numpy does: no pickle, no compression, no array whose size is not the one
announced. An unknown file can neither run code nor ask for more memory than its own size.
"""

import errno
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from llmprobe.base.locks import holder, in_use
from llmprobe.errors import CheckpointError, ResultExistsError, ResultFormatError

_NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)
"""Why nothing can be at a path, whatever one would put there."""
MAX_JSON_BYTES = 16 * 2**20
"""Of a result's document; more is none of ours."""


def as_path(name: str, given: str | os.PathLike[str]) -> Path:
    """A path that came as the argument `name`, with its `~` written out."""
    text = os.fspath(given)
    if not text.strip() or "\0" in text:  # for Path, '' would be the working folder
        raise ValueError(f"{name}: got {text!r}, accepted: a path")
    try:
        path = Path(text).expanduser()
        path.lstat()
    except RuntimeError:
        raise ValueError(f"{name}: got {text!r}, but there is no such user; check it") from None
    except OSError as error:
        if error.errno in _NO_PATH:
            raise ValueError(f"{name}: got {text!r} ({error.strerror}); use another one") from None
    return path


def is_result(folder: Path) -> bool:
    """Whether llmprobe wrote a result there; another's file of the same name makes none."""
    path = folder / "result.json"
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return False
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == "llmprobe"


def refuse_existing(target: Path) -> NoReturn:
    """For a result that must not be lost."""
    raise ResultExistsError(
        f"{target} is already there; use another folder, or overwrite=True to replace it"
    )


def refuse_foreign(target: Path) -> NoReturn:
    """For what somebody else put there."""
    raise ResultExistsError(f"{target} is there and is no result; use another folder")


def write_folder(target: Path, write: Callable[[Path], None], *, overwrite: bool = False) -> None:
    """Have `write` fill a folder, then put it at `target` in one step."""
    _sweep(target)
    if target.is_symlink():
        raise ResultExistsError(f"{target} is a link; name the folder that it stands for")
    if target.exists():
        if in_use(target):
            raise CheckpointError(f"{target} is in use by another run ({holder(target)}); wait")
        if not overwrite:
            refuse_existing(target)
        if not is_result(target):
            refuse_foreign(target)
    beside, replaced = _beside(target, "partial"), _beside(target, "replaced")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
    except OSError as error:
        raise OSError(f"{target} cannot be written ({error.strerror}); use another one") from None
    try:
        write(beside)
        sync(beside)
        if target.exists():
            target.rename(replaced)
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    sync(target.parent)


def write_into(
    target: Path,
    write: Callable[[Path], None],
    *,
    last: str,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Have `write` add files to a folder that is there; once `last` is seen, all of them are.

    `before` is called once they are written and can only be put in their places.
    """
    beside = target / f".{os.getpid()}.partial"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        write(beside)
        before()
        for path in sorted(beside.iterdir(), key=lambda path: path.name == last):
            path.replace(target / path.name)
        sync(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once the block ends without an error.

    What is at `path` until then stays; a link there is replaced, not followed.
    """
    beside = _beside(path, "partial")
    try:
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        beside.unlink(missing_ok=True)


_PARTIAL = re.compile(r"\..*?(\d+)\.partial")


def is_partial(name: str) -> bool:
    """Whether a file of this name is half written, by us or by safetensors."""
    return name.startswith(".tmp") or _PARTIAL.fullmatch(name) is not None


def sweep_partial(folder: Path) -> None:
    """Remove what killed processes left half written.

    Names that end in .PID.partial are ours, names that begin with .tmp those of safetensors. The
    caller holds the folder, so nobody is writing the latter.
    """
    for path in folder.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if path.name.startswith(".tmp") or (match and not _is_alive(int(match[1]))):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write plain numeric arrays and wait until they are on the disk."""
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name} is of type {array.dtype}, accepted: numbers")
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    sync(path)


def read_arrays(path: Path, expected: Mapping[str, Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Read exactly the arrays that `expected` names, each with its `dtype` and `shape`."""
    if not path.is_file():
        raise ResultFormatError(f"{path} is missing; copy the whole folder again")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if sorted(members) != sorted(f"{name}.npy" for name in expected):
                raise ResultFormatError(
                    f"{path} holds other arrays than its result.json says; copy or make it again"
                )
            _refuse_overlap(archive, path)
            return {
                name: _read_array(archive, members[f"{name}.npy"], spec, path)
                for name, spec in expected.items()
            }
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
        raise ResultFormatError(f"{path} cannot be read: {error}; copy or make it again") from error


def _refuse_overlap(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse members that share bytes: many large arrays could be in a small file."""
    members = sorted(archive.infolist(), key=lambda info: info.header_offset)
    starts = [info.header_offset for info in members]
    for info, end in zip(members, [*starts[1:], archive.start_dir], strict=True):
        if info.header_offset + info.file_size > end:
            raise ResultFormatError(f"{path}: {info.filename} overlaps what comes after it")
    if len({info.filename for info in members}) < len(members):
        raise ResultFormatError(f"{path} holds an array twice; copy or make it again")


def _read_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, spec: Mapping[str, Any], path: Path
) -> NDArray[Any]:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise ResultFormatError(f"{path}: {info.filename} is not stored plainly")
    with archive.open(info) as member:
        major, _ = npy.read_magic(member)
        read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(member)
        if dtype.kind not in "biuf":
            raise ResultFormatError(
                f"{path}: {info.filename} holds objects (a pickle), not numbers"
            )
        if dtype.str != spec["dtype"] or list(shape) != spec["shape"]:
            raise ResultFormatError(
                f"{path}: {info.filename} is {dtype.str} {list(shape)}, "
                f"result.json says {spec['dtype']} {spec['shape']}"
            )
        # All the rest of the member, at most the file's own size; the end verifies its checksum.
        data = member.read()
    if len(data) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise ResultFormatError(f"{path}: {info.filename} is {len(data)} bytes, not as announced")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{ending}")


def _sweep(target: Path) -> None:
    """Undo what a killed process left next to the target: half a folder, or a begun replacement."""
    if not target.parent.is_dir():
        return
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.(partial|replaced)")
    found = [
        (match, path) for path in target.parent.iterdir() if (match := name.fullmatch(path.name))
    ]
    # A replaced folder is put back before anything is thrown away.
    for match, left in sorted(found, key=lambda item: item[0][2], reverse=True):
        if int(match[1]) != os.getpid() and _is_alive(int(match[1])):
            continue
        if match[2] == "replaced" and not target.exists():
            left.rename(target)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, so it is there
        return True
    return True
