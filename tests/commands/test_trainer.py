"""`train-synthetic`."""

import json
import re

import pytest

from llmprobe import load_result
from llmprobe.synthetic.search_plan import RANGES

SMALL = ("--steps", 20, "--seeds", 2, "--lengths", "16,32", "--sets", 16, "--width", 16)


def test_it_prints_a_table_and_writes_result_checkpoints_and_figure(call, tmp_path):
    target = tmp_path / "run"
    code, out, err = call("train-synthetic", *SMALL, "--output", target)
    assert (code, err) == (0, "")
    assert "layernorm" in out
    assert "note: fewer than 8 seeds decide little" in out
    names = {path.name for path in target.iterdir()}
    assert {"result.json", "arrays.npz", "synthetic.png", "synthetic.pdf", "checkpoints"} <= names
    assert str(tmp_path) not in (target / "result.json").read_text()
    assert load_result(target).variants == ("baseline", "layernorm")


def test_the_same_command_again_shows_what_is_there(call, tmp_path):
    options = ("train-synthetic", *SMALL, "--output", tmp_path / "run")
    first = call(*options)
    stamp = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    code, out, err = call(*options)
    assert (code, out) == (0, first[1])
    assert "was finished before" in err
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == stamp
    assert call(*options, "--overwrite", "--quiet")[0] == 0
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns != stamp


def test_json_is_one_document(call, tmp_path):
    options = ("--task", "dictionary", "--variants", "baseline", "--json", "--quiet")
    code, out, err = call("train-synthetic", *SMALL, *options, "--output", tmp_path / "run")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["kind"] == "synthetic"
    assert document["rows"][0]["n_sets"] == 16


COMPLEMENT = ("--task", "set-complement", "--steps", 4, "--sets", 16, "--width", 8)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ((*COMPLEMENT, "--vocab", 6), "legality", "slope of log gap"),
        (("--task", "othello", "--steps", 2, "--sets", 4, "--width", 8), "legality", "moves"),
        (("--task", "copy", "--steps", 2, "--sets", 4, "--concatenate", 2), "answers", "letters"),
        (("--task", "set-complement", "--vocab", 6, "--search", 2), "search", "Spearman"),
    ],
)
def test_decoders_and_searches_print_tables_and_write_results(call, tmp_path, options, kind, words):
    small = ("--steps", 4, "--sets", 16) if kind == "search" else ("--seeds", 2)
    target = tmp_path / "run"
    code, out, err = call("train-synthetic", *options, *small, "--output", target)
    assert (code, err) == (0, "")
    assert words in out
    assert "note: " in out
    assert {"result.json", f"{kind}.png", f"{kind}.pdf"} <= {p.name for p in target.iterdir()}
    assert load_result(target).kind == kind
    assert str(tmp_path) not in (target / "result.json").read_text()
    document = json.loads(
        call("train-synthetic", *options, *small, "--json", "--output", target)[1]
    )
    assert document["kind"] == kind


def test_a_folder_of_another_configuration_is_refused_with_what_differs(call, tmp_path):
    options = ("train-synthetic", *SMALL, "--quiet", "--output", tmp_path / "run")
    assert call(*options)[0] == 0
    before = (tmp_path / "run" / "result.json").read_bytes()
    code, out, err = call(*options, "--learning-rate", 0.01)
    assert (code, out) == (1, "")
    assert "learning_rate 0.001 (asked: 0.01)" in err
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_a_folder_of_something_else_is_left_alone(call, tmp_path):
    (tmp_path / "thesis.txt").write_text("my only copy")
    for more in ((), ("--overwrite",)):
        code, _, err = call("train-synthetic", *SMALL, "--output", tmp_path, *more)
        assert code == 1
        assert "holds no training" in err
    assert (tmp_path / "thesis.txt").read_text() == "my only copy"


def test_the_help_names_the_ranges_that_a_search_draws_from(call):
    text = " ".join(call("train-synthetic", "--help")[1].replace("│", " ").split())
    drawn = text[text.index("learning rate 3") : text.index("--seeds")]
    numbers = {float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", drawn)}
    for name, of in RANGES.items():
        ends = of.of or of.ends
        assert {min(ends), max(ends)} <= numbers, name
