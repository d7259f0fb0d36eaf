"""One short question with a run's own settings: what it finds before a run, and whom it clears in one."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chat_server import SILENCE, Answer, Script, completion, serve
from hypothesis import given
from hypothesis import strategies as st
from test_openai import AT_ONCE, ATTEMPTS, HI, ask, evaluated, failure, pure, resumed
from test_servers import fine

from whale_bench import EvalPlan, evaluate
from whale_bench.models import probing
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import OpenAIBackend
from whale_bench.models.openai_reply import FAILED, most_tokens
from whale_bench.store import RunStore
from whale_envs import InfrastructureError, UsageError
from whale_envs.errors import ModelError


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    defaults: Any = OpenAIBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", AT_ONCE)


NATIVE = """
from whale_bench.harness import BaseHarness, Nudge

class Harness(BaseHarness):
    TOOL_MODE = "native"
    TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}]

    def messages(self, view):
        chat = super().messages(view)[:1]
        for turn in view.turns:
            calls = list(turn.reply.tool_calls)
            chat.append({"role": "assistant", "content": turn.reply.text, "tool_calls": calls})
            chat.append({"role": "tool", "content": turn.observation, "tool_call_id": "c"})
        return chat

    def read(self, reply, view):
        return Nudge("the arguments are no JSON")
