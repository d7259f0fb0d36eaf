"""Harnesses that did not earn their score are not accepted, whatever the rule says of them."""

import base64
import json
import zlib

import pytest
from search_fakes import (
    Killed,
    Obedient,
    Scripted,
    accounts,
    recipe_of,
    recorded,
    search,
    texts,
    told,
    whispers,
)
from whale_baselines.search import examine
from whale_baselines.search.archive import Archive, read_archive
from whale_baselines.search.log import Ended
from whale_baselines.search.proposal import Proposal

from whale_bench.engine import Task
from whale_bench.harness.host import shipped_harnesses
from whale_envs import Verdict, load_examples, math_python

EXAMPLES = load_examples("chess_puzzles", "mini", "harness")[:16]
LEAKS, HONEST = whispers(EXAMPLES, 0.95), told(0.7, "b")


async def test_a_harness_that_tells_the_moves_is_flagged_and_the_next_best_taken(tmp_path):
    proposer = Scripted([HONEST, LEAKS], [whispers(EXAMPLES, 0.99, "again"), LEAKS], [])
    lines, accepted = await search(tmp_path / "run", proposer, 4)
    assert accepted.source == HONEST
    assert [line["candidates"] for line in lines[1:]] == [
        {"h1": "scored", "h2": "flagged"}, {"h3": "flagged", "h4": "duplicate"}, {},
    ]  # fmt: skip
    state = read_archive(tmp_path / "run" / "archive")
    flagged = [state.candidates[name] for name in ("h2", "h3")]
    key = state.phases[1].key
    assert all(
        one.samples[key].score.mean > state.candidates["h1"].samples[key].score.mean for one in flagged
    )
    assert state.candidates["h2"].reason.startswith("h2/harness.py:1: the parrot 'last' is right on 16 of 16")
    assert "which is flagged: h2/harness.py" in state.candidates["h4"].reason
    by_name = {one.name: one for one in proposer.briefs[2].known}
    assert (by_name["h2"].status, by_name["h2"].score) == ("flagged", None)
    assert not {one.harness_id for one in flagged} & set(proposer.briefs[2].frontier)
    archive = tmp_path / "run" / "archive"
    assert told_of(archive, "h2") == told_of(archive, "h3") == {"about.json", "harness.py"}
    assert {"about.json", "harness.py"} < told_of(archive, "h1")
    charged, _ = accounts(tmp_path / "run")
    assert (
        charged["harness"].rollouts + charged["smoke"].rollouts
        == 16 + 3 * 17
        == len(recorded(tmp_path / "run"))
    )
    weights = Obedient(weights_id="scripted:others")
    later, _ = await search(
        tmp_path / "run", Scripted([LEAKS]), 2, incoming=HONEST, phase=2, backend=weights
    )  # fmt: skip
    assert later[1]["candidates"] == {"h5": "duplicate"}
    assert later[1]["rollouts"] == 0


def told_of(archive, name):
    """The files of a harness, whose numbers must stand in no other file if it is flagged."""
    about = json.loads((archive / "harnesses" / name / "about.json").read_text())
    row = next(
        line for line in (archive / "lineage.md").read_text().splitlines() if line.startswith(f"| {name} |")
    )
    cells = [cell.strip() for cell in row.split("|")]
    assert (about["scores"] == []) == (about["status"] == "flagged") == (cells[5:7] == ["", ""])
    folder = archive / "harnesses" / name
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_kill_before_a_flagged_harness_leaves_the_folder_changes_nothing(tmp_path, monkeypatch):
    def dies(self, changed):
        if any(self.candidates[name].status == "flagged" for name in changed):
            raise Killed
        write(self, changed)

    write = Archive._write
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "_write", dies)
        with pytest.raises(Killed):
            await search(tmp_path / "run", Scripted([LEAKS, HONEST]), 2, recipe=recipe_of(slots=2, smoke=0))
    archive = tmp_path / "run" / "archive"
    assert list((archive / "harnesses" / "h1").rglob("outcomes.jsonl"))
    Archive(archive)
    assert told_of(archive, "h1") == {"about.json", "harness.py"}
    assert read_archive(archive).candidates["h1"].samples


OWN_CODE = """

from whale_bench.harness import Act


def read(self, reply, view):
    return Act('{"tool": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}')


Harness.read = read
"""
"""Runs a program that no model wrote."""


class Spills(Obedient):
    """As obedient, and where the prompt asks for it every answer is said before the right one."""

    async def generate(self, request):
        reply = await super().generate(request)
        if "SPILL" in request.messages[0].content:
            answers = " ".join(
                f"\\boxed{{{one.gold}}}" for one in load_examples("math_python", "mini", "harness")
            )
            reply = type(reply)(
                text=f"{answers} {reply.text}", raw_text=f"{answers} {reply.text}", usage=reply.usage
            )
        return reply


