"""What `torch.sim` offers, as `torch.cuda` does, and generators of the simulated device."""

from typing import Any

import torch
from simulated_log import note
from torch import Tensor

NAME = "sim"
N_DEVICES = 2


class Module:
    """The module `torch.sim`."""

    total = 2**40
    """Bytes that each device says it has."""
    is_default = False
    """Whether `auto` finds the device; other tests want the CPU."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return self.is_default

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return N_DEVICES

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass  # it draws from the generator of the CPU

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.total, self.total

    def empty_cache(self) -> None:
        note("queue", "empty_cache")

    def synchronize(self, device: Any = None) -> None:
        note("wait", "synchronize")


_Generator = torch.Generator


class _Generators(type(_Generator)):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, _Generator)


class SimGenerator(_Generator, metaclass=_Generators):
    """In the place of `torch.Generator`: one of the device draws what one of the CPU draws."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != NAME:
            return _Generator(device)
        new = super().__new__(cls, "cpu")
        new._device = torch.device(device)
        return new

    @property
    def device(self) -> torch.device:
        return self._device
