"""Set complement in closed form: what one attention can do, to the digit (arXiv 2510.08341).

The minimal model, one layer and one head of attention alone, answers the tokens t of length s with

    logits = B[t_s] + Σ_i a(t_s, t_i) D[t_i],    B = E U,    D = E W_V W_O U

D is the *logit displacement*: what a token that is attended to adds to all logits. Every absent
token gets the same logit at lengths 1 and 2 only if D[i] = u + k_i 1 - r_i e_i (for v of 4 and
more), and with all r_i > 0 that has rank v - 1 at least; so width and value size must be v - 1 at
least. With u = 0, equal r and even attention each present token's logit is r / s below that of the
absent ones, at every s: the gap at length 2 falls as 2 / s, and the mass on present tokens grows
as `wrong_mass` says.

    network = solve_complement(vocab=16, r=64.0)   # width = value size = 15
    balanced(network)                              # gaps at lengths 1 and 2, and how even they are
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from llmprobe.synthetic.decoder_network import Decoder

_SMALL = 2.0**-30
"""Size of B in the construction. With width v - 1 it cannot be 0: U must have full row rank for D,
and then E U = 0 only if E = 0."""


class Displacement(NamedTuple):
    """The minimal model's two tables, each (vocab, vocab): a row a token, a column a logit."""

    direct: NDArray[np.float64]
    """B: what the last token adds by itself."""
    attended: NDArray[np.float64]
    """D: what a token adds when it is attended to with weight one."""


class Balance(NamedTuple):
    """How evenly a minimal model tells absent from present, over all inputs of one length."""

    length: int
    gap: float
    """Mean logit of the absent tokens less that of the present ones, mean over inputs."""
    absent_spread: float
    """Standard deviation of the absent tokens' logits about their mean in an input, in gaps."""
    present_spread: float
    """Standard deviation of what each present token lies below the absent ones' mean, over tokens
    and inputs, in gaps. Both are 0 where the displacement is balanced."""


def logit_displacement(network: Decoder) -> Displacement:
    """B and D of a minimal model of one seed."""
    _check_minimal(network)
    attention = network.layers[0].attention
    embed, unembed, value, out = (
        module.weight.detach()[0].cpu().double()
        for module in (network.embedding, network.unembedding, attention.v_proj, attention.o_proj)
    )
    return Displacement((embed @ unembed).numpy(), (embed @ value @ out @ unembed).numpy())


def balanced(network: Decoder) -> tuple[Balance, Balance]:
    """How balanced a minimal model's displacement is at lengths 1 and 2, over all their inputs."""
    _check_minimal(network)
    vocab = network.embedding.num_embeddings
    if vocab < 3:
        raise ValueError(f"vocab: got {vocab}, accepted: 3 or more, so that two leave one absent")
    single = torch.arange(vocab)[:, None]
    pairs = torch.cartesian_prod(single[:, 0], single[:, 0])
    found = (_balance(network, tokens) for tokens in (single, pairs[pairs[:, 0] != pairs[:, 1]]))
    first, second = found
    return first, second


def _balance(network: Decoder, tokens: torch.Tensor) -> Balance:
    with torch.inference_mode():
        device = network.embedding.weight.device
        logits = network(tokens.to(device)).logits[:, -1].cpu().double()
    present = torch.zeros_like(logits, dtype=torch.bool).scatter(1, tokens, True)
    n = (~present).sum(dim=1, keepdim=True)
    mean = (logits * ~present).sum(dim=1, keepdim=True) / n
    below = mean - logits
    gap = float(below[present].mean())
    spreads = (below[~present].square().mean().sqrt(), below[present].std(correction=0))
    relative = (float(spread) / abs(gap) if gap else np.nan for spread in spreads)
    return Balance(tokens.shape[1], gap, *relative)


def solve_complement(vocab: int, r: float = 64.0) -> Decoder:
    """A minimal model of width and value size v - 1 that solves the task, in float64.

    Its displacement is -r (I - 1/v), of rank v - 1: the centering matrix, written as Q Qᵀ. Queries
    are 0, so that attention is even. A larger r is nearer to the target.
    """
    if vocab < 2:
        raise ValueError(f"vocab: got {vocab}, accepted: 2 or more tokens")
    if not r > 0:
        raise ValueError(f"r: got {r}, accepted: more than 0")
    width = vocab - 1
    network = Decoder(vocab, width=width).double()
    # An orthonormal basis of what is orthogonal to (1, ..., 1).
    ones_first = torch.eye(vocab, dtype=torch.float64)
    ones_first[:, 0] = 1
    basis = torch.linalg.qr(ones_first).Q[:, 1:]
    attention = network.layers[0].attention
    with torch.no_grad():
        network.embedding.weight[0] = basis
        network.unembedding.weight[0] = _SMALL * basis.T
        attention.v_proj.weight[0] = -r / _SMALL * torch.eye(width)
        attention.o_proj.weight[0] = torch.eye(width)
        attention.q_proj.weight.zero_()
        attention.k_proj.weight.zero_()
    return network.eval()


def wrong_mass(r: float, s: ArrayLike, *, vocab: int) -> NDArray[np.float64]:
    """Probability on present tokens after s of them, for a balanced displacement r.

    >>> wrong_mass(64.0, [1, 2, 8, 15], vocab=16).round(6)
    array([0.      , 0.      , 0.000335, 0.173845])
    """
    given = np.asarray(s, dtype=np.float64)
    present = given * np.exp(-r / given)
    return np.asarray(present / (present + vocab - given))


def _check_minimal(network: Decoder) -> None:
    """Refuse what has no such closed form."""
    attention = network.layers[0].attention
    shape = (len(network.seeds), len(network.layers), attention.num_heads)
    more = set(network.parts) - {"dropout", "weights"}
    if more or shape != (1, 1, 1):
        raise ValueError(
            f"network: got {network.variant} with {shape[0]} seeds, {shape[1]} layers and "
            f"{shape[2]} heads, accepted: the minimal model, attention alone with one of each"
        )
