"""The client of OpenAI-compatible servers, against a real server on the loopback."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import plain, results, settled
from chat_server import HANG_UP, Answer, Script, Server, completion, serve

from whale_bench import EvalPlan, Generation, Request, evaluate
from whale_bench.ledger import Ledger
from whale_bench.models import Message, Sampling
from whale_bench.models.openai import ATTEMPTS, OpenAIBackend
from whale_envs import InfrastructureError, UsageError
from whale_envs.errors import ModelError

HI = Request((Message("user", "Hi"),), seed=5, max_tokens=7)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


async def ask(script: Script, request: Request = HI) -> tuple[Generation, Server]:
    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, backoff_seconds=0) as backend:
        return await backend.generate(request), server


async def failure(script: Script, kind: type[Exception], request: Request = HI) -> tuple[str, Server]:
    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, backoff_seconds=0) as backend:
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
         "top_k": 20, "seed": 5, "max_tokens": 7}
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


async def test_usage_that_is_not_told_is_unknown() -> None:
    generation, _ = await ask(lambda p, n: completion("x"))
    assert (generation.usage.prompt_tokens, generation.usage.sampled_tokens) == (None, None)


# --- failures that are retried --------------------------------------------------------------------


GARBAGE = [
    *(b"", b"<html>", b"{", b"[]", b"null", b"\xff", b"[" * 5000),
    *(b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": null}]}'),
    b'{"error": {"message": "overloaded"}}',
]


@pytest.mark.parametrize("body", GARBAGE)
async def test_an_answer_that_is_no_completion_is_asked_for_again(body: bytes) -> None:
    generation, server = await ask(lambda p, n: body if n < 2 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3)
    words, server = await failure(lambda p, n: body, InfrastructureError)
    assert len(server.requests) == ATTEMPTS
    assert "no chat completion" in words
    assert "\n" not in words


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_failure_is_retried_and_a_lasting_one_is_the_servers(status: int) -> None:
    generation, server = await ask(lambda p, n: Answer(status, "busy") if n < ATTEMPTS - 1 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", ATTEMPTS)
    words, _ = await failure(lambda p, n: Answer(status, "busy"), InfrastructureError)
    assert f"last: HTTP {status}: busy" in words


async def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("whale_bench.models.openai.asyncio.sleep", sleep)
    headers = ["3", "0.5", "86400", "Wed, 21 Oct 2015 07:28:00 GMT"]
    async with (
        serve(lambda p, n: Answer(429, headers={"Retry-After": headers[n]}) if n < 4 else "yes") as server,
        OpenAIBackend("m", base_url=server.url, backoff_seconds=0.25) as backend,
    ):
        await backend.generate(HI)
    assert waits[:3] == [3.0, 0.5, 60.0]
    assert 2.0 <= waits[3] <= 2.5  # no number of seconds: our own back-off, doubled thrice, with jitter


async def test_a_connection_that_breaks_off_is_retried() -> None:
    generation, server = await ask(lambda p, n: HANG_UP if n < 2 else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 3)
    await failure(lambda p, n: HANG_UP, InfrastructureError)


async def test_a_dead_port_is_infrastructure_and_named() -> None:
    url = f"http://127.0.0.1:{dead_port()}/v1"
    async with OpenAIBackend("m", base_url=url, backoff_seconds=0) as backend:
        with pytest.raises(InfrastructureError, match=f"{url} failed {ATTEMPTS} times"):
            await backend.generate(HI)


# --- failures that are not ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"), [(401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "'m'")]
)
async def test_a_refused_key_or_name_is_misuse_at_once(status: int, words: str) -> None:
    said, server = await failure(lambda p, n: Answer(status, "no\nsuch luck"), UsageError)
    assert words in said
    assert "no such luck" in said
    assert len(server.requests) == 1


LONG = "This model's maximum context length is 4096 tokens. However, you requested 4107 tokens."


async def test_o25_a_prompt_too_long_for_the_model_is_the_rollouts_end() -> None:
    said, server = await failure(lambda p, n: Answer(400, LONG), ModelError)
    assert said.startswith("context_length: ")
    assert ["max_tokens" in r for r in server.requests] == [True, False]


async def test_o25_a_prompt_that_fits_without_max_tokens_is_asked_without() -> None:
    generation, server = await ask(lambda p, n: Answer(400, LONG) if "max_tokens" in p else "yes")
    assert (generation.text, len(server.requests)) == ("yes", 2)


@pytest.mark.parametrize("script", [lambda p, n: Answer(400, "The response was filtered: content_filter"),
                                    lambda p, n: completion("par", "content_filter")])  # fmt: skip
async def test_a_content_filter_is_the_rollouts_end(script: Script) -> None:
    said, _ = await failure(script, ModelError)
    assert said.startswith("content_filter")


async def test_a_setting_that_the_server_refuses_is_left_out_and_told() -> None:
    def script(payload: dict[str, Any], n: int) -> Any:
        for name in ("top_k", "seed"):
            if name in payload:
                return Answer(400, f"Unrecognized request argument supplied: {name}")
        return "yes"

    async with serve(script) as server, OpenAIBackend("m", base_url=server.url, backoff_seconds=0) as backend:
        await asyncio.gather(*(backend.generate(HI) for _ in range(8)))  # all refused at the same time
        assert backend.warnings() == ["the server refused seed, so it was not sent",
                                      "the server refused top_k, so it was not sent"]  # fmt: skip
        before = len(server.requests)
        await backend.generate(HI)
        assert len(server.requests) == before + 1


async def test_an_unknown_refusal_is_misuse_at_first_and_the_servers_later() -> None:
    await failure(lambda p, n: Answer(422, "temperature must be 0"), UsageError)
    async with (
        serve(lambda p, n: Answer(422, "odd") if n else "yes") as server,
        OpenAIBackend("m", base_url=server.url, backoff_seconds=0) as backend,
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


def is_about(payload: dict[str, Any], text: str) -> bool:
    return text in json.dumps(payload)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: Any = OpenAIBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "backoff_seconds", 0.0)


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


async def resumed(script: Script, folder: Path) -> tuple[Any, Server]:
    """Resumes against a new server at the address in the run folder."""
    async with serve(script) as server:
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


async def test_a_dead_server_is_given_up_early_and_nothing_is_scored(tmp_path: Path, quick: None) -> None:
    plan = EvalPlan(
        domain="chess_puzzles", model="openai/m", base_url=f"http://127.0.0.1:{dead_port()}/v1", n=20
    )
    summary = await evaluate(plan, tmp_path / "a")
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


async def test_a_key_refused_in_the_middle_stops_the_run_which_can_go_on(tmp_path: Path, quick: None) -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        await evaluated(lambda p, n: Answer(401, "expired") if n > 20 else pure(p, n), tmp_path / "a")
    summary, _ = await resumed(pure, tmp_path / "a")
    assert summary.complete
    assert len(settled(tmp_path / "a")) == 32


async def test_no_more_rollouts_are_in_flight_than_asked_for(tmp_path: Path, quick: None) -> None:
    _, server = await evaluated(pure, tmp_path / "a", concurrency=3)
    assert server.most_at_once <= 3