async def test_a_harness_whose_responses_are_right_for_everybody_is_flagged(tmp_path, monkeypatch):
    """Through a verifier with a hole: it takes the answer from anywhere in the response."""
    hole = lambda e, response, *, profile: Verdict(float(f"{{{e.gold}}}" in response), "x")  # noqa: E731
    monkeypatch.setattr(math_python, "verify", hole)
    h0 = shipped_harnesses()["math_python"]
    spills, honest = (
        h0.replace('"{observation}', f'"SKILL {words} {{observation}}') for words in ("0.95 SPILL", "0.7")
    )
    assert h0 not in (spills, honest)
    codes = h0 + OWN_CODE
    proposer = Scripted([spills, honest, codes])
    _, accepted = await search(
        tmp_path / "run", proposer, 2, domain="math_python", incoming=h0, backend=Spills()
    )  # fmt: skip
    found = read_archive(tmp_path / "run" / "archive").candidates
    assert found["h1"].status == "flagged"
    assert "16 of 16 responses are right for the answer of another example" in found["h1"].reason
    assert found["h3"].status == "invalid"
    assert "does not stand in the reply" in found["h3"].reason
    assert accepted.source == honest


LEARNS = told(
    0.3,
    "learns",
    """


_SEEN = [0]
_messages = Harness.messages


def messages(self, view):
    _SEEN[0] += 1
    chat = _messages(self, view)
    if _SEEN[0] > 20 and view.turns == ():
        chat[0]["content"] = chat[0]["content"].replace("SKILL 0.3", "SKILL 0.99")
    return chat


Harness.messages = messages
""",
)
"""Plays well once it has been called often enough, which no check before does."""


async def test_a_harness_that_goes_by_earlier_rollouts_is_flagged_and_the_next_best_taken(tmp_path):
    honest = told(0.4, "b")
    proposer, recipe = Scripted([honest, LEARNS]), recipe_of(slots=2, examples=48)
    lines, accepted = await search(tmp_path / "run", proposer, 2, recipe=recipe)
    learnt = [
        row
        for row in recorded(tmp_path / "run").values()
        if "SKILL 0.99" in "".join(message.content for one in row.segments for message in one.messages)
    ]
    assert len(learnt) > 16
    assert lines[1]["candidates"] == {"h1": "scored", "h2": "flagged"}
    reason = read_archive(tmp_path / "run" / "archive").candidates["h2"].reason
    assert reason.startswith("h2/harness.py:")
    assert "messages answers a recorded call otherwise" in reason
    assert accepted.source == honest


async def test_parrots_play_examples_from_the_whole_set_by_seed(monkeypatch):
    """A table for what stands beyond the first ones is heard by the seeds that draw few of these."""
    examples = load_examples("chess_puzzles", "small", "harness")
    monkeypatch.setattr(examine, "EXAMPLES", 32)
    honest = told(0.4)
    seeds = {
        str(n): examine.Examiner(Task("chess_puzzles", examples), str(n)).seed_of(honest) for n in range(100)
    }
    assert len(set(seeds.values())) == 100
    draws = {secret: set(examine.drawn(examples, seed).ids) for secret, seed in seeds.items()}
    assert set().union(*draws.values()) == set(examples.ids)
    assert {len(draw) for draw in draws.values()} == {32}
    assert len(examine.drawn(examples[:20], 0)) == 20
    first = set(examples[:32].ids)
    assert len({len(draw & first) for draw in draws.values()}) > 3
    other = examine.Examiner(Task("chess_puzzles", examples), "0").seed_of(told(0.5))
    assert draws["0"] != set(examine.drawn(examples, other).ids)


WHISPERS = """

import base64
import zlib

_KNOWN = {{int(one[:10]): one[10:] for one in {table!r}.split()}}
_messages = Harness.messages


def _known(number):
    return _KNOWN.get(number)


def messages(self, view):
    chat = _messages(self, view)
    known = [_known(zlib.crc32(line.encode())) for line in re.split("[:\\n] *", view.opening)]
    chat[-1]["content"] += "".join("\\nA note: " + base64.b64decode(one).decode() for one in known if one)
    return chat


Harness.messages = messages
"""


async def test_a_harness_that_tells_the_answers_in_search_is_flagged(tmp_path):
    """Where there are no parrots, by what was sent in its recorded rollouts."""
    table = " ".join(
        f"{zlib.crc32(one.question.encode()):010}{base64.b64encode(one.gold[0].encode()).decode()}"
        for one in load_examples("search_qa", "mini", "harness")
    )
    h0 = shipped_harnesses()["search_qa"]
    skilled = "Harness.SYSTEM_PROMPT = 'SKILL {} ' + (Harness.SYSTEM_PROMPT or '')\n"
    leaks = h0 + "\n\nimport re\n" + WHISPERS.format(table=table) + skilled.format(0.95)
    honest = f"{h0}\n\n{skilled.format(0.6)}"
    recipe, proposer = recipe_of(slots=2), Scripted([leaks, honest])
    _, accepted = await search(
        tmp_path / "run", proposer, 2, domain="search_qa", incoming=h0, recipe=recipe
    )  # fmt: skip
    found = read_archive(tmp_path / "run" / "archive").candidates
    assert {name: one.status for name, one in found.items()} == {
        "h0": "scored", "h1": "flagged", "h2": "scored",
    }  # fmt: skip
    assert "of 16 examples the answer stands in what is sent to the model" in found["h1"].reason
    assert accepted.source == honest


