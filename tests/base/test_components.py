"""Variance within and between queries equals brute force over pairs of prompts."""

from itertools import combinations

import numpy as np
import pytest

from llmprobe.base.components import GroupMoments, over_features


def outputs(n, n_groups, spread=1.0, seed=0):
    """Prompts (n, features) whose mean depends on their query, far from zero."""
    rng = np.random.default_rng(seed)
    query = rng.normal(scale=spread, size=(n_groups, 3))
    return 100 + query[np.arange(n) % n_groups] + rng.normal(size=(n, 3))


def moments(x, n_groups, *, are_queries=True):
    groups = [x[np.arange(len(x)) % n_groups == g] for g in range(n_groups)]
    return GroupMoments(
        count=np.stack([np.full(x.shape[1:], float(len(g))) for g in groups]),
        mean=np.stack([g.mean(axis=0) if len(g) else np.zeros(x.shape[1:]) for g in groups]),
        m2=np.stack([((g - g.mean(axis=0)) ** 2).sum(axis=0) for g in groups]),
        sizes=np.array([float(len(g)) for g in groups]),
        are_queries=are_queries,
    )


def test_parts_are_means_over_pairs_of_prompts():
    x = outputs(20, 5)
    same, other = [], []
    for i, j in combinations(range(20), 2):
        (same if i % 5 == j % 5 else other).append((x[i] - x[j]) ** 2 / 2)
    total, within, between = moments(x, 5).split()
    np.testing.assert_allclose(within, np.mean(same, axis=0))
    np.testing.assert_allclose(total, np.mean(other, axis=0))
    np.testing.assert_allclose(between, total - within)


@pytest.mark.parametrize("are_queries", [True, False])
@pytest.mark.parametrize("n", [20, 23])
def test_leaving_out_a_group_is_the_same_as_never_having_seen_it(n, are_queries):
    x = outputs(n, 5)
    found = moments(x, 5, are_queries=are_queries).split_without()
    for g in range(5):
        rest = [h for h in range(5) if h != g]
        whole = moments(x, 5, are_queries=are_queries)
        fewer = GroupMoments(
            *(getattr(whole, name)[rest] for name in ("count", "mean", "m2", "sizes")), are_queries
        )
        for got, expected in zip(found, fewer.split(), strict=True):
            np.testing.assert_allclose(got[g], expected, rtol=1e-9)


def test_groups_that_are_no_queries_give_the_plain_variance():
    x = outputs(23, 5)
    total, within, between = moments(x, 5, are_queries=False).split()
    np.testing.assert_allclose(total, x.var(axis=0, ddof=1))
    assert np.isnan(within).all()
    assert np.isnan(between).all()


def test_one_prompt_for_each_query_gives_the_total_alone():
    x = outputs(5, 5)
    total, within, _ = moments(x, 5).split()
    np.testing.assert_allclose(total, x.var(axis=0, ddof=1))
    assert np.isnan(within).all()


@pytest.mark.parametrize("n", [64, 71])
def test_both_parts_are_unbiased(n):
    found = [moments(outputs(n, 16, spread=2, seed=s), 16).split() for s in range(400)]
    assert np.mean([x.within for x in found]) == pytest.approx(1, rel=0.03)
    assert np.mean([x.between for x in found]) == pytest.approx(4, rel=0.06)


def test_what_never_varies_has_variance_zero_exactly():
    total, within, between = moments(np.full((23, 4), 0.1), 5).split()
    assert not np.concatenate([total, within, between]).any()


def test_features_are_summed_where_they_are_known_at_all_lengths():
    variance = np.arange(12.0).reshape(2, 2, 3)
    variance[0, 1, 2] = np.nan
    np.testing.assert_array_equal(over_features(variance), [[1, 7], [21, 30]])
    assert np.isnan(over_features(np.full((2, 3), np.nan))).all()
