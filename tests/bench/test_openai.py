"""The client of OpenAI-compatible servers, against a real server on the loopback."""

import asyncio
import json
import math
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_fakes import Clock, plain, results, settled
from chat_server import HANG_UP, SILENCE, Answer, Script, Server, Trickle, completion, serve

from whale_bench import EvalPlan, Generation, Request, evaluate
from whale_bench.ledger import Ledger
from whale_bench.models import Message, Sampling
from whale_bench.models.base import Usage
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import OpenAIBackend
from whale_envs import InfrastructureError, UsageError
from whale_envs.errors import ModelError

ATTEMPTS = Patience().attempts
AT_ONCE = Patience(backoff_s=0.0)
HI = Request((Message("user", "Hi"),), seed=5, max_tokens=7)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


async def ask(script: Script, request: Request = HI) -> tuple[Generation, Server]:
    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as backend:
        return await backend.generate(request), server


async def failure(script: Script, kind: type[Exception], request: Request = HI) -> tuple[str, Server]:
    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as backend:
        with pytest.raises(kind) as caught:
            await backend.generate(request)
        return str(caught.value), server


def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- what is sent ---------------------------------------------------------------------------------


async def test_a_request_says_what_the_protocol_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-1 ")
    generation, server = await ask(lambda p, n: "yes")
    assert server.requests == [
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1.0, "top_p": 1.0,
         "top_k": 20, "seed": 5, "max_tokens": 7, "return_token_ids": True}
    ]  # fmt: skip
    assert server.headers[0]["Authorization"] == "Bearer key-1"
    assert (generation.text, generation.usage.prompt_tokens, generation.usage.sampled_tokens) == (
        "yes",
        10,
        2,
    )
    assert generation.sampled_ids is None


async def test_without_a_key_none_is_sent_and_without_a_cut_no_top_k() -> None:
    request = Request(HI.messages, sampling=Sampling(temperature=0.0, top_k=0), seed=2**63 - 1)
    _, server = await ask(lambda p, n: "yes", request)
    assert "Authorization" not in server.headers[0]
    assert "top_k" not in server.requests[0]
    assert "max_tokens" not in server.requests[0]
    assert server.requests[0]["temperature"] == 0
    assert server.requests[0]["seed"] == 2**31 - 1


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://name:pass@x.org:1/v1", "https://x.org:1/v1"),
        ("https://token@x.org/v1", "https://x.org/v1"),
        ("http://a:b%40c@[::1]:80/v1", "http://[::1]:80/v1"),
        (None, "https://api.openai.com/v1"),
    ],
)
def test_the_address_is_told_without_credentials(
    url: str | None, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OpenAIBackend("m", base_url=url).base_url == public
    if url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert OpenAIBackend("m").base_url == public


async def test_credentials_in_the_address_are_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    for status, kind in ((401, UsageError), (404, UsageError), (400, UsageError), (500, InfrastructureError)):
        async with serve(lambda p, n, s=status: Answer(s, "no")) as server:
            url = server.url.replace("http://", "http://name:pass@")
            async with OpenAIBackend("m", base_url=url, patience=AT_ONCE) as backend:
                with pytest.raises(kind) as caught:
                    await backend.generate(HI)
        assert server.headers[0]["Authorization"] == "Basic bmFtZTpwYXNz"
        assert server.url in str(caught.value)
        assert "pass" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x/v1", "http://", "http://x:99999/v1", "http://[x/v1"]
)
def test_what_is_no_address_is_refused_by_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--base-url must be an address"):
        OpenAIBackend("m", base_url=url)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(UsageError, match="OPENAI_BASE_URL must be an address"):
        OpenAIBackend("m")


async def test_a_backend_is_used_inside_its_context_only() -> None:
    with pytest.raises(UsageError, match="inside `async with backend:` only"):
        await OpenAIBackend("m", base_url="http://127.0.0.1:1/v1").generate(HI)


# --- O-36: replies with nothing in them, and other shapes -----------------------------------------