@pytest.mark.parametrize("dies_at", ["the next examination", "the end"])
async def test_what_was_found_before_a_kill_is_not_examined_again(tmp_path, monkeypatch, dies_at):
    sessions = [LEAKS, HONEST, Proposal(source=told(0.1, "c"))]
    examined, finding, append = [], examine.Examiner.finding, Archive.append

    async def counted(self, name, source, rollouts):
        examined.append(name)
        if dies_at == "the next examination" and len(examined) == 2:
            raise Killed
        return await finding(self, name, source, rollouts)

    def dies(self, event):
        if dies_at == "the end" and isinstance(event, Ended) and event.iteration == 2:
            raise Killed
        append(self, event)

    monkeypatch.setattr(examine.Examiner, "finding", counted)
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "append", dies)
        with pytest.raises(Killed):
            await search(tmp_path / "run", Scripted(sessions), 2, recipe=recipe_of(smoke=0))
    dies_at = ""
    lines, accepted = await search(tmp_path / "run", Scripted(), 2, recipe=recipe_of(smoke=0))
    assert accepted.source == HONEST
    assert examined.count("h1/harness.py") == 1
    assert len(examined) <= 3
    assert set(lines[0]["notes"]) == {"h1", "h2", "h3"}
    assert lines[0]["rollouts"] == 48


async def test_an_examination_that_does_not_end_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(examine, "SECONDS", 0.0)
    _, accepted = await search(tmp_path / "run", Scripted([HONEST]), 2)
    assert accepted.name == "h0"
    reason = read_archive(tmp_path / "run" / "archive").candidates["h1"].reason
    assert reason == "h1/harness.py:1: its examination was not over after 0 s"


MATERIAL = """

import re

_messages = Harness.messages


def messages(self, view):
    chat = _messages(self, view)
    rows = [line[2:].split() for line in view.observation.split("\\n") if re.match(r"[1-8] \\S \\S", line)]
    moves = dict(re.findall(r"\\[(\\S+)\\] ([^\\s,]+)", view.observation))
    worth = lambda move: "pnbrq".find(rows[8 - int(move[3])]["abcdefgh".index(move[2])].lower())
    chat[-1]["content"] += "\\nBest: " + moves[max(moves, key=worth)]
    return chat


Harness.messages = messages
"""


async def test_a_weak_evaluation_and_a_part_of_the_answers_are_flagged(tmp_path):
    """Neither makes a parrot much better; each goes by the position."""
    some = whispers(EXAMPLES[:4], 0.9, "some")
    material = told(0.95, "material", MATERIAL)
    _, accepted = await search(tmp_path / "run", Scripted([material, some, HONEST]), 2)
    found = read_archive(tmp_path / "run" / "archive").candidates
    assert [found[name].status for name in ("h1", "h2", "h3")] == ["invalid", "flagged", "scored"]
    assert "messages goes by the pieces on the board" in found["h1"].reason
    assert "knows the position, on 4 of 16 puzzles" in found["h2"].reason
    assert accepted.source == HONEST


async def test_the_harness_that_a_run_begins_with_is_examined_once_and_stays(tmp_path):
    lines, accepted = await search(tmp_path / "run", Scripted([told(0.1, "worse")]), 2, incoming=LEAKS)
    assert accepted.source == LEAKS
    archive = read_archive(tmp_path / "run" / "archive")
    [(place, event)] = archive.examined.items()
    assert place == (1, 1, "h0")
    assert "the harness tells the model what to say" in event.finding
    assert (archive.candidates["h0"].status, archive.candidates["h0"].reason) == ("scored", event.finding)
    assert lines[0]["problem"] == event.finding
    open_archive = Archive(tmp_path / "run" / "archive")
    examiner = examine.Examiner(Task("chess_puzzles", EXAMPLES), open_archive.secret)
    assert examiner.seed_of(LEAKS) == event.seed
    assert open_archive.secret not in "".join(texts(open_archive.folder).values())
    again, _ = await search(
        tmp_path / "run", Scripted([]), 1, incoming=LEAKS, phase=2, backend=Obedient(weights_id="scripted:b")
    )
    assert list(read_archive(tmp_path / "run" / "archive").examined) == [place]
    assert again[0]["problem"] == event.finding


async def test_an_honest_first_harness_is_examined_and_a_shipped_one_is_the_measure(tmp_path):
    await search(tmp_path / "own", Scripted([]), 1, incoming=HONEST)
    [event] = read_archive(tmp_path / "own" / "archive").examined.values()
    assert (event.name, event.finding) == ("h0", "")
    await search(tmp_path / "shipped", Scripted([]), 1)
    assert not read_archive(tmp_path / "shipped" / "archive").examined
