"""Laws of the accumulators. A new one is tested by being a subclass of `Accumulator`."""

import itertools

import numpy as np
import pytest
import torch
from devices import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st

from llmprobe import Groups, Moments
from llmprobe.base.moments import Accumulator

KINDS = Accumulator.__subclasses__()


def normals(n=4096, features=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, features))


def there(data):
    return torch.as_tensor(data, device=DEVICE)


def feed(accumulator, data, batch):
    for at in range(0, len(data), batch):
        accumulator.update(there(data[at : at + batch]))
    return accumulator


def check_equal(a, b, rtol=1e-12):
    first, second = a.state(), b.state()
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=rtol, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@given(cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_any_batching_gives_the_same(kind, cuts, seed):
    data = normals(60, 3, seed)
    data[seed, 1] = np.nan
    whole = kind().update(there(data))
    parts = kind()
    edges = [0, *sorted(cuts), 60]
    for low, high in itertools.pairwise(edges):
        parts.update(there(data[low:high]))
    check_equal(whole, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_merge_is_union_in_any_order_and_grouping(kind):
    data = normals(90)
    data[::7, 2] = np.inf
    a, b, c = (lambda i=i: feed(kind(), data[i : i + 30], 8) for i in (0, 30, 60))
    union = kind().update(data)
    check_equal(union, a().merge(b()).merge(c()))
    check_equal(union, c().merge(a()).merge(b()))
    check_equal(union, a().merge(b().merge(c())))
    check_equal(union, kind().merge(a()).merge(kind()).merge(b().merge(c())))


@pytest.mark.parametrize("kind", KINDS)
def test_state_round_trips_through_plain_arrays(kind):
    full = feed(kind(), normals(50), 7)
    state = full.state()
    assert all(type(value) is np.ndarray and value.dtype.kind in "if" for value in state.values())
    check_equal(full, kind.from_state(state), rtol=0)
    # The state is a copy, and what comes from it goes on as if nothing had happened.
    again = kind.from_state(state).update(normals(9, seed=3))
    check_equal(full.update(normals(9, seed=3)), again, rtol=0)
    check_equal(kind(), kind.from_state(kind().state()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_the_wrong_shape_is_refused(kind):
    state = feed(kind(), normals(50), 7).state()
    with pytest.raises(ValueError, match="from_state"):
        kind.from_state(state | {kind._parts[-1]: np.zeros(2)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_low_precision_data_get_float64_statistics(kind, dtype):
    low = torch.from_numpy(normals(200) * 3 + 5).to(dtype)
    check_equal(feed(kind(), low, 16), kind().update(low.double().numpy()))


@pytest.mark.parametrize("kind", KINDS)
def test_nonfinite_values_are_counted_and_left_out(kind):
    data = normals(40)
    data[3, 0], data[5, 0], data[6, 4] = np.nan, np.inf, -np.inf
    dirty = feed(kind(), data, 6)
    assert dirty.summary().nonfinite.tolist() == [2, 0, 0, 0, 1]
    # Feature by feature it equals having seen the finite values alone.
    for feature in range(5):
        column = data[:, feature]
        clean = kind().update(column[np.isfinite(column)]).state()
        for name in kind._parts:
            got = dirty.state()[name][feature]
            np.testing.assert_allclose(got, clean[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_without_finite_values_is_said_to_be_so(kind):
    data = normals(10)
    data[:, 1] = np.nan
    summary = kind().update(data).summary()
    assert summary.nonfinite.tolist() == [0, 10, 0, 0, 0]
    if kind is Moments:
        assert np.isnan(summary.mean[1])
        assert summary.count[1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_masked_path_equals_the_fast_one(kind, monkeypatch):
    data = normals(64)
    fast = kind().update(data)
    monkeypatch.setattr("llmprobe.base.moments._finite", lambda values: values.isfinite())
    check_equal(fast, kind().update(data))


@pytest.mark.parametrize("kind", KINDS)
def test_any_feature_shape_and_none(kind):
    for shape in [(), (4,), (2, 3), (2, 0)]:
        x = np.random.default_rng(1).normal(size=(7, *shape))
        accumulator = kind().update(x)
        assert accumulator.n_prompts == 7
        assert accumulator.summary().nonfinite.shape == shape


@pytest.mark.parametrize("kind", KINDS)
def test_input_that_cannot_be_is_refused(kind):
    for wrong in (np.arange(6), torch.arange(6), np.float64(1.0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="update: got"):
            kind().update(wrong)
    with pytest.raises(ValueError, match=r"shape \(3,\) after \(5,\)"):
        kind().update(normals()).update(normals(4, 3))
    with pytest.raises(ValueError, match="seen no prompt"):
        kind().summary()
    with pytest.raises(ValueError, match="must be alike"):
        kind().merge(Groups(kind))
    assert kind().update(normals()[:0]).n_prompts == 0


@pytest.mark.parametrize("kind", KINDS)
def test_summaries_are_frozen_copies(kind):
    accumulator = kind().update(normals(20))
    summary = accumulator.summary()
    for name, value in vars(summary).items():
        assert not value.flags.writeable, name
        with pytest.raises(AttributeError):
            setattr(summary, name, value)
    before = {name: value.copy() for name, value in vars(summary).items()}
    accumulator.update(normals(20, seed=8))
    assert all((before[name] == value).all() for name, value in vars(summary).items())


def test_updating_tracks_no_gradient_and_leaves_the_input_alone():
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    moments = Moments().update(x)
    assert not moments.mean.requires_grad
    assert torch.equal(x, before)


@pytest.mark.parametrize("batch", [1, 2, 16, 256])
def test_moments_equal_numpys_two_passes(batch):
    data = normals()
    summary = feed(Moments(), data, batch).summary()
    np.testing.assert_allclose(summary.variance / data.var(axis=0, ddof=1), 1, atol=1e-12)
    np.testing.assert_allclose(summary.mean, data.mean(axis=0), atol=1e-14)
    assert summary.count.tolist() == [4096] * 5
    np.testing.assert_array_equal(summary.std, np.sqrt(summary.variance))


@pytest.mark.parametrize("batch", [1, 2, 16, 256])
def test_moments_survive_a_large_offset(batch):
    data = normals() + 1e8
    exact = (data - 1e8).var(axis=0, ddof=1)
    summary = feed(Moments(), data, batch).summary()
    np.testing.assert_allclose(summary.variance / exact, 1, atol=1e-7)


@pytest.mark.slow
def test_moments_survive_a_million_batches_of_one():
    data = normals(1_000_000, 2)
    summary = feed(Moments(), data, 1).summary()
    np.testing.assert_allclose(summary.variance / data.var(axis=0, ddof=1), 1, atol=1e-11)


def test_one_prompt_has_a_mean_and_no_variance():
    summary = Moments().update(np.array([[2.0, 3.0]])).summary()
    assert summary.mean.tolist() == [2, 3]
    assert np.isnan(summary.variance).all()


def test_groups_total_and_leave_one_out():
    data = normals(40)
    labels = [row // 5 for row in range(40)]
    groups = Groups(Moments)
    for at in range(0, 40, 7):
        groups.update(there(data[at : at + 7]), labels[at : at + 7])
    check_equal(groups.total(), Moments().update(data))
    kept = np.array(labels) != 3
    check_equal(groups.without(3), Moments().update(data[kept]))
    assert groups.sizes() == dict.fromkeys(range(8), 5)
    check_equal(groups.without(8), Moments().update(data))
    alone = Groups(Moments).update(data[:3], [2, 2, 2]).without(2).summary()
    assert alone.count.sum() == 0
    assert np.isnan(alone.std).all()
    with pytest.raises(ValueError, match="2 group numbers for 3"):
        groups.update(data[:3], [0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_out_each_group_at_once_gives_the_bits_of_one_at_a_time(kind):
    data = normals(41)
    data[3, 1] = np.nan
    labels = [row % 8 for row in range(41)]
    groups = Groups(kind).update(there(data), labels)
    groups.update(there(data[:0]), [])
    chosen = [*range(8), 99]  # nobody is in the last one
    for group, left in zip(chosen, groups.without_each(chosen), strict=True):
        state = groups.without(group).state()
        assert {name: x.tobytes() for name, x in left.state().items()} == {
            name: x.tobytes() for name, x in state.items()
        }
    assert groups.without_each([]) == []
    [nobody] = Groups(kind).update(there(data), [5] * 41).without_each([5])
    assert nobody.n_prompts == 0
    assert np.isnan(nobody.summary().mean).all()


def test_a_group_takes_its_rows_wherever_they_stand_in_a_batch():
    data = normals(4)
    groups = Groups(Moments).update(data, torch.tensor([0, 1, 0, 1]))
    assert sorted(groups.parts) == [0, 1]
    check_equal(groups.parts[0], Moments().update(data[[0, 2]]), rtol=0)
    check_equal(groups.without(0), Moments().update(data[[1, 3]]), rtol=0)


def test_groups_merge_and_round_trip():
    data = normals(40)
    left = Groups(Moments).update(there(data[:20]), [row // 8 for row in range(20)])
    right = Groups(Moments).update(there(data[20:]), [row // 8 for row in range(20, 40)])
    joined = left.merge(right)
    check_equal(joined.total(), Moments().update(data))
    again = Groups.from_state(Moments, joined.state())
    assert again.sizes() == joined.sizes()
    check_equal(again.without(2), joined.without(2), rtol=0)
