"""The lab as a whole: what a call asks for, what a result says, networks from a folder."""

import numpy as np
import pytest
import torch
from devices import DEVICE

from llmprobe import probe_variance
from llmprobe.errors import CheckpointError
from llmprobe.runs.checkpoints import read_checkpoint, write_checkpoint
from llmprobe.synthetic.lab import load_synthetic, train_synthetic
from llmprobe.synthetic.set_network import PARTS, SetNetwork
from llmprobe.synthetic.set_plan import SetTraining
from llmprobe.synthetic.set_scores import evaluate
from llmprobe.synthetic.training import train

SMALL = {"steps": 20, "seeds": 3, "lengths": [16, 64], "sets": 32, "width": 16}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "run"
    variants = ["baseline", "layernorm", "adaptive", "ema", "layernorm+ema+adaptive"]
    return folder, train_synthetic("argmax", variants, **SMALL, output=folder)


def test_the_frame_has_a_row_for_each_variant_seed_and_length(run):
    frame = run[1].to_frame()
    assert list(frame.columns) == [
        *("task", "variant", "seed", "length", "accuracy", "n_sets"),
        *("global_mean", "global_variance", "feature_variance", "entropy", "global_mean_error"),
    ]
    assert len(frame) == 5 * 3 * 2
    assert set(frame.n_sets) == {32}
    assert frame.accuracy.between(0, 1).all()


def test_the_numbers_are_those_of_training_and_evaluation_alone(run):
    training = SetTraining(variant="layernorm", seeds=(2,), steps=20, width=16, schedule="cosine")
    alone = evaluate(train(training, device=DEVICE).network, 64, 32)
    row = run[1].to_frame().query("variant == 'layernorm' and seed == 2 and length == 64")
    assert float(row.accuracy.iloc[0]) == pytest.approx(alone.accuracy[0], abs=1 / 32)
    assert float(row.feature_variance.iloc[0]) == pytest.approx(alone.feature_variance[0], rel=1e-3)


@pytest.mark.parametrize("variant", ["baseline", *PARTS])
def test_every_variant_trains_and_is_measured(variant):
    options = SMALL | {"steps": 3, "seeds": 1, "lengths": [16], "sets": 8}
    options["heads"] = 1 if variant == "outproj" else 2
    options["clip"] = 0.0 if variant == "clipped" else 1.0
    variant = f"residual+{variant}" if variant.startswith("postnorm") else variant
    result = train_synthetic("dictionary", variant, **options)
    assert np.isfinite(result.accuracy).all()
    assert result.variants == (variant,)


def test_a_trained_network_is_probed_like_any_model(run):
    network = load_synthetic(run[0], "layernorm", seed=1)
    result = probe_variance(network, [16, 64], n_prompts=16, query="fixed")
    assert result.lengths == (16, 64)
    assert np.isfinite(result.std_median).all()
    frame = run[1].to_frame().query("variant == 'layernorm' and seed == 1")
    accuracy = evaluate(network, 64, 32).accuracy[0]
    assert accuracy == pytest.approx(float(frame.accuracy.iloc[-1]))


def test_an_average_and_a_temperature_come_back_from_the_folder(run):
    raw = load_synthetic(run[0], "layernorm")
    averaged = load_synthetic(run[0], "layernorm+ema+adaptive")
    assert isinstance(raw, SetNetwork)
    assert averaged.attention.softmax.cold
    assert not torch.equal(raw.readout.first.weight, averaged.readout.first.weight)


def test_a_network_that_is_not_there_is_one_line(run, tmp_path):
    with pytest.raises(CheckpointError, match="no seed 9 of baseline"):
        load_synthetic(run[0], "baseline", seed=9)
    with pytest.raises(CheckpointError, match=r"no seed 9 of baseline; it has \[0, 1, 2\]"):
        load_synthetic(run[0], seed=9)
    with pytest.raises(CheckpointError, match="no trained rmsnorm"):
        load_synthetic(run[0], "rmsnorm")
    with pytest.raises(CheckpointError, match="no trained baseline"):
        load_synthetic(tmp_path, "baseline")
    with pytest.raises(CheckpointError, match="holds no training"):
        load_synthetic(tmp_path)


