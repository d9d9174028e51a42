"""String editing, the tasks of Sequence Length is a Domain (arXiv 2109.07276).

    task = CopyTask()
    task.show(task.sample(1, 4, generator)[0])   # "c a a h = c a a h $"

A string of N random letters is copied, reversed, or gets one letter more at its end (push) or at
its beginning (unshift). The length counts the letters of the string. `$` ends an answer.

Coupled places: a letter of the answer has the place of the letter that it repeats. `=` has the one
before the first of the answer, so that each place follows from the one before.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from llmprobe.synthetic.tasks import AnswerTask

N_LETTERS = 16
EQUALS, END, COLON = N_LETTERS, N_LETTERS + 1, N_LETTERS + 2


class _Editing(AnswerTask):
    """What all of them share: a question, its answer, and how places run through both."""

    unit = "letters"
    longest = 256
    words = (*"abcdefghijklmnop", "=", "$")

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        string = torch.randint(N_LETTERS, (n, length), generator=generator)
        return self.write(string, generator)

    @abstractmethod
    def write(self, string: Tensor, generator: torch.Generator) -> Tensor:
        """Whole examples of strings (n, length)."""

    def answer(self, length: int) -> slice:
        return slice(length + 1, 2 * length + 2)


class CopyTask(_Editing):
    """The same string again.

    >>> task = CopyTask()
    >>> task.show(task.solve(task.read("c a a h =")))
    'c a a h $'
    """

    name = "copy"

    def write(self, string: Tensor, generator: torch.Generator) -> Tensor:
        equals, end = (torch.full_like(string[:, :1], token) for token in (EQUALS, END))
        return torch.cat([string, equals, string, end], dim=1)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [*tokens[: list(tokens).index(EQUALS)], END]

    def places(self, length: int) -> list[int]:
        up = list(range(2, length + 2))
        return [*up, 1, *up, 0]


class ReverseTask(_Editing):
    """The string from its end to its beginning.

    >>> task = ReverseTask()
    >>> task.show(task.solve(task.read("c a a h =")))
    'h a a c $'
    """

    name = "reverse"

    def write(self, string: Tensor, generator: torch.Generator) -> Tensor:
        equals, end = (torch.full_like(string[:, :1], token) for token in (EQUALS, END))
        return torch.cat([string, equals, string.flip(1), end], dim=1)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [*tokens[: list(tokens).index(EQUALS)][::-1], END]

    def places(self, length: int) -> list[int]:
        up = list(range(1, length + 1))
        return [*up, length + 1, *up[::-1], 0]


class _Insertion(_Editing):
    """One letter more, which is given before the string."""

    words = (*_Editing.words, ":")

    def answer(self, length: int) -> slice:
        return slice(length + 3, 2 * length + 5)

    def write(self, string: Tensor, generator: torch.Generator) -> Tensor:
        letter = torch.randint(N_LETTERS, (len(string), 1), generator=generator)
        colon, equals, end = (torch.full_like(letter, token) for token in (COLON, EQUALS, END))
        return torch.cat([letter, colon, string, equals, *self.join(letter, string), end], dim=1)

    @abstractmethod
    def join(self, letter: Tensor, string: Tensor) -> tuple[Tensor, Tensor]:
        """The letter and the string in the order of the answer."""


class PushTask(_Insertion):
    """The string with a letter behind its end.

    >>> task = PushTask()
    >>> task.show(task.solve(task.read("b : c a a h =")))
    'c a a h b $'
    """

    name = "push"

    def join(self, letter: Tensor, string: Tensor) -> tuple[Tensor, Tensor]:
        return string, letter

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [*tokens[2 : list(tokens).index(EQUALS)], tokens[0], END]

    def places(self, length: int) -> list[int]:
        up = list(range(2, length + 2))
        return [length + 2, 0, *up, 1, *up, length + 2, 0]


class UnshiftTask(_Insertion):
    """The string with a letter before its beginning.

    >>> task = UnshiftTask()
    >>> task.show(task.solve(task.read("b : c a a h =")))
    'b c a a h $'
    """

    name = "unshift"

    def join(self, letter: Tensor, string: Tensor) -> tuple[Tensor, Tensor]:
        return letter, string

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [tokens[0], *tokens[2 : list(tokens).index(EQUALS)], END]

    def places(self, length: int) -> list[int]:
        up = list(range(3, length + 3))
        return [2, 0, *up, 1, 2, *up, 0]
