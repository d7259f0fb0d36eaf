"""Whole searches whose proposer is a model behind a loopback server: a competent one, and bad ones."""

import json
import re

import messages_server
import pytest
from messages_server import HANG_UP, message, thinking, tool_use
from search_fakes import Scripted, accounts, recipe_of, search, texts, told
from whale_baselines.proposers.agentic import AgenticProposer, Limits
from whale_baselines.proposers.models import NEWEST_OPUS, EffortBackend
from whale_baselines.proposers.registry import open_proposer
from whale_baselines.search.archive import read_archive

from whale_bench.models.http_retry import Patience
from whale_envs import load_examples

USED = {"input_tokens": 100, "output_tokens": 10}


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-key")


def results(payload):
    """What the tools have said so far, in order."""
    blocks = [block for one in payload["messages"] for block in one["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def calls(number, *made):
    blocks = [tool_use(name, given, f"toolu_{number}_{n}") for n, (name, given) in enumerate(made)]
    return message(thinking("let me see"), *blocks, stop="tool_use", usage=USED)


def slot(number, source, **more):
    given = {
        "path": f"workspace/slot_{number}.py",
        "source": source,
        "hypothesis": "plain words help",
        "changes": "words",
    }
    return "write", {**given, **more}


def competent(payload, _number):
    """Reads what is accepted and how that failed, writes it anew with other words, checks it, and is done."""
    said, turn = results(payload), sum(one["role"] == "assistant" for one in payload["messages"])
    if turn == 0:
        return calls(turn, ("list", {"path": "archive"}), ("read", {"path": "archive/frontier.json"}))
    best = json.loads(said[1])[-1]["accepted"]
    if turn == 1:
        return calls(
            turn,
            ("read", {"path": f"archive/harnesses/{best}/harness.py"}),
            ("search", {"text": "failed", "path": f"archive/harnesses/{best}"}),
        )
    if turn == 2:
        assert "/failures/" in said[3]
        skill = {"h0": 0.6}.get(best, 0.99)
        source = re.sub(r'"(SKILL [\d.]+ )?You are solving', f'"SKILL {skill} You are solving', said[2])
        return calls(
            turn,
            slot(1, source, parents=[best]),
            slot(2, source.replace(f"{skill}", "0.05" if best == "h0" else "0.1")),
        )
    if turn == 3:
        return calls(turn, ("run_check", {"path": "workspace/slot_1.py"}))
    assert said[-1] == "no findings"
    return message("Slot 1 says it plainly; slot 2 is its opposite.", usage=USED)


async def test_a_competent_model_finds_a_better_harness_with_all_its_tools(tmp_path):
    recipe = recipe_of(proposer="anthropic", slots=2, examples=24)
    async with messages_server.serve(competent) as server:
        proposer = open_proposer("anthropic", base_url=server.url)
        lines, accepted = await search(tmp_path / "run", proposer, 3, recipe=recipe)
    assert [line["accepted"] for line in lines] == ["h0", "h1", "h3"]
    assert [line["problem"] for line in lines] == [""] * 3
    assert "SKILL 0.99" in accepted.source
    state = read_archive(tmp_path / "run" / "archive")
    assert {one.status for one in state.candidates.values()} == {"scored"}
    assert state.candidates["h3"].proposal.parents == (state.candidates["h1"].harness_id,)
    assert lines[2]["success"] > lines[1]["success"] > lines[0]["success"]
    charged, _ = accounts(tmp_path / "run")
    assert charged["harness"].proposer_calls == len(server.requests) == 10
    assert charged["harness"].proposer_prompt_tokens == 1000
    assert charged["harness"].proposer_micro_usd == 10 * (100 * 4 + 10 * 20)
    assert not charged["harness"].unpriced
    assert charged["harness"].rollouts == 24 * 5
    transcript = texts(tmp_path / "run" / "archive")["iterations/p1-i03/transcript.jsonl"]
    events = [json.loads(line) for line in transcript.splitlines()]
    assert [event["tool"] for event in events if event.get("event") == "tool"] == [
        "list", "read", "read", "search", "write", "write", "run_check",
    ]  # fmt: skip
    seen = json.dumps(server.requests)
    scored = [
        one for split in ("harness", "dev", "test") for one in load_examples("chess_puzzles", "mini", split)
    ]
    assert not any(one.id in seen for one in scored)
    assert all(" ".join(one.gold) not in seen for one in scored if len(one.gold) > 1)


GOOD = [told(0.35 + n / 10, f"good {n}") for n in range(6)]


def outside(number, payload):
    if number == 0:
        return calls(
            0,
            slot(1, GOOD[0], path="../../../../archive.jsonl"),
            slot(1, GOOD[0], path="archive/harnesses/h0/harness.py"),
        )
    return calls(1, slot(1, GOOD[0])) if number == 1 else message("done", usage=USED)


def nothing(number, payload):
    return message("It cannot be better.", usage=USED)


def twice(number, payload):
    return calls(number, slot(1, GOOD[1 + number])) if number < 2 else message("done", usage=USED)


def loops(number, payload):
    return calls(number, ("list", {"path": "archive"}))


def dies(number, payload):
    return calls(0, slot(1, GOOD[3])) if number == 0 else HANG_UP


BAD = [outside, nothing, twice, loops, dies]


def bad(payload, _number):
    iteration = int(re.search(r"iteration (\d+)\.", payload["messages"][0]["content"][0]["text"])[1])
    return BAD[iteration - 2](sum(one["role"] == "assistant" for one in payload["messages"]), payload)


async def test_bad_models_cost_their_iteration_and_no_more(tmp_path):
    async with messages_server.serve(bad) as server:
        quick = Patience(attempts=2, backoff_s=0.001, connect_s=5, silence_s=5)
        proposer = AgenticProposer(
            "anthropic",
            lambda: EffortBackend(NEWEST_OPUS, effort="max", base_url=server.url, patience=quick),
            Limits(sessions=2),
            NEWEST_OPUS,
        )
        lines, _ = await search(tmp_path / "run", proposer, 6, recipe=recipe_of(slots=1, examples=8))
    problems = [line["problem"] for line in lines[1:]]
    assert problems[0] == "2 calls that lead outside of the slots and folders were refused"
    assert problems[1] == "0 of 1 slots were written"
    assert problems[2] == ""
    assert "made the same call 6 times" in problems[3]
    assert "server failed" in problems[4]
    assert [line["candidates"] for line in lines[1:]] == [
        {"h1": "scored"}, {}, {"h2": "scored"}, {}, {"h3": "scored"},
    ]  # fmt: skip
    state = read_archive(tmp_path / "run" / "archive")
    assert [one.source for one in state.candidates.values()][1:] == [GOOD[0], GOOD[2], GOOD[3]]
    assert [line["rollouts"] for line in lines] == [8, 9, 0, 9, 0, 9]
    charged, _ = accounts(tmp_path / "run")
    assert charged["harness"].proposer_calls >= len(server.requests) - quick.attempts + 1
    again, _ = await search(tmp_path / "run", Scripted([]), 6, recipe=recipe_of(slots=1, examples=8))
    assert again == []
