"""A simulated accelerator: tensors that say `sim:0` or `sim:1`, compute on the CPU, and keep a log.

    start()                                   # registers the device, once in a process
    model.to("sim")
    with watching() as seen:
        model(tokens.to("sim"))
    seen.n_waits                              # how often the host would have waited for a GPU

What is as on CUDA: a tensor of the device does not mix with one of the CPU or of another device
(numbers of no dimension may, in elementwise operations); `.numpy()` refuses it; `.item()`,
`bool()`, `nonzero`, masks as indices, `torch.equal` and copies to the host wait for the device;
copies to the device wait unless the host's memory is pinned and the copy is `non_blocking`.
Everything else is queued without waiting. docs/gpu.md says what such a device cannot prove.

torch takes it for a device of its own kind (PrivateUse1), so composite operations, autograd and
generators choose their ways as for any accelerator. Unlike on a GPU, tied weights come apart when a
module is moved, and `torch.save` cannot write such tensors.
"""

import contextlib
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from simulated_log import Log, note, watching
from simulated_module import NAME, Module, SimGenerator
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch

from llmprobe.base import transfers

__all__ = ["Log", "module", "start", "watching", "without_types"]
_aten = torch.ops.aten
_DECIDES = {
    # The size of what these give, or a number for the host, depends on the data.
    "_local_scalar_dense": "item",
    "equal": "equal",
    "allclose": "equal",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "bincount": "bincount",
}
_SOLVERS = ("_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_lstsq")
_FACTORIES = (
    *("empty", "empty_strided", "zeros", "ones", "full", "scalar_tensor", "eye", "arange"),
    *("linspace", "logspace", "rand", "randn", "randint", "randperm", "tril_indices"),
    *("triu_indices", "hann_window"),
)
_LOOSE = ("index_put", "index_put_", "_index_put_impl_", "masked_fill", "masked_fill_", "where")
"""Operations besides elementwise ones that accept a number of no dimension from the CPU."""
_pinned: dict[int, Tensor] = {}
"""Pinned memory by where it begins; kept, so that no ordinary memory comes to stand there."""
_refused: set[torch.dtype] = set()


@contextlib.contextmanager
def without_types(*dtypes: torch.dtype) -> Iterator[None]:
    """As on a device that has no such numbers: Apple's has no float64."""
    _refused.update(dtypes)
    try:
        yield
    finally:
        _refused.difference_update(dtypes)


class SimTensor(torch.Tensor):
    """A tensor of the device; `_host` has its numbers."""

    _host: Tensor

    @staticmethod
    def __new__(
        cls, host: Tensor, index: int | None = None, requires_grad: bool = False, **_: Any
    ) -> Any:
        if isinstance(host, SimTensor):
            host, index = host._host, host.device.index
        elif index is None:  # accelerate makes parameters by the type of those they replace
            return torch.nn.Parameter(host, requires_grad)
        if host.dtype in _refused:
            raise TypeError(f"{NAME} has no {host.dtype}")
        new = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(NAME, index or 0),
            requires_grad=requires_grad,
        )
        new._host = host
        return new

    @property
    def data(self) -> Any:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, new: "SimTensor") -> None:
        # Modules that are moved or converted set the data of their parameters.
        torch.Tensor.data.__set__(self, new)
        self._host = new._host

    def __deepcopy__(self, memo: dict[int, Any]) -> "SimTensor":
        if not self.is_leaf:
            raise RuntimeError("only tensors without a history can be copied deeply")
        new = SimTensor(self._host.clone(), self.device.index).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            new._is_param = True
        memo[id(self)] = new
        return new

    def data_ptr(self) -> int:
        return self._host.data_ptr()

    def untyped_storage(self) -> Any:
        return self._host.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:
        return f"SimTensor({self._host!r}, device={self.device})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the host what an operation of the device is."""
    name = func._schema.name.removeprefix("aten::")
    # In inference mode composite operations come as a whole. The attention of the CPU stays one, so
    # that numbers can be compared to the bit.
    if _is_composite(func) and name != "scaled_dot_product_attention":
        return func.decompose(*args, **kwargs)
    if name in ("copy_", "_to_copy", "_copy_from", "_copy_from_and_resize"):
        return _copied(name, func, args, kwargs)
    if name == "detach_":  # of what `torch.tensor` has made
        return args[0]
    if name in ("set_", "resize_"):
        raise NotImplementedError(f"{func} gives a tensor of {NAME} other memory")
    found: list[Tensor] = []
    host_args = [_host(x, found) for x in args]
    host_kwargs = {key: _host(x, found) for key, x in kwargs.items()}
    index = _check_same(func, name, found, kwargs.get("device"))
    if "device" in host_kwargs:
        host_kwargs["device"] = torch.device("cpu")
    host_kwargs.pop("pin_memory", None)
    _note_decision(name, args)
    if name == "histc" and not host_args[0].is_floating_point():  # GPUs count integers as well
        return SimTensor(func(host_args[0].double(), *host_args[1:]).to(host_args[0].dtype), index)
    out = func(*host_args, **host_kwargs)
    if torch.Tag.inplace_view in func.tags:  # the tensor has a shape of its own to change
        with no_dispatch():
            func(*args, **kwargs)
    if func._schema.is_mutable:
        written = [
            args[n] if n < len(args) else kwargs.get(argument.name)
            for n, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if isinstance(out, Tensor):
            return written[0]
        return tuple(written) if isinstance(out, tuple) else out
    views = torch.is_inference_mode_enabled() and _gives_views(func)
    if views and not args[0].is_inference():  # then neither is a view of it
        with torch.inference_mode(False):
            return _wrapped(out, index)
    return _wrapped(out, index)


@cache
def _gives_views(func: Any) -> bool:
    return any(given.alias_info is not None for given in func._schema.returns)


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _host(x: Any, found: list[Tensor]) -> Any:
    if isinstance(x, SimTensor):
        found.append(x)
        return x._host
    if isinstance(x, Tensor):
        found.append(x)
        return x
    if isinstance(x, list | tuple):
        return [_host(item, found) for item in x]
    return x


def _wrapped(out: Any, index: int) -> Any:
    if isinstance(out, Tensor):
        return SimTensor(out, index)
    if isinstance(out, list | tuple):
        return type(out)(_wrapped(item, index) for item in out)
    return out


def _check_same(func: Any, name: str, found: list[Tensor], device: Any) -> int:
    """The device of an operation; refuses several, as a GPU does."""
    devices = {x.device for x in found if not (x.ndim == 0 and x.device.type == "cpu")}
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        # Indices may lie on the CPU: they are copied.
        own = found[0].device
        for x in found[1:]:
            if x.device.type == "cpu" and not x.is_floating_point() and own.type != "cpu":
                note("wait", "upload")
                devices.discard(x.device)
    scalars = any(x.ndim == 0 and x.device.type == "cpu" for x in found)
    elementwise = torch.Tag.pointwise in func.tags or name in _LOOSE
    if scalars and devices and not elementwise:
        devices.add(torch.device("cpu"))
    if len(devices) > 1:
        both = " and ".join(sorted(map(str, devices)))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{both}! (in {func})"
        )
    chosen = torch.device(device) if device is not None else next(iter(devices), None)
    return 0 if chosen is None or chosen.index is None else chosen.index


