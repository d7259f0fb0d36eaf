"""Passages cut to a number of words: a count that needs no tokenizer and is the same everywhere.

    >>> cut_words("Mount Everest (8,849 m), Earth's highest mountain", 6)
    'Mount Everest (8,849'
    >>> cut_words("uncharacteristically", 2)
    'uncharacteristic'

A word is a run of letters and digits, of which every eight characters begun count one; a character of
Chinese, Japanese or Korean counts one by itself; so does every other character that is not space, a
punctuation mark for one. Space counts nothing. English Wikipedia summaries have 1.3 of them for each word
between spaces.

Not covered: exact tokens of a model; the server cannot know which model reads.
"""

import re
from itertools import islice

from whale_envs.errors import UsageError

_ONE_EACH = (
    "\u1100-\u11ff\u3040-\u30ff\u3100-\u312f\u3130-\u318f\u31f0-\u31ff"  # jamo, kana, bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uffdc"  # Han, Hangul, half-width forms
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"  # old kana, further Han
)
_WORD = re.compile(rf"[^\W_{_ONE_EACH}]{{1,8}}|\S")


def cut_words(text: str, limit: int) -> str:
    """The text as it is up to the end of its `limit`-th word; all of it where it has no more than that.

    Total over strings, and linear in `limit`.

    Raises:
        UsageError: the limit is negative.
    """
    if limit < 0:
        raise UsageError(f"a text is cut to 0 words or more, got {limit!r}")
    if len(text) <= limit:
        return text
    ends = [word.end() for word in islice(_WORD.finditer(text), limit + 1)]
    if len(ends) <= limit:
        return text
    return text[: ends[limit - 1]] if limit else ""


def count_words(text: str) -> int:
    """How many words `cut_words` sees.

    >>> count_words("東京 is Japan's capital.")
    8
    """
    return sum(1 for _ in _WORD.finditer(text))
