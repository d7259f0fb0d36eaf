"""Which of several moves a harness may take."""

import re

import chess
import pytest
from bench_fakes import in_process, play
from hypothesis import given
from hypothesis import strategies as st

from whale_bench.harness.choice import is_fair_choice
from whale_bench.models.base import Request

SEEN = f"FEN: {chess.STARTING_FEN}\nLegal moves: [a2a3] a3"
LEGAL = sorted(move.uci() for move in chess.Board().legal_moves)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("d2d4", "e2e4, d2d4, g1f3"),
        ("D2D4", "e2e4, D2D4, g1f3"),
        ("d4", "1. e4 2. d4 3. Nf3"),
        ("d4", "e4\nd4\nNf3"),
        ("d2d4", "e4 (e2e4), d4 (d2d4), Nf3 (g1f3)"),
        ("[d2d4]", "[e2e4] [d2d4] [g1f3]"),
        ("d2-d4", "e2-e4 d2-d4 g1-f3"),
        ("d2d4", "<a>e2e4</a><b>d2d4</b><c>g1f3</c>"),
        ("d2d4", "<move>e2e4</move><move>d2d4</move><move>g1f3</move>"),
        ("and d2d4 and", "e2e4 and d2d4 and g1f3"),
        ("d2d4", '{"moves": ["e2e4", "d2d4", "g1f3"]}'),
    ],
)
def test_a_move_from_the_middle_of_a_list_is_the_harnesss_own(action: str, text: str) -> None:
    assert not is_fair_choice(action, [text], SEEN)
    assert not is_fair_choice(action, [text, "and nothing else"], SEEN)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("d2d4", "e2e4 or <move>d2d4</move>, not g1f3"),
        ("d2d4", "e2e4 or <answer> d2d4 </answer>, not g1f3"),
        ("d2d4", "<idea>e2e4</idea> e2e4 <play>d2d4</play>, not g1f3"),
        ("d2d4", "e2e4 or [d2d4], not g1f3"),
        ("d2d4", r"e2e4 or \boxed{d2d4}, not g1f3"),
        ("d4", "e4 or **d4**, not Nf3"),
        ("d4", "e4 loses. Best move: d4, not Nf3"),
        ("d4", "e4? Nf3? So my move is d4. Nc3 is worse."),
        ("d2d4", "e4 loses to d5; d2d4 is better than Nf3"),  # the only one in UCI
        ("Nf3", "e4?\nd4?\nNf3! hits e5 and c3"),
        ("d2d4", "e2e5, d2d4, g1f3"),  # the first legal one
        ("d2d4", "d2d4 d4 d2d4 a1a8 h8h1"),
        ("h8h1", "d2d4 e2e4 h8h1 g1f3"),  # the environment's to refuse
        ("e2e4, d2d4, g1f3", "e2e4, d2d4, g1f3"),
    ],
)
def test_what_the_reply_marks_or_puts_at_an_end_may_be_taken(action: str, text: str) -> None:
    assert is_fair_choice(action, [text], SEEN)


SOME = st.lists(st.sampled_from(LEGAL), min_size=1, max_size=8, unique=True)


@given(SOME, st.sampled_from([", ", "\n", " / "]))
def test_of_a_bare_list_the_ends_may_be_taken_and_nothing_else(moves: list[str], between: str) -> None:
    text = between.join(moves) + "."
    fair = [move for move in moves if is_fair_choice(move, [text], SEEN)]
    assert fair == list(dict.fromkeys([moves[0], moves[-1]]))


@given(st.text("e2d4gf3N[]<>*/move:\n ", max_size=60), st.text("e2d4gf3N[]<>*/move:\n ", max_size=12))
def test_every_text_has_an_answer(text: str, action: str) -> None:
    assert is_fair_choice(action, [text], "no position")
    assert isinstance(is_fair_choice(action, [text], SEEN), bool)


async def test_a_harness_that_chooses_ends_its_rollout() -> None:
    reads = "def read(self, reply, view): return Act(reply.text.split()[{}])"
    every = lambda request: " ".join(legal(request))  # noqa: E731
    row = await play(every, in_process(reads.format(3)))
    assert (row.stop_condition, row.verdict.reward) == ("provenance", 0.0)
    assert "is chosen among moves that the reply lists" in row.error
    for end in (0, -1):
        assert (await play(every, in_process(reads.format(end)))).stop_condition == "wrong_move"


def legal(request: Request) -> list[str]:
    return re.findall(r"\[([a-h][1-8][a-h][1-8])\]", request.messages[-1].content)
