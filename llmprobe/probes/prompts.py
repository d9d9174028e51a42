"""Prompts of any length, as batches of tokens.

    prompts = make_prompts("unigram", n_prompts=64, lengths=(16, 64, 256), tokenizer=tokenizer,
                           vocab_size=49152, text=read_text("book.txt"))
    prompts.batch(range(8), 64)  # (8, 64) int64

Prompt i at length N depends on the seed, i and N (and on what it is made of), never on the batch,
the other lengths, the number of prompts or of processes: everything is drawn by keys that name it.
Free random, unigram and text prompts are prefix-consistent as well: the short ones are the
beginnings of the long ones, so one pass over the longest serves all lengths.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.seeds import numpy_generator

PROMPTS = {
    "random": "tokens drawn alike from all ordinary ones",
    "unigram": "tokens drawn by their frequency in a text",
    "text": "windows of a text, disjoint where it is long enough",
    "dictionary": "lists of key->value with made-up words, ending in a key that is in the list",
}

_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples modulo 1 are spread evenly, however many there are."""
_CHUNK = 100_000
"""Characters that are tokenized at once: a tokenizer keeps far more than ids for each of them."""
_BLOCK = 64
"""Dictionary pairs that are drawn at once."""
_ONSETS = (*"bdfghklmnprstvz", "br", "dr", "gl", "kr", "pl", "st", "tr")
_SYLLABLES = [a + b + c for a in _ONSETS for b in "aeiou" for c in ("", "", "l", "n", "r")]

_Tokens = NDArray[np.int64]
_Draw = Callable[[int, np.random.Generator], _Tokens]


class Prompts(ABC):
    """A set of prompts: BOS if there is one, the kind's own tokens, and the fixed query if any."""

    def __init__(
        self,
        kind: str,
        *,
        n_prompts: int,
        longest: int,
        seed: int,
        bos_token_id: int | None,
        query_token: int | None,
    ) -> None:
        self.kind = kind
        self.n_prompts = n_prompts
        self.longest = longest
        self.query_token = query_token
        """The last token of every prompt with a fixed query."""
        self.prefix_consistent = query_token is None
        """Whether the prompts of length N are the first N tokens of the longest ones."""
        self.warnings: tuple[str, ...] = ()
        self._seed = seed
        self._head = np.array([] if bos_token_id is None else [bos_token_id], np.int64)
        self._tail = np.array([] if query_token is None else [query_token], np.int64)

    def batch(self, indices: Sequence[int], length: int) -> Tensor:
        """The prompts of these indices, (len(indices), length), int64 on the CPU."""
        n_tokens = self._own_tokens(indices, length)
        tokens = np.empty((len(indices), length), np.int64)
        for row, index in zip(tokens, indices, strict=True):
            row[:] = np.concatenate([self._head, self._body(index, n_tokens), self._tail])
        return torch.from_numpy(tokens)

    def digest(self, n_prompts: int | None = None) -> str:
        """SHA-256 over the kind, the query token and the first prompts, or all, at the longest
        length."""
        sha = hashlib.sha256(repr((self.kind, self.longest, self.query_token)).encode())
        for index in range(self.n_prompts if n_prompts is None else n_prompts):
            sha.update(self.batch([index], self.longest).numpy().astype("<i8").tobytes())
        return sha.hexdigest()

    def _own_tokens(self, indices: Sequence[int], length: int) -> int:
        """How many tokens of a prompt of this length are the kind's own."""
        n_added = len(self._head) + len(self._tail)
        if not max(1, n_added) <= length <= self.longest:
            raise ValueError(f"length: got {length}, accepted: up to {self.longest}")
        for index in indices:
            if not 0 <= index < self.n_prompts:
                raise ValueError(f"indices: got {index}, accepted: 0 to {self.n_prompts - 1}")
        return length - n_added

    @abstractmethod
    def _body(self, index: int, n_tokens: int) -> _Tokens:
        """The prompt without BOS and fixed query."""


