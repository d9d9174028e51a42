"""The engine plays as the rules on a list of squares do, and every legal move is equally likely."""

import importlib
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
from checkout import ROOT
from scipy.stats import chisquare

from llmprobe.synthetic.othello import (
    BLOCK,
    MAX_MOVES,
    SQUARES,
    Games,
    as_squares,
    legal_moves,
    perft,
    random_games,
    replay,
)

sys.path.insert(0, str(ROOT / "benchmarks"))
PlainGame = importlib.import_module("games").PlainGame

LEAVES = [1, 4, 12, 56, 244, 1396, 8200, 55092, 390216, 3005288, 24571284, 212258800]
"""Known for Othello, https://www.aartbik.com/strategy.php."""
SHORTEST = "e6f4e3f6g5d6e7f5c5"
"""A game of 9 moves: White has lost all disks."""


def read_moves(text):
    """The game of a text like `d3c5f6`, as (60,) squares."""
    squares = [SQUARES.index(text[i : i + 2]) for i in range(0, len(text), 2)]
    return np.array(squares + [-1] * (MAX_MOVES - len(squares)), np.int8)


def play(n, seed=0, **options):
    return np.concatenate(list(random_games(n, seed, **options)))


def plain(squares):
    """The plain game after these moves."""
    game = PlainGame()
    for square in squares:
        assert square in game.legal(game.mover)
        game.play(square)
    return game


@pytest.mark.parametrize("depth", range(7))
def test_so_many_lines_of_play_begin_at_the_start(depth):
    assert perft(depth) == LEAVES[depth]


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(7, 12))
def test_so_many_longer_lines_of_play_begin_at_the_start(depth):
    assert perft(depth) == LEAVES[depth]


@pytest.mark.thorough
def test_games_run_as_on_a_list_of_squares():
    moves = play(200)
    legal = as_squares(legal_moves(moves))
    slow = [PlainGame() for _ in moves]
    n_positions = 0
    for number, games in enumerate(replay(moves)):
        for index, game in enumerate(slow):
            mover, other = ("O", "X") if game.mover == "O" else ("X", "O")
            own, opponent = (as_squares(x[index]) for x in (games.own, games.opponent))
            expected = game.legal(game.mover)
            if game.mover:
                assert games.black[index] == (mover == "X")
                assert np.flatnonzero(own).tolist() == _where(game, mover)
                assert np.flatnonzero(opponent).tolist() == _where(game, other)
            else:
                disks = sorted(_where(game, "X") + _where(game, "O"))
                assert np.flatnonzero(own | opponent).tolist() == disks
            assert np.flatnonzero(as_squares(games.legal[index])).tolist() == expected
            if number < MAX_MOVES:
                assert np.flatnonzero(legal[index, number]).tolist() == expected
                assert (moves[index, number] >= 0) == bool(expected)
                if expected:
                    game.play(int(moves[index, number]))
            n_positions += 1
    assert n_positions == 200 * 61
    assert all(game.mover is None for game in slow)
    assert sum(game.n_passes for game in slow) > 50


def _where(game, color):
    return [square for square, disk in enumerate(game.squares) if disk == color]


def test_a_pass_is_no_move():
    n_passes = []
    for game in play(30):
        squares = [int(square) for square in game if square >= 0]
        movers = [bool(games.black[0]) for games in replay([squares])][: len(squares)]
        n_passes.append(sum(one == two for one, two in pairwise(movers)))
        assert n_passes[-1] == plain(squares).n_passes
    assert n_passes.count(0) > 0
    assert max(n_passes) > 1


def test_a_game_may_end_early():
    moves = read_moves(SHORTEST)
    assert plain(moves[:9].tolist()).mover is None
    *_, games = replay(moves[None])
    assert not games.legal[0]
    assert not games.opponent[0] or not games.own[0]
    legal = legal_moves(moves[None])[0]
    assert legal[:9].all()
    assert not legal[9:].any()
    lengths = (play(5000) >= 0).sum(axis=1)
    assert lengths.max() == 60
    assert lengths.min() < 55


def test_behind_the_beginning_of_a_game_stand_the_moves_that_may_follow():
    whole = play(50)
    part = whole.copy()
    part[:, 20:] = -1
    expected = legal_moves(whole)
    assert (legal_moves(part)[:, :21] == expected[:, :21]).all()
    assert not legal_moves(part)[:, 21:].any()
    assert (legal_moves(whole[:, :20]) == expected[:, :20]).all()
    assert legal_moves(whole[:0]).shape == (0, 60)


def test_a_game_without_a_move_stays_as_it_is():
    moves = play(50)
    moves[:, 20:] = -1
    whole = replay(moves)
    states = [(games.own.copy(), games.opponent.copy(), games.black.copy()) for games in whole]
    assert len(states) == 61
    for state in states[21:]:
        assert all((now == then).all() for now, then in zip(state, states[20], strict=True))
    *_, games = replay(play(50))
    over = games.own.copy(), games.opponent.copy(), games.black.copy()
    games.play(np.zeros(50, np.uint64))
    assert (games.own == over[0]).all()
    assert (games.opponent == over[1]).all()
    assert (games.black == over[2]).all()


