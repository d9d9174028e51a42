"""Your own prompts are used as they are, at the lengths that they reach."""

import copy
import json

import datasets
import numpy as np
import pytest
import torch
from brute import outputs
from devices import DEVICE
from families import tiny
from prompt_sets import SPECIAL, TOKENIZER, make, ragged

from llmprobe import (
    load_model,
    load_result,
    merge_results,
    probe_attention,
    probe_loss,
    probe_variance,
)
from llmprobe.base.lengths import passes_of
from llmprobe.errors import CheckpointError
from llmprobe.probes.own_prompts import rows_of
from llmprobe.probes.prompts import kind_of

LENGTHS = (4, 9, 17, 32)
TEXTS = [f"{n} whales and {n * n} " + "ships " * (n % 7 + 1) for n in range(20)]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.mark.parametrize("query", ["free", "fixed"])
@pytest.mark.parametrize("at", ["output", "heads"])
def test_numbers_are_those_of_the_prompts_that_reach_a_length(at, query):
    model, rows = copy.deepcopy(tiny("llama")).double(), ragged(24)
    queries = {"query": query, "n_queries": 1 if query == "fixed" else None}
    result = probe_variance(model, LENGTHS, prompts=rows, at=at, layers=None, **queries)
    query_tokens = make("own", rows=rows, n_prompts=24, tokenizer=None, **queries).query_tokens
    for column, length in enumerate(LENGTHS):
        if query == "free":
            used = [row[:length] for row in rows if len(row) >= length]
        else:
            used = [[*row[: length - 1], *query_tokens] for row in rows if len(row) >= length - 1]
        kept = outputs(model, torch.tensor(used, device=DEVICE))[at]
        found = np.stack([kept[layer] for layer in sorted(kept)], axis=1)
        std = found.reshape(len(used), -1, found.shape[-1]).std(axis=0, ddof=1)
        np.testing.assert_allclose(result.std_median[:, column], np.median(std, axis=-1))
        assert (result.n_prompts[:, column] == len(used)).all()
    [note] = [note for note in result.warnings if "left out" in note]
    assert f"{result.n_prompts[0, -1]} at {LENGTHS[-1]}" in note
    assert np.isfinite(result.slope_low).all()
    assert result.provenance.prompts == "own"
    result.plot("features")


def test_rows_of_attention_are_those_of_the_prompts_that_reach_a_length():
    model, rows = tiny("llama"), ragged(24)
    result = probe_attention(model, LENGTHS, prompts=rows)
    for column, length in enumerate(LENGTHS):
        used = [row[:length] for row in rows if len(row) >= length]
        alone = probe_attention(model, length, prompts=used)
        np.testing.assert_allclose(result.entropy[:, column], alone.entropy[:, 0], rtol=1e-5)
        assert (result.n_prompts[:, column] == len(used)).all()
    result.plot("weights")


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize("sizes", [None, [3, 4, 8, 9, 31, 32, 99], [32] * 7, [4] * 7, [0] * 7])
def test_every_prompt_is_once_at_each_length_that_it_has(sizes, one_pass):
    seen = [
        (length, prompt)
        for lengths, prompts in passes_of(LENGTHS, range(7), one_pass=one_pass, sizes=sizes)
        for prompt in prompts
        for length in lengths
    ]
    wanted = [(n, i) for n in LENGTHS for i in range(7) if sizes is None or sizes[i] >= n]
    assert sorted(seen) == wanted


def test_one_pass_gives_what_one_pass_per_length_gives(monkeypatch):
    model, rows = copy.deepcopy(tiny("llama")).double(), ragged(24)
    one = probe_variance(model, LENGTHS, prompts=rows)
    monkeypatch.setattr("llmprobe.probes.request.prefixes_agree", lambda *_, **__: False)
    many = probe_variance(model, LENGTHS, prompts=rows)
    np.testing.assert_allclose(one.std_median, many.std_median, rtol=1e-9)
    assert (one.n_prompts == many.n_prompts).all()


