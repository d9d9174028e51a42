"""The tasks: sets with one right answer, and sequences with several right next tokens.

    tokens, labels = find_task("argmax").sample(128, length=16, generator=generator)
    tokens = find_choice("set-complement", vocab=32).sample(128, length=16, generator=generator)

**Sets** (argmax retrieval, dictionary lookup): the answer is the class of one item. A set is
written as tokens, so that a trained network is probed like any language model: its items, then the
query. A token is a number of 24 bits and a class, `number * N_CLASSES + class`; a task says what
the number means. The length of a set counts its items, the query is one token more.

**Choices** (set complement, Othello): after each token a few are allowed to come next, and all of
them are equally likely. The length counts the tokens that are given.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from llmprobe.base.lengths import LONGEST
from llmprobe.synthetic.othello import MAX_MOVES, SQUARES, as_squares, legal_moves, random_games

N_CLASSES = 10
N_BITS = 24
"""As many as a float32 drawn from U(0, 1) has."""
VOCAB_SIZE = N_CLASSES * 2**N_BITS


class Task(ABC):
    """What the tokens of a set mean, and which class is the answer."""

    name: str
    item_size: int
    """Numbers that describe an item."""
    query_size: int
    """Numbers that describe the query."""
    longest: int = LONGEST
    """Items that a set can have."""

    def check(self, length: int, name: str = "lengths") -> None:
        """Refuse a length that no set can have; `name` is the argument it came by."""
        if not 1 <= length <= self.longest:
            raise ValueError(
                f"{name}: got {length}, accepted for {self.name}: 1 to {self.longest:,} items"
            )

    @abstractmethod
    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens (batch, length + 1) and labels (batch,), from the generator alone."""

    @abstractmethod
    def items(self, tokens: Tensor) -> Tensor:
        """Items as a network sees them: (..., n) tokens to (..., n, item_size) numbers."""

    @abstractmethod
    def query(self, token: Tensor) -> Tensor:
        """The query as a network sees it: (...) tokens to (..., query_size) numbers."""


class ArgmaxTask(Task):
    """Which class has the item of the highest priority?

    An item is a priority from U(0, 1) and a class of ten. The query is a number without meaning.
    This is the max retrieval of arXiv 2410.01104.

    >>> quarter = 2**N_BITS // 4
    >>> tokens = torch.tensor([[1 * quarter, 7], [3 * quarter, 4], [2 * quarter, 9], [0, 0]])
    >>> tokens = tokens[:, 0] * N_CLASSES + tokens[:, 1]
    >>> ArgmaxTask().items(tokens[:3])[:, 0]  # priorities
    tensor([0.2500, 0.7500, 0.5000])
    >>> ArgmaxTask().solve(tokens[None])  # the class of the second item
    tensor([4])
    """

    name = "argmax"
    item_size = 1 + N_CLASSES
    query_size = 1

    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(VOCAB_SIZE, (batch, length + 1), generator=generator)
        return tokens, self.solve(tokens)

    def solve(self, tokens: Tensor) -> Tensor:
        """The class of the item of the highest priority; of several, the last class."""
        # Numbers are the high digits of a token, so the largest token has the largest number.
        return tokens[:, :-1].amax(dim=1) % N_CLASSES

    def items(self, tokens: Tensor) -> Tensor:
        return _with_class(_number(tokens)[..., None] / 2**N_BITS, tokens)

    def query(self, token: Tensor) -> Tensor:
        return _number(token)[..., None] / 2**N_BITS


class DictionaryTask(Task):
    """Which class belongs to the key that is asked for?

    An item is a key and a class; keys are random vectors of 24 signs, distinct within a set. The
    query is one of the keys.

    >>> tokens = torch.tensor([[5 * N_CLASSES + 7, 6 * N_CLASSES + 2, 6 * N_CLASSES + 0]])
    >>> DictionaryTask().query(tokens[0, -1])[:4] * N_BITS**0.5  # 6 has the lowest bits 0, 1, 1, 0
    tensor([-1.,  1.,  1., -1.])
    >>> DictionaryTask().solve(tokens)  # the class of key 6
    tensor([2])
    """

    name = "dictionary"
    item_size = N_BITS + N_CLASSES
    query_size = N_BITS
    longest = 2**N_BITS // 2  # beyond that, finding keys that are still free takes ever longer

    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        keys = torch.randint(2**N_BITS, (batch, length), generator=generator)
        while (double := _repeats(keys)).any():
            fresh = torch.randint(2**N_BITS, (int(double.sum()),), generator=generator)
            keys[double] = fresh
        items = keys * N_CLASSES + torch.randint(N_CLASSES, keys.shape, generator=generator)
        asked = torch.randint(length, (batch, 1), generator=generator)
        tokens = torch.cat([items, keys.gather(1, asked) * N_CLASSES], dim=1)
        return tokens, items.gather(1, asked)[:, 0] % N_CLASSES

    def solve(self, tokens: Tensor) -> Tensor:
        """The class of the item whose key is the query's."""
        hits = _number(tokens[:, :-1]) == _number(tokens[:, -1:])
        return tokens.gather(1, hits.int().argmax(dim=1, keepdim=True))[:, 0] % N_CLASSES

    def items(self, tokens: Tensor) -> Tensor:
        return _with_class(_signs(tokens), tokens)

    def query(self, token: Tensor) -> Tensor:
        return _signs(token)


