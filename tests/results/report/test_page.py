"""One file that holds everything, runs nothing but its own code, and shows the frame's numbers."""

import dataclasses
import json
import re
import time

import pytest
from browser import CHROMIUM, ask
from checkout import ROOT
from legal_samples import make_legality_result
from samples import make_attention_result, make_synthetic_result, make_variance_result, spoil
from search_samples import make_search_result

from llmprobe import ResultExistsError, load_result, write_report
from llmprobe.results.report.page import render

HOSTILE = "</script><script>alert(1)</script>\x1b[31m\"'&\u2028"
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def data_of(page: str) -> dict:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def with_name(result, name):
    provenance = dataclasses.replace(result.provenance, model=name)
    return dataclasses.replace(result, provenance=provenance)


@pytest.fixture(scope="module")
def page() -> str:
    named = [("toy", make_variance_result()), ("toy", make_attention_result())]
    lab = [
        ("argmax", make_synthetic_result(3)),
        ("set-complement", make_legality_result()),
        ("set-complement", make_search_result()),
    ]
    return render(named + lab)


def test_it_fetches_nothing(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    shell = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', shell)


def test_it_says_what_was_run_and_found(page):
    for result in (make_variance_result(), make_synthetic_result(3)):
        assert result.headline().split(";")[0] in page
    assert "short training" in page  # a warning
    assert "llmprobe variance toy --lengths 16,64,256" in page


def test_without_scripts_there_are_figures_and_tables(page):
    assert page.count("<noscript><figure><img") == 5
    rows = make_variance_result().decay_frame()
    assert page.count("<tbody>") == 5
    assert f"{len(rows):,} rows" in page


def test_the_csv_is_the_frame(page):
    import io

    import pandas as pd

    result = make_attention_result()
    frame = pd.read_csv(io.StringIO(data_of(page)["tables"]["table-1"]))
    pd.testing.assert_frame_equal(frame, result.to_frame(), rtol=1e-5, check_dtype=False)


def test_words_of_a_file_are_text():
    result = with_name(make_variance_result(), HOSTILE)
    result = dataclasses.replace(result, warnings=(HOSTILE,))
    page = render([(HOSTILE, result)], title=HOSTILE)
    assert "alert(1)</script>" not in page
    assert "\x1b" not in page
    assert len(re.findall("<script", page)) == 3 + page.count("<script>$")
    data_of(page)


def test_folders_and_results_of_one_model_are_told_apart(tmp_path):
    result = make_variance_result()
    for name in ("one", "two"):
        result.save(tmp_path / name)
    path = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "page.html")
    text = path.read_text()
    assert "toy (one): variance" in text
    assert "toy (two): variance" in text
    assert "toy (two) minus toy (one): slopes of the same heads, 6 rows" in text
    with pytest.raises(ResultExistsError, match=r"page\.html exists"):
        write_report(result, path)
    write_report(result, path, overwrite=True)
    with pytest.raises(ValueError, match="results: got none"):
        write_report([], path, overwrite=True)


WITHOUT_TORCH = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "accelerate", "datasets"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
from llmprobe import load_result, write_report
load_result(sys.argv[1]).explore().to_dict()
write_report(sys.argv[1], sys.argv[2])
"""


@pytest.mark.thorough
def test_it_needs_no_torch(run_python, tmp_path):
    make_variance_result().save(tmp_path / "one")
    done = run_python(WITHOUT_TORCH, tmp_path / "one", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()


@pytest.mark.slow
def test_a_thousand_heads_stay_below_five_megabytes():
    result = make_variance_result(n_heads=512, lengths=tuple(2**n for n in range(4, 15)))
    assert len(render([("large", result)]).encode()) < 5e6


@pytest.mark.thorough
@pytest.mark.parametrize("folder", sorted((ROOT / "tests/data/results").glob("*/*")))
def test_every_kept_folder_becomes_a_page(folder):
    result = load_result(folder)
    assert result.kind in render([("kept", result)])


@pytest.mark.slow
@browser
def test_a_click_shows_the_curve_of_that_head(tmp_path):
    # Its CI holds 0, so that a dot lies on the cell.
    result = spoil(make_variance_result(), "slope_high", slice(None), 0.1)
    script = """
      const view = Object.values(window.llmprobeViews)[0];
      const cells = [...document.querySelectorAll("#chart-0 .mark-rect path")];
      const shown = () => [...document.querySelectorAll("#chart-0 .mark-symbol path")]
        .map((mark) => mark.__data__.datum || mark.__data__)
        .filter((datum) => datum && "std_median" in datum);
      const before = shown();
      const data = (cell) => cell.__data__.datum || {};
      const cell = cells.find((c) => data(c).layer === 1 && data(c).head === 2);
      cell.scrollIntoView({ block: "center" });
      const box = cell.getBoundingClientRect();
      const at = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
      for (const kind of ["pointerdown", "mousedown", "pointerup", "mouseup", "click"])
        document.elementFromPoint(at.clientX, at.clientY).dispatchEvent(new MouseEvent(kind, at));
      await view.runAsync();
      const after = shown();
      document.querySelector("#chart-0 svg").dispatchEvent(new MouseEvent("click", at));
      await view.runAsync();
      const requests = performance.getEntriesByType("resource").map((entry) => entry.name);
      return { before, after, beside: shown(), requests };
    """
    answer, said = ask(render([("toy", result)]), tmp_path, script)
    assert said == []
    assert answer["requests"] == []
    frame = result.to_frame()
    wanted = frame[(frame.layer == 1) & (frame["head"] == 2)]
    assert {(row["layer"], row["head"]) for row in answer["before"]} != {(1, 2)}
    assert [row["std_median"] for row in answer["after"]] == pytest.approx(
        wanted.std_median.tolist(), rel=1e-5
    )
    assert answer["beside"] == answer["after"]  # a click next to the cells


@pytest.mark.slow
@browser
def test_hostile_words_run_nothing(tmp_path):
    result = dataclasses.replace(with_name(make_variance_result(), HOSTILE), warnings=(HOSTILE,))
    page = render([(HOSTILE, result)], title=HOSTILE)
    page = page.replace("alert(1)", "window.hacked=1")
    answer, said = ask(page, tmp_path, "return window.hacked || 0;")
    assert (answer, said) == (0, [])


@pytest.mark.slow
@browser
def test_a_thousand_heads_open_at_once(tmp_path):
    result = make_variance_result(n_heads=512, lengths=tuple(2**n for n in range(4, 15)))
    page = render([("large", result)])
    began = time.perf_counter()
    n_cells, said = ask(
        page, tmp_path, 'return document.querySelectorAll("#chart-0 .mark-rect path").length;'
    )
    print(f"{len(page) / 1e6:.1f} MB, {time.perf_counter() - began:.1f} s with the browser's start")
    assert (n_cells >= 1024, said) == (True, [])
