"""The machine: device, number type, memory, environment.

Everything that depends on where the code runs is decided here, once.
"""

import ctypes
import gc
import hashlib
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from llmprobe.base.processes import process, world_size
from llmprobe.base.transfers import fetch

try:
    import resource
except ModuleNotFoundError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

_N_SAMPLED = 64
"""Numbers of a weight that are looked at, about."""
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}
"""Short names for the ones above; results record the full name."""
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "numpy", "scipy", "seaborn", "typer")
EXTRAS = {"gguf": ("gguf",), "notebook": ("ipykernel", "ipywidgets", "nbclient")}


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """`auto` is the accelerator that torch finds, this process's own one, else the CPU."""
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return torch.device("cpu")
        if accelerator.type == "cuda":
            return torch.device("cuda", process().local_rank)
        return accelerator
    unknown = ValueError(f"device: got {device!r}, accepted: auto, cpu, cuda, cuda:1, mps, xpu")
    try:
        resolved = torch.device(device)
        # Also a kind that is no part of torch, if its package was imported.
        n_devices = 1 if resolved.type == "cpu" else _device_module(resolved).device_count()
    except (RuntimeError, AttributeError):
        raise unknown from None
    if not n_devices:
        kind = resolved.type.upper()
        raise ValueError(
            f"device: got {device!r}, but torch sees no {kind} device; use auto or cpu"
        )
    if (resolved.index or 0) >= n_devices:
        raise ValueError(
            f"device: got {device!r}, but torch sees {n_devices} of this kind; use {resolved.type}"
        )
    return resolved


def check_map(name: object) -> None:
    """Refuse a name that is neither one of accelerate's plans nor a device."""
    plans = ("auto", "balanced", "balanced_low_0", "sequential")
    if not isinstance(name, str):
        return
    try:
        resolve_device("cpu" if name in plans else name)
    except ValueError as error:
        accepted = f"accepted: {', '.join(plans)}, or a device"
        raise ValueError(f"device_map: got {name!r}, {accepted} ({error})") from None


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The number type of a name; short names such as `bf16` are accepted.

    `auto` is bfloat16 on a GPU that supports it and float32 elsewhere: on a CPU bfloat16 matrix
    products are slower than float32 ones.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    name = ALIASES.get(dtype, dtype)
    if name not in DTYPES:
        raise ValueError(
            f"dtype: got {dtype!r}, accepted: auto, {', '.join(DTYPES)}, or the short names "
            f"{', '.join(ALIASES)}; auto is bfloat16 on a GPU that supports it, else float32"
        )
    return DTYPES[name]


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate there, under whatever limit it runs."""
    if (own := device_memory(device)) is not None:
        return own[0]
    limits = [psutil.virtual_memory().available, *_free_in_group(Path("/sys/fs/cgroup"))]
    if resource is not None:
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            limits.append(most - psutil.Process().memory_info().vms)
    return max(0, min(limits))


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Free bytes and all bytes of a device; None where it shares the machine's, as Apple's do."""
    if device.type == "cpu":
        return None
    ask = getattr(_device_module(device), "mem_get_info", None)
    return None if ask is None else ask(device)


def describe_memory(device: torch.device, *, peak: bool = False) -> str:
    """What is free, reserved or, after a run, was used at most; empty for the machine's own."""
    own = device_memory(device)
    if own is None:
        return ""
    module, gib = _device_module(device), 2**30
    words = f"{device}: {own[0] / gib:.1f} of {own[1] / gib:.1f} GiB are free"
    for what, name in (
        ("torch reserves {:.1f}", "memory_reserved"),
        ("the run used {:.1f} at most", "max_memory_allocated" if peak else ""),
    ):
        if hasattr(module, name):
            words += f", {what.format(getattr(module, name)(device) / gib)}"
    return words


def release_memory(device: torch.device) -> None:
    """Give back what torch's allocator keeps of a device for later tensors."""
    if device.type != "cpu":
        getattr(_device_module(device), "empty_cache", lambda: None)()


def _device_module(device: torch.device) -> Any:
    """`torch.cuda`, `torch.mps`, `torch.xpu` ...: what torch knows of a kind of device."""
    return torch.get_device_module(device)


