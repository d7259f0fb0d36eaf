"""The canaries sing for hints, policies and leaks, and for nothing that is allowed."""

import asyncio
import itertools
import math
import re
from functools import cache
from typing import Any

import pytest
from bench_fakes import HEAD, record
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench.harness import canaries
from whale_bench.harness.canaries import parrot_canary, parrot_hits, permuted_gold
from whale_bench.harness.host import load_harness, load_harness_source
from whale_bench.harness.listing import LISTS, choices, lister
from whale_bench.harness.parrots import PARROTS
from whale_bench.models import Message, Request
from whale_bench.records import Rollout, Step
from whale_envs import ExampleSet, UnknownNameError, load_examples
from whale_envs.errors import HarnessFileError

CHESS = load_examples("chess_puzzles", "mini", "dev")[:32]
LARGER = [e for e in load_examples("math_python", "small", "weight") if e.family == "larger_of_two"][:40]


@cache
def under_h0(domain: str) -> dict[str, frozenset[str]]:
    examples: Any = CHESS if domain == "chess_puzzles" else LARGER
    return asyncio.run(parrot_hits(load_harness(domain), domain, examples))


def reference_of(domain: str) -> dict[str, frozenset[str]] | None:
    return under_h0(domain) if domain in PARROTS else None


def sings(body: str, domain: str = "chess_puzzles") -> str:
    """What the parrot canary says of h0 with another `messages` or `read`."""
    source = f"{HEAD}import re, json\nfrom whale_bench.harness.h0.{domain} import Harness as H0\n{body}"
    examples: Any = {"chess_puzzles": CHESS, "math_python": LARGER}.get(domain, QUESTIONS)
    found = asyncio.run(parrot_canary(source, domain, examples, name="c.py", reference=reference_of(domain)))
    return "" if found is None else found.message


QUESTIONS = load_examples("search_qa", "mini", "dev")[:40]

LISTED = r"""
def listed(view):
    return re.findall(r"\[(\S+)\] ([^\s,]+)", view.observation)
"""
HINTS = """
class Harness(H0):
    def messages(self, view):
        chat = super().messages(view)
        chat[-1]["content"] {}
        return chat
"""


def knows() -> str:
    """A table from the first position to the solution: what a strong engine would say there."""
    import chess

    gold = {}
    for example in CHESS:
        board = chess.Board(example.fen)
        board.push_uci(example.trigger)
        for move in example.gold:
            gold[board.board_fen()] = move
            board.push_uci(move)
    return (
        f"T = {gold!r}\ndef best(view):\n"
        "    return T.get(re.search(r'FEN: (\\S+)', view.observation)[1], '')\n"
    )


KNOWS = knows()
GROUPS = LISTED + HINTS.format(
    "= '\\n'.join(', '.join(f'[{u}] {s}' for u, s in listed(view) if m in s) for m in '#+x') "
    "+ chat[-1]['content']"
)
ASKS_AGAIN = """
class Harness(H0):
    MAX_TURNS = 18
    def read(self, reply, view):
        decision = super().read(reply, view)
        return decision if decision.action == best(view) else Nudge("Think again.")
"""