def test_texts_files_and_data_sets_are_the_same_prompts(tmp_path):
    (tmp_path / "p.txt").write_text("\n\n".join(TEXTS) + "\r\n")
    lines = [json.dumps({"id": n, "question": text}) for n, text in enumerate(TEXTS)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    (tmp_path / "plain.jsonl").write_text("\n".join(map(json.dumps, TEXTS)))
    rows = {"id": list(range(20)), "question": TEXTS}
    results = [
        probe_variance("builtin", "4,8", **options)
        for options in (
            {"prompts": TEXTS},
            {"prompts": str(tmp_path / "p.txt")},
            {"prompts": tmp_path / "p.jsonl", "field": "question"},
            {"prompts": tmp_path / "p.jsonl"},
            {"prompts": tmp_path / "plain.jsonl"},
            {"prompts": datasets.Dataset.from_dict(rows), "field": "question"},
        )
    ]
    assert len({result.provenance.prompts_hash for result in results}) == 1
    assert len({tuple(result.slope) for result in results}) == 1
    assert str(tmp_path) not in json.dumps([result.to_document() for result in results])
    loaded = load_model("builtin")
    tokens = [loaded.tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    bos = [[loaded.bos_token_id] * loaded.adds_bos + row for row in tokens]
    by_tokens = probe_variance(loaded, "4,8", prompts=bos)
    assert tuple(by_tokens.slope) == tuple(results[0].slope)


def test_the_field_is_text_or_the_first_that_holds_one():
    assert rows_of([{"n": 1, "a": "x", "text": "y"}] * 2, None) == ["y"] * 2
    assert rows_of([{"n": 1, "a": "x"}] * 2, None) == ["x"] * 2
    assert rows_of([{"ids": [1, 2]}] * 2, None) == [[1, 2]] * 2
    assert rows_of([np.array([1, 2]), torch.tensor([3])], None) == [[1, 2], [3]]


def test_a_chat_template_writes_the_prompts():
    tokenizer = type(TOKENIZER)(
        tokenizer_object=TOKENIZER.backend_tokenizer, bos_token="<s>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    rows = [
        "hello there",
        [{"role": "user", "content": "hello there"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    ]
    options = {"tokenizer": tokenizer, "n_prompts": 3, "lengths": [4], "chat_template": True}
    own = make("own", rows=rows, **options)
    texts = ["<s>user: hello there\na:"] * 2 + ["<s>user: a\nassistant: b\n"]
    ids = [row.tolist() for row in own._rows]
    assert [tokenizer.decode(row) for row in ids] == texts
    assert not SPECIAL & set(ids[0][1:])
    with_bos = make("own", rows=rows, **options, bos_token_id=0)
    assert (with_bos.batch(range(3), 4) == own.batch(range(3), 4)).all()


def test_the_first_prompts_are_used_and_others_can_be_added(tmp_path):
    model, rows = copy.deepcopy(tiny("llama")).double(), ragged(24)
    few = probe_variance(model, LENGTHS, prompts=rows, n_prompts=20, output=tmp_path / "run")
    assert "the first 20 of 24 prompts are used" in few.warnings
    more = probe_variance(model, LENGTHS, prompts=rows, n_prompts=500, output=tmp_path / "run")
    assert more.provenance.arguments["n_prompts"] == 24
    whole = probe_variance(model, LENGTHS, prompts=rows)
    np.testing.assert_allclose(more.std_median, whole.std_median, rtol=1e-9)
    other = [[7, *row] for row in rows]
    with pytest.raises(CheckpointError, match="holds another run"):
        probe_variance(model, LENGTHS, prompts=other, output=tmp_path / "run")
    loaded = load_result(tmp_path / "run")
    assert (loaded.n_prompts == whole.n_prompts).all()


def test_lengths_are_merged_and_seeds_are_refused(tmp_path):
    model, rows = copy.deepcopy(tiny("llama")).double(), ragged(24)
    for name, options in {
        "short": {"lengths": "4,9"},
        "long": {"lengths": "17,32"},
        "seed": {"lengths": "4,9", "seed": 1},
        "other": {"lengths": "17,32", "prompts": [row[::-1] for row in rows]},
    }.items():
        probe_variance(model, **{"prompts": rows, **options}, output=tmp_path / name)
    merged = merge_results([tmp_path / "short", tmp_path / "long"], tmp_path / "all")
    whole = probe_variance(model, LENGTHS, prompts=rows)
    np.testing.assert_allclose(merged.std_median, whole.std_median, rtol=1e-9)
    np.testing.assert_allclose(merged.slope_low, whole.slope_low, rtol=1e-9)
    with pytest.raises(ValueError, match="own prompts are the same for every seed"):
        merge_results([tmp_path / "short", tmp_path / "seed"], tmp_path / "no")
    with pytest.raises(CheckpointError, match="text_hash"):
        merge_results([tmp_path / "short", tmp_path / "other"], tmp_path / "no")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"prompts": "own"}, "prompts: got 'own'; give the prompts"),
        ({"prompts": "poems"}, r"accepted: random, .*, or a \.txt or \.jsonl file"),
        ({"prompts": 3}, "prompts: got int, accepted: a kind, "),
        ({"prompts": ["a"]}, "prompts: got 1, accepted: 2 or more"),
        ({"prompts": ["a b c d e", 3.5]}, "prompts: row 2 is 3.5, accepted: a text, a list"),
        ({"prompts": [[1, True], [2]]}, r"prompts: row 1 is \[1, True\]"),
        ({"prompts": [[1, -1, 3, 4]] * 2}, "prompts: got token -1, accepted: 0 to"),
        ({"prompts": [[1, 10**9, 3, 4]] * 2}, "prompts: got token 1000000000, accepted: 0 to"),
        ({"prompts": [[5] * 9] * 4}, "prompts: all 4 are the same"),
        ({"prompts": [[5, 6, 7], [5] * 9, [6] * 9, [7]], "lengths": "4,8,32"}, "up to 9"),
        ({"prompts": TEXTS, "field": "text"}, "field: got 'text', but prompts have no fields"),
        ({"prompts": [{"a": "x"}] * 2, "field": "b"}, "field: got 'b', but row 1 has: a"),
        ({"prompts": [{"a": 1}] * 2}, "prompts: no field holds a text: a"),
        ({"field": "text"}, "field: got 'text', but random prompts have none"),
        ({"chat_template": True}, "chat_template: got True, but random prompts have"),
        (
            {"prompts": TEXTS, "chat_template": True},
            "chat_template: got True, but the tokenizer has none",
        ),
        ({"prompts": TEXTS, "text": "x.txt"}, "own prompts use no text"),
        ({"prompts": [[{"role": "user", "content": "x"}]] * 2}, "use chat_template=True"),
        ({"prompts": "nowhere.jsonl"}, "prompts: 'nowhere.jsonl' does not exist"),
        ({"prompts": "a/b.csv"}, r"prompts: 'a/b.csv' is none of \.txt, \.jsonl"),
    ],
)
def test_a_wrong_argument_is_one_line(options, line):
    with pytest.raises((ValueError, OSError), match=line) as caught:
        probe_variance("builtin", **{"lengths": "4,8", **options})
    assert str(caught.value).isprintable()


