"""Forwards of a batch of prompts: whole, in chunks over a KV cache, or with branches.

A fixed query stands at the end of every prompt, so a short prompt is no beginning of a long one,
but all of it besides the query is. `forward_branches` therefore runs the longest prompts once and
keeps their keys and values. The query of each shorter length is then a branch: a token of its own
that sees the keys of its prefix and itself. That is one pass over the longest prompts and one token
more for each other length, in memory that grows linearly with the length. Where a model allows it,
all branches run `together` in one short forward, so that the weights are read once for all of them.

If only the first attention is wanted, its projections may be those of token types, which
`find_types` finds where it pays.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from llmprobe.base.transfers import upload
from llmprobe.capture.discovery import AttentionLayer, input_device
from llmprobe.capture.seen_keys import seeing
from llmprobe.capture.token_types import TokenTypes
from llmprobe.probes.prompts import Prompts

_N_TRIED = 64
"""Tokens of the first trial of token types."""
_LEAST_PROMPTS, _LEAST_SAVED = 8, 4
"""Prompts, and tokens for each type, from which on token types pay for their trial and table."""
_MOST_BYTES = 2**30
"""Of the table of token types."""

Observe = Callable[[list[int]], AbstractContextManager[Mapping[int, Any]]]
"""Attach a capture for these positions; the mapping it gives is filled by the forward."""


def forward(
    model: nn.Module,
    tokens: Tensor,
    positions: list[int],
    chunk: int | None,
    observe: Observe,
    types: TokenTypes | None = None,
) -> list[Mapping[int, Any]]:
    """Run prompts whole or in chunks over a cache; what is captured, in parts by positions."""
    if chunk is None or chunk >= tokens.shape[1]:
        return [_whole(model, tokens, observe(positions), types, **without_cache(model))]
    return _in_chunks(model, tokens, positions, chunk, observe, DynamicCache(config=model.config))


def _whole(
    model: nn.Module, tokens: Tensor, capture: Any, types: TokenTypes | None, **options: Any
) -> Mapping[int, Any]:
    with capture as captured, ExitStack() as stack:
        if types is not None and capture.may_narrow(tokens.shape[1]):
            stack.enter_context(types.serving(capture, tokens))
        model(tokens, **options)
    return captured


def forward_branches(
    model: nn.Module,
    tokens: Tensor,
    lengths: Sequence[int],
    chunk: int | None,
    observe: Observe,
    types: TokenTypes | None = None,
    *,
    n_tail: int,
    together: bool = False,
) -> list[Mapping[int, Any]]:
    """Prompts of all lengths at their last token, in parts of ascending lengths.

    A prompt of N tokens is the first N − `n_tail` of its longest one and then its last `n_tail`.
    """
    *shorter, longest = sorted(lengths)
    cache = _branching_cache()
    if chunk is None or chunk >= longest:
        capture = observe([longest - 1])
        parts = [_whole(model, tokens, capture, types, past_key_values=cache, use_cache=True)]
    else:
        parts = _in_chunks(model, tokens, [longest - 1], chunk, observe, cache)
    tail = tokens[:, longest - n_tail :]
    if together and shorter:
        return [_together(model, tail, [n - n_tail for n in shorter], observe, cache), *parts]
    for length in reversed(shorter):
        _keep_first(cache, length - n_tail)
        with observe([-1]) as captured:
            model(tail, past_key_values=cache, use_cache=True)
        parts.append(captured)
    return parts[::-1]


def _together(
    model: nn.Module, tail: Tensor, prefixes: list[int], observe: Observe, cache: DynamicCache
) -> Mapping[int, Any]:
    """All branches in one forward, in ascending order of their prefixes."""
    n_tail, device = tail.shape[1], tail.device
    _keep_first(cache, prefixes[-1])  # what follows in the cache, no branch looks at
    places = torch.cat([torch.arange(n, n + n_tail) for n in prefixes])
    ends = [n * n_tail - 1 for n in range(1, len(prefixes) + 1)]
    with seeing(model, _seen_by(prefixes, n_tail).to(device)), observe(ends) as captured:
        model(
            tail.repeat(1, len(prefixes)),
            position_ids=upload(places, device).expand(len(tail), -1),
            past_key_values=cache,
            use_cache=True,
        )
    return captured


def _seen_by(prefixes: list[int], n_tail: int) -> Tensor:
    """Which keys each token of the branches sees, (tokens, keys): its prefix and its own branch."""
    within = torch.ones(n_tail, n_tail, dtype=torch.bool).tril()
    branches = torch.block_diag(*[within] * len(prefixes)).bool()
    limits = torch.tensor(prefixes).repeat_interleave(n_tail)
    return torch.cat([torch.arange(prefixes[-1]) < limits[:, None], branches], dim=1)


def _in_chunks(
    model: nn.Module,
    tokens: Tensor,
    positions: list[int],
    chunk: int,
    observe: Observe,
    cache: DynamicCache,
) -> list[Mapping[int, Any]]:
    parts, length = [], tokens.shape[1]
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        wanted = [position - start for position in positions if start <= position < end]
        with observe(wanted or [-1]) as captured:
            model(tokens[:, start:end], past_key_values=cache, use_cache=True)
        if wanted:
            parts.append(captured)
    return parts


class _BranchingLayer(DynamicLayer):
    """Keys and values of the longest prompts; a branch is written over what follows its prefix.

    So branches cost no copy of the keys. One after another, they must come in descending order of
    their lengths.
    """

    n_tokens = 0
    is_initialized: bool

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        start, end = self.n_tokens, self.n_tokens + key_states.shape[-2]
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.keys, self.values = key_states, value_states
            self.is_initialized = True
        elif end > self.keys.shape[-2]:
            self.keys = torch.cat([self.keys[..., :start, :], key_states], dim=-2)
            self.values = torch.cat([self.values[..., :start, :], value_states], dim=-2)
        else:
            self.keys[..., start:end, :] = key_states
            self.values[..., start:end, :] = value_states
        self.n_tokens = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self) -> int:
        return self.n_tokens


def _branching_cache() -> DynamicCache:
    """Without the model's config: what a sliding window has left behind, a branch may need."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = _BranchingLayer
    return cache


