"""Results last: round-trips, provenance, refusal of what they are not, no torch needed."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from samples import check_same

import llmprobe
from llmprobe import ResultFormatError, VarianceResult, load_result
from llmprobe.results.base import SCHEMA, Provenance, records

COLUMNS = [
    *("layer", "head", "length", "n_prompts"),
    *("component_std", "std_q25", "std_median", "std_q75"),
    *("global_mean", "global_variance", "mean_drift", "vector_drift"),
    *("std_total", "std_total_low", "std_total_high", "std_within"),
    *("total_variance", "total_variance_low", "total_variance_high"),
    *("within_variance", "within_variance_low", "within_variance_high"),
    *("between_variance", "between_variance_low", "between_variance_high"),
    *("step_slope", "step_slope_low", "step_slope_high"),
]
SLOPE_COLUMNS = [
    *("layer", "head", "slope", "slope_low", "slope_high", "r2"),
    *("slope_total", "slope_total_low", "slope_total_high"),
    *("slope_within", "slope_within_low", "slope_within_high"),
    *("slope_features", "slope_features_low", "slope_features_high"),
    *("slope_uniform", "curvature", "p_curvature", "p_zero", "p_flat", "p_uniform"),
    *("slope_null", "slope_null_low", "slope_null_high", "p_null", "label"),
]


def test_a_saved_result_comes_back_the_same(variance_result, tmp_path):
    folder = variance_result.save(tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "result.json"]
    for place in (folder, str(folder)):
        loaded = load_result(place)
        check_same(variance_result, loaded)
        assert json.dumps(vars(loaded.provenance)) == json.dumps(vars(variance_result.provenance))


def test_the_frame_has_the_public_columns_and_empty_heads_for_layers(variance_result):
    frame = variance_result.to_frame()
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 6 * 3
    row = frame[(frame.layer == 1) & (frame["head"] == 2) & (frame.length == 64)]
    assert row.std_median.item() == variance_result.std_median[5, 1]
    assert list(variance_result.decay_frame().columns) == SLOPE_COLUMNS
    whole = dataclasses.replace(variance_result, head=np.full(6, -1))
    assert whole.to_frame()["head"].isna().all()
    assert whole.decay_frame()["head"].isna().all()


def test_arrays_are_copies_that_nobody_can_change(variance_result):
    with pytest.raises(ValueError, match="read-only"):
        variance_result.slope[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        variance_result.slope = np.zeros(6)


def test_repr_is_one_line_and_html_is_a_table(variance_result):
    assert "\n" not in repr(variance_result)
    assert "toy" in repr(variance_result)
    evil = dataclasses.replace(
        variance_result,
        provenance=dataclasses.replace(variance_result.provenance, model="<script>"),
    )
    assert "<table" in evil._repr_html_()
    assert "<script>" not in evil._repr_html_()


def test_shapes_that_do_not_fit_are_refused(variance_result):
    for change in (
        {"slope": np.zeros(5)},
        {"std_median": np.zeros((6, 2))},
        {"std_median": [[0.0] * 3] * 6},
        {"at": "middle"},
        {"lengths": (16, 64, "256")},
        {"lengths": (16, 64, 0)},
    ):
        with pytest.raises(ValueError, match=r"needs|accepted"):
            dataclasses.replace(variance_result, **change)


def test_an_unknown_figure_is_refused_with_the_list(variance_result):
    with pytest.raises(ValueError, match="got kind 'pie', accepted: decay"):
        variance_result.plot("pie")


def test_provenance_says_what_and_when_but_not_who_or_where(tmp_path):
    home = os.path.expanduser("~")  # noqa: PTH111
    provenance = Provenance.record(
        model=f"{home}/models/llama",
        revision="abc",
        dtype="float32",
        device="cpu",
        attention="sdpa",
        prompts="text",
        prompts_hash="0",
        seed=3,
        arguments={
            "text": tmp_path / "book.txt",
            "model": "meta-llama/Llama-3.2-1B",
            "lengths": (16, np.int64(32)),
            "nested": {"folder": "~/secret/runs", "windows": "C:\\users\\me\\x.txt"},
            "callback": print,
        },
    )
    text = json.dumps(dataclasses.asdict(provenance))
    assert home not in text
    assert str(tmp_path) not in text
    assert "secret" not in text
    assert provenance.model == "llama"
    assert provenance.arguments["text"] == "book.txt"
    assert provenance.arguments["model"] == "meta-llama/Llama-3.2-1B"
    assert provenance.arguments["lengths"] == [16, 32]
    assert provenance.created.endswith("+00:00")
    assert provenance.torch
    assert provenance.transformers


def edit(folder, **changes):
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: edit(f, schema=SCHEMA + 1), "upgrade llmprobe"),
        (lambda f: edit(f, schema="one"), "schema 'one'"),
        (lambda f: edit(f, format="other"), "not written by llmprobe"),
        (lambda f: edit(f, fields={"n": 10**30}), "more than 64 bits"),
        (lambda f: edit(f, kind="poem"), "kind 'poem', known: .*variance"),
        (lambda f: edit(f, kind=["variance"]), "not a readable result"),
        (lambda f: edit(f, fields={}), "lacks provenance, warnings, lengths, .* and 3 more"),
        (lambda f: edit(f, arrays={}), "lacks layer, head, n_prompts, .* more; copy"),
        (lambda f: edit(f, arrays=None), "not a readable result"),
        (lambda f: (f / "result.json").write_text("[]"), "not written by llmprobe"),
        (lambda f: (f / "result.json").write_text("[" * 100_000), "not a readable result"),
        (lambda f: (f / "result.json").write_text('{"format": "llm'), "not a readable result"),
        (lambda f: (f / "result.json").write_bytes(b"\xff\xfe"), "not a readable result"),
        (lambda f: (f / "result.json").unlink(), "no result.json"),
        (lambda f: (f / "arrays.npz").unlink(), "missing"),
        (lambda f: (f / "arrays.npz").write_bytes(b"PK"), "cannot be read"),
        (lambda f: os.truncate(f / "arrays.npz", 100), "cannot be read"),
        (shutil.rmtree, "does not exist; check the path"),
    ],
)
def test_what_is_no_result_of_ours_is_refused_in_one_line(variance_result, tmp_path, damage, said):
    folder = variance_result.save(tmp_path / "run")
    damage(folder)
    with pytest.raises(ResultFormatError, match=said) as caught:
        load_result(folder)
    assert "\n" not in str(caught.value)


def test_a_result_larger_than_any_is_not_read(variance_result, tmp_path):
    folder = variance_result.save(tmp_path / "run")
    os.truncate(folder / "result.json", 2**34)  # sparse: takes no space
    with pytest.raises(ResultFormatError, match="larger than any"):
        load_result(folder)


WITHOUT_TORCH = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "accelerate", "datasets"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
from llmprobe import load_result
result = load_result(sys.argv[1])
result.to_frame().to_csv(sys.argv[2], index=False, float_format="%.17g")
result.plot().figure.savefig(sys.argv[3])
"""


