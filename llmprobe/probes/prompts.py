"""Prompts of any length, as batches of tokens.

    prompts = make_prompts("unigram", n_prompts=64, lengths=(16, 64, 256), tokenizer=tokenizer,
                           vocab_size=49152, text=read_text("book.txt"))
    prompts.batch(range(8), 64)  # (8, 64) int64

Prompt i at length N depends on the seed, i and N (and on what it is made of), never on the batch,
the other lengths, the number of prompts or of processes: everything is drawn by keys that name it.
Free random, unigram and text prompts are prefix-consistent as well: the short ones are the
beginnings of the long ones, so one pass over the longest serves all lengths.

A kind of prompts is one class, here or in a module that `probes/__init__.py` imports. It says what
it needs and what it offers, and is known by being declared: `class TextPrompts(Prompts,
kind="text")`.
"""

import hashlib
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llmprobe.base.seeds import check_seed, numpy_generator
from llmprobe.probes.queries import N_QUERIES, check_query, named_token
from llmprobe.probes.texts import ROW_FILES

_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples modulo 1 are spread evenly, however many there are."""
_CHUNK = 100_000
"""Characters that are tokenized at once: a tokenizer keeps far more than ids for each of them."""

OWN = "own"
"""The kind of prompts that are given and not drawn."""
PromptSource: TypeAlias = Any
"""A kind of prompts by name, a .txt or .jsonl file, a list of texts or of lists of tokens, or a
`datasets.Dataset`."""
Tokens = NDArray[np.int64]
Draw = Callable[[int, np.random.Generator], Tokens]


@dataclass(frozen=True, kw_only=True)
class Material:
    """What prompts are made of."""

    n_prompts: int
    shortest: int
    longest: int
    seed: int
    vocab_size: int
    tokenizer: Any
    bos_token_id: int | None
    text: str | None
    query: str
    """free, fixed, or the one token that every prompt ends in."""
    n_queries: int
    """Tokens that a fixed query draws."""
    rows: Sequence[Any] = ()
    """Prompts that were given as they are: texts, tokens or conversations."""
    chat_template: bool = False

    @cached_property
    def left_out(self) -> Tokens:
        """Tokens that are never drawn: special ones and BOS, ascending."""
        special = {i for i in (*special_ids(self.tokenizer), self.bos_token_id) if i is not None}
        return np.array(sorted(i for i in special if i < self.vocab_size), np.int64)


class Prompts(ABC):
    """A set of prompts: BOS if there is one, the kind's own tokens, and the fixed query if any."""

    kinds: ClassVar[dict[str, type["Prompts"]]] = {}
    """All kinds by name."""
    kind: ClassVar[str] = ""
    needs_text: ClassVar[bool] = False
    """Whether the prompts are made of a text."""
    needs_tokenizer: ClassVar[bool] = True
    takes_query: ClassVar[bool] = True
    """Whether all prompts may end in the same token."""
    is_drawn: ClassVar[bool] = True
    """Whether another seed gives other prompts."""
    shares_text: ClassVar[bool] = False
    """Whether prompts of different seeds may have the same text in them."""

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind = kind
            cls.kinds[kind] = cls

    def __init__(self, material: Material, draw: Draw | None = None) -> None:
        """`draw` draws the fixed queries, where the kind has them."""
        self.n_prompts, self.longest = material.n_prompts, material.longest
        self.query_tokens = _queries(material, draw)
        """Prompt i ends in number i, counted in a circle; empty if each has its own last token."""
        self.prefix_consistent = not self.query_tokens
        """Whether the prompts of length N are the first N tokens of the longest ones."""
        self.sizes: tuple[int, ...] | None = None
        """Tokens of each prompt; None if all prompts have every length."""
        self.longest_one = 0
        """A prompt that has the longest length."""
        self.warnings: tuple[str, ...] = ()
        self._seed = material.seed
        bos = material.bos_token_id
        self._head = np.array([] if bos is None else [bos], np.int64)
        self._tails = np.array(self.query_tokens, np.int64).reshape(-1, 1)
        self.n_tail = int(len(self._tails) > 0)
        """Tokens of the query; a prompt of N tokens is N − n_tail of its longest one, and that."""

    @property
    def n_head(self) -> int:
        """Tokens before the kind's own: one for BOS, else none."""
        return len(self._head)

    @classmethod
    def describe(cls) -> str:
        """What the prompts are, in a line."""
        return (inspect.getdoc(cls) or "").splitlines()[0].rstrip(".")

    @classmethod
    def has_answers(cls) -> bool:
        """Whether the prompts ask something that has a right answer."""
        return cls.answers is not Prompts.answers

    def batch(self, indices: Sequence[int], length: int) -> Tensor:
        """The prompts of these indices, (len(indices), length), int64 on the CPU."""
        n_tokens = self._own_tokens(indices, length)
        tokens = np.empty((len(indices), length), np.int64)
        for row, index in zip(tokens, indices, strict=True):
            row[:] = np.concatenate([self._head, self._body(index, n_tokens), self._tail(index)])
        return torch.from_numpy(tokens)

    def _tail(self, index: int) -> Tokens:
        """The prompt's fixed query, if it has one."""
        return self._tails[index % len(self._tails)] if len(self._tails) else np.empty(0, np.int64)

    def digest(self, n_prompts: int | None = None) -> str:
        """SHA-256 over the kind, the query tokens and the first prompts, or all, at the longest
        length."""
        sha = hashlib.sha256(repr((self.kind, self.longest, self.query_tokens or None)).encode())
        for index in range(self.n_prompts if n_prompts is None else n_prompts):
            sha.update(self.batch([index], self.longest).numpy().astype("<i8").tobytes())
        return sha.hexdigest()

    def _own_tokens(self, indices: Sequence[int], length: int) -> int:
        """How many tokens of a prompt of this length are the kind's own."""
        n_added = len(self._head) + bool(self.query_tokens)
        if not max(1, n_added) <= length <= self.longest:
            raise ValueError(f"length: got {length}, accepted: up to {self.longest}")
        for index in indices:
            if not 0 <= index < self.n_prompts:
                raise ValueError(f"indices: got {index}, accepted: 0 to {self.n_prompts - 1}")
            if self.sizes is not None and self.sizes[index] < length:
                raise ValueError(f"length: got {length}, prompt {index} has {self.sizes[index]}")
        return length - n_added

    def begin_with(self, token: int) -> bool:
        """Whether all prompts begin with a token that is not drawn."""
        return self._head[:1].tolist() == [token]

    def answers(self, indices: Sequence[int], length: int) -> Tensor | None:
        """The token that should come next, (len(indices),); None where no token is right."""
        return None

    def targets(self, indices: Sequence[int], length: int) -> Tensor | None:
        """What should follow the last k positions, (len(indices), k); None as for `answers`."""
        answers = self.answers(indices, length)
        return None if answers is None else answers[:, None]

    def sources(self, indices: Sequence[int], length: int) -> Tensor | None:
        """Where a prompt has its answer: first position and the one behind the last, (…, 2)."""
        return None

    def facts(self, indices: Sequence[int], length: int) -> dict[str, list[float]]:
        """Of prompts that ask something: `n_pairs`, and the accuracy of `chance` and of `blind`.

        chance: a draw among what could be the answer. blind: the most frequent of those.
        """
        return {}

    @abstractmethod
    def _body(self, index: int, n_tokens: int) -> Tokens:
        """The prompt without BOS and fixed query."""


