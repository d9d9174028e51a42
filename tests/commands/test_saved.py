"""`plot` and `compare`."""

import pytest


def test_plot_and_compare_work_from_saved_results(call, tmp_path):
    for seed in (0, 1):
        options = ("--lengths", "8,16", "--samples", 4, "--seed", seed, "--quiet")
        assert call("variance", *options, "--output", tmp_path / f"{seed}")[0] == 0
    for kind in ("decay", "heads", "drift", "features"):
        assert call("plot", tmp_path / "0", "--kind", kind, "--format", "svg")[0] == 0
        assert (tmp_path / "0" / f"{kind}.svg").is_file()
    figure = tmp_path / "both.png"
    code, out, _ = call("compare", tmp_path / "0", tmp_path / "1", "--output", figure)
    assert code == 0
    assert figure.is_file()
    assert "median slope" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("plot", "nowhere"),
        ("plot", "{}", "--kind", "pie"),
        ("plot", "{}", "--format", "gif"),
        ("plot", "{}", "--width", "0"),
        ("compare", "{}", "nowhere"),
    ],
)
def test_bad_input_to_plot_and_compare_is_one_line(call, tmp_path, variance_result, arguments):
    variance_result.save(tmp_path / "run")
    code, out, err = call(*[a.replace("{}", str(tmp_path / "run")) for a in arguments])
    assert code == 1
    assert out == ""
    assert len(err.splitlines()) == 1
