"""The client of the Messages API: the real SDK, against a server of our own on the loopback."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_fakes import Clock, in_process, results
from messages_server import (
    HANG_UP,
    SILENCE,
    Answer,
    Script,
    Server,
    Stream,
    events_of,
    message,
    serve,
    thinking,
    tool_use,
)

from whale_bench import Agent, EvalPlan, Generation, Request, Rollout, Task, evaluate, rollout
from whale_bench.engine import LostRolloutError
from whale_bench.harness.host import load_harness
from whale_bench.ledger import Ledger
from whale_bench.models import Message, Sampling, load_backend
from whale_bench.models.anthropic_api import ANTHROPIC_URL, DEFAULT_TOKENS, PATIENCE, AnthropicBackend
from whale_bench.models.anthropic_messages import ThinkingMemory, to_messages
from whale_bench.models.base import CostlyRefusalError, UnansweredError
from whale_bench.opening import check_model
from whale_bench.plan import server_address
from whale_envs import InfrastructureError, UsageError, load_examples
from whale_envs.errors import ModelError
from whale_envs.math_python.tools import open_interpreter

USER = Message("user", "Hi")
HI = Request((USER,), sampling=Sampling(top_k=0), max_tokens=7)
MARK = {"cache_control": {"type": "ephemeral"}}
CACHED = {
    "input_tokens": 10, "cache_creation_input_tokens": 5000, "cache_read_input_tokens": 20000,
    "output_tokens": 50,
}  # fmt: skip


QUICK = replace(PATIENCE, backoff_s=0.0)
ATTEMPTS = PATIENCE.attempts


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_CUSTOM_HEADERS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: Any = AnthropicBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", QUICK)


def client(server: Server, **changes: Any) -> AnthropicBackend:
    return AnthropicBackend("m", base_url=server.url, **{"patience": QUICK, **changes})


async def ask(script: Script, request: Request = HI) -> tuple[Generation, Server]:
    async with serve(script) as server, client(server) as backend:
        return await backend.generate(request), server


async def failure(script: Script, kind: type[Exception], request: Request = HI) -> tuple[Any, Server]:
    async with serve(script) as server, client(server) as backend:
        with pytest.raises(kind) as caught:
            await backend.generate(request)
        return caught.value, server


def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def call(arguments: str, name: str = "f", call_id: str = "toolu_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def sent(*chat: Message) -> list[dict[str, Any]]:
    return to_messages(chat, ThinkingMemory())[1]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# --- what is sent ---------------------------------------------------------------------------------


async def test_a_request_says_no_more_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-1 ")
    generation, server = await ask(lambda p, n: "yes")
    assert server.requests == [
        {"model": "m", "max_tokens": 7, "stream": True,
         "messages": [{"role": "user", "content": [{**text("Hi"), **MARK}]}]}
    ]  # fmt: skip
    assert server.headers[0]["Authorization"] == "Bearer key-1"
    assert (generation.text, generation.finish_reason) == ("yes", "stop")
    assert (generation.usage.prompt_tokens, generation.usage.sampled_tokens) == (10, 2)
    assert generation.sampled_ids is None


async def test_without_a_key_none_is_sent_and_a_limit_always_is() -> None:
    request = Request((USER,), sampling=Sampling(temperature=0.5, top_p=0.9, top_k=20))
    _, server = await ask(lambda p, n: "yes", request)
    assert "Authorization" not in server.headers[0]
    assert "X-Api-Key" not in server.headers[0]
    body = server.requests[0]
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 20)
    assert body["max_tokens"] == DEFAULT_TOKENS
    assert "seed" not in body


async def test_credentials_in_the_address_are_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-1")
    async with serve(lambda p, n: Answer(401, "no", "authentication_error")) as server:
        url = server.url.replace("http://", "http://name:pass@") + "/v1/"
        async with AnthropicBackend("m", base_url=url) as backend:
            with pytest.raises(UsageError, match=server.url) as caught:
                await backend.generate(HI)
        assert server.headers[0]["Authorization"] == "Basic bmFtZTpwYXNz"
        assert "pass" not in str(caught.value)
        assert backend.base_url == server.url
        assert server_address("anthropic/m", url) == f"{server.url}/v1"


async def test_the_ends_of_system_prompt_and_chat_are_marked_for_the_cache() -> None:
    tools = (
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
    )
    chat = (Message("system", "One."), Message("system", " "), Message("system", "Two."), USER)
    _, server = await ask(lambda p, n: "yes", Request(chat, tools=tools))
    body = server.requests[0]
    assert body["system"] == [text("One."), {**text("Two."), **MARK}]
    assert body["messages"][-1]["content"][-1] == {**text("Hi"), **MARK}
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    assert json.dumps(body).count("cache_control") == 2


def test_a_chat_becomes_turns_of_alternating_roles_without_blank_texts() -> None:
    calls = (call('{"a": 1}'), call("not json", call_id="toolu_2"))
    assert sent(
        Message("user", "a"), Message("assistant", " \n"), Message("user", "b"),
        Message("assistant", "", calls), Message("user", "c"),
        Message("tool", "r1", tool_call_id="toolu_1"), Message("tool", "", tool_call_id="toolu_2"),
    ) == [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {"arguments": "not json"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "r1"},
            {"type": "tool_result", "tool_use_id": "toolu_2"}, text("c")]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "chat",
    [
        (Message("user", " "),),
        (Message("system", "alone"),),
        (USER, Message("assistant", "", (call("{}"),)), USER),
        (USER, Message("tool", "r", tool_call_id="toolu_9")),
    ],
    ids=["blank", "system alone", "no result", "no call"],
)
async def test_a_chat_that_the_api_does_not_take_ends_the_rollout(chat: tuple[Message, ...]) -> None:
    error, server = await failure(lambda p, n: "yes", ModelError, Request(chat))
    assert error.reason == "chat_template"
    assert len(server.requests) <= 1


async def test_a_chat_that_begins_with_a_reply_is_begun_by_the_user() -> None:
    chat = (Message("system", "s"), Message("assistant", "a1"), USER)
    assert sent(*chat) == [
        {"role": "user", "content": [text("Begin.")]},
        {"role": "assistant", "content": [text("a1")]},
        {"role": "user", "content": [text(USER.content)]},
    ]
    _, server = await ask(lambda p, n: "yes", Request(chat))  # which keeps the API's rules
    assert len(server.requests) == 1


async def test_a_puzzle_of_several_moves_is_solved_under_h0() -> None:
    """From the second turn on, h0's chat begins with the first reply."""
    examples = load_examples("chess_puzzles", "mini", "test")
    puzzle = next(one for one in examples if len(one.gold) > 3)
    moves = puzzle.gold[::2]
    async with (
        serve(lambda p, n: f"<move>{moves[n]}</move>") as server,
        client(server) as backend,
        load_harness("chess_puzzles") as h0,
    ):
        task = Task("chess_puzzles", examples)
        record = await rollout(task, Agent(backend, h0), puzzle, sample=0, seed=0, key="test:a:0")
    assert (record.error, record.verdict.correct, len(record.segments)) == ("", True, len(moves))
    assert server.requests[1]["messages"][0]["content"][0]["text"] == "Begin."


