"""The tree finds the split that a search by hand finds, and none in noise."""

import numpy as np
import pytest

from llmprobe.base.trees import best_split, grow_tree


def by_hand(x, y):
    """The column and value of the split that leaves the least squared error."""
    best = (np.inf, None, None)
    for column in range(x.shape[1]):
        for value in np.unique(x[:, column])[:-1]:
            below = x[:, column] <= value
            if min(below.sum(), (~below).sum()) < 6:
                continue
            error = sum(((part - part.mean()) ** 2).sum() for part in (y[below], y[~below]))
            if error < best[0] - 1e-12:
                best = (error, column, value)
    return best[1:]


@pytest.mark.parametrize("seed", range(6))
def test_a_split_is_the_one_of_least_squared_error(seed):
    rng = np.random.default_rng(seed)
    x = np.stack([rng.normal(size=40), rng.integers(0, 3, size=40), rng.integers(0, 2, size=40)], 1)
    y = rng.normal(size=40) + (x[:, 1] > 1) * (seed % 3)
    assert best_split(x, y)[:2] == by_hand(x, y)


def test_a_step_is_found_with_both_sides_and_a_second_one_inside():
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(size=64), rng.integers(1, 4, size=64)], axis=1)
    y = np.where(x[:, 1] <= 2, 0.0, np.where(x[:, 0] <= 0.5, 5.0, 9.0)) + rng.normal(size=64) / 10
    leaves = grow_tree(x, y)
    words = [[(column, sign) for column, sign, _ in leaf.rules] for leaf in leaves]
    assert words == [[(1, "≤")], [(1, ">"), (0, "≤")], [(1, ">"), (0, ">")]]
    assert leaves[0].rules[0][2] == 2
    assert sum(leaf.members.astype(int) for leaf in leaves).tolist() == [1] * 64
    np.testing.assert_allclose([y[leaf.members].mean() for leaf in leaves], [0, 5, 9], atol=0.1)
    assert all(leaf.p == 0.001 for leaf in leaves)
    assert len(grow_tree(x, y, depth=1)) == 2


def test_noise_is_split_in_one_of_twenty_cases():
    rng = np.random.default_rng(1)
    splits = [
        len(grow_tree(rng.normal(size=(24, 5)), rng.normal(size=24), depth=1)) > 1
        for _ in range(100)
    ]
    assert np.mean(splits) <= 0.1


def test_what_is_too_small_or_does_not_vary_is_one_leaf():
    x, y = np.arange(11.0)[:, None], np.arange(11.0)
    (leaf,) = grow_tree(x, y)
    assert (leaf.rules, bool(leaf.members.all())) == ((), True)
    assert np.isnan(leaf.p)
    assert len(grow_tree(np.ones((30, 2)), np.arange(30.0))) == 1
    assert len(grow_tree(np.arange(30.0)[:, None], np.ones(30))) == 1
