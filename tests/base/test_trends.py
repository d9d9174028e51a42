"""Columns about the change with length: equal to plain fits, with tests that keep their size."""

import numpy as np
import pytest

from llmprobe.base.components import GroupMoments
from llmprobe.base.trends import (
    ENDS,
    SLOPES,
    TESTS,
    curvature_weights,
    fit_sides,
    fit_trends,
    line_weights,
    step_slopes,
)

LENGTHS = (16, 32, 64, 128, 256)


def groups_of(x, n_groups=16, *, are_queries=False):
    """From outputs (prompts, series, lengths, features)."""
    label = np.arange(len(x)) % n_groups
    parts = [x[label == g] for g in range(n_groups)]
    return GroupMoments(
        count=np.stack([np.full(x.shape[1:], float(len(p))) for p in parts]),
        mean=np.stack([p.mean(axis=0) for p in parts]),
        m2=np.stack([((p - p.mean(axis=0)) ** 2).sum(axis=0) for p in parts]),
        sizes=np.bincount(label).astype(float),
        are_queries=are_queries,
    )


def simulate(rng, slope, n=64, series=6, features=4):
    x = rng.normal(size=(n, series, len(LENGTHS), features))
    return x * (np.array(LENGTHS)[:, None] / 16.0) ** slope


def trends(x, **options):
    return fit_trends(LENGTHS, groups_of(x, **options), 1 / np.array(LENGTHS, float))


def test_slopes_are_those_of_plain_fits():
    x = simulate(np.random.default_rng(0), -0.3)
    columns, reasons = trends(x)
    assert reasons == []
    variance = x.var(axis=0, ddof=1)
    log_total = np.log(variance.sum(axis=-1)) / 2
    logs = np.log(LENGTHS)
    np.testing.assert_allclose(columns["slope_total"], np.polyfit(logs, log_total.T, 1)[0])
    each = np.log(variance).transpose(1, 0, 2).reshape(len(LENGTHS), -1) / 2
    by_feature = np.polyfit(logs, each, 1)[0].reshape(6, 4)
    np.testing.assert_allclose(columns["slope_features"], by_feature.mean(axis=1))
    bend = np.polyfit(logs, log_total.T, 2)[0]
    np.testing.assert_allclose(columns["curvature"], 2 * np.log(2) * bend)
    steps = np.diff(log_total) / np.log(2)
    np.testing.assert_allclose(columns["step_slope"][:, 1:], steps)
    assert np.isnan(columns["step_slope"][:, 0]).all()
    np.testing.assert_allclose(columns["slope_uniform"], -0.5)
    for name in SLOPES[:2]:
        low, middle, high = (columns[name + end] for end in ("_low", "", "_high"))
        assert ((low < middle) & (middle < high)).all()


def test_the_sides_of_an_edge_have_slopes_of_their_own():
    x = simulate(np.random.default_rng(1), -0.4)
    groups = groups_of(x)
    for n_before, edge in ((2, 32), (2, 63), (3, 64)):
        log_total = np.log(x.var(axis=0, ddof=1).sum(axis=-1)) / 2
        for found, side in zip(
            fit_sides(LENGTHS, groups, edge), (slice(n_before), slice(n_before, None)), strict=True
        ):
            plain = np.polyfit(np.log(LENGTHS[side]), log_total[:, side].T, 1)[0]
            np.testing.assert_allclose(found.value, plain)
            low, high = found.ends()
            assert ((low < found.value) & (found.value < high)).all()
    for edge in (8, 16, 128, 999):
        assert fit_sides(LENGTHS, groups, edge) == []


def test_weights_find_a_line_and_a_parabola_exactly():
    x = np.log(LENGTHS)
    assert line_weights(LENGTHS) @ (3 - 0.4 * x) == pytest.approx(-0.4)
    assert curvature_weights(LENGTHS) @ (3 - 0.4 * x) == pytest.approx(0, abs=1e-12)
    parabola = 3 - 0.4 * x + 0.05 * x**2  # its slope is −0.4 + 0.1 x
    assert curvature_weights(LENGTHS) @ parabola == pytest.approx(0.1 * np.log(2))
    assert np.isnan(curvature_weights((16, 64))).all()
    np.testing.assert_allclose(step_slopes((16, 64), np.array([1.0, 0.5]))[1], -0.5 / np.log(4))


