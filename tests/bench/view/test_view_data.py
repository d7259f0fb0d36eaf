"""What a page is told of a run: overview, sample, frames, boards."""

from pathlib import Path
from typing import Any

import chess
import msgspec
import pytest
from bench_fakes import outcome, record
from hypothesis import given
from hypothesis import strategies as st

from whale_bench.models.base import Message
from whale_bench.records import Segment, Step
from whale_bench.replies import said_in
from whale_bench.scoring import Summary
from whale_bench.store import RunStore
from whale_bench.view import board, data, distributions
from whale_bench.view.blocks import text_blocks
from whale_bench.view.index import RunIndex
from whale_bench.view.page import MODULES, shell
from whale_bench.view.replay import replay_of

SETTINGS: dict[str, Any] = {
    "model": "scripted/x", "fixture": True, "domain": "chess_puzzles", "tier": "mini", "split": "test",
    "profile": "standard", "k": 2, "n": 3, "temperature": 1.0, "weights_id": "w", "harness_id": "h",
}  # fmt: skip


def overview(outcomes: list[Any], stored: Summary | None = None, **settings: Any) -> data.Overview:
    return data.overview_of(SETTINGS | settings, outcomes, stored, folder="run", damaged=0)


def test_a_finished_run_shows_the_summary_that_stands_on_disk(runs: Path) -> None:
    for folder in sorted(runs.iterdir()):
        stored = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
        with RunIndex.open(folder, cached=False) as index:
            assert index.overview.summary == stored
            assert index.overview.missing == 0


def test_scores_are_computed_where_the_summary_is_of_other_rollouts(runs: Path) -> None:
    folder = runs / "chess_puzzles"
    store = RunStore.open(folder)
    outcomes = list(store.outcomes())
    stored = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    found = data.overview_of(store.settings, outcomes, None, folder="run", damaged=0).summary
    assert (found.score, found.other_score, found.groups) == (stored.score, stored.other_score, stored.groups)
    stale = msgspec.structs.replace(stored, rollouts=1, score=None)
    again = data.overview_of(store.settings, outcomes, stale, folder="run", damaged=0).summary
    assert again.score == stored.score


def test_missing_rollouts_are_counted_and_named_as_far_as_they_are_known() -> None:
    found = overview([outcome("test:a:0", 1.0), outcome("test:b:1", 0.0)])
    assert found.missing == 4
    assert found.missing_keys == ["test:a:1", "test:b:0"]
    assert found.summary.score is None
    assert found.summary.lower_bound == pytest.approx(1 / 6)


def test_histograms_count_every_rollout_and_every_example(runs: Path) -> None:
    for folder in runs.iterdir():
        with RunIndex.open(folder, cached=False) as index:
            solved, *rest = index.overview.histograms
        assert sum(bin_.count for bin_ in solved.bins) == 8
        assert [bin_.label for bin_ in solved.bins] == ["0", "1", "2", "3", "4"]
        for histogram in rest:
            assert sum(bin_.count for bin_ in histogram.bins) == 32


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_bars_hold_all_values_and_are_few(values: list[float]) -> None:
    bins = distributions._binned(values, whole=False)
    assert sum(bin_.count for bin_ in bins) == len(values)
    assert len(bins) <= distributions.BINS + 2


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_bars_of_whole_numbers_do_too(values: list[int]) -> None:
    bins = distributions._binned(values, whole=True)
    assert sum(bin_.count for bin_ in bins) == len(values)
    assert len(bins) <= distributions.BINS + 2


def test_groups_have_an_interval_only_where_their_examples_are_complete() -> None:
    groups = (("band", "easy"),)
    full = [outcome(f"test:{e}:{s}", 1.0, groups=groups) for e in "ab" for s in range(2)]
    (group,) = overview(full).groups
    assert (group.examples, group.rollouts, group.mean, group.high) == (2, 4, 1.0, 1.0)
    (group,) = overview(full[:3]).groups
    assert (group.mean, group.low, group.high) == (1.0, None, None)


def test_a_sample_is_the_same_each_time_and_keeps_the_proportions() -> None:
    outcomes = [(f"k{number}", number % 4 == 0) for number in range(10_000)]
    chosen = data.choose(outcomes, 2_000)
    assert chosen == data.choose(reversed(outcomes), 2_000)
    assert len(chosen) == 2_000
    assert sum(solved for key, solved in outcomes if key in chosen) == 500
    assert len(data.choose(outcomes[:50], 2_000)) == 50
    rare = [("only", True), *((f"k{number}", False) for number in range(10_000))]
    assert "only" in data.choose(rare, 100)


# --- frames -------------------------------------------------------------------------------------------


