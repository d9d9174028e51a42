"""What playing thousands of Othello games at once gains over one game after another.

    python benchmarks/games.py --games 65536 --repeats 5

The plain game is what one writes first: a list of 64 squares, and from every empty square a walk in
8 directions. Games of the engine must be legal by the plain game, move by move; then the engine
must play at least 300 times as many in a second. Seconds are of the clock and of the processor: the
second stays honest on a machine that has other work.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

from measure import alternate

from llmprobe.synthetic.othello import BLOCK, random_games

SPEEDUP = 300.0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=8 * BLOCK)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    illegal = count_illegal(N_CHECKED)
    generator = random.Random(0)
    counts = {"plain": N_PLAIN, "engine": arguments.games, "engine, 2 threads": arguments.games}
    work: dict[str, Callable[[], None]] = {
        "plain": lambda: play_plain(N_PLAIN, generator),
        "engine": lambda: play_engine(arguments.games, 1),
        "engine, 2 threads": lambda: play_engine(arguments.games, 2),
    }
    processor: dict[str, list[float]] = {name: [] for name in work}

    def timed(name: str) -> Callable[[], None]:
        def run() -> None:
            start = time.process_time()
            work[name]()
            processor[name].append(time.process_time() - start)

        return run

    timing = alternate({name: timed(name) for name in work}, rounds=arguments.repeats)
    seconds = {name: statistics.median(times[1:]) for name, times in processor.items()}
    for name, n in counts.items():
        rate = f"{n / timing[name].median:9,.0f} games a second (best {n / timing[name].low:,.0f})"
        print(f"{name:<20}  {rate}, {n / seconds[name]:,.0f} a second of the processor")
    ratio = counts["engine"] / seconds["engine"] / (N_PLAIN / seconds["plain"])
    print(f"illegal games         {illegal:9} of {N_CHECKED}    (limit 0)")
    print(f"times as fast         {ratio:9,.0f} by the processor    (at least {SPEEDUP:.0f})")
    raise SystemExit(ratio < SPEEDUP or illegal > 0)


if __name__ == "__main__":
    main()
