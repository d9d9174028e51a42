"""Sums over weights and values equal plain loops, with shared values, padding and a cache."""

import numpy as np
import pytest
import torch
from devices import DEVICE
from families import batch, reference, tiny

from llmprobe import capture_rows
from llmprobe.capture.calls import listening
from llmprobe.capture.value_sums import ValueSums


def by_loops(weights, values, start, query):
    """Of one row (keys,) and the values (keys, size) of its head, in float64."""
    sums = {name: np.zeros(values.shape[1] + 2) for name in ("row", "first", "query")}
    for key, (a, v) in enumerate(
        zip(weights.double().cpu().numpy(), values.double().cpu().numpy(), strict=True)
    ):
        term = a**2 * np.array([*v, (v**2).sum(), 1.0])
        sums["row"] += term
        if key == start:
            sums["first"] += term
        elif key == query:
            sums["query"] += term
    output = weights.double().cpu().numpy() @ values.double().cpu().numpy()
    return sums | {"output": output, "missing": 1 - weights.double().sum().item()}


def check(sums, at, expected):
    for name, values in expected.items():
        got = getattr(sums, name)[at].cpu().numpy()
        np.testing.assert_allclose(got, values, rtol=1e-5, atol=1e-6)


def test_random_rows_of_heads_that_share_values():
    generator = torch.Generator().manual_seed(0)
    weights = 0.8 * torch.rand(2, 6, 3, 9, generator=generator).softmax(-1)
    value = torch.randn(2, 2, 9, 4, generator=generator)
    starts, queries = torch.tensor([0, 3]), torch.tensor([[0, 4, 8], [3, 5, 8]])
    there = {"starts": starts.to(DEVICE), "queries": queries.to(DEVICE)}
    sums = ValueSums.of(weights.to(DEVICE), value.to(DEVICE), **there)
    for prompt, position, head in np.ndindex(2, 3, 6):
        row, of_head = weights[prompt, head, position], value[prompt, head // 3]
        expected = by_loops(row, of_head, starts[prompt], queries[prompt, position])
        check(sums, (prompt, position, head), expected)


def test_any_center_follows_from_the_sums():
    weights, value = torch.rand(1, 1, 1, 20).softmax(-1), torch.randn(1, 1, 20, 4) + 5
    where = {"starts": torch.tensor([0]), "queries": torch.tensor([[19]])}
    sums = ValueSums.of(weights, value, **where)
    vectors, norm, squares = sums.row[0, 0, 0].split([4, 1, 1])
    for center in torch.randn(5, 4, dtype=torch.float64):
        away = (value[0, 0].double() - center).square().sum(-1)
        direct = (weights[0, 0, 0].double().square() * away).sum()
        torch.testing.assert_close(
            (norm - 2 * center @ vectors + center @ center * squares).squeeze(), direct
        )


def test_values_of_other_keys_are_refused():
    weights, where = torch.rand(1, 4, 1, 9), {"starts": torch.tensor([0])}
    for shape in ((1, 4, 8, 2), (1, 3, 9, 2)):
        sums = ValueSums.of(weights, torch.rand(shape), **where, queries=torch.tensor([[8]]))
        assert sums is None


@pytest.mark.parametrize("chunk", [64 * 2**20, 1])
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma2", "deepseek_v3"])
def test_captured_sums_equal_loops_over_the_whole_matrix(family, chunk, monkeypatch):
    monkeypatch.setattr("llmprobe.capture.calls._CHUNK_BYTES", chunk)
    model, inputs, calls = tiny(family), batch(family, (12, 12)), []
    weights = reference(family, inputs).weights
    with capture_rows(model, positions=[0, 5, -1], values=True) as rows:
        modules = [rows.module(layer) for layer in rows.layers]
        with listening(modules, calls.append):
            model(**inputs, use_cache=False)
    for layer, call in enumerate(calls):
        n_shared = 4 // call.value.shape[1]
        for prompt, column, head in np.ndindex(2, 3, 4):
            query = (0, 5, 11)[column]
            of_head = call.value[prompt, head // n_shared]
            expected = by_loops(weights[layer][prompt, head, query], of_head, 0, query)
            check(rows[layer].values, (prompt, column, head), expected)


def test_first_token_and_query_of_a_padded_batch_are_those_of_each_prompt_alone():
    model, inputs = tiny("llama"), batch("llama", (5, 9), "left")
    with capture_rows(model, positions=[0, 2, -1], values=True) as together:
        model(**inputs, use_cache=False)
    for row in range(2):
        tokens = inputs["input_ids"][row, inputs["attention_mask"][row].bool()]
        with capture_rows(model, positions=[0, 2, -1], values=True) as alone:
            model(tokens[None], use_cache=False)
        for name in ("output", "row", "first", "query", "missing"):
            got, expected = (getattr(x[1].values, name) for x in (together, alone))
            torch.testing.assert_close(got[row], expected[0], atol=1e-5, rtol=1e-4)


def test_behind_a_cache_the_query_is_the_newest_key():
    model, tokens = tiny("llama"), batch("llama", (12,))["input_ids"]
    with capture_rows(model, values=True) as whole:
        model(tokens, use_cache=False)
    cache = model(tokens[:, :8], use_cache=True).past_key_values
    with capture_rows(model, values=True) as behind:
        model(tokens[:, 8:], past_key_values=cache, use_cache=True)
    for name in ("row", "first", "query"):
        got, expected = (getattr(x[1].values, name) for x in (behind, whole))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_sums_are_there_where_they_were_asked_for_and_values_are_shown():
    inputs = batch("llama", (6,))
    for family, asked in (("llama", False), ("bloom", True)):
        with capture_rows(tiny(family), values=asked) as rows:
            tiny(family)(**inputs)
        assert rows[0].values is None
    with capture_rows(tiny("llama"), values=True) as rows:
        for _ in range(2):
            tiny("llama")(**inputs)
    assert rows[0].values.row.shape == (2, 1, 4, 10)
    assert rows[0].values.row.dtype == torch.float64