def _free_in_group(root: Path, groups: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """What Linux control groups (of a container or a scheduler) leave to this process."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # another system
        return
    for line in lines:
        _, controllers, own = [*line.split(":", 2), "", ""][:3]
        if not controllers:  # version 2
            yield from _free_below(root, own, ("memory.max", "memory.current"))
        elif "memory" in controllers.split(","):  # version 1
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _free_below(root / "memory", own, names)


def _free_below(root: Path, own: str, names: tuple[str, str]) -> Iterator[int]:
    """Of the group and of those around it; inside a container only the outermost may be seen."""
    group = root / own.lstrip("/")
    for place in (group, *group.parents):
        if not place.is_relative_to(root):
            return
        try:
            most, used = ((place / name).read_text().strip() for name in names)
            if most != "max":
                yield int(most) - int(used)
        except (OSError, ValueError):  # no such group here, or another version of them
            continue


@contextmanager
def without_denormals() -> Iterator[None]:
    """Treat numbers below 1e-38 as zero: a CPU computes many times slower with them."""
    before = not torch.tensor(1e-39).mul(1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt in glibc
_keepers = 0


@contextmanager
def memory_kept() -> Iterator[None]:
    """Make glibc keep freed memory for the next tensor; other C libraries are left alone.

    By default glibc returns blocks of 32 MB and more to the system at once. The system then zeroes
    the pages of the next block, which takes longer than the arithmetic on it. This setting holds
    for the whole process, so only long jobs (a sweep, a training) use it.
    """
    global _keepers
    mallopt = _mallopt()
    _keepers += 1
    if _keepers == 1:
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        _keepers -= 1
        if not _keepers:  # the values that glibc reaches by itself with blocks of this size
            mallopt(_MMAP_THRESHOLD, 2**25)
            mallopt(_TRIM_THRESHOLD, 2**26)


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Spare the garbage collector the objects that are there already, in this block.

    torch, transformers and pandas make hundreds of thousands, and a loop of many small steps has
    them looked through again and again: an eighth to a quarter of the time of a training step.
    Objects that are made in the block are collected as ever.
    """
    already = gc.get_freeze_count() > 0  # by a caller, or by a block around this one
    if not already:
        gc.freeze()
    try:
        yield
    finally:
        if not already:
            gc.unfreeze()


@cache
def _mallopt() -> Callable[[int, int], int]:
    if platform.libc_ver()[0] != "glibc":
        return lambda option, value: 0
    return ctypes.CDLL(None).mallopt


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Multiplications and additions a second, by a short trial."""
    a = torch.ones(1024, 1024, device=device, dtype=dtype)
    float((a @ a)[0, 0])
    start = time.perf_counter()
    for _ in range(3):
        b = a @ a
    float(b[0, 0])  # waits for the device
    return 3 * 2 * 1024**3 / (time.perf_counter() - start)


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # The CPU's allocator; CUDA's and MPS's own; cuBLAS and similar libraries when they start.
    known = ("allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in known)


def sample_weights(model: torch.nn.Module) -> str:
    """A hash of a few numbers of each weight: tells at no cost that a model was trained meanwhile.

    Weights that are packed, or that lie on a disk, are left out.
    """
    sampled: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        packed = hasattr(weight, "__tensor_flatten__") or weight.layout != torch.strided
        if not weight.is_meta and not packed:
            flat = weight.detach().reshape(-1)
            some = flat[:: max(1, flat.numel() // _N_SAMPLED)]
            sampled[name] = some.resolve_conj().resolve_neg()
    sha = hashlib.sha256()
    for name, some in zip(sampled, fetch(list(sampled.values())), strict=True):
        sha.update(name.encode())
        sha.update(some.contiguous().view(torch.uint8).numpy())
    return sha.hexdigest()


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into eval mode; afterwards every module is back in its own mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def untracked() -> Iterator[None]:
    """Turn off the hub client's telemetry, so requests carry no facts about this machine."""
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


def environment() -> dict[str, object]:
    """The facts that decide how a run behaves here, for bug reports and `llmprobe env`."""
    device = resolve_device()
    memory = psutil.virtual_memory()
    facts: dict[str, object] = {
        "llmprobe": _version("llmprobe"),
        "python": platform.python_version(),
    }
    facts |= {name: _version(name) for name in PACKAGES}
    facts |= {
        "platform": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "device name": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        "dtype": str(resolve_dtype("auto", device)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "processes": world_size(),  # from the launcher; does not wait for the others
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "device memory": _device_memory(device),
        "hub": _hub(),
    }
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        note = f"missing {', '.join(missing)}: pip install 'llmprobe[{extra}]'"
        facts[f"extra {extra}"] = note if missing else "installed"
    return {name: value for name, value in facts.items() if value != ""}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device_memory(device: torch.device) -> str:
    own = device_memory(device)
    return "" if own is None else f"{own[0] / 2**30:.1f} of {own[1] / 2**30:.1f} GiB free"


def _hub() -> str:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "offline (HF_HUB_OFFLINE is set)"
    try:
        get_session().head(constants.ENDPOINT, timeout=3)
    except Exception:  # whatever the reason, the answer is the same
        return "not reachable; local folders, .gguf files and cached models still load"
    return "reachable"