# --- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "stop", "said", "reason"),
    [
        ([], "end_turn", "", "stop"),
        ([], "max_tokens", "", "length"),
        ([thinking("hm")], "max_tokens", "", "length"),
        (["a", "b"], "stop_sequence", "ab", "stop"),
        (["a"], "pause_turn", "a", "stop"),
        (["a"], "model_context_window_exceeded", "a", "length"),
        (["a"], "new_reason", "a", "stop"),
        (["no"], "refusal", "no", "content_filter"),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "new_block"}, "a"], "end_turn", "a", "stop"),
    ],
)
async def test_o36_any_reply_is_a_turn_with_its_reason(
    content: Any, stop: str, said: str, reason: str
) -> None:
    generation, server = await ask(lambda p, n: message(*content, stop=stop))
    assert (generation.text, generation.finish_reason, generation.tool_calls) == (said, reason, ())
    assert len(server.requests) == 1


async def test_o36_calls_are_found_wherever_they_stand_and_thinking_is_kept_apart() -> None:
    reply = message(thinking("a1a7? No."), tool_use("f", {"π": 1}), "so", stop="tool_use")
    generation, _ = await ask(lambda p, n: reply)
    assert (generation.text, generation.reasoning) == ("so", "a1a7? No.")
    assert generation.raw_text == "<think>a1a7? No.</think>so"
    assert generation.finish_reason == "tool_calls"
    assert generation.tool_calls == (call(json.dumps({"π": 1})),)


