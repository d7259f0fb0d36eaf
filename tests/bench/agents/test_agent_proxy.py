"""The metering proxy between real agents and a real chat server on the loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agent_fakes import play_own
from bench_fakes import results
from chat_server import HANG_UP, SILENCE, Answer, Server, Stream, completion, delta, serve

from whale_bench import EvalPlan, Summary, evaluate
from whale_bench.agents.host import OwnAgent
from whale_bench.agents.metering import Meter
from whale_bench.agents.proxy import Proxy
from whale_bench.engine import LostRolloutError
from whale_bench.ledger import Ledger
from whale_bench.models.http_retry import Patience
from whale_bench.records import Segment
from whale_bench.view.replay import replay_of
from whale_envs import InfrastructureError, UsageError

Write = Callable[..., str]

CALLS = """
import json, os, urllib.request
def call(content, key=None, url=None, **more):
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "seed": 7, **more}
    request = urllib.request.Request(
        (url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions", json.dumps(body).encode(),
        {"Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"])})
    return urllib.request.urlopen(request).read().decode()
def text(content, **more):
    return json.loads(call(content, **more))["choices"][0]["message"]["content"]
"""
BY_INFO = CALLS + "def act(o, info): return text(o, key=info['api_key'], url=info['base_url'])"
BY_ENVIRONMENT = CALLS + "def act(o): return text(o)"


@pytest.fixture(autouse=True)
def the_users_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")


def said(text: str, prompt: int, sampled: int) -> dict[str, Any]:
    return completion(text, usage={"prompt_tokens": prompt, "completion_tokens": sampled})


def ledger(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.sqlite", readonly=True)


async def evaluated(name: str, server: Server, folder: Path, **changes: Any) -> Summary:
    plan = EvalPlan(
        **{"domain": "chess_puzzles", "model": name, "n": 4, "k": 2, "base_url": server.url, **changes}
    )
    return await evaluate(plan, folder)


@pytest.mark.parametrize("source", [BY_INFO, BY_ENVIRONMENT], ids=["start message", "environment"])
async def test_tokens_in_the_ledger_are_those_that_the_server_counted(
    python_agent: Write, tmp_path: Path, source: str
) -> None:
    counted = [0, 0]

    def reply(payload: dict[str, Any], number: int) -> Any:
        counted[0] += 10 + number
        counted[1] += number
        return said("no move", 10 + number, number)

    async with serve(reply) as server:
        summary = await evaluated(python_agent(source), server, tmp_path / "run", concurrency=4)
    assert (summary.complete, summary.metered) == (True, True)
    assert [summary.prompt_tokens, summary.sampled_tokens] == counted
    with ledger(tmp_path / "run") as found:
        charged = found.charged()["test"]
    assert [charged.prompt_tokens, charged.sampled_tokens] == counted
    assert (charged.rollouts, charged.model_calls, charged.unmetered_tokens) == (
        8,
        len(server.requests),
        False,
    )
    for row in results(tmp_path / "run").values():
        assert len(row.segments) == len(row.steps) == 2
        first = row.segments[0]
        assert (first.messages[0].content, first.text, first.seed) == (row.opening, "no move", 7)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-secret"}


async def test_the_agent_never_sees_the_users_key(python_agent: Write, tmp_path: Path) -> None:
    source = "import json, os\ndef act(o, info): return json.dumps([dict(os.environ), info])"
    async with serve(lambda p, n: "hm") as server, OwnAgent(
        python_agent(source), base_url=server.url
    ) as agent:  # fmt: skip
        row = await play_own(agent)
    environment, info = json.loads(row.steps[0].action or "")
    assert "sk-secret" not in (row.steps[0].action or "")
    assert environment["OPENAI_BASE_URL"] == info["base_url"] != server.url
    assert environment["OPENAI_API_KEY"] != info["api_key"]
    assert "127.0.0.1" in environment["no_proxy"]
    assert (row.metered, row.sampled_tokens) == (False, None)  # it acted, and called nothing


async def test_without_an_upstream_there_is_no_proxy_and_the_environment_is_the_users(
    python_agent: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://mine/v1")
    source = """