class RandomPrompts(Prompts, kind="random"):
    """Tokens drawn alike from all ordinary ones that a text can have."""

    needs_tokenizer = False

    def __init__(self, material: Material) -> None:
        self._draw = self._drawing(material)
        super().__init__(material, self._draw)

    def _drawing(self, material: Material) -> Draw:
        never = never_produced(material.tokenizer, material.vocab_size)
        left_out = np.union1d(material.left_out, never)
        n_ordinary = material.vocab_size - len(left_out)
        _check_ordinary(self.kind, n_ordinary)
        return partial(_draw_alike, n_ordinary, left_out)

    def _body(self, index: int, n_tokens: int) -> Tokens:
        return self._draw(n_tokens, numpy_generator(self._seed, "prompt", index))


class UnigramPrompts(RandomPrompts, kind="unigram"):
    """Tokens drawn by their frequency in a text."""

    needs_text = needs_tokenizer = True

    def _drawing(self, material: Material) -> Draw:
        return by_frequency(self.kind, material, _tokens_of(material))


class TextPrompts(Prompts, kind="text"):
    """Windows of a text, disjoint where it is long enough.

    The text is closed to a ring; the golden ratio spreads the windows' starts over it.
    """

    needs_text = shares_text = True

    def __init__(self, material: Material) -> None:
        tokens = _tokens_of(material)
        super().__init__(material, by_frequency(self.kind, material, tokens))
        if len(tokens) < self.longest:
            raise ValueError(
                f"text: has {len(tokens)} tokens, but the longest length is {self.longest}; "
                "use a longer text or shorter lengths"
            )
        self._text = tokens
        self._offset = numpy_generator(self._seed, "offset").random()
        self.warnings = tuple(self._overlaps(self._own_tokens([], self.longest)))

    def _starts(self, indices: Sequence[int]) -> Tokens:
        places = (self._offset + np.array(indices) * _GOLDEN) % 1
        return (places * len(self._text)).astype(np.int64)

    def _body(self, index: int, n_tokens: int) -> Tokens:
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


