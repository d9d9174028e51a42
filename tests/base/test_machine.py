"""Device, dtype, memory, environment."""

import gc
import platform
import weakref

import pytest
import torch
from torch import nn

from llmprobe.base import machine
from llmprobe.base.machine import sample_weights


def test_auto_takes_what_the_machine_has():
    device = machine.resolve_device("auto")
    assert device == machine.resolve_device(device)
    assert machine.resolve_device("cpu") == torch.device("cpu")
    assert machine.resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert machine.resolve_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    assert machine.resolve_dtype(torch.float16, torch.device("cpu")) == torch.float16


def test_auto_on_a_gpu_depends_on_bfloat16(monkeypatch):
    for native, expected in [(True, torch.bfloat16), (False, torch.float32)]:
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda native=native, **_: native)
        assert machine.resolve_dtype("auto", torch.device("cuda")) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they exist")
@pytest.mark.parametrize("wrong", ["gpu", "", "cuda", "cuda:7", "mps", "meta", "cpu:1"])
def test_devices_that_are_not_there_are_refused(wrong):
    with pytest.raises(ValueError, match="device: got"):
        machine.resolve_device(wrong)
    with pytest.raises(ValueError, match=r"device_map: got .* accepted: auto, balanced"):
        machine.check_map(wrong)


def test_a_device_map_is_a_plan_or_a_device(monkeypatch):
    for name in ("auto", "balanced", "balanced_low_0", "sequential", "cpu"):
        machine.check_map(name)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert machine.resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="torch sees 2 of this kind; use cuda"):
        machine.resolve_device("cuda:2")


def test_unknown_dtypes_are_refused_with_the_list_and_what_auto_is():
    said = r"got 'int8', accepted: auto, float32, bfloat16.* bf16, .*auto is bfloat16 on a GPU"
    with pytest.raises(ValueError, match=said):
        machine.resolve_dtype("int8", torch.device("cpu"))


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("half", torch.float16),
        ("fp32", torch.float32),
        ("float", torch.float32),
        ("fp64", torch.float64),
        ("double", torch.float64),
    ],
)
def test_short_names_of_dtypes_are_the_long_ones(short, full):
    assert machine.resolve_dtype(short, torch.device("cpu")) == full
    assert short not in machine.DTYPES  # which has the names that results record
    assert set(machine.ALIASES.values()) <= machine.DTYPES.keys()


def test_evaluating_gives_every_module_its_own_mode_back():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout(), torch.nn.Dropout()).train()
    model[1].eval()
    with pytest.raises(RuntimeError, match="on purpose"), machine.evaluating(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError("on purpose")
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_the_environment_waits_for_no_other_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "7")
    assert machine.environment()["processes"] == 7


def test_environment_names_what_decides_a_run():
    facts = machine.environment()
    assert {"llmprobe", "torch", "device", "dtype", "threads", "memory", "hub"} <= facts.keys()
    assert facts["torch"] == torch.__version__
    assert "offline" in str(facts["hub"])


def test_environment_says_how_to_get_a_missing_extra(monkeypatch):
    monkeypatch.setattr("llmprobe.base.machine.find_spec", lambda _: None)
    assert "pip install 'llmprobe[gguf]'" in str(machine.environment()["extra gguf"])


def test_denormals_are_zero_inside_and_as_before_outside():
    tiny = torch.tensor([1e-39])
    with machine.without_denormals():
        assert float(tiny * 1) == 0
        with machine.without_denormals():
            pass
        assert float(tiny * 1) == 0
    assert float(tiny * 1) > 0


