"""The folder of a run under way: its configuration, and each finished piece of it.

    run/configuration.json                       what was asked for
    run/checkpoints/PIECE.safetensors            weights of a stack of seeds, and how far they are
    run/checkpoints/PIECE.measured.safetensors   its evaluation
    run/result.json, arrays.npz, ...             the result; it is there once all is done

The same call goes on where the last one stopped; another configuration is refused.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmprobe.errors import CheckpointError
from llmprobe.storage import sweep_partial, sync
from llmprobe.synthetic.checkpoints import check_same

_FILE = "configuration.json"
_FORMAT = {"format": "llmprobe training"}
_FIGURES = ("synthetic.*", "legality.*", "search.*")


class Workspace:
    """A run's folder, opened for this configuration; `overwrite` begins again."""

    def __init__(
        self, folder: Path, configuration: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.folder = folder.expanduser()
        self.checkpoints = self.folder / "checkpoints"
        if self.folder.exists():
            self._check(configuration, overwrite)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(configuration)
            self.checkpoints.mkdir(exist_ok=True)
            for place in (self.folder, self.checkpoints):
                sweep_partial(place)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be written ({error.strerror}); use another --output"
            ) from None

    @property
    def is_finished(self) -> bool:
        return (self.folder / "result.json").is_file()

    def checkpoint(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.safetensors"

    def measured(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.measured.safetensors"

    def _write(self, configuration: Mapping[str, Any]) -> None:
        if (self.folder / _FILE).exists():
            return
        beside = self.folder / f".{_FILE}.{os.getpid()}.partial"
        text = json.dumps({**_FORMAT, **configuration}, indent=1)
        beside.write_text(text + "\n", encoding="utf-8")
        sync(beside)
        beside.replace(self.folder / _FILE)

    def _check(self, configuration: Mapping[str, Any], overwrite: bool) -> None:
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder} is a file; name a folder for --output")
        path = self.folder / _FILE
        if not path.is_file():
            # A run that was killed at its very beginning leaves only this much.
            names = {p.name for p in self.folder.iterdir() if not p.name.startswith(f".{_FILE}.")}
            if names <= {"checkpoints"} and not any(self.folder.glob("checkpoints/*")):
                return
            raise CheckpointError(
                f"{self.folder} is there and holds no training; use another --output"
            )
        there = _read(path)
        if overwrite:
            self._clear()
        else:
            check_same(self.folder, there, {**_FORMAT, **configuration})

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else that somebody may have put there."""
        # The result first: what is half removed must not look finished.
        for pattern in ("result.json", "arrays.npz", *_FIGURES, "checkpoints", _FILE):
            for path in self.folder.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def first_variant(folder: Path) -> str:
    """The first variant of a run, which the others are compared with."""
    path = folder.expanduser() / _FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no training of llmprobe")
    return str(_read(path)["variants"][0])


def _read(path: Path) -> dict[str, Any]:
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use another --output") from None
    if not isinstance(there, dict) or there.get("format") != _FORMAT["format"]:
        raise CheckpointError(f"{path} is no training of llmprobe; use another --output")
    return there
