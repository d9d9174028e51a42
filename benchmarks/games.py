"""Case f: what playing thousands of Othello games at once gains over one game after another.

The plain game is what one writes first: a list of 64 squares, and from every empty square a walk in
8 directions. Games of the engine must be legal by the plain game, move by move; then games a second
by the clock, and the gain over plain by the processor, which stays honest on a machine that has
other work.
"""

import random
import time
from collections.abc import Callable, Iterator

from measure import alternate
from report import Finding, Options, alone, compare

from llmprobe.synthetic.othello import BLOCK, random_games

SPEEDUP = 300.0
GAMES_A_SECOND = 100_000
N_PLAIN = 20
N_CHECKED = 200
STEPS = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if row or column]


class PlainGame:
    """A game on a list of squares, `.`, `X` (Black) and `O`."""

    def __init__(self) -> None:
        self.squares = ["."] * 64
        self.squares[28] = self.squares[35] = "X"
        self.squares[27] = self.squares[36] = "O"
        self.mover: str | None = "X"
        """None when the game is over."""
        self.n_passes = 0

    def flips(self, square: int, mover: str) -> list[int]:
        """Squares whose disks would turn."""
        found = []
        for down, right in STEPS if self.squares[square] == "." else ():
            line: list[int] = []
            row, column = square // 8 + down, square % 8 + right
            while 0 <= row < 8 and 0 <= column < 8 and self.squares[row * 8 + column] != ".":
                if self.squares[row * 8 + column] == mover:
                    found += line
                    break
                line.append(row * 8 + column)
                row, column = row + down, column + right
        return found

    def legal(self, mover: str | None) -> list[int]:
        return [square for square in range(64) if mover and self.flips(square, mover)]

    def play(self, square: int) -> None:
        mover = self.mover
        assert mover
        for turned in [*self.flips(square, mover), square]:
            self.squares[turned] = mover
        other = "O" if mover == "X" else "X"
        if self.legal(other):
            self.mover = other
        elif self.legal(mover):
            self.n_passes += 1
        else:
            self.mover = None


def play_plain(n: int, generator: random.Random) -> None:
    for _ in range(n):
        game = PlainGame()
        while legal := game.legal(game.mover):
            game.play(generator.choice(legal))


def play_engine(n: int, threads: int) -> None:
    for _ in random_games(n, seed=0, threads=threads):
        pass


def count_illegal(n: int) -> int:
    """Games of the engine that the plain game refuses, or that it would not end there."""
    illegal = 0
    for moves in next(random_games(n, seed=0, chunk=n)).tolist():
        game = PlainGame()
        played = [square for square in moves if square >= 0]
        while played and played[0] in game.legal(game.mover):
            game.play(played.pop(0))
        illegal += bool(played) or game.mover is not None
    return illegal


def run(options: Options) -> Iterator[Finding]:
    n_games = (32 if options.full else 8) * BLOCK
    generator = random.Random(0)
    work: dict[str, Callable[[], None]] = {
        "plain": lambda: play_plain(N_PLAIN, generator),
        "1 thread": lambda: play_engine(n_games, 1),
        "2 threads": lambda: play_engine(n_games, 2),
    }
    processor: dict[str, list[float]] = {name: [] for name in work}

    def timed(name: str) -> Callable[[], None]:
        def play() -> None:
            start = time.process_time()
            work[name]()
            processor[name].append(time.process_time() - start)

        return play

    illegal = count_illegal(N_CHECKED)
    timing = alternate({name: timed(name) for name in work}, rounds=9 if options.full else 5)
    best = min(("1 thread", "2 threads"), key=lambda name: timing[name].median)
    games = [n_games / seconds for seconds in timing[best].times]
    yield alone(
        "f",
        f"Othello games, of {GAMES_A_SECOND:,} a second",
        [rate / GAMES_A_SECOND for rate in games],
        target=1,
        note=f"{n_games / timing[best].median:,.0f} games a second with {best}",
    )
    yield compare(
        "f",
        "Othello: times as fast as a plain game, by the processor",
        [seconds / n_games for seconds in processor["1 thread"][1:]],  # the first warmed up
        [seconds / N_PLAIN for seconds in processor["plain"][1:]],
        unit="s",
        target=SPEEDUP,
        note=f"{illegal} of {N_CHECKED} games illegal by the plain one",
        equal=illegal == 0,
    )
