"""Your own prompts: a file, a list of texts or of tokens, or a `datasets.Dataset`.

    probe_variance("builtin", "16..256", prompts=["Once upon a time ...", ...])
    probe_variance("builtin", "16..256", prompts="questions.jsonl", field="question")

Prompt i at length N is its first N tokens. A prompt with fewer tokens is left out of that length,
so lengths may have different numbers of prompts.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from llmprobe.probes.prompts import (
    OWN,
    Material,
    Prompts,
    PromptSource,
    Tokens,
    by_frequency,
    encode,
)
from llmprobe.probes.texts import read_rows

_AT_ONCE = 64
"""Texts that are tokenized at once."""
_LEAST = 2
"""Prompts that a length needs for a variance."""


class OwnPrompts(Prompts, kind=OWN):
    """Your own prompts: a .txt or .jsonl file, a list, or a data set."""

    needs_tokenizer = False
    is_drawn = False

    def __init__(self, material: Material) -> None:
        fixed = material.query == "fixed"  # drawn from all rows, so that more prompts may be used
        n_wanted = max(material.n_prompts, len(material.rows) if fixed else 0)
        wanted = replace(material, n_prompts=n_wanted)
        rows = [np.array(row, np.int64) for row in _tokenized(wanted)]
        bos = material.bos_token_id
        if bos is not None:  # there already, if the template or the user put it there
            rows = [row[1:] if row[:1].tolist() == [bos] else row for row in rows]
        draw = None
        if material.query != "free":
            every = np.concatenate([np.empty(0, np.int64), *rows])
            draw = by_frequency(self.kind, material, every)
        super().__init__(material, draw)
        self._rows = rows = rows[: material.n_prompts]
        n_added = material.longest - self._own_tokens([], material.longest)
        self.sizes = tuple(min(len(row) + n_added, self.longest) for row in rows)
        self.longest_one = int(np.argmax(self.sizes))

    def digest(self, n_prompts: int | None = None) -> str:
        """SHA-256 over the query tokens and the first prompts, up to the longest length."""
        head = (self.kind, self.longest, self.query_tokens or None, self._head.tolist())
        sha = hashlib.sha256(repr(head).encode())
        for row in self._rows[:n_prompts]:
            used = row[: self.longest].astype("<i8")
            sha.update(len(used).to_bytes(8, "little") + used.tobytes())
        return sha.hexdigest()

    def begin_with(self, token: int) -> bool:
        given = all(row[:1].tolist() == [token] for row in self._rows)
        return super().begin_with(token) or (len(self._head) == 0 and given)

    def check_lengths(self, lengths: Sequence[int]) -> None:
        """Refuse lengths that too few prompts have, and note how many have the others."""
        sizes = np.array(self.sizes)
        counts = {length: int((sizes >= length).sum()) for length in lengths}
        for length, n in counts.items():
            if n < _LEAST:
                raise ValueError(
                    f"lengths: got {length}, but {n} of {self.n_prompts} prompts have so many "
                    f"tokens, needed: {_LEAST}; use lengths up to {int(np.sort(sizes)[-_LEAST])}"
                )
        short = [f"{n} at {length}" for length, n in counts.items() if n < self.n_prompts]
        if short:
            self.warnings += (
                f"of {self.n_prompts} prompts some are too short for some lengths and left out "
                f"there: {', '.join(short)} tokens are left, so lengths compare different prompts",
            )

    def _body(self, index: int, n_tokens: int) -> Tokens:
        return self._rows[index][:n_tokens]


def rows_of(source: PromptSource, field: str | None) -> list[Any]:
    """The prompts of a source, each a text, a list of tokens or a conversation."""
    if isinstance(source, str | Path):
        given: Iterable[Any] = read_rows(source)
    else:
        given = source
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in given]
    if len(rows) < _LEAST:
        raise ValueError(f"prompts: got {len(rows)}, accepted: {_LEAST} or more")
    mappings = [isinstance(row, Mapping) for row in rows]
    if field is not None and not all(mappings):
        raise ValueError(f"field: got {field!r}, but prompts have no fields; leave it out")
    if any(mappings):
        name = _field(rows, field)
        rows = [_value(row, name, at) for at, row in enumerate(rows)]
    for at, row in enumerate(rows):
        if not isinstance(row, str) and not _is_tokens(row) and not _is_conversation(row):
            raise ValueError(
                f"prompts: row {at + 1} is {_shown(row)}, accepted: a text, a list of tokens, or "
                "a list of messages with role and content"
            )
    return rows


def hash_rows(rows: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _field(rows: Sequence[Any], field: str | None) -> str:
    """The field that was asked for, `text`, or else the first that holds a prompt."""
    first = next(row for row in rows if isinstance(row, Mapping))
    if field is not None:
        return field
    usable = [n for n, v in first.items() if isinstance(v, str) or _is_conversation(v)]
    usable += [n for n, v in first.items() if _is_tokens(v)]
    if not usable:
        raise ValueError(f"prompts: no field holds a text: {', '.join(map(str, first))}")
    return "text" if "text" in usable else str(usable[0])


def _value(row: Any, name: str, at: int) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        there = ", ".join(map(str, row)) if isinstance(row, Mapping) else _shown(row)
        raise ValueError(f"field: got {name!r}, but row {at + 1} has: {there}")
    value = row[name]
    return value.tolist() if hasattr(value, "tolist") else value


def _shown(row: Any) -> str:
    text = repr(row)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_tokens(row: Any) -> bool:
    return isinstance(row, list | tuple) and all(
        isinstance(i, int | np.integer) and not isinstance(i, bool) for i in row
    )


def _is_conversation(row: Any) -> bool:
    return (
        isinstance(row, list | tuple)
        and len(row) > 0
        and all(isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in row)
    )


def _tokenized(material: Material) -> list[Any]:
    rows = list(material.rows[: material.n_prompts])
    if len(rows) < material.n_prompts:
        raise ValueError(f"n_prompts: got {material.n_prompts}, but there are {len(rows)} rows")
    as_tokens = [_is_tokens(row) for row in rows]
    if not all(as_tokens) and material.tokenizer is None:
        raise ValueError("prompts: texts need a tokenizer, and there is none; give lists of tokens")
    if material.chat_template:
        return _in_template(rows, material)
    for at, row in enumerate(rows):
        if not isinstance(row, str) and not as_tokens[at]:
            raise ValueError(f"prompts: row {at + 1} is a conversation; use chat_template=True")
    texts = [at for at, row in enumerate(rows) if isinstance(row, str)]
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        found = encode(material.tokenizer, [rows[at] for at in some], material.vocab_size)
        for at, ids in zip(some, found, strict=True):
            rows[at] = ids
    return _checked(rows, material.vocab_size)


def _in_template(rows: Sequence[Any], material: Material) -> list[Any]:
    """Tokens of each row as the tokenizer's chat template writes it; a text is a user's message."""
    tokenizer = material.tokenizer
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError("chat_template: got True, but the tokenizer has none; leave it out")
    found = []
    for at, row in enumerate(rows):
        if _is_tokens(row):
            raise ValueError(f"chat_template: got True, but row {at + 1} has tokens; leave it out")
        messages = [{"role": "user", "content": row}] if isinstance(row, str) else list(row)
        try:
            ids = tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=messages[-1]["role"] != "assistant",
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:  # a template is a program, and can raise anything
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(
                f"chat_template: got True, but it fails for row {at + 1}: {words}"
            ) from error
        found.append([int(i) for i in ids])
    return _checked(found, material.vocab_size)


def _checked(rows: list[Any], vocab_size: int) -> list[Any]:
    tokens = [*chain.from_iterable(rows)]
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < vocab_size:
            raise ValueError(f"prompts: got token {token}, accepted: 0 to {vocab_size - 1}")
    return rows
