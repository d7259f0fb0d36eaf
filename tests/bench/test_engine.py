"""The rollout engine on scripted replies: what is played, what ends a rollout, and what is on record."""

import asyncio
import itertools
import pickle
import sys
import types
from typing import Any

import msgspec
import pytest
from bench_fakes import EXAMPLES, in_process, play

from whale_bench import Agent, Generation, Request, Rollout, Task, rollout
from whale_bench.engine import LostRolloutError
from whale_bench.harness.base import Reply, View
from whale_bench.harness.host import HarnessHost, load_harness
from whale_bench.harness.provenance import is_sampled
from whale_bench.ledger import Charge
from whale_bench.models import Usage
from whale_bench.models.scripted import ScriptedModel, load_scripted
from whale_envs import DOMAINS, Domain, InfrastructureError, UnknownNameError, UsageError
from whale_envs.chess_puzzles import make_puzzle
from whale_envs.core import ExampleSet
from whale_envs.errors import ModelError
from whale_envs.testing import EchoEnv
from whale_envs.text import split_thinking

TWO_PLIES = next(i for i, e in enumerate(EXAMPLES) if len(e.gold) >= 3)
GOLD = EXAMPLES[TWO_PLIES].gold


def thinking(text: str, **more: Any) -> Generation:
    """What a backend makes of sampled text with thinking tags."""
    reasoning, final = split_thinking(text)
    return Generation(final, reasoning=reasoning, raw_text=text, usage=Usage(1, 1), **more)


def counted(text: str, tokens: int | None, finish: Any = "stop") -> Generation:
    return Generation(text, finish, usage=Usage(5, tokens))


# --- O-16: what the model means, and what is refused ----------------------------------------------


async def test_o16_a_move_rejected_in_thought_is_not_played() -> None:
    other = next(m for m in legal(TWO_PLIES) if m != GOLD[0])
    row = await play(
        lambda r: thinking(f"<think>{other}? No. {GOLD[0]} then.</think> My move: {GOLD[0]}"),
        example=TWO_PLIES,
    )
    assert row.steps[0].action == GOLD[0]
    assert row.steps[0].event == "ok"
    assert other in row.segments[0].text  # the raw text stays on record


@pytest.mark.parametrize("bad", ["a1a9", "", "I resign", "a9", "é♞"])
async def test_o16_what_is_no_legal_move_costs_a_turn_and_leaves_the_board(bad: str) -> None:
    row = await play([bad, *GOLD[::2]], example=TWO_PLIES)
    first = row.steps[0]
    assert first.event in ("malformed", "illegal")
    assert first.observation.startswith(row.opening)  # the same position, then what was wrong
    assert row.metrics["retries"] == 1
    assert row.metrics["turns"] == len(row.steps) == 1 + len(GOLD[::2])
    assert row.verdict.reward == 1.0


async def test_a_second_refused_reply_ends_the_rollout_with_no_reward() -> None:
    row = await play(["I resign", "Truly"], example=TWO_PLIES)
    assert (row.stop_condition, row.verdict.reward, len(row.steps)) == ("malformed", 0.0, 2)


