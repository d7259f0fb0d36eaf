"""Reads a chess move from text, and writes the legal moves of a position.

    >>> read_move(chess.Board(), "1. Nf3").move
    Move.from_uci('g1f3')
    >>> read_move(chess.Board(), "<think>e2e4?</think> I play [d2d4].").move
    Move.from_uci('d2d4')

Rules of reading (the standard profile; the paper's own rule is `strict_uci`):

* Text inside thinking tags is no answer (`whale_envs.text` lists the tags). An unclosed tag hides
  what follows it, and a closing tag that nothing opened hides what came before it.
* In order: the whole text, `<move>` tags, square brackets, bare UCI words. The first form that
  holds a move, a legal one or not, decides; two different moves in one form are none.
* UCI in any case, SAN, long algebraic, castling as O-O, 0-0, e1g1, Kg1 or e1h1 (king takes rook);
  move numbers, check marks, annotations, figurines, Unicode variants of ASCII, "e.p." and
  punctuation around the move are ignored. Bare words, outside tags and brackets, are UCI only.
* Lower-case UCI is read before SAN, and SAN before UCI in other cases: `b2c3` is a pawn's move and
  `B2c3` a bishop's, unless no bishop can make it.
* A promotion without a piece is to a queen. A null move is illegal. SAN that fits two pieces is
  illegal, never a guess.

Not covered: moves in words ("knight to f3"), descriptive notation, variants.
"""

import re
import unicodedata
from typing import Literal, NamedTuple

import chess

from whale_envs.text import strip_thinking

Kind = Literal["move", "illegal", "malformed"]


class Reading(NamedTuple):
    """What a text says: a legal move, a move that is not legal here, or no move."""

    kind: Kind
    move: chess.Move | None = None
    text: str = ""
    """The part that was read."""
    detail: str = ""


_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?\Z")
_LONG = re.compile(r"([a-hA-H][1-8])[-x:]?([a-hA-H][1-8])(?:[=/(]?([qrbnQRBN])\)?)?\Z")
_SAN = re.compile(r"(?:[NBKRQ]?[a-h]?[1-8]?[-x:]?[a-h][1-8](?:[=/(]?[qrbnQRBN]\)?)?|[Oo0](?:-[Oo0]){1,2})\Z")
_KING_CASTLES = re.compile(r"K(?:(e[18])-?)?([cg][18])\Z")
_NULL = re.compile(r"(?:0000|--|@@@@|[zZ]0|null|pass|([a-h][1-8])\1)\Z", re.IGNORECASE)
_TAG = re.compile(r"<move>([^<>]{0,40})</move>", re.IGNORECASE)
_BRACKET = re.compile(r"\[([^\[\]]{2,20})\]")
_BARE = re.compile(r"(?<![A-Za-z0-9])[a-h][1-8][a-h][1-8](?:[=/(]?[qrbn]\)?)?(?![A-Za-z0-9])", re.IGNORECASE)
_MOVE_NUMBER = re.compile(r"\d{1,3}\s{0,2}[.)]{1,3}\s{0,2}")
_SUFFIX = re.compile(  # the possessive ++ keeps it linear
    r"(?:\s{0,2}(?:[+#!?†‡±∓⩲⩱=∞□*.]|\$\d{1,3}|\(?e\.?\s?p(?:\.?\))?|check(?:mate)?|mate|ch))++\Z",
    re.IGNORECASE,
)
_RUNS = [("." * n, str(n)) for n in range(8, 0, -1)]
_FIGURINES = str.maketrans(
    "♔♕♖♗♘♚♛♜♝♞‐‑‒–—−×", "KQRBNKQRBN------x", "♙♟\ufe0e\ufe0f\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
)
_BIT, _NAME = chess.BB_SQUARES, chess.SQUARE_NAMES
_LETTER = ("", "", "N", "B", "R", "Q", "K")
_PROMOTION = ("", "", "n", "b", "r", "q", "")
_EDGES = " \t\r\n.,;:!?`'\"*_+#$~“”‘’«»"
_AMBIGUOUS = "two pieces can make this move; say which"
_STRICT = re.compile(r"(?:[a-h][1-8][a-h][1-8][qrbn]?|0000)\Z")


def strict_uci(text: str) -> str | None:
    """The paper's reading of an action: one lower-case UCI move (0000 is the null move), or nothing."""
    stripped = text.strip()
    return stripped if _STRICT.match(stripped) else None


