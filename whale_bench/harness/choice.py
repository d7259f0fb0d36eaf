r"""Which of several chess moves in a reply a harness may take: the model orders them, the harness does not.

    >>> seen = "FEN: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    >>> is_fair_choice("d2d4", ["e2e4, d2d4, g1f3"], seen)
    False
    >>> is_fair_choice("g1f3", ["e2e4, d2d4, g1f3"], seen)
    True
    >>> is_fair_choice("d2d4", ["e2e4? <move>d2d4</move> not g1f3"], seen)
    True

A model that names every legal move has said nothing, and a harness that then takes one of them plays. So
where a reply names several legal moves, the one that is played must be the first or the last of them, or
the first or the last within one of these, if any stands there:

- UCI moves, or moves in other notation;
- the last line that names a move;
- moves in `<move>` tags, in `<answer>` tags, in all other tags together;
- moves in square brackets, in `\boxed{}`, in bold;
- moves after a label, as in "Best move: e4".

Moves that are not legal in the position do not count, so the first legal one may be taken. A move counts
once for every mention, in whatever notation.

Not covered: which of these rules a harness goes by, and whether it goes by another on another example (the
listing parrots' work, `listing.py`); moves in words or figurines; domains other than Chess Puzzles, where a
reply's answer is read by the verifier.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from whale_bench.harness.provenance import stands_in

_FEN = re.compile(r"^FEN: (.+)$", re.MULTILINE)
_END = r"(?![A-Za-z0-9])"
_UCI = re.compile(rf"(?<![A-Za-z0-9])([a-h][1-8])-?([a-h][1-8])=?([qrbn]?){_END}", re.IGNORECASE)
_SAN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:O-O(?:-O)?|0-0(?:-0)?)|[KQRBN]?[a-h]?[1-8]?[x-]?[a-h][1-8](?:=?[QRBN])?)"
    r"(?![A-Za-z0-9]|-[O0])"
)
_TAGGED = re.compile(r"<(\w{1,20})>[^<>]{1,40}</\1>")
_MARKS = (
    re.compile(r"\[[^\[\]]{1,40}\]"),
    re.compile(r"\\boxed\{[^{}]{1,40}\}"),
    re.compile(r"\*\*[^*\n]{1,40}\*\*"),
    re.compile(r"\b(?:move|answer|choice|decision|play)s?(?: is)?\W{1,8}[\w=+-]{1,9}", re.IGNORECASE),
)
_NAMED = ("move", "answer")
"""Tags with a rule each; whatever else is in tags has one rule."""

_Mention = tuple[int, str, bool]
"""Where it begins, the move, whether it is written in UCI."""


def is_fair_choice(action: str, said: Sequence[str], observation: str) -> bool:
    """Whether `action`, if it is a move, follows from one of the texts by a rule that ignores what is good.

    Args:
        action: what the harness would do, which stands in what was said.
        said: the final text and the arguments of tool calls, as sampled.
        observation: the environment's, with the position.
    """
    texts = [text for text in said if stands_in(action, text)]
    if not texts or any(action.strip() == text.strip() for text in texts):
        return True
    if all(_names_one(text) for text in texts) or not (position := _FEN.search(observation)):
        return True
    import chess

    from whale_envs.chess_puzzles.notation import legal_moves, read_move

    board = chess.Board(position[1])
    move = read_move(board, action).move
    if move is None:
        return True  # no legal move: the environment refuses it
    names = _names(legal_moves(board))
    return any(_follows(move.uci(), text, names) for text in texts)


def _names_one(text: str) -> bool:
    """Whether there is one move in the text at most, whatever the position; a cheap look first."""
    words = [match[0] for pattern in (_UCI, _SAN) for match in pattern.finditer(text)]
    return len(set(words)) <= 1


def _names(legal: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """UCI by what a legal move may be called, without marks and dashes."""
    names = {_bare(san): uci for uci, san in legal}
    return {**names, **{uci: uci for uci, _ in legal}}


def _bare(san: str) -> str:
    return re.sub(r"[-+#x=]", "", san.replace("0", "O"))


def _follows(move: str, text: str, names: Mapping[str, str]) -> bool:
    mentions = sorted(_mentions(text, names))
    if len({found for _, found, _ in mentions}) < 2:
        return True
    return any(move in (group[0], group[-1]) for group in _groups(text, mentions) if group)


def _mentions(text: str, names: Mapping[str, str]) -> Iterator[_Mention]:
    """Every mention of a legal move."""
    taken = set()
    for match in _UCI.finditer(text):
        uci = "".join(match.groups()).lower()
        found = names.get(uci) or names.get(f"{uci}q")
        if found:
            taken.add(match.start())
            yield match.start(), found, True
    for match in _SAN.finditer(text):
        bare = _bare(match[0])
        found = names.get(bare) or names.get(f"{bare}Q")
        if found and match.start() not in taken:
            yield match.start(), found, False


def _groups(text: str, mentions: Sequence[_Mention]) -> Iterator[list[str]]:
    """Mentions that a rule may choose from."""
    yield [move for _, move, _ in mentions]
    for notation in (True, False):
        yield [move for _, move, uci in mentions if uci is notation]
    last = text.rfind("\n", 0, mentions[-1][0]) + 1
    yield [move for at, move, _ in mentions if at >= last]
    tags = [(match[1].lower(), match.span()) for match in _TAGGED.finditer(text)]
    for name in _NAMED:
        yield _within(mentions, [span for tag, span in tags if tag == name])
    yield _within(mentions, [span for tag, span in tags if tag not in _NAMED])
    for mark in _MARKS:
        yield _within(mentions, [match.span() for match in mark.finditer(text)])


def _within(mentions: Sequence[_Mention], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Moves whose mention lies in one of the spans, which are in order and apart."""
    found: list[str] = []
    rest = iter(spans)
    span = next(rest, None)
    for at, move, _ in mentions:
        while span is not None and span[1] <= at:
            span = next(rest, None)
        if span is None:
            break
        if span[0] <= at:
            found.append(move)
    return found