def test_freed_memory_is_kept_while_asked_for_and_in_nested_blocks(monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "_mallopt", lambda: lambda option, value: asked.append(value))
    with pytest.raises(RuntimeError, match="on purpose"), machine.memory_kept():
        with machine.memory_kept():
            pass
        assert asked == [2**30, 2**31 - 1]
        raise RuntimeError("on purpose")
    assert asked == [2**30, 2**31 - 1, 2**25, 2**26]


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
def test_a_tensor_gets_the_pages_of_the_last_one(run_python):
    # In a process of its own: threads of other tests may have moved this one to another heap. What
    # was freed first may be a few bytes too short for the next, so only many settle.
    script = """
import resource
import torch
from llmprobe.base.machine import memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MB, 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with memory_kept():
    print(sorted(faults() for _ in range(60))[30])
"""
    done = run_python(script)
    assert int(done.stdout) < 1000, done.stderr


@pytest.fixture
def nothing_frozen():
    """The tests run with the objects of all imports frozen."""
    gc.unfreeze()
    gc.disable()  # a test says when it collects
    yield
    gc.enable()
    gc.collect()
    gc.freeze()


def test_old_objects_are_left_alone_inside_and_new_ones_are_not(nothing_frozen):
    class Loop:
        def __init__(self):
            self.own = self

    old = weakref.ref(Loop())
    with pytest.raises(RuntimeError, match="on purpose"), machine.old_objects_left_alone():
        new = weakref.ref(Loop())
        gc.collect()
        assert old() is not None
        assert new() is None
        with machine.old_objects_left_alone():
            pass
        assert gc.get_freeze_count() > 0
        raise RuntimeError("on purpose")
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def test_what_a_caller_froze_stays_frozen(nothing_frozen):
    gc.freeze()
    with machine.old_objects_left_alone():
        pass
    assert gc.get_freeze_count() > 0


def test_the_hub_is_told_nothing_of_this_machine(monkeypatch):
    from huggingface_hub import constants
    from transformers.utils.hub import http_user_agent

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    with machine.untracked():
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
    assert machine.is_out_of_memory(error) == expected


VERSIONS = {
    "v2": ("0::/jobs/one", "", "memory.max", "memory.current", "max"),
    "v1": (
        *("9:cpu,memory:/jobs/one", "memory"),
        *("memory.limit_in_bytes", "memory.usage_in_bytes", 2**63),
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_control_groups_limits_the_memory(version, tmp_path, monkeypatch):
    line, under, most, used, unlimited = VERSIONS[version]
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text(f"12:pids:/other\n{line}\n")
    limits = {"": unlimited, "jobs": 5000, "jobs/one": 9000}
    for name, limit in limits.items():
        folder = root / under / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / most).write_text(f"{limit}\n")
        (folder / used).write_text("1000\n")
    assert min(machine._free_in_group(root, groups)) == 4000
    (root / under / "jobs" / most).write_text(f"{unlimited}\n")
    assert min(machine._free_in_group(root, groups)) == 8000
    # Inside a container the group's own path is not there, and the limit is at the top.
    groups.write_text(f"{line}/deeper\n")
    assert min(machine._free_in_group(root, groups)) == 8000
    groups.write_text("nonsense\n::\n")
    assert not [free for free in machine._free_in_group(root, groups) if free < 0]
    assert list(machine._free_in_group(root, tmp_path / "absent")) == []


def test_a_sample_of_the_weights_changes_with_training_and_not_with_use():
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 1, bias=False))
    optimizer, before = torch.optim.SGD(model.parameters(), lr=1e-3), sample_weights(model)
    model(torch.ones(1, 40)).sum().backward()
    assert sample_weights(model) == before
    optimizer.step()
    assert sample_weights(model) != before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.int8])
def test_weights_of_every_kind_are_sampled(dtype):
    found = set()
    for value in (1, 2):
        model = nn.Module()
        model.w = nn.Parameter(torch.full((500,), value).to(dtype), requires_grad=False)
        model.nothing = nn.Parameter(torch.zeros(0))
        model.elsewhere = nn.Parameter(torch.zeros(3, device="meta"))
        found.add(sample_weights(model))
    assert len(found) == 2