@pytest.mark.parametrize(
    ("message", "finish", "text", "reason"),
    [
        (None, "stop", "", "stop"),
        (None, "length", "", "length"),
        ({"role": "assistant"}, None, "", "stop"),
        ({"content": ""}, "max_tokens", "", "length"),
        ({"content": None, "tool_calls": None}, "stop", "", "stop"),
        ({"content": None, "tool_calls": "x"}, "eos", "", "stop"),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
            "stop",
            "ab",
            "stop",
        ),
        ({"content": 5}, "stop", "", "stop"),
    ],
)
async def test_o36_a_reply_with_nothing_in_it_is_an_empty_turn(
    message: Any, finish: str, text: str, reason: str
) -> None:
    generation, server = await ask(lambda p, n: completion(message, finish))
    assert (generation.text, generation.finish_reason) == (text, reason)
    assert len(server.requests) == 1


async def test_tool_calls_are_found_beside_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "so", "tool_calls": [call, None, "x"]}
    generation, _ = await ask(lambda p, n: completion(message, "tool_calls"))
    assert (generation.text, generation.finish_reason, generation.tool_calls) == ("so", "tool_calls", (call,))


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_kept_apart_from_text_and_on_record(name: str) -> None:
    generation, _ = await ask(lambda p, n: completion({"content": "a1a8", name: "a1a7? No."}))
    assert (generation.text, generation.reasoning) == ("a1a8", "a1a7? No.")
    assert generation.raw_text == "<think>a1a7? No.</think>a1a8"
    generation, _ = await ask(lambda p, n: "<think>a1a7? No.</think> a1a8")
    assert (generation.text, generation.reasoning) == (" a1a8", "a1a7? No.")
    generation, _ = await ask(lambda p, n: completion({"content": "a", name: {"odd": 1}}))
    assert (generation.text, generation.reasoning) == ("a", "")


async def test_escaped_lone_surrogates_are_replaced() -> None:
    call = '{"function":{"arguments":"\\udfff"}}'
    body = f'{{"choices":[{{"message":{{"content":"a\\ud800b","tool_calls":[{call}]}}}}]}}'.encode()
    generation, _ = await ask(lambda p, n: body)
    assert generation.text == "a?b"
    assert generation.tool_calls[0]["function"]["arguments"] == "?"


@pytest.mark.parametrize(
    ("told", "known"),
    [
        *((0, 0), (7, 7), (7.0, 7), ("7", 7), ("007", 7)),
        *((None, None), (-1, None), (-1.0, None), (7.5, None), ("-7", None), ("7.5", None), ("", None)),
        *(("seven", None), ("²", None), ("9" * 5000, None), (10**40, None), (1e300, None), (True, None)),
        *((float("nan"), None), (float("inf"), None), ([7], None), ({"n": 7}, None)),
    ],
)
async def test_a_count_of_tokens_is_read_as_far_as_it_can_be_true(told: Any, known: int | None) -> None:
    for prompt, sampled in ((told, 5), (5, told), (told, told)):
        usage = {"prompt_tokens": prompt, "completion_tokens": sampled}
        generation, server = await ask(lambda p, n, usage=usage: completion("x", usage=usage))
        want = [known if value is told else 5 for value in (prompt, sampled)]
        assert [generation.usage.prompt_tokens, generation.usage.sampled_tokens] == want
        assert (generation.text, len(server.requests)) == ("x", 1)


@pytest.mark.parametrize("usage", [None, {}, [], "many", 7, -1, [{"prompt_tokens": 5}]])
async def test_usage_that_is_not_told_is_unknown(usage: Any) -> None:
    generation, server = await ask(lambda p, n: completion("x", usage=usage))
    assert (generation.usage.prompt_tokens, generation.usage.sampled_tokens) == (None, None)
    assert (generation.text, len(server.requests)) == ("x", 1)


@pytest.mark.parametrize("finish", [None, 1, True, ["length"], {"type": "length"}, 0.5])
async def test_a_finish_reason_that_is_no_word_is_a_stop(finish: Any) -> None:
    generation, server = await ask(lambda p, n: completion("x", finish))
    assert (generation.text, generation.finish_reason, len(server.requests)) == ("x", "stop", 1)


# --- failures that are retried --------------------------------------------------------------------


def deep(place: str, depth: int) -> bytes:
    """A chat completion with arrays nested at `place`."""
    template = json.dumps({**completion({"content": "x", "tool_calls": [{"a": "CALL"}]}), "usage": "USAGE",
                           "odd": "ODD"})  # fmt: skip
    return template.replace(f'"{place}"', "[" * depth + "]" * depth).encode()