def kind_of(source: PromptSource) -> str:
    """The kind of prompts that a `prompts` argument asks for."""
    if isinstance(source, str):
        is_file = source.lower().endswith(ROW_FILES) or "/" in source or "\\" in source
        return OWN if is_file and source not in Prompts.kinds else source
    if not isinstance(source, Path) and not isinstance(source, Iterable):
        raise ValueError(
            f"prompts: got {type(source).__name__}, accepted: a kind, a .txt or .jsonl file, a "
            "list of texts or of lists of tokens, a datasets.Dataset"
        )
    return OWN


def check_kind(kind: str, query: str, *, has_text: bool, n_queries: int | None = None) -> None:
    """Refuse what is no kind of prompts, or what it cannot be combined with, whatever the model."""
    if kind not in Prompts.kinds:
        drawn = ", ".join(name for name, other in Prompts.kinds.items() if other.is_drawn)
        raise ValueError(f"prompts: got {kind!r}, accepted: {drawn}, or a .txt or .jsonl file")
    check_query(query, n_queries)
    chosen = Prompts.kinds[kind]
    if query != "free" and not chosen.takes_query:
        raise ValueError(
            f"query: got {query!r}, but {kind} prompts end each in their own; use free"
        )
    if chosen.needs_text and not has_text:
        raise ValueError(f"prompts: {kind} prompts need a text; give text=FILE or dataset=NAME")
    if has_text and not chosen.needs_text:
        names = (name for name, other in Prompts.kinds.items() if other.needs_text)
        others = " or ".join(f'prompts="{name}"' for name in names)
        raise ValueError(f"prompts: {kind} prompts use no text; leave it out, or use {others}")


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
    n_queries: int | None = None,
    rows: Sequence[Any] = (),
    chat_template: bool = False,
) -> Prompts:
    """Prompts of one of the kinds in `Prompts.kinds`, for lengths up to the longest of these.

    With a `bos_token_id` every prompt begins with it, and it counts. With `query="fixed"` a prompt
    of N tokens is the first N − 1 of the free one and then one of `n_queries` tokens (16), drawn as
    the kind draws its own: prompt i has number i mod n_queries at all lengths. Any other `query` is
    the text of one token, or id:NUMBER, that all prompts end in. `rows` are
    the prompts themselves for the kind "own": texts, lists of tokens, or conversations for the
    tokenizer's `chat_template`.
    """
    least = 1 if bos_token_id is None and query == "free" else 2
    check_kind(kind, query, has_text=bool(text), n_queries=n_queries)
    check_seed(seed)
    if n_prompts < 1:
        raise ValueError(f"n_prompts: got {n_prompts}, accepted: 1 or more")
    if len(lengths) == 0 or min(lengths) < least:
        why = " with a BOS token or a fixed query" if least > 1 else ""
        raise ValueError(f"lengths: got {list(lengths)}, accepted: {least} or more{why}")
    if bos_token_id is not None and not 0 <= bos_token_id < vocab_size:
        raise ValueError(f"bos_token_id: got {bos_token_id}, accepted: 0 to {vocab_size - 1}")
    chosen: Any = Prompts.kinds[kind]
    if chosen.needs_tokenizer and tokenizer is None:
        raise ValueError(f"prompts: {kind} needs a tokenizer, and there is none; use random")
    made: Prompts = chosen(
        Material(
            n_prompts=n_prompts,
            shortest=min(lengths),
            longest=max(lengths),
            seed=seed,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            bos_token_id=bos_token_id,
            text=text,
            query=query,
            n_queries=N_QUERIES if n_queries is None else n_queries,
            rows=rows,
            chat_template=chat_template,
        )
    )
    return made