def test_frames_are_what_was_shown_said_and_answered_in_order(runs: Path) -> None:
    for folder in runs.iterdir():
        for rollout in RunStore.open(folder).rollouts():
            replay = replay_of(rollout)
            actors = [frame.actor for frame in replay.frames]
            turns = ["harness", "model", "environment"] * len(rollout.segments)
            assert actors == [
                *turns[: len(turns) - rollout.truncated],
                "verdict",
            ]  # what is cut is not played
            for segment, frame in zip(rollout.segments, replay.frames[::3], strict=False):
                roles = [replay.messages[index].role for index in frame.sent]
                assert roles == [message.role for message in segment.messages]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("perhaps a</think>b", None),
        ("perhaps <b", ("", "perhaps <b")),
        ("never closed: b", ("never closed: b", "")),  # the prompt had opened the tag
        ("<think>x</think>b", ("of a field beside it", "b")),
        ("", ("only a field", "b")),
    ],
)
def test_a_frame_shows_what_the_record_says_was_said(raw: str, shown: tuple[str, str] | None) -> None:
    reasoning, reply = shown or (None, None)
    call = Segment((Message("user", "q"),), raw, reasoning=reasoning, reply=reply)
    thought, said = said_in(call)
    assert shown is None or (thought, said) == shown
    step = Step(said or "nothing", "o", "ok", "f", 1)
    _, model, answer, _ = replay_of(record(domain="of my own", segments=(call,), steps=(step,))).frames
    kinds = [(block.kind, block.text) for block in model.blocks if block.text]
    assert kinds == [(kind, text) for kind, text in (("reasoning", thought), ("text", said)) if text]
    assert model.title == (said or "says nothing")
    read_as = [block for block in answer.blocks if block.title == "The harness read this as the action"]
    assert bool(read_as) == (not said)


def turns_of(segments: int, *steps: Step) -> list[tuple[str, int]]:
    calls = tuple(Segment((Message("user", "q"),), f"said {i}") for i in range(segments))
    replay = replay_of(record(domain="of my own", segments=calls, steps=steps))
    return [
        (f.title if f.actor == "model" else f.actor, f.turn) for f in replay.frames if f.actor != "harness"
    ]


def test_a_step_follows_the_calls_that_led_to_it() -> None:
    def step(calls: int | None) -> Step:
        return Step("a", "o", "ok", "f", calls)

    env, end = "environment", "verdict"
    assert turns_of(4, step(1), step(1), step(3)) == [
        ("said 0", 1), (env, 1), (env, 2), ("said 1", 3), ("said 2", 3), (env, 3), ("said 3", 4), (end, 4),
    ]  # fmt: skip
    assert turns_of(0, step(0)) == [(env, 1), (env, 1), (end, 1)]
    assert turns_of(0) == [(env, 1), (end, 1)]
    older = [("said 0", 1), (env, 1), ("said 1", 2), (env, 2), ("said 2", 3), (end, 3)]
    assert turns_of(3, step(None), step(None)) == older
    assert turns_of(1, step(9), step(0)) == [("said 0", 1), (env, 1), (env, 2), (end, 2)]  # no such run


def test_a_rollout_without_calls_shows_what_its_agent_saw_and_whose_action_it_was(runs: Path) -> None:
    rollout = next(iter(RunStore.open(runs / "chess_puzzles").rollouts()))
    alone = msgspec.structs.replace(
        rollout, weights_id="agent:mine:A", segments=(), steps=(Step("e2e4", "o", "ok", "f", 0),)
    )
    first, answer, _ = replay_of(alone).frames
    assert (first.actor, first.title) == ("environment", "The first observation")
    assert "".join(block.text for block in first.blocks) == rollout.opening
    assert first.board is not None
    assert ("The agent's action", "e2e4") in [(block.title, block.text) for block in answer.blocks]
    metered = msgspec.structs.replace(alone, segments=rollout.segments[:1], steps=(Step("a", "", "", "", 1),))
    shown, _, answer, _ = replay_of(metered).frames
    assert shown.actor == "harness"
    assert "The agent's action" in [block.title for block in answer.blocks]


def test_messages_that_were_sent_before_are_marked_as_known() -> None:
    first = Message("system", "be brief"), Message("user", "one")
    segments = (
        Segment(messages=first, text="a"),
        Segment(messages=(*first, Message("assistant", "a")), text="b"),
    )
    replay = replay_of(record(segments=segments))
    sent = [frame for frame in replay.frames if frame.actor == "harness"]
    assert [(frame.sent, frame.known) for frame in sent] == [([0, 1], 0), ([0, 1, 2], 2)]
    assert len(replay.messages) == 3


