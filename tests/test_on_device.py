"""On a device everything is as on the CPU, and the host waits for no layer.

The device is the simulated one, so this runs everywhere. What a model itself waits for is measured
and is all that is allowed: transformers looks at the positions once in a forward.
"""

import copy
import json
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import simulated
import torch
from checkout import ROOT
from devices import FILES, NOT_ELSEWHERE, SUITES
from families import batch, tiny

from llmprobe import (
    ablate,
    capture_attention,
    capture_rows,
    edit_attention,
    probe_ablation,
    probe_attention,
    probe_loss,
    probe_remedies,
    probe_retrieval,
    probe_variance,
    scale_logits,
    scale_outputs,
    token_losses,
    train_synthetic,
)
from llmprobe.base import transfers
from llmprobe.base.moments import Groups, Moments
from llmprobe.capture.edits import LengthMoments, restore_moments, restore_norms, restore_slopes
from llmprobe.probes.attention import AttentionProbe
from llmprobe.probes.loss import LossProbe, LossRequest
from llmprobe.probes.probe import start
from llmprobe.probes.request import Request
from llmprobe.probes.retrieval import RetrievalProbe, RetrievalRequest
from llmprobe.probes.sweeps import Piece, Sweep
from llmprobe.probes.variance import VarianceProbe, VarianceRequest
from llmprobe.synthetic.decoder_network import Decoder
from llmprobe.synthetic.decoder_scores import attention_entropy, score
from llmprobe.synthetic.set_network import SetNetwork
from llmprobe.synthetic.set_plan import SetTraining
from llmprobe.synthetic.set_scores import evaluate
from llmprobe.synthetic.tasks import SequenceTask
from llmprobe.synthetic.training import train

simulated.start()
FEW = {"n_prompts": 8, "batch_tokens": 64}
RANDOM = FEW | {"prompts": "random"}
PROBES = {
    "variance": lambda m: probe_variance(m, "4,8", layers="all", at="heads", **FEW),
    "attention": lambda m: probe_attention(m, "4,8", layers="all", **FEW),
    "loss": lambda m: probe_loss(m, "4,8", same_targets=2, **RANDOM),
    "retrieval": lambda m: probe_retrieval(m, "31", prompts="repeat", n_prompts=4),
    "ablation": lambda m: probe_ablation(m, "4,8", heads="0.1,1.2", **RANDOM),
    "remedies": lambda m: probe_remedies(
        m, "8,12", trained=8, doses=[1.0], measures=["slopes"], remedies=["logn"], **RANDOM
    ),
}


def on_cpu(family):
    return copy.deepcopy(tiny(family)).to("cpu")  # the suites' own model stays where it is


def there(model):
    return copy.deepcopy(model).to("sim")


def numbers(result):
    return result.to_frame().select_dtypes("number").to_numpy(dtype=float)


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_gives_the_numbers_of_the_cpu(name):
    model = on_cpu("llama")
    here, moved = (PROBES[name](m) for m in (model, there(model)))
    assert moved.provenance.device == "sim"
    np.testing.assert_allclose(numbers(moved), numbers(here), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["attention", "loss", pytest.param("remedies", marks=pytest.mark.slow)]
)
def test_a_device_without_float64_gives_the_same(name, monkeypatch):
    model = on_cpu("llama")
    monkeypatch.setattr(transfers, "WITHOUT_FLOAT64", {"sim"})
    with simulated.without_types(torch.float64):
        moved = PROBES[name](there(model))
    np.testing.assert_allclose(numbers(moved), numbers(PROBES[name](model)), rtol=1e-4, atol=1e-5)


def own_waits(model, tokens):
    """What a plain forward of the model waits for, and what a chunk over a cache does."""
    with torch.inference_mode(), simulated.watching() as seen:
        model(tokens, use_cache=False)
    return seen.n_waits


KINDS = {
    "variance": (VarianceProbe, VarianceRequest(lengths="4,8", layers="all", at="heads", **FEW)),
    "attention": (AttentionProbe, Request(lengths="4,8", layers="all", **FEW)),
    "loss": (LossProbe, LossRequest(lengths="4,8", **RANDOM)),
    "retrieval": (RetrievalProbe, RetrievalRequest(lengths="31", prompts="repeat", **FEW)),
}


