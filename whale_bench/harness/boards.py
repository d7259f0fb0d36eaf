"""Observations of Chess Puzzles, changed so that a fair harness points to the same moves (`other_boards.py`).

    pieces_moved(observation, rng)          # the opponent's pieces stand on each other's squares
    next(renamings(observation, rng))       # (observation, "e2e4", "e2e5"): one legal move is another

Both are text for text as long as before. Material, occupied squares, the moving side's pieces and the list of
moves stay what they are in the first; length, order, marks and pieces in the second.

Not covered: whether the position is possible; the opponent may stand in a check that nobody sees.
"""

import re
from collections.abc import Iterator
from random import Random

_FEN = re.compile(r"^FEN: (\S+) ([wb]) ", re.MULTILINE)
_ROW = re.compile(r"^([1-8])((?: [A-Za-z.]){8})$", re.MULTILINE)
_LISTED = re.compile(r"\[([a-h][1-8][a-h][1-8][qrbn]?)\] ([^\s,]+)")
_FILES = "abcdefgh"


def placement(text: str) -> str:
    """The pieces in the FEN of an observation; empty where it has none."""
    found = _FEN.search(text)
    return found[1] if found else ""


def names_of(text: str) -> dict[str, str]:
    """UCI by SAN of the legal moves that an observation lists."""
    return {san: uci for uci, san in _LISTED.findall(text)}


def pieces_moved(text: str, rng: Random) -> str:
    """The observation where the opponent's pieces, its king too, have changed squares."""
    found = _FEN.search(text)
    if found is None:
        return text
    rows = [re.sub(r"\d", lambda empty: "." * int(empty[0]), row) for row in found[1].split("/")]
    squares = list("".join(rows))
    theirs = [at for at, piece in enumerate(squares) if piece != "." and piece.isupper() == (found[2] == "b")]
    # Pawns stand on no first or last rank.
    inner = [at for at in theirs if 8 <= at < 56]
    pawns = [at for at in theirs if squares[at] in "pP"]
    for_pawns = set(rng.sample(inner, len(pawns)))
    others = [squares[at] for at in theirs if at not in pawns]
    rng.shuffle(others)
    pawn = squares[pawns[0]] if pawns else ""
    for at in theirs:
        squares[at] = pawn if at in for_pawns else others.pop()
    rows = ["".join(squares[at : at + 8]) for at in range(0, 64, 8)]
    fen = "/".join(re.sub(r"\.+", lambda run: str(len(run[0])), row) for row in rows)
    text = text.replace(f"FEN: {found[1]} ", f"FEN: {fen} ", 1)
    return _ROW.sub(lambda row: f"{row[1]} {' '.join(rows[8 - int(row[1])])}", text)


def renamings(text: str, rng: Random) -> Iterator[tuple[str, str, str]]:
    """The observation with one legal move written as another, of the same piece and marks, that comes at the
    same place in the list; with both moves. In random order, each move once.
    """
    listed = _LISTED.findall(text)
    for at in rng.sample(range(1, len(listed) - 1), max(0, len(listed) - 2)):
        uci, san = listed[at]
        others = [
            other
            for other in (f"{uci[:2]}{file}{rank}{uci[4:]}" for file in _FILES for rank in "12345678")
            if listed[at - 1][0] < other < listed[at + 1][0] and other != uci and other[:2] != other[2:4]
        ]
        if not others or uci[2:4] not in san:
            continue
        other = rng.choice(others)
        renamed = san.replace(uci[2:4], other[2:4])
        if renamed in names_of(text):
            continue
        yield text.replace(f"[{uci}] {san}", f"[{other}] {renamed}", 1), uci, other
