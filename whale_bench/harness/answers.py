"""Looks for answers in a harness's text: examples to score, their solutions, tables to play from.

    holds_answers(source, load_examples("search_qa", "mini", "dev"))
    # [Finding("search_qa", "3: holds the text of a scored example (search_qa-9a5c…)")]

Read off the syntax tree's literals, so that neither formatting nor comments matter. Found are:

- the text (question, problem, position) of an example;
- a comparison with, or a key of, words that stand in one or two of the examples only;
- solutions of three examples or more, each long enough not to be there by chance;
- eight chess moves or more in one container: a table to play from;
- eight constants or more in one container, most of them solutions;
- eight hashes or more, as numbers, in hex or in front of moves, or a text that is packed data: a table whose
  keys or contents nobody is to read; and a decision by the hash of a text (`hashed.py`).

The last two are found without examples, too: they are the file's, whatever is scored. Messages begin with the
line; callers put the file before it.

Not covered: answers that are encoded, computed, or spread thinner than this; then the walls, the
provenance rule and the canaries (`canaries.py`) have to hold.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from whale_bench.harness.findings import Finding
from whale_bench.harness.hashed import hash_decision
from whale_envs.core import Example

_SHORTEST_TEXT = 16
_SHORTEST_BRANCH = 20
_MOST_SHARED = 2
_SHORTEST_GOLD = 8
_SHORTEST_NUMBER = 5
"""Digits: a year is no solution's alone."""
_GOLDS = 3
_TABLE = 8
_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?")
_HEX = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f]{8,128}", re.IGNORECASE)
_KEYED = re.compile(r"\b(\w{5,64})\W{1,3}[a-h][1-8][a-h][1-8][qrbn]?\b")
_SHORTEST_PACKED = 64
_LEAST_HASH = 2**24
"""As a number; below it may be a limit of something."""
_PACKED = re.compile(r"[A-Za-z0-9+/=_-]{300,}")
"""No text has words that long, of letters and digits."""
_MIXED = 10
"""Different characters at least: a line of dashes is no data."""
_NAME = re.compile(r"[A-Z]\w+ [A-Z]\w+|\d{3,}")
_ASKS = ("startswith", "endswith", "find", "index", "count", "search", "match", "fullmatch", "get")


class _Literal(NamedTuple):
    line: int
    text: str
    branch: bool
    """Whether the harness goes one way or another by it."""
    number: bool


