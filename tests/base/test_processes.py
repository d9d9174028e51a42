"""Which process this is, by what launchers leave behind."""

import pytest

from llmprobe.base import processes


def test_alone_this_is_the_main_process():
    assert processes.process() == processes.Process(rank=0, local_rank=0, n_processes=1)
    assert processes.process().is_main


@pytest.mark.parametrize("rank", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK"])
def test_what_launchers_leave_behind_is_read_once_it_is_whole(monkeypatch, rank):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(rank, "3")
    processes._check_launch(4)
    with pytest.raises(ValueError, match=f"{rank}: got '3', accepted: 0 to 2; start with torchrun"):
        processes._check_launch(3)
