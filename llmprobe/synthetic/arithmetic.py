"""Tasks of arithmetic: addition in four formats, and the successor of a number.

    task = AdditionTask()
    task.show(task.sample(1, 3, generator)[0])   # "9 1 4 + 2 0 8 = 1 1 2 2 $"

The length counts digits of the numbers that are given. `$` ends an answer; where an answer is
shorter than the longest of its length, `$` fills the rest.

Coupled places follow position coupling (arXiv 2405.20671): digits of equal significance share a
place, the lowest at 2; `+` and `=` stand at 1, next to the lowest digit.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from llmprobe.synthetic.tasks import AnswerTask

PLUS, EQUALS, END = 10, 11, 12
_LOWEST = 2
"""The place of the lowest digit."""


def add_digits(a: Tensor, b: Tensor) -> Tensor:
    """The sums of numbers, digits (n, length) from the lowest on, to (n, length + 1)."""
    digits, carry = [], torch.zeros_like(a[:, 0])
    for column in (a + b).unbind(dim=1):
        total = column + carry
        carry = total // 10
        digits.append(total % 10)
    return torch.stack([*digits, carry], dim=1)


def draw_numbers(n: int, length: int, generator: torch.Generator) -> Tensor:
    """Numbers without leading zeros, digits (n, length) from the lowest on."""
    digits = torch.randint(10, (n, length), generator=generator)
    digits[:, -1] = torch.randint(1, 10, (n,), generator=generator)
    return digits


def to_number(digits: Sequence[int]) -> int:
    """Of digits from the highest on."""
    return int("".join(map(str, digits)))


def to_digits(number: int) -> list[int]:
    """From the highest on."""
    return [int(digit) for digit in str(number)]


def _ended(digits: list[int], size: int) -> list[int]:
    """An answer of so many tokens."""
    return digits + [END] * (size - len(digits))


def _fill(digits: Tensor) -> Tensor:
    """Sums (n, length + 1) from the lowest digit on, with `$` in place of a leading zero."""
    filled = digits.clone()
    filled[:, -1] = torch.where(digits[:, -1] == 0, END, digits[:, -1])
    return filled


class _Sums(AnswerTask):
    """What all formats of addition share."""

    unit = "digits"
    longest = 256
    words = (*"0123456789", "+", "=", "$")
    # Sums take longer to learn than strings, so training has fewer digits.
    defaults: ClassVar[dict[str, Any]] = {**AnswerTask.defaults, "train_lengths": "1..5"}

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        a, b = (self.draw(n, length, generator) for _ in range(2))
        return self.write(a, b, add_digits(a, b))

    def draw(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        """One of the numbers that are added, digits from the lowest on."""
        return draw_numbers(n, length, generator)

    @abstractmethod
    def write(self, a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        """Two numbers and their sum, digits from the lowest on, as tokens."""

    def answer(self, length: int) -> slice:
        return slice(2 * length + 2, 3 * length + 4)


class AdditionTask(_Sums):
    """The sum of two numbers of N digits, written as usual.

    >>> task = AdditionTask()
    >>> task.show(task.solve(task.read("5 7 + 6 8 =")))
    '1 2 5 $'
    >>> task.show(task.solve(task.read("2 1 + 3 5 =")))  # as many tokens, whatever the sum
    '5 6 $ $'
    """

    name = "addition"

    def write(self, a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        plus, equals, end = (torch.full_like(a[:, :1], token) for token in (PLUS, EQUALS, END))
        total = total.flip(1)
        # A leading zero is left out; the digits behind it move up, and the end fills the rest.
        moved = torch.cat([total[:, 1:], end], dim=1)
        total = torch.where(total[:, :1] == 0, moved, total)
        return torch.cat([a.flip(1), plus, b.flip(1), equals, total, end], dim=1)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        length = list(tokens).index(PLUS)
        total = to_number(tokens[:length]) + to_number(tokens[length + 1 : 2 * length + 1])
        return _ended(to_digits(total), length + 2)


class ReversedAdditionTask(_Sums):
    """The sum of two numbers of N digits, all written from the lowest digit on.

    >>> task = ReversedAdditionTask()
    >>> task.show(task.solve(task.read("7 5 + 8 6 =")))  # 57 + 68 = 125
    '5 2 1 $'
    """

    name = "addition-reversed"

    def write(self, a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        plus, equals, end = (torch.full_like(a[:, :1], token) for token in (PLUS, EQUALS, END))
        return torch.cat([a, plus, b, equals, _fill(total), end], dim=1)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        length = list(tokens).index(PLUS)
        a, b = tokens[:length][::-1], tokens[length + 1 : 2 * length + 1][::-1]
        return _ended(to_digits(to_number(a) + to_number(b))[::-1], length + 2)

    def places(self, length: int) -> list[int]:
        up = list(range(_LOWEST, _LOWEST + length + 1))
        return [*up[:-1], 1, *up[:-1], 1, *up, 0]


class HintedAdditionTask(ReversedAdditionTask):
    """Reversed addition with index hints: digits of equal significance follow equal hints.

    Hints are consecutive tokens from a random one on, as in arXiv 2402.09371. They are part of the
    answer too. A `vocab` of 14 + N tokens has hints for N digits: the fewer there are, the oftener
    training meets each.

    >>> task = HintedAdditionTask()
    >>> task.show(task.solve(task.read("a4 7 a5 5 + a4 8 a5 6 =")))
    'a4 5 a5 2 a6 1 $'
    """

    name = "addition-hints"
    longest = 100
    words = (*_Sums.words, *(f"a{number}" for number in range(longest + 1)))
    FIRST = len(_Sums.words)
    """The first hint."""

    def __init__(self, vocab: int | None = None) -> None:
        super().__init__()
        if vocab is None:
            return
        if not isinstance(vocab, int) or not self.FIRST + 2 <= vocab <= self.vocab:
            raise ValueError(
                f"vocab: got {vocab!r}, accepted: {self.FIRST + 2} to {self.vocab} tokens, "
                f"{self.FIRST + 1} more than the longest numbers have digits"
            )
        self.vocab, self.longest = vocab, vocab - self.FIRST - 1

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        tokens = super().sample(n, length, generator)
        starts = torch.randint(self.longest + 1 - length, (n, 1), generator=generator)
        return self._hinted(tokens, length, self.FIRST + starts + torch.arange(length + 1))

    def _hinted(self, tokens: Tensor, length: int, hints: Tensor) -> Tensor:
        """Reversed addition with hints (n, length + 1) before its digits."""
        a, plus, b, equals, total, end = tokens.split([length, 1, length, 1, length + 1, 1], dim=1)
        pairs = [
            torch.stack([torch.where(x == END, END, hints[:, : x.shape[1]]), x], dim=2).flatten(1)
            for x in (a, b, total)
        ]
        return torch.cat([pairs[0], plus, pairs[1], equals, pairs[2], end], dim=1)

    def answer(self, length: int) -> slice:
        return slice(4 * length + 2, 6 * length + 5)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        middle = list(tokens).index(PLUS)
        a, b = tokens[1:middle:2][::-1], tokens[middle + 2 : 2 * middle + 1 : 2][::-1]
        total = to_digits(to_number(a) + to_number(b))[::-1]
        pairs = [token for at, digit in enumerate(total) for token in (tokens[0] + at, digit)]
        return _ended(pairs, middle + 3)

    def places(self, length: int) -> list[int]:
        up = [place for at in range(length + 1) for place in [_LOWEST + at] * 2]
        return [*up[:-2], 1, *up[:-2], 1, *up, 0]


class PaddedAdditionTask(_Sums):
    """The sum of numbers of up to N digits, with zeros before them and the sum reversed.

    This is the format of position coupling (arXiv 2405.20671). The `$` before all else has no
    place. A head looks there where no digit has the place that it wants.

    >>> task = PaddedAdditionTask()
    >>> task.show(task.solve(task.read("$ 6 5 3 + 0 4 9 =")))  # 702, in four digits
    '2 0 7 0 $'
    """

    name = "addition-padded"

    def draw(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        """The number of digits is drawn too."""
        digits = torch.randint(10, (n, length), generator=generator)
        count = torch.randint(1, length + 1, (n, 1), generator=generator)
        return digits * (torch.arange(length) < count)

    def write(self, a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        plus, equals, end = (torch.full_like(a[:, :1], token) for token in (PLUS, EQUALS, END))
        return torch.cat([end, a.flip(1), plus, b.flip(1), equals, total, end], dim=1)

    def answer(self, length: int) -> slice:
        return slice(2 * length + 3, 3 * length + 5)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        plus = list(tokens).index(PLUS)
        total = to_number(tokens[1:plus]) + to_number(tokens[plus + 1 : 2 * plus])
        return [*to_digits(total + 10**plus)[:0:-1], END]

    def places(self, length: int) -> list[int]:
        up = list(range(_LOWEST, _LOWEST + length + 1))
        down = up[:-1][::-1]
        return [0, *down, 1, *down, 1, *up, 0]


class SuccessorTask(AnswerTask):
    """The number that is one larger, written from the lowest digit on.

    Half of the numbers end in a random number of nines, so that long carries are not rare.

    >>> task = SuccessorTask()
    >>> task.show(task.solve(task.read("9 9 1 =")))  # 199 + 1 = 200
    '0 0 2 $ $'
    """

    name = "successor"
    unit = "digits"
    longest = 256
    words = _Sums.words

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        number = draw_numbers(n, length, generator)
        nines = torch.randint(length + 1, (n, 1), generator=generator)
        nines *= torch.randint(2, (n, 1), generator=generator)
        number[torch.arange(length) < nines] = 9
        one = torch.zeros_like(number)
        one[:, 0] = 1
        equals, end = (torch.full_like(number[:, :1], token) for token in (EQUALS, END))
        return torch.cat([number, equals, _fill(add_digits(number, one)), end], dim=1)

    def answer(self, length: int) -> slice:
        return slice(length + 1, 2 * length + 3)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        length = list(tokens).index(EQUALS)
        return _ended(to_digits(to_number(tokens[:length][::-1]) + 1)[::-1], length + 2)

    def places(self, length: int) -> list[int]:
        up = list(range(_LOWEST, _LOWEST + length + 1))
        return [*up[:-1], 1, *up, 0]
