"""The tasks. A task is one class: its tokens, its right answers, and the settings of its training.

    tokens, labels = SetTask.named("argmax").sample(128, length=16, generator=generator)
    tokens = SequenceTask.named("set-complement", vocab=32).sample(128, 16, generator)
    tokens = AnswerTask.named("addition").sample(128, 16, generator)

A `SetTask` has one right answer: the class of one item. Its length counts the items; the query is
one token more. In a `SequenceTask` several tokens are allowed to come next, and all of them are
equally likely. Its length counts the tokens that are given. An `AnswerTask` has one right answer of
several tokens, such as the digits of a sum. Its length counts digits or items.

To add a task, write a subclass of one of the three with a `name`, here or in a module that
`synthetic/__init__.py` imports. That registers it: it can be trained by name, and
`llmprobe ls tasks` lists it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from llmprobe.base.lengths import LONGEST
from llmprobe.synthetic.othello import MAX_MOVES, SQUARES, as_squares, legal_moves, random_games
from llmprobe.synthetic.set_tokens import (
    N_BITS,
    N_CLASSES,
    VOCAB_SIZE,
    numbers_of,
    repeats,
    signs_of,
    with_class,
)

TASKS: dict[str, "type[Task]"] = {}
"""All tasks by name."""


class Task(ABC):
    """What is common to all tasks. The first line of a task's docstring is its description."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """What tasks of this kind have in common, for `llmprobe ls tasks`."""
    unit: ClassVar[str]
    """What a length counts."""
    longest: int
    """The longest length the task has."""
    defaults: ClassVar[dict[str, Any]]
    """Arguments of `train_synthetic` where the caller gives none."""
    presets: ClassVar[dict[str, dict[str, Any]]]
    """The same by preset: they take precedence over `defaults`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            TASKS[cls.name] = cls

    def __init__(self, vocab: int | None = None) -> None:
        if vocab is not None:
            raise ValueError(
                f"vocab: got {vocab}, but the tokens of {self.name} are given; leave it out"
            )

    @classmethod
    def named(cls, name: str, vocab: int | None = None) -> Self:
        """The task of this name, if it is of this kind; the error lists those that are."""
        known = {key: task for key, task in TASKS.items() if issubclass(task, cls)}
        if name not in known:
            raise ValueError(f"task: got {name!r}, accepted: {', '.join(known)}")
        return known[name](vocab)

    def check(self, length: int, name: str = "lengths") -> None:
        """Refuse a length that the task does not have; `name` is the argument it came by."""
        if not 1 <= length <= self.longest:
            raise ValueError(
                f"{name}: got {length}, accepted for {self.name}: 1 to {self.longest:,} {self.unit}"
            )


class SetTask(Task):
    """Sets with one right answer, the class of one item."""

    kind = "sets, with one right answer"
    unit = "items"
    longest: int = LONGEST
    item_size: ClassVar[int]
    """Numbers that describe an item."""
    query_size: ClassVar[int]
    """Numbers that describe the query."""
    defaults: ClassVar[dict[str, Any]] = {
        "variants": "baseline,layernorm",
        "train_lengths": "5..16",
        "width": 128,
        "heads": 1,
        "batch": 128,
        "learning_rate": 1e-3,
        "weight_decay": 1e-3,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"seeds": 8, "steps": 2000, "lengths": "16..4096", "sets": 256},
        "desk": {"seeds": 32, "steps": 5000, "lengths": "16..16384", "sets": 1024},
        "paper": {"seeds": 32, "steps": 100_000, "lengths": "16..16384", "sets": 32_768},
    }

    @abstractmethod
    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens (batch, length + 1) and labels (batch,), from the generator alone."""

    @abstractmethod
    def solve(self, tokens: Tensor) -> Tensor:
        """The right classes: tokens (batch, length + 1) to (batch,)."""

    @abstractmethod
    def target(self, tokens: Tensor) -> Tensor:
        """Which item has the right class: tokens (batch, length + 1) to places (batch,)."""

    @abstractmethod
    def items(self, tokens: Tensor) -> Tensor:
        """Items as a network sees them: (..., n) tokens to (..., n, item_size) numbers."""

    @abstractmethod
    def query(self, token: Tensor) -> Tensor:
        """The query as a network sees it: (...) tokens to (..., query_size) numbers."""


