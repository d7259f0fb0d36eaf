"""Every mechanism alone and any combination of them makes a harness that holds the contract."""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proposer_fakes import DOMAINS, TIERS, random_plan
from whale_baselines.proposers.library import library, read_plan, write
from whale_baselines.proposers.mechanism import MARK, Plan, header_of
from whale_baselines.proposers.worked import WorkedExample, worked_examples

from whale_bench.engine import Agent, Task, rollout
from whale_bench.harness.base import Act, Ask, Nudge, Reply, Turn, View
from whale_bench.harness.check import check_harness, check_rollouts
from whale_bench.harness.host import InProcessHarness, shipped_harnesses
from whale_bench.harness.provenance import is_sampled
from whale_bench.models.base import Backend, Request
from whale_bench.models.scripted import ScriptedModel, load_scripted
from whale_bench.records import Rollout
from whale_envs import make_env
from whale_envs.core import ExampleSet

FAULTS = {"harness_error", "harness_timeout", "provenance"}
Pools = Mapping[str, Mapping[str, WorkedExample]]


@pytest.fixture(scope="module")
def pools() -> Pools:
    found = {}
    for domain in DOMAINS:
        examples = make_env(domain, tier=TIERS[domain], split="weight").examples
        made = worked_examples(domain, examples, tier=TIERS[domain], count=6)
        found[domain] = {one.key: one for one in made}
    return found


def replies(domain: str) -> Callable[[Request], str]:
    """A scripted model that says all kinds of things, by the request's seed."""

    def reply(request: Request) -> str:
        rng, env = Random(request.seed), request.host
        action = env.oracle_action() if rng.random() < 0.5 else env.random_action(rng)
        kinds = {
            "math_python": [
                "```python\n1/0\n```",
                "<python>print(6*7)</python>",
                "It is 42.",
                f"So {action}. Next: \\boxed{{1}}",
            ],
            "search_qa": [
                "<search>capital of Norway</search>",
                "<search>zzqx</search>",
                "search: Norway",
                f"{action} <answer>x</answer>",
            ],
            "chess_puzzles": [
                f"<move>{action}</move>",
                f"{action} or a1a1",
                "<move>a1a1</move><move>h8h8</move>",
                "Nf3 wins",
            ],
        }
        return rng.choice([action, "", "Hm.", *kinds[domain]])

    return reply


async def play(
    domain: str, source: str, backend: Backend, examples: int = 3, samples: int = 1
) -> list[Rollout]:
    every = make_env(domain, tier=TIERS[domain], split="dev").examples
    task = Task(domain, ExampleSet(every[:examples], name="some"))
    agent = Agent(backend, InProcessHarness(source, "candidate.py"))
    return [
        await rollout(task, agent, example, sample=sample, seed=3, key=f"{example.id}:{sample}")
        for example in task.examples
        for sample in range(samples)
    ]


def outline(record: Rollout) -> Any:
    """All that a harness decides in a rollout."""
    return (
        [segment.messages for segment in record.segments],
        record.steps,
        record.verdict,
        record.stop_condition,
    )


@pytest.mark.parametrize("domain", DOMAINS)
async def test_the_empty_plan_is_h0(domain: str) -> None:
    mine = await play(domain, write(domain, {}, {}), ScriptedModel(replies(domain)), 4, 6)
    h0 = await play(domain, shipped_harnesses()[domain], ScriptedModel(replies(domain)), 4, 6)
    assert list(map(outline, mine)) == list(map(outline, h0))
    assert len({record.stop_condition for record in h0}) > 1


def alone(domain: str, pool: Mapping[str, WorkedExample]) -> list[Plan]:
    """Each mechanism with each value of each parameter."""
    plans: list[Plan] = []
    for one in library(domain).values():
        params = one.draw(Random(one.name), pool)
        plans += [{one.name: params}]
        plans += [
            {one.name: {**params, name: value}} for name, values in one.choices.items() for value in values
        ]
    return plans


@pytest.mark.parametrize("domain", DOMAINS)
async def test_each_mechanism_alone_runs_without_fault_and_lets_the_oracle_win(
    domain: str, pools: Pools
) -> None:
    h0 = write(domain, {}, {})
    for plan in alone(domain, pools[domain]):
        source = write(domain, plan, pools[domain])
        assert source.split("\n", 1)[1] != h0.split("\n", 1)[1], plan
        assert read_plan(source, domain, pools[domain]) == plan
        for exchange in await check_rollouts(InProcessHarness(source, "candidate.py"), domain):
            if exchange.reply is not None and isinstance(exchange.decision, Act):
                assert is_sampled(exchange.decision.action, [exchange.reply.text]), plan
        [oracle] = await play(domain, source, load_scripted("oracle"), 1)
        assert oracle.verdict.reward == 1.0, plan
        records = await play(domain, source, ScriptedModel(replies(domain)), 2)
        assert not FAULTS & {record.stop_condition for record in records}, (plan, records)


