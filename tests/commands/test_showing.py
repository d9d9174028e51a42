"""How a result is shown, and its figures drawn."""

import json
import os

import pytest
from legal_samples import make_legality_result
from samples import make_attention_result, make_synthetic_result, make_variance_result
from search_samples import make_search_result

from llmprobe.commands.showing import draw_figures, show_result
from llmprobe.results.opening import known_kinds

MAKERS = {
    "variance": make_variance_result,
    "attention": make_attention_result,
    "synthetic": make_synthetic_result,
    "legality": make_legality_result,
    "search": make_search_result,
}


@pytest.mark.parametrize("kind", known_kinds())
def test_a_result_is_shown_with_what_it_says_its_notes_and_its_files(kind, tmp_path, capsys):
    result = MAKERS[kind]()
    folder = result.save(tmp_path / "run")
    show_result(result, folder, as_json=False)
    out = capsys.readouterr().out
    assert out.startswith(result.headline())
    for line in (*result.remarks(), *(f"note: {note}" for note in result.warnings)):
        assert f"\n{line}\n" in out
    files = f"result.json, arrays.npz, {kind}.png, {kind}.pdf"
    assert out.endswith(f"saved: {folder} ({files})\n")


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