def test_equivalence_and_difference_keep_their_size():
    """At −0.4 the slope is 0.1 away from uniform attention's: just not equivalent."""
    rng = np.random.default_rng(1)
    at_margin = trends(simulate(rng, -0.4, series=1500, features=1))[0]
    assert np.mean(at_margin["p_uniform"] < 0.05) < 0.07
    flat = trends(simulate(rng, 0, series=1500, features=1))[0]
    assert 0.03 < np.mean(flat["p_zero"] < 0.05) < 0.07
    assert 0.03 < np.mean(flat["p_curvature"] < 0.05) < 0.07
    uniform = trends(simulate(rng, -0.5, n=256, series=200, features=16))[0]
    assert np.mean(uniform["p_uniform"] < 0.05) > 0.95


def test_queries_as_groups_give_the_slope_within_them():
    rng = np.random.default_rng(2)
    between = 3 * rng.normal(size=(16, 6, 1, 4))
    x = simulate(rng, -0.5, n=128) + between[np.arange(128) % 16]
    columns, _ = trends(x, are_queries=True)
    assert (np.abs(columns["slope_within"] + 0.5) < 0.1).all()
    assert (np.abs(columns["slope_total"]) < 0.1).all()
    assert (columns["p_uniform"] < 0.05).mean() > 0.5  # tests are about the slope within
    total = columns["within_variance"] + columns["between_variance"]
    np.testing.assert_allclose(columns["total_variance"], total)
    assert (columns["between_variance_low"] < 36).any()
    assert (columns["between_variance_high"] > 36).any()


def test_heavy_tails_are_told_and_light_ones_not():
    rng = np.random.default_rng(3)
    x = simulate(rng, -0.5)
    assert trends(x)[1] == []
    rare = x * np.where(rng.random((64, 6, len(LENGTHS), 1)) < 0.01, 20, 1)
    [note] = trends(rare)[1]
    assert note.startswith("heavy tails: ")
    assert note.endswith("raise n_prompts (docs/coverage.md)")


def test_a_note_of_heavy_tails_is_rare_where_there_are_none():
    rng = np.random.default_rng(6)
    for n in (32, 64, 256):
        light = [trends(simulate(rng, -0.3, n=n))[1] for _ in range(40)]
        assert sum(map(bool, light)) <= 3, n
        rare = [np.where(rng.random((n, 6, 1, 1)) < 0.03, 6, 1) for _ in range(40)]
        told = [
            trends(simulate(rng, -0.3, n=n) * by ** (np.arange(5)[:, None] > 2))[1] for by in rare
        ]
        assert sum(map(bool, told)) >= 20, n


def test_few_queries_are_always_told_and_many_by_their_tails():
    rng = np.random.default_rng(7)

    def notes(n_queries, x):
        return trends(x, n_groups=n_queries, are_queries=True)[1]

    [note] = notes(16, simulate(rng, -0.3, n=64))
    assert note.startswith("16 query tokens are few")
    assert notes(64, simulate(rng, -0.3, n=256)) == []
    by = np.where(np.arange(64) == 5, 6, 1)[np.arange(256) % 64, None, None, None]
    odd = simulate(rng, -0.3, n=256) * by ** (np.arange(5)[:, None] > 2)
    [note] = notes(64, odd)
    assert "a few of the queries" in note
    assert note.endswith("raise n_queries (docs/coverage.md)")


def test_the_heads_of_a_layer_have_no_lighter_tails_than_their_mean():
    """A head by itself may miss what the others of the same prompts show."""
    x = np.random.default_rng(8).standard_t(3, size=(64, 12, len(LENGTHS), 1))
    joint = trends(x)[0]
    alone = [trends(x[:, [head]])[0] for head in range(12)]
    for name in ("slope_total", "curvature"):
        np.testing.assert_allclose(joint[name], [one[name][0] for one in alone])
    wide, narrow = (
        joint["slope_total_high"] - joint["slope_total_low"],
        np.array([one["slope_total_high"][0] - one["slope_total_low"][0] for one in alone]),
    )
    assert (wide >= narrow * (1 - 1e-9)).all()
    assert (wide > narrow * 1.01).any()


def test_one_length_has_variances_and_no_slope():
    x = simulate(np.random.default_rng(4), 0)[:, :, :1]
    columns, reasons = fit_trends((16,), groups_of(x), np.array([1.0]))
    assert reasons == ["one length: no slope"]
    assert np.isfinite(columns["total_variance_high"]).all()
    assert all(np.isnan(columns[name]).all() for name in (*SLOPES, *TESTS))
    assert {f"step_slope{end}" for end in ENDS} <= columns.keys()


def test_zero_variance_is_told_and_leaves_the_other_steps():
    x = simulate(np.random.default_rng(5), -0.5)
    x[:, 0, 0] = 7
    columns, reasons = trends(x)
    assert "zero variance at length 16" in reasons
    assert np.isnan(columns["slope"][0])
    assert np.isfinite(columns["slope"][1:]).all()
    assert np.isfinite(columns["step_slope"][0, 2:]).all()