async def test_time_in_the_environment_is_a_part_of_the_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the environment moves this clock by a second, and nothing else does."""
    from whale_bench import progress

    clock = itertools.count()
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    row = await play(["I resign", "Truly"], example=TWO_PLIES)
    assert len(row.steps) == 2
    assert row.env_seconds == 2.0 < row.seconds


def legal(example: int) -> list[str]:
    from whale_envs import make_env

    env = make_env("chess_puzzles", examples=EXAMPLES)
    env.reset(options={"example_id": EXAMPLES[example].id})
    return sorted(move.uci() for move in env._game.board.legal_moves)  # type: ignore[attr-defined]


# --- O-25: cut off is not finished ----------------------------------------------------------------


async def test_o25_a_reply_that_was_cut_off_marks_the_rollout_truncated() -> None:
    replies = iter(GOLD[::2])
    row = await play(lambda r: counted(next(replies), 1, "length"), example=TWO_PLIES)
    assert row.verdict.reward == 1.0
    assert row.truncated
    assert row.segments[0].finish_reason == "length"


async def test_o25_a_reply_that_was_not_the_last_may_be_cut_off() -> None:
    replies = iter([counted(GOLD[0], 1, "length"), *[counted(m, 1) for m in GOLD[2::2]]])
    row = await play(lambda r: next(replies), example=TWO_PLIES)
    assert (row.truncated, row.verdict.reward) == (False, 1.0)


@pytest.mark.parametrize("tokens", [[3, 2], [5], [9], [4, 2]])
async def test_o25_a_spent_budget_ends_the_rollout(tokens: list[int]) -> None:
    rest = iter(tokens)
    row = await play(
        lambda r: counted(GOLD[0], n := next(rest), "length" if n > 1 else "stop"), token_budget=5
    )
    assert (row.stop_condition, row.truncated, row.verdict.reward) == ("assistant_token_budget", True, 0.0)


async def test_o25_a_budget_spent_by_a_finished_reply_ends_before_the_next_is_asked() -> None:
    model = ScriptedModel(lambda r: counted(GOLD[0], 5))
    row = await play(None, backend=model, example=TWO_PLIES, token_budget=5)
    assert (row.stop_condition, len(model.requests)) == ("assistant_token_budget", 1)
    assert row.steps[0].action == GOLD[0]


async def test_a_reply_longer_than_the_budget_is_not_played() -> None:
    row = await play(lambda r: counted(GOLD[0], 6), example=TWO_PLIES, token_budget=5)
    assert (row.stop_condition, row.steps) == ("assistant_token_budget", ())


async def test_a_budget_holds_where_the_server_does_not_count() -> None:
    row = await play(lambda r: counted(GOLD[0], None, "length"), example=TWO_PLIES, token_budget=5)
    assert (row.stop_condition, row.sampled_tokens) == ("assistant_token_budget", None)


@pytest.mark.parametrize("asked", [-3, 0, 1, 7])
async def test_o25_max_tokens_is_never_below_one_and_never_above_what_is_left(asked: int) -> None:
    model = ScriptedModel(lambda r: counted("no move", 4))
    await play(None, in_process(f"MAX_TOKENS = {asked}"), backend=model, token_budget=6)
    assert [r.max_tokens for r in model.requests] == [min(max(1, asked), left) for left in (6, 2)]


async def test_o25_one_failing_rollout_leaves_the_others() -> None:
    def reply(request: Request) -> str:
        if reply.calls == 7:  # type: ignore[attr-defined]
            reply.calls += 1  # type: ignore[attr-defined]
            raise ModelError("context_length", "4,100 tokens, a context of 4,096")
        reply.calls += 1  # type: ignore[attr-defined]
        return GOLD[0]

    reply.calls = 0  # type: ignore[attr-defined]
    model = ScriptedModel(reply)
    rows = await asyncio.gather(*(play(None, backend=model, example=TWO_PLIES, sample=s) for s in range(64)))
    ended = [row for row in rows if row.stop_condition == "context_length"]
    assert len(ended) == 1
    assert ended[0].truncated
    assert ended[0].verdict.reward == 0.0
    assert "4,100" in ended[0].error
    assert all(row.steps for row in rows if row is not ended[0])


async def test_a_model_error_on_a_later_turn_keeps_what_there_is() -> None:
    replies = iter([GOLD[0]])

    def reply(request: Request) -> str:
        text = next(replies, None)
        if text is None:
            raise ModelError("content_filter", "no")
        return text

    row = await play(reply, example=TWO_PLIES)
    assert (row.stop_condition, len(row.steps), row.truncated) == ("content_filter", 1, False)


# --- provenance -----------------------------------------------------------------------------------


async def test_a_harness_that_plays_a_move_of_its_own_gets_nothing() -> None:
    cheat = in_process(f"def read(self, reply, view):\n    return Act({GOLD[0]!r})")
    row = await play(lambda r: "I do not know", cheat, example=TWO_PLIES)
    assert (row.stop_condition, row.verdict.reward, row.steps) == ("provenance", 0.0, ())
    assert GOLD[0] in row.error


async def test_a_move_that_stands_only_in_the_reasoning_was_not_said() -> None:
    read = in_process("def read(self, reply, view):\n    return Act(reply.reasoning.strip())")
    row = await play(lambda r: thinking(f"<think> {GOLD[0]} </think> none"), read, example=TWO_PLIES)
    assert row.stop_condition == "provenance"


async def test_a_move_said_in_an_earlier_turn_does_not_count_again() -> None:
    body = (
        "def read(self, reply, view):\n    return Act(view.turns[0].reply.text if view.turns else reply.text)"
    )
    row = await play(["zzz", "yyy"], in_process(body))
    assert row.stop_condition == "provenance"


@pytest.mark.parametrize(
    ("said", "action", "stands"),
    [
        ("I play E7E8Q!", "e7e8q", True),
        ("I  play\n\te2e4 ", " e2e4\n", True),
        ("a1a80", "a1a8", False),
        ("xa1a8", "a1a8", False),
        ("<move>e2e4</move>", "e2e4", True),
        ("nf3 is good", "Nf3", False),
        ("the Answer", "the answer", False),
        ("the   answer\nis", "the answer is", True),
        ("e2 e4", "e2e4", False),
        ("", "", True),
        ("something", "", True),
    ],
)
async def test_provenance_folds_white_space_and_the_case_of_uci_only(
    said: str, action: str, stands: bool
) -> None:
    harness = in_process(f"def read(self, reply, view):\n    return Act({action!r})")
    row = await play(lambda r: said, harness)
    assert (row.stop_condition != "provenance") == stands


async def test_arguments_of_tool_calls_are_sampled_text() -> None:
    calls = ({"function": {"name": "move", "arguments": f'{{"uci": "{GOLD[0]}"}}'}},)
    harness = in_process(f"def read(self, reply, view):\n    return Act({GOLD[0]!r})")
    row = await play(lambda r: Generation("", tool_calls=calls), harness, example=TWO_PLIES)
    assert row.steps[0].event == "ok"


@pytest.mark.parametrize(
    "call", [{}, {"function": None}, {"function": "f"}, {"function": {"arguments": None}}]
)
async def test_a_malformed_tool_call_is_no_crash(call: dict[str, Any]) -> None:
    harness = in_process("def read(self, reply, view):\n    return Act('None')")
    row = await play(lambda r: Generation("x", tool_calls=(call,)), harness)
    assert row.stop_condition == "provenance"


async def test_a_harness_cannot_put_words_into_the_models_tool_calls() -> None:
    calls = ({"function": {"name": "move", "arguments": "{}"}},)
    body = f"""
