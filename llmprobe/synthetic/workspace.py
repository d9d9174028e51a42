"""The folder of a run under way: its configuration, and each finished piece of it.

    run/configuration.json            what was asked for
    run/checkpoints/PIECE.safetensors weights of a stack of seeds, and where its training is
    run/checkpoints/PIECE.measured.safetensors   its evaluation
    run/result.json, arrays.npz, ...  the result; it is there once all is done

The same call goes on where the last one stopped; another configuration is refused.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmprobe.errors import CheckpointError
from llmprobe.storage import sync
from llmprobe.synthetic.checkpoints import check_same

_FILE = "configuration.json"


class Workspace:
    """A run's folder, opened for this configuration."""

    def __init__(
        self, folder: Path, configuration: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.folder = folder.expanduser()
        self.checkpoints = self.folder / "checkpoints"
        if overwrite and self._is_ours():
            shutil.rmtree(self.folder)
        self._check(configuration)
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be written ({error.strerror}); use another --output"
            ) from None
        if not (self.folder / _FILE).exists():
            beside = self.folder / f".{_FILE}.{os.getpid()}"
            beside.write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
            sync(beside)
            beside.replace(self.folder / _FILE)

    @property
    def is_finished(self) -> bool:
        return (self.folder / "result.json").is_file()

    def checkpoint(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.safetensors"

    def measured(self, piece: str) -> Path:
        return self.checkpoints / f"{piece}.measured.safetensors"

    def _is_ours(self) -> bool:
        return any((self.folder / name).is_file() for name in (_FILE, "result.json"))

    def _check(self, configuration: Mapping[str, Any]) -> None:
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder} is a file; name a folder for --output")
        path = self.folder / _FILE
        if path.is_file():
            try:
                there = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{path} cannot be read ({error}); use --overwrite") from None
            if not isinstance(there, dict):
                raise CheckpointError(f"{path} is no configuration; use --overwrite")
            check_same(self.folder, there, configuration)
        elif any(self.folder.iterdir()):
            raise CheckpointError(
                f"{self.folder} is there and holds no training; use another --output"
            )
