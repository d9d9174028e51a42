"""The engine: pieces in turns, kept as they are done, the same whoever does them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from llmprobe import CheckpointError
from llmprobe.base.processes import Process
from llmprobe.runs import jobs


@dataclass(frozen=True)
class Square:
    number: int

    @property
    def name(self) -> str:
        return f"piece {self.number}"

    def make(self):
        return {"square": np.array([self.number**2]), "inner": {"half": np.array(self.number / 2)}}


PIECES = [Square(n) for n in range(5)]


def test_every_piece_comes_back_in_its_order():
    states = jobs.run_pieces(PIECES, Square.make)
    assert [int(state["square"][0]) for state in states] == [0, 1, 4, 9, 16]
    assert [float(state["inner|half"]) for state in states] == [0, 0.5, 1, 1.5, 2]


@pytest.mark.parametrize("n_processes", [1, 2, 3, 7])
def test_processes_take_turns_and_all_get_everything(n_processes, monkeypatch):
    handed: dict[str, torch.Tensor] = {}
    seen = []
    for rank in [*range(n_processes), *range(n_processes)]:  # once more, when all have handed in
        monkeypatch.setattr(jobs, "process", lambda rank=rank: Process(rank, rank, n_processes))
        monkeypatch.setattr(jobs, "gather_tensors", lambda own: handed | own)
        did = []
        try:
            states = jobs.run_pieces(PIECES, lambda p, did=did: did.append(p) or p.make())
        except KeyError:  # the others have not handed in theirs yet
            states = None
        handed |= {
            f"{p.name}|square": torch.tensor([p.number**2]) for p in did
        } | {f"{p.name}|inner|half": torch.tensor(p.number / 2) for p in did}
        seen.append((rank, [p.number for p in did], states))
    first = seen[:n_processes]
    assert sorted(n for _, did, _ in first for n in did) == [0, 1, 2, 3, 4]
    for _, _, states in seen[n_processes:]:
        assert [int(state["square"][0]) for state in states] == [0, 1, 4, 9, 16]


def test_what_is_kept_is_not_made_again(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"x": np.arange(6).reshape(2, 3).T}

    first = jobs.kept(tmp_path / "a.safetensors", make)
    again = jobs.kept(tmp_path / "a.safetensors", make)
    assert len(made) == 1
    np.testing.assert_array_equal(first["x"], again["x"])
    assert jobs.kept(None, make)["x"].shape == (3, 2)
    assert len(made) == 2


def test_what_was_made_of_other_facts_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    jobs.kept(path, lambda: {"x": np.zeros(1)}, facts={"sets": 3})
    with pytest.raises(CheckpointError, match=r"sets 3 \(asked: 4\)"):
        jobs.kept(path, lambda: {"x": np.zeros(1)}, facts={"sets": 4})


def test_only_the_main_process_saves(monkeypatch):
    saved = []
    for rank in (0, 1):
        monkeypatch.setattr(jobs, "process", lambda rank=rank: Process(rank, rank, 2))
        monkeypatch.setattr(jobs, "wait_for_all", lambda: saved.append("waited"))
        jobs.finish(object(), lambda: saved.append("saved"))
    jobs.finish(None, lambda: saved.append("never"))
    assert saved == ["saved", "waited", "waited", "waited"]
