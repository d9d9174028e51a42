"""Scoring of tasks with one right answer of several tokens, at every length.

    scores = score_answers(network, AnswerTask.named("addition"), lengths=(5, 10, 20), n=256)
    scores["exact"]  # (seeds, lengths)

The network is given the right tokens before each token of the answer (teacher forcing). All of its
most likely tokens are right exactly where greedy decoding gives the right answer: as long as every
token is right, both are given the same. As with sets, a seed has its own tests, the same for all of
its variants.

Where a second head predicts places (`predicted`), the question has the task's and the answer those
that the head gives, one after another, again with the right tokens before.
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
from llmprobe.synthetic.decoder_network import Decoder
from llmprobe.synthetic.layers import by_seed
from llmprobe.synthetic.positions import draw_places, settle_places
from llmprobe.synthetic.tasks import AnswerTask

_DRAWN = 256
"""Examples that are drawn at once. Part of what the tests are: another number gives others."""
_CHUNK = {"cpu": 2**14}
_DEFAULT_CHUNK = 2**18
"""Tokens of all seeds in one forward: a CPU's cache holds few, other devices want many."""
_PAIRS = 2**23
"""Numbers for pairs of tokens in one forward, of variants that keep them."""
_GUESSED = 1024


def score_answers(
    network: Decoder,
    task: AnswerTask,
    lengths: Sequence[int],
    n: int,
    *,
    advance: Callable[[int, int], object] = lambda length, n_examples: None,
) -> dict[str, NDArray[np.float64]]:
    """Shares (seeds, lengths) over n test examples of each seed and length.

    exact: answers of which all tokens are right. token_accuracy: tokens of answers that are right.
    A seed whose logits are not all finite has NaN there. `advance` is called with a length and how
    many of its examples are done.
    """
    found = np.empty((2, len(network.seeds), len(lengths)))
    with torch.inference_mode(), without_denormals(), memory_kept():
        for at, length in enumerate(lengths):
            found[:, :, at] = _score_length(network, task, length, n, advance)
    return {"exact": found[0], "token_accuracy": found[1]}


def _score_length(
    network: Decoder, task: AnswerTask, length: int, n: int, advance: Callable[[int, int], object]
) -> NDArray[np.float64]:
    device, seeds = next(network.parameters()).device, len(network.seeds)
    n_tokens = seeds * task.size(length)
    at_once = _CHUNK.get(device.type, _DEFAULT_CHUNK) // n_tokens
    if network.pairs:
        at_once = min(at_once, _PAIRS // (n_tokens * task.size(length) * network.pairs))
    totals = torch.zeros(2, seeds, device=device)
    own = [draw_test_examples(task, length, n, seed=seed) for seed in network.seeds]
    for block, drawn in enumerate(zip(*own, strict=True)):
        lots = [torch_generator(seed, "test places", length, block) for seed in network.seeds]
        places = _draw_places(network, task, torch.stack(drawn), lots)
        for start in range(0, len(drawn[0]), max(at_once, 1)):
            rows = slice(start, start + max(at_once, 1))
            some = torch.stack([tokens[rows] for tokens in drawn])
            flat = upload(some.flatten(0, 1), device)
            placed = None if places is None else upload(places[:, rows].flatten(0, 1), device)
            if placed is not None and network.parts["drawn"] == "predicted":
                own_places = torch.zeros_like(placed, dtype=torch.bool)
                own_places[:, task.answer(length)] = True
                placed = settle_places(network, flat[:, :-1], placed, own_places)
            logits = network(flat[:, :-1], places=placed).logits
            right = by_seed(right_tokens(logits, flat, task.answer(length)), seeds).float()
            shares = (right.amin(dim=2), right.mean(dim=2))  # NaN stays
            totals += torch.stack([share.sum(dim=1) for share in shares])
            advance(length, some.shape[1])
    return (totals.cpu().double() / n).numpy()


def _draw_places(
    network: Decoder, task: AnswerTask, tokens: Tensor, lots: Sequence[torch.Generator]
) -> Tensor | None:
    """Of the tokens (seeds, n, size) but the last, in that shape; None where they are 0, 1, ..."""
    places = draw_places(
        network.parts,
        tokens.flatten(0, 1),
        lots,
        context=network.context or 0,
        couple=task.couple,
        training=False,
    )
    return None if places is None else by_seed(places[:, :-1], len(tokens))


def right_tokens(logits: Tensor, tokens: Tensor, answer: slice) -> Tensor:
    """Which tokens of answers are right, 1 or 0: (batch, tokens of the answer).

    NaN where logits are not finite.
    """
    predicted, came = of_answer(logits, tokens, answer)
    right = (predicted.argmax(dim=-1) == came).float()
    return torch.where(predicted.isfinite().all(dim=-1), right, torch.nan)


def of_answer(logits: Tensor, tokens: Tensor, answer: slice) -> tuple[Tensor, Tensor]:
    """The logits before each token of answers, and these tokens.

    `logits` (batch, size - 1, vocab) are given tokens (batch, size) but the last.
    """
    before = slice(answer.start - 1, answer.stop - 1, answer.step)
    return logits[:, before], tokens[:, answer]


def draw_test_examples(task: AnswerTask, length: int, n: int, *, seed: int) -> Iterator[Tensor]:
    """Tokens of a seed's test examples, from a stream that no training draws from.

    Short ones occur in training all the same: there are few of them.
    """
    for block, start in enumerate(range(0, n, _DRAWN)):
        generator = torch_generator(seed, "test examples", task.name, length, block)
        yield task.sample(_DRAWN, length, generator)[: n - start]


def digest_test_examples(task: AnswerTask, lengths: Sequence[int], seeds: Sequence[int]) -> str:
    """A short name for the test examples: the same for the same ones."""
    digest = hashlib.sha256(repr(tuple(seeds)).encode())
    for length in lengths:  # the other seeds' come from the same stream, by their numbers
        (tokens,) = draw_test_examples(task, length, 1, seed=seeds[0])
        digest.update(tokens.numpy().tobytes())
    return digest.hexdigest()[:16]


def guessed(task: AnswerTask, length: int) -> tuple[float, float]:
    """What is reached without reading the question: exact, and of tokens.

    The first gives the most frequent answer to all, the second the most frequent token at each
    place of the answer, among many examples.
    """
    tokens = task.sample(_GUESSED, length, torch_generator(0, "guesses", task.name, length))
    answers = tokens[:, task.answer(length)]
    _, counts = answers.unique(dim=0, return_counts=True)
    by_place = [place.bincount().max() for place in answers.unbind(dim=1)]
    return int(counts.max()) / _GUESSED, float(torch.stack(by_place).float().mean()) / _GUESSED