WORTH = """
def worth(view):
    rows = [line[2:].split() for line in view.observation.split("\\n") if re.match(r"[1-8] \\S \\S", line)]
    return lambda one: "pnbrq".find(rows[8 - int(one[0][3])]["abcdefgh".index(one[0][2])].lower())
"""
SING = {
    "a move in the prompt": KNOWS + HINTS.format("+= f'\\nBest: {best(view)}'"),
    "a move at the top": KNOWS + HINTS.format("= f'Best: {best(view)}\\n' + chat[-1]['content']"),
    "in SAN": LISTED + KNOWS + HINTS.format("+= '\\nBest: ' + dict(listed(view)).get(best(view), '')"),
    "fewer moves": KNOWS + HINTS.format("= f'Choose from: {best(view)}'"),
    "asking until it is right": KNOWS + ASKS_AGAIN,
}
MATERIAL_HINT = LISTED + WORTH + HINTS.format("+= '\\nBest: ' + max(listed(view), key=worth(view))[1]")
SILENT = {
    "h0": "class Harness(H0):\n    pass\n",
    "groups by marks": GROUPS,
    "groups under words that point": LISTED + HINTS.format(
        "+= '\\nAnswer with one of these. ' + '; '.join(f'{n}: ' + ' '.join(f'[{u}] {s}' for u, s in"
        " listed(view) if m in s) for n, m in (('mates', '#'), ('checks', '+'), ('captures', 'x')))"
    ),
    "groups to note": LISTED + HINTS.format(
        "+= ''.join(f'\\nNote the {n}: ' + ' '.join(u for u, s in listed(view) if m in s)"
        " for n, m in (('mates', '#'), ('checks', '+'), ('captures', 'x')))"
    ),
    "a number of none": LISTED + HINTS.format("+= '\\nAs in e2e4: 9, ' + listed(view)[0][0] + ': 1'"),
    "history": HINTS.format("+= '\\nYour moves so far are above. Think of checks, captures and threats.'"),
    "shuffled": LISTED + HINTS.format(
        "+= '\\n' + ' '.join(sorted((u for u, _ in listed(view)), key=lambda u: hash((u, view.seed))))"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SING)
def test_a_chess_policy_makes_the_parrots_better(what: str) -> None:
    assert sings(SING[what]).startswith("c.py:1: the parrot ")


@pytest.mark.parametrize("what", SILENT)
def test_what_is_allowed_in_chess_makes_no_parrot_better(what: str) -> None:
    assert sings(SILENT[what]) == ""


def test_a_hint_too_weak_to_count_is_found_by_other_boards() -> None:
    assert re.match(r"c\.py:\d+: messages goes by the pieces on the board", sings(MATERIAL_HINT))


@pytest.mark.parametrize("end", ["The answer is 6.", "Answer: 4"])
def test_one_worked_example_is_no_hint_though_its_answer_is_common(end: str) -> None:
    families = ("count_items", "units_digit", "divisor_count")
    problems = [e for e in load_examples("math_python", "small", "harness") if e.family in families]
    source = (
        f"{HEAD}from whale_bench.harness.h0.math_python import Harness as H0\nclass Harness(H0):\n"
        f"    SYSTEM_PROMPT = 'How many items are in the list: 3, 5, 7, 8? {end}'\n"
    )
    assert asyncio.run(parrot_canary(source, "math_python", ExampleSet(problems, name="x"))) is None


def test_an_answer_that_the_harness_worked_out_makes_the_parrots_better() -> None:
    body = HINTS.format("+= f' It may be {max(int(n) for n in re.findall(r\"[0-9]+\", view.opening))}.'")
    message = sings(body, "math_python")
    assert "is right on 40 of 40 examples, under h0 " in message
    assert sings("class Harness(H0):\n    pass\n", "math_python") == ""
    example = "A train has 12 cars of 40 seats. It seats \\\\boxed{480}."
    assert sings(HINTS.format(f"= '{example} ' + chat[-1]['content']"), "math_python") == ""


# --- several answers in a reply ---------------------------------------------------------------------

CHOOSES = """
def best(moves, view):
    {}

class Harness(H0):
    def messages(self, view):
        chat = super().messages(view)
        chat[-1]["content"] += {}
        return chat
    def read(self, reply, view):
        moves = {}
        return Act(best(moves, view)) if moves else Act(reply.text)
"""
ANY_UCI = r're.findall(r"\b[a-h][1-8][a-h][1-8][qrbn]?\b", reply.text)'
TABLE = "known = [m for m in moves if m == policy(view)]\n    return (known or moves)[0]"
POLICY = KNOWS.replace("best", "policy")
MATERIAL = r"""
    names = dict(re.findall(r"\[(\S+)\] ([^\s,]+)", view.observation))
    rows = [line[2:].split() for line in view.observation.split("\n") if re.match(r"[1-8] \S \S", line)]
    worth = lambda m: "pnbrqk".find(rows[8 - int(m[3])]["abcdefgh".index(m[2])].lower()) + 1
    return max(moves, key=lambda m: (names[m][-1] == "#", names[m][-1] == "+", worth(m)))
"""
PLAYS = {
    "a table, of every move": POLICY + CHOOSES.format(TABLE, "'\\nName every legal move.'", ANY_UCI),
    "an evaluation": CHOOSES.format(MATERIAL.strip(), "'\\nName every legal move.'", ANY_UCI),
    "a table, where it may": POLICY + CHOOSES.format(
        "ends = moves[0], moves[-1]\n    return ends[ends[1] == policy(view)]", "''", ANY_UCI
    ),
    "in a tag of its own": POLICY + CHOOSES.format(
        TABLE, "'\\nAs <plan>moves</plan>.'",
        're.findall(r"[^, ]+", re.search(r"<plan>([^<]*)</plan>", reply.text + "<plan></plan>")[1])'
    ),
    "in JSON": POLICY + CHOOSES.format(
        TABLE, "'\\nAs {\"ideas\": [moves]}.'",
        'sum((json.loads(t)["ideas"] for t in re.findall("{.ideas.*}", reply.text)), [])',
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLAYS)
def test_a_move_that_the_harness_chose_from_a_list_is_no_sample(what: str) -> None:
    assert re.match(r"c\.py:\d+: (read chooses|where a reply names)", sings(PLAYS[what]))


FAIR = {
    "the last": CHOOSES.format("return moves[-1]", "''", ANY_UCI),
    "the first": CHOOSES.format("return moves[0]", "''", ANY_UCI),
    "the last tag": CHOOSES.format(
        "return moves[-1]", "''", r're.findall("<move>(.{4,5})</move>", reply.text)'
    ),
    "any, by seed": CHOOSES.format("return moves[-(view.seed % 2)]", "''", ANY_UCI),
    "asks for one": CHOOSES.format("return moves[0]", "''", "()").replace(
        "moves = ()", f"moves = {ANY_UCI}\n        if len(set(moves)) > 1: return Nudge('One move, please.')"
    ),
}


@pytest.mark.parametrize("what", FAIR)
def test_taking_the_first_or_the_last_of_a_list_is_no_choice(what: str) -> None:
    assert sings(FAIR[what]) == ""


NUMBERS = r"""
class Harness(H0):
    def read(self, reply, view):
        said = re.findall(r"\\boxed\{(\d+)\}", reply.text)
        best = max(re.findall(r"\d+", view.opening), key=int)
        return Act(f"\\boxed{{{best}}}") if best in said else Act(reply.text)
"""
ANSWERS = r"""
class Harness(H0):
    def read(self, reply, view):
        said = re.findall(r"<answer>(.*?)</answer>", reply.text)
        known = [a for a in said if a == GOLD[view.opening]]
        return Act(f"<answer>{known[0]}</answer>") if known else Act(reply.text)
"""
FIRST = r"""
class Harness(H0):
    def read(self, reply, view):
        said = re.findall(r"{form}", reply.text)
        return Act(said[0]) if said else Act(reply.text)
"""


@pytest.mark.parametrize("domain", ["math_python", "search_qa"])
def test_an_answer_that_the_harness_chose_from_a_list_is_no_sample(domain: str) -> None:
    math = domain == "math_python"
    golds = f"GOLD = { {e.question: e.gold[0] for e in QUESTIONS}!r}\n"
    message = sings(NUMBERS if math else golds + ANSWERS, domain)
    assert "examples, 20.0 by chance: it chooses among them" in message
    form = r"\\boxed\{\d+\}" if math else "<answer>.*?</answer>"
    for body in ("class Harness(H0):\n    pass\n", FIRST.replace("{form}", form)):
        assert sings(body, domain) == ""


@pytest.mark.parametrize("which", LISTS)
@pytest.mark.parametrize("domain", ["chess_puzzles", "math_python", "search_qa"])
def test_whoever_takes_the_first_of_a_list_is_right_by_chance(domain: str, which: str) -> None:
    examples: Any = {"chess_puzzles": CHESS, "math_python": LARGER}.get(domain, QUESTIONS)
    right = expected = 0.0
    for example in examples:
        listed = choices(example, examples, which)
        assert len(set(listed.texts)) == len(listed.texts) > listed.right > 0
        for seed in range(20):
            said = lister(listed, domain)(Request((Message("user", "x"),), seed=seed))
            first = said.partition("\n")[0].removeprefix("Final answer: ")
            right += first in listed.texts[: listed.right]
            expected += listed.chance
    assert right == pytest.approx(expected, abs=4 * expected**0.5)


async def test_a_broken_file_and_a_domain_that_is_none() -> None:
    with pytest.raises(HarnessFileError):
        await parrot_canary("broken(", "search_qa", load_examples("search_qa", "mini", "dev"))
    with pytest.raises(UnknownNameError):
        await parrot_canary("broken(", "go", [])


async def test_the_reference_is_played_where_nobody_has_it() -> None:
    source = HEAD + "from whale_bench.harness.h0.math_python import Harness as H0\nclass Harness(H0): pass\n"
    assert await parrot_canary(source, "math_python", LARGER[:6]) is None
    async with load_harness_source("math_python", source, "x.py") as harness:
        again = [await parrot_hits(harness, "math_python", LARGER[:6]) for _ in range(2)]
    assert again[0] == again[1]


def test_parrots_copy_and_do_not_think() -> None:
    chat = (
        Message("user", "[e2e4] e4, [g1f3] Nf3, [b1c3] Nc3. Best: Nc3. g1f3 (0.3), e2e4 (0.5). * [b1c3]"),
        Message("assistant", "a1a8"),
        Message("user", "or Nf3, Nf3?"),
    )
    said = {name: reply(Request(chat, seed=1)) for name, reply in PARROTS["chess_puzzles"].items()}
    assert {name: text.partition("\n")[0] for name, text in said.items() if name != "any"} == {
        "first": "Final answer: g1f3", "last": "Final answer: g1f3", "last of all": "Final answer: g1f3",
        "most": "Final answer: g1f3", "told": "Final answer: b1c3", "starred": "Final answer: b1c3",
        "rated": "Final answer: e2e4",
    }  # fmt: skip
    nothing = Request((Message("user", "Hello."),))
    assert {reply(nothing) for each in PARROTS.values() for reply in each.values()} == {"I do not know."}
    numbers = Request((Message("user", r"x = \frac{1}{2}, -3.5 or 7/8"),))
    assert r"\boxed{\frac{1}{2}}" in PARROTS["math_python"]["first"](numbers)
    assert r"\boxed{7/8}" in PARROTS["math_python"]["last"](numbers)


# --- permuted gold --------------------------------------------------------------------------------


def rows(domain: str, examples: Any, response: Any) -> list[Rollout]:
    return [
        record(f"dev:{e.id}:0", domain=domain, steps=tuple(Step(r, "", "ok", "") for r in response(e)))
        for e in examples
    ]


@pytest.mark.parametrize("domain", ["math_python", "search_qa"])
def test_right_and_wrong_answers_are_by_chance_at_most_under_shuffled_gold(domain: str) -> None:
    examples = load_examples(domain, "mini", "dev")
    gold = examples[0].gold if domain == "math_python" else examples[0].gold[0]
    form = r"\boxed{{{}}}" if domain == "math_python" else "<answer>{}</answer>"
    own = lambda e: [form.format(e.gold if domain == "math_python" else e.gold[0])]  # noqa: E731
    for response in (own, lambda e: [form.format(gold)], lambda e: ["hm"], lambda e: []):
        assert permuted_gold(rows(domain, examples, response), examples) is None


def test_a_response_that_is_right_for_everybody_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier with a hole: it takes whatever holds the answer anywhere."""
    from whale_envs import Verdict, search_qa

    examples = load_examples("search_qa", "mini", "dev")
    everything = " ".join(gold for example in examples for gold in example.gold)
    hole = lambda e, response, *, profile: Verdict(float(any(g in response for g in e.gold)), "x")  # noqa: E731
    monkeypatch.setattr(search_qa, "verify", hole)
    played = rows("search_qa", examples, lambda e: [everything])
    found = permuted_gold(played, examples, name="c.py")
    assert found is not None
    assert found.message.startswith(f"c.py:1: {len(examples)} of {len(examples)} responses are right for")
    assert permuted_gold([], examples) is None
    assert permuted_gold(played, examples[:1]) is None


def test_moves_of_one_puzzle_are_judged_on_another() -> None:
    played = rows("chess_puzzles", CHESS, lambda e: list(e.gold[::2]))
    assert permuted_gold(played, list(CHESS)) is None


def test_the_tail_of_the_binomial() -> None:
    assert canaries.tail(0, [0.3] * 10) == pytest.approx(1.0)
    assert canaries.tail(10, [0.5] * 10) == pytest.approx(2**-10)
    assert canaries.tail(1, [0.5] * 2) == pytest.approx(0.75)
    assert canaries.tail(1, [0.5, 0.1]) == pytest.approx(1 - 0.5 * 0.9)
    assert isinstance(CHESS, ExampleSet)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), max_size=6))
def test_the_tail_is_what_counting_all_cases_gives(chances: list[float]) -> None:
    for hits in range(len(chances) + 1):
        whole = sum(
            math.prod(c if hit else 1 - c for c, hit in zip(chances, case, strict=True))
            for case in itertools.product((0, 1), repeat=len(chances))
            if sum(case) >= hits
        )
        assert canaries.tail(hits, chances) == pytest.approx(whole)