def test_the_loss_is_of_prompts_that_have_all_lengths():
    rows = [row for row in ragged(24) if len(row) >= 17]
    result = probe_loss("builtin", "4,17", prompts=rows)
    assert (result.n_prompts == len(rows)).all()
    with pytest.raises(ValueError, match=r"lengths: got 32, but .* use lengths up to \d+, or"):
        probe_loss("builtin", "4,32", prompts=rows)


def test_texts_need_a_tokenizer_and_tokens_do_not():
    with pytest.raises(ValueError, match="prompts: texts need a tokenizer"):
        probe_variance(tiny("llama"), "4,8", prompts=TEXTS)
    assert kind_of("questions.txt") == "own"
    assert kind_of("text") == "text"


def test_a_line_that_is_no_json_is_named(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"text": "a"}\n\n{"text": \n')
    with pytest.raises(ValueError, match=r"prompts: line 3 of .* is not JSON"):
        probe_variance("builtin", "4,8", prompts=tmp_path / "p.jsonl")


def test_the_command_takes_a_file(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"q": text}) for text in TEXTS))
    code, out, err = call(
        "variance", "--prompts", "p.jsonl", "--field", "q", "--lengths", "4,16", "--quiet"
    )
    assert code == 0, err
    assert len([*tmp_path.glob("runs/variance-builtin-*-p.jsonl-field-q/result.json")]) == 1
    assert "left out" in " ".join(out.split())
    code, out, _ = call(
        "variance", "--prompts", "p.jsonl", "--field", "q", "--lengths", "4,16", "--dry-run"
    )
    assert (code, out.split(",")[0]) == (0, "builtin: 20 prompts")
    code, _, err = call("variance", "--prompts", "p.jsonl", "--chat-template", "--lengths", "4,16")
    assert (code, err.count("\n")) == (1, 1)
    assert "--chat-template: got True, but the tokenizer has none" in err