def holds_answers(source: str, examples: Sequence[Example]) -> list[Finding]:
    """Findings, at most one of each kind; none for text that is no Python, which loading it shows."""
    try:
        tree = ast.parse(source)
        literals = list(_literals(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    hidden = (_hashes(literals), hash_decision(tree))
    if not examples:
        return [Finding("", f"{found[0]}: {found[1]}") for found in hidden if found is not None]
    domain = examples[0].id.rpartition("-")[0]
    texts = [_texts(example) for example in examples]
    kinds = (
        _texts_in(literals, texts),
        _branches(literals, examples, texts),
        _golds_in(literals, examples),
        _tables(tree, examples),
        *hidden,
    )
    return [Finding(domain, f"{found[0]}: {found[1]}") for found in kinds if found is not None]


_Found = tuple[int, str] | None


def _texts_in(literals: list[_Literal], texts: list[list[str]]) -> _Found:
    wanted = [text for own in texts for text in own if len(text) >= _SHORTEST_TEXT]
    for literal in literals:
        said = _plain(literal.text)
        if any(text in said for text in wanted):
            return literal.line, "holds the text of a scored example"
    return None


def _branches(literals: list[_Literal], examples: Sequence[Example], texts: list[list[str]]) -> _Found:
    for literal in literals:
        said = _plain(literal.text)
        special = len(said) >= _SHORTEST_BRANCH or _NAME.search(literal.text)
        if not literal.branch or not special or len(examples) <= _MOST_SHARED:
            continue
        # A short text is looked for as whole words, for parts of words stand anywhere by chance.
        edge = r"(?<!\w)", r"(?!\w)"
        words = re.compile(re.escape(said).join(edge if len(said) < _SHORTEST_BRANCH else ("", "")))
        held = [
            index
            for index, own in enumerate(texts)
            if said == examples[index].id or any(map(words.search, own[:-1]))
        ]
        if 1 <= len(held) <= _MOST_SHARED:
            return literal.line, f"goes by text of a scored example: {said!r:.60}"
    return None


def _golds_in(literals: list[_Literal], examples: Sequence[Example]) -> _Found:
    """Whole solutions as words of any literals."""
    wanted = {gold: example.id for example in examples for gold in _golds(example) if _is_long(gold)}
    if not wanted:
        return None
    longest_first = sorted(map(re.escape, wanted), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
    found: dict[str, int] = {}
    for literal in literals:
        for gold in pattern.findall(_plain(literal.text)):
            found.setdefault(wanted[gold], literal.line)
    if len(found) < _GOLDS:
        return None
    return min(found.values()), "holds the solutions of scored examples"


def _tables(tree: ast.Module, examples: Sequence[Example]) -> _Found:
    golds = {gold for example in examples for gold in _golds(example) if not gold.isdigit() or len(gold) > 1}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        values = [_plain(_text_of(part.value)) for part in parts if _is_said(part)]
        line = getattr(node, "lineno", 1)
        if len([value for value in values if _UCI.fullmatch(value)]) >= _TABLE:
            return line, "holds a table of chess moves"
        known = [value for value in values if value in golds]
        count = len(set(known))
        if count >= _TABLE and len(known) > len(values) / 2:
            return line, "holds a table with the solutions of scored examples"
    return None


def _hashes(literals: list[_Literal]) -> _Found:
    """What a table looks like whose keys or contents are hidden."""
    found: dict[str, int] = {}
    for literal in literals:
        text = literal.text
        if _is_packed(text, number=literal.number) or (len(text) >= _SHORTEST_PACKED and "\ufffd" in text):
            return literal.line, "holds packed data, which nobody can read"
        if literal.number or not text.isdigit():  # digits in quotes may be dates
            hashes = [text] if _is_hash(text) else [key for key in _KEYED.findall(text) if _is_hash(key)]
        else:
            hashes = []
        for one in hashes:
            found.setdefault(one, literal.line)
    if len(found) < _TABLE:
        return None
    return min(found.values()), "holds a table of hashes"


def _is_packed(text: str, *, number: bool) -> bool:
    words = _PACKED.findall(text)
    return any(
        number or (len(set(word)) >= _MIXED and re.search(r"\d", word) and re.search(r"[A-Za-z]", word))
        for word in words
    )


def _is_hash(text: str) -> bool:
    if not text.isascii() or not text.isdigit():
        return _HEX.fullmatch(text) is not None
    if len(text) > 128:
        return True
    number = int(text)
    return (
        number >= _LEAST_HASH
        and number & (number - 1) != 0
        and number & (number + 1) != 0
        and number % 1000 != 0
    )


def _literals(tree: ast.Module) -> Iterator[_Literal]:
    branches: set[int] = set()
    for node in ast.walk(tree):
        branches |= {id(part) for part in _deciding(node)}
    for node in ast.walk(tree):
        if _is_said(node):
            # A number that decides is a threshold; what it is compared with is seldom an example.
            deciding = isinstance(node.value, str | bytes) and id(node) in branches
            number = isinstance(node.value, int | float)
            yield _Literal(node.lineno, _text_of(node.value), deciding, number)


def _is_said(part: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(part, ast.Constant) and isinstance(part.value, str | bytes | int | float)


def _deciding(node: ast.AST) -> Iterable[ast.AST]:
    """The constants by which that node decides something."""
    if isinstance(node, ast.Compare):
        roots: list[Any] = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        roots = list(node.keys)
    elif isinstance(node, ast.MatchValue):
        roots = [node.value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASKS:
        roots = [*node.args, node.func.value]
    else:
        return []
    return [part for root in roots if root is not None for part in ast.walk(root)]


def _text_of(value: Any) -> str:
    """A constant as text; what cannot be written, such as an integer beyond all bounds, in hex."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return hex(value) if isinstance(value, int) and value.bit_length() > 10_000 else str(value)


def _texts(example: Example) -> list[str]:
    """What a solver is shown of an example and of no other, plain."""
    fen = getattr(example, "fen", None)
    if fen is not None:
        import chess

        board = chess.Board(fen)
        before = board.board_fen()
        board.push_uci(getattr(example, "trigger", "0000"))
        return [_plain(before), _plain(board.board_fen()), example.id]
    shown: str = getattr(example, "question", "") or getattr(example, "problem", "")
    return [_plain(shown).rstrip("?. "), example.id]


def _golds(example: Example) -> list[str]:
    """Every form of the solution, plain; of a line of moves, the whole line."""
    gold: Any = example.gold
    if getattr(example, "fen", None) is not None:
        return (
            [_plain(" ".join(gold)), _plain(",".join(gold)), _plain(", ".join(gold))] if len(gold) > 1 else []
        )
    return [_plain(str(form)) for form in ((gold,) if isinstance(gold, str) else gold)]


def _is_long(gold: str) -> bool:
    """Whether it is hardly there by chance."""
    return len(gold) >= (_SHORTEST_NUMBER if gold.isdigit() else _SHORTEST_GOLD)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
