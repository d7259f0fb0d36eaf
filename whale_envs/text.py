r"""What of a model's text counts: everything outside thinking tags.

    >>> strip_thinking("<think>perhaps 4?</think>So 5.")
    'So 5.'
    >>> strip_thinking("<THINKING>perhaps 4?")
    ''

Tags are `<think>`, `<thinking>`, `<thought>`, `<reasoning>`, `<reflection>`, `<analysis>`,
`<scratchpad>`, `[THINK]`, `◁think▷` and `<|begin_of_thought|>`, in any case. A tag that is never
closed hides all that follows it; a closing tag that was never opened hides all that stands before it,
for chat templates often open the tag in the prompt. Time is linear in the text.

Not covered: reasoning that a server returns in a field of its own, which never gets here.
"""

import re

_THINKING = re.compile(
    r"[<\[◁]\s{0,2}(/?)\s{0,2}(?:think|thinking|thoughts?|reasoning|reflection|analysis|scratchpad)\s{0,2}[>\]▷]"
    r"|<\|(?:begin|(end))_of_thought\|>",
    re.IGNORECASE,
)


def strip_thinking(text: str) -> str:
    """The text outside thinking tags, its pieces on lines of their own."""
    return split_thinking(text)[1]


def split_thinking(text: str) -> tuple[str, str]:
    r"""(thinking, the rest) of a text; the rest is the text itself where it has no tags.

    >>> split_thinking("<think>perhaps 4?</think> So 5.")
    ('perhaps 4?', ' So 5.')
    """
    outside: list[str] = []
    inside: list[str] = []
    start, thinking = 0, False
    for tag in _THINKING.finditer(text):
        if not (tag[1] or tag[2]):
            if not thinking:
                outside.append(text[start : tag.start()])
                start, thinking = tag.end(), True
        else:
            if not thinking:  # the prompt had opened it: all so far was thinking
                inside += outside
                outside.clear()
            inside.append(text[start : tag.start()])
            start, thinking = tag.end(), False
    (inside if thinking else outside).append(text[start:])
    return "\n".join(filter(None, inside)), "\n".join(filter(None, outside))
