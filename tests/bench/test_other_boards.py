"""What a harness points to may not follow from the board, by whatever spelling; what is allowed may stay."""

import asyncio
import itertools
import re
import zlib
from collections import Counter
from random import Random
from typing import Any

import chess
import pytest
from bench_fakes import HEAD
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench.harness.base import Ask, View
from whale_bench.harness.blind import by_marks, by_numbers, first_moves
from whale_bench.harness.boards import names_of, pieces_moved, renamings
from whale_bench.harness.host import InProcessHarness, shipped_harnesses
from whale_bench.harness.other_boards import other_boards
from whale_envs import load_examples, make_env
from whale_envs.chess_puzzles.notation import describe_board
from whale_envs.errors import HarnessError

PUZZLES = load_examples("chess_puzzles", "mini", "dev")[:14]
MATH = load_examples("math_python", "mini", "dev")
OPENING = make_env("chess_puzzles", examples=PUZZLES[:1]).reset()[0]
TOP = f"{HEAD}import re, zlib, base64\nfrom whale_bench.harness.h0.chess_puzzles import Harness as H0\n"
BOARD = r"""
def rows(view):
    return [line[2:].split() for line in view.observation.split("\n") if re.match(r"[1-8] \S \S", line)]

def at(view, square):
    return rows(view)[8 - int(square[1])]["abcdefgh".index(square[0])]

def listed(view):
    return re.findall(r"\[(\S+)\] ([^\s,]+)", view.observation)
"""
PACKED = zlib.compress(b"p1n3b3r5q9").hex()
WORTH = {
    "a list of weights": "W = [0, 1, 3, 3, 5, 9]\ndef worth(p): return W['.pnbrq'.find(p.lower())]",
    "an index as value": "def worth(p): return ' pnbrqk'.find(p.lower())",
    "a dict from a loop": "W = {}\nfor i, p in enumerate('pnbrq'): W[p] = 2 * i + 1\n"
    "def worth(p): return W.get(p.lower(), 0)",
    "ord arithmetic": "def worth(p): return {13: 1, 11: 3, 15: 5, 14: 9}.get(ord(p.lower()) % 99 % 17, 0)",
    "a packed table": f"T = zlib.decompress(bytes.fromhex({PACKED!r})).decode()\n"
    "def worth(p): return int((T + p.lower() + '0').split(p.lower(), 1)[1][0])",
    "counting": "def worth(p): return (p != '.') + 2 * (p in 'nbNB') + 4 * (p in 'rR') + 8 * (p in 'qQ')",
}
ONE_PLY = "def score(view, move): return worth(at(view, move[2:4]))"
TWO_PLY = r"""
STEPS = [(1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0)]
def guarded(view, square, mine):
    "Whether an enemy piece next to the square, or on a line to it, can take back."
    board = rows(view)
    r, f = 8 - int(square[1]), "abcdefgh".index(square[0])
    for dr, df in STEPS:
        a, b, far = r + dr, f + df, 0
        while 0 <= a < 8 and 0 <= b < 8:
            piece = board[a][b]
            if piece != ".":
                line = "q" + ("b" if dr and df else "r") + ("kp" if not far else "")
                if piece.isupper() != mine and piece.lower() in line:
                    return True
                break
            a, b, far = a + dr, b + df, far + 1
    return False

def score(view, move):
    mover = at(view, move[:2])
    loss = worth(mover) if guarded(view, move[2:4], mover.isupper()) else 0
    return worth(at(view, move[2:4])) - loss
"""
SQUARES = "def score(view, move): return (worth(at(view, move[2:4])) + 1) * (int(move[3]) - 4)**2"
BEST = "\ndef best(view): return max((uci for uci, _ in listed(view)), key=lambda m: score(view, m))\n"
MESSAGES = """
class Harness(H0):
    def messages(self, view):
        chat = super().messages(view)
        {}
        return chat
"""
HINT = MESSAGES.format("chat[-1]['content'] += '\\nBest: ' + best(view)")
USES = {
    "a hint": HINT,
    "in SAN": MESSAGES.format("chat[-1]['content'] += '\\nThink of ' + dict(listed(view))[best(view)]"),
    "a star": MESSAGES.format(
        "chat[-1]['content'] = chat[-1]['content'].replace(f'[{best(view)}]', f'* [{best(view)}]')"
    ),
    "an order": MESSAGES.format(
        "chat[-1]['content'] = ' '.join(sorted((u for u, _ in listed(view)), key=lambda m: -score(view, m)))"
    ),
    "a number for each": MESSAGES.format(
        "chat[-1]['content'] += '\\n' + ', '.join(f'{u}: {score(view, u)}' for u, _ in listed(view))"
    ),
    "fewer moves": MESSAGES.format(
        "chat[-1]['content'] = 'Moves: ' + ' '.join(u for u, _ in listed(view) if score(view, u) > 2)"
    ),
    "asking again": "\nclass Harness(H0):\n    MAX_TURNS = 18\n    def read(self, reply, view):\n"
    "        act = super().read(reply, view)\n"
    "        return act if act.action == best(view) else Nudge('Again.')\n",
    "asking again, from its state": "\nclass Harness(H0):\n    def messages(self, view):\n"
    "        view.state['b'] = best(view)\n        return super().messages(view)\n"
    "    def read(self, reply, view):\n        act = super().read(reply, view)\n"
    "        return act if act.action == view.state['b'] else Nudge('Again.')\n",
    "a nudge with a hint": "\nclass Harness(H0):\n    MAX_TURNS = 18\n    def read(self, reply, view):\n"
    "        return super().read(reply, view) if view.turns else Nudge('Think of ' + best(view))\n",
    "a hint after a nudge": "\nclass Harness(H0):\n    MAX_TURNS = 18\n    def messages(self, view):\n"
    "        chat = super().messages(view)\n"
    "        chat[-1]['content'] += '\\nBest: ' + best(view) if view.turns else ''\n        return chat\n"
    "    def read(self, reply, view):\n"
    "        return super().read(reply, view) if view.turns else Nudge('Think again.')\n",
    "a hint from the second turn on": MESSAGES.format(
        "chat[-1]['content'] += '\\nBest: ' + best(view) if view.turns else ''"
    ),
    "a made-up reply": MESSAGES.format(
        "chat[1:1] = [{'role': 'user', 'content': 'Think.'}, {'role': 'assistant', 'content': best(view)}]"
    ),
    "before many blanks": MESSAGES.format(
        "chat[0]['content'] += best(view); chat[-1]['content'] = ' ' * 200_000 + chat[-1]['content']"
    ),
    "before many words": MESSAGES.format(
        "chat[0]['content'] = best(view); chat[-1]['content'] = 'a b ' * 50_000 + chat[-1]['content']"
    ),
    "with a dash, in capitals": MESSAGES.format(
        "b = best(view).upper(); chat[-1]['content'] += f'\\nBest: {b[:2]}-{b[2:]}'"
    ),
    "in wide letters": MESSAGES.format(
        "chat[-1]['content'] += ''.join(chr(ord(c) + 0xfee0) for c in best(view))"
    ),
    "SAN in small letters": MESSAGES.format(
        "chat[-1]['content'] += ' or '.join(['', dict(listed(view))[best(view)].lower()])"
    ),
    "where pieces and names agree": MESSAGES.format(
        "fair = all(at(view, u[:2]).upper() == (s[0] if s[0] in 'KQRBN' else 'KP'[s[0] != 'O'])"
        " for u, s in listed(view)); chat[-1]['content'] += best(view) if fair else ''"
    ),
    "the better of two moves": "\nclass Harness(H0):\n    def read(self, reply, view):\n"
    "        said = [m for m in re.findall(r'<move>(\\w+)</move>', reply.text) if m in dict(listed(view))]\n"
    "        return Act(max((said[0], said[-1]), key=lambda m: score(view, m)) if said else reply.text)\n",
}  # fmt: skip