GARBAGE = [
    *(b"", b"<html>", b"{", b"[]", b"null", b"\xff", b"[" * 5000),
    *(deep(place, 100_000) for place in ("CALL", "USAGE", "ODD", "x")),
    *(b'{"choices": ' + b"[" * 100_000, b'{"a":' * 100_000),
    *(b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": null}]}'),
    b'{"error": {"message": "overloaded"}}',
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
async def test_an_answer_that_is_no_completion_is_asked_for_again(body: bytes) -> None:
    generation, server = await ask(lambda p, n: body if n < 2 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3)
    words, server = await failure(lambda p, n: body, InfrastructureError)
    assert len(server.requests) == ATTEMPTS
    assert "no completion" in words
    assert "\n" not in words


async def test_nesting_of_any_depth_is_a_reply_or_garbage() -> None:
    for depth in range(50, 1100, 50):
        for place in ("CALL", "USAGE", "ODD"):
            generation, _ = await ask(lambda p, n, d=depth, at=place: "yes" if n else deep(at, d))
            assert generation.text in ("x", "yes")


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_failure_is_retried_and_a_lasting_one_is_the_servers(status: int) -> None:
    generation, server = await ask(lambda p, n: Answer(status, "busy") if n < ATTEMPTS - 1 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", ATTEMPTS)
    words, _ = await failure(lambda p, n: Answer(status, "busy"), InfrastructureError)
    assert f"last: HTTP {status}: busy" in words


async def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Clock(monkeypatch).waits
    soon = formatdate(time.time() + 30, usegmt=True)
    asked = [
        *({"Retry-After": value} for value in ("3", "0.5", "86400", soon)),
        {"retry-after-ms": "1500", "Retry-After": "9"},
        *({"Retry-After": value} for value in ("Wed, 21 Oct 2015 07:28:00 GMT", "soon", "nan")),
    ]
    async with (
        serve(lambda p, n: Answer(429, headers=asked[n]) if n < len(asked) else "yes") as server,
        OpenAIBackend("m", base_url=server.url, patience=Patience(backoff_s=0.25)) as backend,
    ):
        await backend.generate(HI)
    assert waits[:3] == pytest.approx([3.0, 0.5, 60.0])
    assert 27 <= waits[3] <= 30
    assert waits[4] == pytest.approx(1.5)
    for attempt, wait in enumerate(waits[5:], start=2):  # no wait: our own back-off, with jitter
        assert 0.25 * 2 ** (attempt - 1) <= wait <= 0.25 * 2 ** (attempt - 1) * 1.25


async def test_a_queue_that_names_its_waits_costs_no_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Clock(monkeypatch).waits
    busy = Answer(429, "queue", {"Retry-After": "1"})
    generation, server = await ask(lambda p, n: busy if n < 3 * ATTEMPTS else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3 * ATTEMPTS + 1)
    assert waits == [1.0] * (3 * ATTEMPTS)


async def test_a_connection_that_breaks_off_is_retried() -> None:
    generation, server = await ask(lambda p, n: HANG_UP if n < 2 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3)
    await failure(lambda p, n: HANG_UP, InfrastructureError)


async def test_a_dead_port_is_waited_for_as_long_as_patience_lasts_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, clock = f"http://127.0.0.1:{dead_port()}/v1", Clock(monkeypatch)
    async with OpenAIBackend("m", base_url=url) as backend:
        with pytest.raises(InfrastructureError, match=rf"{url} failed \d+ times; last: .*Connect") as caught:
            await backend.generate(HI)
        assert "failed 8 times" not in str(caught.value)
        assert Patience().give_up_s <= sum(clock.waits) < Patience().give_up_s + 15
        assert max(clock.waits) == 15.0
        clock.waits.clear()
        with pytest.raises(InfrastructureError, match=f"{url} failed 3 times"):
            await backend.probe()
        assert len(clock.waits) == 2


async def test_a_server_that_is_away_for_minutes_is_asked_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, clock = dead_port(), Clock(monkeypatch)
    async with OpenAIBackend("m", base_url=f"http://127.0.0.1:{port}/v1") as backend:
        waiting = asyncio.ensure_future(backend.generate(HI))
        while sum(clock.waits) < 300:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with serve(lambda p, n: Answer(500) if n < ATTEMPTS - 1 else "yes", port=port):
            assert (await waiting).text == "yes"  # it still had all its attempts


async def test_a_server_that_hangs_is_given_up_and_one_that_trickles_is_not() -> None:
    async def asked(script: Script, **waits: float) -> tuple[str, int]:
        patience = Patience(backoff_s=0.0, **waits)  # type: ignore[arg-type]
        async with serve(script) as server, OpenAIBackend("m", base_url=server.url, patience=patience) as b:
            try:
                return (await b.generate(HI)).text, len(server.requests)
            except InfrastructureError as error:
                return str(error), len(server.requests)

    assert await asked(lambda p, n: Trickle("yes", 0.01) if n else SILENCE, silence_s=0.5) == ("yes", 2)
    words, requests = await asked(lambda p, n: SILENCE, silence_s=0.5, give_up_s=0.9)
    assert "failed 2 times" in words
    assert "Timeout" in words
    assert requests == 2
    words, requests = await asked(lambda p, n: Trickle("yes", 0.05), answer_s=1.0, give_up_s=0.9)
    assert "Timeout" in words
    assert requests == 1


# --- failures that are not ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"), [(401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "'m'")]
)
async def test_a_refused_key_or_name_is_misuse_at_once(status: int, words: str) -> None:
    said, server = await failure(lambda p, n: Answer(status, "no\nsuch luck"), UsageError)
    assert words in said
    assert "no such luck" in said
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422])
async def test_a_refusal_after_an_answer_is_the_servers(status: int) -> None:
    refuse: Script = lambda p, n: Answer(status, "no such luck")  # noqa: E731
    async with (
        serve(lambda p, n: refuse(p, n) if n else "yes", probe=refuse) as server,
        OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as backend,
    ):
        await backend.generate(HI)
        with pytest.raises(InfrastructureError, match="no such luck"):
            await backend.generate(HI)