def read(self, reply, view):
    reply.tool_calls[0]["function"]["arguments"] = {GOLD[0]!r}
    return Act({GOLD[0]!r})"""
    row = await play(lambda r: Generation("", tool_calls=calls), in_process(body), example=TWO_PLIES)
    assert row.stop_condition == "provenance"


# --- what a harness may do, and its faults --------------------------------------------------------


async def test_a_nudge_costs_a_turn_and_is_shown_to_the_model() -> None:
    body = """
MAX_TURNS = 3
def read(self, reply, view):
    return Nudge("Again, please.") """
    model = ScriptedModel(lambda r: "hm")
    row = await play(None, in_process(body), backend=model)
    assert (row.stop_condition, row.truncated, len(model.requests)) == ("max_turns", True, 3)
    assert [(step.action, step.event) for step in row.steps] == [(None, "nudge")] * 3
    assert model.requests[1].messages[-1].content == "Again, please."
    assert row.metrics["turns"] == 0  # of the environment


@pytest.mark.parametrize("where", ["def stop(self, view):\n    return True",
                                   "def read(self, reply, view):\n    return Stop('enough')"])  # fmt: skip
async def test_a_harness_may_stop(where: str) -> None:
    row = await play(lambda r: "hm", in_process(where))
    assert (row.stop_condition, row.verdict.reward, row.truncated) == ("harness_stop", 0.0, False)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def read(self, reply, view):\n    return 1 / 0", "mine.py:4: ZeroDivisionError: division by zero"),
        ("def read(self, reply, view):\n    import sys\n    sys.exit(0)", "mine.py:5: SystemExit: 0"),
        (
            "def read(self, reply, view):\n    return None",
            "mine.py:3: read must return Act, Nudge or Stop, got None",
        ),
        ("def read(self, reply, view):\n    return 'e2e4'", "mine.py:3: read must return"),
        (
            "def read(self, reply, view):\n    return Act(5)",
            "mine.py:3: read returned Act whose action is no text: 5",
        ),
        ("def read(self, reply):\n    return Act('')", "mine.py:3: TypeError: "),
        ("def read(self, reply, view):\n    return self.read(reply, view)", "RecursionError"),
        ("def messages(self, view):\n    return []", "mine.py:3: messages must return a non-empty list"),
        (
            "def messages(self, view):\n    return 'hi'",
            "mine.py:3: messages must return a non-empty list, got 'hi'",
        ),
        (
            "def messages(self, view):\n    return [{'role': 'user'}]",
            "mine.py:3: messages returned what is no chat",
        ),
        (
            "def messages(self, view):\n    return [{'role': 'user', 'content': 5}]",
            "Expected `str`, got `int`",
        ),
        (
            "def messages(self, view):\n    return [{'role': 'boss', 'content': ''}]",
            "Invalid enum value 'boss'",
        ),
        ("def messages(self, view):\n    return [{'role': 'assistant', 'content': ''}]", "must not end with"),
        (
            "def messages(self, view):\n    return [{'role': 'user', 'content': '', 'tool_calls': 1}]",
            "Expected `array`",
        ),
        ("def stop(self, view):\n    return 1", "mine.py:3: stop must return a bool, got 1"),
        (
            "def stop(self, view):\n    view.state = [1]\n    return False",
            "mine.py:2: view.state must be a dict",
        ),
        ("def stop(self, view):\n    view.state['x'] = 'y' * 70_000\n    return False", "takes 70008 bytes"),
        ("def stop(self, view):\n    view.state['x'] = object()\n    return False", "mine.py:2: TypeError: "),
        ("def stop(self, view):\n    raise ValueError('two\\nlines')", "mine.py:4: ValueError: two lines"),
    ],
)
async def test_a_harness_fault_is_a_zero_reward_record_with_file_and_line(body: str, said: str) -> None:
    row = await play(lambda r: GOLD[0], in_process(body), example=TWO_PLIES)
    assert (row.stop_condition, row.verdict.reward) == ("harness_error", 0.0)
    assert said in row.error
    assert "\n" not in row.error


async def test_a_harness_cannot_lift_the_turn_cap() -> None:
    body = """
