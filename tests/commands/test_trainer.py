"""`train-synthetic`."""

import json
import re

import pytest

from llmprobe import load_result
from llmprobe.synthetic.search import RANGES

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


BAD = {
    "task": (["--task", "sorting"], "argmax, dictionary"),
    "variant": (["--variants", "baseline,groupnorm"], "layernorm, standardize"),
    "two norms": (["--variants", "layernorm+rmsnorm"], "choose one"),
    "twice": (["--variants", "baseline,baseline"], "different"),
    "no variant": (["--variants", ""], "accepted"),
    "no seeds": (["--seeds", 0], "1 or more"),
    "seeds beyond reason": (["--seeds", 10**9], "1 or more"),
    "more keys than there are": (["--task", "dictionary", "--lengths", 2**24], "8,388,608 items"),
    "device of another kind": (["--device", "xpu"], "auto, cpu"),
    "first seed": (["--first-seed", -1], "0 or more"),
    "no steps": (["--steps", 0], "1 or more"),
    "test length": (["--lengths", "0,16"], "the least is 1"),
    "train lengths": (["--train-lengths", "16..5"], "5..16"),
    "no sets": (["--sets", 0], "1 or more"),
    "preset": (["--preset", "huge"], "quick, desk, paper"),
    "schedule": (["--schedule", "linear"], "constant, cosine"),
    "warmup": (["--warmup", 100], "0 to the 20 steps"),
    "heads": (["--heads", 3], "divisor"),
    "batch": (["--batch", 0], "1 or more"),
    "width": (["--width", 0], "1 or more"),
    "learning rate": (["--learning-rate", "nan"], "0 or more"),
    "clip": (["--clip", -1], "0 or more"),
    "ema": (["--variants", "baseline,ema", "--ema-decay", 1], "less than 1"),
    "device": (["--device", "gpu"], "auto, cpu"),
    "output": (["--output", "/proc/run"], "cannot be written"),
    "not a number": (["--seeds", "many"], "valid integer"),
    "dropout": (["--variants", "dropout", "--dropout", 1], "less than 1"),
    "dropout of none": (["--variants", "dropout", "--dropout", 0], "more than 0"),
    "layers of one attention": (["--layers", 2], "not for argmax"),
    "vocabulary of sets": (["--vocab", 8], "not for argmax"),
    "target of sets": (["--target", "exact"], "not for argmax"),
    "search of sets": (["--search", 8], "set-complement, othello"),
}
COMPLEMENT = ("--task", "set-complement", "--steps", 4, "--sets", 16, "--width", 8)
BAD_CHOICES = {
    "no vocabulary": ([*COMPLEMENT, "--vocab", 1], "2 to 1024 tokens"),
    "vocabulary beyond reason": ([*COMPLEMENT, "--vocab", 10**6], "2 to 1024 tokens"),
    "all tokens given": ([*COMPLEMENT, "--vocab", 8, "--lengths", 8], "1 to 7 tokens"),
    "all trained": ([*COMPLEMENT, "--vocab", 8, "--train-lengths", "1..8"], "1 to 7 tokens"),
    "part of sets": ([*COMPLEMENT, "--variants", "layernorm"], "mlp, prenorm"),
    "target": ([*COMPLEMENT, "--target", "soft"], "sampled, exact"),
    "no layers": ([*COMPLEMENT, "--layers", 0], "1 or more"),
    "values": ([*COMPLEMENT, "--value-size", 0], "1 or more"),
    "vocabulary of othello": (["--task", "othello", "--vocab", 8], "tokens of othello"),
    "moves of othello": (["--task", "othello", "--lengths", 60], "1 to 59 tokens"),
    "no search": (["--task", "set-complement", "--search", 0], "search: got 0"),
    "width of a search": ([*COMPLEMENT, "--search", 4], "drawn by the search"),
    "seeds of a search": (
        ["--task", "set-complement", "--search", 4, "--seeds", 2],
        "drawn by the search",
    ),
    "network of a search": (
        ["--task", "set-complement", "--search", 4, "--variants", "baseline,mlp"],
        "one network",
    ),
    "dropout of a search": (
        ["--task", "set-complement", "--search", 4, "--variants", "dropout"],
        "one network",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(call, tmp_path, name):
    wrong, words = BAD[name]
    target = () if "--output" in wrong else ("--output", tmp_path / "run")
    code, out, err = call("train-synthetic", *SMALL, *target, *wrong)
    assert code in (1, 2), (out, err)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert words in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", BAD_CHOICES)
def test_bad_input_for_decoders_is_one_line_too(call, tmp_path, name):
    wrong, words = BAD_CHOICES[name]
    code, out, err = call("train-synthetic", *wrong, "--output", tmp_path / "run")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert words in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ((*COMPLEMENT, "--vocab", 6), "legality", "slope of log gap"),
        (("--task", "othello", "--steps", 2, "--sets", 4, "--width", 8), "legality", "moves"),
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
