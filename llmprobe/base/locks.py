"""One writer for a folder: a lock that dies with the process that holds it.

    lock = FolderLock(folder)
    lock.acquire()      # CheckpointError says who holds it, and since when
    lock.release()

The lock is an flock on the file `.lock` in the folder, taken by the filelock library. The system
drops it when its process ends, however that happens. Over NFS it works as far as the server and
the clients support locks. The file `.holder` next to it is only there for the message.
"""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from llmprobe.errors import CheckpointError

LOCK, HOLDER = ".lock", ".holder"


class FolderLock:
    """The right to write into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Not thread-local: whoever holds the object holds the lock.
        self._lock = FileLock(folder / LOCK, thread_local=False)

    def acquire(self) -> None:
        """Take the lock at once, or refuse; the folder must exist."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise CheckpointError(
                f"{self.folder} is in use by another run ({holder(self.folder)}); wait for it to "
                "end, or use another output folder"
            ) from None
        facts = {
            "process": os.getpid(),
            "host": platform.node(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (self.folder / HOLDER).write_text(json.dumps(facts), encoding="utf-8")

    def release(self) -> None:
        """Give the lock back, if it is held; its files go with it."""
        if self._lock.is_locked:
            for name in (HOLDER, LOCK):  # still locked: nobody else can have taken it
                (self.folder / name).unlink(missing_ok=True)
            self._lock.release()


def holder(folder: Path) -> str:
    """Who holds a folder's lock and since when, in words."""
    try:
        facts: dict[str, Any] = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return f"process {facts['process']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it is just being taken
        return "just started"


def in_use(folder: Path) -> bool:
    """Whether a run holds the folder."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # a folder of somebody else, which nobody here can write into
        return False
    lock.release()
    return False
