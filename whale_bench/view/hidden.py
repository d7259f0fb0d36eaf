"""Characters that are invisible or turn the direction of text, and how they are spelt out.

    >>> plain("a\u202eb")
    'a‹U+202E›b'
    >>> is_visible("\u2800 \u3164")
    False

What a page, a terminal or a table shows of others' text goes through here, so that it cannot disguise what it
says. `static/dom.js` has the same characters.

Not covered: letters that look alike.
"""

import json
import re

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
"""Spaces, tabs and line breaks are none of them."""


def plain(text: str) -> str:
    """The text with hidden characters spelt out."""
    if text.isascii() and text.isprintable():  # most text by far
        return text
    return HIDDEN.sub(lambda found: f"‹U+{ord(found[0]):04X}›", text.replace("\r\n", "\n"))


def escaped(text: str) -> str:
    """JSON that says the same without a hidden character: each is in a string, where it may be escaped."""
    return HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def is_visible(text: str) -> bool:
    """Whether there is anything to be seen of a text."""
    return bool(HIDDEN.sub("", text).strip())
