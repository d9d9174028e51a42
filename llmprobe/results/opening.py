"""Opening a saved result of any kind.

    result = load_result("runs/llama")
    result.to_frame(), result.plot()

A kind of result is a module of this folder: being here makes it known. Folders of older versions
open: what they lack takes its default. Folders of newer versions are refused with a hint.
"""

import dataclasses
import glob
import json
import os
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import llmprobe
import llmprobe.results
from llmprobe.base.files import MAX_JSON_BYTES, as_path, is_result, read_arrays
from llmprobe.errors import LLMProbeError, ResultFormatError
from llmprobe.results.base import SCHEMA, Provenance, Result, checksums

_PAUSES = (0.01, 0.05, 0.1, 0.2, 0.4)
"""Seconds to wait for a result that is being replaced."""
_NAMED = 6
"""Folders of results that an error names."""


def known_kinds() -> dict[str, type[Result]]:
    """All kinds of results by name."""
    for module in iter_modules(llmprobe.results.__path__):
        import_module(f"llmprobe.results.{module.name}")
    return dict(Result.kinds)


def _known(name: Any) -> type[Result] | None:
    """The kind of a name; most are in a module of that name, and the others are not imported."""
    named = str(name).replace("-", "_")
    if named in {module.name for module in iter_modules(llmprobe.results.__path__)}:
        import_module(f"llmprobe.results.{named}")
    return Result.kinds.get(name) or known_kinds().get(name)


def comparable_kinds() -> list[str]:
    """Kinds whose results can be drawn in one figure."""
    return [name for name, kind in known_kinds().items() if kind.comparable]


def load_result(folder: str | os.PathLike[str]) -> Result:
    """Open a saved result of any known kind; `ResultFormatError` says why it cannot be opened.

    Where a run is just replacing the result, its files could be of two results: then it is read
    again.
    """
    path = as_path("folder", folder)
    for pause in _PAUSES:
        before = _stamp(path)
        try:
            result = _load(path)
        except ResultFormatError:
            if before == _stamp(path) and not _is_replaced(path):
                raise
        else:
            if before == _stamp(path):
                return result
        time.sleep(pause)
    return _load(path)


def unfinished(folder: str | os.PathLike[str]) -> str | None:
    """How far the run in a folder is, in a line; None if there is none under way.

    A run that adds prompts to a result has both.
    """
    path = as_path("folder", folder)
    file = path / "configuration.json"
    if not file.is_file() or file.stat().st_size > MAX_JSON_BYTES:
        return None
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        what = told.get("kind") or told["task"]
        of = f" of {told['model']}" if "model" in told else ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultFormatError(f"{file} cannot be read ({error!r}); make it again") from None
    if "format" in told and str(told["format"]).endswith("training") and is_result(path):
        return None  # a training keeps its configuration next to its result
    done = len(list(path.glob("checkpoints/*.safetensors")))
    pieces = "1 piece" if done == 1 else f"{done} pieces"
    return f"{what}{of} is not finished: {pieces} kept; run the same command to resume"


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Tells one result in a place from the next."""
    try:
        facts = (folder / "result.json").stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _is_replaced(folder: Path) -> bool:
    """Whether another result is just put in the place of this one."""
    return not folder.exists() and any(
        folder.parent.glob(f".{glob.escape(folder.name)}.*.replaced")
    )


def _load(folder: Path) -> Result:
    try:
        document = _read_document(folder)
        kind: Any = _known(document["kind"])
        fields = dict(document["fields"])
        _check_names(folder, kind, [*fields, *document["arrays"]], what=f"{kind.kind} result")
        _check_names(folder, Provenance, fields["provenance"], what="provenance")
        fields["provenance"] = Provenance(**fields["provenance"])
        arrays = read_arrays(folder / "arrays.npz", document["arrays"])
        # Folders of older versions have none.
        there = document.get("checksums")
        if there is not None and there != checksums(document, folder / "arrays.npz"):
            raise ResultFormatError(
                f"{folder}: result.json or arrays.npz was changed, or is of another result; copy "
                "or make it again"
            )
        return kind(**fields, **arrays)
    except LLMProbeError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultFormatError(
            f"{folder} is not a readable result: {error!r}; copy or make it again"
        ) from error


def _check_names(folder: Path, kind: Any, given: Iterable[str], *, what: str) -> None:
    """Refuse fields that the dataclass does not know, and the lack of those without a default."""
    known, given = {field.name: field for field in dataclasses.fields(kind)}, set(given)
    if newer := sorted(given - known.keys()):
        raise ResultFormatError(
            f"{folder}: its {what} has {_named(newer)}, which llmprobe {llmprobe.__version__} "
            "does not know; upgrade llmprobe to open it"
        )
    optional = {
        name
        for name, field in known.items()
        if {field.default, field.default_factory} != {dataclasses.MISSING}
    }
    if missing := [name for name in known if name not in given | optional]:
        raise ResultFormatError(
            f"{folder}: its {what} lacks {_named(missing)}; copy or make it again"
        )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(name if name.isidentifier() else repr(name) for name in names[:5]) + more


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    if not folder.exists():
        raise ResultFormatError(f"{folder} does not exist; check the path")
    if not folder.is_dir():
        raise ResultFormatError(f"{folder} is a file; give the folder of a result")
    if not path.is_file() and (folder / "configuration.json").is_file():
        raise ResultFormatError(f"{folder} is not finished; run its command again, then open it")
    if not path.is_file():
        inside = sorted(path.parent.name for path in folder.glob("*/result.json"))
        if inside:
            few = ", ".join(inside[:_NAMED]) + ", ..." * (len(inside) > _NAMED)
            raise ResultFormatError(f"{folder} has {len(inside)} results; open one of them: {few}")
        raise ResultFormatError(f"{folder} is no result: it has no result.json; check the path")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ResultFormatError(
            f"{path} is larger than any result.json ({MAX_JSON_BYTES} bytes); check the path"
        )
    document = json.loads(path.read_text(encoding="utf-8"), parse_int=_whole_number)
    if not isinstance(document, dict) or document.get("format") != "llmprobe":
        raise ResultFormatError(f"{path} was not written by llmprobe; give another folder")
    schema = document.get("schema")
    if schema != SCHEMA:
        hint = (
            "; upgrade llmprobe to open it" if isinstance(schema, int) and schema > SCHEMA else ""
        )
        raise ResultFormatError(f"{path} has schema {schema!r}, this version reads {SCHEMA}{hint}")
    if _known(document.get("kind")) is None:
        known = ", ".join(known_kinds())
        raise ResultFormatError(
            f"{path} has kind {document.get('kind')!r}, known: {known}; upgrade llmprobe to open it"
        )
    return document


def _whole_number(digits: str) -> int:
    """Refuse integers that no array holds, before something computes with them."""
    number = int(digits)
    if abs(number) >= 2**63:
        raise ValueError("a whole number of more than 64 bits")
    return number
