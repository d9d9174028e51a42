"""One writer for a folder."""

import json
import os
import subprocess
import sys
import time

import pytest

from llmprobe.base.locks import FolderLock, holder, in_use
from llmprobe.errors import CheckpointError

HOLD = """
import sys, time
from pathlib import Path
from llmprobe.base.locks import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_writer_is_told_who_holds_it_and_since_when(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    assert in_use(tmp_path)
    with pytest.raises(CheckpointError, match=rf"in use .*process {os.getpid()} on .*, since 20"):
        second.acquire()
    first.release()
    assert not in_use(tmp_path)
    second.acquire()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_dies_with_its_process(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=f"process {other.pid} "):
            FolderLock(tmp_path).acquire()
        other.kill()
    deadline = time.monotonic() + 10
    while in_use(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    FolderLock(tmp_path).acquire()


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", json.dumps({"process": 1})])
def test_a_holder_that_cannot_be_read_is_no_error(tmp_path, content):
    (tmp_path / ".holder").write_text(content)
    assert holder(tmp_path) == "just started"


def test_a_folder_without_a_lock_is_free(tmp_path):
    assert not in_use(tmp_path)
    assert not in_use(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