import json, os
def act(o, info):
    return json.dumps([os.environ["OPENAI_API_KEY"], os.environ["OPENAI_BASE_URL"], *info])
"""
    async with OwnAgent(python_agent(source)) as agent:
        row = await play_own(agent)
    said = json.loads(row.steps[0].action or "")
    assert said[:2] == ["sk-secret", "http://mine/v1"]
    assert not {"api_key", "base_url"} & set(said)


async def test_a_shared_key_for_several_rollouts_in_flight_stops_the_run(
    python_agent: Write, tmp_path: Path
) -> None:
    source = BY_ENVIRONMENT.replace(
        "def act", "import threading\nhere = threading.Barrier(2)\nCONCURRENT = True\ndef act"
    )
    source = source.replace("return text(o)", "here.wait(); return text(o)")
    async with serve(lambda p, n: "hm") as server:
        with pytest.raises(UsageError, match=r"with the key of its process .* set CONCURRENT = False"):
            await evaluated(python_agent(source), server, tmp_path / "run", n=2, k=1, concurrency=2)


async def test_a_process_gets_the_address_in_its_start_message(lines_agent: Write) -> None:
    body = """
if m["type"] == "start":
    say(rollout=m["rollout"], action=text("go", key=m["api_key"], url=m["base_url"]))"""
    async with serve(lambda p, n: said("e9", 5, 1)) as server, OwnAgent(
        lines_agent(body, top=CALLS), base_url=server.url, seconds=20
    ) as agent, agent.play("k", _opening(), segments := []) as session:  # fmt: skip
        assert await session.begin() == "e9"
    assert [(s.prompt_tokens, s.sampled_tokens) for s in segments] == [(5, 1)]


def _opening() -> Any:
    from whale_bench.agents.protocol import Opening

    return Opening("chess_puzzles", "o", 9, 1, [])


# --- failures of the server -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [Answer(503, "down"), Answer(429, "slow"), Answer(401, "no"), HANG_UP, b"<html>", {"choices": []}],
)
async def test_a_rollout_that_fails_with_the_server_is_missing_and_not_wrong(
    python_agent: Write, tmp_path: Path, answer: Any
) -> None:
    async with serve(lambda p, n: said("no", 3, 1) if n == 0 else answer) as server:
        summary = await evaluated(python_agent(BY_INFO), server, tmp_path / "run", n=1, k=1)
    assert (summary.complete, summary.rollouts) == (False, 0)
    [problem] = summary.problems
    assert problem.startswith("the server behind the proxy ")
    assert "then the agent failed" in problem
    assert len(server.probes) == 1
    with ledger(tmp_path / "run") as found:
        missing = found.totals("missing")["test"]
    calls = 1 if isinstance(answer, Answer) else 2  # garbage may have cost tokens; nobody knows how many
    assert (missing.prompt_tokens, missing.sampled_tokens, missing.model_calls) == (3, 1, calls)


async def test_a_rollout_whose_server_is_silent_is_missing_and_not_wrong(
    python_agent: Write, tmp_path: Path
) -> None:
    async with serve(lambda p, n: SILENCE) as server:
        summary = await evaluated(
            python_agent(BY_INFO), server, tmp_path / "run", n=1, k=1, agent_seconds=1.0
        )
    assert (summary.complete, summary.rollouts) == (False, 0)
    [problem] = summary.problems
    assert problem.startswith("the server behind the proxy had not answered; then the agent failed")


async def test_an_agent_that_tries_again_goes_on(python_agent: Write) -> None:
    source = (
        CALLS
        + """
def act(o):
    for _ in range(3):
        try:
            return text(o)
        except urllib.error.HTTPError as error:
            seen = (error.code, error.headers["Retry-After"], json.loads(error.read())["error"]["message"])
            assert seen == (429, "0", "slow"), seen
"""
    )
    answers = [Answer(429, "slow", {"Retry-After": "0"}), said("e9", 5, 1), said("e9", 5, 1)]
    async with serve(lambda p, n: answers[n]) as server, OwnAgent(
        python_agent(source), base_url=server.url
    ) as agent:  # fmt: skip
        row = await play_own(agent)
    assert (row.stop_condition, row.prompt_tokens) == ("malformed", 10)


STREAMS = """
def streamed(content, **more):
    found = ""
    for line in call(content, stream=True, **more).splitlines():
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"])
            found += chunk["choices"][0]["delta"].get("content") or ""
    return found