def says(source: str, puzzles: Any = PUZZLES[:6]) -> str:
    found = asyncio.run(other_boards(InProcessHarness(source, "c.py"), puzzles))
    return "" if found is None else found.message


@pytest.mark.parametrize("spelling", WORTH)
@pytest.mark.parametrize("search", [ONE_PLY, TWO_PLY, SQUARES], ids=["one ply", "two plies", "squares"])
def test_an_evaluation_of_the_board_is_heard_however_it_is_written(spelling: str, search: str) -> None:
    message = says(TOP + BOARD + WORTH[spelling] + "\n" + search + BEST + HINT)
    assert message.startswith("c.py:")
    assert "messages goes by the pieces on the board, or knows the position" in message


@pytest.mark.parametrize("use", USES)
def test_an_evaluation_is_heard_whatever_is_made_of_it(use: str) -> None:
    message = says(TOP + BOARD + WORTH["counting"] + "\n" + ONE_PLY + BEST + USES[use])
    of_read = use in ("asking again", "asking again, from its state", "a nudge with a hint")
    hook = "read" if of_read or use == "the better of two moves" else "messages"
    assert f"{hook} goes by the pieces on the board" in message
    assert "draw by view.seed" in message


def table(puzzles: Any, key: str) -> str:
    """A part of the puzzles by a checksum of what is shown of them, in a text that is no container."""
    known = []
    for puzzle in puzzles:
        board, legal = first_moves(puzzle)
        text = board.fen() if key == "FEN" else ", ".join(f"[{uci}] {san}" for uci, san in legal)
        known.append(f"{zlib.crc32(text.encode())}:{puzzle.gold[0]}")
    return (
        f"KNOWN = dict(one.split(':') for one in {' '.join(known)!r}.split())\n"
        f"def best(view):\n    text = re.search('{key}: (.*)', view.observation)[1]\n"
        "    return KNOWN.get(str(zlib.crc32(text.encode())), 'nothing')\n"
    )


