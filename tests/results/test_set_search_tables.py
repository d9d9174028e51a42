"""Terminal tables of a search over sets show the frames' numbers."""

from checkout import shown_text
from search_samples import SET_RANGES, make_set_search_result

from llmprobe.base.signs import minus
from llmprobe.results.set_search_tables import (
    correlation_table,
    drawn_from,
    effect_table,
    tree_table,
)


def test_tables_show_the_frames_numbers():
    result = make_set_search_result(16, wide=0.3)
    effects, tree = result.effect_frame(), result.tree_frame()
    shown = " ".join(shown_text(effect_table(effects)).split())
    for row in effects.to_dict("records"):
        ends = f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        cells = f"{row['times']}× {100 * row['difference']:+.1f} {ends} {row['better']} "
        assert minus(f"{cells}{row['worse']} {row['n_settings']}") in shown
    shown = " ".join(shown_text(tree_table(tree)).split())
    for row in tree.to_dict("records"):
        assert minus(f"{row['settings']} {row['n_settings']} {100 * row['difference']:+.1f}") in (
            shown
        )
    shown = " ".join(shown_text(correlation_table(result.correlation_frame())).split())
    for row in result.correlation_frame().to_dict("records"):
        if row["variant"] == "layernorm":
            assert minus(f"{row['parameter']} {row['rho']:+.2f}") in shown
    words = " ".join(shown_text(drawn_from(SET_RANGES)).split())
    assert all(f"{name} {range_}" in words for name, range_ in SET_RANGES.items())
