"""Random numbers by keys that name what is drawn; nothing here touches a global generator."""

import numpy as np
import torch


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuse what is no seed, or one that a result could not keep."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(
            f"{name}: got {seed!r}, accepted: 0 or more, a whole number of less than 64 bits"
        )


def numpy_generator(seed: int, *key: int | str) -> np.random.Generator:
    """A stream of random numbers of its own for each seed and key.

    Keys name what is drawn (`"prompt", 17`), so drawing more of one thing never moves another.
    """
    check_seed(seed)
    words = [int.from_bytes(k.encode(), "big") if isinstance(k, str) else k for k in key]
    return np.random.default_rng(np.random.SeedSequence([seed, *words]))


def torch_generator(
    seed: int, *key: int | str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """The same for torch: an explicit generator; nothing here touches the global one."""
    words = numpy_generator(seed, *key).integers(2**63, dtype=np.int64)
    generator = torch.Generator(device=device)
    generator.manual_seed(int(words))
    return generator
