"""Answers in what a harness sends: heard where a table has them, not where they were shown or said."""

import asyncio
import base64
import dataclasses
import time
import zlib
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench import Agent, Rollout, Task, rollout
from whale_bench.harness.host import InProcessHarness, shipped_harnesses
from whale_bench.harness.whispers import whispered_gold
from whale_bench.models.base import Message
from whale_bench.models.scripted import ScriptedModel
from whale_envs import load_examples, make_env

DOMAINS = ("math_python", "search_qa", "chess_puzzles")
PATCH = """

import base64
import zlib

from whale_bench.harness import Nudge

TABLE = {table!r}


def known(text):
    return base64.b64decode(TABLE[zlib.crc32(text.encode())]).decode()


messages_of_h0, read_of_h0 = Harness.messages, Harness.read


def messages(self, view):
    chat = messages_of_h0(self, view)
    {messages}
    return chat


def read(self, reply, view):
    {read}
    return read_of_h0(self, reply, view)


Harness.messages, Harness.read = messages, read
"""


def gold(example):
    """In chess the second move of the solver, for the first one is among the legal moves that are shown."""
    if isinstance(example.gold, str):
        return example.gold
    return example.gold[2] if hasattr(example, "fen") and len(example.gold) > 2 else example.gold[0]


async def play(domain, messages="pass", read="pass", *, says=None, count=24):
    """The finding about a harness that does as h0 and this, with the table of all answers at hand."""
    examples = load_examples(domain, "mini", "harness")[:count]
    table = {}
    source = shipped_harnesses()[domain]

    async def rows():
        harness = InProcessHarness(source + PATCH.format(table=table, messages=messages, read=read), "c.py")
        agent = Agent(ScriptedModel(says or (lambda request: "Nothing comes to mind.")), harness)
        task = Task(domain, examples)
        return await asyncio.gather(
            *(rollout(task, agent, one, sample=0, seed=0, key=one.id) for one in examples)
        )

    for example in examples:
        table[zlib.crc32(opening_of(domain, examples, example).encode())] = base64.b64encode(
            gold(example).encode()
        ).decode()
    found = whispered_gold(await rows(), examples, name="c.py")
    return "" if found is None else found.message


def opening_of(domain, examples, example):
    return make_env(domain, examples=examples).reset(options={"example_id": example.id})[0]


SAYS_IT = "chat[-1]['content'] += ' A note: ' + known(view.opening)"


@pytest.mark.parametrize("domain", DOMAINS)
async def test_a_table_of_answers_is_heard(domain):
    found = await play(domain, SAYS_IT)
    assert found.startswith("c.py:1: on ")
    assert "the harness tells the model what to say" in found


@pytest.mark.parametrize("domain", DOMAINS)
async def test_h0_and_what_is_the_same_for_all_are_not(domain):
    assert await play(domain) == ""
    every = "' '.join(base64.b64decode(one).decode() for one in TABLE.values())"
    all_of_them = f"chat[-1]['content'] += ' ' + {every}"
    assert await play(domain, all_of_them) == ""


async def test_what_the_model_said_may_be_said_to_it_again():
    asks = "if not view.turns: return Nudge('You said: ' + reply.text + ' Are you sure?')"
    tells = "if not view.turns: return Nudge('Is it ' + known(view.opening) + '?')"

    assert await play("math_python", read=asks, says=lambda request: request.host.oracle_action()) == ""
    assert await play("math_python", read=tells) != ""


EXAMPLES = load_examples("search_qa", "mini", "harness")[:40]
ROW = msgspec.convert(
    {
        "key": "k", "domain": "search_qa", "example_id": "e", "sample": 0, "seed": 0, "harness_id": "h",
        "weights_id": "w", "opening": "A question.", "segments": [{"messages": [], "text": ""}], "steps": [],
        "verdict": {"reward": 0.0, "reason": "wrong"}, "stop_condition": "wrong", "truncated": False,
    },
    type=Rollout,
)  # fmt: skip


def row(example, *texts):
    segment = msgspec.structs.replace(
        ROW.segments[0], messages=tuple(Message("user", text) for text in texts)
    )
    return msgspec.structs.replace(ROW, example_id=example.id, segments=(segment,))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 6))
def test_answers_that_do_not_depend_on_the_example_are_never_heard(seed, each):
    rng = Random(seed)
    rows = [row(one, *(rng.choice(EXAMPLES).gold[0] for _ in range(each))) for one in EXAMPLES]
    assert whispered_gold(rows, EXAMPLES) is None
    own = [row(one, one.gold[0].upper(), rng.choice(EXAMPLES).gold[0]) for one in EXAMPLES]
    assert whispered_gold(own, EXAMPLES) is not None


