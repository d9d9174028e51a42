"""Flattening and its inverses."""

from hypothesis import given
from hypothesis import strategies as st

from llmprobe.base.nesting import flatten, nest, under

KEYS = st.text("abc", min_size=1, max_size=3)
NESTED = st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers(), min_size=1))


def test_names_are_joined_however_deep():
    nested = {"a": {"b": {"c": 1}, 2: 3}, "d": 4}
    assert flatten(nested, "/") == {"a/b/c": 1, "a/2": 3, "d": 4}


@given(NESTED)
def test_what_was_flattened_comes_back(nested):
    flat = flatten(nested, "|")
    assert nest(flat, "|") == nested
    assert all(under(key, flat, "|") == inner for key, inner in nested.items())