MAX_TURNS = 2
def read(self, reply, view):
    view.max_turns = 99
    return Nudge("more")"""
    model = ScriptedModel(lambda r: "hm")
    await play(None, in_process(body), backend=model)
    assert len(model.requests) == 2


async def test_options_out_of_bounds_are_clamped_and_unknown_ones_refused() -> None:
    wild = in_process(
        "MAX_TURNS = 10**6\nENV_OPTIONS = {'illegal_retry_budget': -5, 'format_retry_budget': 99}"
    )
    model = ScriptedModel(lambda r: "hm")
    await play(None, wild, backend=model)
    assert len(model.requests) == 11  # ten format retries, then the end
    with pytest.raises(UnknownNameError, match="'search_depth'"):
        await play(lambda r: "hm", in_process("ENV_OPTIONS = {'search_depth': 3}"))


async def test_messages_of_native_tool_mode_reach_the_model_as_they_were_written() -> None:
    body = """
TOOL_MODE = "native"
TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {}}}]
def messages(self, view):
    call = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": "{}"}}
    return [
        {"role": "system", "content": "s"},
        {"role": "user", "content": view.observation},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
    ]"""
    model = ScriptedModel(lambda r: "hm")
    row = await play(None, in_process(body), backend=model)
    sent = model.requests[0]
    assert [m.role for m in sent.messages] == ["system", "user", "assistant", "tool"]
    assert sent.messages[2].tool_calls[0]["id"] == sent.messages[3].tool_call_id == "c1"
    assert sent.tools[0]["function"]["name"] == "move"
    assert row.segments[0].tools == sent.tools


# --- what goes to the caller ----------------------------------------------------------------------


@pytest.mark.parametrize("error", [InfrastructureError("down"), UsageError("no such model")])
async def test_infrastructure_and_misuse_go_to_the_caller(error: Exception) -> None:
    def reply(request: Request) -> str:
        raise error

    with pytest.raises(type(error), match=str(error)):
        await play(reply)


async def test_o31_what_a_lost_rollout_used_goes_to_the_caller_with_the_error() -> None:
    replies = iter([counted(GOLD[0], 2)])

    def reply(request: Request) -> Generation:
        if (found := next(replies, None)) is None:
            raise InfrastructureError("down")
        return found

    with pytest.raises(LostRolloutError, match=r"^down$") as caught:
        await play(reply, example=TWO_PLIES)
    used = caught.value.used
    assert used.seconds > 0
    assert msgspec.structs.replace(used, seconds=0.0) == Charge(1, 5, 2, 1, 0, unmetered_tokens=True)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.used) == ("down", used)


@pytest.mark.parametrize(("tokens", "unmetered"), [(2, False), (None, True)])
async def test_o31_tokens_are_known_where_a_worker_and_not_the_model_failed(
    tokens: int | None, unmetered: bool
) -> None:
    class Broken(HarnessHost):
        def __init__(self) -> None:
            self.inner = load_harness("chess_puzzles")
            self.name, self.source, self.settings = self.inner.name, self.inner.source, self.inner.settings

        async def call(self, view: View, reply: Reply | None = None) -> Any:
            if reply is not None:
                raise InfrastructureError("no worker")
            return await self.inner.call(view)

    with pytest.raises(LostRolloutError) as caught:
        await play(lambda r: counted(GOLD[0], tokens), Broken())
    used = msgspec.structs.replace(caught.value.used, seconds=0.0)
    assert used == Charge(1, 5, tokens or 0, 1, 0, unmetered_tokens=unmetered)


# --- seeds ----------------------------------------------------------------------------------------


async def test_seeds_differ_by_run_example_sample_and_turn_and_are_reproducible() -> None:
    async def seeds() -> list[int]:
        model = ScriptedModel(lambda r: GOLD[0])
        for seed in (0, 1):
            for example in (TWO_PLIES, TWO_PLIES + 1):
                for sample in range(4):
                    await play(None, backend=model, example=example, sample=sample, seed=seed)
        return [r.seed for r in model.requests]

    first = await seeds()
    assert len(set(first)) == len(first) > 16
    assert first == await seeds()
    assert all(0 <= seed < 2**63 for seed in first)


async def test_equal_rollouts_are_equal_records() -> None:
    rows = [await play(None, backend=load_scripted("noisy-oracle:0.5"), sample=3) for _ in range(2)]
    assert msgspec.structs.replace(rows[0], seconds=0, env_seconds=0) == msgspec.structs.replace(
        rows[1], seconds=0, env_seconds=0
    )


# --- gold -----------------------------------------------------------------------------------------


class Watched(HarnessHost):
    """Hands calls on and keeps everything that a harness is shown."""

    def __init__(self, inner: HarnessHost) -> None:
        self.inner, self.name, self.source, self.settings = inner, inner.name, inner.source, inner.settings
        self.shown: list[str] = []

    async def call(self, view: View, reply: Reply | None = None) -> Any:
        self.shown.append(msgspec.json.encode((view, reply)).decode())
        return await self.inner.call(view, reply)


@pytest.mark.parametrize("source", ["gold", "source", "line"])
async def test_a_harness_and_a_model_are_never_shown_the_gold_line(source: str) -> None:
    long = max(range(len(EXAMPLES)), key=lambda i: len(EXAMPLES[i].gold))
    example = EXAMPLES[long]
    watched = Watched(load_harness("chess_puzzles"))
    model = ScriptedModel(lambda r: "nothing to say")
    await play(None, watched, backend=model, example=long)
    sent = "".join(m.content for r in model.requests for m in r.messages)
    texts = "".join(watched.shown) + sent
    needles = {
        "gold": [move for move in example.gold[1:] if move not in legal(long)],
        "source": [example.source] if example.source else [],
        "line": [" ".join(example.gold), repr(example.gold), ",".join(example.gold)],
    }[source]
    assert needles
    assert not [needle for needle in needles if needle in texts]


async def test_the_gold_is_on_no_record_of_a_failed_rollout() -> None:
    row = await play(["nothing", "nothing"], example=TWO_PLIES)
    hidden = [move for move in GOLD[1:] if move not in legal(TWO_PLIES)]
    assert hidden
    assert not [move for move in hidden if move in msgspec.json.encode(row).decode()]


# --- records --------------------------------------------------------------------------------------


async def test_a_record_goes_through_json_unharmed() -> None:
    row = await play(None, backend=load_scripted("noisy-oracle:0.7"), example=TWO_PLIES, sample=1)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Rollout) == row


async def test_lone_surrogates_in_what_the_model_said_are_replaced() -> None:
    odd = "a\ud83dz"
    call = {"function": {"name": odd, "arguments": odd}}
    row = await play(lambda r: Generation(odd, reasoning=odd, tool_calls=(call,)))
    assert row.segments[0].text == "a?z"
    assert row.steps[0].action == "a?z"
    assert msgspec.json.decode(msgspec.json.encode(row), type=Rollout) == row


async def test_lone_surrogates_from_a_harness_are_replaced() -> None:
    body = """
