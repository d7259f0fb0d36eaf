"""How often a copied choice is right by chance: what a harness may give away without having looked.

    by_marks(puzzle, "d1d8")          # 0.5: of the two moves that give check and take nothing, one is right
    by_numbers(problem, "12", problems)     # 0.25: one of four numbers that stand in the problem

Moves may be grouped by the marks of their notation (check, capture, mate), so a move counts as drawn from
those with the same marks. A number counts as drawn from those of the problem; one that does not stand there,
such as that of a worked example, is right as often as it is the answer of the examples.

Not covered: what the order of moves or numbers says, which the same parrot under h0 shows.
"""

import re
from collections.abc import Sequence
from typing import Any

_MARKS = "#+x"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def by_marks(puzzle: Any, move: str) -> float:
    """Share of the right ones among the legal first moves with the marks of this one; 0 for no legal move."""
    _, legal = first_moves(puzzle)
    names = dict(legal)
    if move not in names:
        return 0.0
    same = [(uci, san) for uci, san in legal if _marks(san) == _marks(names[move])]
    right: float = sum(uci == puzzle.gold[0] or san.endswith("#") for uci, san in same)
    return right / len(same)


def by_numbers(problem: Any, said: str, problems: Sequence[Any]) -> float:
    """Chance that a number is right that was drawn from the problem, or said whatever the problem."""
    others = [one for one in problems if one.id != problem.id] or [problem]
    always: float = sum(one.gold == said for one in others) / len(others)
    shown = set(_NUMBER.findall(problem.problem))
    return max(always, (problem.gold in shown) / len(shown) if said in shown else 0.0)


def first_moves(puzzle: Any) -> "tuple[Any, list[tuple[str, str]]]":
    """The position that is shown first, and its legal moves as (UCI, SAN)."""
    import chess

    from whale_envs.chess_puzzles.notation import legal_moves

    board = chess.Board(puzzle.fen)
    board.push_uci(puzzle.trigger)
    return board, legal_moves(board)


def _marks(san: str) -> str:
    return "".join(mark for mark in _MARKS if mark in san)
