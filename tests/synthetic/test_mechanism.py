"""Changes at test time do what they say, and predictors are what a loop over sets finds."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from scipy import stats
from textbook import Textbook

from llmprobe import explain_synthetic, merge_results, search_synthetic, train_synthetic
from llmprobe.errors import CheckpointError
from llmprobe.results.mechanism import CONDITIONS, PREDICTORS
from llmprobe.runs.checkpoints import read_checkpoint, write_checkpoint
from llmprobe.synthetic import mechanism
from llmprobe.synthetic.set_network import SetNetwork
from llmprobe.synthetic.set_scores import draw_test_sets

LONGEST, LENGTH, SETS = 6, 20, 24
RUN = {"seeds": 2, "steps": 60, "width": 8, "batch": 8, "sets": 12, "lengths": (6, 20)}
RUN |= {"train_lengths": "3..6", "learning_rate": 0.01}


def network(variant="residual+layernorm", heads=2, task="dictionary"):
    one = SetNetwork(task, variant, seeds=(3,), width=8, heads=heads)
    generator = torch.Generator().manual_seed(1)
    for parameter in one.parameters():
        parameter.data += 0.6 * torch.randn(parameter.shape, generator=generator)
    return one.eval()


def test_outputs_get_the_wanted_moments():
    generator = torch.Generator().manual_seed(0)
    x = 3 + 2 * torch.randn(50, 4, generator=generator)
    own = (x.mean(dim=0), x.std(dim=0, correction=0))
    wanted = (torch.arange(4.0), torch.tensor([0.5, 1.0, 2.0, 4.0]))
    moved = mechanism._moved(own, wanted)(x)
    torch.testing.assert_close(moved, wanted[0] + (x - own[0]) * wanted[1] / own[1])
    torch.testing.assert_close(moved.mean(dim=0), wanted[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(moved.std(dim=0, correction=0), wanted[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("task", ["argmax", "dictionary"])
def test_a_shorter_set_keeps_the_right_item_and_its_answer(task):
    one = network(task=task)
    ((tokens, labels),) = draw_test_sets(one.task, LENGTH, SETS, seed=3)
    shorter = mechanism._shorter(tokens, one, LONGEST, torch.Generator().manual_seed(0))
    assert shorter.shape == (SETS, LONGEST + 1)
    assert torch.equal(one.task.solve(shorter), labels)
    assert torch.equal(one.task.solve(tokens), labels)
    for few, many in zip(shorter[:, :-1].tolist(), tokens[:, :-1].tolist(), strict=True):
        assert len(set(few)) == LONGEST
        assert set(few) <= set(many)
    again = mechanism._shorter(tokens, one, LONGEST, torch.Generator().manual_seed(1))
    assert not torch.equal(again, shorter)


def by_loops(one, length, n_sets):
    """Right or not as it is and among the strongest, and predictors, set by set by the textbook."""
    book, task = Textbook.of(one), one.task
    right, strongest, values = [], [], []

    def asked(tokens):
        items, query = task.items(tokens[None, :-1]), task.query(tokens[None, -1])
        return book(items.to(torch.float32), query.to(torch.float32))

    for all_tokens, labels in draw_test_sets(task, length, n_sets, seed=one.seeds[0]):
        for tokens, label in zip(all_tokens, labels, strict=True):
            logits, _, weights = asked(tokens)
            right.append(int(logits.argmax()) == int(label))
            kept = weights[0].mean(dim=0).argsort(descending=True)[:LONGEST]
            few = torch.cat([tokens[:-1][kept], tokens[-1:]])
            strongest.append(int(asked(few)[0].argmax()) == int(label))
            place = int(task.target(tokens[None])[0])
            others = [n for n in range(length) if n != place]
            gaps = [float(w[place].log() - w[others].max().log()) for w in weights[0]]
            attended = one.attend(tokens[None])[0][0]
            spread = float(((attended - attended.mean()) ** 2).mean())
            values.append([float(weights[0, :, place].mean()), np.mean(gaps), spread])
    return np.array(right), np.array(strongest), np.array(values)


def test_accuracies_and_predictors_are_those_of_a_loop_over_sets():
    one = network()
    with torch.no_grad():
        found = mechanism.explain_network(one, (LENGTH,), SETS, longest=LONGEST)
        right, strongest, values = by_loops(one, LENGTH, SETS)
    assert 0 < right.mean() < 1
    assert found["accuracy"][0, 0] == right.mean()
    assert found["accuracy"][CONDITIONS.index("strongest"), 0] == strongest.mean()
    for n, name in enumerate(PREDICTORS[:3]):
        assert found[name][0] == pytest.approx(values[:, n].mean(), rel=1e-4)
        expected = stats.spearmanr(values[:, n], right).statistic
        assert found["set_correlation"][n] == pytest.approx(expected, abs=1e-6)


def test_moments_that_were_lost_come_back():
    one = network("baseline", heads=1, task="argmax")
    with torch.no_grad():
        usual, shorter = mechanism._moments(one, LONGEST, 64, LONGEST)
        ((tokens, _),) = draw_test_sets(one.task, LONGEST, 64, seed=3, purpose="sets for moments")
        x = one.attend(tokens)[0]
    torch.testing.assert_close(usual[0], x.mean(dim=0))
    torch.testing.assert_close(usual[1], x.std(dim=0))
    torch.testing.assert_close(shorter, usual)  # no set is shorter there
    small = (usual[0] + 1, usual[1] / 50)
    lost = mechanism._moved(usual, small)(x)
    torch.testing.assert_close(lost.std(dim=0), small[1])
    torch.testing.assert_close(mechanism._moved(small, usual)(lost), x, atol=1e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, train_synthetic("argmax", "baseline,layernorm,adaptive", output=folder, **RUN)


def test_as_they_are_networks_are_as_accurate_as_the_run_says(run):
    folder, trained = run
    told = []
    result = explain_synthetic(folder, sets=12, progress=lambda *words: told.append(words))
    np.testing.assert_array_equal(result.accuracy[0], trained.accuracy)
    assert (result.accuracy[:, ..., 0] == result.accuracy[0, ..., 0]).all()  # within training
    assert result.variants == trained.variants
    assert [words[1] for words in told] == [1, 2, 3, 4]
    part = explain_synthetic(folder, "layernorm", lengths="20", sets=12)
    np.testing.assert_array_equal(part.accuracy[:, 0, :, 0], result.accuracy[:, 1, :, 1])
    np.testing.assert_array_equal(part.logit_gap[0, :, 0], result.logit_gap[1, :, 1])


def test_networks_of_other_seeds_are_joined(run, tmp_path):
    folder, _ = run
    first = explain_synthetic(folder, sets=12)
    train_synthetic(
        "argmax", "baseline,layernorm,adaptive", **RUN, first_seed=2, output=tmp_path / "run"
    )
    second = explain_synthetic(tmp_path / "run", sets=12)
    places = [second.save(tmp_path / "second"), first.save(tmp_path / "first")]
    joined = merge_results(places, tmp_path / "both")
    merge_results([folder, tmp_path / "run"], tmp_path / "whole")
    whole = explain_synthetic(tmp_path / "whole", sets=12)
    assert joined.seeds == whole.seeds == (0, 1, 2, 3)
    for field in fields(whole):
        one, other = getattr(joined, field.name), getattr(whole, field.name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
        elif field.name != "provenance":
            assert one == other, field.name
    assert joined.provenance.arguments == whole.provenance.arguments
    assert joined.provenance.prompts_hash == whole.provenance.prompts_hash


def test_what_is_not_of_other_seeds_alone_is_not_joined(run, tmp_path):
    folder, _ = run
    whole = explain_synthetic(folder, sets=12).save(tmp_path / "whole")
    for given, error, words in (
        ({"sets": 12}, ValueError, "merge: seed 0 is in two folders; give results of"),
        ({"sets": 13}, CheckpointError, r"explained n_sets \[13, 13\] \(asked: \[12, 12\]\)"),
        ({"sets": 12, "variants": "layernorm"}, CheckpointError, "explained variants"),
        ({"sets": 12, "lengths": "6"}, CheckpointError, "explained lengths"),
    ):
        other = explain_synthetic(folder, **given).save(tmp_path / "other", overwrite=True)
        with pytest.raises(error, match=words):
            merge_results([whole, other], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_networks_that_are_not_trained_to_the_end_are_not_explained(tmp_path):
    class Stopped(Exception):
        pass

    def stop(label, done, total, note):
        if label.startswith("train layernorm") and done == 50:
            raise Stopped

    with pytest.raises(Stopped):
        train_synthetic(
            "argmax", "baseline,layernorm", **RUN, output=tmp_path / "run", progress=stop
        )
    with pytest.raises(CheckpointError, match="has no trained layernorm of seeds 0, 1; explain"):
        explain_synthetic(tmp_path / "run")
    path = tmp_path / "run/checkpoints/baseline.0-1.safetensors"
    tensors, facts = read_checkpoint(path)
    write_checkpoint(path, tensors, facts | {"step": 50})
    with pytest.raises(CheckpointError, match=r"baseline.0-1.safetensors is not trained to its"):
        explain_synthetic(tmp_path / "run", "baseline")


def test_a_network_that_cannot_be_read_is_named(tmp_path):
    train_synthetic("argmax", "baseline", **RUN, output=tmp_path / "run")
    path = tmp_path / "run/checkpoints/baseline.0-1.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        CheckpointError, match=r"baseline.0-1.safetensors is no readable checkpoint"
    ):
        explain_synthetic(tmp_path / "run")


def test_what_cannot_be_explained_is_refused(run, tmp_path):
    folder, _ = run
    for given, words in (
        ({"variants": "ssmax"}, "variants: got 'ssmax', accepted: baseline, layernorm, adaptive"),
        ({"sets": 1}, "sets: got 1, accepted: 2 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            explain_synthetic(folder, **given)
    with pytest.raises(CheckpointError, match="holds no training"):
        explain_synthetic(tmp_path)
    search_synthetic("argmax", 1, steps=1, sets=2, lengths=(1,), output=tmp_path / "search")
    with pytest.raises(ValueError, match="accepted: a run of train_synthetic on sets"):
        explain_synthetic(tmp_path / "search")
    small = {**RUN, "steps": 2, "seeds": 1, "output": tmp_path / "other"}
    train_synthetic("argmax", "normalized", **small)
    with pytest.raises(ValueError, match="whose attention weights are no distribution"):
        explain_synthetic(tmp_path / "other")
    next((tmp_path / "other").glob("checkpoints/normalized.0-0.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="has no trained baseline of seeds 0; explain needs"):
        train_synthetic("argmax", "baseline", **(small | {"output": tmp_path / "third"}))
        next((tmp_path / "third").glob("checkpoints/baseline.0-0.safetensors")).unlink()
        explain_synthetic(tmp_path / "third")