@pytest.mark.parametrize("family", ["llama", "bloom"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_waits_once_a_forward_for_the_model_and_once_a_piece_for_numbers(kind, family):
    model = there(tiny(family))
    probe = start(KINDS[kind][0], model, KINDS[kind][1]).probe
    ready = probe.ready
    sweep = Sweep(model, ready.prompts, ready.plan, probe.observe, probe.may_chunk, probe.forward)
    tally, lengths = probe.tally(ready.layers), ready.plan.passes()[0][0]
    warm, piece = (Piece("0", lengths, batches) for batches in [((0,),), ((0, 1), (2, 3), (4,))])
    with torch.inference_mode():
        # Whether a module can do with few positions is tried once.
        sweep.run(warm, lambda *_: None)
        tokens = ready.prompts.batch([0], lengths[-1]).to("sim")
        with simulated.watching() as seen:
            sweep.run(piece, lambda prompts, _, parts: probe.take(tally, prompts, parts))
        assert seen.n_waits <= 3 * own_waits(model, tokens) <= 3
        assert not {"fetch", "upload"} & set(seen.waits)
        with simulated.watching() as seen:
            tally.state()
    assert seen.waits == {"fetch": 1}


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "bloom", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_captures_of_padded_prompts_are_those_of_the_cpu(family, side):
    model, inputs = on_cpu(family), batch(family, (9, 6), side)
    found = []
    for given in (model, there(model)):
        device = next(given.parameters()).device
        on_device = {name: x.to(device) for name, x in inputs.items()}
        with torch.inference_mode():
            heads = capture_attention(given, positions=[0, -1], at="heads")
            rows = capture_rows(given, positions=[1, -1], weights=True)
            with heads, rows:  # whether a module's outputs are weights is looked at once
                given(**on_device, use_cache=False)
            with simulated.watching() as plain:
                given(**on_device, use_cache=False)
            heads = capture_attention(given, positions=[0, -1], at="heads")
            rows = capture_rows(given, positions=[1, -1], weights=True)
            with simulated.watching() as seen, heads, rows:
                given(**on_device, use_cache=False)
        # Each of the two captures asks once where the prompts begin.
        assert seen.n_waits <= plain.n_waits + 2
        names = ("entropy", "first", "mass", "weights", "log_lambda", "top_positions")
        of_rows = [getattr(rows[n], x).cpu() for n in rows for x in names]
        found.append([*(heads[n].cpu() for n in heads), *of_rows])
    for here, moved in zip(*found, strict=True):
        torch.testing.assert_close(moved, here, rtol=1e-6, atol=1e-6, equal_nan=True)


MOMENTS = LengthMoments((2, 8), torch.zeros(2, 4, 8), torch.tensor([1.0, 0.5])[:, None, None])
MOMENTS = MOMENTS._replace(std=MOMENTS.std.expand(2, 4, 8).clone())
BY_LAYER = {0: torch.linspace(0.1, 1, 4), 1: torch.linspace(0.5, 2, 4)}
EDITS = {
    "scale of logits": {"queries": scale_logits(1.5)},
    "scale by keys": {"queries": scale_logits(lambda n: n.float() ** 0.1)},
    "tensor of scales": {"queries": scale_logits(torch.linspace(0.5, 2, 4)[None, :, None])},
    "ablation": {"heads": {0: [1], 1: [2, 3]}, "outputs": ablate()},
    "means": {"outputs": ablate({0: torch.ones(4, 8), 1: torch.zeros(4, 8)})},
    "scale of outputs": {"outputs": scale_outputs(lambda n: n.float() ** 0.1)},
    "moments": {"outputs": restore_moments({0: MOMENTS, 1: MOMENTS}, reference=4)},
    "slopes": {"outputs": restore_slopes(BY_LAYER, reference=4)},
    "norms": {"outputs": restore_norms(BY_LAYER, reference=4)},
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_that_of_the_cpu_and_waits_for_no_layer(name):
    model, tokens = on_cpu("llama"), batch("llama", (9,))["input_ids"].cpu()
    found = []
    for given in (model, there(model)):
        there_tokens = tokens.to(next(given.parameters()).device)
        with torch.inference_mode():
            plain = own_waits(given, there_tokens)
            with edit_attention(given, **EDITS[name]):  # linear in the query? tried once
                given(there_tokens, use_cache=False)
            with simulated.watching() as seen, edit_attention(given, **EDITS[name]):
                found.append(given(there_tokens, use_cache=False).logits.cpu())
        assert seen.n_waits <= plain + 1  # the last one is the test's own
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_statistics_are_taken_in_without_waiting():
    x = torch.randn(12, 3, 4, generator=torch.Generator().manual_seed(0))
    x[3, 1, 2] = torch.nan
    groups = [0, 1, 2] * 4
    here, moved = Groups(Moments).update(x, groups), Groups(Moments)
    on_device = x.to("sim")
    with simulated.watching() as seen:
        moved.update(on_device[:5], groups[:5]).update(on_device[5:], groups[5:])
        assert not seen.n_waits
        state = moved.state()
    assert seen.waits == {"fetch": 1}
    for name, expected in here.state().items():
        np.testing.assert_allclose(state[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", ["baseline", "layernorm+ema", "dropout"])
def test_a_training_is_that_of_the_cpu_and_waits_once_a_block(variant):
    averages = ("ema",) if "ema" in variant else ()
    training = SetTraining(
        task="argmax",
        variant=variant,
        seeds=(0, 1),
        width=8,
        steps=6,  # of one block
        batch=4,
        averages=averages,
    )
    here = train(training)
    with simulated.watching() as seen:
        moved = train(training, device="sim")
    assert seen.n_waits - seen.waits["upload"] == 1
    assert seen.waits["upload"] <= len(list(here.network.parameters())) + len(averages)
    torch.testing.assert_close(moved.losses, here.losses, rtol=1e-6, atol=1e-6)
    for one, other in zip(here.network.parameters(), moved.network.parameters(), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach(), rtol=1e-6, atol=1e-6)


def test_the_lab_gives_the_numbers_of_the_cpu():
    options = {"seeds": 2, "steps": 4, "width": 8, "batch": 4, "lengths": "4,8", "sets": 8}
    here, moved = (train_synthetic("argmax", device=d, **options) for d in ("cpu", "sim"))
    np.testing.assert_allclose(numbers(moved), numbers(here), rtol=1e-6, atol=1e-6)


def scores_of_sets(network):
    return vars(evaluate(network, 12, 6))


def scores_of_sequences(network):
    task = SequenceTask.named("othello")
    return score(network, task, (1, 8), 6) | {
        "entropy": attention_entropy(network, task, (1, 8), 6)
    }


@pytest.mark.parametrize(
    ("network", "measure", "most"),
    [
        # Moments of sets and of features, for each of two seeds, and the examples.
        (SetNetwork("argmax", seeds=(0, 1), width=8), scores_of_sets, 5),
        # Logits of a forward, and entropies of another.
        (Decoder(61, "prenorm", seeds=(0, 1), width=8, layers=2), scores_of_sequences, 2),
    ],
)
def test_scores_of_the_lab_are_those_of_the_cpu_and_wait_for_no_layer(network, measure, most):
    moved = there(network)
    with simulated.watching() as seen:
        found = measure(moved)
    assert seen.n_waits <= most
    for name, values in measure(network).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6, err_msg=name)


def test_decoders_with_all_kinds_of_positions_give_the_numbers_of_the_cpu():
    options = {"seeds": 2, "steps": 2, "width": 8, "heads": 2, "layers": 1, "batch": 2, "sets": 2}
    variants = "alibi+sparse-random,xpos+entmax,fire+randomized,predicted,nope+calibrated"
    options |= {"train_lengths": "1..3", "lengths": "2,4", "context": 12}
    here, moved = (train_synthetic("copy", variants, device=d, **options) for d in ("cpu", "sim"))
    np.testing.assert_allclose(moved.loss, here.loss, rtol=1e-5)
    np.testing.assert_allclose(moved.token_accuracy, here.token_accuracy, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- several devices


PLACES = {
    "model.embed_tokens": "sim:0",
    "model.rotary_emb": "sim:0",
    "model.layers.0": "sim:0",
    "model.layers.1": "sim:1",
    "model.norm": "sim:1",
    "lm_head": "sim:1",
}


def on_two_devices(model, folder):
    from accelerate import dispatch_model

    return dispatch_model(copy.deepcopy(model), PLACES, main_device="sim:0")


def from_disk(model, folder):
    from accelerate import disk_offload

    return disk_offload(copy.deepcopy(model), offload_dir=folder, execution_device="cpu")


def from_disk_and_memory(model, folder):
    from accelerate import dispatch_model

    places = dict.fromkeys(PLACES, "cpu") | {"model.layers.1": "disk"}
    return dispatch_model(
        copy.deepcopy(model), places, main_device="cpu", offload_dir=folder, force_hooks=True
    )


@pytest.mark.parametrize("place", [on_two_devices, from_disk, from_disk_and_memory])
def test_a_model_over_several_places_is_that_of_one(place, tmp_path):
    model, inputs = on_cpu("llama"), batch("llama", (9, 6))
    placed, found = place(model, tmp_path), []
    device = "sim:0" if place is on_two_devices else "cpu"
    for given, at in ((model, "cpu"), (placed, device)):
        own = {name: x.to(at) for name, x in inputs.items()}
        found.append([])
        with torch.inference_mode():
            for edit in (
                nullcontext(),
                edit_attention(given, heads={0: [1], 1: [2]}, outputs=ablate()),
                edit_attention(given, queries=scale_logits(1.5)),
            ):
                heads = capture_attention(given, at="heads", positions=[0, -1])
                rows = capture_rows(given, positions=-1, weights=True, values=True)
                with edit, heads, rows:
                    found[-1].append(given(**own, use_cache=False).logits)
                found[-1] += [heads[0], heads[1], rows[0].entropy, rows[1].values.row]
            with capture_attention(given, 1, positions=-1, stop=True) as stopped:
                given(**own, use_cache=False)
            found[-1] += [stopped[1], token_losses(given, own["input_ids"])]
    for here, moved in zip(*found, strict=True):
        torch.testing.assert_close(moved.cpu(), here, rtol=1e-6, atol=1e-6)
    for name in ("variance", "attention", "retrieval"):
        results = (PROBES[name](m) for m in (placed, model))
        np.testing.assert_allclose(*map(numbers, results), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the commands of docs/gpu.md


def test_the_benchmark_of_a_device_runs_on_the_simulated_one(run_script):
    script = ROOT / "benchmarks" / "device.py"
    options = ("--device", "sim", "--lengths", "4,8,16", "--prompts", 4)
    code, out, err = run_script(script, *options)
    assert (code, err) == (0, "")
    assert "llmprobe" in out
    assert "largest difference from the CPU 0.0e+00" in out


def test_check_and_a_probe_run_on_the_device_by_name(call, tmp_path):
    code, out, err = call("check", "builtin", "--device", "sim")
    assert code == 0, err
    assert "sim" in out
    options = ("--lengths", "4,8", "--n-prompts", 4, "--device", "sim:1")
    code, _, err = call("variance", "builtin", *options, "--output", tmp_path / "run")
    assert code == 0, err
    assert "sim:1: 1024.0 of 1024.0 GiB are free" in err
    code, out, _ = call("variance", "builtin", *options, "--dry-run")
    assert "GiB are free" in out


def test_memory_is_given_back_before_a_smaller_batch_is_tried():
    model, failed = there(tiny("llama")), []

    def fail(module, args):
        if args and len(args[0]) > 1:
            failed.append(len(args[0]))
            raise torch.OutOfMemoryError("out of memory")

    handle = model.register_forward_pre_hook(fail)
    try:
        with simulated.watching() as seen:
            halved = probe_variance(model, 8, n_prompts=4)
    finally:
        handle.remove()
    assert failed == [4, 2, 2]
    assert [what for _, what in seen.events].count("empty_cache") == 3
    np.testing.assert_allclose(
        numbers(halved), numbers(probe_variance(there(tiny("llama")), 8, n_prompts=4)), rtol=1e-6
    )


def test_the_makefile_runs_the_suites_and_the_benchmark_on_a_device():
    def commands(target):
        asked = ["make", "-n", "-o", ".venv/.ready", target, "DEVICE=sim"]
        return subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    tests = commands("test")
    assert "LLMPROBE_TEST_DEVICE=sim" in tests
    files = [ROOT / word for word in tests.split() if word.startswith("tests/")]
    assert {path.name for path in files if path.is_dir()} == set(SUITES)
    assert {path.name for path in files if path.is_file()} == set(FILES)
    assert "benchmarks/device.py --device sim --lengths" in commands("bench")


def test_what_a_device_is_not_asked_is_named_by_tests_that_exist():
    every = [p.read_text() for p in (ROOT / "tests").rglob("test_*.py")]
    for name in NOT_ELSEWHERE:  # a test that was renamed would not be skipped
        assert any(f"def {name}(" in text for text in every), name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_model_larger_than_the_memory_runs_from_disk(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 16}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, num_attention_heads=8, **sizes))
    model.save_pretrained(tmp_path, max_shard_size="20MB")  # one file is mapped at a time
    n_bytes = sum(4 * weight.numel() for weight in model.parameters())
    script = ROOT / "tests" / "support" / "limited.py"
    own = os.environ | {"PYTHONPATH": str(ROOT)}
    memory, disk = (
        subprocess.run(
            [sys.executable, script, tmp_path, str(n_bytes // 2), way],
            capture_output=True,
            text=True,
            env=own,
        )
        for way in ("memory", "disk")
    )
    assert int(memory.stdout.splitlines()[0]) > n_bytes // 2  # it does not fit
    assert disk.returncode == 0, disk.stderr
    small, found = map(json.loads, disk.stdout.splitlines())
    assert small < n_bytes // 4
    expected = probe_variance(model, [8, 16], layers="all", n_prompts=4, batch_tokens=16)
    np.testing.assert_allclose(found, expected.std_median.ravel(), rtol=1e-6)
