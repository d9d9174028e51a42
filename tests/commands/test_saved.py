"""`plot`, `compare` and `merge`."""

from samples import make_variance_result


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
