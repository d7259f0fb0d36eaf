"""Proposers that are models, against real servers on the loopback: a competent one and its bad twins."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chat_server
import messages_server
import pytest
from messages_server import HANG_UP, Answer, Stream, events_of, message, thinking, tool_use
from proposer_fakes import harness, make_brief
from whale_baselines.proposers.agentic import ENDED_AT, REMINDERS, AgenticProposer, Limits
from whale_baselines.proposers.models import NEWEST_OPUS, EffortBackend, anthropic_proposer, openai_proposer
from whale_baselines.proposers.prices import PRICES, Price, cost
from whale_baselines.proposers.registry import open_proposer
from whale_baselines.search.proposal import Session

from whale_bench.harness.host import InProcessHarness
from whale_bench.models.base import Usage
from whale_bench.models.http_retry import Patience
from whale_envs.errors import UsageError

LIMITS = Limits()
QUICK = Patience(attempts=2, backoff_s=0.001, connect_s=5, silence_s=5)
USED = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 5000,
    "cache_read_input_tokens": 20000,
    "output_tokens": 50,
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret-key")


def slot(number: int, source: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    arguments = {"path": f"workspace/slot_{number}.py", "source": source or harness(number)}
    return "write", {**arguments, "hypothesis": f"way {number} helps", "changes": "other words", **more}


Calls = list[tuple[str, dict[str, Any]]]

COMPETENT: list[Calls] = [
    [("list", {"path": "archive"}), ("read", {"path": "archive/README.md"})],
    [("search", {"text": "boxed", "path": "archive"})],
    [("read", {"path": "archive/h0.py"})],
    [slot(1, parents=["h0"], components=["wording"]), slot(2)],
    [slot(3), ("run_check", {"path": "workspace/slot_1.py"})],
    [],
]
"""A proposer that looks around, writes its slots, checks one and is done."""


def messages_script(steps: list[Calls], stop: str = "done") -> messages_server.Script:
    def reply(payload: dict[str, Any], number: int) -> Any:
        calls = steps[min(number, len(steps) - 1)]
        blocks = [tool_use(name, given, f"toolu_{number}_{n}") for n, (name, given) in enumerate(calls)]
        if not blocks:
            return message(stop, usage=USED)
        return message(thinking("let me see"), *blocks, stop="tool_use", usage=USED)

    return reply


def chat_script(steps: list[Calls]) -> chat_server.Script:
    def reply(payload: dict[str, Any], number: int) -> Any:
        calls = steps[min(number, len(steps) - 1)]
        usage = {"prompt_tokens": 100, "completion_tokens": 7}
        if not calls:
            return chat_server.completion("done", usage=usage)
        made = [
            {
                "id": f"c{number}_{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            }
            for n, (name, given) in enumerate(calls)
        ]
        text = {"role": "assistant", "content": None, "tool_calls": made}
        return chat_server.completion(text, "tool_calls", usage)

    return reply


async def run_messages(
    tmp_path: Path, script: Any, limits: Limits = LIMITS, **more: Any
) -> tuple[Session, Any]:
    async with messages_server.serve(script) as server:

        def backend() -> EffortBackend:
            return EffortBackend(NEWEST_OPUS, effort="max", base_url=server.url, patience=QUICK)

        proposer = AgenticProposer("anthropic", backend, limits, NEWEST_OPUS)
        return await proposer.propose(make_brief(tmp_path, **more)), server


async def test_a_competent_proposer_over_the_messages_api(tmp_path: Path) -> None:
    async with messages_server.serve(messages_script(COMPETENT)) as server:
        proposer = open_proposer("anthropic", base_url=server.url)
        session = await proposer.propose(make_brief(tmp_path))
    assert session.problem == ""
    assert [one.source for one in session.proposals] == [harness(1), harness(2), harness(3)]
    assert session.proposals[0].parents == ("id-h0",)
    assert session.proposals[0].components == ("wording",)
    for one in session.proposals:
        InProcessHarness(one.source, "candidate.py")

    first, last = server.requests[0], server.requests[-1]
    assert first["model"] == NEWEST_OPUS
    assert first["output_config"] == {"effort": "max"}
    assert {tool["name"] for tool in first["tools"]} == {"list", "read", "search", "write", "run_check"}
    assert "class BaseHarness" in first["system"][0]["text"]
    assert "h0: iteration 0, scored, score 0.1000" in first["messages"][0]["content"][0]["text"]
    results = [b["content"] for m in last["messages"] for b in m["content"] if b["type"] == "tool_result"]
    assert results[0].startswith("README.md")
    assert "archive/h0.py:" in results[2]
    assert results[-1] == "no findings"
    assert [m["role"] for m in last["messages"]] == ["user", "assistant"] * 5 + ["user"]

    charge = session.charge
    assert (charge.proposer_calls, charge.proposer_prompt_tokens, charge.proposer_sampled_tokens) == (
        6,
        6 * 25_010,
        300,
    )
    assert charge.proposer_micro_usd == 6 * round(10 * 4 + 5000 * 5 + 20000 * 0.2 + 50 * 20)
    assert (charge.rollouts, charge.unpriced, charge.unmetered_tokens) == (0, False, False)
    replies = [line for line in session.transcript if line["event"] == "reply"]
    assert replies[0]["usage"]["cache_read_tokens"] == 20_000
    assert [line["tool"] for line in session.transcript if line["event"] == "tool"][-1] == "run_check"


async def test_a_competent_proposer_over_an_openai_compatible_server(tmp_path: Path) -> None:
    async with chat_server.serve(chat_script(COMPETENT)) as server:
        proposer = open_proposer("openai", model="m", base_url=server.url)
        session = await proposer.propose(make_brief(tmp_path))
    assert session.problem == ""
    assert [one.source for one in session.proposals] == [harness(1), harness(2), harness(3)]
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]][:2] == ["list", "read"]
    last = server.requests[-1]["messages"]
    assert [m["role"] for m in last][:5] == ["system", "user", "assistant", "tool", "tool"]
    assert last[3]["tool_call_id"] == "c0_0"
    charge = session.charge
    assert (charge.proposer_calls, charge.proposer_prompt_tokens, charge.proposer_sampled_tokens) == (
        6,
        600,
        42,
    )
    assert charge.unpriced
    assert charge.proposer_micro_usd == 0


async def test_a_price_of_ones_own_counts(tmp_path: Path) -> None:
    async with chat_server.serve(chat_script(COMPETENT)) as server:
        proposer = open_proposer("openai", model="m", base_url=server.url, price=[1.0, 2.0, 0.0, 0.0])
        session = await proposer.propose(make_brief(tmp_path))
    assert session.charge.proposer_micro_usd == 600 + 2 * 42
    assert not session.charge.unpriced


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_writes_outside_are_refused_said_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text("{}")
    paths = [
        "../scores.json",
        "../../scores.json",
        str(tmp_path / "scores.json"),
        "archive/h0.py",
        "workspace/slot_9.py",
    ]
    before = contents(tmp_path)
    steps = [[("write", {**slot(1)[1], "path": path}) for path in paths], [slot(1), slot(2), slot(3)], []]
    session, server = await run_messages(tmp_path, messages_script(steps))
    assert len(session.proposals) == 3
    assert "5 calls that lead outside" in session.problem
    assert (tmp_path / "scores.json").read_text() == "{}"
    assert contents(tmp_path).items() >= before.items()
    refused = [line for line in session.transcript if line.get("refused")]
    assert len(refused) == 5
    told = [b["content"] for b in server.requests[1]["messages"][-1]["content"]]
    assert all(text.startswith("[") for text in told)


async def test_one_that_writes_nothing_is_reminded_and_held_once_more(tmp_path: Path) -> None:
    session, server = await run_messages(tmp_path, messages_script([[]], stop="The harness is optimal."))
    assert session.proposals == ()
    assert session.problem == "0 of 3 slots were written"
    assert len(server.requests) == 2 * (1 + REMINDERS)
    again = server.requests[1 + REMINDERS]["messages"][0]["content"][0]["text"]
    assert "An earlier session wrote no candidate" in again
    assert session.charge.proposer_calls == 2 * (1 + REMINDERS)


async def test_one_that_writes_too_little_keeps_what_it_wrote(tmp_path: Path) -> None:
    session, server = await run_messages(tmp_path, messages_script([[slot(2)], []]))
    assert [one.source for one in session.proposals] == [harness(2)]
    assert session.problem == "1 of 3 slots were written"
    assert len(server.requests) == 1 + 1 + REMINDERS


async def test_one_that_writes_twice_is_taken_at_its_last_word(tmp_path: Path) -> None:
    steps = [[slot(1), slot(2), slot(3)], [slot(1, harness(7)), slot(2, harness(3))], []]
    session, server = await run_messages(tmp_path, messages_script(steps))
    assert [one.source for one in session.proposals] == [harness(7), harness(2), harness(3)]
    told = [b["content"] for b in server.requests[2]["messages"][-1]["content"]]
    assert told[0].startswith("replaced")
    assert "stands in workspace/slot_3.py already" in told[1]


async def test_one_that_loops_on_a_tool_is_ended(tmp_path: Path) -> None:
    session, server = await run_messages(
        tmp_path, messages_script([[("list", {"path": "archive"})]]), Limits(sessions=1)
    )
    assert f"made the same call {ENDED_AT} times" in session.problem
    assert len(server.requests) == ENDED_AT
    told = [
        b["content"]
        for m in server.requests[-1]["messages"]
        for b in m["content"]
        if b["type"] == "tool_result"
    ]
    assert ["you have made this call" in text for text in told] == [False, False, True, True, True]


def looks_and_writes(rounds: int, source: Callable[[int], str]) -> list[Calls]:
    looks = [
        ("run_check", {"path": "workspace/slot_1.py"}),
        ("read", {"path": "workspace/slot_1.py"}),
        ("search", {"text": "round", "path": "workspace"}),
        ("list", {"path": "workspace"}),
    ]
    return [step for n in range(rounds) for step in ([slot(1, source(n))], looks)]


async def test_a_slot_that_was_written_again_may_be_looked_at_again(tmp_path: Path) -> None:
    rounds = ENDED_AT + 1
    steps = looks_and_writes(rounds, lambda n: f"def round {n}:\n")  # no Python: a check of it is quick
    session, server = await run_messages(tmp_path, messages_script([*steps, [slot(2), slot(3)], []]))
    assert session.problem == ""
    told = [
        [block["content"] for block in request["messages"][-1]["content"]]
        for request in server.requests[2 : 2 * rounds + 1 : 2]
    ]
    assert all(f"def round {n}:" in read for n, (_, read, _, _) in enumerate(told))
    assert all(check.startswith("slot_1.py") for check, *_ in told)
    assert "you have made this call" not in json.dumps(server.requests[-1]["messages"])


async def test_the_same_source_again_and_a_refused_write_open_no_new_looks(tmp_path: Path) -> None:
    same, _ = await run_messages(
        tmp_path, messages_script(looks_and_writes(9, lambda _: "def same:\n")), Limits(sessions=1)
    )
    assert f"made the same call {ENDED_AT} times: write" in same.problem
    steps = [[slot(1, "def same:\n")], *looks_and_writes(9, lambda n: " " * (n + 1))[: 2 * ENDED_AT]]
    refused, _ = await run_messages(tmp_path, messages_script(steps), Limits(sessions=1))
    assert f"made the same call {ENDED_AT} times: run_check" in refused.problem


async def test_one_that_never_ends_is_ended_and_warned_before(tmp_path: Path) -> None:
    def wander(payload: dict[str, Any], number: int) -> Any:
        return message(tool_use("search", {"text": f"word {number}"}, f"t{number}"), stop="tool_use")

    session, server = await run_messages(tmp_path, wander, Limits(turns=8, sessions=1))
    assert len(server.requests) == 8
    assert session.problem == "ended after 8 replies; 0 of 3 slots were written"
    assert "1 replies are left" in json.dumps(server.requests[-1]["messages"][-1])


async def test_reading_is_bounded(tmp_path: Path) -> None:
    def greedy(payload: dict[str, Any], number: int) -> Any:
        if number < 6:
            return message(
                tool_use("read", {"path": "archive/h0.py", "first_line": number + 1}, f"t{number}"),
                stop="tool_use",
            )
        return messages_script([[slot(1), slot(2), slot(3)], []])(payload, number - 6)

    session, server = await run_messages(tmp_path, greedy, Limits(tool_bytes=3000))
    assert len(session.proposals) == 3
    assert "read all that it may" in json.dumps(server.requests[-1]["messages"])


async def test_time_is_bounded_and_what_was_written_stays(tmp_path: Path) -> None:
    def slow(payload: dict[str, Any], number: int) -> Any:
        return messages_server.SILENCE if number else messages_script([[slot(1)]])(payload, 0)

    session, _ = await run_messages(tmp_path, slow, Limits(seconds=1.5))
    assert [one.source for one in session.proposals] == [harness(1)]
    assert "ended after 1.5 s" in session.problem
    assert session.charge.unmetered_tokens


def dies(payload: dict[str, Any], number: int) -> Any:
    """Writes one slot, and then every stream breaks off after its tokens were counted."""
    if number == 0:
        return messages_script([[slot(1)]])(payload, 0)
    return Stream(events_of(message("I am", usage={"input_tokens": 400, "output_tokens": 9}))[:4], abort=True)


async def test_one_whose_server_dies_mid_stream_keeps_what_it_wrote_and_pays_for_it(tmp_path: Path) -> None:
    session, server = await run_messages(tmp_path, dies)
    assert [one.source for one in session.proposals] == [harness(1)]
    assert "server failed" in session.problem
    assert "1 of 3 slots" in session.problem
    assert len(server.requests) == 1 + QUICK.attempts
    assert session.charge.proposer_prompt_tokens == 25_010 + 2 * 400
    assert session.charge.proposer_calls == 2


async def test_one_that_dies_at_once_is_held_once_more_then_skipped(tmp_path: Path) -> None:
    session, server = await run_messages(tmp_path, lambda payload, number: HANG_UP)
    assert session.proposals == ()
    assert "server failed" in session.problem
    assert len(server.requests) == 2 * QUICK.attempts


async def test_an_overloaded_server_is_asked_again_when_it_says(tmp_path: Path) -> None:
    def overloaded(payload: dict[str, Any], number: int) -> Any:
        if number % 2 == 0:
            return Answer(529, "Overloaded", "overloaded_error", {"retry-after-ms": "1"})
        return messages_script(COMPETENT)(payload, number // 2)

    session, server = await run_messages(tmp_path, overloaded)
    assert session.problem == ""
    assert len(session.proposals) == 3
    assert len(server.requests) == 2 * len(COMPETENT)


@pytest.mark.parametrize(
    "reply",
    [
        message(),
        message(thinking("hm"), stop="max_tokens"),
        message("  ", stop="end_turn"),
    ],
)
async def test_a_reply_with_nothing_in_it_is_a_turn(tmp_path: Path, reply: Any) -> None:
    steps = messages_script([[slot(1), slot(2), slot(3)], []])
    session, server = await run_messages(tmp_path, lambda p, n: reply if n == 0 else steps(p, n - 1))
    assert len(session.proposals) == 3
    assert session.problem == ""
    told = json.dumps(server.requests[1]["messages"][-1])
    assert "Not written yet" in told
    assert ("cut off" in told) == (reply["stop_reason"] == "max_tokens")


async def test_an_openai_reply_with_nothing_in_it_is_a_turn(tmp_path: Path) -> None:
    steps = chat_script([[slot(1), slot(2), slot(3)], []])
    script = lambda p, n: chat_server.completion(None) if n == 0 else steps(p, n - 1)  # noqa: E731
    async with chat_server.serve(script) as server:
        session = await openai_proposer({"model": "m", "base_url": server.url}).propose(make_brief(tmp_path))
    assert len(session.proposals) == 3
    assert session.charge.unmetered_tokens


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", "null", '{"path": 3}', "{}{}", '{"path": "archive", "path2": 1}']
)
async def test_arguments_that_make_no_sense_are_answered(tmp_path: Path, arguments: str) -> None:
    def reply(payload: dict[str, Any], number: int) -> Any:
        if number == 0:
            made = [{"id": "c", "type": "function", "function": {"name": "read", "arguments": arguments}}]
            return chat_server.completion(
                {"role": "assistant", "content": None, "tool_calls": made}, "tool_calls"
            )
        return chat_script([[slot(1), slot(2), slot(3)], []])(payload, number - 1)

    async with chat_server.serve(reply) as server:
        session = await openai_proposer({"model": "m", "base_url": server.url}).propose(make_brief(tmp_path))
    assert len(session.proposals) == 3
    assert server.requests[1]["messages"][-1]["content"].startswith("[")


async def test_a_refusal_and_a_prompt_too_long_end_the_session(tmp_path: Path) -> None:
    session, _ = await run_messages(tmp_path, lambda p, n: message("no", stop="refusal"), Limits(sessions=1))
    assert "content_filter" in session.problem
    too_long = Answer(400, "prompt is too long: 9 tokens > 8 maximum", "invalid_request_error")
    session, _ = await run_messages(tmp_path, lambda p, n: too_long, Limits(sessions=1))
    assert "context_length" in session.problem


async def test_a_wrong_key_stops_the_search(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY"):
        await run_messages(tmp_path, lambda p, n: Answer(401, "invalid x-api-key", "authentication_error"))


async def test_fst_is_said_to_the_model(tmp_path: Path) -> None:
    _, server = await run_messages(tmp_path, messages_script(COMPETENT), prompt_only=True)
    assert "Only the prompts" in server.requests[0]["system"][0]["text"]


@pytest.mark.parametrize("domain", ["math_python", "search_qa", "chess_puzzles"])
async def test_the_instructions_are_of_the_domain(tmp_path: Path, domain: str) -> None:
    session, server = await run_messages(
        tmp_path, messages_script([[slot(1), slot(2), slot(3)], []]), domain=domain
    )
    assert len(session.proposals) == 3
    assert {"math_python": "# Math", "search_qa": "# SearchQA", "chess_puzzles": "# Chess"}[
        domain
    ] in server.requests[0]["system"][0]["text"]


@pytest.mark.parametrize("make", [anthropic_proposer, openai_proposer])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"colour": 1}, "no setting 'colour'; valid: "),
        ({"model": 7}, "model"),
        ({"model": "m", "turns": 0}, "turns"),
        ({"model": "m", "turns": "many"}, "turns"),
        ({"model": "m", "base_url": "nowhere"}, "nowhere"),
        ({"model": "m", "price": [1.0]}, "price"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    make: Callable[[Any], Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make(settings)


def test_what_is_needed_is_said_before_a_search_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs a model"):
        openai_proposer({})
    with pytest.raises(UsageError, match="effort"):
        anthropic_proposer({"effort": "enormous"})
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY"):
        anthropic_proposer({})


def test_the_default_is_the_newest_opus_of_the_sdk() -> None:
    from typing import get_args

    from anthropic.types import model_param

    names = {name for part in get_args(model_param.ModelParam) for name in get_args(part)}
    opus = {
        tuple(map(int, name.split("-")[2:4])): name
        for name in names
        if name.startswith("claude-opus-") and len(name) < 17
    }
    assert opus[max(opus)] == NEWEST_OPUS
    assert NEWEST_OPUS in PRICES
    assert set(PRICES) <= names


def test_money_is_by_kind_of_token_with_lost_ones_and_unknown_where_it_is() -> None:
    price = Price(1.0, 10.0, 100.0, 1000.0)
    usage = Usage(
        111, 2, cache_read_tokens=1, cache_write_tokens=10, lost_prompt_tokens=5, lost_sampled_tokens=3
    )
    assert cost("any", usage, price) == 105 * 1 + 5 * 10 + 10 * 100 + 1 * 1000
    assert cost("claude-opus-4-5-20251101", Usage(1_000_000, 0)) == 5_000_000
    assert cost("somebody/else", usage) is None
    assert cost("claude-opus-9", usage) is None
