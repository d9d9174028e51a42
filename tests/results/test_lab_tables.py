"""The lab's tables for the terminal."""

import dataclasses
import re

import numpy as np
import pytest
from checkout import shown_text as text
from legal_samples import make_legality_result
from samples import make_synthetic_result
from search_samples import make_search_result

from llmprobe.results import tables


def test_sets_have_a_row_a_length_with_its_paired_test():
    result = make_synthetic_result()
    shown = text(tables.synthetic_table(result)).splitlines()
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


def test_sets_stay_narrow_however_many_variants_there_are():
    result = make_synthetic_result(9)
    shown = text(tables.synthetic_table(result), width=78)
    assert "…" not in shown
    assert shown.count("length ") >= 8
    assert shown.count(" 16384  ") >= 8
    alone = text(tables.synthetic_table(make_synthetic_result(1)))
    assert "difference" not in alone
    assert "Holm" not in alone


def test_sets_count_seeds_and_names_what_it_cannot_test():
    result = make_synthetic_result()
    accuracy = result.accuracy.copy()
    accuracy[:, :, 0] = 1.0
    accuracy[0, 2] = np.nan
    result = dataclasses.replace(result, accuracy=accuracy)
    shown = text(tables.synthetic_table(result))
    assert "over 7 to 8 seeds" in shown
    assert "paired over 7 seeds" in shown
    first = next(line for line in shown.splitlines() if line.strip().startswith("16 "))
    assert first.split()[-1] == "–"


def test_names_of_strangers_are_only_text():
    result = dataclasses.replace(make_synthetic_result(), variants=("[/red]", "[bold]b"))
    assert "[/red]" in text(tables.synthetic_table(result))


def test_a_decoder_has_a_row_a_length_and_its_means_beyond_training():
    result = make_legality_result()
    shown = text(tables.legality_table(result))
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["31"])
    mean, chance = result.illegal_mass[0, :, -1].mean(), result.uniform_mass[-1]
    assert f"{100 * mean:.1f} ± " in row
    assert row.split()[-1] == f"{100 * chance:.0f}"
    beyond = result.beyond_frame()
    for found in beyond[beyond.variant == result.variants[1]].to_dict("records"):
        share = 100 if found["metric"].startswith("illegal") else 1
        low, high = share * found["difference_low"], share * found["difference_high"]
        assert f"{share * found['difference']:+.3g}" in shown
        assert f"[{low:+.3g}, {high:+.3g}]" in shown
    spoiled = result.illegal_mass.copy()
    spoiled[:, 2] = np.nan
    fewer = text(tables.legality_table(dataclasses.replace(result, illegal_mass=spoiled)))
    assert "mean ± standard deviation over 7 seeds" in fewer
    assert f"{result.gap_frame().slope[0]:+.3f}" in shown
    assert "mean ± standard deviation over 8 seeds" in shown


def test_othello_has_no_law_of_the_gap():
    shown = text(tables.legality_table(make_legality_result(task="othello")))
    assert "log gap" not in shown
    assert "illegal top-1, in %" in shown
    assert "beyond training" in shown


def test_a_search_shows_effects_correlations_and_its_reading():
    result = make_search_result()
    shown = " ".join(text(tables.search_table(result)).split())
    for row in result.effect_frame().to_dict("records"):
        assert f"{row['effect_size']:.3f} {row['low']:.3f} to {row['high']:.3f}" in shown
        assert f"{row['helps']:.0%}" in shown
    for row in result.correlation_frame().to_dict("records"):
        assert f"{row['rho']:+.2f} {row['low']:+.2f} to {row['high']:+.2f}" in shown
        assert result.ranges[row["parameter"]] in shown
    assert result.reading() in shown


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (make_synthetic_result, "difference"),
        (make_legality_result, "illegal mass, in %"),
        (make_search_result, "Spearman"),
    ],
)
def test_every_kind_has_its_table(make, named):
    assert named in text(tables.lab_table(make()))