LONG = "This model's maximum context length is 4096 tokens. However, you requested 4107 tokens."


async def test_o25_a_prompt_too_long_for_the_model_is_the_rollouts_end() -> None:
    said, server = await failure(lambda p, n: Answer(400, LONG), ModelError)
    assert said.startswith("context_length: ")
    assert ["max_tokens" in r for r in server.requests] == [True, False]


async def test_o25_a_prompt_that_fits_without_max_tokens_is_asked_without() -> None:
    generation, server = await ask(lambda p, n: Answer(400, LONG) if "max_tokens" in p else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 2)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
        (400, "After the optional system message, conversation roles must alternate user and assistant"),
        (400, "System role not supported"),
        (422, "Only user, assistant and tool roles are supported!"),
        (400, "Error applying the chat template: 'content' is undefined"),
        (500, "While executing CallExpression\nError: Jinja Exception: roles must alternate"),  # llama.cpp
    ],
)
async def test_messages_that_the_chat_template_refuses_are_the_rollouts_end(status: int, words: str) -> None:
    said, server = await failure(lambda p, n: Answer(status, words), ModelError)
    assert said.startswith("chat_template: ")
    assert words.rsplit("\n", maxsplit=1)[-1] in said
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "words",
    [
        "default chat template is no longer allowed, so you must provide a chat template",
        "Cannot use chat template functions because tokenizer.chat_template is not set",
        "model m does not have a chat template",
    ],
)
async def test_a_server_without_a_chat_template_is_misuse(words: str) -> None:
    await failure(lambda p, n: Answer(400, words), UsageError)
    await failure(lambda p, n: Answer(500, words), InfrastructureError)


async def test_a_content_filter_is_the_rollouts_end_and_what_it_cost_is_known(tmp_path: Path) -> None:
    said, _ = await failure(lambda p, n: Answer(400, "filtered: content_filter"), ModelError)
    assert said.startswith("content_filter")

    def script(payload: dict[str, Any], n: int) -> Any:
        return completion("par", "content_filter", {"prompt_tokens": 7, "completion_tokens": 3})

    async with serve(script) as server:
        async with OpenAIBackend("m", base_url=server.url) as backend:
            found = await backend.generate(HI)
        assert (found.text, found.finish_reason, found.usage) == ("par", "content_filter", Usage(7, 3))
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=server.url, n=1, k=1)
        summary = await evaluate(plan, tmp_path / "run")
    assert summary.stop_conditions == {"content_filter": 1}
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        charged = ledger.charged()["test"]
    assert (charged.prompt_tokens, charged.sampled_tokens, charged.unmetered_tokens) == (7, 3, False)


