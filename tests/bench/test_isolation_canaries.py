"""The canaries sing for hints, policies and leaks, and for nothing that is allowed."""

import asyncio
from functools import cache
from typing import Any

import pytest
from bench_fakes import HEAD, record

from whale_bench.harness import canaries
from whale_bench.harness.canaries import parrot_canary, parrot_hits, permuted_gold
from whale_bench.harness.host import load_harness, load_harness_source
from whale_bench.harness.parrots import PARROTS
from whale_bench.models import Message, Request
from whale_bench.records import Rollout, Step
from whale_envs import ExampleSet, UnknownNameError, load_examples

CHESS = load_examples("chess_puzzles", "mini", "dev")[:48]
LARGER = [e for e in load_examples("math_python", "small", "weight") if e.family == "larger_of_two"][:40]


@cache
def under_h0(domain: str) -> dict[str, frozenset[str]]:
    examples: Any = CHESS if domain == "chess_puzzles" else LARGER
    return asyncio.run(parrot_hits(load_harness(domain), domain, examples, marked=True))


def sings(body: str, domain: str = "chess_puzzles") -> str:
    """What the parrot canary says of h0 with another `messages` or `read`."""
    source = f"{HEAD}import re\nfrom whale_bench.harness.h0.{domain} import Harness as H0\n{body}"
    examples: Any = CHESS if domain == "chess_puzzles" else LARGER
    found = asyncio.run(parrot_canary(source, domain, examples, name="c.py", reference=under_h0(domain)))
    return "" if found is None else found.message


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

SING = {
    "a move in the prompt": KNOWS + HINTS.format("+= f'\\nBest: {best(view)}'"),
    "a move at the top": KNOWS + HINTS.format("= f'Best: {best(view)}\\n' + chat[-1]['content']"),
    "in SAN": LISTED + KNOWS + HINTS.format("+= '\\nBest: ' + dict(listed(view)).get(best(view), '')"),
    "fewer moves": KNOWS + HINTS.format("= f'Choose from: {best(view)}'"),
    "asking until it is right": KNOWS + ASKS_AGAIN,
}
SILENT = {
    "h0": "class Harness(H0):\n    pass\n",
    "groups by marks": GROUPS,
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


def test_an_answer_that_the_harness_worked_out_makes_the_parrots_better() -> None:
    body = HINTS.format("+= f' It may be {max(int(n) for n in re.findall(r\"[0-9]+\", view.opening))}.'")
    message = sings(body, "math_python")
    assert "is right on 40 of 40 examples, under h0 " in message
    assert sings("class Harness(H0):\n    pass\n", "math_python") == ""
    example = "A train has 12 cars of 40 seats. It seats \\\\boxed{480}."
    assert sings(HINTS.format(f"= '{example} ' + chat[-1]['content']"), "math_python") == ""


async def test_a_domain_without_parrots_and_one_that_is_none() -> None:
    assert await parrot_canary("broken(", "search_qa", load_examples("search_qa", "mini", "dev")) is None
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
        Message("user", "[e2e4] e4, [g1f3] Nf3."),
        Message("assistant", "a1a8"),
        Message("user", "or Nf3?"),
    )
    said = {name: reply(Request(chat, seed=1)) for name, reply in PARROTS["chess_puzzles"].items()}
    assert {name: text.partition("\n")[0] for name, text in said.items() if name != "any"} == {
        "first": "Final answer: g1f3", "last": "Final answer: g1f3", "last of all": "Final answer: g1f3",
        "most": "Final answer: g1f3",
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
    assert canaries._tail(0, 10, 0.3) == pytest.approx(1.0)
    assert canaries._tail(10, 10, 0.5) == pytest.approx(2**-10)
    assert canaries._tail(1, 2, 0.5) == pytest.approx(0.75)
    assert isinstance(CHESS, ExampleSet)
