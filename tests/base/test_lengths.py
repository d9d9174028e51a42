"""Lengths as people write them."""

import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprobe import parse_lengths
from llmprobe.base import lengths


def test_the_examples_in_the_manual_hold():
    assert doctest.testmod(lengths).failed == 0


def test_doubling_includes_the_end():
    assert parse_lengths("16..16384") == tuple(2**k for k in range(4, 15))
    assert parse_lengths("16..16") == (16,)
    assert parse_lengths("3..20") == (3, 6, 12, 20)


@given(st.integers(1, 10_000), st.integers(0, 100_000), st.data())
def test_log_spaced_lengths_are_as_many_as_asked_distinct_and_keep_both_ends(start, width, data):
    n = data.draw(st.integers(2, 64).filter(lambda n: n <= width + 1) if width else st.none())
    if n is None:
        return
    got = parse_lengths(f"{start}..{start + width}:{n}")
    assert len(set(got)) == n
    assert list(got) == sorted(got)
    assert (got[0], got[-1]) == (start, start + width)


def test_lists_whole_numbers_and_the_letter_k():
    assert parse_lengths("256, 16,1k") == (16, 256, 1024)
    assert parse_lengths("1K..4k") == (1024, 2048, 4096)
    assert parse_lengths([64, 16]) == (16, 64)
    assert parse_lengths(128) == (128,)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "0",
        "64..16",
        "a..b",
        "16,16",
        "16,32,16",
        "-4",
        "1.5k",
        "16..",
        "..16",
        "16,,32",
        "k",
        "0..16",
        "16..32:1",
        "16..20:9",
        "16..32:0",
        "16-32",
        [],
        [0],
        [16, 16],
        [1.5],
        "16..32:x",
        None,
        1.5,
        10**30,
        [16, 2**27 + 1],
        f"16..{10**30}",
        "9" * 5000,
        "1..1000000:900000",
    ],
)
def test_wrong_lengths_are_refused_with_the_accepted_forms(wrong):
    with pytest.raises(ValueError, match=r"16\.\.16384.*16\.\.16384:20.*16,64,256.*1k = 1024"):
        parse_lengths(wrong)


@given(st.integers(1, 60), st.integers(2, 20))
def test_a_few_of_many_are_spread_evenly_with_both_ends(n_items, n):
    items = list(range(100, 100 + n_items))
    found = lengths.spread(items, n)
    assert (found[0], found[-1]) == (items[0], items[-1])
    assert len(found) == len(set(found)) == min(n, n_items)
    steps = {b - a for a, b in pairwise(found)}
    assert not steps or max(steps) - min(steps) <= 1
