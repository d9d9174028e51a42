"""Between the host and a device: uploads that do not wait, and one fetch for many tensors.

A GPU works through a queue. The host waits for all of it whenever a number comes back, and whenever
a copy in either direction is made from or to ordinary memory. So what a device is given goes
through `upload`, what comes back through `fetch`, once for a piece of work and never in a hook.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PINNING = {"cuda", "xpu"}
"""Kinds of devices that copy from pinned memory while the host continues."""
WITHOUT_FLOAT64 = {"mps"}


def upload(x: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on a device, of a number type if one is named; the host does not wait for it."""
    if x.device == device or device.type not in PINNING or x.device.type != "cpu":
        return x.to(device, dtype)
    return x.to(dtype).pin_memory().to(device, non_blocking=True)


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the host, in one copy from each device; those of the host are the same."""
    found = [x.detach() for x in tensors]
    by_device: dict[torch.device, list[int]] = {}
    for index, x in enumerate(found):
        if x.device.type != "cpu":
            by_device.setdefault(x.device, []).append(index)
    for some in by_device.values():
        # Wide numbers first: so each tensor begins at a multiple of its numbers' size.
        order = sorted(some, key=lambda index: -found[index].element_size())
        flat = [found[index].contiguous().reshape(-1).view(torch.uint8) for index in order]
        parts = torch.cat(flat).cpu().split([len(x) for x in flat])
        for index, part in zip(order, parts, strict=True):
            found[index] = part.view(found[index].dtype).reshape(found[index].shape)
    return found


def fetch_arrays(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The same as arrays that share no memory with the tensors."""
    return [np.array(x.numpy()) for x in fetch(tensors)]


def has_float64(device: torch.device) -> bool:
    """Whether a device has numbers of that type."""
    return device.type not in WITHOUT_FLOAT64


def as_float64(x: Tensor) -> Tensor:
    """In float64: on its device, or on the CPU where that has none."""
    return (x if has_float64(x.device) else x.cpu()).double()


def widened(x: Tensor) -> Tensor:
    """In the widest floating point numbers of its device, where it stays."""
    return x.double() if has_float64(x.device) else x.float()
