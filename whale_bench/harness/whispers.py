"""The whispered-gold canary: whether a harness writes answers into what it sends, from recorded rollouts.

    finding = whispered_gold(rollouts, examples)        # None where it does not

Counted are the examples whose answer stands in something that the host sent to the model (messages, tool
schemas, nudges) before the environment had shown it or the model had said it: the opening, observations and
replies so far are taken out. The answers of all other examples are looked for in the same messages, and say
how often an answer stands there by chance. A harness without a table of answers makes this sing once in ten
thousand times (`CHANCE`) at most. It costs no rollout and no model, and is the same in every domain.

Texts are read as a model may read them: without invisible characters and accents, look-alike letters and
digits of other scripts as Latin ones, markup as a space and as text. An answer with letters is found however
it is divided into words ("P a r i s", "Pa*ris*", "New York" as "newyork") and from its end, too. All this
holds for what was shown as well, and for the answers of other examples.

An answer that several examples share is left out, for a prompt may well say "yes" or "2" to these: it would
be no sign.

Not covered: answers in a code, translated or hinted at; divided or reversed ones of fewer than three letters,
such as numbers and most moves; one that was chosen among those that the environment had shown; fewer than six
examples.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from whale_bench.harness.canaries import CHANCE, tail
from whale_bench.harness.dry_run import line_of
from whale_bench.harness.findings import Finding
from whale_bench.records import Rollout

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_WORD = re.compile(r"[^\W_]+")
_FOREIGN = re.compile(r"[^\x00-\x7f]")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,80}>")
_LETTERS, _CHARACTERS = 3, 4
"""Least of an answer that is found however it is divided; shorter ones stand in other words by chance."""

_LOOK_ALIKE = dict(
    zip(
        "АВЕЗКМНОРСТУХІЈЅԁԛԝавеокмнрстухіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧαικνορτυχıɑɡ",
        "ABE3KMHOPCTYXIJSdqwaBeokMHpcTyxijsABEZHIKMNOPTYXaikvoptuxiag",
        strict=True,
    )
)
"""Letters that look like Latin ones: Cyrillic, Greek, phonetic."""
_INVISIBLE = frozenset("\u115f\u1160\u17b4\u17b5\u2800")
"""Characters without a shape whose category does not say so."""


class _Answers(NamedTuple):
    """What is looked for: the answer of an example by each way to write it, and the beginnings of these.

    Those in `joined` are compared with words run together, those in `spaced` with words as they stand.
    """

    joined: dict[str, str]
    spaced: dict[str, str]
    beginnings: frozenset[str]
    """Of the joined ones, every one."""
    first: frozenset[str]
    """Of the spaced ones, whole words."""


def whispered_gold(
    rollouts: Iterable[Rollout], examples: Sequence[Any], *, name: str = "harness", source: str = ""
) -> Finding | None:
    """Whether answers stand in what was sent, more often than those of other examples do.

    Args:
        rollouts: of these examples, of one domain and one harness, in any number; read once, one at a time.
        examples: whose answers are looked for.
        name: what the finding calls the harness.
        source: of the harness, for the line that the finding names.
    """
    own = _own_forms(examples)
    if len(own) < 2:
        return None
    told: dict[str, set[str]] = {}
    owner = {form: id_ for id_, forms in own.items() for form in forms}
    answers = _answers(owner)
    domain = ""
    for row in rollouts:
        domain = row.domain
        if row.example_id in own:
            heard = {owner[form] for form in _told(row, answers)}
            told.setdefault(row.example_id, set()).update(heard)
    if not told:
        return None
    count = sum(id_ in heard for id_, heard in told.items())
    chances = [(len(heard - {id_}) + 1) / (len(own) + 1) for id_, heard in told.items()]
    if tail(count, chances) >= CHANCE:
        return None
    return Finding(
        domain,
        f"{name}:{line_of(source, 'messages')}: on {count} of {len(told)} examples the answer stands in what "
        f"is sent to the model before anything had shown it, {sum(chances):.1f} by chance at most: "
        "the harness tells the model what to say",
    )


def _own_forms(examples: Sequence[Any]) -> Mapping[str, frozenset[str]]:
    """By id, the forms of an example's answer that no other one shares; only those that have any."""
    found = {example.id: frozenset(filter(None, map(_form, _golds(example)))) for example in examples}
    shared = Counter(form for forms in found.values() for form in forms)
    own = {id_: frozenset(form for form in forms if shared[form] == 1) for id_, forms in found.items()}
    return {id_: forms for id_, forms in own.items() if forms}


