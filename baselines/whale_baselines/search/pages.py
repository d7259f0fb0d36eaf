"""The archive as files that people and proposers read; all of them follow from the log and the rollouts.

    archive/
        README.md                   what is where
        lineage.md                  every harness: parents, status, score, hypothesis
        frontier.json               of each phase's last iteration: accepted, frontier
        harnesses/h3/harness.py     the source
        harnesses/h3/about.json     parents, hypothesis, status and reason, scores with intervals
        harnesses/h3/WEIGHTS/outcomes.jsonl             success and turns of each example
        harnesses/h3/WEIGHTS/{failures,successes}/0017.txt   what happened, some of each
        iterations/p1-i02/          the proposer's transcript, and its workspace

Examples have numbers, in the order of their set; an example's id is a hash over the reference answer too
and stands nowhere here, nor do its groups, which may tell of the answer. A trajectory holds what the
model was sent and sampled, and what the environment showed: nothing of the reference.

A harness that was flagged did not earn its score, so none of it is here: no score, outcomes, trajectories.
They are in the log beside the folder and in the run's rollouts.

Not covered: a page for browsers, see `lineage.py`.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from whale_baselines.play import twelve
from whale_baselines.search.admit import short_paths
from whale_baselines.search.log import ScoreKey
from whale_bench.records import Rollout
from whale_bench.store import write_whole
from whale_bench.text import scrub, scrub_all

if TYPE_CHECKING:
    from whale_baselines.search.archive import Candidate, Samples, State

MOST_FAILURES, MOST_SUCCESSES = 32, 8
"""Trajectories of a harness that are written, evenly spread over the examples."""

MOST_CHARS = 20_000
"""Characters of one text in a trajectory."""


class Transcript(NamedTuple):
    """What is kept of a proposer's session beside its proposals."""

    proposer: str
    problem: str
    lines: Sequence[Mapping[str, Any]]


def iteration_folder(folder: Path, phase: int, iteration: int) -> Path:
    return folder / "iterations" / f"p{phase}-i{iteration:02d}"


def score_folder(folder: Path, name: str, key: ScoreKey) -> Path:
    return folder / "harnesses" / name / twelve(key.weights_id)


def write_candidate(folder: Path, candidate: "Candidate") -> None:
    """The source of a harness and what is known of it."""
    place = folder / "harnesses" / candidate.name
    place.mkdir(parents=True, exist_ok=True)
    _write(place / "harness.py", candidate.source)
    samples = _told(candidate)
    proposal = candidate.proposal
    scores = [
        {
            "weights_id": key.weights_id,
            "conditions": key.conditions,
            "examples": len(found.rewards[0]),
            "samples": len(found.rewards),
            "success": found.score,
            "turns": found.mean_turns,
            "metrics": found.metrics,
        }
        for key, found in samples.items()
    ]
    about = {
        "name": candidate.name,
        "harness_id": candidate.harness_id,
        "phase": candidate.phase,
        "iteration": candidate.iteration,
        "parents": proposal.parents,
        "hypothesis": proposal.hypothesis,
        "changes": proposal.changes,
        "components": proposal.components,
        "status": candidate.status,
        "reason": candidate.reason,
        "scores": scores,
    }
    _write(place / "about.json", _json(about))
    for key in candidate.samples.keys() - samples.keys():
        if (there := score_folder(folder, candidate.name, key)).exists():
            shutil.rmtree(there)
    for key, found in samples.items():
        lines = [
            {
                "example": number,
                "success": [row[number] for row in found.rewards],
                "turns": [row[number] for row in found.turns],
            }
            for number in range(len(found.rewards[0]))
        ]
        there = score_folder(folder, candidate.name, key)
        there.mkdir(exist_ok=True)
        _write(there / "outcomes.jsonl", "".join(msgspec.json.encode(line).decode() + "\n" for line in lines))


def write_index(folder: Path, state: "State") -> None:
    """What is about all harnesses."""
    _write(folder / "README.md", f"# Archive of a harness search\n\n{__doc__}")
    _write(folder / "lineage.md", "\n".join(_lineage(state)) + "\n")
    phases = []
    for phase, begun in state.phases.items():
        accepted = state.accepted(phase)
        frontier = [one.name for one in state.frontier(begun.key, accepted.name)]
        phases.append(
            {
                "phase": phase,
                "weights_id": begun.key.weights_id,
                "incoming": state.incoming(phase).name,
                "accepted": accepted.name,
                "frontier": frontier,
            }
        )
    _write(folder / "frontier.json", _json(phases))


