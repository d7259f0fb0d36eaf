"""Chess positions for a page: where the pieces stand, the last move, who is in check, and that in words.

    positions = walk(rollout.opening, [(step.action, step.observation) for step in rollout.steps])
    positions[0].before.alt              # "White: king g1, …; last move Black Bc8-e6; White to move"

Moves are read as the environment's standard profile reads them; the opponent's replies are read off the
observations. What is shown is always a position that python-chess holds for possible: text that is no
position gives no board.

The drawing is the page's (`static/board.js`), with python-chess's pieces (by Colin M.L. Burnett).

Not covered: arrows, variations, other games.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import chess
import chess.svg
import msgspec

from whale_envs.chess_puzzles.notation import read_move

_FEN = re.compile(r"^FEN: ([^\n]{10,100})$", re.MULTILINE)
_LAST = re.compile(r"^Opponent's last move: ([a-h][1-8][a-h][1-8][qrbn]?)$", re.MULTILINE)
_STYLE = re.compile(r' style="([^"]*)"')
_SIDES = {chess.WHITE: "White", chess.BLACK: "Black"}


class Position(msgspec.Struct, frozen=True):
    """A board to draw."""

    placement: str
    """The first field of the FEN."""
    white_below: bool
    last: str = ""
    """The last move's two squares, e.g. "c8e6"; empty where there is none to mark."""
    check: str = ""
    """Square of a king in check."""
    alt: str = ""
    """All of this in words."""


class Shown(NamedTuple):
    """The boards of one action."""

    before: Position
    attempted: Position | None
    """After the agent's move, right or wrong; None where the action is no legal move."""
    after: Position
    """What the environment left: with the opponent's reply, where there was one."""


def walk(opening: str, steps: Iterable[tuple[str | None, str]]) -> list[Shown] | None:
    """The boards of a rollout.

    Args:
        opening: the first observation.
        steps: (action, observation) in order; a nudge's action is None.

    Returns:
        One entry per step, and one more, the position that was left at the end, thrice. None where
        the opening holds no position.
    """
    fen = _fen(opening)
    if fen is None:
        return None
    white_below = _parsed(fen).turn
    before = _position(fen, _last(opening), white_below)
    boards: list[Shown] = []
    for action, observation in steps:
        move = read_move(_parsed(fen), action).move if action is not None else None
        attempted = None
        if move is not None:
            moved, san = _moved(fen, move.uci())
            attempted = _position(moved, move.uci(), white_below, san)
        left, last = _fen(observation) or fen, _last(observation)
        after = attempted or before
        if move is not None and (reply := _reply(moved, left, last)) is not None:
            after = _position(left, last, white_below, reply)
        boards.append(Shown(before, attempted, after))
        if left != fen:
            same = after.placement == left.partition(" ")[0]
            fen, before = left, after if same else _position(left, last, white_below)
    return [*boards, Shown(before, None, before)]


def pieces() -> str:
    """The twelve pieces as SVG groups with ids such as "white-pawn", without style attributes."""
    groups = "".join(chess.svg.PIECES[symbol] for symbol in "PNBRQKpnbrqk")
    return _STYLE.sub(lambda style: _attributes(style[1]), groups)


def _attributes(style: str) -> str:
    """A style as presentation attributes, which a content security policy lets pass."""
    pairs = [pair.split(":", 1) for pair in style.split(";") if ":" in pair]
    return "".join(f' {name.strip()}="{value.strip()}"' for name, value in pairs)


def _fen(observation: str) -> str | None:
    """The FEN in an observation, if it is one."""
    found = _FEN.search(observation)
    if found is None:
        return None
    try:
        _parsed(found[1])
    except ValueError:
        return None
    return found[1]


def _last(observation: str) -> str:
    found = _LAST.search(observation)
    return found[1] if found else ""


@lru_cache(maxsize=4096)
def _parsed(fen: str) -> chess.Board:
    """The board of a FEN; shared, so nobody may move on it."""
    return chess.Board(fen)


@lru_cache(maxsize=4096)
def _moved(fen: str, uci: str) -> tuple[str, str]:
    """(FEN after a legal move, the move's SAN)."""
    board = _parsed(fen).copy(stack=False)
    move = chess.Move.from_uci(uci)
    san = board.san(move)
    board.push(move)
    return board.fen(), san


@lru_cache(maxsize=4096)
def _reply(moved: str, left: str, uci: str) -> str | None:
    """The SAN of the opponent's move `uci`, if it leads from one position to the other."""
    board = _parsed(moved)
    if not uci or not board.is_legal(chess.Move.from_uci(uci)):
        return None
    end, san = _moved(moved, uci)
    return san if end.partition(" ")[0] == left.partition(" ")[0] else None


@lru_cache(maxsize=8192)  # the samples of an example see the same positions
def _position(fen: str, last: str, white_below: bool, san: str = "") -> Position:
    board = _parsed(fen)
    king = board.king(board.turn) if board.is_check() else None
    return Position(
        placement=board.board_fen(),
        white_below=white_below,
        last=last[:4],
        check="" if king is None else chess.square_name(king),
        alt=_words(board, last, san),
    )


def _words(board: chess.Board, last: str, san: str) -> str:
    mover, turn = _SIDES[not board.turn], _SIDES[board.turn]
    parts = [f"{_SIDES[side]}: {_men(board, side)}" for side in (chess.WHITE, chess.BLACK)]
    if last:
        parts.append(f"last move {mover} {san or f'{last[:2]} to {last[2:4]}'}")
    if board.is_checkmate():
        parts.append(f"{turn} is checkmated")
    elif board.is_stalemate():
        parts.append(f"{turn} is stalemated")
    else:
        parts.append(f"{turn} to move" + (", in check" if board.is_check() else ""))
    return "; ".join(parts)


def _men(board: chess.Board, side: chess.Color) -> str:
    words = []
    for kind in (chess.KING, chess.QUEEN, chess.ROOK, chess.BISHOP, chess.KNIGHT, chess.PAWN):
        squares = [chess.square_name(square) for square in board.pieces(kind, side)]
        if squares:
            words.append(f"{chess.piece_name(kind)}{'s' if len(squares) > 1 else ''} {' '.join(squares)}")
    return ", ".join(words)