class _DrawnPrompts(Prompts):
    """Tokens drawn independently."""

    def __init__(self, kind: str, draw: _Draw, **options: Any) -> None:
        super().__init__(kind, **options)
        self._draw = draw

    def _body(self, index: int, n_tokens: int) -> _Tokens:
        return self._draw(n_tokens, numpy_generator(self._seed, "prompt", index))


class _WindowPrompts(Prompts):
    """Windows of a text that is closed to a ring; the golden ratio spreads their starts over it."""

    def __init__(self, kind: str, tokens: _Tokens, **options: Any) -> None:
        super().__init__(kind, **options)
        if len(tokens) < self.longest:
            raise ValueError(
                f"text: has {len(tokens)} tokens, but the longest length is {self.longest}; "
                "use a longer text or shorter lengths"
            )
        self._text = tokens
        self._offset = numpy_generator(self._seed, "offset").random()
        self.warnings = tuple(self._overlaps(self._own_tokens([], self.longest)))

    def _starts(self, indices: Sequence[int]) -> _Tokens:
        places = (self._offset + np.array(indices) * _GOLDEN) % 1
        return (places * len(self._text)).astype(np.int64)

    def _body(self, index: int, n_tokens: int) -> _Tokens:
        places = self._starts([index]) + np.arange(n_tokens)
        return self._text.take(places, mode="wrap")

    def _overlaps(self, width: int) -> Iterator[str]:
        starts = np.sort(self._starts(range(self.n_prompts)))
        runs_on = np.diff(starts, append=starts[0] + len(self._text)) < width
        n_overlapping = int((runs_on | np.roll(runs_on, 1)).sum())
        if n_overlapping:
            around = np.sort(np.arange(self.n_prompts) * _GOLDEN % 1)
            needed = int(np.ceil((width + 1) / np.diff(around, append=1.0).min()))
            yield (
                f"{n_overlapping} of the {self.n_prompts} windows of {width} tokens overlap: the "
                f"text has {len(self._text)} tokens, and disjoint windows need {needed}; use a "
                "longer text, fewer prompts or shorter lengths"
            )