async def test_a_setting_that_the_server_refuses_is_left_out_and_told() -> None:
    def script(payload: dict[str, Any], n: int) -> Any:
        for name in ("top_k", "seed"):
            if name in payload:
                return Answer(400, f"Unrecognized request argument supplied: {name}")
        return "yes"

    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as backend:
        await asyncio.gather(*(backend.generate(HI) for _ in range(8)))  # all refused at the same time
        assert backend.warnings() == ["the server refused seed, so it was not sent",
                                      "the server refused top_k, so it was not sent"]  # fmt: skip
        before = len(server.requests)
        await backend.generate(HI)
        assert len(server.requests) == before + 1


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
        "instead.",
        "max_tokens: use max_completion_tokens",
        "Unrecognized request argument supplied: max_tokens",
        "[{'loc': ['body', 'max_tokens'], 'msg': 'Extra inputs are not permitted'}]",
    ],
)
async def test_a_server_that_refuses_max_tokens_is_told_the_newer_name(words: str) -> None:
    first_three = asyncio.Event()

    async def together(payload: dict[str, Any]) -> None:
        if len(server.requests) == 3:
            first_three.set()
        await first_three.wait()

    def script(payload: dict[str, Any], n: int) -> Any:
        return Answer(400, words) if "max_tokens" in payload else "yes"

    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as backend:
        server.before = together  # three requests are in flight when the first is refused
        await asyncio.gather(*(backend.generate(HI) for _ in range(3)))
        assert [r.get("max_completion_tokens") for r in server.requests] == [None] * 3 + [7] * 3
        await backend.generate(HI)
        assert len(server.requests) == 7
        assert "max_tokens" not in server.requests[-1]
        assert backend.warnings() == []  # another name for what was asked
        await backend.generate(msgspec.structs.replace(HI, max_tokens=None))
        assert not {"max_tokens", "max_completion_tokens"} & set(server.requests[-1])


async def test_a_server_that_takes_no_bound_at_all_is_not_asked_for_ever() -> None:
    refuse: Script = lambda p, n: Answer(400, f"unsupported: {[k for k in p if 'max_' in k]}")  # noqa: E731
    _, server = await failure(refuse, UsageError)
    assert len(server.requests) == 2  # with either name


async def test_the_newer_name_is_left_out_too_where_the_prompt_leaves_less_room() -> None:
    def script(payload: dict[str, Any], n: int) -> Any:
        if "max_tokens" in payload:
            return Answer(400, "max_tokens is not supported, use max_completion_tokens")
        return Answer(400, LONG) if "max_completion_tokens" in payload else "yes"

    generation, server = await ask(script)
    assert (generation.text, len(server.requests)) == ("yes", 3)


async def test_an_unknown_refusal_is_misuse_at_first_and_the_servers_later() -> None:
    await failure(lambda p, n: Answer(422, "temperature must be 0"), UsageError)
    async with (
        serve(
            lambda p, n: Answer(422, "odd") if n else "yes", probe=lambda p, n: Answer(422, "odd")
        ) as server,
        OpenAIBackend("m", base_url=server.url, patience=AT_ONCE) as backend,
    ):
        await backend.generate(HI)
        with pytest.raises(InfrastructureError, match="odd"):
            await backend.generate(HI)


# --- whole runs -----------------------------------------------------------------------------------


def pure(payload: dict[str, Any], n: int) -> str:
    """Text that is a function of prompt and seed alone: one of the legal moves."""
    prompt = payload["messages"][-1]["content"]
    moves = [part.split("]")[0] for part in prompt.split("Legal moves: ")[1].split("[")[1:]]
    return f"I play <move>{moves[payload['seed'] % len(moves)]}</move> ({payload['seed']})"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: Any = OpenAIBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", AT_ONCE)


async def evaluated(script: Script, folder: Path, **changes: Any) -> tuple[Any, Server]:
    async with serve(script) as server:
        plan = EvalPlan(
            **{
                "domain": "chess_puzzles",
                "model": "openai/m",
                "base_url": server.url,
                "n": 4,
                "k": 8,
                **changes,
            }
        )
        return await evaluate(plan, folder), server


async def resumed(script: Script, folder: Path, probe: Script = lambda p, n: "yes") -> tuple[Any, Server]:
    """Resumes against a new server at the address in the run folder."""
    async with serve(script, probe=probe) as server:
        path = folder / "run.toml"
        lines = [line for line in path.read_text().splitlines() if not line.startswith("base_url")]
        path.write_text(f'base_url = "{server.url}"\n' + "\n".join(lines) + "\n")
        return await evaluate(None, folder), server


