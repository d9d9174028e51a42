"""Opening a saved result, whatever its kind."""

from pkgutil import iter_modules

from samples import check_same, make_variance_result

import llmprobe.results
from llmprobe import load_result
from llmprobe.results.base import Result
from llmprobe.results.opening import known_kinds


def test_every_kind_is_known_by_the_module_it_is_in():
    modules = {
        f"llmprobe.results.{module.name}" for module in iter_modules(llmprobe.results.__path__)
    }
    assert {kind.__module__ for kind in known_kinds().values()} <= modules
    assert known_kinds().keys() == {"variance", "attention", "synthetic", "legality", "search"}
    assert all(
        issubclass(kind, Result) and kind.kind == name for name, kind in known_kinds().items()
    )


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    result = make_variance_result()
    check_same(load_result(result.save(tmp_path / "run")), result)
