"""Device, dtype, generators, progress, environment."""

import platform

import numpy as np
import pytest
import torch

from llmprobe import runtime


def test_auto_takes_what_the_machine_has():
    device = runtime.resolve_device("auto")
    assert device == runtime.resolve_device(device)
    assert runtime.resolve_device("cpu") == torch.device("cpu")
    assert runtime.resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert runtime.resolve_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    assert runtime.resolve_dtype(torch.float16, torch.device("cpu")) == torch.float16


def test_auto_on_a_gpu_depends_on_bfloat16(monkeypatch):
    for native, expected in [(True, torch.bfloat16), (False, torch.float32)]:
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda native=native, **_: native)
        assert runtime.resolve_dtype("auto", torch.device("cuda")) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they exist")
@pytest.mark.parametrize("wrong", ["gpu", "", "cuda", "cuda:7", "mps", "meta", "cpu:1"])
def test_devices_that_are_not_there_are_refused(wrong):
    with pytest.raises(ValueError, match="device: got"):
        runtime.resolve_device(wrong)
    with pytest.raises(ValueError, match=r"device_map: got .* accepted: auto, balanced"):
        runtime.check_map(wrong)


def test_a_device_map_is_a_plan_or_a_device(monkeypatch):
    for name in ("auto", "balanced", "balanced_low_0", "sequential", "cpu"):
        runtime.check_map(name)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert runtime.resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="torch sees 2 of this kind; use cuda"):
        runtime.resolve_device("cuda:2")


def test_unknown_dtypes_are_refused_with_the_list():
    with pytest.raises(ValueError, match="accepted: auto, float32, bfloat16"):
        runtime.resolve_dtype("int8", torch.device("cpu"))


def test_generators_depend_on_seed_and_key_alone():
    draw = lambda *key: runtime.numpy_generator(*key).integers(2**62)  # noqa: E731
    keys = [(0,), (1,), (0, "prompt", 1), (0, "prompt", 2), (0, "words", 1), (1, "prompt", 1)]
    values = [draw(*key) for key in keys]
    assert len(set(values)) == len(keys)
    assert values == [draw(*key) for key in keys]
    for wrong in (-1, 2**63, 1.5, "1"):
        with pytest.raises(ValueError, match=f"seed: got {wrong!r}, accepted: 0 or more"):
            runtime.numpy_generator(wrong)


def test_generators_leave_the_global_ones_alone():
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    a = torch.randn(3, generator=runtime.torch_generator(0, "x"))
    b = torch.randn(3, generator=runtime.torch_generator(0, "x"))
    assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())
    assert (before_numpy == np.random.get_state()[1]).all()  # noqa: NPY002


def test_alone_this_is_the_main_process():
    assert runtime.process() == runtime.Process(rank=0, local_rank=0, n_processes=1)
    assert runtime.process().is_main


@pytest.mark.parametrize("rank", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK"])
def test_what_launchers_leave_behind_is_read_once_it_is_whole(monkeypatch, rank):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(rank, "3")
    runtime._check_launch(4)
    with pytest.raises(ValueError, match=f"{rank}: got '3', accepted: 0 to 2; start with torchrun"):
        runtime._check_launch(3)


def test_the_environment_waits_for_no_other_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "7")
    assert runtime.environment()["processes"] == 7


def test_progress_is_silent_off_a_terminal(capfd):
    with runtime.progress() as bar:
        task = bar.add_task("work", total=3, note="")
        bar.advance(task)
    assert capfd.readouterr() == ("", "")


def test_environment_names_what_decides_a_run():
    facts = runtime.environment()
    assert {"llmprobe", "torch", "device", "dtype", "threads", "memory", "hub"} <= facts.keys()
    assert facts["torch"] == torch.__version__
    assert "offline" in str(facts["hub"])


def test_environment_says_how_to_get_a_missing_extra(monkeypatch):
    monkeypatch.setattr("llmprobe.runtime.find_spec", lambda _: None)
    assert "pip install 'llmprobe[gguf]'" in str(runtime.environment()["extra gguf"])


def test_denormals_are_zero_inside_and_as_before_outside():
    tiny = torch.tensor([1e-39])
    with runtime.without_denormals():
        assert float(tiny * 1) == 0
        with runtime.without_denormals():
            pass
        assert float(tiny * 1) == 0
    assert float(tiny * 1) > 0


def test_freed_memory_is_kept_while_asked_for_and_in_nested_blocks(monkeypatch):
    asked = []
    monkeypatch.setattr(runtime, "_mallopt", lambda: lambda option, value: asked.append(value))
    with pytest.raises(RuntimeError, match="on purpose"), runtime.memory_kept():
        with runtime.memory_kept():
            pass
        assert asked == [2**30, 2**31 - 1]
        raise RuntimeError("on purpose")
    assert asked == [2**30, 2**31 - 1, 2**25, 2**26]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
def test_a_tensor_gets_the_pages_of_the_last_one(run_python):
    # In a process of its own: threads of other tests may have moved this one to another heap. What
    # was freed first may be a few bytes too short for the next, so only many settle.
    script = """
import resource
import torch
from llmprobe.runtime import memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MB, 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with memory_kept():
    print(sorted(faults() for _ in range(60))[30])
"""
    done = run_python(script)
    assert int(done.stdout) < 1000, done.stderr


def test_the_hub_is_told_nothing_of_this_machine(monkeypatch):
    from huggingface_hub import constants
    from transformers.utils.hub import http_user_agent

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    with runtime.untracked():
        assert "telemetry/off" in http_user_agent()
    assert "telemetry/off" not in http_user_agent()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_a_lack_of_memory_is_known_on_every_device(error, expected):
    assert runtime.is_out_of_memory(error) == expected
