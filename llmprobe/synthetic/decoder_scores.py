"""Scoring: how much of a decoder's prediction is allowed, after each number of tokens given.

    scores = score(network, ComplementTask(), lengths=(1, 2, 4, 8), n=1024)
    scores["illegal_mass"]  # (seeds, lengths)

A causal decoder answers after every token, so one forward over a sequence gives all lengths. The
target is uniform over what is allowed. Sequences that have ended are not counted. As with sets, a
seed has its own test sequences, the same for all of its variants.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.machine import memory_kept, without_denormals
from llmprobe.base.seeds import torch_generator
from llmprobe.base.transfers import upload
from llmprobe.results.legality import N_ENTROPY
from llmprobe.results.trained import SCORES
from llmprobe.synthetic.decoder_attention import weights_seen
from llmprobe.synthetic.decoder_network import Decoder
from llmprobe.synthetic.layers import by_seed
from llmprobe.synthetic.positions import draw_places
from llmprobe.synthetic.softmaxes import entropy_of
from llmprobe.synthetic.tasks import SequenceTask

_DRAWN = 1024
"""Sequences that are drawn at once. Part of what the tests are: another number gives others."""
_ENTROPY_CHUNK = 32
"""Sequences of each seed whose attention is looked at, at once."""
_CHUNK = {"cpu": 2**21}
_DEFAULT_CHUNK = 2**25
"""Logits in one forward."""


def score(
    network: Decoder,
    task: SequenceTask,
    lengths: Sequence[int],
    n: int,
    *,
    advance: Callable[[int], object] = lambda n_sequences: None,
) -> dict[str, NDArray[np.float64]]:
    """The scores (seeds, lengths) on n test sequences of each seed.

    kl: from the target to the prediction, in nats. illegal_mass: probability of tokens that are
    not allowed. illegal_top1: share of sequences whose most likely token is not. gap: mean logit of
    the allowed tokens less that of the others. All are means over sequences; a seed whose logits
    are not all finite has NaN. uniform_mass is the illegal mass of guessing, n_sequences how many
    have not ended.
    """
    device, seeds = next(network.parameters()).device, len(network.seeds)
    at = torch.tensor(lengths) - 1
    there = upload(at, device)
    kept = max(task.vocab, network.pairs * max(lengths))
    size = _CHUNK.get(device.type, _DEFAULT_CHUNK) // (seeds * max(lengths) * kept)
    totals = torch.zeros(len(SCORES), seeds, len(lengths), dtype=torch.float64)
    counts, guessed = torch.zeros(2, seeds, len(lengths), dtype=torch.float64)
    with torch.inference_mode(), without_denormals(), memory_kept():
        for drawn, places in _draw_tests(network, task, max(lengths), n):
            for some, where in _split(drawn, places, max(size, 1)):
                flat = some.flatten(0, 1)
                given = upload(flat[:, :-1], device)
                placed = None if where is None else upload(where, device)
                logits = network(given, places=placed).logits[:, there]
                allowed = task.allowed(flat)[:, at]  # meanwhile
                # On the CPU: float64 is not everywhere. Here the host waits, once a forward.
                logits, allowed = (by_seed(x.cpu(), seeds) for x in (logits, allowed))
                found = _score(logits, allowed)
                live = allowed.any(dim=-1)
                # Where a sequence has ended there is nothing to score, whatever came out.
                totals += torch.where(live, found, 0).sum(dim=2)
                counts += live.sum(dim=1)
                share = (~allowed).double().mean(dim=-1)
                guessed += torch.where(live, share, 0).sum(dim=1)
                advance(some.shape[1])
    means = (totals / counts).numpy()
    return {name: means[i] for i, name in enumerate(SCORES)} | {
        "uniform_mass": (guessed / counts).numpy(),
        "n_sequences": counts.numpy(),
    }


def attention_entropy(
    network: Decoder, task: SequenceTask, lengths: Sequence[int], n: int
) -> NDArray[np.float64]:
    """Entropy in nats of the attention weights at each length: (seeds, lengths).

    The mean over layers, heads and up to `N_ENTROPY` sequences that have not ended.
    """
    device, seeds = next(network.parameters()).device, len(network.seeds)
    at = torch.tensor(lengths) - 1
    there = upload(at, device)
    n = min(n, N_ENTROPY)
    totals, counts = torch.zeros(2, seeds, len(lengths), dtype=torch.float64)
    with torch.inference_mode(), without_denormals(), weights_seen(network) as rows:
        for drawn, places in _draw_tests(network, task, max(lengths), n):
            for some, where in _split(drawn, places, _ENTROPY_CHUNK):
                flat = some.flatten(0, 1)
                rows.clear()
                network(
                    upload(flat[:, :-1], device),
                    places=None if where is None else upload(where, device),
                )
                layers = [entropy_of(x[:, :, there]).mean(dim=1) for x in rows]
                live = by_seed(task.allowed(flat)[:, at].any(dim=-1), seeds)  # meanwhile
                found = by_seed(torch.stack(layers).mean(dim=0).cpu().double(), seeds)
                totals += torch.where(live, found, 0).sum(dim=1)
                counts += live.sum(dim=1)
    means: NDArray[np.float64] = (totals / counts).numpy()
    return means


def _draw_tests(
    network: Decoder, task: SequenceTask, length: int, n: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Test sequences (seeds, some, length + 1), and the given tokens' places where they are drawn.

    A sequence has the same places whatever the others are.
    """
    own = [draw_test_sequences(task, length, n, seed=seed) for seed in network.seeds]
    for block, drawn in enumerate(zip(*own, strict=True)):
        tokens = torch.stack(drawn)
        lots = [torch_generator(seed, "test places", block) for seed in network.seeds]
        places = draw_places(
            network.parts,
            tokens[..., :-1].flatten(0, 1),
            lots,
            context=network.context or 0,
            training=False,
        )
        yield tokens, None if places is None else by_seed(places, len(network.seeds))


