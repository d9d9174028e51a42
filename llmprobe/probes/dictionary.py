"""Dictionary prompts: lists of made-up words, and a question that has one right answer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from llmprobe.base.seeds import numpy_generator
from llmprobe.probes.prompts import Material, Prompts, Tokens, encode, special_ids

_BLOCK = 64
"""Pairs that are drawn at once."""
_ONSETS = (*"bdfghklmnprstvz", "br", "dr", "gl", "kr", "pl", "st", "tr")
_SYLLABLES = [a + b + c for a in _ONSETS for b in "aeiou" for c in ("", "", "l", "n", "r")]


class _Composed(NamedTuple):
    """A prompt without BOS."""

    tokens: Tokens
    answer: int
    source: tuple[int, int]
    """Where the value that is asked for begins and ends."""
    values: list[int]
    """The first token of every value that could be asked for."""


class DictionaryPrompts(Prompts, kind="dictionary"):
    """Lists of key->value with made-up words, ending in a key that is in the list.

    One pair a line, such as `zarimo->keltu`, and last `zarimo->`. Pairs are numbered from the end,
    so a longer prompt has more of them in front. Keys with their arrow, values and line breaks are
    tokenized one by one, so the query and its answer are the very tokens that the list has. Prompt
    i asks at the same relative depth at every length.
    """

    takes_query = False

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.prefix_consistent = False
        self._tokenizer, self._vocab_size = material.tokenizer, material.vocab_size
        self._special = special_ids(material.tokenizer)
        [self._line_break] = self._pieces(["\n"], after="a")
        self._build = lru_cache(maxsize=64)(self._compose)  # for a batch and then its answers
        nearest = [next(self._pairs(index)) for index in range(self.n_prompts)]
        least = max(2 * len(key) + len(value) for key, value in nearest)
        least += len(self._line_break) + len(self._head)
        if material.shortest < least:
            raise ValueError(
                f"lengths: got {material.shortest}, too short for one pair and the query of "
                f"dictionary prompts, accepted: {least} or more"
            )

    def answers(self, indices: Sequence[int], length: int) -> Tensor:
        """The first token of the value that is asked for, (len(indices),), int64 on the CPU."""
        n_tokens = self._own_tokens(indices, length)
        return torch.tensor([self._build(i, n_tokens).answer for i in indices], dtype=torch.int64)

    def sources(self, indices: Sequence[int], length: int) -> Tensor:
        n_tokens = self._own_tokens(indices, length)
        return torch.tensor([self._build(i, n_tokens).source for i in indices]) + self.n_head

    def facts(self, indices: Sequence[int], length: int) -> dict[str, list[float]]:
        n_tokens = self._own_tokens(indices, length)
        built = [self._build(i, n_tokens) for i in indices]
        counts = [Counter(one.values) for one in built]
        return {
            "n_pairs": [float(len(one.values)) for one in built],
            "chance": [
                count[one.answer] / len(one.values)
                for one, count in zip(built, counts, strict=True)
            ],
            "blind": [
                float(count.most_common(1)[0][0] == one.answer)
                for one, count in zip(built, counts, strict=True)
            ],
        }

    def _body(self, index: int, n_tokens: int) -> Tokens:
        return self._build(index, n_tokens).tokens

    def _compose(self, index: int, n_tokens: int) -> _Composed:
        lines: list[list[int]] = []
        choices: list[tuple[list[int], list[int], int]] = []
        size = 0
        for key, value in self._pairs(index):
            lines.append([*key, *value, *self._line_break])
            size += len(lines[-1])
            if size + len(key) <= n_tokens:  # else its pair would not be whole in the prompt
                choices.append((key, value, size))
            if size >= n_tokens:
                break
        if not choices:
            raise ValueError(f"length: {n_tokens} tokens are too few for one pair and its query")
        depth = numpy_generator(self._seed, "depth", index).random()
        query, value, at = choices[int(depth * len(choices))]
        tokens = [*chain.from_iterable(reversed(lines)), *query]
        start = n_tokens - at  # the line begins `at` tokens before the query, its value behind key
        return _Composed(
            tokens=np.array(tokens[-n_tokens:], np.int64),
            answer=value[0],
            source=(start, start + len(value)),
            values=[value[0] for _, value, _ in choices],
        )

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
        """Tokens of each text as it stands behind another one, if that is known.

        Alone, SentencePiece would begin each with a blank, which would be the answer to all.
        """
        behind = [after, *(after + text for text in texts)]
        anchor, *pieces = encode(self._tokenizer, behind, self._vocab_size)
        n = len(anchor)
        if all(ids[:n] == anchor for ids in pieces):
            pieces = [ids[n:] for ids in pieces]
        else:
            pieces = encode(self._tokenizer, texts, self._vocab_size)
        for text, ids in zip(texts, pieces, strict=True):
            if not ids or not self._special.isdisjoint(ids):
                raise ValueError(f"tokenizer: has no tokens for {text!r}; use other prompts")
        return pieces