async def test_arguments_are_as_they_were_sampled_and_a_cut_call_is_no_whole_one() -> None:
    block = {**tool_use("f", {}), "json": '{ "code":"print(1)\\n"}'}
    generation, _ = await ask(lambda p, n: message(block, stop="tool_use"))
    assert generation.tool_calls[0]["function"]["arguments"] == block["json"]
    cut = {**block, "json": '{"code": "print(1'}
    generation, _ = await ask(lambda p, n: message(cut, stop="max_tokens"))
    assert generation.finish_reason == "length"
    assert generation.tool_calls[0]["function"]["arguments"] == cut["json"]


# --- thinking between the turns of a tool exchange ------------------------------------------------


async def exchange(first: dict[str, Any], *turns: Message) -> list[dict[str, Any]]:
    """The assistant's blocks in a second request, whose chat goes on with these turns."""
    async with serve(lambda p, n: message("ok") if n else first) as server, client(server) as backend:
        generation = await backend.generate(HI)
        chat = turns or (
            Message("assistant", generation.text, generation.tool_calls),
            Message("tool", "4", tool_call_id="toolu_1"),
        )
        await backend.generate(msgspec.structs.replace(HI, messages=(USER, *chat)))
        blocks: list[dict[str, Any]] = server.requests[1]["messages"][1]["content"]
        return blocks


async def test_thinking_goes_back_unchanged_with_the_result_of_its_call() -> None:
    redacted = {"type": "redacted_thinking", "data": "0xff=="}
    blocks = [
        thinking("first", "s1=="),
        redacted,
        text("so"),
        thinking("then", "s2"),
        tool_use("f", {"a": 1}),
    ]
    assert await exchange(message(*blocks, stop="tool_use")) == blocks


async def test_thinking_goes_before_what_a_harness_made_of_the_reply() -> None:
    first = message("long words", thinking("t"), tool_use("f", {"a": 1}), stop="tool_use")
    result = Message("tool", "4", tool_call_id="toolu_1")
    blocks = await exchange(first, Message("assistant", "short", (call('{"a":1}'),)), result)
    assert blocks == [thinking("t"), text("short"), tool_use("f", {"a": 1})]


async def test_thinking_without_a_call_is_not_sent_again() -> None:
    assert await exchange(message(thinking("t"), "so"), Message("assistant", "so"), USER) == [text("so")]


def test_the_memory_of_thinking_is_bounded_and_trusts_no_id_given_twice() -> None:
    memory = ThinkingMemory(most=2)
    for number in range(5):
        memory.keep("", (call("{}", call_id=f"toolu_{number}"),), (thinking("t"),))
    assert len(memory) == 2
    said = Message("assistant", "", (call("{}", call_id="toolu_4"),))
    assert memory.blocks(said) == [thinking("t")]
    memory.keep("", said.tool_calls, (thinking("another rollout's"),))
    assert memory.blocks(said) == [tool_use("f", {}, "toolu_4")]


# --- usage ----------------------------------------------------------------------------------------


async def test_o31_prompt_tokens_are_of_all_kinds() -> None:
    generation, _ = await ask(lambda p, n: message("x", usage=CACHED))
    usage = generation.usage
    assert (usage.prompt_tokens, usage.sampled_tokens) == (25_010, 50)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (20_000, 5_000)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # the SDK remarks on what the server made of it
@pytest.mark.parametrize("told", [None, "many", -1, 1e300])
async def test_a_count_that_cannot_be_true_is_unknown(told: Any) -> None:
    usage = {"input_tokens": told, "output_tokens": told}
    generation, server = await ask(lambda p, n: message("x", usage=usage))
    assert (generation.usage.prompt_tokens, generation.usage.sampled_tokens) == (None, None)
    assert len(server.requests) == 1


def broken(usage: dict[str, Any], *, error: str = "") -> Stream:
    """A stream that breaks off, or ends with an error, after the first of its text."""
    events = events_of(message("some longer text", usage=usage))[:4]
    if error:
        return Stream([*events, {"type": "error", "error": {"type": error, "message": "Sorry"}}])
    return Stream(events, abort=True)


