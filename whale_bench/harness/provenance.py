r"""The provenance rule: an action counts only if it stands in text sampled this turn.

    >>> stands_in("a1a8", "My move: A1A8.")
    True
    >>> stands_in("a1a8", "a1a80"), stands_in("O-O", "O-O-O"), stands_in("5", "3.5 or -5")
    (False, False, False)
    >>> is_sampled('{"tool": "submit", "arguments": {"answer": "42"}}', ["I do not know."])
    False

A harness can format, filter and re-ask, but cannot play. Sampled text is the final text and the
arguments of tool calls, not reasoning. White space may be folded, and a move in UCI form may change
case; everything else must stand there as a whole word or number.

A tool call counts if it stands there as it is, if its arguments are a sampled call's, or if each of
them, at any depth, stands there: names, strings, numbers and constants. This holds for tools that no
environment has too. Two exceptions. The program of the interpreter must stand there only up to a
harness's normalisation (`python_code.same_code`). The arguments of "search" are free: rewriting
queries is a harness's work, and what comes back is an observation.

Not covered: hints in the prompt (the parrot canary's work), a tool's name, which an environment that
has no such tool shows to the model as such a hint would be.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from whale_bench.harness.python_code import same_code
from whale_envs.core import ToolCall, parse_action

_REWRITTEN = "search"
"""The tool whose arguments are a harness's to write."""
_PROGRAM = ("code_interpreter", "code")
"""The tool and the argument that is a program."""
_WORD = r"[^\W_]"
_GLUE = "\u00ad\u0300-\u036f\u200b-\u200f\u2060\ufeff"
"""Marks that are no letters but leave a word one: accents, soft hyphens, joiners."""
_INSIDE = rf"(?:{_WORD}|[{_GLUE}])"
_JOINTS = "-=:/"
"""Between letters or digits these are inside a word: e8 does not stand in e8=N, nor O-O in O-O-O."""
_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?\Z", re.IGNORECASE | re.ASCII)
_UCI_ALONE = re.compile(rf"(?<!{_INSIDE})[a-h][1-8][a-h][1-8][qrbn]?(?!{_INSIDE}|[=/(][qrbn])", re.IGNORECASE)


def is_sampled(action: str, said: Sequence[str]) -> bool:
    """Whether the model said `action` this turn.

    Args:
        action: what the harness would do.
        said: the final text and the arguments of tool calls, as sampled.
    """
    call = parse_action(action)
    if not isinstance(call, ToolCall):
        return any(stands_in(action, text) for text in said)
    if call.tool == _REWRITTEN or any(action.strip() in text for text in said):
        return True
    if any(_same_arguments(call.arguments, text) for text in said):
        return True
    arguments = dict(call.arguments)
    program = arguments.get(_PROGRAM[1]) if call.tool == _PROGRAM[0] else None
    if isinstance(program, str):
        if not any(same_code(text, program) for text in said):
            return False
        del arguments[_PROGRAM[1]]
    return all(any(stands_in(leaf, text) for text in said) for leaf in _leaves(arguments))


def stands_in(action: str, sampled: str) -> bool:
    """Whether `action` stands in `sampled` as a whole, up to white space (and case, for UCI)."""
    needle, text = " ".join(action.split()), " ".join(sampled.split())
    if not needle or needle == text:
        return True
    if _UCI.match(needle):  # ends before a dash (e2e4-e5), but not before its promotion (e7e8=N)
        return needle.lower() in map(str.lower, _UCI_ALONE.findall(text))
    left = right = ""
    if needle[0].isalnum():
        left = rf"(?<!{_INSIDE})(?<!{_WORD}[{_JOINTS}])"
    if needle[-1].isalnum():
        right = rf"(?!{_INSIDE})(?![{_JOINTS}]{_WORD})"
    if needle[0] in "([{":  # its sign would stand before it
        left = r"(?<![-−])"
    if needle[0].isdigit():  # no sign, whole part or earlier group of digits before it
        left += r"(?<![-−])(?<!\d[.,])(?<!^\.)(?<!\s\.)"
    if needle[-1].isdigit():
        right += r"(?![.,]\d)"
    before, after = re.compile(left), re.compile(right)  # a few in all, where each needle would be its own
    at = text.find(needle)
    while at >= 0:
        if before.match(text, at) and after.match(text, at + len(needle)):
            return True
        at = text.find(needle, at + 1)
    return False


def _same_arguments(arguments: dict[str, Any], text: str) -> bool:
    """Whether `text` is these arguments in JSON, in whatever spacing and order."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        return _canonical(json.loads(text)) == _canonical(arguments)
    except (ValueError, RecursionError):
        return False


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _leaves(value: Any) -> Iterator[str]:
    """All that is written in a JSON value: names, strings, numbers and constants."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list):
            pending += value
        else:
            yield value if isinstance(value, str) else json.dumps(value)
