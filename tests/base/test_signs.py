"""One minus sign."""

import pytest

from llmprobe.base.signs import minus, signed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-0.50", "−0.50"),
        ("[-.5, +2] N^-1", "[−.5, +2] N^−1"),
        ("SmolLM2-135M at 1e-05, 2026-11", "SmolLM2-135M at 1e-05, 2026-11"),
        ("--seed 1, in-place", "--seed 1, in-place"),
    ],
)
def test_numbers_have_a_minus_and_words_keep_their_hyphens(text, shown):
    assert minus(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.5, "−0.50"), (0.25, "+0.25"), (-0.001, "0.00"), (0.0, "0.00")]
)
def test_numbers_have_the_minus_of_the_axes(value, shown):
    assert signed(value) == shown
