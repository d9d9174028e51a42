"""Tables for the terminal."""

import dataclasses
import re

import numpy as np
from rich.console import Console
from samples import make_synthetic_result, make_variance_result

from llmprobe import reports


def text(table, width=300):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


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


def test_the_lab_has_a_row_a_length_with_its_paired_test():
    result = make_synthetic_result()
    shown = text(reports.synthetic_table(result)).splitlines()
    header = [part.strip() for part in shown[0].split("  ") if part]
    assert header == ["length", "baseline", "layernorm", "difference", "95 % interval", "p"]
    rows = result.compare_frame().to_dict("records")
    for line, row, accuracy in zip(shown[1:], rows, result.accuracy[0].T, strict=False):
        assert line.split()[0] == f"{row['length']}"
        assert f"{100 * accuracy.mean():.1f} ± {100 * accuracy.std(ddof=1):.1f}" in line
        interval = f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        assert f"{100 * row['difference']:+.1f}   {interval}" in line
        assert line.rstrip().endswith("*") == row["significant"]
    whole = " ".join(" ".join(shown).split())
    assert "mean ± standard deviation over 8 seeds; 1024 to 4096 sets a length" in whole
    assert "* significant at 0.05 after Holm" in whole
    slope = result.tail_frame().slope[1]
    assert re.search(rf"layernorm +{slope:+.2f}", whole)


def test_the_lab_stays_narrow_however_many_variants_there_are():
    result = make_synthetic_result(9)
    shown = text(reports.synthetic_table(result), width=78)
    assert "…" not in shown
    assert shown.count("length ") >= 8
    assert shown.count(" 16384  ") >= 8
    alone = text(reports.synthetic_table(make_synthetic_result(1)))
    assert "difference" not in alone
    assert "Holm" not in alone


def test_the_lab_counts_seeds_and_names_what_it_cannot_test():
    result = make_synthetic_result()
    accuracy = result.accuracy.copy()
    accuracy[:, :, 0] = 1.0
    accuracy[0, 2] = np.nan
    result = dataclasses.replace(result, accuracy=accuracy)
    shown = text(reports.synthetic_table(result))
    assert "over 7 to 8 seeds" in shown
    assert "paired over 7 seeds" in shown
    first = next(line for line in shown.splitlines() if line.strip().startswith("16 "))
    assert first.split()[-1] == "–"


def test_names_of_strangers_are_only_text():
    result = dataclasses.replace(make_synthetic_result(), variants=("[/red]", "[bold]b"))
    assert "[/red]" in text(reports.synthetic_table(result))
