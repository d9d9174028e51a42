"""The engine: pieces in turns, kept as they are done, the same whoever does them."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmprobe import CheckpointError
from llmprobe.base.processes import Process
from llmprobe.runs import jobs
from llmprobe.runs.folder import RunFolder


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
    handed, did = {}, {rank: [] for rank in range(n_processes)}

    def run(rank):
        monkeypatch.setattr(jobs, "process", lambda: Process(rank, rank, n_processes))
        return jobs.run_pieces(PIECES, lambda piece: did[rank].append(piece) or piece.make())

    def hand_in(own):
        handed.update(own)
        raise LookupError("the others are waited for")

    for rank in range(n_processes):
        monkeypatch.setattr(jobs, "gather_tensors", hand_in)
        with pytest.raises(LookupError):
            run(rank)
    assert sorted(piece.number for done in did.values() for piece in done) == [0, 1, 2, 3, 4]
    for rank in range(n_processes):
        monkeypatch.setattr(jobs, "gather_tensors", lambda own: handed)
        assert [int(state["square"][0]) for state in run(rank)] == [0, 1, 4, 9, 16]


def folder_of(path, **configuration):
    folder = RunFolder(path, configuration)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    return folder


def test_what_is_kept_is_not_made_again(tmp_path):
    made, folder = [], folder_of(tmp_path)

    def make():
        made.append(1)
        return {"x": np.arange(6).reshape(2, 3).T, "n": np.array(3)}

    first, again = (jobs.kept(folder, "a", make) for _ in range(2))
    assert len(made) == 1
    np.testing.assert_array_equal(first["x"], again["x"])
    assert again["n"].shape == ()
    assert jobs.kept(None, "a", make)["x"].shape == (3, 2)
    assert len(made) == 2


def test_what_was_made_of_other_facts_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    jobs.kept(folder, "a", lambda: {"x": np.zeros(1)}, facts={"sets": 3})
    with pytest.raises(CheckpointError, match=r"sets 3 \(asked: 4\)"):
        jobs.kept(folder, "a", lambda: {"x": np.zeros(1)}, facts={"sets": 4})


def test_a_piece_of_another_run_or_another_piece_is_refused(tmp_path):
    mine, other = folder_of(tmp_path / "mine", seed=0), folder_of(tmp_path / "other", seed=1)
    for folder in (mine, other):
        for name in "ab":
            jobs.kept(folder, name, lambda: {"x": np.zeros(1)})
    for stranger in (other.checkpoint("a"), mine.checkpoint("b")):
        shutil.copyfile(stranger, mine.checkpoint("a"))
        with pytest.raises(CheckpointError, match="another run, or another piece"):
            jobs.kept(mine, "a", lambda: {"x": np.zeros(1)})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_anywhere_is_never_taken_for_the_piece(data):
    with tempfile.TemporaryDirectory() as place:
        folder = folder_of(Path(place))
        state = {"x": np.arange(12.0), "n": np.array(7), "big": np.arange(40).reshape(5, 8)}
        jobs.kept(folder, "a", lambda: state)
        path = folder.checkpoint("a")
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            read = jobs.read_state(folder, "a")
        except CheckpointError:
            return
        assert read.keys() == state.keys()  # a blank of the header, which says nothing
        assert all((read[name] == state[name]).all() for name in state)


def ranks_say(monkeypatch, texts):
    """As if each rank had handed in its text."""
    tensors = {
        str(rank): torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        for rank, text in enumerate(texts)
    }
    monkeypatch.setattr(jobs, "gather_tensors", lambda own: tensors | own)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_that_were_asked_different_things_stop_all_with_one_line(rank, monkeypatch):
    monkeypatch.setattr(jobs, "process", lambda: Process(rank, rank, 3))
    asked = [{"seed": 0, "output": "a"}, {"seed": 0, "output": "a"}, {"seed": 1, "output": "a"}]
    ranks_say(monkeypatch, [json.dumps(one) for one in asked])
    with pytest.raises(ValueError, match=r"rank 0 and rank 2 .* different settings: seed 0 and 1;"):
        jobs.agree_on(asked[rank])
    ranks_say(monkeypatch, [json.dumps(asked[0])] * 3)
    jobs.agree_on(asked[0])


def test_a_refusal_of_the_main_process_is_shown_by_all(monkeypatch):
    def refuse():
        raise CheckpointError("runs/a holds another run")

    for rank in (0, 1):
        monkeypatch.setattr(jobs, "process", lambda rank=rank: Process(rank, rank, 2))
        ranks_say(monkeypatch, ["runs/a holds another run", ""])
        with pytest.raises(CheckpointError, match="runs/a holds another run"):
            jobs.opened(refuse if rank == 0 else lambda: "opened")
        ranks_say(monkeypatch, ["", ""])
        assert jobs.opened(lambda: "opened") == "opened"


def test_only_the_main_process_saves(monkeypatch):
    saved = []
    for rank in (0, 1):
        monkeypatch.setattr(jobs, "process", lambda rank=rank: Process(rank, rank, 2))
        monkeypatch.setattr(jobs, "wait_for_all", lambda: saved.append("waited"))
        jobs.finish("folder", lambda folder: saved.append(f"saved in {folder}"))
    jobs.finish(None, lambda folder: saved.append("never"))
    assert saved == ["saved in folder", "waited", "waited", "waited"]