class DecoderTask(Task):
    """What a causal decoder is trained on."""

    vocab: int
    """Tokens that a network knows."""
    baseline: ClassVar[dict[str, str]] = {}
    """Parts of the baseline network by their place; without any it is attention alone."""


class SequenceTask(DecoderTask):
    """Sequences in which each token is a fair draw of those that are allowed there."""

    kind = "sequences, with several tokens that may come next"
    unit = "tokens"
    searched: ClassVar[str] = "baseline"
    """The network that `search_synthetic` draws settings for, where none is named."""
    defaults: ClassVar[dict[str, Any]] = {
        "variants": "baseline,dropout,ema,bema",
        "train_lengths": "1..4",
        "width": 32,
        "heads": 1,
        "layers": 1,
        "batch": 64,
        "learning_rate": 3e-3,
        "weight_decay": 1e-3,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"seeds": 8, "steps": 2000, "sets": 1024, "ema_decay": 0.99},
        "desk": {"seeds": 32, "steps": 10_000, "sets": 8192},
        "paper": {"seeds": 32, "steps": 100_000, "sets": 32_768},
    }

    @abstractmethod
    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        """Tokens (n, length + 1), from the generator alone: those given, and one that came next.

        Behind the end of a sequence stands a token that is allowed nowhere.
        """

    @abstractmethod
    def allowed(self, tokens: Tensor) -> Tensor:
        """What may follow each of the given tokens: (n, length + 1) to (n, length, vocab).

        None where the sequence has ended. Like `sample` it runs on the CPU.
        """