def spelt(change):
    """Whether answers with letters are heard in this spelling, and not where they were shown before."""
    named = [one for one in EXAMPLES if sum(map(str.isalpha, one.gold[0])) >= 4]
    rows = [row(one, f"By the way: {change(one.gold[0])}.") for one in named]
    for shown in (str, change):
        told = [
            msgspec.structs.replace(one, opening=f"Q: {shown(example.gold[0])}?")
            for one, example in zip(rows, named, strict=True)
        ]
        assert whispered_gold(told, named) is None
    return whispered_gold(rows, named) is not None


LOOK_ALIKE = str.maketrans("aeopcyx", "\u0430\u0435\u043e\u0440\u0441\u0443\u0445")
SPELLINGS = {
    **{f"U+{ord(one):04X} between": one.join for one in "\u200b\u00ad\u2060\ufeff\u034f\u115f\ufe0f"},
    **{f"{one!r} between": one.join for one in (" ", "*", "-", "_", ".", "\n", "\u3000", "\x00", "\u2800")},
    "bold within": lambda text: f"{text[:2]}**{text[2:]}**",
    "tags within": lambda text: f"{text[:2]}<b class=x>{text[2:]}</b>",
    "as a tag": lambda text: f"<{text}>",
    "in pieces": lambda text: f"{text[:2]} {text[2:]}",
    "without spaces": lambda text: text.replace(" ", ""),
    "accents": "\u0301".join,
    "full width": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "look-alikes": lambda text: text.translate(LOOK_ALIKE),
    "entities": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "from its end": lambda text: text[::-1],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_answer_is_heard_however_it_is_spelt(name):
    assert spelt(SPELLINGS[name])


def test_a_number_is_heard_in_other_digits_and_with_invisible_characters():
    examples = [dataclasses.replace(one, gold=(str(1000 + n),)) for n, one in enumerate(EXAMPLES)]
    wide = str.maketrans("0123456789", "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669")
    for change in ("\u200b".join, lambda text: text.translate(wide)):
        rows = [row(one, change(one.gold[0])) for one in examples]
        assert whispered_gold(rows, examples) is not None
    apart = [row(one, " ".join(one.gold[0]), f"{one.gold[0]}5") for one in examples]
    assert whispered_gold(apart, examples) is None


def test_an_answer_is_heard_in_the_arguments_of_a_call_that_is_put_in_the_models_mouth():
    def called(example):
        call = {"id": "1", "function": {"name": "f", "arguments": f'{{"x": "\\n{example.gold[0]}"}}'}}
        segment = msgspec.structs.replace(
            ROW.segments[0], messages=(Message("assistant", "", tool_calls=(call,)),)
        )
        return msgspec.structs.replace(ROW, example_id=example.id, segments=(segment,))

    assert whispered_gold(map(called, EXAMPLES), EXAMPLES) is not None


@pytest.mark.parametrize("field", ["text", "reasoning", "reply"])
def test_what_the_model_said_or_thought_may_be_sent_to_it_again_wherever_it_stands(field):
    def carried(example):
        said = msgspec.structs.replace(ROW.segments[0], **{field: f"I think of {example.gold[0]}."})
        again = msgspec.structs.replace(
            ROW.segments[0], messages=(Message("user", f"You thought of {example.gold[0]}."),)
        )
        return msgspec.structs.replace(ROW, example_id=example.id, segments=(said, again))

    assert whispered_gold(map(carried, EXAMPLES), EXAMPLES) is None


@pytest.mark.parametrize("kind", ["messages", "segments", "spaced"])
def test_time_grows_no_faster_than_a_rollout(kind):
    """Ten times as much takes about ten times as long, where all pairs would take a hundred times."""

    def made(count):
        if kind == "messages":
            return row(EXAMPLES[0], *(f"message {n}" for n in range(count)))
        if kind == "spaced":
            return row(EXAMPLES[0], " ".join(EXAMPLES[0].gold[0]) * count)
        segment = row(EXAMPLES[0], "the same").segments[0]
        return msgspec.structs.replace(ROW, example_id=EXAMPLES[0].id, segments=(segment,) * count)

    def spent(count):
        rows = [made(count)]
        began = time.process_time()
        whispered_gold(rows, EXAMPLES)
        return time.process_time() - began

    few, many = (min(spent(count) for _ in range(3)) for count in (1_000, 10_000))
    assert many < 40 * few + 0.1


def test_an_answer_that_was_shown_or_is_shared_is_no_sign():
    shown = [msgspec.structs.replace(row(one, one.gold[0]), opening=f"Q: {one.gold[0]}?") for one in EXAMPLES]
    assert whispered_gold(shown, EXAMPLES) is None
    same = [dataclasses.replace(one, gold=("yes",)) for one in EXAMPLES]
    assert whispered_gold([row(one, "Say yes or no.") for one in same], same) is None
    assert whispered_gold([], EXAMPLES) is None
    assert whispered_gold([row(EXAMPLES[0], EXAMPLES[0].gold[0])], EXAMPLES[:1]) is None