@pytest.mark.parametrize("error", ["", "overloaded_error", "api_error"])
async def test_o31_a_failed_attempt_is_counted_beside_the_answer(error: str) -> None:
    usage = {"input_tokens": 400, "output_tokens": 9}
    generation, server = await ask(
        lambda p, n: message("x", usage=CACHED) if n else broken(usage, error=error)
    )
    used = generation.usage
    assert (used.prompt_tokens, used.sampled_tokens) == (25_010, 50)
    assert (used.lost_prompt_tokens, used.lost_sampled_tokens) == (400, 1)  # as told until then
    assert (generation.text, len(server.requests)) == ("x", 2)
    failed, _ = await failure(lambda p, n: broken(usage, error=error), UnansweredError)
    assert failed.usage.lost_prompt_tokens == 400 * ATTEMPTS


LATE = [
    {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
    Answer(400, "prompt is too long", "invalid_request_error"),
    Answer(413, "too large", "request_too_large"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("refusal", LATE, ids=["within the stream", "400", "413"])
async def test_o31_what_was_spent_before_a_refusal_is_charged(tmp_path: Path, refusal: Any) -> None:
    usage = {"input_tokens": 400, "output_tokens": 9}
    if isinstance(refusal, dict):  # of the same attempt
        refusals: list[Any] = [Stream([*events_of(message("some text", usage=usage))[:4], refusal])]
    else:
        refusals = [broken(usage), broken(usage), refusal]
    lost = 400 * max(1, len(refusals) - 1)
    failed, _ = await failure(lambda p, n: refusals[n], CostlyRefusalError)
    assert (failed.reason, failed.usage.lost_prompt_tokens) == ("context_length", lost)
    async with serve(lambda p, n: refusals[n]) as server:
        plan = EvalPlan(domain="chess_puzzles", model="anthropic/m", base_url=server.url, n=1, k=1)
        summary = await evaluate(plan, tmp_path / "run")
    assert (summary.stop_conditions, summary.prompt_tokens) == ({"context_length": 1}, lost)
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        charged = ledger.charged()["test"]
    assert (charged.prompt_tokens, charged.unmetered_tokens) == (lost, False)


# --- failures that are retried --------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_failure_is_retried_and_a_lasting_one_is_the_servers(status: int) -> None:
    generation, server = await ask(lambda p, n: Answer(status, "busy") if n < ATTEMPTS - 1 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", ATTEMPTS)  # the SDK retries nothing
    error, server = await failure(lambda p, n: Answer(status, "busy"), InfrastructureError)
    assert f"failed {ATTEMPTS} times; last: HTTP {status}: busy" in str(error)
    assert len(server.requests) == ATTEMPTS


async def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Clock(monkeypatch).waits
    headers = [
        {"retry-after-ms": "250", "retry-after": "9"}, {"retry-after": "3"}, {"retry-after": "86400"},
        {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"},
    ]  # fmt: skip
    script: Script = lambda p, n: Answer(429, "slow down", headers=headers[n]) if n < 4 else "yes"  # noqa: E731
    async with serve(script) as server, client(server, patience=replace(PATIENCE, backoff_s=0.25)) as backend:
        await backend.generate(HI)
    assert waits[:3] == pytest.approx([0.25, 3.0, 60.0])
    assert 0.5 <= waits[3] <= 0.625  # after two attempts: waits of a second or more cost none


async def test_a_date_is_waited_for_and_waits_that_the_server_names_cost_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = Clock(monkeypatch).waits

    def script(payload: dict[str, Any], n: int) -> Any:
        date = formatdate(time.time() + 40, usegmt=True)
        return Answer(429, "slow down", headers={"retry-after": date}) if n < 2 * ATTEMPTS else "yes"

    generation, _ = await ask(script)
    assert generation.text == "yes"
    assert sum(5 < wait <= 41 for wait in waits) == 2 * ATTEMPTS


@pytest.mark.parametrize("status", [429, 529])
async def test_an_overloaded_server_is_asked_less_at_a_time_and_answers_everything(status: int) -> None:
    now = most = 0

    async def lower() -> None:
        nonlocal now
        await asyncio.sleep(0.02)
        now -= 1

    def script(payload: dict[str, Any], n: int) -> Any:
        nonlocal now, most
        now += 1
        leaving.append(asyncio.ensure_future(lower()))
        if now > 2:
            return Answer(status, "Overloaded")
        return "yes"

    leaving: list[Any] = []
    async with serve(script) as server, client(server, patience=replace(PATIENCE, backoff_s=0.05)) as backend:
        found = await asyncio.gather(*(backend.generate(HI) for _ in range(24)))
        await asyncio.gather(*leaving)
        assert [one.text for one in found] == ["yes"] * 24
        [told] = backend.warnings()
        assert told.startswith(f"{server.url} was overloaded ")
        assert backend.seconds()["held back"] > 0


async def test_a_server_that_says_never_again_is_not_asked_again() -> None:
    script: Script = lambda p, n: Answer(429, "limit reached", headers={"x-should-retry": "false"})  # noqa: E731
    _, server = await failure(script, InfrastructureError)
    assert len(server.requests) == 1


START = json.dumps({"type": "message_start", "message": message(stop=None)})
GARBAGE = [
    *(b"", b"<html>", b'{"content": []}', b"data: {}\n\n", b"event: message_start\ndata: {\n\n", b"\xff\n\n"),
    *(
        b"event: message_start\ndata: []\n\n",
        b"event: message_start\ndata: {}\n\n",
        b"event: x\ndata: \xff\n\n",
    ),
    b'event: message_start\ndata: {"type": "message_start"}\n\n',
    b'event: message_start\ndata: {"type": "message_start", "message": 5}\n\n',
    b'event: message_delta\ndata: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n',
    f"event: message_start\ndata: {START}\n\n".encode(),
    f'event: message_start\ndata: {START}\n\nevent: content_block_delta\ndata: {{"type": '
    '"content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "x"}}\n\n'.encode(),
    b"event: message_start\ndata: " + b"[" * 100_000 + b"\n\n",
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
async def test_an_answer_that_is_no_message_is_asked_for_again(body: bytes) -> None:
    generation, server = await ask(lambda p, n: body if n < 2 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3)
    error, _ = await failure(lambda p, n: body, InfrastructureError)
    assert "\n" not in str(error)


async def test_a_connection_that_breaks_off_is_retried() -> None:
    generation, server = await ask(lambda p, n: HANG_UP if n < 2 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3)


async def test_a_server_that_closes_half_way_through_its_headers_is_retried() -> None:
    tries = 0

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\nevent:"
        )
        await writer.drain()
        writer.write_eof()  # no more of ours, while the client may go on
        await reader.read()
        writer.close()
        await writer.wait_closed()

    listener = await asyncio.start_server(half, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener, AnthropicBackend("m", base_url=url, patience=QUICK) as backend:
        with pytest.raises(InfrastructureError, match=f"failed {ATTEMPTS} times"):
            await backend.generate(HI)
        await backend.__aexit__()
        await asyncio.sleep(0.1)  # the server ends its side
    assert tries == ATTEMPTS


async def test_a_dead_port_is_waited_for_and_then_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    url, clock = f"http://127.0.0.1:{dead_port()}", Clock(monkeypatch)
    async with AnthropicBackend("m", base_url=url, patience=replace(PATIENCE, give_up_s=100)) as backend:
        with pytest.raises(InfrastructureError, match=f"{url} failed 1[1-3] times; last: APIConnectionError"):
            await backend.generate(HI)
        assert 100 <= sum(clock.waits) < 115
        with pytest.raises(InfrastructureError, match=f"{url} failed 3 times"):
            await backend.probe()


async def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "QUICK", replace(QUICK, silence_s=0.3))
    generation, server = await ask(lambda p, n: "yes" if n else SILENCE)
    assert (generation.text, len(server.requests)) == ("yes", 2)
    monkeypatch.setattr(sys.modules[__name__], "QUICK", replace(QUICK, give_up_s=0.5))
    error, _ = await failure(lambda p, n: SILENCE, InfrastructureError)
    assert "failed 2 times" in str(error)


# --- failures that are not ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, "authentication_error", "ANTHROPIC_API_KEY"),
        (403, "permission_error", "ANTHROPIC_API_KEY"),
        (404, "not_found_error", "'m'"),
        (404, "not_found_error", "(--base-url)"),
        (400, "invalid_request_error", "no such luck"),
    ],
)
async def test_a_refused_key_or_name_is_misuse_at_first_and_the_servers_later(
    status: int, kind: str, words: str
) -> None:
    error, server = await failure(lambda p, n: Answer(status, "no\nsuch luck", kind), UsageError)
    assert words in str(error)
    assert "no such luck" in str(error)
    assert len(server.requests) == 1
    refuse: Script = lambda p, n: Answer(status, "no such luck", kind)  # noqa: E731
    script: Script = lambda p, n: refuse(p, n) if n else "yes"  # noqa: E731
    async with serve(script, probe=refuse) as server, client(server) as backend:
        await backend.generate(HI)
        with pytest.raises(InfrastructureError, match="no such luck"):
            await backend.generate(HI)


async def test_a_chat_that_is_refused_by_a_server_that_takes_others_ends_its_rollout(
    tmp_path: Path, quick: None
) -> None:
    odd = Answer(400, "odd", "invalid_request_error")
    async with serve(lambda p, n: odd) as server:
        plan = EvalPlan(domain="chess_puzzles", model="anthropic/m", base_url=server.url, n=4, k=4)
        summary = await evaluate(plan, tmp_path / "run")
    assert (summary.complete, summary.stop_conditions) == (True, {"chat_template": 16})
    assert (len(server.requests), server.probes) == (16, 2)


async def test_a_probe_asks_as_the_first_turn_does_and_finds_the_most_tokens(
    tmp_path: Path, quick: None
) -> None:
    probes = []

    def probe(payload: dict[str, Any], n: int) -> Any:
        probes.append(payload)
        sent = payload["max_tokens"]
        words = f"max_tokens: {sent} > 4096, which is the maximum allowed number of output tokens for m"
        return Answer(400, words, "invalid_request_error") if sent > 4096 else "yes"

    async with serve(lambda p, n: "hm", probe=probe) as server:
        plan = EvalPlan(
            domain="chess_puzzles", model="anthropic/m", base_url=server.url, n=1, k=1, temperature=0.5
        )
        summary = await evaluate(plan, tmp_path / "run")
    assert summary.complete
    assert [asked["max_tokens"] for asked in probes] == [8129, 4096]
    assert {asked["temperature"] for asked in probes} == {0.5}
    assert {asked["max_tokens"] for asked in server.requests} == {4096}
    assert "the server allows no more than 4096 sampled tokens a turn" in summary.warnings


def test_what_can_never_work_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY is not set"):
        load_backend("anthropic/m")
    for url in ("127.0.0.1:8000", "ftp://x", "http://"):
        with pytest.raises(UsageError, match="--base-url must be an address"):
            load_backend("anthropic/m", base_url=url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        with pytest.raises(UsageError, match="ANTHROPIC_BASE_URL must be an address"):
            load_backend("anthropic/m")
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(UsageError, match=r'pip install "whale-envs\[anthropic\]"'):
        load_backend("anthropic/m")


async def test_a_backend_is_used_inside_its_context_only() -> None:
    with pytest.raises(UsageError, match="inside `async with backend:` only"):
        await AnthropicBackend("m", base_url="http://127.0.0.1:1").generate(HI)


async def test_a_wrong_address_is_named_after_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(lambda p, n: "yes") as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{server.url}/zz")
        async with AnthropicBackend("m", patience=QUICK) as backend:
            with pytest.raises(UsageError, match=r"\(ANTHROPIC_BASE_URL\)"):
                await backend.probe()
    for source in ("ANTHROPIC_BASE_URL", "--base-url"):
        url = f"http://127.0.0.1:{dead_port()}"
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        given = url if source == "--base-url" else None
        async with AnthropicBackend("m", base_url=given, patience=QUICK) as backend:
            with pytest.raises(InfrastructureError, match=f"is {source} right"):
                await backend.probe()


async def test_a_temperature_that_the_api_does_not_know_leaves_no_folder(tmp_path: Path) -> None:
    plan = EvalPlan(
        domain="chess_puzzles", model="anthropic/m", base_url="http://127.0.0.1:1", temperature=1.5, n=1
    )
    with pytest.raises(UsageError, match=r"anthropic/m takes a temperature from 0 to 1, got 1\.5"):
        check_model(plan)
    with pytest.raises(UsageError, match="takes a temperature from 0 to 1"):
        await evaluate(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


async def test_a_temperature_that_the_api_does_not_know_is_misuse() -> None:
    request = Request((USER,), sampling=Sampling(temperature=1.5))
    error, server = await failure(lambda p, n: "yes", UsageError, request)
    assert "temperature from 0 to 1, got 1.5" in str(error)
    assert server.requests == []


async def test_a_refused_setting_is_left_out_from_then_on_and_told() -> None:
    def picky(payload: dict[str, Any], n: int) -> Any:
        if "top_k" in payload:
            return Answer(400, "`top_k` must be unset when thinking is enabled", "invalid_request_error")
        if {"temperature", "top_p"} <= payload.keys():
            words = "`temperature` and `top_p` cannot both be specified for this model."
            return Answer(400, words, "invalid_request_error")
        if "cache_control" in json.dumps(payload):
            return Answer(400, "messages.0.content.0.cache_control: Extra inputs are not permitted")
        return "yes"

    request = Request((USER,), sampling=Sampling(temperature=0.5, top_p=0.9))
    async with serve(picky) as server, client(server) as backend:
        await asyncio.gather(*(backend.generate(request) for _ in range(8)))  # all are refused at first
        before = len(server.requests)
        await backend.generate(request)
        assert len(server.requests) == before + 1
        assert server.requests[-1]["temperature"] == 0.5
        assert [line.split()[3] for line in backend.warnings()] == ["cache_control,", "top_k,", "top_p,"]


async def test_a_model_that_allows_fewer_tokens_is_asked_for_those() -> None:
    def small(payload: dict[str, Any], n: int) -> Any:
        if payload["max_tokens"] > 8192:
            words = f"max_tokens: {payload['max_tokens']} > 8192, which is the maximum allowed for m"
            return Answer(400, words, "invalid_request_error")
        return "yes"

    async with serve(small) as server, client(server) as backend:
        for _ in range(2):
            await backend.generate(Request((USER,)))
        assert [r["max_tokens"] for r in server.requests] == [DEFAULT_TOKENS, 8192, 8192]
        assert "8192" in backend.warnings()[0]


async def test_a_prompt_too_long_ends_the_rollout_and_one_that_leaves_room_does_not() -> None:
    words = "prompt is too long: 210000 tokens > 200000 maximum"
    error, server = await failure(lambda p, n: Answer(400, words, "invalid_request_error"), ModelError)
    assert (error.reason, len(server.requests)) == ("context_length", 1)
    error, _ = await failure(lambda p, n: Answer(413, "Request too large", "request_too_large"), ModelError)
    assert error.reason == "context_length"
    words = "input length and `max_tokens` exceed context limit: 199996 + 7 > 200000, decrease input length"
    script: Script = lambda p, n: "yes" if n else Answer(400, words, "invalid_request_error")  # noqa: E731
    _, server = await ask(script)
    assert [request["max_tokens"] for request in server.requests] == [7, 4]


# --- whole rollouts and runs ----------------------------------------------------------------------

NATIVE = """
TOOL_MODE = "native"
TOOLS = [{"type": "function", "function": {"name": "code_interpreter", "description": "Runs Python.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}]
SYSTEM_PROMPT = "Use the tool."

def messages(self, view):
    chat = [{"role": "system", "content": self.SYSTEM_PROMPT}, {"role": "user", "content": view.opening}]
    for turn in view.turns:
        calls = turn.reply.tool_calls
        chat.append({"role": "assistant", "content": turn.reply.text, "tool_calls": list(calls)})
        chat.append({"role": "tool", "content": turn.observation, "tool_call_id": calls[0]["id"]})
    return chat

def read(self, reply, view):
    import json
    if not reply.tool_calls:
        return Act(reply.text)
    arguments = json.loads(reply.tool_calls[0]["function"]["arguments"])
    return Act(json.dumps({"tool": "code_interpreter", "arguments": arguments}))
"""


async def math_rollout(script: Script, **resources: Any) -> tuple[Rollout, Server]:
    examples = load_examples("math_python", "mini", "dev")
    async with serve(script) as server, client(server) as backend:
        task = Task("math_python", examples, resources=resources)
        agent = Agent(backend, in_process(NATIVE), Sampling(top_k=0))
        return await rollout(task, agent, examples[0], sample=0, seed=0, key="test:a:0"), server


async def test_a_native_tool_exchange_with_thinking_through_engine_and_interpreter() -> None:
    first = [
        thinking("I compute", "s1=="),
        text("Let me see."),
        tool_use("code_interpreter", {"code": "print(6*7)"}),
    ]
    replies = [message(*first, stop="tool_use", usage=CACHED), message("\\boxed{42}", usage=CACHED)]
    async with open_interpreter(unsafe=True) as python:
        record, server = await math_rollout(lambda p, n: replies[n], interpreter=python)
    second = server.requests[1]["messages"]
    assert second[1]["content"] == first
    [result] = second[2]["content"]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", "toolu_1")
    assert "42" in result["content"]
    assert (record.tool_calls, record.error) == (1, "")
    assert record.segments[0].text == "<think>I compute</think>Let me see."
    assert (record.prompt_tokens, record.sampled_tokens) == (50_020, 100)
    assert record.metrics["cache_read_tokens"] == 40_000
    assert [s.cache_write_tokens for s in record.segments] == [5_000, 5_000]


async def test_a_refusal_ends_the_rollout_with_its_tokens_on_record() -> None:
    reply = message("I will not", stop="refusal", stop_details={"type": "refusal", "category": "cyber"})
    record, _ = await math_rollout(lambda p, n: reply)
    assert (record.stop_condition, record.verdict.reward) == ("content_filter", 0.0)
    assert (record.prompt_tokens, record.sampled_tokens, len(record.segments)) == (10, 2, 1)


async def test_lost_attempts_are_charged_and_shorten_no_rollout() -> None:
    lost = {"input_tokens": 400, "output_tokens": 9}
    record, _ = await math_rollout(lambda p, n: message("\\boxed{1}") if n else broken(lost))
    assert (record.prompt_tokens, record.sampled_tokens) == (410, 3)
    assert record.metrics["sampled_tokens"] == 2
    assert record.segments[0].lost_prompt_tokens == 400
    with pytest.raises(LostRolloutError) as caught:
        await math_rollout(lambda p, n: broken(lost))
    assert caught.value.used.prompt_tokens == 400 * ATTEMPTS
    assert caught.value.used.unmetered_tokens


def move(payload: dict[str, Any], n: int) -> dict[str, Any]:
    prompt = payload["messages"][-1]["content"][-1]["text"]
    moves = [part.split("]")[0] for part in prompt.split("Legal moves: ")[1].split("[")[1:]]
    return message(f"I play <move>{moves[n % len(moves)]}</move>", usage=CACHED)


async def evaluated(script: Script, folder: Path, **changes: Any) -> tuple[Any, Server]:
    async with serve(script) as server:
        plan = {"domain": "chess_puzzles", "model": "anthropic/m", "base_url": server.url, "n": 2, "k": 2}
        return await evaluate(EvalPlan(**{**plan, **changes}), folder), server


async def test_a_run_records_its_server_and_charges_by_kind(tmp_path: Path, quick: None) -> None:
    summary, server = await evaluated(move, tmp_path / "a")
    assert summary.complete
    assert f'base_url = "{server.url}"' in (tmp_path / "a" / "run.toml").read_text()
    calls = sum(len(row.segments) for row in results(tmp_path / "a").values())
    assert calls == len(server.requests)
    with Ledger(tmp_path / "a" / "ledger.sqlite", readonly=True) as ledger:
        charge = ledger.charged()["test"]
    assert (charge.prompt_tokens, charge.sampled_tokens) == (25_010 * calls, 50 * calls)
    assert (charge.cache_read_tokens, charge.cache_write_tokens) == (20_000 * calls, 5_000 * calls)
    assert not charge.unmetered_tokens


async def test_o27_a_server_that_fails_leaves_rollouts_missing_and_none_scored(
    tmp_path: Path, quick: None
) -> None:
    summary, _ = await evaluated(lambda p, n: Answer(500, "out of order"), tmp_path / "a")
    assert (summary.complete, summary.score, summary.rollouts, len(summary.missing)) == (False, None, 0, 4)


def test_the_address_is_recorded_for_the_two_kinds_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_address("anthropic/m", None) == ANTHROPIC_URL
    assert server_address("anthropic/m", "https://name:pass@x.org:1/") == "https://x.org:1"
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://y.org")
    assert server_address("anthropic/m", None) == "http://y.org"
    assert server_address("local/smollm2", None) is None


def test_the_sdk_is_loaded_by_use_alone() -> None:
    code = (
        "import sys; from whale_bench.models import load_backend; "
        "load_backend('anthropic/m', base_url='http://127.0.0.1:1'); "
        "sys.exit(any(name in sys.modules for name in ('anthropic', 'httpx2')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