def _note_decision(name: str, args: Any) -> None:
    if name in _DECIDES:
        note("wait", _DECIDES[name])
    elif name in _SOLVERS:
        note("wait", "linalg")  # they look whether it went well
    elif name.startswith("repeat_interleave"):
        note("wait", "repeat_interleave")
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
        # One number under a mask is a `masked_fill`.
        filled = name != "index" and len(args[1]) == 1 and args[2].numel() == 1
        if masks and not filled:
            note("wait", "mask as index")
        else:
            note("queue", name)
    else:
        note("queue", name)


def _copied(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copies are what may have two devices."""
    if name == "_to_copy":
        source = args[0]
        options = {key: x for key, x in kwargs.items() if key not in ("device", "non_blocking")}
        options.pop("pin_memory", None)
        target = torch.device(kwargs.get("device") or source.device)
        if target.type == "meta":  # no number is copied
            options["device"] = target
        host = func(source._host if isinstance(source, SimTensor) else source, **options)
        _note_copy(source, target, kwargs.get("non_blocking", False), host)
        return SimTensor(host, target.index or 0) if target.type == NAME else host
    into, source = args[0], args[1]
    if name != "copy_":  # from the first to the second
        into, source = source, into
    hosts = [x._host if isinstance(x, SimTensor) else x for x in (into, source)]
    waits_not = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    _note_copy(source, into.device, waits_not, hosts[0])
    hosts[0].copy_(hosts[1])
    return into


def _note_copy(source: Tensor, target: torch.device, non_blocking: bool, host: Tensor) -> None:
    came = source.device
    if came.type == target.type or target.type == "meta":
        note("queue", "copy" if came == target else "copy between devices")
    elif came.type == NAME:
        early = non_blocking and is_pinned(host)
        note("queue" if early else "wait", "fetch")
    else:
        early = non_blocking and is_pinned(source)
        note("queue" if early else "wait", "upload")


def pin(x: Tensor, *_: Any) -> Tensor:
    new = x.clone()
    _pinned[new.untyped_storage().data_ptr()] = new
    return new


def is_pinned(x: Tensor, *_: Any) -> bool:
    return x.device.type == "cpu" and x.untyped_storage().data_ptr() in _pinned


module = Module()
_library: list[Any] = []


def start() -> None:
    """Register the device in this process, once."""
    if _library:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    library = torch.library.Library("aten", "IMPL")
    for name in _FACTORIES:
        packet = getattr(_aten, name)
        for overload in (getattr(packet, word) for word in packet.overloads()):
            arguments = overload._schema.arguments
            tensors = any("Tensor" in str(argument.type) for argument in arguments)
            if not tensors and any(argument.name == "device" for argument in arguments):
                library.impl(overload, partial(_made, overload), "PrivateUse1")
    # `torch.tensor(data, device=...)` comes here without a call of `__torch_dispatch__`.
    library.impl("_copy_from", partial(_run_args, _aten._copy_from.default), "PrivateUse1")
    autocast = torch.library.Library("_", "IMPL")  # accepted, and changes no number here
    autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _library.extend([library, autocast])
    torch.Generator = SimGenerator
    torch.random._fork_rng_warned_already = True  # it warns of several devices
    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin, is_pinned
    transfers.PINNING.add(NAME)


def _made(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    """A new tensor of the device, from no other."""
    index = torch.device(kwargs.pop("device")).index or 0
    kwargs.pop("pin_memory", None)
    note("queue", func._schema.name)
    return SimTensor(func(*args, **kwargs, device="cpu"), index)


def _run_args(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(func, args, kwargs)