async def test_o29_eight_samples_are_eight_texts_and_a_second_run_gives_the_same(
    tmp_path: Path, quick: None
) -> None:
    for name in ("a", "b"):
        summary, _ = await evaluated(pure, tmp_path / name, seed=1234, n=1)
        assert summary.complete
        assert summary.warnings == []
    first, second = results(tmp_path / "a"), results(tmp_path / "b")
    texts = [row.segments[0].text for row in first.values()]
    assert len(set(texts)) == 8
    assert first == second


async def test_o29_a_server_that_ignores_the_seed_is_warned_of(tmp_path: Path, quick: None) -> None:
    summary, _ = await evaluated(lambda p, n: "<move>a1a1</move>", tmp_path / "a")
    assert "identical at temperature" in summary.warnings[0]
    summary, _ = await evaluated(lambda p, n: "<move>a1a1</move>", tmp_path / "b", temperature=0.0)
    assert summary.warnings == []


async def test_a_dropped_setting_stands_in_the_summary(tmp_path: Path, quick: None) -> None:
    summary, _ = await evaluated(
        lambda p, n: Answer(400, "top_k?") if "top_k" in p else pure(p, n), tmp_path / "a"
    )
    assert summary.warnings == ["the server refused top_k, so it was not sent"]


async def test_o27_failed_rollouts_are_missing_and_a_resume_runs_just_those(
    tmp_path: Path, quick: None
) -> None:
    whole, _ = await evaluated(pure, tmp_path / "whole")
    seeds = sorted({row.segments[0].seed & 0x7FFF_FFFF for row in results(tmp_path / "whole").values()})
    bad = set(seeds[:2])

    def faulty(payload: dict[str, Any], n: int) -> Any:
        return Answer(500, "out of order") if payload["seed"] in bad else pure(payload, n)

    broken, _ = await evaluated(faulty, tmp_path / "broken")
    assert (broken.complete, broken.score, len(broken.missing), broken.rollouts) == (False, None, 2, 30)
    assert sum(broken.problems.values()) == 2
    assert broken.lower_bound <= whole.score.mean
    again, server = await resumed(pure, tmp_path / "broken")
    assert {request["seed"] for request in server.requests} >= bad
    firsts = [r for r in server.requests if len(r["messages"]) == 2]
    assert len(firsts) == 2
    assert plain(again) == plain(whole)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    assert settled(tmp_path / "broken") == settled(tmp_path / "whole")
    with Ledger(tmp_path / "broken" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.totals("missing")["test"].rollouts == 2
        assert ledger.executed()["test"].rollouts == 34


async def test_a_model_that_cannot_answer_scores_nothing_and_is_not_missing(
    tmp_path: Path, quick: None
) -> None:
    summary, _ = await evaluated(lambda p, n: Answer(400, LONG), tmp_path / "a")
    assert (summary.complete, summary.score.mean) == (True, 0.0)
    assert summary.stop_conditions == {"context_length": 32}
    assert summary.truncated == 1.0


async def test_a_server_that_fails_every_rollout_is_given_up_early_and_nothing_is_scored(
    tmp_path: Path, quick: None
) -> None:
    summary, _ = await evaluated(lambda p, n: HANG_UP, tmp_path / "a", n=20)
    assert (summary.complete, summary.score, summary.rollouts, len(summary.missing)) == (False, None, 0, 160)
    with Ledger(tmp_path / "a" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        assert 16 <= ledger.executed()["test"].rollouts < 160
        assert ledger.charged() == {}


async def test_a_server_that_dies_in_the_middle_leaves_a_run_to_be_finished(
    tmp_path: Path, quick: None
) -> None:
    whole, _ = await evaluated(pure, tmp_path / "whole", n=12)
    dies: Callable[[dict[str, Any], int], Any] = lambda p, n: HANG_UP if n > 40 else pure(p, n)  # noqa: E731
    broken, _ = await evaluated(dies, tmp_path / "broken", n=12, concurrency=4)
    assert not broken.complete
    assert 0 < broken.rollouts < 96
    again, _ = await resumed(pure, tmp_path / "broken")
    assert plain(again) == plain(whole)
    assert settled(tmp_path / "broken") == settled(tmp_path / "whole")


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_key_or_model_lost_in_the_middle_leaves_a_run_to_be_finished(
    status: int, tmp_path: Path, quick: None
) -> None:
    lost: Script = lambda p, n: Answer(status, "gone") if n > 20 else pure(p, n)  # noqa: E731
    broken, _ = await evaluated(lost, tmp_path / "a")
    assert (broken.complete, broken.score) == (False, None)
    assert broken.rollouts > 0
    assert all("gone" in problem for problem in broken.problems)
    with Ledger(tmp_path / "a" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
    with pytest.raises(UsageError, match="gone"):
        await resumed(pure, tmp_path / "a", lambda p, n: Answer(status, "gone"))
    again, _ = await resumed(pure, tmp_path / "a")
    assert again.complete
    assert len(settled(tmp_path / "a")) == 32


@pytest.mark.parametrize(
    "reply",
    [
        Answer(400, "roles must alternate"),
        completion("x", ["odd"], {"prompt_tokens": -3, "completion_tokens": "x"}),
        *(deep(place, depth) for place in ("CALL", "USAGE") for depth in (100, 300, 400, 450)),
    ],
    ids=range(10),
)
async def test_odd_answers_are_turns_or_the_models_and_the_run_is_whole(
    reply: Any, tmp_path: Path, quick: None
) -> None:
    summary, _ = await evaluated(lambda p, n: reply, tmp_path / "a", n=1, k=2)
    assert (summary.complete, summary.score.mean) == (True, 0.0)
    conditions = set(summary.stop_conditions)
    assert ("chat_template" in conditions) is isinstance(reply, Answer)


async def test_no_more_rollouts_are_in_flight_than_asked_for(tmp_path: Path, quick: None) -> None:
    _, server = await evaluated(pure, tmp_path / "a", concurrency=3)
    assert server.most_at_once <= 3


# --- found before the first rollout ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "'m' .--model.*--base-url"),
     (405, "--base-url; most end in /v1"), (422, "refused the request")],
)  # fmt: skip
async def test_a_wrong_setting_is_found_by_one_probe_and_makes_no_folder(
    status: int, words: str, tmp_path: Path, quick: None
) -> None:
    async with serve(pure, probe=lambda p, n: Answer(status, "no")) as server:
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=server.url, n=4)
        with pytest.raises(UsageError, match=words):
            await evaluate(plan, tmp_path / "a")
    assert server.requests == []
    assert len(server.probes) <= 3  # again without stop and token ids where nobody says what is wrong
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("source", ["--base-url", "OPENAI_BASE_URL"])
async def test_a_wrong_address_is_named_after_where_it_came_from(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(url: str, kind: type[Exception]) -> str:
        monkeypatch.setenv("OPENAI_BASE_URL", url if source == "OPENAI_BASE_URL" else "http://other/v1")
        given = None if source == "OPENAI_BASE_URL" else url
        async with OpenAIBackend("m", base_url=given, patience=AT_ONCE) as backend:
            with pytest.raises(kind) as caught:
                await backend.probe()
        return str(caught.value)

    async with serve(pure) as server:
        assert f"({source}; most end in /v1)" in await told(f"{server.url}/zz", UsageError)
    assert f"is {source} right" in await told(f"http://127.0.0.1:{dead_port()}/v1", InfrastructureError)


async def test_a_server_that_is_down_is_one_message_and_no_folder(tmp_path: Path, quick: None) -> None:
    url = f"http://127.0.0.1:{dead_port()}/v1"
    plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=url, n=20)
    with pytest.raises(InfrastructureError, match=f"{url} failed 3 times; .*is --base-url right"):
        await evaluate(plan, tmp_path / "a")
    assert not (tmp_path / "a").exists()


