"""Formal languages with next-token distributions: Dyck, Tomita's languages, counters.

    task = SequenceTask.named("dyck")
    task.show(task.sample(1, 7, generator)[0])   # "( [ ] ( ) [ ( )"

Each token is a fair draw of those that may come next, so a sequence never ends and every language
is one of endless streams: aⁿbⁿ is one word after another. Tomita's languages are of finite words
over 0 and 1. There a third token, `.`, may come wherever the word so far is in the language; it
changes nothing. So a network shows by it that it knows whether the word is.

A language is a state and three functions of it: where it begins, what may come, what follows.
"""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from llmprobe.synthetic.tasks import SequenceTask

State = tuple[Tensor, ...]
"""Of n sequences at once."""


class _Language(SequenceTask):
    """Sequences that are drawn and checked token after token, all at once."""

    longest = 256
    words: tuple[str, ...]
    """What each token is written as."""
    baseline: ClassVar[dict[str, str]] = {"mlp": "mlp", "norm": "prenorm"}
    searched = "baseline"
    defaults: ClassVar[dict[str, Any]] = {
        "variants": "baseline,postnorm",
        "train_lengths": "1..32",
        "width": 64,
        "heads": 4,
        "layers": 2,
        "batch": 32,
        "learning_rate": 2e-3,
        "weight_decay": 1e-2,
        "warmup": 100,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"seeds": 2, "steps": 600, "sets": 128, "ema_decay": 0.99},
        "desk": {"seeds": 8, "steps": 3000, "sets": 512},
        "paper": {"seeds": 8, "steps": 30_000, "sets": 4096, "width": 256},
    }

    @abstractmethod
    def begin(self, n: int) -> State:
        """Before the first token."""

    @abstractmethod
    def options(self, state: State) -> Tensor:
        """What may come: (n, vocab) booleans."""

    @abstractmethod
    def after(self, state: State, token: Tensor) -> State:
        """The state that tokens (n,) lead to, which are among the options."""

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        state, tokens = self.begin(n), []
        for _ in range(length + 1):
            keys = torch.rand(n, self.vocab, generator=generator)
            tokens.append(torch.where(self.options(state), keys, -1).argmax(dim=1))
            state = self.after(state, tokens[-1])
        return torch.stack(tokens, dim=1)

    def allowed(self, tokens: Tensor) -> Tensor:
        state, found = self.begin(len(tokens)), []
        for token in tokens[:, :-1].cpu().unbind(dim=1):
            state = self.after(state, token)
            found.append(self.options(state))
        return torch.stack(found, dim=1).to(tokens.device)

    def show(self, tokens: Tensor) -> str:
        """Tokens of one sequence as they are written."""
        return " ".join(self.words[token] for token in tokens.tolist())


class DyckTask(_Language):
    """Brackets of k kinds that match, at most 8 deep; `vocab` is 2 k.

    An opening bracket of each kind may come unless the depth is 8, and the closing bracket of the
    innermost one that is open.

    >>> task = DyckTask()
    >>> tokens = torch.tensor([[task.words.index(word) for word in "( [ ] ( (".split()]])
    >>> for allowed in task.allowed(tokens)[0]:
    ...     print(*(word for word, may in zip(task.words, allowed, strict=True) if may))
    ( [ )
    ( [ ]
    ( [ )
    ( [ )
    """

    name = "dyck"
    depth = 8
    defaults: ClassVar[dict[str, Any]] = {**_Language.defaults, "vocab": 4}
    most = 64
    """Tokens."""

    def __init__(self, vocab: int | None = None) -> None:
        vocab = self.defaults["vocab"] if vocab is None else vocab
        if not isinstance(vocab, int) or not 2 <= vocab <= self.most or vocab % 2:
            raise ValueError(f"vocab: got {vocab!r}, accepted: even, 2 to {self.most} tokens")
        self.vocab, self.k = vocab, vocab // 2
        pairs = [("(", ")"), ("[", "]"), ("{", "}")]
        pairs += [(f"<{number}", f"{number}>") for number in range(4, self.k + 1)]
        self.words = tuple(pair[side] for side in range(2) for pair in pairs[: self.k])

    def begin(self, n: int) -> State:
        """Depths, and the kinds of the brackets that are open."""
        return torch.zeros(n, dtype=torch.long), torch.zeros(n, self.depth, dtype=torch.long)

    def options(self, state: State) -> Tensor:
        depth, kinds = state
        opening = (depth < self.depth)[:, None].expand(-1, self.k)
        innermost = kinds.gather(1, (depth - 1).clamp(min=0)[:, None])
        closing = (torch.arange(self.k) == innermost) & (depth > 0)[:, None]
        return torch.cat([opening, closing], dim=1)

    def after(self, state: State, token: Tensor) -> State:
        depth, kinds = state
        opens = token < self.k
        here = depth.clamp(max=self.depth - 1)[:, None]
        pushed = torch.where(opens[:, None], token[:, None], kinds.gather(1, here))
        return depth + torch.where(opens, 1, -1), kinds.scatter(1, here, pushed)