def _split(
    tokens: Tensor, places: Tensor | None, size: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """So many sequences of each seed at once; their places (seeds * size, length)."""
    for start in range(0, tokens.shape[1], size):
        rows = slice(start, start + size)
        yield tokens[:, rows], None if places is None else places[:, rows].flatten(0, 1)


def _score(logits: Tensor, allowed: Tensor) -> Tensor:
    """Two of (seeds, n, lengths, vocab) to (scores, seeds, n, lengths)."""
    logits = logits.double()
    logp = logits.log_softmax(dim=-1)
    n = allowed.sum(dim=-1).double()
    illegal = (logp.exp() * ~allowed).sum(dim=-1)
    kl = -torch.log(n) - (logp * allowed).sum(dim=-1) / n
    top = logits.argmax(dim=-1, keepdim=True)
    wrong = 1 - allowed.gather(-1, top)[..., 0].double()
    others = (logits * ~allowed).sum(dim=-1) / (~allowed).sum(dim=-1)
    gap = (logits * allowed).sum(dim=-1) / n - others
    found = torch.stack([kl, illegal, wrong, gap])
    finite = logits.isfinite().all(dim=-1)
    return torch.where(finite, found, torch.nan)


def draw_test_sequences(task: SequenceTask, length: int, n: int, *, seed: int) -> Iterator[Tensor]:
    """Tokens of a seed's test sequences, from a stream that no training draws from.

    Short ones occur in training all the same: there are few of them.
    """
    for block, start in enumerate(range(0, n, _DRAWN)):
        generator = torch_generator(seed, "test sequences", task.name, task.vocab, block)
        # As long as they can be, so that a sequence is the same whatever lengths are asked for.
        yield task.sample(_DRAWN, task.longest, generator)[: n - start, : length + 1]


def digest_test_sequences(task: SequenceTask, seeds: Sequence[int]) -> str:
    """A short name for the test sequences: the same for the same ones."""
    digest = hashlib.sha256(repr(tuple(seeds)).encode())
    digest.update(next(draw_test_sequences(task, task.longest, 1, seed=seeds[0])).numpy().tobytes())
    return digest.hexdigest()[:16]
