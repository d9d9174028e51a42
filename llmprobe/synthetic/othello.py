"""Othello, thousands of games at once: random games and legal moves.

A board is two numbers of 64 bits, the mover's disks and the opponent's; square `row * 8 + column`
is that bit, a1 the lowest. A game is its moves as squares, -1 behind its end. A player without a
move passes, which is no move: the list says where disks went, as in the data of OthelloGPT.

    for moves in random_games(1_000_000, seed=0):  # (up to 8192, 60) int8
        legal = legal_moves(moves)  # (up to 8192, 60) bitboards, before each move
        allowed = as_squares(legal)  # (up to 8192, 60, 64) booleans

`replay` gives the boards themselves, move by move.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmprobe.base.seeds import numpy_generator

Boards = NDArray[np.uint64]
Moves = NDArray[np.int8]
Shift = Callable[..., Boards]

MAX_MOVES = 60
SQUARES = [f"{column}{row}" for row in range(1, 9) for column in "abcdefgh"]
"""Names of the squares: square 19 is d3."""
BLOCK = 8192
"""Games that share a stream of random numbers, and are played together: so many fill a core's
cache. Another number would give other games."""

BLACK, WHITE = 1 << 28 | 1 << 35, 1 << 27 | 1 << 36
_STEPS = np.array([[1], [7], [8], [9]], np.uint64)
_TWICE = 2 * _STEPS
_INNER = np.array([[0x7E7E7E7E7E7E7E7E if step != 8 else 2**64 - 1] for step in (1, 7, 8, 9)], "u8")
"""Where lines may run: a step that changes the column must not continue in the next row."""
_BYTES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_PLACES = np.zeros((256, 8), np.uint8)
"""Where the k-th set bit of a byte is, at [byte, k]."""
for _byte in range(256):
    _bits = [bit for bit in range(8) if _byte >> bit & 1]
    _PLACES[_byte, : len(_bits)] = _bits


class _Lines:
    """Lines of opponent's disks that begin next to a disk of the mover, in all 8 directions.

    The 4 rows are the 4 step sizes; `up` has the lines toward higher squares, `down` the others.
    A fill reaches 6 squares, the longest line, in 1 + 1 + 2 + 2 steps (after Kogge and Stone).
    """

    def __init__(self, own: Boards, opponent: Boards) -> None:
        shape = (4, len(own))
        self.up, self.down = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
        self._spare, self._pairs = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
        self._through = np.empty(shape, np.uint64)
        self.find(own, opponent)

    def find(self, own: Boards, opponent: Boards) -> None:
        """Lines on these boards, and in `legal` the empty squares where they end."""
        through, pairs = self._through, self._pairs
        np.bitwise_and(opponent, _INNER, out=through)
        for lines, shift in ((self.up, np.left_shift), (self.down, np.right_shift)):
            shift(own, _STEPS, out=lines)
            self._fill(lines, through, shift)
        ends = np.left_shift(self.up, _STEPS, out=self._spare)
        ends |= np.right_shift(self.down, _STEPS, out=pairs)
        self.legal: Boards = _any(ends) & ~(own | opponent)

    def flips(self, move: Boards) -> Boards:
        """Disks that a move flips: the lines back from its square all end at an own disk."""
        found = np.zeros_like(move)
        flips = self._through
        for lines, shift in ((self.up, np.right_shift), (self.down, np.left_shift)):
            shift(move, _STEPS, out=flips)
            self._fill(flips, lines, shift)
            found |= _any(flips)
        return found

    def replace(self, index: NDArray[np.intp], other: "_Lines") -> None:
        self.up[:, index], self.down[:, index] = other.up, other.down
        self.legal[index] = other.legal

    def _fill(self, lines: Boards, through: Boards, shift: Shift) -> None:
        spare, pairs = self._spare, self._pairs
        lines &= through
        shift(through, _STEPS, out=pairs)
        pairs &= through
        for step, passable in ((_STEPS, through), (_TWICE, pairs), (_TWICE, pairs)):
            shift(lines, step, out=spare)
            spare &= passable
            lines |= spare


def _any(rows: Boards) -> Boards:
    return rows[0] | rows[1] | rows[2] | rows[3]


class Games:
    """Games in progress: the disks of the player to move, of the opponent, and whether Black moves.

    Who has no move has passed already; a game without a legal move is over.
    """

    def __init__(self, own: Boards, opponent: Boards, black: NDArray[np.bool_]) -> None:
        if both := np.bitwise_or.reduce(own & opponent):
            raise ValueError(f"board: both black and white: {_names(both)}")
        self.own, self.opponent, self.black = own.copy(), opponent.copy(), black.copy()
        self._lines = _Lines(own, opponent)
        self._pass()

    @classmethod
    def start(cls, n: int) -> "Games":
        own, opponent = np.full(n, BLACK, np.uint64), np.full(n, WHITE, np.uint64)
        return cls(own, opponent, np.ones(n, np.bool_))

    @property
    def legal(self) -> Boards:
        """Bitboards of the squares where the player to move may put a disk."""
        return self._lines.legal

    def play(self, move: Boards) -> None:
        """Make moves of one bit each, which must be legal; games with none stay as they are."""
        flips = self._lines.flips(move)
        self.own |= flips
        self.own |= move
        self.opponent ^= flips
        self.own, self.opponent = self.opponent, self.own
        np.logical_not(self.black, out=self.black)
        self._turn(np.flatnonzero(move == 0))
        self._lines.find(self.own, self.opponent)
        self._pass()

    def _pass(self) -> None:
        stuck = np.flatnonzero(self.legal == 0)
        if len(stuck):
            other = _Lines(self.opponent[stuck], self.own[stuck])
            self._lines.replace(stuck, other)
            self._turn(stuck[other.legal != 0])

    def _turn(self, index: NDArray[np.intp]) -> None:
        if len(index):
            self.own[index], self.opponent[index] = self.opponent[index], self.own[index]
            self.black[index] = ~self.black[index]


def random_games(
    n: int, seed: int, *, first: int = 0, chunk: int = BLOCK, threads: int = 1
) -> Iterator[Moves]:
    """Games `first` to `first + n` of a seed, every legal move equally likely: (chunk, 60) each.

    A game depends on the seed and its number alone, not on how many are asked for, how they are
    cut, or how many threads play them. At most a chunk and two blocks a thread are in memory.
    """
    least = {"n": (n, 1), "first": (first, 0), "chunk": (chunk, 1), "threads": (threads, 1)}
    for name, (value, low) in (least | {"seed": (seed, 0)}).items():
        if value < low:
            raise ValueError(f"{name}: got {value}, accepted: {low} or more")
    return _cut(_blocks(n, seed, first, threads), chunk)


def _blocks(n: int, seed: int, first: int, threads: int) -> Iterator[Moves]:
    ahead: deque[Future[Moves]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for block in range(first // BLOCK, (first + n - 1) // BLOCK + 1):
            low, high = (max(0, min(BLOCK, x - block * BLOCK)) for x in (first, first + n))
            ahead.append(pool.submit(_play_block, seed, block, low, high))
            if len(ahead) == 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _play_block(seed: int, block: int, low: int, high: int) -> Moves:
    generator = numpy_generator(seed, "games", block)
    games = Games.start(high - low)
    moves = np.empty((MAX_MOVES, high - low), np.int8)
    for number in range(MAX_MOVES):
        draws = generator.integers(2**32, size=BLOCK, dtype=np.uint32)[low:high]
        squares = _choose(games.legal, draws)
        over = games.legal == 0
        moves[number] = squares
        moves[number, over] = -1
        games.play((~over).astype(np.uint64) << squares)
    return np.ascontiguousarray(moves.T)


def _choose(boards: Boards, draws: NDArray[np.uint32]) -> Boards:
    """One of a board's set bits each, all equally likely but for one part in 2^26."""
    before = np.bitwise_count(boards.view(np.uint8)).view(np.uint64) * _BYTES
    # Byte j of `before` now counts the bits of bytes 0 to j, the highest byte all of them.
    wanted = before >> 56
    wanted *= draws
    wanted >>= 32
    # A byte that is not above the wanted number keeps its high bit; so many bytes lie before.
    below = wanted * _BYTES
    below |= _HIGH
    below -= before
    below &= _HIGH
    shift = np.bitwise_count(below).astype(np.uint64)
    shift <<= 3
    wanted -= ((before << 8) >> shift) & 255
    byte = (boards >> shift) & 255
    shift += _PLACES.take((byte << 3 | wanted).view(np.int64), mode="clip")
    return shift


