"""Folders are named after what is run."""

from pathlib import Path

import pytest

from llmprobe.commands.naming import default_folder

DEFAULTS = {
    "lengths": "16..1024",
    "at": "output",
    "text": None,
    "layers": "0",
    "allow_pickle": False,
    "seed": 0,
}


def named(model="builtin", **settings):
    return str(default_folder("variance", model, DEFAULTS | settings, defaults=DEFAULTS))


def test_a_name_has_what_differs_from_the_defaults():
    assert named() == "runs/variance-builtin"
    assert named(at="heads") == "runs/variance-builtin-heads"
    some = named(lengths="16..4k", at="heads", seed=1, allow_pickle=True, layers="0,4..8")
    assert some == "runs/variance-builtin-heads-16..4096-allow-pickle-layers-0,4..8-seed-1"
    assert named(n_prompts=128) == named(), "prompts can be added to a result"


@pytest.mark.parametrize(
    ("lengths", "spelled"),
    [
        ("16,32,64", "16..64"),
        ("16..1k", ""),
        ("16..1024:4", "16..1024:4"),
        ("16, 64,256,1024", "16..1024:4"),
        ("7,9,40", "7,9,40"),
        ("64", "64"),
        ("nonsense", "nonsense"),
    ],
)
def test_lengths_have_one_name_however_they_are_written(lengths, spelled):
    assert named(lengths=lengths) == f"runs/variance-builtin-{spelled}".strip("-").replace(":", "-")


def test_a_model_is_named_by_its_id_or_the_last_part_of_its_path(tmp_path):
    assert named("meta-llama/Llama-3.2-1B@main") == "runs/variance-meta-llama-Llama-3.2-1B-main"
    (tmp_path / "my model").mkdir()
    assert named(str(tmp_path / "my model") + "/") == "runs/variance-my-model"
    for odd in ("x" * 300, "~no-such-user/x", "\0"):
        assert named(odd).startswith("runs/variance")


def test_a_text_is_named_by_its_file(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    assert named(text=tmp_path / "a.txt") == "runs/variance-builtin-text-a.txt"


def test_long_names_are_cut_and_still_differ():
    one, other = (named(lengths=",".join(map(str, range(8, end, 7)))) for end in (900, 907))
    assert one != other
    assert all(len(Path(name).name) < 120 for name in (one, other))
