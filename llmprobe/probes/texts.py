"""Texts to make prompts of: a file, a data set that `datasets` loads, or rows of prompts."""

import glob
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

from llmprobe.base.files import as_path
from llmprobe.base.machine import untracked
from llmprobe.capture.refusals import BUILTIN
from llmprobe.errors import PromptError

MOST_TEXT_BYTES = 2**27
"""Of a text file: more than any number of prompts uses, and a minute to turn into tokens."""
BUILTIN_TEXT = "builtin"
"""Names the text that ships next to the built-in model, which was sampled from it."""
ROW_FILES = (".txt", ".jsonl")
"""Files that hold one prompt a line."""
_PIECE = 2**20
_FORMATS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def read_text(path: str | os.PathLike[str], *, name: str = "text") -> str:
    """A text file in UTF-8, or the one that ships as `builtin`; errors speak of `name`."""
    file, shown = as_path(name, path), f"{name}: {str(path)!r}"
    if str(path) == BUILTIN_TEXT and not file.exists():
        file = BUILTIN / "text.txt"
    if not file.exists():
        raise FileNotFoundError(f"{shown} does not exist; check the path")
    if file.is_dir():
        raise IsADirectoryError(f"{shown} is a folder; give a file")
    if not file.is_file():
        raise ValueError(f"{shown} is a device, which may have no end; give a file")
    try:
        text = _read_bounded(file, shown).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown} is not UTF-8 ({error}); convert it") from None
    if not text.strip():
        raise ValueError(f"{shown} is empty; give a file with text")
    return text


def without_marks(text: str) -> tuple[str, int]:
    """A text without the marks that WikiText has for its tokenizer, and how many there were.

    `1 @,@ 000` is 1,000, and `<unk>` stands for a rare word: drawn by frequency, the pieces of
    these marks would be a seventh of all tokens.
    """
    text, n_joined = re.subn(r" @([-,.])@ ", r"\1", text)
    text, n_unknown = re.subn(r" <unk>(?!\w)|<unk>", "", text)
    return text, n_joined + n_unknown


def read_rows(path: str | os.PathLike[str]) -> list[Any]:
    """Prompts from a file: the lines of a .txt, or the JSON values in those of a .jsonl file."""
    suffix = as_path("prompts", path).suffix.lower()
    if suffix not in ROW_FILES:
        raise ValueError(f"prompts: {str(path)!r} is none of {', '.join(ROW_FILES)}; convert it")
    # Only at line ends: splitlines would cut a prompt at other separators too.
    lines = [line.rstrip("\r") for line in read_text(path, name="prompts").split("\n")]
    if suffix == ".txt":
        return [line for line in lines if line.strip()]
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"prompts: line {number} of {str(path)!r} is not JSON ({error}); correct it"
                ) from None
    return rows


def _read_bounded(file: Path, shown: str) -> bytes:
    """The bytes of a text file, in pieces: one that is too large or no text ends early."""
    pieces, size = [], 0
    with file.open("rb") as source:
        while piece := source.read(_PIECE):
            size += len(piece)
            if b"\0" in piece:
                raise ValueError(f"{shown} is not a text (it has NUL bytes); give another")
            if size > MOST_TEXT_BYTES:
                raise ValueError(
                    f"{shown} has more than {MOST_TEXT_BYTES:,} bytes; give a part of it"
                )
            pieces.append(piece)
    return b"".join(pieces)


def read_dataset(name: str, *, limit_chars: int = 24_000_000) -> str:
    """The text of a data set, `NAME` or `NAME:SPLIT` (train): rows, joined by line breaks.

    A name is a local file (.txt, .json, .jsonl, .csv, .parquet), a local folder, or else on the
    hub. The text is in the column `text`, or else in the first one that holds strings.
    """
    place, split = name, "train"
    if (match := re.fullmatch(r"(.+):(\w+)", name)) and not as_path("dataset", name).exists():
        place, split = match[1], match[2]
    check_name(place)
    path = as_path("dataset", place)
    looks_local = place.startswith((".", "/", "~")) or path.suffix in _FORMATS
    local = looks_local or path.exists()
    # `json` and the like are formats for datasets, which would read all files in this folder.
    is_format = place.isidentifier() and find_spec(f"datasets.packaged_modules.{place}")
    if not local and (is_format or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", place)):
        raise _no_name(name)
    if local and not path.exists():
        raise PromptError(f"dataset {name!r} does not exist; check the path")
    if local and not path.is_dir() and path.suffix not in _FORMATS:
        raise PromptError(
            f"dataset {name!r} is none of {', '.join(_FORMATS)}; give it as text=FILE"
        )
    if local and not path.is_dir() and not path.is_file():
        raise PromptError(f"dataset {name!r} is a device, which may have no end; give a file")
    if path.is_file() and path.suffix != ".parquet" and _has_nul(path):
        raise PromptError(f"dataset {name!r} is not a text (it has NUL bytes); use another one")
    if path.is_file() and not path.stat().st_size:
        raise PromptError(f"dataset {name!r} is empty; use another one")
    options: dict[str, Any] = {"path": str(path.absolute()) if local else place}
    if path.is_file():
        options = {"path": _FORMATS[path.suffix], "data_files": glob.escape(str(path.absolute()))}
    with _explained(name), _quiet(), untracked():
        from datasets import load_dataset

        rows = iter(load_dataset(**options, split=split, streaming=True))
        head = list(islice(rows, 16))  # not all features are known before rows are read
        names = ["text", *(head[0] if head else ())]
        strings = [n for n in names if any(isinstance(row.get(n), str) for row in head)]
        if head and not strings:
            raise PromptError(
                f"dataset {name!r} has no column of text: {', '.join(head[0])}; use another one"
            )
        parts, size = [], 0
        for row in chain(head, rows):
            part = row[strings[0]] or ""
            if not isinstance(part, str):
                raise PromptError(
                    f"dataset {name!r} has {part!r} among the texts of its column {strings[0]}; "
                    "correct it, or use another one"
                )
            parts.append(part)
            size += len(part) + 1
            if size > limit_chars:
                break
    text = "\n".join(parts)[:limit_chars]
    if not text.strip():
        raise PromptError(f"dataset {name!r} is empty in its split {split}; use another one")
    return text


def _has_nul(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(_PIECE)


def check_name(name: str) -> None:
    """Refuse what can be neither a file, a folder nor on the hub, without looking for it."""
    if not name.strip() or "\0" in name:
        raise _no_name(name)


def _no_name(name: str) -> ValueError:
    return ValueError(f"dataset: got {name!r}, accepted: NAME or NAME:SPLIT, such as a/b:test")


@contextmanager
def _quiet() -> Iterator[None]:
    """No chatter while `datasets` reads, bars on a terminal only; afterwards all is as it was."""
    import datasets

    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    chosen = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None  # by the user
    silence = not (chosen or datasets.are_progress_bars_disabled() or sys.stderr.isatty())
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        if silence:
            datasets.disable_progress_bars()
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if silence:
            datasets.enable_progress_bars()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except PromptError:
        raise
    except Exception as error:  # a stranger's files can make datasets raise anything
        if isinstance(error, ConnectionError):
            text = "is not here, and the hub is not reachable; use a local file, or go online"
        else:
            words = " ".join(str(error).split())[:300] or type(error).__name__
            text = f"cannot be read: {words}; check its files and the cache (HF_HOME)"
        raise PromptError(f"dataset {name!r} {text}") from error