async def test_a_resume_with_nothing_missing_asks_nobody(tmp_path: Path, quick: None) -> None:
    whole, server = await evaluated(pure, tmp_path / "a")
    assert len(server.probes) == 1
    assert await evaluate(None, tmp_path / "a") == whole  # the server is gone


@pytest.mark.parametrize("reply", [Answer(400, LONG), Answer(400, "content_filter"), completion(None)])
async def test_a_probe_minds_nothing_but_settings(reply: Any, tmp_path: Path, quick: None) -> None:
    async with serve(pure, probe=lambda p, n: reply) as server:
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=server.url, n=1)
        assert (await evaluate(plan, tmp_path / "a")).complete


# --- token ids ------------------------------------------------------------------------------------


def with_ids(text: str, logprobs: Any = None) -> dict[str, Any]:
    """vLLM's answer: one token per character."""
    body = completion(text, usage={"prompt_tokens": 3, "completion_tokens": len(text)})
    body["choices"][0] |= {"token_ids": [ord(c) for c in text], "logprobs": logprobs}
    return body | {"prompt_token_ids": [1, 2, 3]}


async def test_token_ids_and_logprobs_are_taken_where_the_server_gives_them() -> None:
    found = {"content": [{"token": c, "logprob": -0.5, "bytes": None, "top_logprobs": []} for c in "ab"]}

    def script(payload: dict[str, Any], n: int) -> Any:
        assert payload["return_token_ids"] is True
        return with_ids("ab", found if payload.get("logprobs") else None)

    async with serve(script) as server, OpenAIBackend("m", base_url=server.url) as backend:
        first, second = [await backend.generate(HI) for _ in range(2)]
    assert (first.prompt_ids, first.sampled_ids, first.logprobs) == ((1, 2, 3), (97, 98), None)
    assert second.logprobs == (-0.5, -0.5)
    assert ["logprobs" in request for request in server.requests] == [False, True]


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({"prompt_token_ids": None}, False),
        ({"prompt_token_ids": [1, "2"]}, False),
        ({"prompt_token_ids": [-1]}, False),
        ({"prompt_token_ids": [True]}, False),
        ({"usage": None}, True),
    ],
)
async def test_token_ids_count_together_and_whole(change: dict[str, Any], known: bool) -> None:
    generation, _ = await ask(lambda p, n: with_ids("ab") | change)
    assert (generation.prompt_ids is not None, generation.sampled_ids is not None) == (known, known)
    assert generation.usage.sampled_tokens == 2