"""
DEAD = {"error": {"message": "EngineCore died", "type": "BadRequestError", "code": 400}}
FAILS = {
    "503": ("text", Answer(503, "down")),
    "429": ("text", Answer(429, "slow")),
    "hang-up": ("text", HANG_UP),
    "garbage": ("text", b"<html>"),
    "an error for an answer": ("text", {"error": {"message": "upstream", "code": 502}}),
    "an error beside an answer": ("text", {**completion("e9"), "error": {"message": "upstream"}}),
    "aborted": ("text", completion("", "abort")),
    "finished by an error": ("text", completion("e9", "error")),
    "a stream that is an error": ("streamed", Stream(DEAD)),
    "a stream that becomes one": ("streamed", Stream(delta(content="e9"), DEAD)),
    "a stream without an end": ("streamed", Stream(delta(content="e9"))),
    "a stream that breaks": ("streamed", Stream(delta(content="e9"), breaks=True)),
    "a stream that is aborted": ("streamed", Stream(delta(content="e9"), delta(finish="abort"))),
}
"""By name: how the agent calls, and how the server fails."""
TRIES = """
class A:
    def reset(self, info):
        self.how, self.after = next(cases)
    def act(self, o, info):
        for left in reversed(range(TIMES)):
            try:
                globals()[self.how](o, key=info["api_key"], url=info["base_url"])
            except Exception:
                if not left and self.after == "raises":
                    raise
        return "x" if self.after == "acts" else 1 / 0
"""
"""In each rollout calls the model as its case says, some times, and then acts, fails or lets errors by."""


def tries(python_agent: Write, times: int, cases: list[tuple[str, str]]) -> str:
    source = CALLS + STREAMS + f"cases = iter({cases!r})" + TRIES.replace("TIMES", str(times))
    return python_agent(source, "A")


async def test_whatever_an_agent_makes_of_a_server_that_fails_it_is_missing(python_agent: Write) -> None:
    cases = [(case, after) for case in FAILS for after in ("acts", "fails", "raises")]
    name = tries(python_agent, 1, [(FAILS[case][0], after) for case, after in cases])
    async with serve(lambda p, n: FAILS[cases[n][0]][1]) as server, OwnAgent(
        name, base_url=server.url
    ) as agent:  # fmt: skip
        for _ in cases:
            with pytest.raises(LostRolloutError, match="the server behind the proxy"):
                await play_own(agent)
    assert len(server.requests) == len(cases)


async def test_whoever_got_over_a_server_that_failed_is_judged(python_agent: Write) -> None:
    cases = [(case, after) for case in FAILS for after in ("acts", "fails")]
    name = tries(python_agent, 2, [(FAILS[case][0], after) for case, after in cases])

    def reply(payload: dict[str, Any], number: int) -> Any:
        if number % 2:
            return Stream(*HELLO, usage=USAGE) if payload.get("stream") else said("e9", 5, 1)
        return FAILS[now][1]

    async with serve(reply) as server, OwnAgent(name, base_url=server.url) as agent:
        for now, after in cases:
            row = await play_own(agent)
            assert row.stop_condition == {"acts": "malformed", "fails": "agent_error"}[after], now


async def test_a_server_that_is_down_leaves_a_run_incomplete_even_where_the_agent_goes_on(
    python_agent: Write, tmp_path: Path
) -> None:
    name = tries(python_agent, 1, [("text", "acts")] * 2)
    async with serve(lambda p, n: Answer(503, "down")) as server:
        summary = await evaluated(name, server, tmp_path / "run", n=2, k=1)
    assert (summary.rollouts, len(summary.missing)) == (0, 2)
    assert set(summary.problems) == {
        "the server behind the proxy answered HTTP 503: down; the agent acted without that answer"
    }


async def test_a_refusal_that_is_the_agents_own_doing_is_scored(python_agent: Write) -> None:
    async with serve(lambda p, n: Answer(400, "temperature must be a number")) as server, OwnAgent(
        python_agent(BY_INFO), base_url=server.url
    ) as agent:  # fmt: skip
        row = await play_own(agent)
    assert (row.stop_condition, row.verdict.reward) == ("agent_error", 0.0)
    assert "HTTP Error 400" in row.error


SWALLOWS = """
def act(o, info):
    for model in NAMES:
        try:
            return text(o, key=info['api_key'], url=info['base_url'], model=model)
        except Exception:
            pass
    return "I know nothing"
