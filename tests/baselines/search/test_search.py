"""Invariants of the search, with the real engine."""

import asyncio

import msgspec
import pytest
from search_fakes import (
    BROKEN,
    CHARGE,
    H0,
    LOOP,
    RAISES,
    RAISES_SOMETIMES,
    Killed,
    Obedient,
    Scripted,
    accounts,
    recipe_of,
    recorded,
    search,
    texts,
    told,
)
from whale_baselines.search.archive import read_archive

from whale_bench.ledger import Ledger
from whale_envs import load_examples
from whale_envs.errors import InfrastructureError, UsageError

BETTER = [told(0.2, "a"), told(0.95, "b"), told(0.5, "c")]


async def test_the_best_is_accepted_kept_and_charged_as_counted(tmp_path):
    proposer = Scripted(BETTER, [told(0.1, "d"), told(0.05, "e")])
    backend = Obedient()
    lines, accepted = await search(tmp_path / "run", proposer, 3, backend=backend)
    assert [line["accepted"] for line in lines] == ["h0", "h2", "h2"]  # worse ones later change nothing
    assert accepted.source == BETTER[1]
    assert [line["improved"] for line in lines] == [False, True, False]
    records = recorded(tmp_path / "run")
    assert [line["rollouts"] for line in lines] == [16, 3 * 17, 2 * 17]
    charged, executed = accounts(tmp_path / "run")
    assert charged["harness"].rollouts == executed["harness"].rollouts == 16 * 6
    assert charged["smoke"].rollouts == 5
    assert sum(len(one.segments) for one in records.values()) == backend.calls
    assert charged["harness"].model_calls + charged["smoke"].model_calls == backend.calls
    assert charged["harness"].proposer_calls == 2 * CHARGE.proposer_calls
    assert charged["harness"].proposer_micro_usd == 14
    assert len(records) == 16 * 6 + 5
    by_id = {one.harness_id: one for one in proposer.briefs[1].known}
    assert by_id[accepted.harness_id].score == lines[1]["success"]
    mine = [one for key, one in records.items() if key.startswith(f"harness:{accepted.harness_id[7:19]}:")]
    assert sum(one.verdict.reward for one in mine) / len(mine) == lines[1]["success"]
    assert proposer.briefs[1].accepted in proposer.briefs[1].frontier


async def test_candidates_see_neither_order_nor_neighbours(tmp_path):
    apart = await search(tmp_path / "apart", Scripted([BETTER[0]], [BETTER[1]]), 3)
    beside = await search(tmp_path / "beside", Scripted([RAISES_SOMETIMES, BETTER[1], BETTER[0]]), 2)
    one, other = (
        {c.harness_id: c for c in read_archive(tmp_path / name / "archive").candidates.values()}
        for name in ("apart", "beside")
    )
    shared = one.keys() & other.keys()
    assert len(shared) == 3
    for harness_id in shared:
        assert [s.rewards for s in one[harness_id].samples.values()] == [
            s.rewards for s in other[harness_id].samples.values()
        ]
    assert apart[1].source == beside[1].source == BETTER[1]


async def test_a_candidate_that_hangs_is_invalid(tmp_path, monkeypatch):
    monkeypatch.setattr("whale_bench.harness.process.START_SECONDS", 2.0)
    lines, accepted = await search(tmp_path / "run", Scripted([LOOP]), 2)
    assert lines[1]["candidates"] == {"h1": "invalid"}
    assert "not loaded" in read_archive(tmp_path / "run" / "archive").candidates["h1"].reason
    assert accepted.name == "h0"


async def test_candidates_that_fail_get_no_score_and_fail_alone(tmp_path):
    wrong = [BROKEN, RAISES, RAISES_SOMETIMES, "import nothing_of_that_name\n", "x = 1\n"]
    wrong += ["import sys\nsys.exit(0)\n", "\ud800 no text", BETTER[1]]
    lines, accepted = await search(tmp_path / "run", Scripted(wrong), 2, recipe=recipe_of(slots=8))
    found = list(read_archive(tmp_path / "run" / "archive").candidates.values())[1:]
    assert [one.status for one in found] == ["invalid"] * 2 + ["failed"] + ["invalid"] * 4 + ["scored"]
    assert "every fourth" in found[2].reason
    assert "no such luck" in found[1].reason
    assert all(one.reason for one in found[:-1])
    assert not any(one.samples for one in found[:-1])
    assert accepted.name == "h8"
    charged, _ = accounts(tmp_path / "run")
    cost = found[2].rollouts
    assert lines[1]["rollouts"] == 17 + cost
    assert charged["harness"].rollouts + charged["smoke"].rollouts == 16 + 17 + cost


