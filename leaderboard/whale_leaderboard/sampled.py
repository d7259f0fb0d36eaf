"""Whether what a harness was shown of a reply follows from what the model sampled.

    unsampled(segment, native=False)                    # "" or what does not follow, in words

A segment holds the raw sampled text, and beside it the final text and the reasoning that the harness was
shown where these are not what `split_thinking` makes of it. Backends that decode token ids drop the
tokenizer's special tokens, before or after thinking is split off, and change nothing else: so the final text
has to be the text outside thinking, less some of the tag-like words in it, and the lines of the reasoning
have to stand in the raw text.

Tool calls come from servers that parse them (`openai/…` without `--tokenizer`, `anthropic/…`), and only
where tools were sent; no other backend gives any. Their text is in no raw text: what such a server says that
the model called is on record as the server said it, and calls that a model may have made cannot be told from
forged ones.

    >>> is_final("e2e4", "<think>a1a2 wins</think>e2e4<|im_end|>"), is_final("e2e4", "<think>e2e4</think>")
    (True, False)

Not covered: own agents, whose calls are what a proxy saw; whether token ids decode to the raw text, for no
bundle holds a tokenizer.
"""

import re

from whale_bench.plan import EvalPlan
from whale_bench.records import Segment
from whale_envs.text import split_thinking

_TAG = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z][A-Z_]{1,20}\]")
"""What special tokens look like; a model may also write it."""
_CONTROL = re.compile(r"<\|[^<>|\s]{1,64}\|>|<｜[^<>｜\s]{1,64}｜>")
"""What only special tokens look like."""
_PARSED = ("openai", "anthropic")
"""Kinds of servers that parse tool calls."""


def gives_tool_calls(plan: EvalPlan) -> bool:
    """Whether the model of a plan is served by what parses tool calls."""
    return plan.model.partition("/")[0] in _PARSED and plan.tokenizer is None


def unsampled(segment: Segment, *, native: bool) -> str:
    """What of a reply does not follow from what was sampled, in words; empty where all does.

    Args:
        segment: the call.
        native: whether its backend gives tool calls.
    """
    if segment.reply is not None and not is_final(segment.reply, segment.text):
        return f"its final text {segment.reply!r:.80} is not what the sampled text says outside thinking"
    if segment.reasoning is not None and (line := _foreign_line(segment.reasoning, segment.text)):
        return f"its reasoning {line!r:.80} does not stand in what was sampled"
    if segment.tool_calls and not (native and segment.tools):
        why = "without tools" if native else "by a backend that gives none"
        return f"{len(segment.tool_calls)} tool calls are recorded, {why}"
    return ""


def is_final(reply: str, text: str) -> bool:
    """Whether a text is the final one of a raw text, with or without its special tokens."""
    decoded_first = split_thinking(_CONTROL.sub("", text))[1]
    if reply in (decoded_first, _CONTROL.sub("", decoded_first)):
        return True
    outside = split_thinking(text)[1]
    dropped = {tag for tag in _TAG.findall(outside) if tag not in reply}
    plain, apart = (_without(outside, dropped, by) for by in ("", " "))
    return reply == plain or (bool(dropped) and _folded(reply) in (_folded(plain), _folded(apart)))


def _without(text: str, dropped: set[str], by: str) -> str:
    return _TAG.sub(lambda found: by if found[0] in dropped else found[0], text)


def _folded(text: str) -> str:
    return " ".join(text.split())


def _foreign_line(reasoning: str, text: str) -> str:
    """A line of the reasoning that the raw text does not hold, tags and spaces apart."""
    raw = _bare(text)
    return next((line for line in reasoning.splitlines() if _bare(line) not in raw), "")


def _bare(text: str) -> str:
    return "".join(_TAG.sub("", text).split())