def write_trajectories(folder: Path, name: str, key: ScoreKey, records: Mapping[int, Rollout]) -> None:
    """Some failures and successes among the first rollouts of each example."""
    place = score_folder(folder, name, key)
    kinds = {
        "failures": (MOST_FAILURES, [n for n in records if not records[n].verdict.correct]),
        "successes": (MOST_SUCCESSES, [n for n in records if records[n].verdict.correct]),
    }
    for kind, (most, numbers) in kinds.items():
        (place / kind).mkdir(parents=True, exist_ok=True)
        step = max(1, -(-len(numbers) // most))
        for number in sorted(numbers)[::step]:
            text = "\n".join(trajectory(number, records[number])) + "\n"
            _write(place / kind / f"{number:04d}.txt", text)


def write_transcript(folder: Path, phase: int, iteration: int, transcript: Transcript) -> None:
    place = iteration_folder(folder, phase, iteration)
    place.mkdir(parents=True, exist_ok=True)
    head = {"proposer": transcript.proposer, "problem": transcript.problem}
    plain = scrub_all(msgspec.to_builtins([head, *transcript.lines], enc_hook=str))
    lines = [msgspec.json.encode(line).decode() for line in plain]
    _write(place / "transcript.jsonl", "\n".join(lines) + "\n")


def trajectory(number: int, record: Rollout) -> Iterator[str]:
    """A rollout as text, without the example's id, groups and reference."""
    verdict = record.verdict
    yield f"example {number}: {'solved' if verdict.correct else 'failed'}, {record.stop_condition}"
    yield f"calls of the model: {len(record.segments)}; tool calls: {record.tool_calls}"
    yield f"answer that was read: {_cut(verdict.answer) if verdict.answer is not None else 'none'}"
    if record.error:
        yield f"error: {_cut(short_paths(record.error))}"
    yield from ("", "=== first observation", _cut(record.opening))
    steps = iter(record.steps)
    before: tuple[Any, ...] = ()
    for turn, segment in enumerate(record.segments, start=1):
        yield f"\n=== turn {turn}: messages"
        same = 0
        while same < min(len(before), len(segment.messages)) and before[same] == segment.messages[same]:
            same += 1
        if same:
            yield f"({same} messages as before)"
        for message in segment.messages[same:]:
            yield f"[{message.role}] {_cut(message.content)}"
        before = segment.messages
        yield f"\n=== turn {turn}: sampled ({segment.finish_reason})"
        yield _cut(segment.text)
        for call in segment.tool_calls:
            yield f"[tool call] {_cut(msgspec.json.encode(call).decode())}"
        step = next(steps, None)
        if step is not None:
            yield f"\n=== turn {turn}: {'action' if step.action is not None else 'nudge'}, {step.event}"
            if step.action is not None:
                yield _cut(step.action)
            yield f"[observation] {_cut(step.observation)}"
            if step.feedback and step.feedback not in step.observation:
                yield f"[feedback] {_cut(step.feedback)}"


def _lineage(state: "State") -> Iterator[str]:
    yield "# Lineage\n"
    names = {one.harness_id: one.name for one in reversed(state.candidates.values())}
    for phase, begun in state.phases.items():
        yield f"## Phase {phase}: weights {twelve(begun.key.weights_id)}, rule {begun.rule}\n"
        yield f"Incoming {state.incoming(phase).name}, accepted so far {state.accepted(phase).name}.\n"
        yield "| Name | Iteration | Parents | Status | Success | Turns | Hypothesis |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        for one in state.candidates.values():
            found = _told(one).get(begun.key)
            if one.phase != phase and found is None:
                continue
            score = f"{found.score.mean:.1%} [{found.score.low:.1%}, {found.score.high:.1%}]" if found else ""
            cells = (
                one.name,
                f"{one.iteration}" if one.phase == phase else f"of phase {one.phase}",
                ", ".join(names.get(parent, parent[:19]) for parent in one.proposal.parents),
                one.status or "open",
                score,
                f"{found.mean_turns:.2f}" if found else "",
                one.reason or one.proposal.hypothesis,
            )
            yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
        yield ""


def _told(candidate: "Candidate") -> "Mapping[ScoreKey, Samples]":
    """What readers of the folder may know of a harness's rollouts."""
    return {} if candidate.status == "flagged" else candidate.samples


def _cell(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}… ({len(text)} characters)"


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _write(path: Path, text: str) -> None:
    write_whole(path, scrub(text).encode())