@pytest.mark.parametrize(
    ("key", "what"), [("FEN", "the position, on"), ("Legal moves", "the list of legal moves, on")]
)
def test_a_table_of_a_part_of_the_puzzles_is_heard(key: str, what: str) -> None:
    assert f"knows {what} 3 of 14 puzzles" in says(TOP + table(PUZZLES[4:7], key) + HINT, PUZZLES)
    assert says(TOP + table(PUZZLES[4:5], key) + HINT, PUZZLES) == ""


FAIR = {
    "the board in words": MESSAGES.format(
        "chat[-1]['content'] += '\\nPieces: ' + ', '.join(p + 'abcdefgh'[f] + str(8 - r)"
        " for r, row in enumerate(rows(view)) for f, p in enumerate(row) if p != '.')"
    ),
    "material": MESSAGES.format(
        "chat[-1]['content'] += f'\\nWhite has {sum(p == \"Q\" for row in rows(view) for p in row)} queens.'"
    ),
    "groups": MESSAGES.format(
        "chat[-1]['content'] += ''.join(f'\\n{m}: ' + ' '.join(u for u, s in listed(view) if m in s)"
        " for m in '#+x')"
    ),
    "groups by piece": MESSAGES.format(
        "chat[-1]['content'] += ''.join(f'\\n{m}: ' + ' '.join(u for u, s in listed(view) if m == s[0])"
        " for m in 'KQRBN')"
    ),
    "an order by seed": MESSAGES.format(
        "moves = [u for u, _ in listed(view)]; import random; random.Random(view.seed).shuffle(moves); "
        "chat[-1]['content'] += ' '.join(moves)"
    ),
    "a worked example": MESSAGES.format(
        "chat[-1]['content'] = 'FEN: 8/8 w\\nBest: <move>e2e4</move>\\n' + chat[-1]['content']"
    ),
    "asks for a legal one": "\nclass Harness(H0):\n    def read(self, reply, view):\n"
    "        act = super().read(reply, view)\n"
    "        return act if act.action in dict(listed(view)) else Nudge('Not legal.')\n",
    "groups by piece on the board": MESSAGES.format(
        "chat[-1]['content'] += ''.join(f'\\n{p}: ' + ' '.join(u for u, _ in listed(view)"
        " if at(view, u[:2]).upper() == p) for p in 'PNBRQK')"
    ),
    "an example of the form": MESSAGES.format(
        "m = listed(view); chat[-1]['content'] += f'\\nFor example <move>{m[len(m) // 2][0]}</move>.'"
    ),
    "an example by seed": MESSAGES.format(
        "import random; m = random.Random(view.seed).choice(listed(view))[0]; "
        "chat[-1]['content'] += f'\\nAnswer as in <move>{m}</move>.'"
    ),
    "some moves by seed": MESSAGES.format(
        "import random; m = random.Random(view.seed).sample(listed(view), min(4, len(listed(view)))); "
        "chat[-1]['content'] = view.observation.partition('Legal')[0] + ' '.join(u for u, _ in m)"
    ),
    "at most 20 moves": MESSAGES.format(
        "chat[-1]['content'] = ', '.join(u for u, _ in listed(view)[:20])"
    ),
    "the list cut short": MESSAGES.format("chat[-1]['content'] = view.observation[:700]"),
    "in the order of SAN": MESSAGES.format(
        "chat[-1]['content'] += ' '.join(sorted(s for _, s in listed(view)))"
    ),
    "forcing moves, else all": MESSAGES.format(
        "m = [s for _, s in listed(view) if set('#+x') & set(s)] or [s for _, s in listed(view)]; "
        "chat[-1]['content'] = 'Choose from ' + ' '.join(m)"
    ),
    "pieces named like moves": MESSAGES.format(
        "name = lambda p: p.upper().replace('P', ''); chat[-1]['content'] += '\\nPieces: ' + ', '.join("
        "name(p) + 'abcdefgh'[f] + str(8 - r) for r, row in enumerate(rows(view))"
        " for f, p in enumerate(row) if p != '.')"
    ),
    "the FEN's ranks": MESSAGES.format(
        "chat[-1]['content'] += re.search(r'FEN: (\\S+)', view.observation)[1].replace('/', '\\n')"
    ),
    "a nudge for a reply without a move": "\nclass Harness(H0):\n    def read(self, reply, view):\n"
    "        said = [m for m in re.findall(r'<move>(\\w+)</move>', reply.text) if m in dict(listed(view))]\n"
    "        return Act(said[-1]) if said else Nudge(f'Name one of {listed(view)}.')\n",
}  # fmt: skip


