"""The last token of prompts, the query: each prompt's own, one of several drawn, or a named one.

    query="free"     each prompt ends in its own token
    query="fixed"    `n_queries` tokens are drawn; prompt i ends in number i mod n_queries
    query=" the"     every prompt ends in this one token; id:262 names it by its number

A fixed query is what Proposition 1 of arXiv 2504.02827 is about. One arbitrary token says little
about others, so several are drawn, and variance between them is separated from variance within.
"""

from typing import Any

N_QUERIES = 16
"""Tokens that a fixed query draws, if nothing else is said."""
MAX_QUERIES = 4096
_ACCEPTED = "accepted: free, fixed, the text of one token, or id:NUMBER"


def check_query(query: Any, n_queries: int | None, *, n_prompts: int | None = None) -> None:
    """Refuse what is no query for any model."""
    if not isinstance(query, str) or not query or "\0" in query:
        raise ValueError(f"query: got {query!r}, {_ACCEPTED}")
    if query.strip().lower() in ("free", "fixed") and query not in ("free", "fixed"):
        raise ValueError(f"query: got {query!r}; use {query.strip().lower()!r}, or id:NUMBER")
    if n_queries is None:
        return
    if not isinstance(n_queries, int) or not 1 <= n_queries <= MAX_QUERIES:
        raise ValueError(f"n_queries: got {n_queries!r}, accepted: 1 to {MAX_QUERIES}")
    if query != "fixed":
        raise ValueError(f'n_queries: got {n_queries} with query={query!r}; use query="fixed"')
    if n_prompts is not None and n_prompts < 2 * n_queries:
        raise ValueError(
            f"n_queries: got {n_queries} for {n_prompts} prompts, but every query needs two; "
            f"accepted: up to {n_prompts // 2}"
        )


def named_token(query: str, tokenizer: Any, vocab_size: int) -> int:
    """The one token that a text or id:NUMBER stands for."""
    if query.startswith("id:"):
        number = query.removeprefix("id:")
        if not number.isdecimal() or int(number) >= vocab_size:
            raise ValueError(f"query: got {query!r}, accepted: id:0 to id:{vocab_size - 1}")
        return int(number)
    if tokenizer is None:
        raise ValueError(f"query: got {query!r}, but there is no tokenizer; use id:NUMBER")
    ids = list(tokenizer(query, add_special_tokens=False, verbose=False).input_ids)
    if len(ids) != 1:  # a SentencePiece token in the middle of a word has no text of its own
        piece = tokenizer.get_vocab().get(query)
        ids = ids if piece is None else [piece]
    if len(ids) != 1 or ids[0] >= vocab_size:
        raise ValueError(f"query: {query!r} is {len(ids)} tokens of this model, {_ACCEPTED}")
    return int(ids[0])


def token_text(token: int, tokenizer: Any) -> str:
    """A token's text between quotes, so that blanks are seen; empty without a tokenizer."""
    return "" if tokenizer is None else repr(tokenizer.decode([token]))
