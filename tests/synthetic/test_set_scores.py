"""Evaluation against a plain loop over single sets."""

import numpy as np
import pytest
import torch
from devices import DEVICE, KIND

from llmprobe.synthetic import set_scores as evaluation
from llmprobe.synthetic.set_network import SetNetwork
from llmprobe.synthetic.set_scores import digest_test_sets, draw_test_sets, evaluate
from llmprobe.synthetic.tasks import TASKS, ArgmaxTask, DictionaryTask, SetTask


def network_of(*arguments, **options):
    return SetNetwork(*arguments, **options).to(DEVICE)


def _brute(network, length, n_sets):
    """Set by set, all in float64 numpy, of one seed on its own sets."""
    hits, outputs, entropies, tops = [], [], [], []
    for tokens, labels in draw_test_sets(network.task, length, n_sets, seed=network.seeds[0]):
        for one, label in zip(tokens, labels, strict=True):
            with torch.no_grad():
                answer = network(one[None].to(DEVICE))
            hits.append(int(answer.logits.argmax()) == int(label))
            outputs.append(answer.output[0].cpu().double().numpy())
            weights = answer.weights[0].cpu().double().numpy()
            entropies.append(-(weights * np.log(weights)).sum(axis=-1).mean())
            tops.append(np.sort(weights.mean(axis=0))[::-1][:16])
    x = np.array(outputs)
    return {
        "accuracy": np.mean(hits),
        "global_mean": x.mean(axis=1).mean(),
        "global_variance": x.var(axis=1).mean(),
        "feature_variance": x.var(axis=0, ddof=1).mean(),
        "entropy": np.mean(entropies),
        "global_mean_error": x.mean(axis=1).std(ddof=1) / n_sets**0.5,
    }, (x, np.array(tops))


@pytest.mark.parametrize("task", [n for n, task in TASKS.items() if issubclass(task, SetTask)])
@pytest.mark.parametrize("chunk", [64, 2**14])
def test_all_statistics_equal_a_loop_over_single_sets(monkeypatch, task, chunk):
    monkeypatch.setitem(evaluation._CHUNK, KIND, chunk)
    network = network_of(task, "layernorm", seeds=(4, 1), width=16, heads=2)
    measured = evaluate(network, length=20, n_sets=50)
    for index in range(2):
        expected, (x, tops) = _brute(network.member(index), 20, 50)
        for name, value in expected.items():
            assert getattr(measured, name)[index] == pytest.approx(value, rel=1e-5, abs=1e-7), name
        if index == 0:
            np.testing.assert_allclose(measured.feature_values, x[:, :5], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(measured.top_weights, tops[:32], rtol=1e-5)


def test_chunks_do_not_change_the_sets(monkeypatch):
    network = network_of("argmax", width=16)
    whole = evaluate(network, length=33, n_sets=40)
    monkeypatch.setitem(evaluation._CHUNK, KIND, 33)
    single = evaluate(network, length=33, n_sets=40)
    assert whole.accuracy == single.accuracy
    np.testing.assert_allclose(whole.feature_variance, single.feature_variance, rtol=1e-6)


def test_few_test_sets_are_the_beginning_of_many():
    many, few = (
        torch.cat([tokens for tokens, _ in draw_test_sets(ArgmaxTask(), 2**14, n, seed=0)])
        for n in (12, 9)
    )
    assert torch.equal(many[:9], few)
    assert len(many) == 12


def test_a_seed_has_its_own_test_sets_whatever_the_variant_and_its_neighbors():
    first, again, other = (
        next(draw_test_sets(ArgmaxTask(), 20, 8, seed=seed))[0] for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not (first == other).any()
    stack = network_of("argmax", "layernorm", seeds=(4, 3), width=16)
    pair, alone = evaluate(stack, 20, 64), evaluate(stack.member(1), 20, 64)
    assert pair.accuracy[1] == alone.accuracy[0]
    assert pair.global_mean[1] == alone.global_mean[0]
    # The same network under another seed's number is tested on that seed's sets.
    renamed = network_of("argmax", "layernorm", seeds=(9,), width=16)
    renamed.load_state_dict(stack.member(1).state_dict())
    assert evaluate(renamed, 20, 64).global_mean[0] != alone.global_mean[0]


def test_digests_tell_test_sets_apart():
    argmax, dictionary = ArgmaxTask(), DictionaryTask()
    assert digest_test_sets(argmax, (16, 32), (0,)) == digest_test_sets(argmax, (16, 32), (0,))
    assert digest_test_sets(argmax, (16, 32), (0,)) != digest_test_sets(argmax, (16, 64), (0,))
    assert digest_test_sets(argmax, (16,), (0,)) != digest_test_sets(dictionary, (16,), (0,))
    assert digest_test_sets(argmax, (16,), (0,)) != digest_test_sets(argmax, (16,), (0, 1))
    assert digest_test_sets(argmax, (16,), (0,)) != digest_test_sets(argmax, (16,), (1,))


def test_short_sets_have_zeros_behind_their_weights():
    top = evaluate(network_of("argmax", width=16), length=5, n_sets=8).top_weights
    assert top.shape == (8, 16)
    assert (top[:, 5:] == 0).all()
    assert (top[:, :5] > 0).all()


def test_weights_that_are_no_distribution_have_no_entropy():
    measured = evaluate(network_of("argmax", "normalized", width=16), length=20, n_sets=8)
    assert np.isnan(measured.entropy).all()
    assert np.isfinite(measured.accuracy).all()


def test_a_broken_seed_has_no_accuracy_and_spoils_no_other():
    network = network_of("argmax", seeds=(0, 1), width=16)
    network.attention.v_proj.weight.data[0] = torch.nan
    measured = evaluate(network, length=20, n_sets=8)
    assert np.isnan(measured.accuracy).tolist() == [True, False]


def test_every_item_is_reported():
    done = []
    evaluate(network_of("argmax", seeds=(0, 1), width=16), 100, 30, advance=done.append)
    assert sum(done) == 2 * 100 * 30


@pytest.mark.slow
def test_the_longest_sets_need_little_memory(run_python):
    script = """
import resource
from llmprobe.synthetic.set_scores import evaluate
from llmprobe.synthetic.set_network import SetNetwork
network = SetNetwork("dictionary", seeds=(0, 1), heads=4)
evaluate(network, 16, 8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
evaluate(network, 16384, 1024)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = run_python(script)
    assert float(done.stdout) < 1024, done.stderr