def read_move(board: chess.Board, text: str) -> Reading:
    """Reads the move that `text` makes in `board`. Total; leaves the board as it was."""
    if _UCI.match(text):
        return _read_uci(board, text)
    answer = strip_thinking(text).strip()
    if len(answer) <= 60:
        reading = _read_notation(board, answer)
        if reading.kind != "malformed":
            return reading
    for pattern in (_TAG, _BRACKET, _BARE):
        found: dict[object, Reading] = {}
        for token in dict.fromkeys(pattern.findall(answer)):
            reading = _read_notation(board, token)
            if reading.kind != "malformed":
                found.setdefault(reading.move or reading.text.lower(), reading)
                if len(found) > 1:
                    return Reading("malformed", None, "", "more than one move was given")
        if found:
            return next(iter(found.values()))
    return Reading("malformed", None, "", "no move was found")


def _read_notation(board: chess.Board, text: str) -> Reading:
    token = _clean(text)
    if _UCI.match(token):
        return _read_uci(board, token)
    if _SAN.match(token):
        reading = _read_san(board, token)
        if reading.kind == "move" or reading.detail == _AMBIGUOUS or not _LONG.match(token):
            return reading
    if long := _LONG.match(token):
        start, end, piece = long.groups()
        return _read_uci(board, (start + end + (piece or "")).lower())
    if _NULL.match(token):
        return Reading("illegal", None, token, "passing is not a move")
    return Reading("malformed", None, token[:60], "this is no chess move")