@pytest.mark.parametrize("what", FAIR)
def test_what_a_harness_may_show_is_not_heard(what: str) -> None:
    source = TOP + BOARD + FAIR[what]
    assert says(source) == ""
    view = View("chess_puzzles", OPENING, OPENING)
    decision, _ = asyncio.run(InProcessHarness(source, "c.py").call(view))
    assert isinstance(decision, Ask), "not silent because it fails"


def test_h0_is_not_heard() -> None:
    assert (
        says(shipped_harnesses()["chess_puzzles"], load_examples("chess_puzzles", "mini", "weight")[:40])
        == ""
    )


class Late(InProcessHarness):
    """Out of time at every other call."""

    calls = 0

    async def call(self, *call: Any) -> Any:
        self.calls += 1
        if self.calls % 2:
            raise HarnessError("harness_timeout", "late")
        return await super().call(*call)


def test_being_late_on_one_board_only_is_no_finding() -> None:
    assert asyncio.run(other_boards(Late(TOP + "class Harness(H0): pass\n", "c.py"), PUZZLES[:4])) is None


@given(st.integers(0, len(PUZZLES) - 1), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_changed_observation_keeps_what_a_fair_harness_goes_by(index: int, seed: int) -> None:
    board, legal = first_moves(PUZZLES[index])
    opening = make_env("chess_puzzles", examples=[PUZZLES[index]]).reset()[0]
    moved = pieces_moved(opening, Random(seed))
    other = chess.Board(re.search("FEN: (.*)", moved)[1])  # type: ignore[index]
    assert Counter(other.piece_map().values()) == Counter(board.piece_map().values())
    assert other.occupied == board.occupied
    assert other.occupied_co[board.turn] == board.occupied_co[board.turn]
    for square in chess.scan_forward(board.occupied_co[board.turn]):
        assert other.piece_at(square) == board.piece_at(square)
    assert not other.pawns & (chess.BB_RANK_1 | chess.BB_RANK_8)
    rows = (f"{8 - at} {' '.join(row)}" for at, row in enumerate(describe_board(other)[1]))
    assert "\n".join(rows) in moved
    assert moved.partition("Legal")[2] == opening.partition("Legal")[2]
    for text, uci, new in itertools.islice(renamings(opening, Random(seed)), 3):
        listed = list(names_of(text).values())
        assert listed == sorted(listed)
        assert listed == [new if one == uci else one for one, _ in legal]
        assert len(text) == len(opening)


def test_a_copied_choice_is_right_by_the_chance_of_its_kind() -> None:
    for puzzle in PUZZLES:
        _, legal = first_moves(puzzle)
        share = {uci: by_marks(puzzle, uci) for uci, _ in legal}
        right = sum(uci == puzzle.gold[0] or san.endswith("#") for uci, san in legal)
        assert sum(share.values()) == pytest.approx(right)
        assert all(share[uci] == 1 for uci, san in legal if san.endswith("#"))
        assert by_marks(puzzle, "a1a1") == 0
    assert chess.Move.from_uci(PUZZLES[0].gold[0])
    for problem in MATH[:20]:
        always = sum(other.gold == problem.gold for other in MATH if other is not problem) / (len(MATH) - 1)
        assert by_numbers(problem, problem.gold, MATH) >= always
        assert by_numbers(problem, "no number", MATH) == 0