class AnswerTask(DecoderTask):
    """Examples of a question and its one right answer, which has one or more tokens.

    All examples of a length have as many tokens. The network is given the question and predicts the
    answer, token after token. The end of an answer is a token of it, unless all answers of a length
    are equally long.
    """

    kind = "questions, with one right answer of one or more tokens"
    words: ClassVar[tuple[str, ...]]
    """What each token is written as."""
    quarters: ClassVar[tuple[int, ...]] = (5, 6, 8, 10, 12, 16)
    """How far beyond training tests go by default, in quarters of its longest length."""
    # Learned positions: in training no others are learned as soon. Beyond it they are untrained.
    baseline: ClassVar[dict[str, str]] = {"mlp": "mlp", "norm": "prenorm", "positions": "learned"}
    defaults: ClassVar[dict[str, Any]] = {
        "variants": "baseline,rotary",
        "train_lengths": "1..10",
        "width": 64,
        "heads": 4,
        "layers": 2,
        "batch": 64,
        "learning_rate": 2e-3,
        "weight_decay": 1e-2,
        "warmup": 100,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"seeds": 2, "steps": 1000, "sets": 256},
        "desk": {"seeds": 8, "steps": 4000, "sets": 512},
        "paper": {"seeds": 8, "steps": 50_000, "sets": 1024, "width": 256},
    }

    def __init__(self, vocab: int | None = None) -> None:
        super().__init__(vocab)
        self.vocab = len(self.words)

    @abstractmethod
    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        """Tokens (n, size) of whole examples, from the generator alone."""

    @abstractmethod
    def answer(self, length: int) -> slice:
        """Which tokens of an example are its answer; it stops where the example ends."""

    @abstractmethod
    def solve(self, tokens: Sequence[int]) -> list[int]:
        """The answer to one example, in plain Python, from the tokens that are no answer."""

    def places(self, length: int) -> list[int] | None:
        """For position coupling: a place for each token of an example; None if there are none.

        Tokens of one place belong together, such as digits of equal significance. Places count from
        1; 0 is for a token without one. They follow from the length alone, so they give nothing of
        the answer away.
        """
        return None

    def couple(self, tokens: Tensor) -> Tensor | None:
        """The places of tokens (n, size), in the same shape."""
        places = self.places(self.length_of(tokens))
        return None if places is None else torch.tensor(places).expand_as(tokens).to(tokens.device)

    def size(self, length: int) -> int:
        """Tokens of an example."""
        return int(self.answer(length).stop)

    def length_of(self, tokens: Tensor) -> int:
        """The length that examples (n, size) are of: sizes grow evenly."""
        first, step = self.size(1), self.size(2) - self.size(1)
        return 1 + (tokens.shape[1] - first) // step

    def tested(self, shortest: int, longest: int) -> list[int]:
        """Lengths to test where none are given: on both sides of those of training."""
        below = {1, shortest // 2, shortest - 1}
        within = {shortest, (shortest + longest) // 2, longest}
        beyond = {longest + 1, *(times * longest // 4 for times in self.quarters)}
        return sorted(n for n in below | within | beyond if 1 <= n <= self.longest)

    def show(self, tokens: Sequence[int] | Tensor) -> str:
        """Tokens of one example as they are written."""
        return " ".join(self.words[token] for token in torch.as_tensor(tokens).tolist())

    def read(self, text: str) -> list[int]:
        """The tokens of what `show` writes."""
        return [self.words.index(word) for word in text.split()]


class ArgmaxTask(SetTask):
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

    def target(self, tokens: Tensor) -> Tensor:
        return tokens[:, :-1].argmax(dim=1)

    def items(self, tokens: Tensor) -> Tensor:
        return with_class(self.query(tokens), tokens)

    def query(self, token: Tensor) -> Tensor:
        return numbers_of(token)[..., None] / 2**N_BITS


class DictionaryTask(SetTask):
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
        while (double := repeats(keys)).any():
            fresh = torch.randint(2**N_BITS, (int(double.sum()),), generator=generator)
            keys[double] = fresh
        items = keys * N_CLASSES + torch.randint(N_CLASSES, keys.shape, generator=generator)
        asked = torch.randint(length, (batch, 1), generator=generator)
        tokens = torch.cat([items, keys.gather(1, asked) * N_CLASSES], dim=1)
        return tokens, items.gather(1, asked)[:, 0] % N_CLASSES

    def solve(self, tokens: Tensor) -> Tensor:
        """The class of the item whose key is the query's."""
        return tokens.gather(1, self.target(tokens)[:, None])[:, 0] % N_CLASSES

    def target(self, tokens: Tensor) -> Tensor:
        hits = numbers_of(tokens[:, :-1]) == numbers_of(tokens[:, -1:])
        return hits.int().argmax(dim=1)

    def items(self, tokens: Tensor) -> Tensor:
        return with_class(signs_of(tokens), tokens)

    def query(self, token: Tensor) -> Tensor:
        return signs_of(token)


class ComplementTask(SequenceTask):
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
    searched = "mlp+prenorm"
    defaults: ClassVar[dict[str, Any]] = {**SequenceTask.defaults, "vocab": 16}

    def __init__(self, vocab: int | None = None) -> None:
        vocab = self.defaults["vocab"] if vocab is None else vocab
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


class OthelloTask(SequenceTask):
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
    # Rotary, since learned positions beyond the training lengths would never be trained.
    baseline: ClassVar[dict[str, str]] = {"mlp": "mlp", "norm": "prenorm", "positions": "rotary"}
    defaults: ClassVar[dict[str, Any]] = {
        "variants": "baseline,ema,bema",
        "train_lengths": "1..30",
        "batch": 64,
        "learning_rate": 2e-3,
        "weight_decay": 0.1,
        "warmup": 200,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"seeds": 2, "steps": 1000, "sets": 512, "ema_decay": 0.99}
        | {"width": 32, "layers": 2, "heads": 2},
        "desk": {"seeds": 4, "steps": 7000, "sets": 4096, "width": 96, "layers": 4, "heads": 4},
        "paper": {"seeds": 4, "steps": 250_000, "sets": 32_768, "batch": 1024, "warmup": 2000}
        | {"width": 512, "layers": 8, "heads": 8, "learning_rate": 5e-4},
    }

    def __init__(self, vocab: int | None = None) -> None:
        super().__init__(vocab)
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
