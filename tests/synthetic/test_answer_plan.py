"""Training on questions: what the loss counts, and that seeds are alone in it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from llmprobe import load_synthetic, train_synthetic
from llmprobe.synthetic import training as module
from llmprobe.synthetic.answer_plan import AnswerPlan, AnswerTraining
from llmprobe.synthetic.answer_scores import score_answers
from llmprobe.synthetic.decoder_network import DECODER_PARTS
from llmprobe.synthetic.layers import no_drop
from llmprobe.synthetic.settings import plan_search, plan_training
from llmprobe.synthetic.tasks import TASKS, AnswerTask
from llmprobe.synthetic.training import train

SMALL = AnswerTraining(
    task="successor", width=8, heads=2, batch=8, steps=12, longest=3, seeds=(3, 4, 5)
)
TINY = {"width": 8, "heads": 2, "layers": 1, "steps": 20, "batch": 8, "sets": 16}
every_task = pytest.mark.parametrize(
    "name", [name for name, task in TASKS.items() if issubclass(task, AnswerTask)]
)


@pytest.fixture
def _small_blocks(monkeypatch):
    """Blocks of five steps, with a checkpoint behind each."""
    monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(module, "SECONDS", 0.0)


def opinionated(training):
    """The network of a training, moved away from where it begins."""
    network = training.new_network().double()
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return network


def naive(training, network, tokens):
    """The loss and the share of right tokens by seed, an example and a token at a time."""
    task, found = training.sequences, []
    size = tokens.shape[1] // training.concatenate
    length = next(n for n in range(1, 100) if task.size(n) == size)
    for seed in range(len(training.seeds)):
        alone = network.member(seed)
        losses, hits = [], []
        for row in tokens[seed * training.batch : (seed + 1) * training.batch]:
            logits = alone(row[None, :-1]).logits[0]
            for first in range(0, len(row), size):
                for at in range(first, first + size)[task.answer(length)]:
                    losses.append(float(F.cross_entropy(logits[at - 1], row[at])))
                    hits.append(bool(logits[at - 1].argmax() == row[at]))
        found.append((np.mean(losses), np.mean(hits)))
    return np.array(found).T


@pytest.mark.parametrize("concatenate", [1, 3])
@pytest.mark.parametrize("task", ["successor", "recall"])
def test_the_loss_equals_a_plain_loop(task, concatenate):
    training = dataclasses.replace(SMALL, task=task, concatenate=concatenate)
    network = opinionated(training)
    for (tokens,) in list(training.batches(0))[:3]:
        with torch.no_grad():
            got = training.losses(network, (tokens,), no_drop)
            expected = naive(training, network, tokens)
        np.testing.assert_allclose(np.array([x.numpy() for x in got]), expected, rtol=1e-5)


@every_task
def test_every_step_has_examples_of_one_length_of_training(name):
    training = dataclasses.replace(SMALL, task=name, shortest=2, longest=5)
    task, seen = training.sequences, set()
    for (tokens,) in training.batches(0):
        assert len(tokens) == 3 * training.batch
        length = task.length_of(tokens)
        seen.add(length)
        for row in tokens.tolist():
            assert task.solve(row) == row[task.answer(length)]
    assert seen == {2, 3, 4, 5}


def test_concatenated_examples_are_whole_and_those_of_the_same_draws():
    one = dataclasses.replace(SMALL, batch=8)
    two = dataclasses.replace(SMALL, batch=4, concatenate=2)
    for (single,), (double,) in zip(one.batches(0), two.batches(0), strict=True):
        assert torch.equal(double.reshape(single.shape), single)
    assert two.places >= 2 * two.sequences.size(two.longest)


def test_variants_of_a_seed_meet_the_same_examples():
    others = [dataclasses.replace(SMALL, variant="rotary", width=16)]
    others += [dataclasses.replace(SMALL, seeds=SMALL.seeds[1:])]
    for other, rows in zip(others, (slice(None), slice(SMALL.batch, None)), strict=True):
        for (a,), (b,) in zip(SMALL.batches(0), other.batches(0), strict=True):
            assert torch.equal(a[rows], b)


@pytest.mark.parametrize("variant", ["baseline", "rotary+dropout"])
def test_a_seed_of_a_stack_ends_where_it_ends_alone(variant):
    training = dataclasses.replace(SMALL, variant=variant, concatenate=2, averages=("ema",))
    stack = train(training)
    for index, seed in enumerate(training.seeds):
        alone = train(dataclasses.replace(training, seeds=(seed,)))
        for name, weight in stack.network.state_dict().items():
            other = alone.network.state_dict()[name]
            torch.testing.assert_close(weight[index], other[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(stack.losses[:, index], alone.losses[:, 0], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("_small_blocks")
def test_a_training_that_was_stopped_ends_with_the_same_bits(tmp_path):
    training = dataclasses.replace(SMALL, variant="dropout", concatenate=2, averages=("bema",))
    undisturbed, path = train(training), tmp_path / "a.safetensors"

    class Killed(Exception):
        pass

    def report(step, loss, accuracy):
        if step > 5:
            raise Killed

    with pytest.raises(Killed):
        train(training, checkpoint=path, report=report)
    resumed = train(training, checkpoint=path)
    assert torch.equal(resumed.losses, undisturbed.losses)
    for name, weight in undisturbed.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], weight)


@every_task
def test_every_task_is_trained_and_tested_on_both_sides(name):
    result = train_synthetic(name, "baseline", train_lengths="3..4", seeds=1, **TINY | {"steps": 2})
    assert result.kind == "answers"
    assert min(result.lengths) < 3
    assert max(result.lengths) > 4
    assert np.isfinite(result.exact).all()
    assert result.chance.shape == (len(result.lengths),)


@pytest.mark.parametrize("variant", DECODER_PARTS)
def test_every_variant_trains_and_is_measured(variant):
    result = train_synthetic("copy", variant, seeds=1, lengths="2,3", **TINY | {"steps": 2})
    assert np.isfinite(result.token_accuracy).all()


def test_who_answers_no_better_than_without_the_question_has_not_learned():
    training = AnswerTraining(task="parity", longest=8, width=8)
    right = torch.tensor([0.4, 0.5, 0.9, torch.nan])
    assert training.has_learned(torch.zeros(4), right).tolist() == [False, False, True, False]


def test_a_plan_measures_what_score_does():
    plan = AnswerPlan(("baseline",), SMALL, (1, 5), 24)
    network, told = SMALL.new_network(), []
    found = plan.measure(network, lambda n, note: told.append((n, note)))
    expected = score_answers(network, SMALL.sequences, (1, 5), 24)
    for name in plan.measured:
        np.testing.assert_array_equal(found[name], expected[name])
    assert sum(n for n, _ in told) == plan.work(network)
    assert {note for _, note in told} == {"length 1", "length 5"}


def test_trained_networks_come_back_from_their_folder(tmp_path):
    options = {"task": "reverse", "variants": "baseline,rotary", "lengths": "1,2,5", **TINY}
    result = train_synthetic(**options, seeds=2, output=tmp_path)
    network = load_synthetic(tmp_path, "rotary", seed=1)
    scores = score_answers(network, AnswerTask.named("reverse"), (1, 2, 5), TINY["sets"])
    np.testing.assert_allclose(result.token_accuracy[1, 1], scores["token_accuracy"][0], atol=1e-6)


def test_lengths_default_to_both_sides_of_those_given():
    plan = plan_training("copy", {"train_lengths": "10..15"})
    assert (plan.base.shortest, plan.base.longest) == (10, 15)
    assert plan.lengths == tuple(AnswerTask.named("copy").tested(10, 15))
    assert plan_training("copy", {"lengths": "2,4"}).lengths == (2, 4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concatenate": 0}, "concatenate: got 0, accepted: a whole number, 1 or more"),
        ({"target": "exact"}, "target: got 'exact', but it is not for copy"),
        ({"score_at": "50"}, "score_at: got '50', but it is not for copy"),
        (
            {"train_lengths": "5..300"},
            "train_lengths: got 300, accepted for copy: 1 to 256 letters",
        ),
        ({"lengths": "300"}, "lengths: got 300, accepted for copy: 1 to 256 letters"),
        ({"vocab": 5}, "vocab: got 5, but the tokens of copy are given"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        plan_training("copy", given)


def test_no_other_task_has_anything_to_concatenate_and_no_question_is_searched():
    with pytest.raises(ValueError, match=r"^concatenate: got 2, but it is not for argmax"):
        plan_training("argmax", {"concatenate": 2})
    with pytest.raises(ValueError, match=r"^task: got 'copy', accepted for a search: argmax, "):
        plan_search("copy", 4, {})
