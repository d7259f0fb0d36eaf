"""The provenance rule: an action counts only if it stands in text sampled this turn.

    >>> stands_in("a1a8", "My move: A1A8.")
    True
    >>> stands_in("a1a8", "a1a80"), stands_in("O-O", "O-O-O")
    (False, False)

Sampled text is the final text and the arguments of tool calls, not reasoning. White space may be
folded, and a move in UCI form may change case; everything else must stand there as a whole word, so
that a harness can format, filter and re-ask, but cannot answer for the model.

A tool call counts if it stands there as it is, or if its program does, up to a harness's normalisation
(`python_code.same_code`). A call of a tool that no environment has is let through: it does nothing.

Not covered: hints in the prompt (the parrot canary's work).
"""

import re
from collections.abc import Sequence

from whale_bench.harness.python_code import same_code
from whale_envs.core import ToolCall, parse_action

_WORD = r"[^\W_]"
_JOINTS = "-=:/"
"""Between letters or digits these are inside a word: e8 does not stand in e8=N, nor O-O in O-O-O."""
_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?\Z", re.IGNORECASE)
_UCI_ALONE = r"(?<![a-z0-9]){}(?![a-z0-9]|[=/(][qrbn])"


def is_sampled(action: str, said: Sequence[str]) -> bool:
    """Whether the model said `action` this turn.

    Args:
        action: what the harness would do.
        said: the final text and the arguments of tool calls, as sampled.
    """
    if any(stands_in(action, text) for text in said):
        return True
    call = parse_action(action)
    if not isinstance(call, ToolCall):
        return False
    code = call.arguments.get("code")
    return not isinstance(code, str) or any(same_code(text, code) for text in said)


def stands_in(action: str, sampled: str) -> bool:
    """Whether `action` stands in `sampled` as a whole, up to white space (and case, for UCI)."""
    needle, text = " ".join(action.split()), " ".join(sampled.split())
    if not needle or needle == text:
        return True
    if _UCI.match(needle):  # ends before a dash (e2e4-e5), but not before its promotion (e7e8=N)
        return re.search(_UCI_ALONE.format(needle), text, re.IGNORECASE) is not None
    left = rf"(?<!{_WORD})(?<!{_WORD}[{_JOINTS}])" if needle[0].isalnum() else ""
    right = rf"(?!{_WORD})(?![{_JOINTS}]{_WORD})" if needle[-1].isalnum() else ""
    return re.search(left + re.escape(needle) + right, text) is not None