class DictionaryPrompts(Prompts):
    """Lists of pairs, one a line, such as `zarimo->keltu`, and last a key of the list: `zarimo->`.

    Pairs are numbered from the end, so a longer prompt has more of them in front. Keys with their
    arrow, values and line breaks are tokenized one by one, so the query and its answer are the
    very tokens that the list has. Prompt i asks at the same relative depth at every length.
    """

    def __init__(
        self, kind: str, tokenizer: Any, *, vocab_size: int, shortest: int, **options: Any
    ) -> None:
        super().__init__(kind, **options)
        self.prefix_consistent = False
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._special = _special_ids(tokenizer)
        [self._line_break] = self._pieces(["\n"], after="a")
        self._build = lru_cache(maxsize=64)(self._compose)  # for a batch and then its answers
        nearest = [next(self._pairs(index)) for index in range(self.n_prompts)]
        least = max(2 * len(key) + len(value) for key, value in nearest)
        least += len(self._line_break) + len(self._head)
        if shortest < least:
            raise ValueError(
                f"lengths: got {shortest}, too short for one pair and the query of dictionary "
                f"prompts, accepted: {least} or more"
            )

    def answers(self, indices: Sequence[int], length: int) -> Tensor:
        """The first token of the value that is asked for, (len(indices),), int64 on the CPU."""
        n_tokens = self._own_tokens(indices, length)
        return torch.tensor([self._build(i, n_tokens)[1] for i in indices], dtype=torch.int64)

    def _body(self, index: int, n_tokens: int) -> _Tokens:
        return self._build(index, n_tokens)[0]

    def _compose(self, index: int, n_tokens: int) -> tuple[_Tokens, int]:
        """The prompt and the answer."""
        lines: list[list[int]] = []
        choices: list[tuple[list[int], int]] = []
        size = 0
        for key, value in self._pairs(index):
            lines.append([*key, *value, *self._line_break])
            size += len(lines[-1])
            if size + len(key) <= n_tokens:  # else its pair would not be whole in the prompt
                choices.append((key, value[0]))
            if size >= n_tokens:
                break
        if not choices:
            raise ValueError(f"length: {n_tokens} tokens are too few for one pair and its query")
        depth = numpy_generator(self._seed, "depth", index).random()
        query, answer = choices[int(depth * len(choices))]
        tokens = [*chain.from_iterable(reversed(lines)), *query]
        return np.array(tokens[-n_tokens:], np.int64), answer

    def _pairs(self, index: int) -> Iterator[tuple[list[int], list[int]]]:
        """Tokens of `key->` and of `value`, without an end."""
        known: set[str] = set()
        for block in count():
            generator = numpy_generator(self._seed, "pairs", index, block)
            syllables = generator.integers(len(_SYLLABLES), size=(_BLOCK, 2, 3))
            sizes = generator.integers(2, 4, size=(_BLOCK, 2))
            words: list[str] = []
            for rows, ends in zip(syllables.tolist(), sizes.tolist(), strict=True):
                key, value = (
                    "".join(_SYLLABLES[s] for s in row[:end])
                    for row, end in zip(rows, ends, strict=True)
                )
                if key not in known:
                    known.add(key)
                    words += [f"{key}->", value]
            pieces = iter(self._pieces(words, after="\n"))
            yield from zip(pieces, pieces, strict=True)

    def _pieces(self, texts: Sequence[str], *, after: str) -> list[list[int]]:
        """Tokens of each text as it stands behind another one, where that can be told.

        Alone, SentencePiece would begin each with a blank, which would be the answer to all.
        """
        behind = [after, *(after + text for text in texts)]
        anchor, *pieces = _encode(self._tokenizer, behind, self._vocab_size)
        n = len(anchor)
        if all(ids[:n] == anchor for ids in pieces):
            pieces = [ids[n:] for ids in pieces]
        else:
            pieces = _encode(self._tokenizer, texts, self._vocab_size)
        for text, ids in zip(texts, pieces, strict=True):
            if not ids or not self._special.isdisjoint(ids):
                raise ValueError(f"tokenizer: has no tokens for {text!r}; use other prompts")
        return pieces


def check_kind(kind: str, query: str, *, has_text: bool) -> None:
    """Refuse what is no kind of prompts, whatever the model."""
    if kind not in PROMPTS:
        raise ValueError(f"prompts: got {kind!r}, accepted: {', '.join(PROMPTS)}")
    if query not in ("free", "fixed"):
        raise ValueError(f"query: got {query!r}, accepted: free, fixed")
    if kind == "dictionary" and query == "fixed":
        raise ValueError("query: got 'fixed', but dictionary prompts ask each their own; use free")
    if kind in ("unigram", "text") and not has_text:
        raise ValueError(f"prompts: {kind} needs --text FILE or --dataset NAME")