def messages(self, view):
    return [{"role": "user", "content": "a\\ud83dz"}]
def read(self, reply, view):
    view.state["k"] = "\\ud83d"
    return Nudge("b\\ud83dz")"""
    model = ScriptedModel(lambda r: "hm")
    row = await play(None, in_process(body), backend=model)
    assert model.requests[0].messages[0].content == "a?z"
    assert row.steps[0].observation == "b?z"
    assert row.stop_condition == "max_turns"


async def test_tokens_are_summed_or_not_reported() -> None:
    row = await play(lambda r: counted("hm", 7))
    assert (row.prompt_tokens, row.sampled_tokens, row.metrics["sampled_tokens"]) == (10, 14, 14)
    row = await play(lambda r: counted("hm", None))
    assert (row.prompt_tokens, row.sampled_tokens) == (10, None)
    assert "sampled_tokens" not in row.metrics


# --- an environment whose core waits --------------------------------------------------------------


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> ExampleSet[Any]:
    module = types.ModuleType("whale_envs.echo")
    module.ENV = EchoEnv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    domain = Domain(name="echo", env_id="whale/Echo-v0", token_budget=100, tiers={"mini": "words"})
    monkeypatch.setattr("whale_envs.suite.DOMAINS", {**DOMAINS, "echo": domain})
    return EchoEnv().examples


async def test_many_rollouts_share_one_event_loop_and_do_not_mix(echo: ExampleSet[Any]) -> None:
    agent = Agent(ScriptedModel(lambda r: r.messages[-1].content.removeprefix("Say: ")), in_process("pass"))
    task = Task("echo", echo)
    rows = await asyncio.gather(
        *(rollout(task, agent, e, sample=s, seed=0, key=f"{e.id}:{s}") for e in echo for s in range(4))
    )
    assert {row.verdict.reward for row in rows} == {1.0}
    for row in rows:
        words = echo.by_id(row.example_id).words
        assert tuple(step.action for step in row.steps) == words
        assert row.metrics["said"] == len(words)


async def test_a_fault_after_the_last_right_word_cannot_happen_and_before_it_is_worth_nothing(
    echo: ExampleSet[Any],
) -> None:
    three = next(e for e in echo if len(e.words) == 3)
    body = "def read(self, reply, view):\n    return Act(reply.text) if len(view.turns) < 2 else 1 / 0"
    agent = Agent(ScriptedModel(lambda r: r.messages[-1].content.removeprefix("Say: ")), in_process(body))
    row = await rollout(Task("echo", echo), agent, three, sample=0, seed=0, key="k")
    assert (row.stop_condition, row.verdict.reward, len(row.steps)) == ("harness_error", 0.0, 2)


THOUGHTS = ["<think>{}</think>", "<thinking>{}</thinking>", "[THINK]{}[/THINK]", "<THINK>{}</THINK>"]


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("form", ["{}", "<move>{}</move>", "[{}]"])
async def test_a_move_in_thinking_tags_is_none_whatever_the_backend(thought: str, form: str) -> None:
    puzzle = make_puzzle({"FEN": "6k1/5ppp/8/8/7p/8/5PPP/RR4K1 b - - 0 1", "Moves": "h4h3 a1a8"})
    examples = ExampleSet([puzzle], name="one")
    reply = thought.format("not " + form.format("g2h3")) + " Ra8#"
    unfinished = thought.partition("{}")[0] + form.format("a1a8")
    for text, solved in ((reply, True), (unfinished, False)):
        agent = Agent(ScriptedModel(lambda _, text=text: text), load_harness("chess_puzzles"))
        record = await rollout(
            Task("chess_puzzles", examples), agent, puzzle, sample=0, seed=0, key=f"test:{solved}"
        )
        assert record.verdict.correct is solved
        assert "g2h3" not in [step.action for step in record.steps]


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("O-O", "O-O-O"),
        ("0-0", "0-0-0"),
        ("e8", "e8=N"),
        ("e7e8", "e7e8=N"),
        ("a8", "a1-a8"),
        ("d5", "e4xd5"),
    ],
)
def test_a_part_of_what_was_said_is_not_what_was_said(action: str, text: str) -> None:
    assert not is_sampled(action, [text])
    assert is_sampled(action, [f"{action}, said twice: ({action})."])
