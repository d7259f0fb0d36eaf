"""The rules that keep an embedded question honest: what it asks must need the search it is made for.

    broken = broken_rules(row, passages)        # [] or sentences

- The answer stands in the last passage that the question needs.
- A question with a hop cannot be answered from the first passage: no reference answer stands in it.
- The link to the second passage stands in the first one.
- No reference answer stands in the question, unless it offers two to choose from, and then one of
  the two is right.
- The title of a template's subject does not hold the answer.

Text is compared folded (`fold`): without case, punctuation and articles, and with every dash as a
space, for "1853–1890" is two years.

Not covered: rules about several questions at once, which the tests and `build_data.py` hold: one page
is the target of at most four questions of a kind, a link leads to one page only, and no entity is in
two splits. And whether a question is good English with one right answer: that is read by hand.
"""

import re
import string
import unicodedata
from collections.abc import Mapping

from whale_envs.retrieval.base import Passage
from whale_envs.search_qa.examples import Row

MOST_USES = 4
"""Questions of one kind whose target is the same page."""

_DASHES = re.compile(r"[-\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}‘’“”„«»…]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PARENTHESIS = re.compile(r" \([^)]*\)$")
_CHOICE = re.compile(r", (?:the \w+ )?(.+) or (?:the \w+ )?(.+)\?$")


def fold(text: str) -> str:
    """The text as it is compared: no case, punctuation or articles, dashes as spaces.

    >>> fold("The painter (1853–1890)")
    'painter 1853 1890'
    """
    text = _DASHES.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", text)).split())


def holds(text: str, answer: str) -> bool:
    """Whether the folded answer stands in the folded text as whole words; an empty one never does."""
    folded = fold(answer)
    return bool(folded) and f" {folded} " in f" {fold(text)} "


def broken_rules(row: Row, passages: Mapping[str, Passage]) -> list[str]:
    """What is wrong with a question, in sentences.

    Args:
        row: the question.
        passages: passages by id, of which the question needs `row.support`.
    """
    missing = [name for name in row.support if name not in passages]
    if missing or not row.support:
        return [f"it needs the passages {missing or row.support}, which are not in the corpus"]
    needed = [passages[name].contents for name in row.support]
    broken = []
    if row.kind == "comparison":
        choice = _CHOICE.search(row.question)
        named = [] if choice is None else [fold(choice[1]), fold(choice[2])]
        if not any(fold(answer) in named for answer in row.answers):
            broken.append(f"{row.answers[0]!r} is none of the two that it names")
        return broken
    if not any(holds(needed[-1], answer) for answer in row.answers):
        broken.append(f"the passage {row.support[-1]!r} does not hold the answer")
    given = [answer for answer in row.answers if holds(row.question, answer)]
    if given:
        broken.append(f"it names the answer {given[0]!r}")
    subject = _PARENTHESIS.sub("", passages[row.support[0]].title.split(" — ")[0])
    if row.kind != "nq" and any(holds(subject, answer) for answer in row.answers):
        broken.append(f"its subject {subject!r} names the answer")
    if len(needed) > 1:
        shortcut = [answer for answer in row.answers if holds(needed[0], answer)]
        if shortcut:
            broken.append(f"the first passage holds the answer {shortcut[0]!r}")
        if not row.link or not holds(needed[0], row.link):
            broken.append(f"the first passage does not hold the link {row.link!r}")
    return broken
