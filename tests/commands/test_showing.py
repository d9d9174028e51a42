"""How a result is shown, and its figures drawn."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from answer_samples import make_answers_result
from checkout import shown_text
from legal_samples import make_legality_result
from matplotlib.text import Text
from mechanism_samples import make_mechanism_result
from samples import (
    make_ablation_result,
    make_attention_result,
    make_loss_result,
    make_remedy_result,
    make_retrieval_result,
    make_synthetic_result,
    make_variance_result,
)
from search_samples import make_search_result, make_set_search_result

from llmprobe.commands.saved import compare
from llmprobe.commands.showing import draw_figures, in_options, show_result, wrapped
from llmprobe.results.notes import joined_notes
from llmprobe.results.opening import known_kinds

MAKERS = {
    "variance": make_variance_result,
    "attention": make_attention_result,
    "loss": make_loss_result,
    "ablation": make_ablation_result,
    "remedy": make_remedy_result,
    "retrieval": make_retrieval_result,
    "synthetic": make_synthetic_result,
    "legality": make_legality_result,
    "answers": make_answers_result,
    "search": make_search_result,
    "mechanism": make_mechanism_result,
    "set-search": make_set_search_result,
}


@pytest.mark.parametrize("kind", known_kinds())
def test_a_result_is_shown_with_what_it_says_its_notes_and_its_files(kind, tmp_path, capsys):
    result = MAKERS[kind]()
    folder = result.save(tmp_path / "run")
    show_result(result, folder, as_json=False)
    out = capsys.readouterr().out
    assert out.startswith(result.headline())
    for line in (*result.remarks(), *(f"note: {note}" for note in joined_notes(result.warnings))):
        assert f"\n{in_options(line)}\n" in out
    files = f"result.json, arrays.npz, {kind}.png, {kind}.pdf"
    assert out.endswith(f"saved: {folder} ({files})\n")


@pytest.mark.parametrize("kind", known_kinds())
def test_numbers_have_one_minus_sign_in_words_tables_and_figures(kind):
    result = MAKERS[kind]()
    said = [result.headline(), *result.remarks(), shown_text(result.table())]
    for name in result.plots:
        figure = np.atleast_1d(result.plot(name)).ravel()[0].get_figure(root=True)
        said += [text.get_text() for text in figure.findobj(Text)]
    hyphens = [text for text in said if re.search(r"(?<![\w.-])-\.?\d", text)]
    assert not hyphens


@pytest.mark.parametrize("kind", known_kinds())
def test_a_terminal_of_80_columns_breaks_no_word_of_a_table(kind):
    table = MAKERS[kind]().table(width=80)
    narrow, wide = (shown_text(table, width=width) for width in (80, 400))
    assert "…" not in narrow
    assert sorted(narrow.split()) == sorted(wide.split())


def test_a_document_is_all_that_is_printed_and_figures_are_drawn(tmp_path, capsys):
    result = make_variance_result()
    folder = result.save(tmp_path / "run")
    show_result(result, folder, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["output"]) == ("variance", "run")
    assert (folder / "variance.png").is_file()
    assert (folder / "variance.pdf").is_file()


def test_figures_that_are_there_stay_and_those_of_an_older_result_are_drawn_again(tmp_path):
    result = make_variance_result()
    folder = result.save(tmp_path / "run")
    draw_figures(result, folder)
    figure = folder / "variance.png"
    drawn = figure.read_bytes()
    figure.write_bytes(b"mine")
    draw_figures(result, folder)
    assert figure.read_bytes() == b"mine"
    later = figure.stat().st_mtime + 9
    os.utime(folder / "result.json", (later, later))
    draw_figures(result, folder)
    assert figure.read_bytes() == drawn
    (folder / "variance.pdf").unlink()
    figure.write_bytes(b"mine")
    os.utime(figure, (later, later))
    draw_figures(result, folder)
    assert figure.read_bytes() == b"mine"
    assert (folder / "variance.pdf").is_file()


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    (tmp_path / "thesis").write_text("mine")
    result = make_variance_result()
    folder = result.save(tmp_path / "run")
    (folder / "variance.png").symlink_to(tmp_path / "thesis")
    (folder / "variance.pdf").symlink_to(tmp_path / "nowhere")
    draw_figures(result, folder)
    assert (tmp_path / "thesis").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert not (folder / "variance.png").is_symlink()
    assert (folder / "variance.pdf").read_bytes()[:4] == b"%PDF"


EVIL = "\x1b]0;x\x07\x1b[2J\r[red]a[/red] $\\\\frac{1}{2}$ $x"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", known_kinds())
def test_words_of_a_file_are_text_on_the_terminal_and_in_figures(kind, tmp_path, capsys):
    """Names that a document holds are replaced by ones that a terminal would obey."""
    result = MAKERS[kind]()
    changed = {"provenance": replace(result.provenance, model=EVIL), "warnings": (EVIL,)}
    if hasattr(result, "variants"):
        changed["variants"] = tuple(f"{name}{EVIL}" for name in result.variants)
    result = replace(result, **changed)
    folder = result.save(tmp_path / "run")
    show_result(result, folder, as_json=False)
    out = capsys.readouterr().out
    assert not [c for c in out if not c.isprintable() and c != "\n"]
    assert "[red]a[/red]" in out.replace("\n", "")
    for name in result.plots:
        figure = np.atleast_1d(result.plot(name)).ravel()[0].get_figure(root=True)
        figure.set_layout_engine("none")  # reads every text again and again
        figure.draw_without_rendering()


def test_names_in_a_comparison_are_text(tmp_path, capsys):
    folders = []
    for number in range(2):
        result = make_variance_result()
        provenance = replace(result.provenance, model=f"{EVIL}{number}")
        folders.append(replace(result, provenance=provenance).save(tmp_path / f"{number}"))
    compare(folders, output=tmp_path / "x.svg")
    out = capsys.readouterr().out
    assert not [c for c in out if not c.isprintable() and c != "\n"]
    assert "[red]a[/red]" in out
    assert r"\frac{1}{2}" in (tmp_path / "x.svg").read_text()


def test_words_for_python_become_options():
    said = 'note: 3 of 6; raise n_prompts, or compare it by null="untrained"; raise my_model'
    assert in_options(said) == (
        "note: 3 of 6; raise --n-prompts, or compare it by --null untrained; raise my_model"
    )
    assert in_options("n_prompts: got 0, accepted: 1") == "--n-prompts: got 0, accepted: 1"


def test_a_quoted_token_and_a_percentage_are_one_word():
    lines = wrapped("12 query tokens: ' over', 'a' (95 % CI)", 24).splitlines()
    assert lines == ["12 query tokens:", "  ' over', 'a' (95 % CI)"]
    lines = wrapped("name  one two three four", 14, indent=6).splitlines()
    assert lines == ["name  one two", "      three", "      four"]


def test_lines_are_wrapped_between_words():
    text = "note: a_very_long_name_that_fits_no_line and some-hyphens-in-it, a b c"
    lines = wrapped(text, 20).splitlines()
    assert " ".join(line.strip() for line in lines) == text
    assert set(" ".join(lines).split()) == set(text.split())
    assert all(len(line) <= 20 or len(line.split()) == 1 for line in lines)