class Choice(ABC):
    """Sequences in which each token is a fair draw of those that are allowed there."""

    name: str
    vocab: int
    """Tokens that a network knows."""
    longest: int
    """Most tokens that can be given, with one left to choose."""

    def check(self, length: int, name: str = "lengths") -> None:
        """Refuse a length at which nothing can be asked; `name` is the argument it came by."""
        if not 1 <= length <= self.longest:
            raise ValueError(
                f"{name}: got {length}, accepted for {self.name}: 1 to {self.longest} tokens"
            )

    @abstractmethod
    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        """Tokens (n, length + 1), from the generator alone: those given, and one that came next.

        A token that is nowhere allowed stands behind the end of a sequence that has one.
        """

    @abstractmethod
    def allowed(self, tokens: Tensor) -> Tensor:
        """What may follow each of the given tokens: (n, length + 1) to (n, length, vocab).

        None where the sequence has ended.
        """


class ComplementTask(Choice):
    """Which tokens are missing? Every one that has not occurred may come next.

    This is the set complement of arXiv 2510.08341: the input is s different tokens of v, the target
    1 / (v - s) for each of the others.

    >>> task = ComplementTask(vocab=5)
    >>> task.allowed(torch.tensor([[3, 0, 4]])).int()  # after 3, and after 3 0
    tensor([[[1, 1, 1, 0, 1],
             [0, 1, 1, 0, 1]]], dtype=torch.int32)
    """

    name = "set-complement"
    most = 1024
    """Tokens: all lengths together have as many logits as their square."""

    def __init__(self, vocab: int = 16) -> None:
        if not isinstance(vocab, int) or not 2 <= vocab <= self.most:
            raise ValueError(f"vocab: got {vocab!r}, accepted: 2 to {self.most} tokens")
        self.vocab, self.longest = vocab, vocab - 1

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        keys = torch.rand(n, self.vocab, generator=generator)
        return keys.topk(length + 1, dim=1).indices

    def allowed(self, tokens: Tensor) -> Tensor:
        given = tokens[:, :-1]
        places = torch.arange(given.shape[1], device=tokens.device)
        # Where each token of the vocabulary comes; far behind the end if it does not.
        first = torch.full((len(given), self.vocab), self.vocab, device=tokens.device)
        first.scatter_(1, given, places.expand_as(given))
        return first[:, None] > places[:, None]


class OthelloTask(Choice):
    """Which moves are legal? Games of random moves, as OthelloGPT (arXiv 2210.13382) learns them.

    A token is one of the 60 squares that are empty at the start, in the order of the board; the
    last, `END`, stands behind the end of a game. A pass is no token.

    >>> task = OthelloTask()
    >>> moves = task.sample(1, 2, torch.Generator().manual_seed(0))
    >>> [task.squares[token] for token in moves[0]]
    ['c4', 'c5', 'd6']
    >>> [task.squares[token] for token in task.allowed(moves)[0, 0].nonzero()[:, 0]]
    ['c3', 'e3', 'c5']
    """

    name = "othello"
    longest = MAX_MOVES - 1
    END = MAX_MOVES
    vocab = MAX_MOVES + 1
    squares = tuple(square for square in SQUARES if square not in ("d4", "e4", "d5", "e5"))

    def __init__(self) -> None:
        self._square = torch.tensor([SQUARES.index(square) for square in self.squares] + [-1])
        self._token = torch.full((len(SQUARES) + 1,), self.END)  # the last is that of square -1
        self._token[self._square[:-1]] = torch.arange(len(self.squares))

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**62, (), generator=generator))
        games = np.concatenate(list(random_games(n, seed)))
        return self._token[torch.from_numpy(games[:, : length + 1]).long()]

    def allowed(self, tokens: Tensor) -> Tensor:
        moves = self._square[tokens.cpu()].numpy()
        legal = torch.from_numpy(as_squares(legal_moves(moves))[:, 1:])
        last = torch.zeros(*legal.shape[:2], 1, dtype=torch.bool)
        return torch.cat([legal[..., self._square[:-1]], last], dim=-1).to(tokens.device)


TASKS: dict[str, Task] = {task.name: task for task in (ArgmaxTask(), DictionaryTask())}


def find_task(name: str) -> Task:
    """The task of this name; the error lists them."""
    if name not in TASKS:
        raise ValueError(f"task: got {name!r}, accepted: {', '.join([*TASKS, *CHOICES])}")
    return TASKS[name]


CHOICES: dict[str, type[Choice]] = {task.name: task for task in (ComplementTask, OthelloTask)}


def find_choice(name: str, vocab: int | None = None) -> Choice:
    """The task of this name; `vocab` is for set complement alone."""
    if name not in CHOICES:
        raise ValueError(f"task: got {name!r}, accepted: {', '.join(CHOICES)}")
    if name == ComplementTask.name:
        return ComplementTask() if vocab is None else ComplementTask(vocab)
    if vocab is not None:
        raise ValueError(f"vocab: got {vocab}, but the tokens of {name} are given; leave it out")
    return CHOICES[name]()


def _number(tokens: Tensor) -> Tensor:
    return tokens.div(N_CLASSES, rounding_mode="floor")


def _signs(tokens: Tensor) -> Tensor:
    """The number's bits as signs, in a vector of length one."""
    shifts = torch.arange(N_BITS, device=tokens.device)
    bits = (_number(tokens)[..., None] >> shifts) & 1
    return (2 * bits - 1) / N_BITS**0.5


def _with_class(numbers: Tensor, tokens: Tensor) -> Tensor:
    """The numbers and behind them the class, one-hot."""
    classes = torch.arange(N_CLASSES, device=tokens.device)
    one_hot = (tokens % N_CLASSES)[..., None] == classes
    return torch.cat([numbers, one_hot.to(numbers.dtype)], dim=-1)


def _repeats(keys: Tensor) -> Tensor:
    """Which keys occurred earlier in their set."""
    ordered, order = keys.sort(dim=1, stable=True)
    again = torch.zeros_like(keys, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)
