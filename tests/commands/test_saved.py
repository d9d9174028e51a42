"""`show`, `plot`, `compare` and `merge`."""

import io
import json

import pandas as pd
import pytest
from samples import make_attention_result, make_synthetic_result, make_variance_result

from llmprobe.probes.variance import VarianceProbe


def test_show_prints_what_the_command_printed(call, tmp_path):
    target = tmp_path / "run"
    first = call("variance", "--lengths", "8,16", "--n-prompts", 4, "--output", target)[1]
    assert call("show", target) == (0, first, "")


@pytest.mark.parametrize("make", [make_variance_result, make_attention_result])
def test_show_exports_all_rows(call, tmp_path, make):
    result = make()
    folder = result.save(tmp_path / "run")
    table = pd.read_csv(io.StringIO(call("show", folder, "--csv")[1]))
    pd.testing.assert_frame_equal(table, result.to_frame(), check_dtype=False)
    document = json.loads(call("show", folder, "--json")[1])
    assert document["rows"] == result.to_document()["rows"]


def test_show_sorts_and_cuts_the_table(call, tmp_path):
    folder = make_variance_result(n_heads=30).save(tmp_path / "run")
    lines = [len(call("show", folder, *more)[1].splitlines()) for more in ((), ("--rows", 3))]
    assert lines[0] - lines[1] == 17
    assert "more rows" not in call("show", folder, "--rows", "all", "--sort", "slope")[1]
    lab = make_synthetic_result().save(tmp_path / "lab")
    code, _, err = call("show", lab, "--rows", 3)
    assert (code, "synthetic results have no heads; leave it out" in err) == (1, True)


def test_show_says_how_far_a_run_is(call, tmp_path, monkeypatch):
    target = tmp_path / "run"
    options = ("variance", "--lengths", "8,16", "--n-prompts", 4, "--quiet", "--output", target)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(VarianceProbe, "summarize", stop)
        assert call(*options)[0] == 130
    code, out, err = call("show", target)
    assert (code, err) == (0, "")
    assert out == (
        f"{target}: variance of builtin is not finished: 1 piece kept; run the same command to "
        "resume\n"
    )
    assert call(*options)[0] == 0
    assert "not finished" not in call("show", target)[1]


def test_show_needs_no_torch_and_no_matplotlib(run_python, tmp_path):
    folder = make_variance_result().save(tmp_path / "run")
    script = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'matplotlib'): sys.modules[name] = None\n"
        "sys.argv = ['llmprobe', 'show', sys.argv[1]]\n"
        "from llmprobe.cli import main\n"
        "main()"
    )
    done = run_python(script, folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("variance of toy")


def test_plot_and_compare_and_merge_work_from_saved_results(call, tmp_path):
    for seed in (0, 1):
        options = ("--lengths", "8,16", "--n-prompts", 4, "--seed", seed, "--quiet")
        assert call("variance", *options, "--output", tmp_path / f"{seed}")[0] == 0
    for kind in ("decay", "heads", "drift", "features"):
        assert call("plot", tmp_path / "0", "--kind", kind, "--format", "svg")[0] == 0
        assert (tmp_path / "0" / f"{kind}.svg").is_file()
    figure = tmp_path / "both.png"
    code, out, _ = call("compare", tmp_path / "0", tmp_path / "1", "--output", figure)
    assert code == 0
    assert figure.is_file()
    assert "median slope" in out
    both = tmp_path / "both"
    code, out, _ = call("merge", tmp_path / "0", tmp_path / "1", "--output", both)
    assert code == 0
    assert out.startswith("variance of builtin: 1 layer, lengths 8..16, 8 prompts")
    assert {"result.json", "variance.png", "variance.pdf"} <= {p.name for p in both.iterdir()}


def test_no_command_writes_through_a_link(call, tmp_path):
    folder = make_variance_result().save(tmp_path / "run")
    other = make_variance_result().save(tmp_path / "other")
    mine = tmp_path / "thesis"
    for link, command in {
        folder / "decay.png": ("plot", folder),
        folder / "heads.pdf": ("plot", folder, "--kind", "heads", "--format", "pdf"),
        tmp_path / "x.png": ("plot", folder, "--output", tmp_path / "x.png"),
        tmp_path / "y.png": ("compare", folder, other, "--output", tmp_path / "y.png"),
    }.items():
        mine.write_text("mine")
        link.symlink_to(mine)
        assert call(*command)[0] == 0
        assert mine.read_text() == "mine"
        assert not link.is_symlink()
        assert link.stat().st_size > 1000


@pytest.mark.parametrize("words", ["show {0}", "plot {0}", "compare {0} {1} --output {1}.png"])
def test_saved_results_are_shown_without_what_takes_long_to_import(words, run_python, tmp_path):
    first, other = (make_variance_result().save(tmp_path / name) for name in ("run", "other"))
    script = (
        "import sys\nfrom llmprobe.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code in (0, None), e.code\n"
        "print('loaded', *{'torch', 'transformers', 'seaborn', 'scipy.stats'} & set(sys.modules))"
    )
    done = run_python(script, *words.format(first, other).split())
    assert done.stdout.splitlines()[-1] == "loaded", done.stdout + done.stderr
