r"""What of a model's text counts: everything outside thinking tags.

    >>> strip_thinking("<think>perhaps 4?</think>So 5.")
    'So 5.'
    >>> strip_thinking("<THINKING>perhaps 4?")
    ''

`<think>` and `<thinking>`, in any case. A tag that is never closed hides all that follows it; a
closing tag that was never opened hides all that stands before it, for chat templates often open
the tag in the prompt. Time is linear in the text.

Not covered: reasoning that a server returns in a field of its own, which never gets here.
"""

import re

_TAG = re.compile(r"<(/?)think(?:ing)?\s{0,8}>", re.IGNORECASE)


def strip_thinking(text: str) -> str:
    """The text outside thinking tags; pieces around a closed tag are joined by a space."""
    if "<" not in text:
        return text
    kept: list[str] = []
    start, hidden = 0, False
    for tag in _TAG.finditer(text):
        if not tag[1]:
            if not hidden:
                kept.append(text[start : tag.start()])
            hidden = True
        else:
            if not hidden:
                kept.clear()
            start, hidden = tag.end(), False
    if not hidden:
        kept.append(text[start:])
    return " ".join(piece for piece in kept if piece)