def _clean(text: str) -> str:
    """The token without what stands around a move; never longer than a few times the text."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_FIGURINES))
    token = text.strip(_EDGES)
    if token[:1].isdigit() and not token.startswith("0"):
        token = _MOVE_NUMBER.sub("", token, count=1).strip(_EDGES)
    if token.startswith("(") and token.endswith(")"):
        token = token[1:-1].strip(_EDGES)
    token = _SUFFIX.sub("", token, count=1).strip(_EDGES)
    if len(token) > 2 and token[0] == "P" and token[1] in "abcdefgh":
        token = token[1:]
    return token


def _read_uci(board: chess.Board, uci: str) -> Reading:
    if uci[:2] == uci[2:4]:
        return Reading("illegal", None, uci, "a piece cannot stay where it is")
    for candidate in (uci, uci + "q") if len(uci) == 4 else (uci,):
        try:
            return Reading("move", board.parse_uci(candidate), uci)
        except ValueError:
            continue
    return Reading("illegal", None, uci, "this move is not legal here")


def _read_san(board: chess.Board, san: str) -> Reading:
    text = re.sub(r"[/(]", "=", san).replace(")", "").replace(":", "x")
    text = text.upper().replace("O", "0").replace("0", "O") if text[0] in "Oo0" else text
    for candidate in (text, text + "=Q"):
        try:
            return Reading("move", board.parse_san(candidate), san)
        except chess.AmbiguousMoveError:
            return Reading("illegal", None, san, _AMBIGUOUS)
        except ValueError:
            continue
    return _castling_as_king_move(board, san) or Reading("illegal", None, san, "this move is not legal here")


def _castling_as_king_move(board: chess.Board, san: str) -> Reading | None:
    """Kg1 and Ke1-g1 for O-O, which python-chess does not read."""
    written, king = _KING_CASTLES.match(san), board.king(board.turn)
    if not written or king is None or written[1] not in (None, _NAME[king]):
        return None
    reading = _read_uci(board, _NAME[king] + written[2])
    return reading if reading.move and board.is_castling(reading.move) else None


def legal_moves(board: chess.Board) -> list[tuple[str, str]]:
    """All legal moves as (UCI, SAN), sorted by UCI.

    Equal to `[(m.uci(), board.san(m)) for m in board.legal_moves]`, at a third of its cost: names
    are told apart in one pass, and only moves on a line with the enemy king are tried for check.
    """
    rivals: dict[int, int] = {}  # 8 * target + piece type -> squares that such a piece can come from
    moves: list[tuple[chess.Move, int]] = []
    last, piece = -1, 0
    for move in board.generate_legal_moves():
        start = move.from_square
        if start != last:
            last, piece = start, board.piece_type_at(start) or 0
        moves.append((move, piece))
        key = 8 * move.to_square + piece
        rivals[key] = rivals.get(key, 0) | _BIT[start]
    king = board.king(not board.turn)
    leave, direct = _check_lines(board, king) if king is not None else (0, (0,) * 7)
    named = []
    for move, piece in moves:
        start, target = move.from_square, move.to_square
        uci = _NAME[start] + _NAME[target]
        others = rivals[8 * target + piece] & ~_BIT[start]
        unusual = False  # the geometry of `direct` does not hold for these
        if piece == chess.PAWN:
            san, unusual = _pawn_san(board, move)
            uci += _PROMOTION[move.promotion or 0]
        elif piece == chess.KING and abs(target - start) == 2:
            san, unusual = "O-O" if target > start else "O-O-O", True
        else:
            capture = "x" if board.occupied & _BIT[target] else ""
            san = f"{_LETTER[piece]}{_tell_apart(start, others) if others else ''}{capture}{_NAME[target]}"
        if (
            unusual
            or _BIT[start] & leave
            or (
                _BIT[target] & direct[piece]
                and not chess.between(king or 0, target) & board.occupied & ~_BIT[start]
            )
        ):
            san += _check_mark(board, move)
        named.append((uci, san))
    named.sort()
    return named


def _pawn_san(board: chess.Board, move: chess.Move) -> tuple[str, bool]:
    """(SAN without check mark, whether the move is a promotion or en passant)."""
    target = move.to_square
    en_passant = (move.from_square - target) % 8 != 0 and not board.occupied & _BIT[target]
    capture = f"{_NAME[move.from_square][0]}x" if en_passant or board.occupied & _BIT[target] else ""
    if move.promotion:
        return f"{capture}{_NAME[target]}={_LETTER[move.promotion]}", True
    return capture + _NAME[target], en_passant


def _check_mark(board: chess.Board, move: chess.Move) -> str:
    board.push(move)
    mark = ("+" if any(board.generate_legal_moves()) else "#") if board.is_check() else ""
    board.pop()
    return mark


def _check_lines(board: chess.Board, king: chess.Square) -> tuple[int, tuple[int, ...]]:
    """Squares whose leaving may discover a check, and squares that may give one, by piece type."""
    ours, occupied = board.occupied_co[board.turn], board.occupied
    straight = chess.BB_RANK_ATTACKS[king][0] | chess.BB_FILE_ATTACKS[king][0]
    diagonal = chess.BB_DIAG_ATTACKS[king][0]
    snipers = ours & (straight & (board.rooks | board.queens) | diagonal & (board.bishops | board.queens))
    leave = 0
    for sniper in chess.scan_forward(snipers):
        between = chess.between(king, sniper) & occupied
        if between & (between - 1) == 0:
            leave |= between & ours
    pawn = chess.BB_PAWN_ATTACKS[not board.turn][king]
    return leave, (0, pawn, chess.BB_KNIGHT_ATTACKS[king], diagonal, straight, straight | diagonal, 0)


def _tell_apart(square: chess.Square, others: chess.Bitboard) -> str:
    file, rank = chess.square_file(square), chess.square_rank(square)
    same_file = others & chess.BB_FILES[file]
    same_rank = others & chess.BB_RANKS[rank]
    if not same_file:
        return chess.FILE_NAMES[file]
    return chess.RANK_NAMES[rank] if not same_rank else chess.SQUARE_NAMES[square]


def describe_board(board: chess.Board) -> tuple[str, list[str]]:
    """(FEN, eight rows of eight characters from the eighth rank down); FEN as `board.fen()`."""
    squares = ["."] * 64
    for pieces, letter in zip(
        (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings),
        "pnbrqk",
        strict=True,
    ):
        for square in chess.scan_forward(pieces & board.occupied_co[chess.BLACK]):
            squares[square ^ 56] = letter
        for square in chess.scan_forward(pieces & board.occupied_co[chess.WHITE]):
            squares[square ^ 56] = letter.upper()
    rows = ["".join(squares[i : i + 8]) for i in range(0, 64, 8)]
    placement = "/".join(rows)
    for dots, digit in _RUNS:
        placement = placement.replace(dots, digit)
    passant = _NAME[board.ep_square] if board.ep_square and board.has_legal_en_passant() else "-"
    side = "w" if board.turn else "b"
    clocks = f"{board.halfmove_clock} {board.fullmove_number}"
    return f"{placement} {side} {board.castling_xfen()} {passant} {clocks}", rows
