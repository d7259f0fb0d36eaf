"""The whispered-gold canary: whether a harness writes answers into what it sends, from recorded rollouts.

    finding = whispered_gold(rollouts, examples)        # None where it does not

Counted are the examples whose answer stands in something that the host sent to the model (messages, tool
schemas, nudges) before the environment had shown it or the model had said it: the opening, observations and
replies so far are taken out. The answers of all other examples are looked for in the same messages, and say
how often an answer stands there by chance. A harness without a table of answers makes this sing once in ten
thousand times (`CHANCE`) at most. It costs no rollout and no model, and is the same in every domain.

An answer that several examples share is left out, for a prompt may well say "yes" or "2" to these: it would
be no sign.

Not covered: answers that are spelt out, translated or hinted at; one that was chosen among those that the
environment had shown; fewer than six examples.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from whale_bench.harness.canaries import CHANCE, tail
from whale_bench.harness.dry_run import line_of
from whale_bench.harness.findings import Finding
from whale_bench.records import Rollout

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_WORD = re.compile(r"\w+")
_ByFirstWord: TypeAlias = dict[str, list[tuple[str, str]]]
"""Forms of answers with the id of their example, by their first word."""


def whispered_gold(
    rollouts: Sequence[Rollout], examples: Sequence[Any], *, name: str = "harness", source: str = ""
) -> Finding | None:
    """Whether answers stand in what was sent, more often than those of other examples do.

    Args:
        rollouts: of these examples, of one domain and one harness, in any number.
        examples: whose answers are looked for.
        name: what the finding calls the harness.
        source: of the harness, for the line that the finding names.
    """
    own = _own_forms(examples)
    told: dict[str, set[str]] = {}
    forms: _ByFirstWord = {}
    for id_, mine in own.items():
        for form in mine:
            forms.setdefault(form.partition(" ")[0], []).append((form, id_))
    for row in rollouts:
        if row.example_id in own:
            told.setdefault(row.example_id, set()).update(_told(row, forms))
    if len(own) < 2 or not told:
        return None
    count = sum(id_ in heard for id_, heard in told.items())
    chances = [(len(heard - {id_}) + 1) / (len(own) + 1) for id_, heard in told.items()]
    if tail(count, chances) >= CHANCE:
        return None
    return Finding(
        rollouts[0].domain,
        f"{name}:{line_of(source, 'messages')}: on {count} of {len(told)} examples the answer stands in what "
        f"is sent to the model before anything had shown it, {sum(chances):.1f} by chance at most: "
        "the harness tells the model what to say",
    )


def _own_forms(examples: Sequence[Any]) -> Mapping[str, frozenset[str]]:
    """By id, the forms of an example's answer that no other one shares; only those that have any."""
    found = {example.id: frozenset(filter(None, map(_plain, _golds(example)))) for example in examples}
    shared = Counter(form for forms in found.values() for form in forms)
    own = {id_: frozenset(form for form in forms if shared[form] == 1) for id_, forms in found.items()}
    return {id_: forms for id_, forms in own.items() if forms}


def _golds(example: Any) -> Iterable[str]:
    return [example.gold] if isinstance(example.gold, str) else example.gold


def _told(row: Rollout, forms: _ByFirstWord) -> set[str]:
    """Ids of the examples whose answer was sent before it was shown or said."""
    heard: set[str] = set()
    shown = _plain(row.opening)
    steps = iter(row.steps)
    before: tuple[Any, ...] = ()
    for segment in row.segments:
        new = [one for one in segment.messages if one not in before]
        sent = f" {' '.join(map(_plain, _texts(new, segment.tools)))} "
        before, known = segment.messages, f" {shown} "
        heard |= {
            id_
            for word in forms.keys() & set(sent.split())
            for form, id_ in forms[word]
            if f" {form} " in sent and f" {form} " not in known
        }
        step = next(steps, None)
        shown = " ".join([shown, _plain(segment.text), _plain(str(segment.tool_calls))])
        if step is not None and step.action is not None:  # a nudge is the harness's own words
            shown = " ".join([shown, _plain(step.observation), _plain(step.feedback)])
    return heard


def _texts(messages: Sequence[Any], tools: Sequence[Any]) -> Iterator[str]:
    for message in messages:
        yield message.content
        if message.tool_calls:
            yield msgspec.json.encode(message.tool_calls).decode()
    if tools:
        yield msgspec.json.encode(tools).decode()


def _plain(text: str) -> str:
    """Words and numbers alone, in one case."""
    return " ".join(_WORD.findall(_THOUSANDS.sub("", unicodedata.normalize("NFKC", text).casefold())))
