"""The folder of a run under way: its configuration, and each finished piece of it.

    run/configuration.json                       what was asked for
    run/checkpoints/PIECE.safetensors            a piece that is done, or how far a training is
    run/checkpoints/PIECE.measured.safetensors   the evaluation of a training
    run/result.json, arrays.npz, ...             the result; it is there once all is done
    run/evidence.safetensors                     what a probe's result was computed from

The same call goes on where the last one stopped; another configuration is refused. A training keeps
its checkpoints, which networks are loaded from. A probe leaves its result and its evidence, and
older ones stay until the new ones are there.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmprobe.runs.checkpoints import check_same
from llmprobe.errors import CheckpointError
from llmprobe.results.base import Also, Result
from llmprobe.base.processes import process
from llmprobe.base.files import as_path, is_result, sweep_partial, sync

_FILE = "configuration.json"
_CHECKPOINTS = "checkpoints"
EVIDENCE = "evidence.safetensors"
_KINDS = ("variance", "attention", "synthetic", "legality", "search")
_FIGURES = (f"{kind}.{ending}" for kind in _KINDS for ending in ("png", "pdf"))
_RESULT = ("result.json", "arrays.npz", *_FIGURES)
"""What a result consists of, first what makes it one: half of it must not look whole."""


class Workspace:
    """A run's folder, opened for a configuration by `open_training` or `open_probe`."""

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.checkpoints = folder / _CHECKPOINTS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder, configuration)
            self.checkpoints.mkdir(exist_ok=True)
            # One does it before the others begin: whether a writer on another machine is still
            # alive cannot be asked.
            for place in (folder, self.checkpoints) if process().is_main else ():
                sweep_partial(place)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be written ({error.strerror}); use another --output"
            ) from None

    @property
    def is_finished(self) -> bool:
        return is_finished(self.folder)

    def checkpoint(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.safetensors"

    def measured(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.measured.safetensors"

    def save(
        self,
        result: Result,
        *,
        also: Also = lambda folder: None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Put the result of all pieces beside them."""
        try:
            result.save_into(self.folder, also=also, before=before)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}: the result cannot be written ({error.strerror}); what is done "
                "stays there: make room, then give the same command again"
            ) from None

    def finish(self, result: Result, *, also: Also) -> None:
        """Put a probe's result in the place of an older one, and of the pieces it was made of.

        `also` writes the evidence. The older ones stay until all is written, disk full or not.
        """
        self.save(result, also=also, before=lambda: _remove(self.folder, *_RESULT))
        _remove(self.folder, _FILE, _CHECKPOINTS)


def is_finished(folder: Path) -> bool:
    """Whether a result is there."""
    return is_result(folder)


def probe_under_way(folder: Path) -> dict[str, Any] | None:
    """What the unfinished probe in a folder was asked for; None where there is none."""
    return _configuration(folder, "probe")


def open_training(
    folder: Path, configuration: Mapping[str, Any], *, overwrite: bool = False
) -> Workspace:
    """The folder of a training; `overwrite` begins again."""
    folder = as_path("output", folder)
    wanted = {"format": "llmprobe training", **configuration}
    there = _configuration(folder, "training")
    if there is not None and overwrite:
        # What others put there stays.
        _remove(folder, *_RESULT, _CHECKPOINTS, _FILE)
    elif there is not None:
        check_same(folder, there, wanted)
    elif folder.exists() and not _is_begun(folder):
        raise CheckpointError(f"{folder} is there and holds no training; use another --output")
    return Workspace(folder, wanted)


def open_probe(
    folder: Path, configuration: Mapping[str, Any], *, after: int = 0, overwrite: bool = False
) -> Workspace:
    """The folder of a probe; `overwrite` takes the place of a result or of another run.

    Of the prompts before `after` the evidence is there.
    """
    folder = as_path("output", folder)
    check_probe(folder, overwrite=overwrite)
    tidy_probe(folder)
    there = probe_under_way(folder)
    if there is not None and after and there.get("after"):
        after = there["after"]  # it was killed when all was done, but for tidying up
    wanted = {"format": "llmprobe probe", **configuration, "after": after}
    wanted = json.loads(json.dumps(wanted))
    if there is not None and there != wanted:
        if not overwrite:
            check_same(folder, there, wanted)
        _remove(folder, _CHECKPOINTS, _FILE)
    return Workspace(folder, wanted)


def tidy_probe(folder: Path) -> None:
    """The last that a probe does, in case it was killed before."""
    if is_finished(folder) and (folder / EVIDENCE).is_file() and not (folder / _FILE).exists():
        _remove(folder, _CHECKPOINTS)


def check_probe(folder: Path, *, overwrite: bool) -> None:
    """Find out before the work, not after it, whether its result can be kept."""
    folder = as_path("output", folder)
    finished = is_finished(folder)
    if finished and not overwrite and not (folder / EVIDENCE).is_file():
        raise CheckpointError(f"{folder} is already there; use --overwrite or another --output")
    under_way = finished or probe_under_way(folder) is not None
    if folder.exists() and not under_way and not _is_begun(folder):
        raise CheckpointError(f"{folder} is there and is no result; use another --output")


def read_training(folder: Path) -> dict[str, Any]:
    """What the training in a folder was asked for."""
    there = _configuration(as_path("folder", folder), "training")
    if there is None:
        raise CheckpointError(f"{folder} holds no training of llmprobe")
    return there


def _configuration(folder: Path, kind: str) -> dict[str, Any] | None:
    """What the run in a folder was asked for; None where there is none."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; name a folder for --output")
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use another --output") from None
    if not isinstance(there, dict) or there.get("format") != f"llmprobe {kind}":
        raise CheckpointError(f"{path} is no {kind} of llmprobe; use another --output")
    return there


def _is_begun(folder: Path) -> bool:
    """Whether this is all that a run leaves which was killed at its very beginning."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(f".{_FILE}.")}
    return names <= {_CHECKPOINTS} and not any(folder.glob(f"{_CHECKPOINTS}/*"))


def _write(folder: Path, configuration: Mapping[str, Any]) -> None:
    if (folder / _FILE).exists():
        return
    beside = folder / f".{_FILE}.{os.getpid()}.partial"
    beside.write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
    sync(beside)
    beside.replace(folder / _FILE)


def _remove(folder: Path, *patterns: str) -> None:
    """What a run writes, in this order, and nothing else that somebody may have put there."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