"""
UNKNOWN = {
    "key": (Answer(401, "bad key"), "refused the key in OPENAI_API_KEY"),
    "forbidden": (Answer(403, "not for you"), "refused the key in OPENAI_API_KEY"),
    "name": (Answer(404, "no such thing"), "has no model 'wrong', which the agent asked for"),
    "name, said with a 400": (Answer(400, "The model `wrong` does not exist."), "has no model 'wrong'"),
    "name, as a code": (Answer(400, b'{"error": {"code": "model_not_found"}}'), "has no model 'wrong'"),
}


@pytest.mark.parametrize("case", UNKNOWN)
async def test_what_a_server_would_refuse_of_everyone_stops_the_run_even_where_the_agent_goes_on(
    python_agent: Write, tmp_path: Path, case: str
) -> None:
    answer, words = UNKNOWN[case]
    async with serve(lambda p, n: answer) as server:
        with pytest.raises(UsageError, match=words):
            await evaluated(
                python_agent(CALLS + "NAMES = ['wrong']" + SWALLOWS), server, tmp_path / "run", concurrency=2
            )
    assert results(tmp_path / "run") == {}


@pytest.mark.parametrize("case", UNKNOWN)
async def test_what_a_server_refuses_after_it_has_answered_leaves_rollouts_missing(
    python_agent: Write, tmp_path: Path, case: str
) -> None:
    answer, words = UNKNOWN[case]
    async with serve(lambda p, n: said("no", 3, 1) if n < 2 else answer) as server:
        source = python_agent(CALLS + "NAMES = ['wrong']" + SWALLOWS)
        summary = await evaluated(source, server, tmp_path / "run", n=3, k=1, concurrency=1)
    assert (summary.rollouts, len(summary.missing)) == (1, 2)
    [problem] = summary.problems
    assert words in problem


async def test_an_agent_that_falls_back_on_another_model_goes_on(python_agent: Write) -> None:
    def reply(payload: dict[str, Any], n: int) -> Any:
        return said("e9", 5, 1) if payload["model"] == "right" else Answer(404, "no such model")

    source = CALLS + "NAMES = ['wrong', 'right']" + SWALLOWS
    async with serve(reply) as server, OwnAgent(python_agent(source), base_url=server.url) as agent:
        row = await play_own(agent)
    assert (row.stop_condition, row.prompt_tokens) == ("malformed", 10)


PROBES = {
    "key": (Answer(401, "bad key"), UsageError, "refused the key in OPENAI_API_KEY"),
    "page": (b"<html>", UsageError, "is no OpenAI-compatible server"),
    "down": (Answer(503, "starting"), InfrastructureError, "failed 3 times; last: HTTP 503: starting"),
    "gone": (HANG_UP, InfrastructureError, "is --base-url right, and does the server run"),
}


@pytest.mark.parametrize("case", PROBES)
async def test_a_probe_finds_a_wrong_server_before_there_is_a_folder(
    python_agent: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    answer, kind, words = PROBES[case]
    monkeypatch.setitem(Proxy.__init__.__kwdefaults__, "patience", Patience(backoff_s=0.0))  # type: ignore[arg-type]
    async with serve(lambda p, n: "hm", probe=lambda p, n: answer) as server:
        with pytest.raises(kind, match=words):
            await evaluated(python_agent(BY_INFO), server, tmp_path / "run")
        assert (server.requests, (tmp_path / "run").exists()) == ([], False)


async def test_a_probe_finds_a_wrong_path_and_takes_every_server_that_is_one(python_agent: Write) -> None:
    async with serve(lambda p, n: "hm") as server, Proxy(server.url.removesuffix("/v1")) as proxy:
        with pytest.raises(UsageError, match="most end in /v1"):
            await proxy.probe()
    for answer in (
        Answer(400, "messages: missing"),
        Answer(422, "?"),
        Answer(404, "model ''"),
        Answer(500),
        "x",
    ):
        async with (
            serve(lambda p, n: "", probe=lambda p, n, a=answer: a) as server,
            Proxy(server.url) as proxy,
        ):  # type: ignore[misc]
            await proxy.probe()
        assert [h["Authorization"] for h in server.headers] in (
            [],
            ["Bearer sk-secret"],
        )  # /models, of the 404
    async with (
        serve(lambda p, n: "", probe=lambda p, n: Answer(503) if n < 2 else "x") as server,
        Proxy(server.url, patience=Patience(backoff_s=0.0)) as proxy,
    ):
        await proxy.probe()


async def test_a_call_of_unknown_size_is_flagged_and_the_others_are_charged(
    python_agent: Write, tmp_path: Path
) -> None:
    async with serve(lambda p, n: completion("no") if n == 1 else said("no", 3, 1)) as server:
        summary = await evaluated(python_agent(BY_INFO), server, tmp_path / "run", n=1, k=1)
    assert (summary.prompt_tokens, summary.sampled_tokens, summary.complete) == (None, None, True)
    with ledger(tmp_path / "run") as found:
        charged = found.charged()["test"]
    assert (charged.prompt_tokens, charged.sampled_tokens, charged.model_calls) == (3, 1, 2)
    assert charged.unmetered_tokens


async def test_each_step_knows_the_calls_that_led_to_it(python_agent: Write) -> None:
    source = (
        CALLS
        + """
