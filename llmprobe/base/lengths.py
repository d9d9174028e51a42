"""Prompt lengths as people write them.

>>> parse_lengths("16..128")
(16, 32, 64, 128)
>>> parse_lengths("16..100")
(16, 32, 64, 100)
>>> parse_lengths("16..1k:4")
(16, 64, 256, 1024)
>>> parse_lengths("64,16,2k")
(16, 64, 2048)
"""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

ACCEPTED = (
    "accepted: 16..16384 (doubling, the end included), 16..16384:20 (20 log-spaced lengths), "
    "16,64,256 (a list); 1k = 1024"
)

LONGEST = 2**27
"""More is a mistake: no model was made for it, and no memory holds it."""
_MOST = 2**16
"""Lengths in one sweep."""
_DIGITS = 100
"""Python reads no numbers of thousands of digits, and would not say what they were for."""
_BUDGET = 1.5
"""Tokens of the prompts that run alone, relative to the longest one; doubling lengths need 1."""
_NUMBER = r"\d+k?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(\d+))?")
_LIST = re.compile(rf"{_NUMBER}(,{_NUMBER})*")


def parse_lengths(lengths: str | int | Iterable[int]) -> tuple[int, ...]:
    """Distinct positive lengths in increasing order, from text or from whole numbers."""
    if isinstance(lengths, str):
        return _check(_parse_text(lengths.replace(" ", "").lower(), lengths), lengths)
    if isinstance(lengths, int | np.integer):
        return _check([int(lengths)], lengths)
    values = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    if not all(isinstance(value, int | np.integer) for value in values):
        raise ValueError(f"lengths: {values!r} has entries that are not whole numbers; {ACCEPTED}")
    return _check([int(value) for value in values], values)


def _parse_text(text: str, shown: str) -> list[int]:
    if match := _RANGE.fullmatch(text):
        start, end, n = (_number(part) for part in match.groups(default="0"))
        if start < 1 or end < start:
            raise ValueError(f"lengths: {shown!r} must rise from at least 1; {ACCEPTED}")
        if end > LONGEST:
            raise _too_long(end)
        return _log_spaced(start, end, n, shown) if match[3] else _doubling(start, end)
    if _LIST.fullmatch(text):
        return [_number(item) for item in text.split(",")]
    raise ValueError(f"lengths: {shown!r} is not understood; {ACCEPTED}")


def _number(text: str) -> int:
    digits = text.removesuffix("k")
    if len(digits) > _DIGITS:
        raise _too_long(f"a number of {len(digits)} digits")
    return int(digits) * 1024 if text.endswith("k") else int(digits)


def _too_long(came: object) -> ValueError:
    return ValueError(f"lengths: got {came}, the longest is {LONGEST:,}; {ACCEPTED}")


def _doubling(start: int, end: int) -> list[int]:
    values = []
    while start < end:
        values.append(start)
        start *= 2
    return [*values, end]


def _log_spaced(start: int, end: int, n: int, shown: str) -> list[int]:
    most = min(end - start + 1, _MOST)
    if not 2 <= n <= most:
        raise ValueError(
            f"lengths: {shown!r} asks for {n} of the {end - start + 1} lengths from {start} to "
            f"{end}, accepted: 2 to {most} of them; {ACCEPTED}"
        )
    values = np.rint(np.geomspace(start, end, n)).astype(int)
    # Rounding can make short lengths collide: push them apart upwards, then back below the end.
    steps = np.arange(n)
    values = np.maximum.accumulate(values - steps) + steps
    values = np.minimum(values, end - steps[::-1])
    return [int(value) for value in values]


def _check(values: list[int], shown: object) -> tuple[int, ...]:
    if not values:
        raise ValueError(f"lengths: {shown!r} is empty; {ACCEPTED}")
    if min(values) < 1:
        raise ValueError(f"lengths: {shown!r} has {min(values)}, the least is 1; {ACCEPTED}")
    if max(values) > LONGEST:
        raise _too_long(max(values))
    if len(set(values)) < len(values):
        repeated = next(value for value in sorted(values) if values.count(value) > 1)
        raise ValueError(f"lengths: {shown!r} has {repeated} more than once; {ACCEPTED}")
    return tuple(sorted(values))


def spread(items: Sequence[int], n: int) -> list[int]:
    """At most n of the items, evenly, the first and the last among them."""
    if len(items) <= n:
        return list(items)
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def passes_of(
    lengths: Sequence[int], prompts: Sequence[int], *, one_pass: bool, sizes: Sequence[int] | None
) -> list[tuple[tuple[int, ...], list[int]]]:
    """The lengths that each pass serves, and its prompts.

    In one pass a prompt is as long as the longest length that it reaches. Prompts that are too
    short for the longest one make a separate pass, for the lengths that they reach.
    """
    served = [tuple(lengths[: at + 1]) if one_pass else (n,) for at, n in enumerate(lengths)]
    if sizes is None:
        return [(of_pass, list(prompts)) for of_pass in (served[-1:] if one_pass else served)]
    found = []
    for at, of_pass in enumerate(served):
        end = lengths[at + 1] if one_pass and at + 1 < len(lengths) else math.inf
        members = [i for i in prompts if lengths[at] <= sizes[i] < end]
        found += [(of_pass, members)] if members else []
    return found


def lengths_to_check(lengths: Sequence[int], bounds: Sequence[int]) -> list[int]:
    """The requested lengths to run alone: all but the longest, if that is cheap.

    Else those next to the bounds, the shortest, the next to longest, and some in between.
    """
    *shorter, longest = sorted(set(lengths))
    budget = _BUDGET * longest
    if sum(shorter) <= budget:
        return shorter
    chosen = {shorter[0], shorter[-1]}
    for bound in bounds:
        below = [n for n in shorter if n < bound]
        above = [n for n in shorter if n > bound]
        if below and longest > bound:
            chosen |= {below[-1], *above[:1], *(n for n in shorter if n == bound)}
    # From the shortest, as that many of them cost little, spaced by factors of two.
    for power in range(math.ceil(math.log2(longest))):
        near = min(shorter, key=lambda n: abs(math.log(n / 2**power)))
        if sum(chosen | {near}) <= budget:
            chosen.add(near)
    return sorted(chosen)