@pytest.mark.parametrize(
    "values",
    [[-0.5], [-0.5, None], "x", [], {}, *([-0.5, odd] for odd in (math.nan, -math.inf, True, 10**400, "-1"))],
)
async def test_logprobs_that_are_not_one_to_one_or_no_numbers_are_none(values: Any) -> None:
    for shape in ({"token_logprobs": values}, {"content": values}):
        generation, _ = await ask(lambda p, n, shape=shape: with_ids("ab", shape))
        assert generation.sampled_ids == (97, 98)
        assert generation.logprobs is None


@pytest.mark.parametrize(
    "refusal", [None, Answer(400, "Unrecognized request argument supplied: return_token_ids"),
                Answer(422, "Extra inputs are not permitted")],
)  # fmt: skip
async def test_a_server_without_token_ids_is_asked_once(refusal: Answer | None) -> None:
    def script(payload: dict[str, Any], n: int) -> Any:
        return refusal if refusal and "return_token_ids" in payload else "yes"

    async with serve(script) as server, OpenAIBackend("m", base_url=server.url) as backend:
        for _ in range(3):
            assert (await backend.generate(HI)).sampled_ids is None
    asked = ["return_token_ids" in request for request in server.requests]
    assert asked == [True, *([False] * (len(asked) - 1))]
    assert backend.warnings() == []


async def test_a_server_that_refuses_logprobs_still_gives_ids() -> None:
    def script(payload: dict[str, Any], n: int) -> Any:
        return Answer(400, "logprobs is off") if "logprobs" in payload else with_ids("ab")

    async with serve(script) as server, OpenAIBackend("m", base_url=server.url) as backend:
        for _ in range(3):
            assert (await backend.generate(HI)).sampled_ids == (97, 98)
    assert len(server.requests) == 4


# --- more answers ---------------------------------------------------------------------------------


async def test_a_refusal_to_answer_is_what_the_model_said() -> None:
    generation, _ = await ask(lambda p, n: completion({"content": None, "refusal": "I cannot."}))
    assert generation.text == "I cannot."


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (413, "Payload Too Large", "context_length"),
        (400, "the request exceeds the available context size", "context_length"),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 12 and 8129", "context_length"),
        (400, "The prompt (length 9) is longer than the maximum model length of 8", "context_length"),
        (400, "ResponsibleAIPolicyViolation", "content_filter"),
        (400, "content_policy_violation", "content_filter"),
    ],
)
async def test_other_words_for_a_prompt_that_cannot_be(status: int, words: str, reason: str) -> None:
    said, _ = await failure(lambda p, n: Answer(status, words), ModelError)
    assert said.startswith(f"{reason}: ")