def _keep_first(cache: DynamicCache, n_tokens: int) -> None:
    for layer in cache.layers:
        layer.n_tokens = n_tokens


def without_cache(model: nn.Module) -> dict[str, Any]:
    """The option that no cache is wanted, where a model takes it."""
    takes_cache = "use_cache" in inspect.signature(model.forward).parameters
    return {"use_cache": False} if takes_cache else {}


def find_types(
    model: nn.Module, layer: AttentionLayer, prompts: Prompts, *, n_tokens: int
) -> TokenTypes | None:
    """The first attention by token types, where they pay and give the same numbers.

    They pay if `n_tokens`, all that a sweep runs, are many more than there are distinct tokens.
    """
    if prompts.n_prompts < _LEAST_PROMPTS:
        return None
    distinct = _distinct(prompts)
    if _LEAST_SAVED * len(distinct) > n_tokens:
        return None
    device = input_device(model)
    tokens = upload(prompts.batch([prompts.longest_one], prompts.longest), device)
    types = TokenTypes.found(model, layer, tokens[:, :_N_TRIED])
    if types is None or len(distinct) * types.row_bytes > _MOST_BYTES:
        return None
    if not types.holds(layer, tokens):
        return None
    types.learn(upload(distinct, device))
    return types


def _distinct(prompts: Prompts) -> Tensor:
    """The tokens of all prompts, each one once."""
    seen = np.zeros(0, bool)
    for index in range(prompts.n_prompts):
        length = prompts.longest if prompts.sizes is None else prompts.sizes[index]
        tokens = prompts.batch([index], length).numpy()
        seen.resize(max(len(seen), int(tokens.max()) + 1), refcheck=False)
        seen[tokens] = True
    return torch.from_numpy(seen.nonzero()[0])