def _golds(example: Any) -> Iterable[str]:
    return [example.gold] if isinstance(example.gold, str) else example.gold


def _form(gold: str) -> str:
    """The words of an answer, run together where that is still no other word by chance."""
    words = _WORD.findall(_plain(gold))
    joined = "".join(words)
    return joined if _lettered(joined) else " ".join(words)


def _lettered(word: str) -> bool:
    return len(word) >= _CHARACTERS and sum(map(str.isalpha, word)) >= _LETTERS


def _answers(forms: Iterable[str]) -> _Answers:
    joined: dict[str, str] = {}
    spaced: dict[str, str] = {}
    for form in forms:
        (joined if " " not in form and _lettered(form) else spaced)[form] = form
    for form in tuple(joined):
        joined.setdefault(form[::-1], form)
    words = [form.split() for form in spaced]
    return _Answers(
        joined,
        spaced,
        frozenset(form[:end] for form in joined for end in range(1, len(form) + 1)),
        frozenset(" ".join(each[:end]) for each in words for end in range(1, len(each) + 1)),
    )


def _told(row: Rollout, answers: _Answers) -> set[str]:
    """The answers that were sent before they were shown or said. Linear in what the rollout holds."""
    heard: set[str] = set()
    known = _standing_in([row.opening], answers)
    steps = iter(row.steps)
    before: set[bytes] = set()
    for segment in row.segments:
        # What was sent before is no news: it has been looked through, and more is known by now.
        sent: list[str] = []
        for one in (*segment.messages, segment.tools):
            if one and (encoded := msgspec.json.encode(one)) not in before:
                before.add(encoded)
                sent += _texts(one)
        heard |= _standing_in([" ".join(sent)], answers) - known
        step = next(steps, None)
        shown = [segment.text, segment.reasoning or "", segment.reply or "", *_leaves(segment.tool_calls)]
        if step is not None and step.action is not None:  # a nudge is the harness's own words
            shown += [step.observation, step.feedback]
        known |= _standing_in(shown, answers)
    return heard


def _texts(sent: Any) -> Iterator[str]:
    """What a message, or tool schemas, say."""
    if isinstance(sent, tuple):
        yield from _leaves(sent)
    else:
        yield sent.content
        yield from _leaves(sent.tool_calls)


def _leaves(value: Any) -> Iterator[str]:
    """Names and texts in it, and those within a text that is JSON itself, as arguments of a call are."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += [*one.values(), *one.keys()]
        elif isinstance(one, list | tuple):
            left += one
        else:
            yield str(one)
            if isinstance(one, str) and one.lstrip()[:1] in ("{", "["):
                try:
                    left.append(msgspec.json.decode(one))
                except (msgspec.DecodeError, UnicodeError, RecursionError):
                    continue


def _standing_in(texts: Iterable[str], answers: _Answers) -> set[str]:
    found: set[str] = set()
    for text in texts:
        plain = html.unescape(_TAG.sub(" ", text))
        for reading in (text,) if plain == text else (text, plain):
            read = _plain(reading)
            found |= _walk(read, answers.joined, answers.beginnings, "")
            found |= _walk(read, answers.spaced, answers.first, " ")
    return found


def _walk(text: str, forms: Mapping[str, str], beginnings: frozenset[str], between: str) -> set[str]:
    """Those forms that some words of a plain text are, one after the other with this between them."""
    found: set[str] = set()
    begun: list[str] = []
    for match in _WORD.finditer(text):
        word = match[0]
        if begun:
            begun = [grown for one in begun if (grown := one + between + word) in beginnings]
        if word in beginnings:
            begun.append(word)
        found.update(forms[one] for one in begun if one in forms)
    return found


def _plain(text: str) -> str:
    """In one case, of one script, without what cannot be seen, thousands without commas."""
    if not text.isascii():
        text = _FOREIGN.sub(lambda found: _seen(found[0]), unicodedata.normalize("NFKD", text))
    return _THOUSANDS.sub("", text.casefold())


@lru_cache(4_096)
def _seen(character: str) -> str:
    """The character that a decomposed one is read as; none where it is a mark or invisible."""
    kind = unicodedata.category(character)
    if kind in ("Cf", "Mn", "Me") or character in _INVISIBLE:
        return ""
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    return _LOOK_ALIKE.get(character, character)