def test_the_first_moves_are_equally_likely():
    moves = play(40_000, seed=3)
    for number, n_ways in ((1, 4), (2, 12), (3, 56)):
        begin, counts = np.unique(moves[:, :number], axis=0, return_counts=True)
        assert len(begin) == n_ways
        legal = np.bitwise_count(legal_moves(begin))
        expected = len(moves) / legal.prod(axis=1, dtype=float)
        assert chisquare(counts, expected).pvalue > 1e-3


def test_every_place_among_the_legal_moves_is_equally_likely():
    moves = play(BLOCK, seed=4)
    legal = legal_moves(moves)
    places = np.bitwise_count(legal & ((np.uint64(1) << moves.clip(0).astype(np.uint64)) - 1))
    n_legal = np.bitwise_count(legal)
    for n in range(2, 19):
        chosen = places[(n_legal == n) & (moves >= 0)]
        assert len(chosen) > 500
        counts = np.bincount(chosen, minlength=n)
        assert len(counts) == n
        assert chisquare(counts).pvalue > 1e-4


def test_a_game_depends_on_its_seed_and_number_alone():
    n = 2 * BLOCK + 100
    games = play(n)
    assert games.shape == (n, MAX_MOVES)
    assert games.dtype == np.int8
    assert (play(10) == games[:10]).all()
    assert (play(BLOCK + 1) == games[: BLOCK + 1]).all()
    assert (play(n, threads=3) == games).all()
    assert (play(200, first=BLOCK - 100) == games[BLOCK - 100 : BLOCK + 100]).all()
    assert len(np.unique(games, axis=0)) == n
    assert not (play(10, seed=1) == games[:10]).all(axis=1).any()


@pytest.mark.parametrize("chunk", [1000, BLOCK, BLOCK + 1, 10**6])
def test_chunks_are_as_large_as_asked_for(chunk):
    n = BLOCK + 2000
    sizes = [len(moves) for moves in random_games(n, seed=0, chunk=chunk)]
    assert sizes == [min(chunk, n - begin) for begin in range(0, n, chunk)]


def test_endless_games_are_played_only_as_they_are_taken():
    before = threading.active_count()
    stream = random_games(10**12, seed=0, threads=2)
    assert next(stream).shape == (BLOCK, MAX_MOVES)
    stream.close()
    assert threading.active_count() == before


def _symmetries():
    board = np.arange(64).reshape(8, 8)
    for turns in range(4):
        yield np.rot90(board, turns).ravel()
        yield np.rot90(board, turns)[::-1].ravel()


@pytest.mark.parametrize("image", list(_symmetries()))
def test_symmetries_map_games_to_games(image):
    moves = play(300)
    start = Games.start(300)
    games = start
    if image[28] not in (28, 35):
        # The start with its colors swapped: White begins, and the rules are the same.
        games = Games(start.opponent, start.own, ~start.black)
    mapped = np.where(moves >= 0, np.argsort(image)[moves], -1)
    legal = as_squares(legal_moves(moves))[:, :, image]
    for number, squares in enumerate(mapped.T):
        assert (as_squares(games.legal) == legal[:, number]).all()
        games.play((squares >= 0).astype(np.uint64) << squares.clip(0).astype(np.uint64))
    if games is start:
        assert (as_squares(legal_moves(mapped)) == legal).all()


def test_squares_are_named_row_by_row():
    assert SQUARES[0] == "a1"
    assert SQUARES[19] == "d3"
    assert SQUARES[63] == "h8"


def test_who_has_no_move_on_a_board_has_passed():
    white_to_move = Games(np.array([2], np.uint64), np.array([1], np.uint64), np.array([False]))
    assert white_to_move.black[0]  # only Black has a move: over b1 to c1
    assert np.flatnonzero(as_squares(white_to_move.legal[0])).tolist() == [2]


@pytest.mark.parametrize("function", [legal_moves, lambda moves: list(replay(moves))])
@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([read_moves("d3"), read_moves("d3d4")], "game 1, move 2: got d4, legal: c3, e3, c5"),
        ([read_moves(SHORTEST + "a1")], "game 0, move 10: got a1, legal: none, the game is over"),
        ([[19, 64]], "game 0, move 2: got 64, accepted: squares 0 to 63, then -1 to the end"),
        ([[-2, -1]], "game 0, move 1: got -2, accepted"),
        ([[19, -1], [-1, 19]], "game 1, move 2: got 19, accepted: squares 0 to 63, then -1"),
        ([19, 34], r"moves: got int64 of shape \(2,\), accepted: integers, \(games, up to 60\)"),
        (np.zeros((1, 61), int), r"moves: got int64 of shape \(1, 61\), accepted"),
        ([[1.0]], r"moves: got float64 of shape \(1, 1\), accepted"),
    ],
)
def test_moves_that_make_no_game_are_refused(function, moves, message):
    _refuses(lambda: function(moves), message)


def test_a_square_is_not_both_black_and_white():
    own, opponent = np.array([[5, 3], [8, 3]], np.uint64)
    _refuses(lambda: Games(own, opponent, np.ones(2, bool)), "board: both black and white: a1, b1$")


@pytest.mark.parametrize("name", ["n", "chunk", "threads", "seed", "first"])
def test_numbers_of_games_are_checked_at_once(name):
    options = {"n": 5, "seed": 0} | {name: -1}
    least = 0 if name in ("seed", "first") else 1
    _refuses(lambda: random_games(**options), f"{name}: got -1, accepted: {least} or more")
    _refuses(lambda: perft(-1), "depth: got -1, accepted: 0 or more")


def _refuses(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