def _cut(blocks: Iterator[Moves], chunk: int) -> Iterator[Moves]:
    held: list[Moves] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= chunk:
            whole = np.concatenate(held)
            full = len(whole) // chunk * chunk
            yield from np.split(whole[:full], full // chunk)
            held = [whole[full:]]
    if sum(map(len, held)):
        yield np.concatenate(held)


def replay(moves: ArrayLike) -> Iterator[Games]:
    """The games before each move and after the last; it is one object that moves on.

    Moves are (n, up to 60) squares. A ValueError tells the first illegal one.
    """
    checked = _checked(moves)
    games = Games.start(len(checked))
    for number, squares in enumerate(checked.T, start=1):
        yield games
        move = (squares >= 0).astype(np.uint64) << np.maximum(squares, 0).astype(np.uint64)
        for game in np.flatnonzero(move & ~games.legal):
            legal = _names(games.legal[game]) or "none, the game is over"
            got = f"game {game}, move {number}: got {SQUARES[squares[game]]}"
            raise ValueError(f"{got}, legal: {legal}")
        games.play(move)
    yield games


def legal_moves(moves: ArrayLike) -> Boards:
    """Bitboards of the legal moves before each move of (n, up to 60) games, in the same shape.

    The first -1 has what would be legal there, no bit if the game is over; later ones have none.
    """
    checked = _checked(moves)
    legal = np.stack([games.legal for games in replay(checked)], axis=1)[:, :-1]
    legal[:, 1:][checked[:, :-1] < 0] = 0
    return legal


def as_squares(boards: ArrayLike) -> NDArray[np.bool_]:
    """Bitboards as booleans, one per square: (...) to (..., 64)."""
    by_byte = np.asarray(boards, "<u8")[..., None].view(np.uint8)
    return np.unpackbits(by_byte, axis=-1, bitorder="little").view(np.bool_)


def perft(depth: int) -> int:
    """Lines of play from the start that are so many plies long, or end before; a pass is a ply."""
    if depth < 0:
        raise ValueError(f"depth: got {depth}, accepted: 0 or more")
    return _count(np.array([BLACK], np.uint64), np.array([WHITE], np.uint64), depth)


def _count(own: Boards, opponent: Boards, depth: int) -> int:
    if depth == 0:
        return len(own)
    legal = _Lines(own, opponent).legal
    stuck = legal == 0
    if depth == 1:
        return int(np.bitwise_count(legal).sum(dtype=np.int64) + stuck.sum())
    over = stuck.copy()
    over[stuck] = _Lines(opponent[stuck], own[stuck]).legal == 0
    index, squares = np.nonzero(as_squares(legal))
    move = np.uint64(1) << squares.astype(np.uint64)
    # A pass is a move without a square.
    index = np.concatenate([index, np.flatnonzero(stuck & ~over)])
    move = np.concatenate([move, np.zeros(len(index) - len(move), np.uint64)])
    flips = _Lines(own[index], opponent[index]).flips(move)
    own, opponent = opponent[index] ^ flips, own[index] | flips | move
    parts = (slice(first, first + BLOCK) for first in range(0, len(own), BLOCK))
    return int(over.sum()) + sum(_count(own[part], opponent[part], depth - 1) for part in parts)


def _names(board: int) -> str:
    return ", ".join(SQUARES[square] for square in np.flatnonzero(as_squares(board)))


def _checked(moves: ArrayLike) -> Moves:
    """Games as an array, if they can be ones."""
    given = np.asarray(moves)
    if given.ndim != 2 or given.shape[1] > MAX_MOVES or given.dtype.kind not in "iu":
        shape = f"{given.dtype} of shape {given.shape}"
        raise ValueError(f"moves: got {shape}, accepted: integers, (games, up to {MAX_MOVES})")
    good = (given >= -1) & (given < 64)
    good[:, 1:] &= (given[:, :-1] >= 0) | (given[:, 1:] < 0)
    for game, number in np.argwhere(~good):
        got = f"game {game}, move {number + 1}: got {given[game, number]}"
        raise ValueError(f"{got}, accepted: squares 0 to 63, then -1 to the end")
    return given.astype(np.int8)
