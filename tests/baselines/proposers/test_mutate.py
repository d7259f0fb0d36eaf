"""`mutate` finds new candidates, the same ones for the same seed, and for FST leaves all but prompts."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proposer_fakes import DOMAINS, known, make_brief
from whale_baselines.proposers.library import library, read_plan, write
from whale_baselines.proposers.mutate import Mutate
from whale_baselines.proposers.prompts import prompts_of, with_prompts
from whale_baselines.proposers.worked import WorkedExample

from whale_bench.harness.host import InProcessHarness, shipped_harnesses
from whale_bench.harness.prompt_only import prompt_only as difference
from whale_envs.errors import UsageError

EXAMPLES = {
    "math_python": [WorkedExample(f"What is {n} + 1?", f"\\boxed{{{n + 1}}}") for n in range(6)],
    "search_qa": [WorkedExample(f"Who was king {n}?", f"<answer>King {n}</answer>") for n in range(6)],
    "chess_puzzles": [WorkedExample(f"Position {n}\nLegal moves: [e2e4] e4", "e2e4") for n in range(6)],
}


@pytest.mark.parametrize("prompt_only", [False, True])
@pytest.mark.parametrize("domain", DOMAINS)
async def test_no_source_is_proposed_twice_and_each_loads(
    tmp_path: Path, domain: str, prompt_only: bool
) -> None:
    proposer = Mutate(EXAMPLES[domain])
    brief = make_brief(tmp_path, domain, prompt_only=prompt_only)
    base, seen = brief.known[0].source, {brief.known[0].source}
    for iteration in range(2, 8):
        session = await proposer.propose(brief)
        assert not session.problem
        assert len(session.proposals) == brief.slots
        for number, one in enumerate(session.proposals):
            assert one.source not in seen
            seen.add(one.source)
            InProcessHarness(one.source, "candidate.py")
            assert set(one.parents) <= {k.harness_id for k in brief.known}
            assert one.hypothesis
            assert one.changes
            if prompt_only:
                assert difference(one.source, base) is None  # as the search will ask
            else:
                assert (
                    set(one.components)
                    == read_plan(one.source, domain, {e.key: e for e in EXAMPLES[domain]}).keys()
                )
            more = known(one.source, f"h{iteration}-{number}", components=one.components)
            brief = make_brief(
                tmp_path, domain, *brief.known[1:], more, prompt_only=prompt_only, iteration=iteration + 1
            )


async def test_the_same_seed_gives_the_same_session_and_another_another(tmp_path: Path) -> None:
    brief = make_brief(tmp_path, seed=1)
    first = await Mutate(EXAMPLES["math_python"]).propose(brief)
    assert (await Mutate(EXAMPLES["math_python"]).propose(brief)).proposals == first.proposals
    assert (
        await Mutate(EXAMPLES["math_python"]).propose(make_brief(tmp_path, seed=2))
    ).proposals != first.proposals
    assert (
        await Mutate(EXAMPLES["math_python"]).propose(make_brief(tmp_path, seed=1, iteration=3))
    ).proposals != first.proposals


async def test_a_child_changes_one_mechanism_of_a_parent_or_crosses_two(tmp_path: Path) -> None:
    pool = {one.key: one for one in EXAMPLES["math_python"]}
    plans = {"h1": {"first_box": {}, "token_cap": {"tokens": 32}}, "h2": {"turn_budget": {"turns": 4}}}
    others = [known(write("math_python", plan, pool), name) for name, plan in plans.items()]
    by_id = {f"id-{name}": plan for name, plan in {"h0": {}, **plans}.items()}
    kinds: Counter[str] = Counter()
    for seed in range(40):
        session = await Mutate(EXAMPLES["math_python"]).propose(
            make_brief(tmp_path, "math_python", *others, seed=seed)
        )
        for one in session.proposals:
            child = read_plan(one.source, "math_python", pool)
            parents = [by_id[name] for name in one.parents]
            kinds[one.changes.split()[0]] += 1
            if len(parents) == 1:
                [parent] = parents
                names = child.keys() | parent.keys()
                assert sum(child.get(name) != parent.get(name) for name in names) == 1
            else:
                assert all(
                    any(parent.get(name) == params for parent in parents) for name, params in child.items()
                )
    assert kinds.keys() == {"adds", "varies", "drops", "crosses"}


async def test_only_the_frontier_has_children(tmp_path: Path) -> None:
    other = known(write("math_python", {"first_box": {}}, {}), "h1")
    brief = make_brief(tmp_path, "math_python", other, frontier=("id-h1",), accepted="id-h1")
    for seed in range(10):
        session = await Mutate().propose(
            make_brief(tmp_path, "math_python", other, frontier=("id-h1",), accepted="id-h1", seed=seed)
        )
        assert {parent for one in session.proposals for parent in one.parents} == {"id-h1"}
    assert brief.known[0].name == "h0"


async def test_mechanisms_that_were_not_tried_come_first_and_examples_soon(tmp_path: Path) -> None:
    names = [name for name in library("math_python") if name != "keep_variables"]
    other = known("# not ours", "h1", components=tuple(names))
    firsts: Counter[str] = Counter()
    early = 0
    for seed in range(60):
        [one] = (
            await Mutate(EXAMPLES["math_python"]).propose(
                make_brief(tmp_path, "math_python", other, frontier=(), seed=seed, slots=1)
            )
        ).proposals
        firsts[one.components[0]] += 1
        fresh = (await Mutate(EXAMPLES["math_python"]).propose(make_brief(tmp_path, seed=seed))).proposals
        early += any("worked_examples" in one.components for one in fresh)
    assert firsts["keep_variables"] > 60 / len(names)
    assert early > 40


async def test_without_examples_none_are_shown(tmp_path: Path) -> None:
    for seed in range(20):
        session = await Mutate().propose(make_brief(tmp_path, seed=seed))
        assert not any("worked_examples" in one.components for one in session.proposals)


async def test_a_base_without_an_editable_prompt_yields_nothing_and_says_so(tmp_path: Path) -> None:
    source = "class Harness(BaseHarness):\n    USER_PROMPT = 'a' + 'b'\n"
    brief = make_brief(
        tmp_path,
        "math_python",
        known(source, "h1"),
        base="id-h1",
        accepted="id-h1",
        frontier=(),
        prompt_only=True,
    )
    session = await Mutate(EXAMPLES["math_python"]).propose(brief)
    assert session.proposals == ()
    assert "no 3 new candidates" in session.problem


@pytest.mark.parametrize("prompt_only", [False, True])
async def test_a_brief_that_names_what_it_does_not_know_is_refused(tmp_path: Path, prompt_only: bool) -> None:
    with pytest.raises(UsageError, match="'id-h9'"):
        await Mutate().propose(make_brief(tmp_path, accepted="id-h9", prompt_only=prompt_only))


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200) | st.sampled_from(
    ['"', "'''", "\\", "\\N{DASH}", "a\nb", "\r\n", "{observation}", "x" * 300, "\x0c", "é" * 120]
)


def outside(source: str) -> str:
    """A file without the literals of its prompts, and without the space around them inside parentheses."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)]
    for node in sorted(nodes, key=lambda node: -node.lineno):
        name, text = getattr(node.targets[0], "id", ""), ast.get_source_segment(source, node.value)
        if name in ("SYSTEM_PROMPT", "USER_PROMPT"):
            assert text is not None
            start = source.index(f"{name} = ")
            source = source[:start] + source[start:].replace(text, "@", 1)
    return re.sub(r"\(\s*@\s*\)", "@", source)