def make_prompts(
    kind: str,
    *,
    n_prompts: int,
    lengths: Sequence[int],
    vocab_size: int,
    seed: int = 0,
    tokenizer: Any = None,
    bos_token_id: int | None = None,
    text: str | None = None,
    query: str = "free",
) -> Prompts:
    """Prompts of one of the kinds in `PROMPTS`, for lengths up to the longest of these.

    With a `bos_token_id` every prompt begins with it, and it counts. With `query="fixed"` a prompt
    of N tokens is the first N − 1 of the free one and then a token that is the same for all prompts
    and lengths, as in Proposition 1 of arXiv 2504.02827.
    """
    least = 1 if bos_token_id is None and query == "free" else 2
    check_kind(kind, query, has_text=bool(text))
    if n_prompts < 1:
        raise ValueError(f"n_prompts: got {n_prompts}, accepted: 1 or more")
    if len(lengths) == 0 or min(lengths) < least:
        why = " with a BOS token or a fixed query" if least > 1 else ""
        raise ValueError(f"lengths: got {list(lengths)}, accepted: {least} or more{why}")
    if bos_token_id is not None and not 0 <= bos_token_id < vocab_size:
        raise ValueError(f"bos_token_id: got {bos_token_id}, accepted: 0 to {vocab_size - 1}")
    if kind != "random" and tokenizer is None:
        raise ValueError(f"prompts: {kind} needs a tokenizer, and there is none; use random")
    generator = numpy_generator(seed, "query")
    options: dict[str, Any] = {
        "n_prompts": n_prompts,
        "longest": max(lengths),
        "seed": seed,
        "bos_token_id": bos_token_id,
        "query_token": None,
    }
    if kind == "dictionary":
        options |= {"vocab_size": vocab_size, "shortest": min(lengths)}
        return DictionaryPrompts(kind, tokenizer, **options)
    special = {i for i in (*_special_ids(tokenizer), bos_token_id) if i is not None}
    left_out = np.array(sorted(i for i in special if i < vocab_size), np.int64)
    if kind == "random":
        n_ordinary = vocab_size - len(left_out)
        draw: _Draw = partial(_draw_alike, n_ordinary, left_out)
    else:
        tokens = _tokenize(tokenizer, text or "", vocab_size)
        counts = np.bincount(tokens, minlength=vocab_size)
        counts[left_out] = 0
        n_ordinary = int(counts.sum())
        draw = partial(_draw, counts.cumsum())
    if n_ordinary == 0:
        raise ValueError(f"prompts: {kind} finds no ordinary token to draw; use another text")
    if query == "fixed":
        options["query_token"] = int(draw(1, generator)[0])
    if kind == "text":
        return _WindowPrompts(kind, tokens, **options)
    return _DrawnPrompts(kind, draw, **options)


def _draw_alike(
    n_ordinary: int, left_out: _Tokens, n_tokens: int, generator: np.random.Generator
) -> _Tokens:
    """What `_draw` gives where all counts are one and those of `left_out`, ascending, are zero.

    Without an array of all tokens, of which a computed embedding may have very many.
    """
    drawn = generator.integers(n_ordinary, size=n_tokens)
    n_ordinary_before = left_out - np.arange(len(left_out))
    return drawn + np.searchsorted(n_ordinary_before, drawn, side="right")


def _draw(bounds: _Tokens, n_tokens: int, generator: np.random.Generator) -> _Tokens:
    """Tokens by the running sums of their counts; few are the beginning of many."""
    drawn = generator.integers(bounds[-1], size=n_tokens)
    return np.searchsorted(bounds, drawn, side="right").astype(np.int64)


def _special_ids(tokenizer: Any) -> set[int]:
    if tokenizer is None:
        return set()
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}


def _tokenize(tokenizer: Any, text: str, vocab_size: int) -> _Tokens:
    """All tokens of a text, in pieces that end at line breaks, or else before a blank."""
    found, start = [np.empty(0, np.int64)], 0
    while start < len(text):
        end = start + _CHUNK
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or text.rfind(" ", start + 1, end)
            end = end if end > start else start + _CHUNK
        [ids] = _encode(tokenizer, [text[start:end]], vocab_size)
        found.append(np.array(ids, np.int64))
        start = end
    return np.concatenate(found)


def _encode(tokenizer: Any, texts: Sequence[str], vocab_size: int) -> list[list[int]]:
    # Not verbose: a text that is longer than the model's context is meant.
    found: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    ).input_ids
    largest = max(chain.from_iterable(found), default=0)
    if largest >= vocab_size:
        raise ValueError(f"tokenizer: gives token {largest}, but the model has {vocab_size}")
    return found