class A:
    turn = 0
    def act(self, o, info):
        self.turn += 1
        to = {"key": info["api_key"], "url": info["base_url"]}
        return [text(f"{self.turn}.{i}", **to) for i in range(self.turn)][-1]
"""
    )
    async with serve(lambda p, n: said("no", 3, 1)) as server, OwnAgent(
        python_agent(source, "A"), base_url=server.url
    ) as agent:  # fmt: skip
        row = await play_own(agent)
    assert [step.calls for step in row.steps] == [1, 3]
    frames = replay_of(row).frames
    assert [(frame.actor[:3], frame.turn) for frame in frames] == [
        *(("har", 1), ("mod", 1), ("env", 1)),
        *(("har", 2), ("mod", 2), ("har", 2), ("mod", 2), ("env", 2), ("ver", 2)),
    ]


async def test_a_dead_server_loses_the_rollout(python_agent: Write) -> None:
    async with serve(lambda p, n: "hm") as server:
        url = server.url
    async with OwnAgent(python_agent(BY_INFO), base_url=url) as agent:
        with pytest.raises(LostRolloutError, match="the server behind the proxy failed: ClientConnector"):
            await play_own(agent)


# --- the proxy alone ------------------------------------------------------------------------------


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Metered:
    """A rollout at a proxy, and a client's view of it."""

    def __init__(self, proxy: Proxy, client: aiohttp.ClientSession) -> None:
        self.segments: list[Segment] = []
        self.meter = Meter(self.segments)
        self.process = proxy.new_process()
        self.key = proxy.open_rollout(self.process, self.meter)
        self.proxy, self.client = proxy, client

    async def ask(self, key: str | None = None, **payload: Any) -> tuple[int, str]:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **payload}
        headers = {"Authorization": f"Bearer {key or self.key}"}
        async with self.client.post(
            f"{self.proxy.url}/chat/completions", json=body, headers=headers
        ) as answer:
            return answer.status, await answer.text()