@settings(max_examples=25)
@given(domain=st.sampled_from(DOMAINS), seed=st.integers(0, 2**32))
def test_any_combination_runs_without_fault_and_lets_the_oracle_win(
    pools: Pools, domain: str, seed: int
) -> None:
    plan = random_plan(domain, seed, pools[domain])
    source = write(domain, plan, pools[domain])
    assert read_plan(source, domain, pools[domain]) == plan

    async def run() -> None:
        await check_rollouts(InProcessHarness(source, "candidate.py"), domain)
        assert [r.verdict.reward for r in await play(domain, source, load_scripted("oracle"), 2)] == [
            1.0,
            1.0,
        ]
        for backend in (load_scripted("random"), ScriptedModel(replies(domain))):
            stops = {record.stop_condition for record in await play(domain, source, backend, 2, 2)}
            assert not stops & FAULTS, source

    asyncio.run(run())


@pytest.mark.parametrize("domain", DOMAINS)
async def test_the_checker_finds_nothing_in_combinations_that_hold_every_mechanism(
    domain: str, pools: Pools, tmp_path: Path
) -> None:
    rng, names = Random(domain), list(library(domain))
    rng.shuffle(names)
    for start in range(0, len(names), 8):
        plan = {n: library(domain)[n].draw(rng, pools[domain]) for n in names[start : start + 8]}
        path = tmp_path / f"candidate_{start}.py"
        path.write_text(write(domain, plan, pools[domain]))
        assert await check_harness(path, (domain,)) == []


WORDS = st.sampled_from(
    [
        *("\\boxed{", "}", "{", "42", "-", "3.5", " ", "\n", "\u200b", "```python\n", "```", "print(1)"),
        *("<python>", "</python>", "<search>", "</search>", "<answer>", "</answer>", "search: "),
        *("<move>", "</move>", "e2e4", "[a7a8q]", "Nf3", "e4"),
    ]
)


@settings(max_examples=40)
@given(
    domain=st.sampled_from(DOMAINS),
    seed=st.integers(0, 2**16),
    texts=st.lists(st.lists(WORDS | st.text(max_size=4), max_size=8).map("".join), min_size=1, max_size=3),
)
def test_whatever_a_model_says_an_action_stands_in_it(
    pools: Pools, domain: str, seed: int, texts: list[str]
) -> None:
    harness = InProcessHarness(write(domain, random_plan(domain, seed, pools[domain]), pools[domain]), "c.py")
    h0 = InProcessHarness(shipped_harnesses()[domain], "h0.py")
    opening = (
        "Legal moves: [e2e4] e4, [a7a8q] a8=Q+, [g1f3] Nf3" if domain == "chess_puzzles" else "What is 6*7?"
    )
    view = View(domain, opening, opening, max_turns=harness.settings.max_turns or 2)

    async def run() -> None:
        for text in texts:
            decision, view.state = await harness.call(view)
            if not isinstance(decision, Ask):
                return
            reply = Reply(text)
            decision, view.state = await harness.call(view, reply)
            if isinstance(decision, Act):
                plain, _ = await h0.call(view, reply)  # reads a move out of a word where provenance does not
                theirs = isinstance(plain, Act) and not is_sampled(plain.action, [text])
                assert is_sampled(decision.action, [text]) or theirs
                view.turns += (Turn(reply, decision.action, "shown", "told", "illegal"),)
            elif isinstance(decision, Nudge):
                view.turns += (Turn(reply, None, decision.message, decision.message, "nudge"),)

    asyncio.run(run())


async def test_grouped_and_marked_moves_are_the_same_moves_and_give_nothing_away(pools: Pools) -> None:
    """The parrots: who copies the first or the last move that is shown plays as under h0."""
    bracketed = re.compile(r"\[([a-h][1-8][a-h][1-8][qrbn]?)\]")

    def parrot(which: int) -> Callable[[Request], str]:
        return lambda request: f"<move>{bracketed.findall(request.messages[-1].content)[which]}</move>"

    for how in ("in groups", "in words"):
        source = write("chess_puzzles", {"move_marks": {"how": how}}, {})
        for which in (0, -1):
            mine = await play("chess_puzzles", source, ScriptedModel(parrot(which)), 40)
            h0 = await play("chess_puzzles", write("chess_puzzles", {}, {}), ScriptedModel(parrot(which)), 40)
            assert [r.steps for r in mine] == [r.steps for r in h0]
            for one, other in zip(mine, h0, strict=True):
                shown = [sorted(bracketed.findall(s.messages[-1].content)) for s in one.segments]
                assert shown == [sorted(bracketed.findall(s.messages[-1].content)) for s in other.segments]