def test_tools_of_any_name_and_calls_of_any_shape_are_shown() -> None:
    calls: Any = (
        {"function": {"name": "code_interpreter", "arguments": '{"code": "print(1)"}'}},
        {"function": {"name": "search", "arguments": {"query": "Oslo"}}},
        {"function": {"name": "odd", "arguments": "{not json"}},
        {"function": "no dict"},
        {},
    )
    segment = Segment(messages=(), text="", tool_calls=calls)
    steps = (
        Step('{"tool": "search", "arguments": {"query": "x"}}',
             '{"result": "Document 1: Oslo\\nA city.\\nDocument 2: Bergen\\nRain."}', "ok", "found"),
        Step(None, "again", "nudge", "again"),
    )  # fmt: skip
    replay = replay_of(record(domain="of my own", segments=(segment,), steps=steps))
    model = next(frame for frame in replay.frames if frame.actor == "model")
    assert [block.kind for block in model.blocks] == ["python", "query", "call", "call", "call"]
    answer = next(frame for frame in replay.frames if frame.actor == "environment")
    passages = [(block.title, block.text) for block in answer.blocks if block.kind == "passage"]
    assert passages == [("Oslo", "A city."), ("Bergen", "Rain.")]


@given(st.text(alphabet=st.sampled_from("`pyhon\n \tx"), max_size=60))
def test_blocks_leave_nothing_of_a_text_out(text: str) -> None:
    joined = "".join(block.text for block in text_blocks(text))
    assert joined.replace("\n", "") == text.replace("\n", "")


def test_a_verdict_says_why_and_what_the_other_profile_would_say() -> None:
    last = replay_of(record(reward=0.0, error="it broke", stop_condition="harness_error")).frames[-1]
    assert dict(last.facts)["ended"] == "harness_error"
    assert dict(last.facts)["paper profile"] == "0"
    assert last.blocks[-1].text == "it broke"


# --- boards -------------------------------------------------------------------------------------------


def test_boards_follow_the_game(runs: Path) -> None:
    seen = 0
    for rollout in RunStore.open(runs / "chess_puzzles").rollouts():
        for frame in replay_of(rollout).frames:
            assert frame.board is not None
            position = chess.Board()
            position.set_board_fen(frame.board.placement)
            if frame.board.last:  # the piece that moved stands where it went
                seen += 1
                start, end = (chess.parse_square(frame.board.last[i : i + 2]) for i in (0, 2))
                assert position.piece_at(start) is None
                assert position.piece_at(end) is not None
            assert frame.board.alt.startswith("White: king ")
    assert seen > 100


def test_a_move_and_the_reply_to_it_are_two_boards() -> None:
    opening = "FEN: 4k3/8/8/8/8/8/4P3/4K3 w - - 0 1\nOpponent's last move: d8e8"
    answer = "FEN: 3k4/8/8/8/4P3/8/8/4K3 w - - 1 2\nOpponent's last move: e8d8"
    shown = board.walk(opening, [("e2e4", answer), ("e1e5", answer), (None, answer)])
    assert shown is not None
    first, illegal, nudge, end = shown
    assert first.before.last == "d8e8"
    assert first.attempted is not None
    assert (first.attempted.last, first.after.last) == ("e2e4", "e8d8")
    assert "last move Black Kd8" in first.after.alt
    assert illegal.attempted is None
    assert illegal.after == illegal.before == nudge.after == end.before == first.after


def test_a_check_and_a_mate_are_marked() -> None:
    opening = "FEN: 6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1"
    shown = board.walk(opening, [("a1a8", "over")])
    assert shown is not None
    assert shown[0].after.check == "g8"
    assert "Black is checkmated" in shown[0].after.alt


@pytest.mark.parametrize("opening", ["", "FEN: nonsense that is long", "FEN: 9/9/9/9/9/9/9/9 w - - 0 1"])
def test_what_is_no_position_has_no_board(opening: str) -> None:
    assert board.walk(opening, []) is None


def test_pieces_need_no_inline_style() -> None:
    assert "style=" not in board.pieces()
    assert board.pieces().count("<g id=") == 12


# --- the page's frame ---------------------------------------------------------------------------------


def test_nothing_of_a_run_can_be_markup_or_leave_the_page() -> None:
    hostile = "</script><b>{{data}}&\"'"
    page = shell({"source": hostile}, title=hostile, data=b"x").html
    assert page.count("</script>") == 3
    assert "<b>" not in page
    assert "default-src 'none'" in page
    assert "unsafe-inline" not in page


def test_every_module_of_the_page_is_in_it_and_none_makes_markup() -> None:
    folder = Path(board.__file__).parent / "static"
    assert sorted(path.name for path in folder.glob("*.js")) == sorted(MODULES)
    for path in folder.iterdir():
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            assert word not in text.replace("no innerHTML", "").replace("http://www.w3.org/2000/svg", ""), (
                path
            )
