"""Evaluation: accuracy, shift and dispersion by length, of every seed on its own test sets.

    measured = evaluate(network, length=16384, n_sets=1024)

A seed's test sets depend on the seed and the length alone. So intervals over seeds hold the noise
of the tests too, and variants of a seed see the same sets: their differences are paired.

Everything comes from one forward a chunk of sets. A chunk is small, so that memory stays far below
what the longest sets of all seeds would need together, and so that it fits a CPU's cache.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.machine import memory_kept, without_denormals
from llmprobe.base.moments import Moments
from llmprobe.base.seeds import torch_generator
from llmprobe.base.transfers import as_float64, fetch_arrays, upload
from llmprobe.results.accuracy import MAX_EXAMPLES, MAX_WEIGHTS
from llmprobe.synthetic.set_network import Answer, SetNetwork
from llmprobe.synthetic.softmaxes import entropy_of
from llmprobe.synthetic.tasks import SetTask

N_FEATURES, N_FEATURE_SETS = 5, 256
"""Single features that are kept, and on how many sets: Figure 2 of arXiv 2504.02827."""
_DRAWN = 2**16
"""Items that are drawn at once. Part of what a test set is: another number gives other sets."""
_CHUNK = {"cpu": 2**14}
_DEFAULT_CHUNK = 2**19
"""Items in one forward: a CPU's cache holds few, other devices want many."""


@dataclass(frozen=True)
class Measured:
    """Of each seed at one length; arrays of shape (seeds,) but for the last two."""

    accuracy: NDArray[np.float64]
    global_mean: NDArray[np.float64]
    """Mean over the features of one attention output, averaged over sets."""
    global_mean_error: NDArray[np.float64]
    """Its standard error, over sets; NaN for one set."""
    global_variance: NDArray[np.float64]
    """Variance over the features of one attention output, averaged over sets."""
    feature_variance: NDArray[np.float64]
    """Variance over sets of a feature, averaged over features."""
    entropy: NDArray[np.float64]
    """Of the attention weights, in nats, averaged over sets and heads; NaN where they are no
    distribution."""
    feature_values: NDArray[np.float32]
    """The first seed's first features on single sets: (sets, features)."""
    top_weights: NDArray[np.float32]
    """The first seed's largest weights, averaged over heads: (sets, rank), 0 where there are
    fewer."""


def evaluate(
    network: SetNetwork,
    length: int,
    n_sets: int,
    *,
    advance: Callable[[int], object] = lambda n_items: None,
) -> Measured:
    """Measure all seeds of a network at one length; `advance` is called with the items done.

    The attention output is the one that the reading MLP is given, behind the norm.
    """
    members = [network.member(index).eval() for index in range(len(network.seeds))]
    tallies = [_Tally(keep=index == 0) for index in range(len(members))]
    device = next(network.parameters()).device
    size = chunk_size(device, length)
    with torch.inference_mode(), without_denormals(), memory_kept():
        for seed, member, tally in zip(network.seeds, members, tallies, strict=True):
            for tokens, labels in draw_test_sets(network.task, length, n_sets, seed=seed):
                for start in range(0, len(tokens), size):
                    parts = (x[start : start + size] for x in (tokens, labels))
                    some, right = (upload(x, device) for x in parts)
                    tally.update(member(some), right)
                    advance(len(some) * length)
    return _joined(tallies)


def chunk_size(device: torch.device, length: int) -> int:
    """Sets of a length in one forward."""
    return max(_CHUNK.get(device.type, _DEFAULT_CHUNK) // length, 1)


def draw_test_sets(
    task: SetTask, length: int, n_sets: int, *, seed: int, purpose: str = "test sets"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and labels of a seed's test sets of a length, which no training meets.

    Another `purpose` gives other sets.
    """
    at_once = max(_DRAWN // length, 1)
    for block, start in enumerate(range(0, n_sets, at_once)):
        generator = torch_generator(seed, purpose, task.name, length, block)
        tokens, labels = task.sample(at_once, length, generator)
        yield tokens[: n_sets - start], labels[: n_sets - start]


def digest_test_sets(task: SetTask, lengths: Sequence[int], seeds: Sequence[int]) -> str:
    """A short name for the test sets: the same for the same ones."""
    digest = hashlib.sha256(repr(tuple(seeds)).encode())
    for length in lengths:  # the other seeds' come from the same stream, by their numbers
        tokens, _ = next(draw_test_sets(task, length, 1, seed=seeds[0]))
        digest.update(tokens.numpy().tobytes())
    return digest.hexdigest()[:16]


class _Tally:
    """The sums of one seed at one length."""

    def __init__(self, *, keep: bool) -> None:
        self.features = Moments()
        self.vectors = Moments()
        """Of four numbers a set: hit, mean over features, variance over features, entropy."""
        self.keep = keep
        self.values: list[Tensor] = []
        self.tops: list[Tensor] = []

    def update(self, answer: Answer, labels: Tensor) -> None:
        output, weights = as_float64(answer.output), answer.weights
        hits: Tensor = (answer.logits.argmax(dim=1) == labels) & answer.logits.isfinite().all(dim=1)
        variance, mean = torch.var_mean(output, dim=1, correction=0)
        entropy = entropy_of(weights).mean(dim=1)
        self.features.update(output)
        self.vectors.update(torch.stack([hits.to(mean), mean, variance, entropy], dim=1))
        if self.keep and len(self.values) < N_FEATURE_SETS:
            self.values += answer.output[:N_FEATURE_SETS, :N_FEATURES].clone()
        if self.keep and len(self.tops) < MAX_EXAMPLES:
            self.tops += _top(weights[:MAX_EXAMPLES].mean(dim=1))


def _top(weights: Tensor) -> Tensor:
    """(sets, n) to the largest (sets, MAX_WEIGHTS)."""
    largest = weights.topk(min(MAX_WEIGHTS, weights.shape[1]), dim=1).values
    return torch.nn.functional.pad(largest, (0, MAX_WEIGHTS - largest.shape[1]))


def _joined(tallies: list[_Tally]) -> Measured:
    vectors = [tally.vectors.summary() for tally in tallies]
    means = np.stack([of.mean for of in vectors])
    errors = np.stack([np.sqrt(of.variance / np.maximum(of.count, 1)) for of in vectors])
    features = [tally.features.summary() for tally in tallies]
    spread = [np.mean(of.variance) for of in features]
    finite = np.array([of.nonfinite.sum() == 0 for of in features])
    values, tops = tallies[0].values[:N_FEATURE_SETS], tallies[0].tops[:MAX_EXAMPLES]
    feature_values, top_weights = fetch_arrays([torch.stack(values), torch.stack(tops)])
    return Measured(
        accuracy=np.where(finite, means[:, 0], np.nan),
        global_mean=means[:, 1],
        global_mean_error=errors[:, 1],
        global_variance=means[:, 2],
        feature_variance=np.array(spread),
        entropy=means[:, 3],
        feature_values=feature_values,
        top_weights=top_weights,
    )
