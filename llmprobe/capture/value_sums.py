"""Sums over a row of attention and the values it weighs: what the variance of a head is made of.

A head's output is o = Σ a v. How far its tokens could move it is Σ a² |v − m|² about any vector m,
and that follows from three sums, whatever m is: Σ a² v, Σ a² |v|² and Σ a². So they are all that is
kept of a row, in float64, for the whole row and for its first token and the query's own alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from llmprobe.base.transfers import as_float64
from llmprobe.capture.calls import at_positions


@dataclass(frozen=True)
class ValueSums:
    """Shapes begin with (batch, positions, heads).

    `row`, `first` and `query` have Σ a² v for each feature, then Σ a² |v|², then Σ a²: of all
    tokens, of the prompt's first one, and of the query's own (zero where that is the first).
    """

    output: Tensor
    """Σ a v: (..., size). Not what a module returns if it does more with it, such as a gate."""
    row: Tensor
    """(..., size + 2)"""
    first: Tensor
    query: Tensor
    missing: Tensor
    """1 − Σ a: the share of a learned sink, a token whose value is zero."""

    @classmethod
    def of(
        cls, weights: Tensor, value: Tensor, *, starts: Tensor, queries: Tensor
    ) -> "ValueSums | None":
        """Of weights (batch, heads, positions, keys) and values (batch, KV heads, keys, size).

        `starts` (batch,) and `queries` (batch, positions) say where the prompts' first tokens and
        the queries are among the keys. None if the values are not those of the keys.
        """
        n_heads, n_key_heads = weights.shape[1], value.shape[1]
        if value.shape[2] != weights.shape[3] or n_heads % n_key_heads:
            return None
        a, v = as_float64(weights.detach()), as_float64(value.detach())
        starts, queries = starts.to(a.device), queries.to(a.device)
        square = v.square().sum(-1, keepdim=True)
        wide = torch.cat([v, square, torch.ones_like(square)], dim=-1)
        squares = a.square()
        of_query = _one_key(squares, wide, queries)
        is_first = (queries == starts[:, None])[..., None, None]
        return cls(
            output=_sum_over_keys(a, v),
            row=_sum_over_keys(squares, wide),
            first=_one_key(squares, wide, starts[:, None].expand_as(queries)),
            query=of_query.masked_fill(is_first, 0.0),
            missing=1 - a.sum(-1).transpose(1, 2),
        )


def _sum_over_keys(weights: Tensor, x: Tensor) -> Tensor:
    """Heads that share a KV head are more queries of it: (batch, positions, heads, features)."""
    n_heads, n_key_heads = weights.shape[1], x.shape[1]
    folded = weights.unflatten(1, (n_key_heads, n_heads // n_key_heads)).flatten(2, 3)
    summed = (folded @ x).unflatten(2, (n_heads // n_key_heads, -1))
    return summed.flatten(1, 2).transpose(1, 2)


def _one_key(weights: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """The same sum over one key for each query, at `index` (batch, positions)."""
    batch, n_heads, n_positions, _ = weights.shape
    where = index[:, None, :, None].expand(batch, n_heads, n_positions, 1)
    at = at_positions(x.transpose(1, 2), index).repeat_interleave(n_heads // x.shape[1], dim=2)
    return weights.gather(-1, where).transpose(1, 2) * at
