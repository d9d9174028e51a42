"""What is said of slopes: counts of labels, and that a null model explains what it explains."""

import dataclasses

import numpy as np
import pytest
from samples import make_variance_result


def changed(result, **values):
    return dataclasses.replace(
        result, **{name: np.full(len(result.layer), v) for name, v in values.items()}
    )


def with_null(result, p):
    told = dataclasses.replace(result.provenance, arguments={"null": "untrained"})
    known = changed(result, slope_null=-0.47, p_null=0.5)
    return dataclasses.replace(known, provenance=told, p_null=np.asarray(p))


def test_the_reading_says_what_the_slopes_say():
    many = make_variance_result()
    single = many.select(layer=0, head=0)
    assert "changes as N^−0.50 (95 % CI −0.60 to −0.40)" in single.reading()
    assert ": dispersing; uniform attention would give N^−0.50." in single.reading()
    assert single.reading().endswith('compare with null="untrained".')
    found = many.reading()
    assert "Of 6 heads, 6 are dispersing (slope within 0.1 of uniform attention, −0.50)" in found
    assert "Holm's correction over heads). Slopes range from −0.50 to −0.50." in found
    bent = changed(many, curvature=0.1, p_curvature=1e-5)
    assert "A straight line does not fit 6: the slope rises with length in 6." in bent.reading()
    unknown = changed(many, slope_total_low=np.nan)
    assert "no confidence interval" in unknown.reading()
    assert "No slope" in changed(many, slope_total=np.nan).reading()


@pytest.mark.parametrize("series", [6, 1])
def test_what_an_untrained_model_does_too_is_not_sold_as_a_finding(series):
    result = make_variance_result()
    result = result if series == 6 else result.select(layer=0, head=0)
    falling = changed(result, p_uniform=1)
    for told, label in ((result, "dispersing"), (falling, "falling")):
        assert set(told.labels()) == {label}
        assert "this alone shows nothing learned" in told.reading()
    undecided = changed(result, p_uniform=1, p_zero=1)
    assert "nothing learned" not in undecided.reading()


def test_a_null_says_which_heads_have_learned_something():
    many = make_variance_result()
    none = with_null(many, [0.5] * 6).reading()
    assert none.endswith(
        "None of 6 differ from the untrained model (median slope −0.47) on the same prompts "
        "(5 %, Holm's correction): they show nothing learned."
    )
    some = with_null(many, [1e-4, 1e-4, 0.5, 0.5, 0.5, 0.5]).reading()
    assert " 2 of 6 differ from the untrained model" in some
    assert some.endswith("(5 %, Holm's correction); the others show nothing learned.")
    every = with_null(many, [1e-4] * 6).reading()
    assert every.endswith(
        "6 of 6 differ from the untrained model (median slope −0.47) on the same "
        "prompts (5 %, Holm's correction)."
    )
    single = many.select(layer=0, head=0)
    same, other = (with_null(single, [p]).reading() for p in (0.5, 1e-4))
    assert " It shows nothing learned: it does not differ from the untrained model" in same
    assert other.endswith(
        " It differs from the untrained model (slope −0.47) on the same prompts (5 %)."
    )
