"""A view names columns that its result's frames have."""

import pytest
from checkout import ROOT

from llmprobe import load_result
from llmprobe.results.opening import known_kinds
from llmprobe.results.views import HeadMap

FOLDERS = sorted((ROOT / "tests/data/results").glob("*/*"))


@pytest.mark.parametrize("kind", sorted(known_kinds()))
def test_every_kind_says_what_a_page_shows(kind):
    views = known_kinds()[kind].views
    assert views or kind in ("search", "mechanism")  # whose answers are tables
    assert len(set(views)) == len(views)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_columns_of_a_view_are_in_its_frame(folder):
    result = load_result(folder)
    for view in result.views:
        frame = getattr(result, view.frame)()
        if isinstance(view, HeadMap):
            named = ["layer", "head", view.value, view.low, view.high]
        else:
            by = "" if view.by == "result" else view.by or "layer"
            named = [view.x, view.y, view.low, view.high, by]
        assert {name for name in named if name} <= set(frame.columns)
