"""The log under torn ends, the tree comparison, and what stands in the folder: never a reference answer."""

import doctest
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_fakes import H0, Scripted, recipe_of, recorded, search, texts, told
from whale_baselines.search import acceptance, sources
from whale_baselines.search.archive import Archive, read_archive
from whale_baselines.search.log import Begun, Ended, Examined, Proposed, Refused, Scored, ScoreKey, open_log
from whale_baselines.search.proposal import Proposal
from whale_baselines.search.sources import clean, source_id, tree_id

from whale_bench.harness.host import shipped_harnesses
from whale_bench.ledger import Charge
from whale_bench.models.scripted import load_scripted
from whale_envs import ExampleSet, load_examples
from whale_envs.errors import DataError, UsageError

KEY = ScoreKey("w", "e", "temperature 1.0")
EVENTS = [
    Begun(phase=1, incoming=H0, key=KEY, rule="paper", prompt_only=False),
    Scored(
        name="h0", phase=1, iteration=1, key=KEY, first=0, rewards=((1.0, 0.0),), turns=((1, 2),), rollouts=2
    ),
    Ended(phase=1, iteration=1, accepted="h0", notes={"h0": "line\nbreak \u2028 ends"}),
]


@given(st.data())
def test_a_log_that_was_torn_anywhere_keeps_its_whole_events_and_goes_on(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log = open_log(path)
    for event in EVENTS:
        log.append(event)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = open_log(path, readonly=True).records
    assert kept == EVENTS[: len(kept)]
    assert len(kept) >= whole[:cut].count(b"\n")
    log = open_log(path)
    assert log.records == kept
    for event in EVENTS[len(kept) :]:
        log.append(event)
    assert path.read_bytes() == whole


def test_a_log_damaged_in_its_middle_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    log = open_log(path)
    for event in EVENTS:
        log.append(event)
    path.write_bytes(path.read_bytes().replace(b'"scored"', b'"skored"'))
    with pytest.raises(DataError, match=r"a.jsonl:2: cannot be read"):
        Archive(tmp_path / "a")
    with pytest.raises(UsageError, match="is no archive"):
        read_archive(tmp_path / "elsewhere")


def test_a_flagged_harness_that_a_later_phase_begins_with_keeps_its_finding(tmp_path):
    archive = Archive(tmp_path / "a")
    other = H0 + "\nX = 1\n"
    free = Charge()
    proposal = Proposal(source=other)
    for event in (
        *EVENTS[:2],
        Proposed(phase=1, iteration=1, proposer="p", proposals=(proposal,), charge=free),
        Examined(name="h1", phase=1, iteration=1, finding="h1/harness.py:1: plays"),
    ):
        archive.append(event)
    assert archive.candidates["h1"].status == "flagged"
    archive.append(Begun(phase=2, incoming=other, key=KEY, rule="paper", prompt_only=False))
    archive.append(msgspec.structs.replace(EVENTS[1], name="h1", phase=2))
    candidate = archive.candidates["h1"]
    assert (candidate.status, candidate.reason) == ("scored", "h1/harness.py:1: plays")
    assert archive.remarks == {"h1": "h1/harness.py:1: plays"}


def test_a_folder_that_a_kill_left_behind_is_written_anew(tmp_path):
    archive = Archive(tmp_path / "a")
    for event in EVENTS:
        archive.append(event)
    archive.append(Refused(name="h0", phase=1, iteration=1, status="invalid", reason="half a pair: \ud800"))
    assert archive.candidates["h0"].reason == "half a pair: ?"
    expected = texts(tmp_path / "a")
    (tmp_path / "b.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    Archive(tmp_path / "b")
    assert texts(tmp_path / "b") == expected


def test_scores_belong_to_weights_examples_and_sampling():
    from whale_baselines.search.archive import State

    state = State()
    for event in EVENTS:
        state.apply(event)
    others = [
        ScoreKey("v", "e", KEY.conditions),
        ScoreKey("w", "f", KEY.conditions),
        ScoreKey("w", "e", "t 0"),
    ]
    assert state.known(KEY)[0].score == 0.5
    assert [state.known(key)[0].score for key in others] == [None] * 3
    assert [one.name for one in state.frontier(KEY)] == ["h0"]
    assert state.frontier(others[0]) == []


def test_the_frontier_leaves_out_the_beaten_but_never_the_accepted():
    from whale_baselines.search.archive import State
    from whale_baselines.search.log import Proposed

    from whale_bench.ledger import Charge

    state = State()
    sources = [told(n, str(n)) for n in range(4)]
    state.apply(EVENTS[0])
    proposals = tuple(Proposal(source=source) for source in sources)
    state.apply(Proposed(phase=1, iteration=2, proposer="x", proposals=proposals, charge=Charge()))
    outcomes = {
        "h0": ((0, 0), (1, 1)),
        "h1": ((1, 0), (3, 3)),
        "h2": ((1, 0), (2, 2)),
        "h3": ((1, 1), (5, 5)),
    }
    for name, (rewards, turns) in outcomes.items():
        state.apply(
            Scored(name=name, phase=1, iteration=2, key=KEY, first=0, rewards=(rewards,), turns=(turns,))
        )
    assert [one.name for one in state.frontier(KEY)] == ["h0", "h2", "h3"]
    assert [one.name for one in state.frontier(KEY, "h1")] == ["h0", "h1", "h2", "h3"]
    h0, h3 = state.candidates["h0"], state.candidates["h3"]
    assert state.flips(h0, h3, KEY) == ([0, 1], [])
    assert state.flips(h3, h0, KEY) == ([], [0, 1])


def test_examples_in_docstrings_hold():
    assert doctest.testmod(sources).attempted == 1
    assert doctest.testmod(sources).failed == doctest.testmod(acceptance).failed == 0


def test_trees_of_any_depth_and_numbers_of_any_size_have_an_id():
    deep = "def f(x):\n    if x:\n        y = 0\n" + "    elif x:\n        y = 1\n" * 1_500
    sources_ = [deep, deep + "z = 1", "x = " + "+".join("1" * 900), "x" + ".y" * 900, "x = 0x" + "f" * 9_000]
    ids = [tree_id(source) for source in sources_]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith("tree:") for one in ids)
    assert len({tree_id(f"x = {value}") for value in ("1", "1.0", "True", "'1'", "b'1'", "1j", "None")}) == 7


def test_trees_tell_formatting_from_content():
    assert tree_id("x = 1\n# a\n") == tree_id("x = (\n    1)")
    assert tree_id("x = 1") != tree_id("x = 2")
    assert tree_id("def (") == source_id("def (")
    assert clean("\ufeffa\r\nb\rc\ud800") == "a\nb\nc?"


GOLD = {
    "chess_puzzles": lambda example: example.gold,
    "math_python": lambda example: (str(example.gold),),
    "search_qa": lambda example: tuple(example.gold),
}


@pytest.mark.parametrize("domain", list(GOLD))
async def test_no_reference_answer_is_written_that_the_model_did_not_see_or_say(domain, tmp_path):
    """In a trajectory an answer may stand only where its rollout holds it anyway; ids stand nowhere."""
    h0 = shipped_harnesses()[domain]
    backend = load_scripted("random")
    recipe = recipe_of(examples=12)
    await search(
        tmp_path / "run", Scripted(), 1, recipe=recipe, backend=backend,
        domain=domain, incoming=h0,
    )  # fmt: skip
    examples = load_examples(domain, "mini", "harness")[:12]
    archive = texts(tmp_path / "run" / "archive")
    trajectories = {
        name: text for name, text in archive.items() if "/failures/" in name or "/successes/" in name
    }
    assert len(trajectories) >= 12
    records = recorded(tmp_path / "run").values()
    for number, example in enumerate(examples):
        assert not any(example.id in text for text in archive.values())
        assert not any(example.source and example.source in text for text in archive.values())
        mine = [one for one in records if one.example_id == example.id]
        seen = "\n".join(str(msgspec.to_builtins((one.opening, one.segments, one.steps))) for one in mine)
        for answer in GOLD[domain](example):
            for name, text in trajectories.items():
                if f"/{number:04d}" in name and _stands(answer, text):
                    assert _stands(answer, seen), (name, answer)


@pytest.mark.parametrize(("domain", "canary"), [("math_python", "739100271"), ("search_qa", "Qxzv Gold")])
async def test_an_answer_that_nobody_can_know_stands_in_no_file(domain, canary, tmp_path):
    found = load_examples(domain, "mini", "harness")[:6]
    gold = canary if domain == "math_python" else (canary,)
    marked = ExampleSet([replace(example, gold=gold) for example in found], name="marked")
    h0 = shipped_harnesses()[domain]
    await search(
        tmp_path / "run", Scripted(), 1, recipe=recipe_of(examples=6), domain=domain,
        backend=load_scripted("random"), incoming=h0, examples=marked,
    )  # fmt: skip
    archive = texts(tmp_path / "run" / "archive")
    assert len(archive) > 6
    assert not any(canary.casefold() in text.casefold() for text in archive.values())


def _stands(answer, text):
    """As a whole word."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