def test_it_opens_and_draws_the_same_without_torch(variance_result, tmp_path, run_python):
    folder = variance_result.save(tmp_path / "run")
    done = run_python(WITHOUT_TORCH, folder, tmp_path / "frame.csv", tmp_path / "there.png")
    assert done.returncode == 0, done.stderr
    here = variance_result.to_frame().to_csv(index=False, float_format="%.17g")
    assert (tmp_path / "frame.csv").read_text() == here
    variance_result.plot().figure.savefig(tmp_path / "here.png")
    assert (tmp_path / "here.png").read_bytes() == (tmp_path / "there.png").read_bytes()


def test_every_kind_is_registered_under_its_name():
    assert VarianceResult.kinds["variance"] is VarianceResult


def test_rows_for_json_keep_every_digit_and_the_kind_of_each_value():
    import pandas as pd

    single = np.float32(0.1)
    frame = pd.DataFrame(
        {
            "tiny": [3.4567890123456789e-15, np.nan, -np.inf],
            "single": np.array([single, np.inf, 1], np.float32),
            "head": pd.array([2, None, 0], dtype="Int64"),
            "n": np.array([1, 2, 2**53 + 1]),
            "yes": [True, False, True],
            "maybe": [True, None, False],
            "name": ["a", None, "c"],
        }
    )
    rows = records(frame)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert [list(row.values()) for row in rows] == [
        [3.4567890123456789e-15, float(single), 2, 1, True, True, "a"],
        [None, None, None, 2, False, None, None],
        [None, 1.0, 0, 2**53 + 1, True, False, "c"],
    ]
    kinds = [float, float, int, int, bool, bool, str]
    assert [type(value) for value in rows[0].values()] == kinds
    assert records(frame[:0]) == []


def test_the_library_draws_only_when_it_is_told_to(variance_result, tmp_path):
    folder = variance_result.save(tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "result.json"]
    paths = variance_result.save_figures(folder)
    assert [path.name for path in paths] == ["variance.png", "variance.pdf"]
    assert paths[0].read_bytes()[:4] == b"\x89PNG"
    assert paths[1].read_bytes()[:4] == b"%PDF"
    (alone,) = variance_result.save_figures(str(tmp_path), formats=["svg"])
    assert alone == tmp_path / "variance.svg"


def test_the_public_base_says_what_every_result_can_do():
    assert issubclass(VarianceResult, llmprobe.Result)
    for name in ("headline", "table", "to_frame", "plot", "save", "load_result"):
        assert f"`{name}" in llmprobe.Result.__doc__
