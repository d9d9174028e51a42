"""Recipes are short, say what they found, and run."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT
from huggingface_hub import constants

import llmprobe
from llmprobe import load_model, load_result

RECIPES = sorted((ROOT / "recipes").glob("*.py"))
BOOKS = ROOT.parent / "shared" / "data" / "gutenberg"
needs_books = pytest.mark.skipif(not BOOKS.is_dir(), reason="the shared data are not here")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_short_and_states_question_expectation_and_finding(recipe):
    text = recipe.read_text()
    assert text.count("\n") <= 120
    docstring = ast.get_docstring(ast.parse(text))
    assert all(word in docstring for word in ("Question:", "Expected:", "Measured:"))


def test_every_recipe_is_made_by_one_target():
    makefile = (ROOT / "Makefile").read_text()
    named = re.search(r"^RECIPES := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1]
    names = {path.stem for path in RECIPES}
    assert set(named.replace("\\", " ").split()) == names


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_uses_public_names_only(recipe):
    for node in ast.walk(ast.parse(recipe.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "llmprobe":
            assert node.module == "llmprobe"
            assert {alias.name for alias in node.names} <= set(llmprobe.__all__)
        if isinstance(node, ast.Import):
            assert not [a.name for a in node.names if a.name.startswith("llmprobe.")]


def has_measured(recipe):
    return "Measured: nothing yet" not in ast.get_docstring(ast.parse(recipe.read_text()))


DRAWN = {"leaderboard"}
"""Of the results of other recipes."""
MEASURED = [recipe for recipe in RECIPES if has_measured(recipe) and recipe.stem not in DRAWN]


@pytest.mark.parametrize("recipe", MEASURED, ids=lambda path: path.stem)
def test_a_recipe_has_its_figure_with_the_saved_result(recipe):
    figures = ROOT / "figures"
    assert list(figures.glob(f"{recipe.stem}*.png"))
    assert list(figures.glob(f"{recipe.stem}*.pdf"))
    for folder in {path.parent for path in figures.glob(f"{recipe.stem}*/**/result.json")}:
        assert load_result(folder).headline()
    assert list(figures.glob(f"{recipe.stem}*/**/result.json"))


@pytest.mark.parametrize("name", ["proposition_1", "set_complement_theory"])
def test_a_figure_of_several_results_is_drawn_again_without_training(
    name, run_script, monkeypatch, tmp_path
):
    shutil.copytree(ROOT / "figures" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    command = (ROOT / "recipes" / f"{name}.py", "--redraw", "--output", tmp_path)
    code, _, err = run_script(*command)
    assert (code, err) == (0, "")
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {name, f"{name}.png", f"{name}.pdf"}
    shutil.rmtree(tmp_path / name)
    code, _, err = run_script(*command)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert err.startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["figure_1_llm_variance", "head_decay_map"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "HuggingFaceTB/SmolLM2-135M is not all in the cache"),
        (["--model", "none.gguf"], "none.gguf does not exist"),
        (["--model", "builtin", "--text", "none.txt"], "'none.txt' does not exist"),
    ],
)
def test_what_a_recipe_cannot_load_ends_it_in_one_line(
    name, options, words, run_script, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    code, out, err = run_script(ROOT / "recipes" / f"{name}.py", *options)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"{name}: ")
    assert words in err


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_at_its_quick_scale_without_a_warning(recipe, tmp_path):
    command = [sys.executable, recipe, "--scale", "quick", "--output", tmp_path / "figures"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for ending in ("png", "pdf"):
        assert list(tmp_path.glob(f"figures/{recipe.stem}*.{ending}"))
    assert list(tmp_path.glob(f"figures/{recipe.stem}*/**/result.json"))


def test_the_builtin_model_is_small_and_loads_like_any_other():
    folder = ROOT / "llmprobe" / "capture" / "builtin"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5_000_000
    loaded = load_model("builtin")
    assert (loaded.context_length, loaded.adds_bos, loaded.dtype) == (256, True, "float32")
    assert 1_000_000 < sum(p.numel() for p in loaded.model.parameters()) < 2_000_000
    text = "It was a bright morning.\nHe smiled."
    assert loaded.tokenizer.decode(loaded.tokenizer(text).input_ids[1:]) == text


@pytest.mark.slow
@needs_books
def test_the_builtin_model_has_the_loss_that_its_card_states():
    path = ROOT / "recipes" / "train_builtin_model.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    _, (train, tune, held) = recipe.load_corpus(BOOKS.glob("*.txt"))
    loss = recipe.model_loss(load_model("builtin").model, held)
    _, _, trigram = recipe.ngram_losses(train, tune, held)
    assert loss == pytest.approx(3.656, abs=0.002)
    assert trigram == pytest.approx(4.115, abs=0.002)
    assert loss < trigram - 0.4


@pytest.mark.slow
def test_the_builtin_model_can_be_trained_anew(tmp_path):
    script = ROOT / "recipes" / "train_builtin_model.py"
    options = ["--scale", "quick", "--output", tmp_path / "figures", "--folder", tmp_path / "new"]
    subprocess.run([sys.executable, script, *options], check=True, capture_output=True)
    assert load_model(tmp_path / "new").context_length == 256


def test_training_the_builtin_model_asks_for_its_novels(run_script):
    code, _, err = run_script(ROOT / "recipes" / "train_builtin_model.py")
    assert code == 1
    assert err.splitlines() == [
        "no novels: desk scale needs --texts FOLDER with .txt of Project Gutenberg"
    ]