@pytest.mark.parametrize("split", ["harness", "dev", "test"])
async def test_a_candidate_that_holds_what_is_scored_is_refused_and_told_nothing_of_it(tmp_path, split):
    example = load_examples("chess_puzzles", "mini", split)[0]
    holds = f"{H0}\nSEEN = {example.fen!r}\n"
    lines, accepted = await search(tmp_path / "run", Scripted([holds]), 2)
    assert lines[1]["candidates"] == {"h1": "invalid"}
    found = read_archive(tmp_path / "run" / "archive").candidates["h1"]
    assert found.reason == "it holds texts or solutions of examples that are scored"
    written = b"".join(p.read_bytes() for p in (tmp_path / "run" / "archive").rglob("*") if p.is_file())
    assert example.id.encode() not in written
    assert accepted.name == "h0"


async def test_a_duplicate_is_recognised_and_not_paid_for(tmp_path):
    again = BETTER[1].replace("class Harness", "# the same\n\n\nclass Harness")
    sessions = [BETTER[1], again, H0 + "# h0 again"], [BETTER[1], BROKEN], [BROKEN]
    lines, accepted = await search(tmp_path / "run", Scripted(*sessions), 4)
    statuses = [one.status for one in read_archive(tmp_path / "run" / "archive").candidates.values()]
    assert statuses == ["scored", "scored", "duplicate", "duplicate", "duplicate", "invalid", "duplicate"]
    assert [line["rollouts"] for line in lines] == [16, 17, 0, 0]
    assert len(recorded(tmp_path / "run")) == 33
    assert accepted.name == "h1"


async def test_a_later_phase_sees_the_earlier_ones_and_scores_under_its_weights(tmp_path):
    _, first = await search(tmp_path / "run", Scripted(BETTER), 2)
    proposer = Scripted([BETTER[2], BETTER[0]])
    weights = Obedient(weights_id="scripted:others")
    lines, _ = await search(tmp_path / "run", proposer, 2, incoming=first.source, phase=2, backend=weights)
    assert [(one.name, one.score is None) for one in proposer.briefs[0].known] == [
        ("h0", True), ("h1", True), ("h2", False), ("h3", True),
    ]  # fmt: skip
    assert lines[0]["rollouts"] == 16  # h2 again, under other weights
    assert lines[1]["candidates"] == {"h4": "duplicate", "h5": "duplicate"}
    assert lines[1]["rollouts"] == 34  # those of the first phase that they are the same as
    again = Scripted([BETTER[0]])
    lines, _ = await search(tmp_path / "run", again, 2, incoming=first.source, phase=3, backend=weights)
    assert [line["rollouts"] for line in lines] == [0, 0]  # scored under these weights already


async def test_prompt_only_candidates_differ_in_their_prompts_alone(tmp_path):
    turns = H0.replace("MAX_TURNS = 9", "MAX_TURNS = 8")
    computed = H0.replace("SYSTEM_PROMPT = (", 'SYSTEM_PROMPT = "".join(')
    words = H0[: (start := H0.index("    SYSTEM_PROMPT = ("))] + '    SYSTEM_PROMPT = "SKILL 0.95"\n'
    words += H0[H0.index("    )\n", start) + len("    )\n") :]
    recipe = recipe_of(prompt_only=True, slots=4)
    proposer = Scripted([turns, computed, words], [])
    _, accepted = await search(tmp_path / "run", proposer, 3, recipe=recipe)
    known = proposer.briefs[1].known
    assert [one.status for one in known] == [
        "scored", "rejected_prompt_only", "rejected_prompt_only", "scored",
    ]  # fmt: skip
    assert "MAX_TURNS = 8" in known[1].reason
    assert "SYSTEM_PROMPT" in known[2].reason
    assert accepted.name == "h3"


async def test_a_proposer_with_nothing_or_too_much_costs_its_iteration(tmp_path):
    many = [told(0.1, str(n)) for n in range(5)]
    lines, accepted = await search(tmp_path / "run", Scripted([], many, problem="it died"), 3)
    assert lines[1]["candidates"] == {}
    assert lines[1]["problem"] == "it died"
    assert len(lines[2]["candidates"]) == 3
    assert "5 proposals, 3 are kept" in lines[2]["problem"]
    assert accepted.name == "h0"


class Dies(Scripted):
    """In its first session."""

    async def propose(self, brief):
        if brief.iteration == 2:
            raise RecursionError("too deep")
        return await super().propose(brief)