"""


@pytest.fixture
def native(tmp_path: Path) -> str:
    (tmp_path / "native.py").write_text(NATIVE)
    return str(tmp_path / "native.py")


async def started(refuses: Script, folder: Path, **changes: Any) -> str:
    """What a run says that does not start, on a server that refuses whatever `refuses` does."""
    async with serve(refuses, probe=refuses) as server:
        plan = {"domain": "chess_puzzles", "model": "openai/m", "base_url": server.url, "n": 20, **changes}
        plan = {name: server.url if value == "HERE" else value for name, value in plan.items()}
        with pytest.raises(UsageError) as caught:
            await evaluate(EvalPlan(**plan), folder)
    assert server.requests == []
    assert [path.name for path in await asyncio.to_thread(list, folder.parent.glob("run*"))] == []
    return str(caught.value)


# --- the most tokens of a turn --------------------------------------------------------------------

MOST = [
    "max_tokens is too large: {sent}. This model supports at most {most} completion tokens, whereas you "
    "provided {sent}.",
    "`max_tokens` must be less than or equal to `{most}`, the maximum value for `max_tokens` is less than "
    "the `context_window` for this model",
    "Invalid max_tokens value, the valid range of max_tokens is [1, {most}]",
    "max_tokens: {sent} > {most}, which is the maximum allowed number of output tokens for this model",
    "max_completion_tokens cannot exceed {most}",
    "max_tokens must be <= {most:,}",
    "Maximum output tokens is {most}",
]


@pytest.mark.parametrize("words", MOST, ids=range(len(MOST)))
async def test_a_model_that_allows_fewer_tokens_is_asked_for_what_it_allows(
    words: str, tmp_path: Path
) -> None:
    def at_most(payload: dict[str, Any], n: int) -> Any:
        sent = payload["max_tokens"]
        return Answer(400, words.format(sent=sent, most=4096)) if sent > 4096 else "hm"

    async with serve(at_most, probe=at_most) as server:
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=server.url, n=2, k=1)
        summary = await evaluate(plan, tmp_path / "run")
    assert summary.complete
    assert "the server allows no more than 4096 sampled tokens a turn" in summary.warnings
    assert [payload["max_tokens"] for payload in server.probes] == [8129, 4096]
    assert {payload["max_tokens"] for payload in server.requests} == {4096}


@given(words=st.sampled_from(MOST), sent=st.integers(2, 2**31), share=st.integers(1, 10**9))
def test_the_most_is_read_in_many_wordings_and_is_always_less(words: str, sent: int, share: int) -> None:
    most = max(1, min(share, sent - 1))
    assert most_tokens(words.format(sent=sent, most=most).lower(), sent) == most
    assert most_tokens(words.format(sent=sent, most=sent).lower(), sent) is None


@given(words=st.text(max_size=60), sent=st.integers(1, 10_000))
def test_any_other_words_allow_less_or_nothing(words: str, sent: int) -> None:
    found = most_tokens(f"max_tokens {words}", sent)
    assert found is None or 0 < found < sent
    assert most_tokens("messages may be at most 5", 10) is None


# --- other settings that can never work -----------------------------------------------------------

ONE_ONLY = (
    "Unsupported value: 'temperature' does not support {0} with this model. Only the default (1) value is "
    "supported."
)


def not_one(payload: dict[str, Any], n: int) -> Any:
    asked = payload["temperature"]
    return "<move>a1a1</move>" if asked == 1 else Answer(400, ONE_ONLY.format(asked))


async def test_a_temperature_that_a_model_does_not_take_is_named_before_a_run(tmp_path: Path) -> None:
    said = await started(not_one, tmp_path / "run", temperature=0.5)
    assert "refused temperature = 0.5 (--temperature)" in said
    assert "Only the default" in said
    summary, _ = await evaluated(not_one, tmp_path / "one", n=1, k=1)
    assert summary.complete


async def test_a_judge_that_takes_no_temperature_of_zero_is_named_by_its_own_option(tmp_path: Path) -> None:
    mine = {"domain": "search_qa", "model": "scripted/random", "base_url": None, "closed_book": True}
    said = await started(not_one, tmp_path / "run", judge="openai/j", judge_url="HERE", **mine)
    assert "refused temperature = 0.0 (--judge)" in said


async def test_switches_of_the_template_that_a_server_refuses_are_named_before_a_run(tmp_path: Path) -> None:
    def no_switches(payload: dict[str, Any], n: int) -> Any:
        known = "chat_template_kwargs" not in payload
        return "hm" if known else Answer(400, "Unrecognized request argument supplied: chat_template_kwargs")

    said = await started(no_switches, tmp_path / "run", chat_template_kwargs={"enable_thinking": True})
    assert "refused chat_template_kwargs = {'enable_thinking': True} (--chat-template-kwargs)" in said


@pytest.mark.parametrize(
    "words",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "Error applying the chat template: this one has no tools",
    ],
)
async def test_native_tools_that_a_server_does_not_take_are_named_before_a_run(
    words: str, tmp_path: Path, native: str
) -> None:
    refuses: Script = lambda p, n: Answer(400, words) if "tools" in p else "hm"  # noqa: E731
    said = await started(refuses, tmp_path / "run", harness=native)
    assert "native tools (TOOL_MODE of the harness)" in said
    assert words[:20] in said


async def test_a_probe_asks_as_the_first_turn_does_and_stops_at_the_first_word(
    tmp_path: Path, native: str
) -> None:
    async with serve(lambda p, n: "hm") as server:
        plan = EvalPlan(
            domain="chess_puzzles", model="openai/m", base_url=server.url, n=1, k=1, harness=native,
            temperature=0.5, top_k=7, max_tokens=99,
        )  # fmt: skip
        await evaluate(plan, tmp_path / "run")
    own = {"messages", "seed", "stop", "return_token_ids"}
    first, [asked] = server.requests[0], server.probes
    assert {k: v for k, v in asked.items() if k not in own} == {
        k: v for k, v in first.items() if k not in own
    }
    assert asked["stop"] == [" ", "\n"]
    assert "stop" not in first


@pytest.mark.parametrize("words", ["Unsupported parameter: 'stop'", "Extra inputs are not permitted"])
async def test_a_server_without_stop_is_probed_without(words: str) -> None:
    script: Script = lambda p, n: Answer(400, words) if "stop" in p else "yes"  # noqa: E731
    async with serve(fine, probe=script) as server, OpenAIBackend("m", base_url=server.url) as backend:
        await backend.probe(HI)
        assert ["stop" in payload for payload in server.probes] == [True, False]
        assert backend.warnings() == []
        await backend.generate(HI)
    assert server.probes[-1]["return_token_ids"] is True


# --- who is to blame for a refusal in a run -------------------------------------------------------

BAD_CHATS = [
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'.",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'.",
    "Invalid parameter: 'tool_call_id' of 'c' not found in 'tool_calls' of previous message of the model.",
    "Expecting ',' delimiter: line 1 column 15 (char 14)",
    "odd",
]


@pytest.mark.parametrize("words", BAD_CHATS, ids=range(len(BAD_CHATS)))
async def test_a_chat_that_no_server_takes_ends_its_rollout_and_the_run_is_whole(
    words: str, tmp_path: Path
) -> None:
    summary, server = await evaluated(lambda p, n: Answer(400, words), tmp_path / "run", n=12, k=4)
    assert (summary.complete, summary.score.mean) == (True, 0.0)
    assert summary.stop_conditions == {"chat_template": 48}
    assert {row.error for row in RunStore.open(tmp_path / "run").rollouts()} == {words}
    assert len(server.requests) == 48
    assert len(server.probes) <= 3  # before the run, and where one was refused; what it said is remembered


async def test_an_echoed_call_with_broken_arguments_is_the_models(tmp_path: Path, native: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "move", "arguments": '{"uci": "e2e4"'}}

    def script(payload: dict[str, Any], n: int) -> Any:
        if any(message["role"] == "tool" for message in payload["messages"]):
            return Answer(400, BAD_CHATS[3])
        return completion({"content": None, "tool_calls": [call]}, "tool_calls")

    summary, _ = await evaluated(script, tmp_path / "run", n=2, k=1, harness=native)
    assert (summary.complete, summary.stop_conditions) == (True, {"chat_template": 2})


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_takes_nothing_any_more_is_missing_and_not_the_models(
    status: int, tmp_path: Path
) -> None:
    gone = Answer(status, "Your credit balance is too low")
    async with serve(
        lambda p, n: gone if n > 20 else pure(p, n), probe=lambda p, n: gone if n else "yes"
    ) as server:
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=server.url, n=4, k=8)
        broken = await evaluate(plan, tmp_path / "run")
    assert (broken.complete, broken.score) == (False, None)
    assert "chat_template" not in broken.stop_conditions
    again, _ = await resumed(pure, tmp_path / "run")
    assert again.complete
    assert "chat_template" not in again.stop_conditions


async def test_of_several_servers_the_one_that_refused_is_asked() -> None:
    gone = Answer(400, "odd")
    lost: Script = lambda p, n: gone  # noqa: E731
    async with (
        serve(lost, probe=lambda p, n: gone if n else "yes") as bad,
        serve(fine) as good,
        OpenAIBackend("m", base_url=(bad.url, good.url)) as backend,
    ):
        await backend.probe(HI)
        with pytest.raises(InfrastructureError, match="odd"):
            await backend.generate(HI)
        assert (len(bad.probes), len(good.probes)) == (2, 1)


async def test_tools_that_a_server_never_took_are_the_harnesses_choice() -> None:
    """So a candidate of a search that wants what there is not is no outage."""
    tools: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "f"}},)
    others: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "g"}},)
    taken = {"f"}

    def script(payload: dict[str, Any], n: int) -> Any:
        names = {tool["function"]["name"] for tool in payload.get("tools", ())}
        return "yes" if names <= taken else Answer(400, "no such tool")

    async with serve(script, probe=script) as server, OpenAIBackend("m", base_url=server.url) as backend:
        await backend.probe(msgspec.structs.replace(HI, tools=tools))
        with pytest.raises(ModelError, match="chat_template: no such tool"):
            await backend.generate(msgspec.structs.replace(HI, tools=others))
        taken.clear()
        with pytest.raises(InfrastructureError, match="no such tool"):
            await backend.generate(msgspec.structs.replace(HI, tools=tools))


async def test_many_refusals_at_once_are_one_question_and_it_is_put_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, asked, well = probing.Server.at("http://a/v1"), 0, True

    async def ask(request: Any, server: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if not well:
            raise InfrastructureError("gone")

    suspicions = probing.Suspicions(ask)

    async def cleared(number: int) -> set[bool]:
        left = [msgspec.structs.replace(HI, max_tokens=1024 + i) for i in range(number)]
        return set(await asyncio.gather(*(suspicions.cleared(one, server) for one in left)))

    assert (await cleared(50), asked) == ({True}, 1)
    assert (await cleared(50), asked) == ({True}, 1)
    well = False
    monkeypatch.setattr(probing, "REMEMBERED_S", -1.0)
    assert (await cleared(50), asked) == ({False}, 2)
    assert (await cleared(1), asked) == ({False}, 3)  # what failed is not remembered


# --- answers that are none ------------------------------------------------------------------------


@pytest.mark.parametrize("word", [*sorted(FAILED), "ERROR"])
async def test_a_reply_that_the_server_gave_up_is_asked_for_again(word: str) -> None:
    cut = completion("e2", word, {"prompt_tokens": 1, "completion_tokens": 1})
    generation, server = await ask(lambda p, n: "yes" if n else cut)
    assert (generation.text, len(server.requests)) == ("yes", 2)
    _, server = await failure(lambda p, n: cut, InfrastructureError)
    assert len(server.requests) == ATTEMPTS


async def test_replies_that_the_server_gave_up_are_missing_and_not_scored(tmp_path: Path) -> None:
    def script(payload: dict[str, Any], n: int) -> Any:
        return completion("e2", "abort") if payload["seed"] % 2 else pure(payload, n)

    broken, _ = await evaluated(script, tmp_path / "run")
    assert (broken.complete, broken.score) == (False, None)
    assert 0 < len(broken.missing) < 32


async def test_a_web_page_is_a_wrong_address_before_a_run_and_an_outage_in_one(tmp_path: Path) -> None:
    page = b"\n <!DOCTYPE html><html>Log in</html>"
    said = await started(lambda p, n: page, tmp_path / "run")
    assert "answers with a web page, so it is no such server (--base-url; most end in /v1)" in said
    await failure(lambda p, n: page, InfrastructureError)


@pytest.mark.parametrize("status", [201, 203])
async def test_a_whole_completion_counts_whatever_the_kind_of_success(status: int) -> None:
    body = msgspec.json.encode(completion("yes"))
    generation, server = await ask(lambda p, n: Answer(status, body) if n else Answer(204))
    assert (generation.text, len(server.requests)) == ("yes", 2)


async def test_what_is_no_http_is_told_in_one_line() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with OpenAIBackend("m", base_url=url) as backend:
            with pytest.raises(InfrastructureError, match="no colon here") as caught:
                await backend.generate(HI)
    assert "\n" not in str(caught.value)


# --- servers that hang ----------------------------------------------------------------------------


async def test_a_server_that_hangs_is_rested_once_another_has_answered(tmp_path: Path) -> None:
    patience = Patience(backoff_s=0.0, others_s=0.2)
    async with serve(pure, probe=lambda p, n: SILENCE) as hung, serve(pure) as good:
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=(hung.url, good.url), n=2, k=1)
        async with OpenAIBackend("m", base_url=plan.base_url, patience=patience) as backend:
            summary = await evaluate(plan, tmp_path / "run", backend=backend)
            rests_for = backend._servers.all[0].rests_until - time.monotonic()
            assert [server.in_flight for server in backend._servers.all] == [0, 0]
        hung.closing.set()
    assert summary.complete
    assert (len(hung.probes), hung.requests) == (1, [])
    assert 0 < rests_for <= patience.rest_s
    assert any(f"{hung.url} failed and was rested" in warning for warning in summary.warnings)


async def test_a_server_that_hangs_alone_is_asked_once_and_waited_for_aloud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "_TOLD_AFTER_S", 0.1)
    patience = Patience(backoff_s=0.0, silence_s=0.5)
    async with serve(fine, probe=lambda p, n: SILENCE) as hung:
        async with OpenAIBackend("m", base_url=hung.url, patience=patience) as backend:
            with (
                pytest.warns(UserWarning, match=f"waiting for {hung.url} to answer"),
                pytest.raises(InfrastructureError, match=r"failed 1 times.*is --base-url right"),
            ):
                await backend.probe(HI)
        hung.closing.set()
    assert len(hung.probes) == 1


async def test_a_wrong_key_of_one_server_is_told_while_another_hangs() -> None:
    async with (
        serve(fine, probe=lambda p, n: SILENCE) as hung,
        serve(fine, probe=lambda p, n: Answer(401, "no")) as wrong,
        OpenAIBackend("m", base_url=(hung.url, wrong.url)) as backend,
    ):
        with pytest.raises(UsageError, match=f"{wrong.url} refused the key"):
            await backend.probe(HI)
        hung.closing.set()
