"""The folder of a run: its configuration, and each finished piece of it.

    run/configuration.json                       the settings of the run
    run/checkpoints/PIECE.safetensors            a piece that is done, or how far a training is
    run/checkpoints/PIECE.measured.safetensors   the evaluation of a training
    run/result.json, arrays.npz, ...             the result; it is there once all is done
    run/evidence.safetensors                     what a probe's result was computed from
    run/.lock, run/.holder                       there while a run writes into the folder

One run writes into a folder at a time. The same call resumes a run that was stopped; another
configuration is refused. A training keeps its checkpoints, which networks are loaded from. A probe
leaves its result and its evidence, and older ones stay until the new ones are there.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from llmprobe.base.files import (
    as_path,
    is_partial,
    is_result,
    refuse_existing,
    refuse_foreign,
    sweep_partial,
    sync,
)
from llmprobe.base.locks import HOLDER, LOCK, FolderLock
from llmprobe.base.processes import process
from llmprobe.errors import CheckpointError, ResultExistsError
from llmprobe.results.base import Also, Result
from llmprobe.results.opening import known_kinds
from llmprobe.runs.checkpoints import check_same

_FILE = "configuration.json"
_CHECKPOINTS = "checkpoints"
EVIDENCE = "evidence.safetensors"
_RESULT = ("result.json", "arrays.npz")
"""What makes a result; the first goes first, so that half of it does not look whole."""


class RunFolder:
    """A run's folder and its files. `open_training` and `open_probe` open it for writing."""

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.checkpoints = folder / _CHECKPOINTS
        told = json.dumps(configuration, sort_keys=True)
        self.identity = hashlib.sha256(told.encode()).hexdigest()[:16]
        """Of the run: its pieces carry it, and those of another run are refused."""
        self._lock: FolderLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other runs write here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def is_finished(self) -> bool:
        return is_finished(self.folder)

    def checkpoint(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.safetensors"

    def save(
        self,
        result: Result,
        *,
        also: Also = lambda folder: None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Put the result of all pieces next to them."""
        try:
            result.save_into(self.folder, also=also, before=before)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}: the result cannot be written ({error.strerror}); what is done "
                "stays there: make room, then run the same again"
            ) from None

    def finish(self, result: Result, *, also: Also) -> None:
        """Put a probe's result in the place of an older one, and of the pieces it was made of.

        `also` writes the evidence. The older ones stay until all is written, disk full or not.
        """
        self.save(result, also=also, before=lambda: _remove_result(self.folder))
        _remove(self.folder, _FILE, _CHECKPOINTS)

    def _open(self, configuration: Mapping[str, Any], replace: Callable[[Path], object]) -> Self:
        """Lock the folder, let `replace` make room in it, write down what is asked for.

        The main process does it before the others begin, and holds the lock for all of them.
        """
        new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if process().is_main:
                self._lock = FolderLock(self.folder)
                self._lock.acquire()
            replace(self.folder)
            _write(self.folder, configuration)
            self.checkpoints.mkdir(exist_ok=True)
            # Whether a writer on another machine is alive cannot be asked; but we hold the lock.
            for place in (self.folder, self.checkpoints) if process().is_main else ():
                sweep_partial(place)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"{self.folder} cannot be written ({error.strerror}); use another output folder"
            ) from None
        except BaseException:
            self.close()
            if new and not any(self.folder.iterdir()):
                self.folder.rmdir()
            raise
        return self


def is_finished(folder: Path) -> bool:
    """Whether a result is there."""
    return is_result(folder)


def probe_under_way(folder: Path) -> dict[str, Any] | None:
    """What the unfinished probe in a folder was asked for; None where there is none."""
    return _configuration(folder, "probe")


def open_training(
    folder: Path, configuration: Mapping[str, Any], *, overwrite: bool = False
) -> RunFolder:
    """Open the folder of a training for writing; `overwrite` begins again."""
    folder = as_path("output", folder)
    wanted = {"format": "llmprobe training", **configuration}
    if _configuration(folder, "training") is None and folder.exists() and not _is_begun(folder):
        raise ResultExistsError(f"{folder} is there and holds no training; use another folder")

    def replace(folder: Path) -> None:
        there = _configuration(folder, "training")
        if there is not None and overwrite:
            _remove_result(folder)
            _remove(folder, _CHECKPOINTS, _FILE)  # what others put there stays
        elif there is not None:
            check_same(folder, there, wanted)

    return RunFolder(folder, wanted)._open(wanted, replace)


def open_probe(
    folder: Path, configuration: Mapping[str, Any], *, after: int = 0, overwrite: bool = False
) -> RunFolder:
    """Open the folder of a probe, that `check_probe` let pass, for writing.

    `overwrite` takes the place of a result or of another run. Of the prompts before `after` the
    evidence is there.
    """
    there = probe_under_way(folder)
    if there is not None and after and there.get("after"):
        after = there["after"]  # it was killed when all was done, but for tidying up
    wanted = {"format": "llmprobe probe", **configuration, "after": after}
    wanted = json.loads(json.dumps(wanted))

    def replace(folder: Path) -> None:
        if is_finished(folder) and not (folder / _FILE).exists():
            _remove(folder, _CHECKPOINTS)  # of a run that was killed when all was done
        there = probe_under_way(folder)
        if there is not None and there != wanted:
            if not overwrite:
                check_same(folder, there, wanted)
            _remove(folder, _CHECKPOINTS, _FILE)

    return RunFolder(folder, wanted)._open(wanted, replace)


def evidence_stamp(folder: Path) -> tuple[int, int] | None:
    """Tells the evidence in a folder from what another run puts in its place."""
    try:
        facts = (folder / EVIDENCE).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def tidy_probe(folder: Path, n_prompts: int) -> None:
    """The last that a probe of so many prompts does, in case it was killed before.

    A run that is to add prompts to the result may have begun here: its pieces stay.
    """
    if not _is_untidy(folder) or not process().is_main:
        return
    lock = FolderLock(folder)
    try:
        lock.acquire()
    except (CheckpointError, OSError):  # another run is at work here, or nothing can be written
        return
    try:
        there = probe_under_way(folder)
        if there is None or there.get("arguments", {}).get("n_prompts") == n_prompts:
            _remove(folder, _FILE, _CHECKPOINTS)
        sweep_partial(folder)
    finally:
        lock.release()


def _is_untidy(folder: Path) -> bool:
    """Whether a killed run may have left something next to its result and its evidence."""
    ours = (LOCK, HOLDER, _FILE, _CHECKPOINTS)
    return any(path.name in ours or path.name.startswith(".") for path in folder.iterdir())


def check_probe(folder: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Find out before the work, not after it, whether its result can be kept; gives the path."""
    path = as_path("output", folder)
    finished = is_finished(path)
    if finished and not overwrite and not (path / EVIDENCE).is_file():
        refuse_existing(path)
    under_way = finished or probe_under_way(path) is not None
    if path.exists() and not under_way and not _is_begun(path):
        refuse_foreign(path)
    return path


def has_checkpoints(folder: Path) -> bool:
    """Whether this is the folder of a run, and not a result that was saved or copied alone."""
    return (folder / _FILE).exists() or (folder / _CHECKPOINTS).exists()


def read_training(folder: Path) -> dict[str, Any]:
    """What the training in a folder was asked for."""
    there = _configuration(as_path("folder", folder), "training")
    if there is None:
        raise CheckpointError(f"{folder} holds no training of llmprobe")
    return there


def _configuration(folder: Path, kind: str) -> dict[str, Any] | None:
    """What the run in a folder was asked for; None where there is none."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; name a folder")
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); use another output folder"
        ) from None
    if not isinstance(there, dict) or there.get("format") != f"llmprobe {kind}":
        raise CheckpointError(f"{path} is no {kind} of llmprobe; use another output folder")
    return there


def _is_begun(folder: Path) -> bool:
    """Whether this is all that a run leaves which was killed at its very beginning."""
    kept = [*folder.iterdir(), *folder.glob(f"{_CHECKPOINTS}/*")]
    names = {path.name for path in kept if not is_partial(path.name)}
    return names <= {_CHECKPOINTS, LOCK, HOLDER}


def _write(folder: Path, configuration: Mapping[str, Any]) -> None:
    if (folder / _FILE).exists():
        return
    beside = folder / f".{_FILE}.{os.getpid()}.partial"
    beside.write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
    sync(beside)
    beside.replace(folder / _FILE)


def _remove_result(folder: Path) -> None:
    figures = (f"{kind}.{ending}" for kind in known_kinds() for ending in ("png", "pdf"))
    _remove(folder, *_RESULT, *figures)


def _remove(folder: Path, *patterns: str) -> None:
    """What a run writes, in this order, and nothing else that somebody may have put there."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