HELLO = (
    delta(role="assistant", content=""),
    delta(content="Hel"),
    delta(content="lo", reasoning_content="hm"),
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
    delta(finish="stop"),
)
USAGE = {"prompt_tokens": 11, "completion_tokens": 4}


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_is_passed_on_and_counted(client: aiohttp.ClientSession, asks: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if asks else {}
    async with serve(lambda p, n: Stream(*HELLO, usage=USAGE)) as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        status, text = await rollout.ask(stream=True, **options)
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert (status, chunks[: len(HELLO)]) == (200, list(HELLO))
    assert text.endswith("data: [DONE]\n\n")
    assert (chunks[-1].get("usage") == USAGE) == asks
    assert len(chunks) == len(HELLO) + asks
    assert server.requests[0]["stream_options"] == {"include_usage": True}
    [segment] = rollout.segments
    assert (segment.text, segment.finish_reason) == ("<think>hm</think>Hello", "stop")
    assert (segment.prompt_tokens, segment.sampled_tokens) == (11, 4)
    assert segment.tool_calls == ({"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}},)


async def test_a_server_that_cannot_count_streams_is_asked_without(client: aiohttp.ClientSession) -> None:
    def reply(payload: dict[str, Any], number: int) -> Any:
        return Answer(400, "unknown field stream_options") if "stream_options" in payload else Stream(*HELLO)

    async with serve(reply) as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        status, _ = await rollout.ask(stream=True)
    assert status == 200
    assert [(s.text[-5:], s.sampled_tokens) for s in rollout.segments] == [("Hello", None)]


async def test_a_stream_that_breaks_off_is_the_servers_failure(client: aiohttp.ClientSession) -> None:
    async with serve(lambda p, n: Stream(*HELLO[:2], breaks=True)) as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        with pytest.raises(aiohttp.ClientError):
            await rollout.ask(stream=True)
    assert "broke a stream off" in rollout.meter.problem
    assert [(s.text, s.finish_reason, s.sampled_tokens) for s in rollout.segments] == [
        ("Hel", "unfinished", None)
    ]


async def test_only_a_call_that_began_after_a_failure_makes_it_good(client: aiohttp.ClientSession) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def wait(payload: dict[str, Any]) -> None:
        if payload["model"] == "slow":
            begun.set()
            await release.wait()

    def reply(payload: dict[str, Any], number: int) -> Any:
        return Answer(503, "down") if payload["model"] == "bad" else said("hm", 5, 1)

    async with serve(reply) as server, Proxy(server.url) as proxy:
        server.before = wait
        rollout = Metered(proxy, client)
        beside = asyncio.create_task(rollout.ask(model="slow"))
        await begun.wait()
        await rollout.ask(model="bad")
        release.set()
        await beside
        assert "HTTP 503" in rollout.meter.problem
        await rollout.ask()
        assert rollout.meter.problem == ""


def test_a_stream_makes_good_what_failed_once_its_end_is_seen() -> None:
    meter = Meter([])
    meter.begin({}).fail("down")
    call = meter.begin({})
    call.read_chunk(delta(content="e9"))
    assert meter.problem == "down"
    call.read_chunk(delta(finish="stop"))
    assert meter.problem == ""
    assert meter.is_waiting


async def test_what_is_open_at_the_end_of_a_rollout_has_unknown_tokens(client: aiohttp.ClientSession) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def wait(_: dict[str, Any]) -> None:
        begun.set()
        await release.wait()

    async with serve(lambda p, n: said("late", 5, 5)) as server, Proxy(server.url) as proxy:
        server.before = wait
        rollout = Metered(proxy, client)
        asked = asyncio.create_task(rollout.ask())
        await begun.wait()
        await rollout.meter.close(0.0)
        release.set()
        await asked
    assert [(s.text, s.sampled_tokens) for s in rollout.segments] == [("", None)]


async def test_keys_stand_for_their_rollout_only(client: aiohttp.ClientSession) -> None:
    async with serve(lambda p, n: "hm") as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        assert (await rollout.ask("nobody"))[0] == 401
        assert (await rollout.ask(rollout.process))[0] == 200  # the only one in that process
        second = proxy.open_rollout(rollout.process, Meter([]))
        assert not proxy.ambiguous
        assert (await rollout.ask(rollout.process))[0] == 403
        assert proxy.ambiguous
        proxy.close_rollout(rollout.process, rollout.key)
        status, text = await rollout.ask()
        assert (status, "its rollout has ended" in text) == (401, True)
        proxy.close_rollout(rollout.process, second)
    assert len(server.requests) == len(rollout.segments) == 1


async def test_models_are_served_and_nothing_else(client: aiohttp.ClientSession) -> None:
    async with serve(lambda p, n: "hm") as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        headers = {"Authorization": f"Bearer {rollout.process}"}
        async with client.get(f"{proxy.url}/models", headers=headers) as answer:
            assert (await answer.json())["data"] == [{"id": "m"}]
        async with client.get(f"{proxy.url}/models") as answer:
            assert answer.status == 401
        async with client.post(f"{proxy.url}/embeddings", headers=headers, json={}) as answer:
            assert answer.status == 404
            assert "serves chat/completions and models" in await answer.text()
    assert server.headers[0]["Authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 99_999])
async def test_a_body_that_is_no_request_is_refused(client: aiohttp.ClientSession, body: bytes) -> None:
    async with serve(lambda p, n: "hm") as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        headers = {"Authorization": f"Bearer {rollout.key}"}
        async with client.post(f"{proxy.url}/chat/completions", data=body, headers=headers) as answer:
            assert answer.status == 400
    assert not rollout.segments


async def test_a_request_that_cannot_be_kept_is_the_agents_doing(client: aiohttp.ClientSession) -> None:
    deep: Any = []
    for _ in range(700):
        deep = [deep]
    async with serve(lambda p, n: "hm") as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        status, _ = await rollout.ask(tools=[{"parameters": deep}])
    assert (status, rollout.meter.problem, rollout.meter.is_waiting) == (400, "", False)
    assert server.requests == []


@pytest.mark.parametrize("answer", [
    b"", b"[]", {"choices": []}, {"choices": [5]}, {"choices": [{"message": None}], "usage": [1]},
    completion([{"type": "text", "text": "a\ud800"}], usage={"prompt_tokens": -1, "completion_tokens": "x"}),
], ids=str)  # fmt: skip
async def test_an_odd_answer_is_passed_on_and_its_tokens_are_unknown(
    client: aiohttp.ClientSession, answer: Any
) -> None:
    async with serve(lambda p, n: answer) as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        status, _ = await rollout.ask(
            messages=[5, {"role": None, "content": [{"text": "x"}], "tool_calls": 3}]
        )
    assert status == 200
    assert [(s.prompt_tokens, s.sampled_tokens) for s in rollout.segments] == [(None, None)]


ODD = {"index": 0, "function": 5}
FIRST, SECOND = ({"index": 0, "function": {part: "x"}} for part in ("name", "arguments"))


@pytest.mark.parametrize("parts", [(ODD, FIRST), (FIRST, ODD, SECOND), (ODD,), (FIRST, SECOND)], ids=range(4))
@pytest.mark.parametrize("stream", [False, True])
async def test_an_odd_tool_call_is_a_call_with_its_tokens(
    client: aiohttp.ClientSession, parts: tuple[Any, ...], stream: bool
) -> None:
    chunks = [*(delta(tool_calls=[part]) for part in parts), delta(finish="stop")]
    whole = completion({"role": "assistant", "tool_calls": parts}, usage=USAGE)
    async with (
        serve(lambda p, n: Stream(*chunks, usage=USAGE) if stream else whole) as server,
        Proxy(server.url) as proxy,
    ):
        rollout = Metered(proxy, client)
        assert (await rollout.ask(stream=stream))[0] == 200
    [segment] = rollout.segments
    assert (segment.prompt_tokens, segment.sampled_tokens) == (11, 4)
    [call] = segment.tool_calls
    assert set(call["function"].values() if isinstance(call["function"], dict) else [5]) <= {"x", 5}


async def test_an_answer_that_cannot_be_kept_is_still_a_call(client: aiohttp.ClientSession) -> None:
    deep = b'{"choices":[{"message":{"tool_calls":[{"function":{"arguments":%s}}]}}],"usage":{}}' % (
        b"[" * 700 + b"]" * 700
    )
    async with serve(lambda p, n: deep) as server, Proxy(server.url) as proxy:
        rollout = Metered(proxy, client)
        await rollout.ask()
    assert [(s.finish_reason, s.sampled_tokens) for s in rollout.segments] == [("unfinished", None)]
    assert "RecursionError" in rollout.meter.problem
    assert not rollout.meter.is_waiting
