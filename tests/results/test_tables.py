"""Tables for the terminal."""

import dataclasses

from checkout import shown_text as text
from samples import make_variance_result

from llmprobe.results import tables as reports


def test_a_row_for_each_head_with_its_slope_and_interval(variance_result):
    lines = text(reports.table_of(variance_result)).splitlines()
    assert lines[1].split()[:5] == ["layer", "head", "16", "64", "256"]
    assert len(lines) == 2 + 6
    assert lines[2].endswith("-0.50  -0.60 to -0.40  0.90")


def test_types_are_shown_where_they_differ_and_long_tables_are_cut():
    result = make_variance_result(n_heads=30)
    assert "20 more rows" in text(reports.table_of(result))
    mixed = dataclasses.replace(make_variance_result(), layer_type=("full",) * 3 + ("sliding",) * 3)
    assert "sliding" in text(reports.table_of(mixed))


def test_a_narrow_terminal_gets_fewer_lengths_and_is_told():
    result = make_variance_result(lengths=tuple(2**k for k in range(4, 15)))
    shown = text(reports.table_of(result, width=80))
    assert shown.splitlines()[1].split()[2:5] == ["16", "512", "16384"]
    assert "8 more lengths" in shown


def test_comparison_names_each_result(variance_result):
    shown = text(reports.compare_table([("a", variance_result), ("b", variance_result)]))
    cells = " ".join(shown.splitlines()[2].split())
    assert cells == "a heads 0..1 16..256 64 6 -0.50 -0.50 -0.50"