async def test_a_proposer_that_dies_has_held_an_empty_session(tmp_path):
    deep = told(0.9, "a", "\n\ndef f(x):\n    if x:\n        y = 0\n" + "    elif x:\n        y = 1\n" * 400)
    lines, accepted = await search(tmp_path / "run", Dies([deep]), 3)
    assert lines[1]["problem"] == "the proposer died: RecursionError: too deep"
    assert (accepted.name, accepted.source) == ("h1", deep)
    again, _ = await search(tmp_path / "run", Dies([deep]), 3)
    assert again == []
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.charged()["harness"].unpriced
        assert ledger.open_reservations() == []


async def test_the_paired_rule_samples_the_promising_and_accepts(tmp_path):
    recipe = recipe_of(rule="paired", most_samples=8, planned=3, false_accept=0.2, examples=24)
    lines, accepted = await search(
        tmp_path / "run", Scripted([told(0.9, "a"), told(0.05, "b")]), 2, recipe=recipe
    )
    state = read_archive(tmp_path / "run" / "archive")
    samples = {name: len(s.rewards) for name, c in state.candidates.items() for s in c.samples.values()}
    assert accepted.name == "h1"
    assert samples["h2"] == 1  # not promising
    assert samples["h0"] == samples["h1"]
    assert sum(samples.values()) * 24 + 2 == lines[0]["rollouts"] + lines[1]["rollouts"]
    charged, _ = accounts(tmp_path / "run")
    assert charged["harness"].rollouts == sum(samples.values()) * 24


@pytest.mark.parametrize("dies_at", [61, 121])
async def test_a_search_that_ends_anywhere_goes_on_as_if_it_had_not(tmp_path, dies_at, whole):
    expected, charges, pages = whole
    proposer = Scripted(*SESSIONS)
    with pytest.raises((Killed, BaseExceptionGroup)):
        await search(tmp_path / "run", proposer, 3, backend=Obedient(dies_at=dies_at))
    bought = len(proposer.briefs)
    kept = recorded(tmp_path / "run")
    later = Scripted(*SESSIONS)
    backend = Obedient()
    _, accepted = await search(tmp_path / "run", later, 3, backend=backend)
    assert accepted == expected
    assert bought + len(later.briefs) == 2
    assert counted(accounts(tmp_path / "run")[0]) == counted(charges)
    assert unordered(texts(tmp_path / "run" / "archive")) == unordered(pages)
    played = {key: len(one.segments) for key, one in recorded(tmp_path / "run").items() if key not in kept}
    assert backend.calls == sum(played.values())


def unordered(pages):
    """Candidates are scored beside one another: which one's event comes first is not the search's doing."""
    return pages | {"the log": sorted(pages["the log"].splitlines())}


def counted(charges):
    """Without times."""
    return {name: msgspec.structs.replace(charge, seconds=0.0) for name, charge in charges.items()}


SESSIONS = [told(0.8, "a"), told(0.5, "b")], [told(0.6, "c"), BROKEN]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    _, accepted = asyncio.run(search(folder, Scripted(*SESSIONS), 3))
    return accepted, accounts(folder)[0], texts(folder / "archive")


async def test_an_outage_is_no_failed_candidate(tmp_path):
    out = Obedient(fails=range(30, 10_000))
    with pytest.raises(InfrastructureError, match="the server went away"):
        await search(tmp_path / "run", Scripted([BETTER[1]]), 2, backend=out)
    assert read_archive(tmp_path / "run" / "archive").candidates["h1"].status == ""
    _, accepted = await search(tmp_path / "run", Scripted([BETTER[1]]), 2)
    assert accepted.name == "h1"
    assert accounts(tmp_path / "run")[0]["harness"].rollouts == 32


async def test_a_session_that_was_logged_is_charged_after_a_kill(tmp_path, monkeypatch):

    settle = Ledger.settle

    def dies(ledger, key, attempt, charge):
        if key.startswith("proposer:"):
            raise Killed
        settle(ledger, key, attempt, charge)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", dies)
        with pytest.raises(Killed):
            await search(tmp_path / "run", Scripted([BETTER[1]]), 2)
    again = Scripted()
    _, accepted = await search(tmp_path / "run", again, 2)
    assert again.briefs == []
    assert accepted.source == BETTER[1]
    assert accounts(tmp_path / "run")[0]["harness"].proposer_calls == CHARGE.proposer_calls


async def test_what_cannot_be_gone_on_with_is_refused(tmp_path):
    await search(tmp_path / "run", Scripted(), 1)
    with pytest.raises(UsageError, match="phase 1 began with another incoming"):
        await search(tmp_path / "run", Scripted(), 1, incoming=BETTER[0])
    with pytest.raises(UsageError, match="phase 1 began with another key"):
        await search(tmp_path / "run", Scripted(), 1, backend=Obedient(weights_id="scripted:others"))
    with pytest.raises(UsageError, match="phase 3 cannot follow on 1 phases"):
        await search(tmp_path / "run", Scripted(), 1, phase=3)
