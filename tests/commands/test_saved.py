"""`plot`, `compare` and `merge`."""


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