def _queries(material: Material, draw: Draw | None) -> tuple[int, ...]:
    if material.query == "free" or draw is None:
        return ()
    if material.query == "fixed":  # fewer are the first of many
        drawn = draw(material.n_queries, numpy_generator(material.seed, "query"))
        return tuple(int(token) for token in drawn)
    return (named_token(material.query, material.tokenizer, material.vocab_size),)


def _check_ordinary(kind: str, n_ordinary: int) -> None:
    if n_ordinary == 0:
        raise ValueError(f"prompts: {kind} finds no ordinary token to draw; use another text")


def by_frequency(kind: str, material: Material, tokens: Tokens) -> Draw:
    """Draws the ordinary ones of these tokens, as often as they occur."""
    counts = np.bincount(tokens, minlength=material.vocab_size)
    counts[material.left_out] = 0
    _check_ordinary(kind, int(counts.sum()))
    return partial(_draw, counts.cumsum())


def _tokens_of(material: Material) -> Tokens:
    return _tokenize(material.tokenizer, material.text or "", material.vocab_size)


def _draw_alike(
    n_ordinary: int, left_out: Tokens, n_tokens: int, generator: np.random.Generator
) -> Tokens:
    """What `_draw` gives where all counts are one and those of `left_out`, ascending, are zero.

    Without an array of all tokens, of which a computed embedding may have very many.
    """
    drawn = generator.integers(n_ordinary, size=n_tokens)
    n_ordinary_before = left_out - np.arange(len(left_out))
    return drawn + np.searchsorted(n_ordinary_before, drawn, side="right")


def _draw(bounds: Tokens, n_tokens: int, generator: np.random.Generator) -> Tokens:
    """Tokens by the running sums of their counts; few are the beginning of many."""
    drawn = generator.integers(bounds[-1], size=n_tokens)
    return np.searchsorted(bounds, drawn, side="right").astype(np.int64)


def never_produced(tokenizer: Any, vocab_size: int) -> Tokens:
    """Tokens that no text is turned into, such as `[PAD151665]`: no training has touched them.

    A token that the tokenizer's model makes of the token's own spelling can be produced. Spellings
    and not texts are tried: a token may be a part of a character. Bytes stand for what has no
    other token.
    """
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if type(model).__name__ not in ("BPE", "Unigram"):
        return np.empty(0, np.int64)
    never = {i for spelling, i in tokenizer.get_vocab().items() if not _is_made(model, spelling, i)}
    never |= {*range(vocab_size)} - {*tokenizer.get_vocab().values()}
    return np.array(sorted(i for i in never if i < vocab_size), np.int64)


def _is_made(model: Any, spelling: str, token: int) -> bool:
    if re.fullmatch("<0x[0-9A-F]{2}>", spelling):
        return True
    return [piece.id for piece in model.tokenize(spelling)] == [token]


def special_ids(tokenizer: Any) -> set[int]:
    """Special tokens, such as BOS."""
    if tokenizer is None:
        return set()
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}


def _tokenize(tokenizer: Any, text: str, vocab_size: int) -> Tokens:
    """All tokens of a text, in pieces that end at line breaks, or else before a blank."""
    found, start = [np.empty(0, np.int64)], 0
    while start < len(text):
        end = start + _CHUNK
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or text.rfind(" ", start + 1, end)
            end = end if end > start else start + _CHUNK
        [ids] = encode(tokenizer, [text[start:end]], vocab_size)
        found.append(np.array(ids, np.int64))
        start = end
    return np.concatenate(found)


def encode(tokenizer: Any, texts: Sequence[str], vocab_size: int) -> list[list[int]]:
    """Tokens of each text, without any that a tokenizer adds."""
    # Not verbose: a text that is longer than the model's context is meant.
    found: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    ).input_ids
    largest = max(chain.from_iterable(found), default=0)
    if largest >= vocab_size:
        raise ValueError(f"tokenizer: gives token {largest}, but the model has {vocab_size}")
    return found