def test_a_network_without_items_or_with_several_seeds_says_how():
    with pytest.raises(ValueError, match=r"member\(0\) is one seed"):
        SetNetwork("argmax", seeds=(0, 1), width=16)(torch.zeros(3, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="one item or more"):
        SetNetwork("argmax", width=16)(torch.zeros(3, 1, dtype=torch.int64))


def test_a_seed_that_learned_nothing_is_in_the_warnings():
    options = SMALL | {"learning_rate": 0.0, "seeds": 2, "lengths": [16]}
    warnings = train_synthetic("argmax", "baseline", **options).warnings
    assert any("diverged or learned nothing: seed" in warning for warning in warnings)


def test_without_a_name_the_runs_own_network_is_opened(run, tmp_path):
    own, named = load_synthetic(run[0]), load_synthetic(run[0], "baseline", seed=0)
    assert (own.variant, own.seeds) == ("baseline", (0,))
    for name, weight in named.state_dict().items():
        assert torch.equal(own.state_dict()[name], weight)
    options = SMALL | {"steps": 3, "seeds": 1, "first_seed": 4, "lengths": [16], "sets": 8}
    train_synthetic("argmax", "rmsnorm+dropout", **options, output=tmp_path / "run")
    other = load_synthetic(tmp_path / "run")
    assert (other.seeds, other.variant) == ((4,), "rmsnorm+dropout")


@pytest.mark.parametrize("first", ["layernorm", "ema"])
def test_the_runs_own_network_is_its_first_variant_not_the_first_file(tmp_path, first):
    options = SMALL | {"steps": 3, "seeds": 1, "lengths": [16], "sets": 8}
    train_synthetic("argmax", [first, "baseline"], **options, output=tmp_path)
    own, named = load_synthetic(tmp_path), load_synthetic(tmp_path, first)
    assert own.variant == first
    for name, weight in named.state_dict().items():
        assert torch.equal(own.state_dict()[name], weight)


def test_parts_may_be_named_in_any_order_and_a_seed_of_a_later_stack_is_found(tmp_path):
    options = SMALL | {"steps": 3, "seeds": 34, "lengths": [16], "sets": 8}
    result = train_synthetic("argmax", "layernorm+ssmax", **options, output=tmp_path)
    assert len(list(tmp_path.glob("checkpoints/*[0-9].safetensors"))) == 2
    network = load_synthetic(tmp_path, "ssmax+layernorm", seed=33)
    assert network.seeds == (33,)
    assert evaluate(network, 16, 8).accuracy[0] == result.accuracy[0, 33, 0]


def test_a_network_that_is_not_trained_to_its_end_or_of_another_version_is_refused(tmp_path):
    options = SMALL | {"steps": 3, "seeds": 1, "lengths": [16], "sets": 8}
    train_synthetic("argmax", "baseline", **options, output=tmp_path)
    path = tmp_path / "checkpoints" / "baseline.0-0.safetensors"
    tensors, facts = read_checkpoint(path)
    write_checkpoint(path, tensors, facts | {"step": 2})
    with pytest.raises(CheckpointError, match="not trained to its end"):
        load_synthetic(tmp_path)
    write_checkpoint(path, tensors, facts | {"training": facts["training"] | {"flavor": 1}})
    with pytest.raises(CheckpointError, match="another version"):
        load_synthetic(tmp_path)


def test_progress_is_a_bar_a_function_or_nothing():
    said = []
    options = SMALL | {"steps": 3, "seeds": 1, "lengths": [16], "sets": 8}
    train_synthetic("argmax", "baseline", **options, progress=lambda *words: said.append(words))
    assert [words[:3] for words in said] == [
        ("train baseline 0-0", 3, 3),
        ("measure baseline 0-0", 16 * 8, 16 * 8),
    ]
    with pytest.raises(ValueError, match="progress: got 1, accepted: True, False or a function"):
        train_synthetic("argmax", "baseline", **options, progress=1)
