"""Items of a set as tokens: a number of 24 bits and a class, `number * N_CLASSES + class`.

A set is written as tokens, its items and then the query, so that a trained network can be probed
like any language model. What a number means is up to the task.
"""

import torch
from torch import Tensor

N_CLASSES = 10
N_BITS = 24
"""As many as a float32 drawn from U(0, 1) has."""
VOCAB_SIZE = N_CLASSES * 2**N_BITS


def numbers_of(tokens: Tensor) -> Tensor:
    return tokens.div(N_CLASSES, rounding_mode="floor")


def signs_of(tokens: Tensor) -> Tensor:
    """The number's bits as signs, in a vector of length one: (...) to (..., N_BITS)."""
    shifts = torch.arange(N_BITS, device=tokens.device, dtype=torch.int32)
    bits = (numbers_of(tokens).int()[..., None] >> shifts) & 1  # half the memory of tokens
    return (2 * bits - 1) / N_BITS**0.5


def with_class(described: Tensor, tokens: Tensor) -> Tensor:
    """Append the tokens' classes, one-hot, to what describes their numbers."""
    classes = torch.arange(N_CLASSES, device=tokens.device)
    one_hot = (tokens % N_CLASSES)[..., None] == classes
    return torch.cat([described, one_hot.to(described.dtype)], dim=-1)


def repeats(keys: Tensor) -> Tensor:
    """Which keys (sets, n) occurred earlier in their set."""
    ordered, order = keys.sort(dim=1, stable=True)
    again = torch.zeros_like(keys, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)
