r"""What of a model's text counts: everything outside thinking tags.

    >>> strip_thinking("<think>perhaps 4?</think>So 5.")
    'So 5.'
    >>> strip_thinking("<THINKING>perhaps 4?")
    ''

Tags are `<think>`, `<thinking>`, `<thought>`, `<reason>`, `<reasoning>`, `<reflection>`, `<analysis>`,
`<scratchpad>`, with a prefix (`<seed:think>`) and attributes (`<think type="x">`) or without, `[THINK]`,
`◁think▷`, `<|think|>` and `<|begin_of_thought|>`, in any case. A tag that is never closed hides all
that follows it; a closing tag that was never opened hides all that stands before it, for chat
templates often open the tag in the prompt. Of channels (`<|channel|>analysis<|message|>…<|end|>`) only
"final" is no thinking. Time is linear in the text.

Not covered: reasoning that a server returns in a field of its own, which never gets here.
"""

import re
from functools import lru_cache

_THINKING = re.compile(
    r"[<\[◁]\s{0,2}\|?\s{0,2}(?P<close>/?)\s{0,2}(?:[a-z]{1,12}:)?"
    r"(?:think|thinking|thoughts?|reason|reasoning|reflection|analysis|scratchpad)"
    r"(?:\s{1,3}[\w:.-]{1,30}\s{0,2}=[^<>\[\]◁▷]{0,200})?\s{0,2}\|?[>\]▷]"
    r"|<\|(?:begin|start|(?P<ended>end))_of_(?:thought|thinking)\|>"
    r"|<\|channel\|>\s{0,4}(?:(?P<final>final)|(?P<channel>[a-z]{1,20}))\b[^<]{0,100}"
    r"(?:<\|constrain\|>[^<]{0,40})?(?:<\|message\|>)?"
    r"|(?P<end><\|(?:end|call|return)\|>)",
    re.IGNORECASE,
)


def strip_thinking(text: str) -> str:
    """The text outside thinking tags, its pieces on lines of their own."""
    return split_thinking(text)[1]


@lru_cache(maxsize=8)  # a turn asks three times: the client, the engine and the record
def split_thinking(text: str) -> tuple[str, str]:
    r"""(thinking, the rest) of a text; the rest is the text itself where it has no tags.

    >>> split_thinking("<think>perhaps 4?</think> So 5.")
    ('perhaps 4?', ' So 5.')
    """
    outside: list[str] = []
    inside: list[str] = []
    start, thinking = 0, ""  # the kind of what is open
    for tag in _THINKING.finditer(text):
        if tag["end"]:  # of a message, whatever its channel
            if thinking == "channel":
                inside.append(text[start : tag.start()])
                start, thinking = tag.end(), ""
        elif tag["close"] or tag["ended"] or tag["final"]:
            if not thinking:  # the prompt had opened it: all so far was thinking
                inside += outside
                outside.clear()
            inside.append(text[start : tag.start()])
            start, thinking = tag.end(), ""
        elif not thinking:
            outside.append(text[start : tag.start()])
            start, thinking = tag.end(), "channel" if tag["channel"] else "tag"
    (inside if thinking else outside).append(text[start:])
    return "\n".join(filter(None, inside)), "\n".join(filter(None, outside))