class _CounterTask(_Language):
    """Words aⁿbⁿ, or aⁿbⁿcⁿ, one after another.

    An a is written as one of several letters: they mean the same, and the more there are, the
    larger n gets. All tokens but `stages - 1` of the vocabulary are such letters.
    """

    stages: ClassVar[int]
    """Letters of a word that are counted."""
    defaults: ClassVar[dict[str, Any]] = {**_Language.defaults, "vocab": 16}
    most = 256

    def __init__(self, vocab: int | None = None) -> None:
        vocab = self.defaults["vocab"] if vocab is None else vocab
        if not isinstance(vocab, int) or not self.stages <= vocab <= self.most:
            raise ValueError(f"vocab: got {vocab!r}, accepted: {self.stages} to {self.most} tokens")
        self.vocab, self.letters = vocab, vocab - self.stages + 1
        self.words = (*(f"a{number}" for number in range(self.letters)), *"bc"[: self.stages - 1])

    def begin(self, n: int) -> State:
        """The stage of a word (0 for a), its n, and how many tokens the stage has so far."""
        zero = torch.zeros(n, dtype=torch.long)
        return zero, zero, zero

    def options(self, state: State) -> Tensor:
        stage, _, count = state
        first = (stage == 0)[:, None].expand(-1, self.letters)
        later = torch.arange(1, self.stages)
        # While n is open, the next letter may come from the first a on.
        may = (later == stage[:, None]) | ((later == 1) & ((stage == 0) & (count > 0))[:, None])
        return torch.cat([first, may], dim=1)

    def after(self, state: State, token: Tensor) -> State:
        stage, n, count = state
        came = (token - self.letters + 1).clamp(min=0)
        n = torch.where(came == 0, torch.where(stage == 0, n, 0) + 1, n)
        count = torch.where(came == stage, count, 0) + 1
        full = (came > 0) & (count == n)
        # A stage that is full makes room for the next; the last one for another word.
        stage = torch.where(full, (came + 1) % self.stages, came)
        return stage, torch.where(full & (stage == 0), 0, n), torch.where(full, 0, count)


class CounterTask(_CounterTask):
    """Words aⁿbⁿ, one after another: as many b as a came; an a is one of several letters.

    >>> task = CounterTask(vocab=3)
    >>> tokens = torch.tensor([[task.words.index(word) for word in "a0 a1 b b a1".split()]])
    >>> for allowed in task.allowed(tokens)[0]:
    ...     print(*(word for word, may in zip(task.words, allowed, strict=True) if may))
    a0 a1 b
    a0 a1 b
    b
    a0 a1
    """

    name = "counter"
    stages = 2


class Counter3Task(_CounterTask):
    """Words aⁿbⁿcⁿ, one after another: as many b, and then as many c, as a came.

    >>> task = Counter3Task(vocab=3)
    >>> tokens = torch.tensor([[task.words.index(word) for word in "a0 a0 b b c c a0".split()]])
    >>> for allowed in task.allowed(tokens)[0]:
    ...     print(*(word for word, may in zip(task.words, allowed, strict=True) if may))
    a0 b
    a0 b
    b
    c
    c
    a0
    """

    name = "counter-3"
    stages = 3


class Automaton(NamedTuple):
    """A deterministic automaton over 0 and 1 that begins in state 0."""

    words: str
    """What is in the language."""
    moves: tuple[tuple[int, int], ...]
    """By state: the states after 0 and after 1; −1 where no word of the language begins so."""
    accepting: tuple[int, ...]


TOMITA = (
    Automaton("1*, ones alone", ((-1, 0),), (0,)),
    Automaton("(10)*, pairs of a one and a zero", ((-1, 1), (0, -1)), (0,)),
    Automaton(
        "no odd number of zeros right after an odd number of ones",
        ((0, 1), (2, 0), (3, -1), (2, 1)),
        (0, 1, 3),
    ),
    Automaton("no 000 anywhere", ((1, 0), (2, 0), (-1, 0)), (0, 1, 2)),
    Automaton("even numbers of zeros and of ones", ((1, 2), (0, 3), (3, 0), (2, 1)), (0,)),
    Automaton("as many zeros as ones, modulo 3", ((1, 2), (2, 0), (0, 1)), (0,)),
    Automaton("0*1*0*1*", ((0, 1), (2, 1), (2, 3), (-1, 3)), (0, 1, 2, 3)),
)
"""Tomita's languages 1 to 7 (1982)."""


class _TomitaTask(_Language):
    """A language of Tomita; `.` may come wherever the word so far is in it.

    >>> task = SequenceTask.named("tomita-2")  # (10)*
    >>> for allowed in task.allowed(torch.tensor([[1, 0, 2, 1]]))[0]:  # 1 0 . 1
    ...     print(*(word for word, may in zip(task.words, allowed, strict=True) if may))
    0
    1 .
    1 .
    """

    words = ("0", "1", ".")
    vocab = len(words)
    automaton: ClassVar[Automaton]

    def __init__(self, vocab: int | None = None) -> None:
        super().__init__(vocab)
        moves, accepting = self.automaton.moves, self.automaton.accepting
        here = [state if state in accepting else -1 for state in range(len(moves))]
        self._moves = torch.tensor([[*row, same] for row, same in zip(moves, here, strict=True)])

    def begin(self, n: int) -> State:
        return (torch.zeros(n, dtype=torch.long),)

    def options(self, state: State) -> Tensor:
        return self._moves[state[0]] >= 0

    def after(self, state: State, token: Tensor) -> State:
        return (self._moves[state[0], token],)


for _number, _automaton in enumerate(TOMITA, start=1):
    type(
        f"Tomita{_number}Task",
        (_TomitaTask,),
        {
            "name": f"tomita-{_number}",
            "automaton": _automaton,
            "__doc__": f"Tomita's language {_number}: {_automaton.words}.",
            "__module__": __name__,
        },
    )