@settings(max_examples=120)
@given(system=TEXTS, user=TEXTS, domain=st.sampled_from(DOMAINS))
def test_other_prompts_leave_every_other_byte(system: str, user: str, domain: str) -> None:
    base = shipped_harnesses()[domain]
    names = prompts_of(base).keys()
    texts = {
        name: text for name, text in {"SYSTEM_PROMPT": system, "USER_PROMPT": user}.items() if name in names
    }
    edited = with_prompts(base, texts)
    assert prompts_of(edited) == texts
    assert difference(edited, base) is None
    assert outside(edited) == outside(base)
    assert with_prompts(base, prompts_of(base)) == base


@pytest.mark.parametrize(
    "source",
    [
        "class Harness:\n    SYSTEM_PROMPT = f'{1}'\n    USER_PROMPT = 'a' + 'b'\n",
        "class Other:\n    SYSTEM_PROMPT = 'x'\n",
        "SYSTEM_PROMPT = 'x'\n",
        "class Harness(\n",
        "class Harness:\n    SYSTEM_PROMPT = b'x'\n",
        "class Harness:\n    SYSTEM_PROMPT = 'x'\n    SYSTEM_PROMPT = str(1)\n",
    ],
)
def test_what_is_no_plain_literal_of_the_class_is_no_prompt(source: str) -> None:
    assert prompts_of(source) == {}
    assert with_prompts(source, {"SYSTEM_PROMPT": "y"}) == source


def test_literals_of_all_shapes_are_replaced_where_they_stand() -> None:
    source = (
        "class Harness:\n    SYSTEM_PROMPT: str = ('é' 'b'\n        'c')  # kept\n"
        "    USER_PROMPT = '''x\ny'''; A = 1\n"
    )
    edited = with_prompts(source, {"SYSTEM_PROMPT": "s", "USER_PROMPT": "u"})
    assert edited == 'class Harness:\n    SYSTEM_PROMPT: str = ("s")  # kept\n    USER_PROMPT = "u"; A = 1\n'
    assert ast.parse(edited)
