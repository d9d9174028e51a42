"""Parts of tables that several kinds of results share."""

import numpy as np
import pytest
from checkout import shown_text as text

from llmprobe.results.tables import (
    count,
    fitting,
    heading,
    interval_cell,
    mean_cell,
    p_cell,
    span,
    titled,
)


def test_a_wide_place_has_all_lengths_and_a_narrow_one_what_fits():
    lengths = tuple(2**k for k in range(4, 15))
    cells, others = [["0.00123"] * 11] * 2, {"layer": [0, 11], "95 % CI": ["-0.50 to -0.40"] * 2}

    def fit(width):
        return fitting(lengths, width, cells=cells, others=others)

    assert fit(None) == fit(300) == list(lengths)
    assert fit(7 + 16 + 3 * 9 - 2) == [16, 512, 16384]
    assert fit(7 + 16 + 3 * 9 - 3) == [16, 16384]
    assert fit(7 + 16 + 9) == [16]
    assert fit(20) == []


def test_a_title_and_a_caption_may_be_wider_than_the_columns():
    table = titled("a title of [many] words")
    table.add_column("x")
    table.add_row("1")
    table.caption = "a caption of many words"
    shown = [line.rstrip() for line in text(table, width=40).splitlines()]
    assert shown == ["a title of [many] words", "x", "1", "a caption of many words"]


def test_a_name_is_broken_at_each_plus_and_never_read_as_markup():
    table = titled("title")
    table.add_column(heading("[bold]a+b"))
    assert [line.strip() for line in text(table).splitlines()] == ["title", "[bold]a+", "b"]


@pytest.mark.parametrize(
    ("p", "shown"), [(0.0123, "0.012"), (0.0009, "<0.001"), (1.0, "1.000"), (np.nan, "–")]
)
def test_p_has_three_digits_and_a_star_if_significant(p, shown):
    assert p_cell(p) == shown
    assert p_cell(p, significant=True) == f"{shown} *"


def test_what_is_not_known_is_left_out():
    assert mean_cell(12.34, 0.56) == "12.3 ± 0.6"
    assert mean_cell(12.34, np.nan) == "12.3"
    assert interval_cell({"low": 0.1, "high": 0.2}, "[{:.0f}, {:.0f}]", scale=100) == "[10, 20]"
    assert interval_cell({"low": np.nan, "high": np.nan}, "{} to {}") == "–"


def test_counts_are_numbers_or_ranges_with_their_plural():
    assert [count(n, "seed") for n in ([1], [8, 8])] == ["1 seed", "8 seeds"]
    assert count([8, 7], "seed") == "7 to 8 seeds"
    assert span([3, 1, 2]) == "1 to 3"
