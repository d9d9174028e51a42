"""Tables of the lab's sets: a row a length, narrow, with whose the tests are and how it trained."""

import dataclasses
import re

import numpy as np
from checkout import shown_text as text
from samples import make_synthetic_result

from llmprobe.base.signs import minus


def test_sets_have_a_row_a_length_with_its_paired_test():
    result = make_synthetic_result()
    shown = text(result.table()).splitlines()
    header = [part.strip() for part in shown[0].split("  ") if part.strip()]
    assert header[:6] == ["length", "baseline", "layernorm", "diff.", "95 % CI", "p"]
    assert header[6:] == ["verdict"]
    rows = result.compare_frame().to_dict("records")
    for line, row, accuracy in zip(shown[1:], rows, result.accuracy[0].T, strict=False):
        assert line.split()[0] == f"{row['length']}"
        assert f"{100 * accuracy.mean():.1f} ± {100 * accuracy.std(ddof=1):.1f}" in line
        interval = minus(f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]")
        assert minus(f"{100 * row['difference']:+.1f}") + f"  {interval}" in line
        assert ("* " in line) == row["significant"]
        assert line.split()[-1] == row["verdict"]
    whole = " ".join(" ".join(shown).split())
    assert "mean ± standard deviation over 8 seeds; 1024 to 4096 sets per length" in whole
    assert "* significant at 0.05 after Holm" in whole
    slope = result.tail_frame().slope[1]
    assert re.search(minus(rf"layernorm +{slope:+.2f}"), whole)


def test_sets_stay_narrow_however_many_variants_there_are():
    result = make_synthetic_result(9)
    shown = text(result.table(), width=78)
    assert "…" not in shown
    assert shown.count("length ") >= 8
    assert shown.count(" 16384  ") >= 8
    alone = text(make_synthetic_result(1).table())
    assert "diff." not in alone
    assert "Holm" not in alone
    assert make_synthetic_result(1).remarks() == []


def test_sets_count_seeds_and_names_what_it_cannot_test():
    result = make_synthetic_result()
    accuracy = result.accuracy.copy()
    accuracy[:, :, 0] = 1.0
    accuracy[0, 2] = np.nan
    result = dataclasses.replace(result, accuracy=accuracy)
    shown = text(result.table())
    assert "over 7 to 8 seeds" in shown
    assert "paired over 7 seeds" in shown
    first = next(line for line in shown.splitlines() if line.strip().startswith("16 "))
    assert first.split()[-2:] == ["–", "equivalent"]


def test_names_of_strangers_are_only_text():
    result = dataclasses.replace(make_synthetic_result(), variants=("[/red]", "[bold]b"))
    assert "[/red]" in text(result.table())


def test_a_table_says_whose_the_tests_are_and_how_training_went():
    new = make_synthetic_result()
    old = dataclasses.replace(new, shared_tests=True)
    shown, before = (" ".join(text(result.table()).split()) for result in (new, old))
    assert "sets per length, drawn anew for each seed and shared by its variants;" in shown
    assert "the same for all seeds, so intervals leave out the noise of the tests;" in before
    alone = " ".join(text(make_synthetic_result(1).table()).split())
    assert "Trained for 8000 steps, cosine learning rate." in alone  # it has no reading
    assert "Trained for" not in shown
    assert "8000 steps; accuracy" in new.headline()
    for clip, words, short in (
        (1.0, "gradients clipped at 1", "8000 steps, clip 1; "),
        (0, "gradients not clipped", "8000 steps, no clip; "),
    ):
        arguments = {"clip": clip, "learning_rate": 1e-3, "weight_decay": 0.1}
        record = dataclasses.replace(new.provenance, arguments=arguments)
        told = dataclasses.replace(new, provenance=record)
        said = f"8000 steps, cosine learning rate 0.001, weight decay 0.1, {words}"
        assert f"Trained for {said}; 8 seeds." in told.reading()
        assert short in told.headline()
