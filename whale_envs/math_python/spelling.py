r"""Spells letters so that math-verify reads them as a reader of mathematics does.

    >>> spell("2X+x", "sin x+dy")
    ('2a+x', '\\sin x+by')

math-verify takes X for x and `\Pi` for `\pi`, dy for one name, and sin without its backslash for a
product. So names of functions become commands, and a letter that stands beside its other case, or a d
that is no differential, gets a letter of its own, the same one in both texts.

Not covered: letters in words, in subscripts and in fonts (`\mathbf{A}`), which stay as they are.
"""

import re

_CONSTANT = re.compile(r"\\mathrm\s*\{\s*([eid])\s*\}")
LETTERS = re.compile(
    r"\\(?:text|mbox|textrm|textbf|textit|math[a-z]+|operatorname|begin|end)\*?\s*\{[^{}]*\}|\\[A-Za-z]+"
    r"|_\s*\{[^{}]*\}|(?P<run>[A-Za-z]+)"
)
_FUNCTIONS = """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp infty
    pi theta alpha beta gamma lambda
"""
_COMMANDS = frozenset(_FUNCTIONS.split())
SPELLED = _COMMANDS | {"sqrt", "inf", "max", "min", "gcd", "lcm", "mod", "and", "or"}
"""Words that are no product of letters."""
_GREEK = r"\Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Phi \Psi \Omega"
_CAPITALS = frozenset(_GREEK.split())
_DERIVED = re.compile(r"\\(?:i*int|sum|prod|lim)(?![A-Za-z])|\\frac\s*\{\s*d|\\begin")


def plain_constants(text: str) -> str:
    """The text with upright e, i and d written as letters."""
    return _CONSTANT.sub(r" \1 ", text)


def spell(gold: str, answer: str) -> tuple[str, str]:
    """Both texts, spelled alike."""
    gold, answer = map(plain_constants, (gold, answer))
    both = set[str]()
    for match in LETTERS.finditer(f"{gold} {answer}"):
        if (run := match["run"]) is None:
            both.add(match[0])
        elif run not in SPELLED:
            both.update(run)
    # f, g and h before a bracket are functions to math-verify, i is a number and j a reason that it is none
    free = [c for c in "abcklmnpqrstuvwxyz" if c not in both and c.upper() not in both]
    twice = sorted(c for c in both if c.isupper() and c.lower() in both)
    twice += sorted(c for c in both & _CAPITALS if c == r"\Pi" or c.lower() in both)
    if not any(map(_DERIVED.search, (gold, answer))):
        twice += sorted(both & {"d"})
    renamed = dict(zip(twice, free, strict=False))

    def spelled(match: re.Match[str]) -> str:
        run = match["run"]
        if run is None:
            return f" {renamed[match[0]]}" if match[0] in renamed else match[0]
        if run in SPELLED:
            return f"\\{run}" if run in _COMMANDS else run
        return "".join(renamed.get(c, c) for c in run)

    return LETTERS.sub(spelled, gold), LETTERS.sub(spelled, answer)