async def first_call(
    domain: str, plan: Plan, reply: str, pool: Mapping[str, WorkedExample] = {}, **more: Any
) -> Any:
    harness = InProcessHarness(write(domain, plan, pool), "candidate.py")
    view = View(domain, "Who painted The Night Watch?", "", max_turns=harness.settings.max_turns or 2, **more)
    decision, _ = await harness.call(view, Reply(reply))
    return decision


async def test_mechanisms_do_what_they_say() -> None:
    boxes = "So \\boxed{4}. Next problem: \\boxed{9}."
    assert await first_call("math_python", {"first_box": {}}, boxes) == Act("So \\boxed{4}")
    nudged = await first_call("math_python", {"recover_answer": {"wording": 0}}, "It is 4.")
    assert isinstance(nudged, Nudge)
    forced = await first_call(
        "search_qa", {"force_search": {"query": "its keywords"}}, "<answer>Hals</answer>"
    )
    assert forced == Act('{"tool": "search", "arguments": {"query": "painted Night Watch"}}')
    delayed = await first_call("search_qa", {"delay_search": {"wording": 0}}, "<search>Night Watch</search>")
    assert isinstance(delayed, Nudge)
    loose = await first_call("search_qa", {"tolerant_calls": {}}, "Search: Night Watch painter")
    assert loose == Act('{"tool": "search", "arguments": {"query": "Night Watch painter"}}')
    tags = "<move>e2e4</move>, no: <move>d2d4</move>"
    assert await first_call("chess_puzzles", {"last_tag": {}}, tags) == Act("d2d4")


async def test_examples_are_shown_as_turns_and_evidence_with_its_question(pools: Pools) -> None:
    pool = pools["search_qa"]
    [key, *_] = [key for key, one in pool.items() if one.query]
    shows = {"worked_examples": {"keys": [key], "form": "bare", "instructions": "none"}}
    harness = InProcessHarness(write("search_qa", shows, pool), "candidate.py")
    view = View("search_qa", "Who?", "Who?", max_turns=2)
    asked, _ = await harness.call(view)
    assert isinstance(asked, Ask)
    assert [m["role"] for m in asked.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert asked.messages[0]["content"] == pool[key].question
    assert asked.messages[-1]["content"] == "Who?"

    harness = InProcessHarness(
        write("search_qa", {**shows, "evidence_first": {}, "focus": {"sentences": 1}}, pool), "c.py"
    )
    view.turns = (
        Turn(Reply("<search>x</search>"), "…", '{"result":"Document 1: A\\nWho was he. B."}', "", "ok"),
    )
    asked, _ = await harness.call(view)
    assert isinstance(asked, Ask)
    assert [m["role"] for m in asked.messages] == ["user", "assistant", "user"]
    assert asked.messages[-1]["content"].startswith("Who?\n\n")
    assert "<search>" not in asked.messages[-1]["content"]


SHOWS = '# mutate: {"mechanisms":{"worked_examples":{"keys":[KEY],"form":"bare","instructions":"none"}}}'


@pytest.mark.parametrize(
    "header",
    [
        "",
        "# mutate: {",
        "# mutate: []",
        '# mutate: {"mechanisms":7}',
        '# mutate: {"mechanisms":{"first_box":null}}',
        '# mutate: {"mechanisms":{"no_such":{}}}',
        '# mutate: {"mechanisms":{"turn_budget":{"turns":99}}}',
        '# mutate: {"mechanisms":{"turn_budget":{"turns":true}}}',
        '# mutate: {"mechanisms":{"turn_budget":{}}}',
        SHOWS.replace("KEY", '"00000000"'),
        SHOWS.replace("KEY", "[]"),
        "# mutate: " + "[" * 100_000,
    ],
)
def test_a_file_that_was_not_written_here_has_the_empty_plan(header: str) -> None:
    assert read_plan(f"{header}\nprint()\n", "math_python", {}) == {}


def test_every_mechanism_says_what_it_does() -> None:
    for domain in DOMAINS:
        for one in library(domain).values():
            said = one.say({**{name: values[0] for name, values in one.choices.items()}, "keys": []})
            assert said.endswith(".")
            assert "{" not in said
            assert one.why.endswith(".")
    assert header_of({}).startswith(MARK)
