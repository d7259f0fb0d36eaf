"""Every tampering is caught, by a finding that names the first record at fault."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from board_fakes import HARNESS, Forger, swap_harness
from whale_leaderboard import runs
from whale_leaderboard.cli import CANNOT_VERIFY, main
from whale_leaderboard.report import CannotVerifyError, Finding, Report
from whale_leaderboard.verify import verify

from whale_envs import load_examples
from whale_envs.errors import DataError
from whale_envs.sandbox import Sandbox

TEST, LEDGER, CHARGED = "test.jsonl", "runs/0/ledger.jsonl", "runs/0/charged.jsonl"
SPENT_LEDGER, SPENT = "runs/1/ledger.jsonl", "runs/1/charged.jsonl"


def refusals(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.refuses]


def drop(lines: list[bytes], number: int) -> list[bytes]:
    return lines[: number - 1] + lines[number:]


def swapped(lines: list[bytes], one: int, other: int) -> list[bytes]:
    lines = list(lines)
    lines[one - 1], lines[other - 1] = lines[other - 1], lines[one - 1]
    return lines


def charge(**parts: Any) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        event["charge"] = msgspec.json.encode(json.loads(event["charge"]) | parts).decode()

    return change


def setting(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda value: value.update(values)


# --- tamperings of a bundle with a spent run, each as an author who fixes the digests would make it ----


def score_edited(f: Forger) -> None:
    f.manifest(lambda m: m["claim"]["score"].update(mean=0.9))


def account_edited(f: Forger) -> None:
    f.manifest(lambda m: m["claim"].update(charged=5))


def cheaper_track(f: Forger) -> None:
    f.manifest(lambda m: m["track"].update(budget="1M"))


def smaller_model(f: Forger) -> None:
    f.manifest(lambda m: m["track"].update(size="1B"))


def not_metered(f: Forger) -> None:
    f.manifest(lambda m: m.update(metered=False))


def fixture_denied(f: Forger) -> None:
    f.manifest(lambda m: m.update(fixture=True))


def other_examples(f: Forger) -> None:
    f.manifest(lambda m: m.update(examples_id="sha256:" + "0" * 64))


def unknown_tier(f: Forger) -> None:
    f.manifest(lambda m: m.update(tier="huge"))


def unknown_field(f: Forger) -> None:
    f.manifest(lambda m: m.update(bonus=1))


def endless_field(f: Forger) -> None:
    f.manifest(lambda m: m["about"].update(description="x" * 5_000))


def script_in_a_link(f: Forger) -> None:
    f.manifest(lambda m: m["about"].update(links=["javascript:alert(1)"]))


def rollout_dropped(f: Forger) -> None:
    f.write(TEST, drop(f.lines(TEST), 13))


def rollout_duplicated(f: Forger) -> None:
    lines = f.lines(TEST)
    f.write(TEST, [*lines[:13], *lines[12:]])


def rollouts_swapped(f: Forger) -> None:
    f.write(TEST, swapped(f.lines(TEST), 5, 50))


def another_seed(f: Forger) -> None:
    f.replace_row(3, setting(seed=987_654))


def a_ninth_sample(f: Forger) -> None:
    f.write(TEST, [*f.lines(TEST), f.lines(TEST)[-1]])


def of_another_split(f: Forger) -> None:
    dev = load_examples("chess_puzzles", "mini", "dev").ids[0]
    f.edit(TEST, 1, setting(example_id=dev))


def text_changed(f: Forger) -> None:
    f.edit(TEST, 3, lambda row: row["segments"][0].update(text=row["segments"][0]["text"] + " "))


def reward_edited(f: Forger) -> None:
    f.edit(TEST, 3, lambda row: row["verdict"].update(reward=1.0 - row["verdict"]["reward"]))


def tokens_edited(f: Forger) -> None:
    f.edit(TEST, 3, setting(prompt_tokens=0))


def no_time_that_can_be(f: Forger) -> None:
    f.edit(TEST, 3, setting(env_seconds=-1.0))


def endless_time(f: Forger) -> None:
    f.edit(TEST, 3, setting(env_seconds=1e12, seconds=1e9))


def a_part_longer_than_the_whole(f: Forger) -> None:
    f.edit(TEST, 3, setting(env_seconds=50.0, seconds=5.0))


def unknown_field_of_a_rollout(f: Forger) -> None:
    f.edit(TEST, 3, setting(bonus=1))


def not_a_number(f: Forger) -> None:
    lines = f.lines(TEST)
    lines[2] = lines[2].replace(b'"reward":0.0', b'"reward":NaN').replace(b'"reward":1.0', b'"reward":NaN')
    f.write(TEST, lines)


def more_than_right(f: Forger) -> None:
    f.edit(TEST, 3, lambda row: row["verdict"].update(reward=1.5))


def groups_of_another_example(f: Forger) -> None:
    f.replace_row(3, lambda row: row["groups"].append(["theme", "mine"]))


def more_metrics_than_any(f: Forger) -> None:
    f.edit(TEST, 3, lambda row: row["metrics"].update({f"m{number}": 1.0 for number in range(40)}))


def a_metric_with_an_endless_name(f: Forger) -> None:
    f.edit(TEST, 3, lambda row: row["metrics"].update({"m" * 10_000: 1.0}))


def reward_twice(f: Forger) -> None:
    """Whoever reads the first one reads another score; the digests are those of these bytes."""
    lines = f.lines(TEST)
    lines[2] = lines[2].replace(b'"verdict":{', b'"verdict":{"reward":1.0,', 1)
    f.write(TEST, lines)


def text_of_a_call_twice(f: Forger) -> None:
    """Far down in it, and the first one is what an escape spells."""
    lines = f.lines(TEST)
    lines[2] = lines[2].replace(b'"text":', b'"te\\u0078t":"a1a2","text":', 1)
    f.write(TEST, lines)


def sample_with_a_name_twice(f: Forger) -> None:
    lines = f.lines("runs/1/samples.jsonl")
    lines[3] = b'{"domain":"math_python",' + lines[3][1:]
    f.write("runs/1/samples.jsonl", lines)


def matrix_with_a_name_twice(f: Forger) -> None:
    path = f.folder / "crossplay.json"
    path.write_bytes(path.read_bytes().replace(b'"mean":', b'"mean":0.9,"mean":', 1))


def nested_without_end(f: Forger) -> None:
    lines = f.lines(TEST)
    lines[2] = b'{"key":' + b"[" * 100_000
    f.write(TEST, lines)


def last_line_cut(f: Forger) -> None:
    path = f.folder / TEST
    path.write_bytes(path.read_bytes()[:-20])


def record_reward_edited(f: Forger) -> None:
    f.edit(CHARGED, 3, lambda r: r.update(reward=1.0 - r["reward"]))


def record_tokens_edited(f: Forger) -> None:
    f.edit(SPENT, 7, setting(sampled_tokens=0))


def record_of_another_split(f: Forger) -> None:
    test = load_examples("chess_puzzles", "mini", "test").ids[0]
    f.edit(SPENT, 7, setting(example_id=test))


def record_dropped(f: Forger) -> None:
    f.write(SPENT, drop(f.lines(SPENT), 7))


def record_added(f: Forger) -> None:
    f.write(SPENT, [*f.lines(SPENT), f.lines(SPENT)[-1]])


def played_by_another_agent(f: Forger) -> None:
    f.edit(CHARGED, 9, setting(weights_id="sha256:" + "77" * 32))


def event_removed(f: Forger) -> None:
    f.write(SPENT_LEDGER, drop(f.lines(SPENT_LEDGER), 20))


def events_reordered(f: Forger) -> None:
    f.write(SPENT_LEDGER, swapped(f.lines(SPENT_LEDGER), 20, 21))


def ledger_ends_early(f: Forger) -> None:
    f.write(SPENT_LEDGER, f.lines(SPENT_LEDGER)[:-4])


def charge_edited(f: Forger) -> None:
    f.edit(SPENT_LEDGER, 4, charge(sampled_tokens=0))


def settlement_removed_and_rechained(f: Forger) -> None:
    f.write(SPENT_LEDGER, drop(f.lines(SPENT_LEDGER), 4))
    f.rechain(1)


def charge_edited_and_rechained(f: Forger) -> None:
    f.edit(SPENT_LEDGER, 4, charge(sampled_tokens=0))
    f.rechain(1)


def event_with_a_name_twice(f: Forger) -> None:
    """Some readers take the first, some the last."""
    lines = f.lines(SPENT_LEDGER)
    lines[3] = lines[3].replace(b'{"seq":4,', b'{"seq":4,"purpose":"test",')
    f.write(SPENT_LEDGER, lines)


def charge_with_a_name_twice(f: Forger) -> None:
    def change(event: dict[str, Any]) -> None:
        event["charge"] = event["charge"].replace('{"rollouts":1,', '{"rollouts":0,"rollouts":1,')

    f.edit(SPENT_LEDGER, 4, change)
    f.rechain(1)


def record_with_a_name_twice(f: Forger) -> None:
    lines = f.lines(SPENT)
    lines[6] = b'{"reward":1.0,' + lines[6][1:]
    f.write(SPENT, lines)


def reservation_twice(f: Forger) -> None:
    """A key that is reserved, settled, and reserved again as though it never was."""
    f.write(SPENT_LEDGER, [*f.lines(SPENT_LEDGER), f.lines(SPENT_LEDGER)[2]])
    f.rechain(1)


def negative_charge(f: Forger) -> None:
    f.edit(SPENT_LEDGER, 4, charge(seconds=-5.0))
    f.rechain(1)


def infinite_charge(f: Forger) -> None:
    f.edit(SPENT_LEDGER, 4, lambda e: e.update(charge='{"rollouts":1,"seconds":1e999}'))
    f.rechain(1)


def rollout_not_counted(f: Forger) -> None:
    f.edit(SPENT_LEDGER, 4, charge(rollouts=0))
    f.rechain(1)


def counted_as_test(f: Forger) -> None:
    for number in (3, 4):
        f.edit(SPENT_LEDGER, number, setting(purpose="test"))
    f.edit(SPENT, 2, setting(purpose="test"))
    f.rechain(1)


def counted_as_a_failure(f: Forger) -> None:
    f.edit(SPENT_LEDGER, 4, setting(kind="missing"))
    f.rechain(1)


def settled_twice(f: Forger) -> None:
    lines = f.lines(SPENT_LEDGER)
    begin, end = (json.loads(line) | {"attempt": 2} for line in lines[2:4])
    f.write(SPENT_LEDGER, [*lines[:4], json.dumps(begin).encode(), json.dumps(end).encode(), *lines[4:]])
    records = f.lines(SPENT)
    f.write(SPENT, [*records[:2], records[1], *records[2:]])
    f.rechain(1)


def ended_without_a_beginning(f: Forger) -> None:
    f.write(SPENT_LEDGER, drop(f.lines(SPENT_LEDGER), 3))
    f.rechain(1)


def an_attempt_skipped(f: Forger) -> None:
    for number in (3, 4):
        f.edit(SPENT_LEDGER, number, setting(attempt=3))
    f.rechain(1)


def repeats_what_was_never_settled(f: Forger) -> None:
    lines = f.lines(SPENT_LEDGER)
    for kind, parts in (("reserve", {"charge": ""}), ("repeated", {})):
        event = json.loads(lines[3]) | {"kind": kind, "key": "weight:never:0"} | parts
        lines.append(json.dumps(event).encode())
    f.write(SPENT_LEDGER, lines)
    f.rechain(1)


def sample_missing(f: Forger) -> None:
    f.write("runs/1/samples.jsonl", drop(f.lines("runs/1/samples.jsonl"), 4))


def sample_replaced(f: Forger) -> None:
    f.edit("runs/1/samples.jsonl", 4, setting(seconds=0.0))


def harness_changed(f: Forger) -> None:
    path = min((f.folder / "harnesses").iterdir())
    path.write_text(path.read_text() + "\n# better\n")


def harness_removed(f: Forger) -> None:
    min((f.folder / "harnesses").iterdir()).unlink()


def settings_edited(f: Forger) -> None:
    path = f.folder / "runs/0/run.toml"
    path.write_text(path.read_text().replace("temperature = 1.0", "temperature = 0.5"))


def a_run_twice(f: Forger) -> None:
    """A run that was dear is copied in once more, to be counted in place of another one."""
    shutil.copytree(f.folder / "runs/1", f.folder / "runs/2")
    f.manifest(lambda m: m["runs"].append(m["runs"][1]))


def the_beginning_of_a_run_as_another_one(f: Forger) -> None:
    a_run_twice(f)
    f.write("runs/2/ledger.jsonl", f.lines("runs/2/ledger.jsonl")[:40])
    f.rechain(2)


def crossplay_without_a_score(f: Forger) -> None:
    f.edit_file("crossplay.json", lambda m: m["scores"][1].pop())


def crossplay_better_than_all(f: Forger) -> None:
    f.edit_file("crossplay.json", lambda m: m["scores"][1][0].update(mean=1.5))


def another_file(f: Forger) -> None:
    (f.folder / "runs" / "0" / "notes.txt").write_text("hello")


def a_link(f: Forger) -> None:
    path = f.folder / "runs/0/run.toml"
    path.unlink()
    path.symlink_to("/etc/hostname")


def a_linked_folder(f: Forger) -> None:
    (f.folder / "runs" / "2").symlink_to("/etc")


SEALED: list[tuple[Callable[[Forger], None], str, str]] = [
    (score_edited, "claim", r"manifest.json: its score is 0.9, its rollouts give 0\."),
    (account_edited, "claim", r"its charged is 5, its rollouts give 258"),
    (cheaper_track, "claim", r"its track"),
    (smaller_model, "claim", r"its track"),
    (not_metered, "claim", r"its metered is False"),
    (fixture_denied, "settings", r"runs/0/run.toml: its fixture is False, True"),
    (other_examples, "examples", r"not those of chess_puzzles/mini/test"),
    (unknown_tier, "track", r"no tier 'huge'"),
    (unknown_field, "manifest", r"bonus"),
    (endless_field, "manifest", r"length"),
    (script_in_a_link, "manifest", r"links"),
    (rollout_dropped, "completeness", r"test.jsonl:13: sample 5 of .* stands where sample 4 of"),
    (rollout_duplicated, "completeness", r"test.jsonl:14: sample 4 of .* stands where sample 5 of"),
    (rollouts_swapped, "completeness", r"test.jsonl:5: sample 1 of .* stands where sample 4 of"),
    (another_seed, "seed", r"test.jsonl:3: .*seed 987654, the run's is 0"),
    (a_ninth_sample, "completeness", r"test.jsonl:769: .* stands where the end should"),
    (of_another_split, "completeness", r"test.jsonl:1: "),
    (text_changed, "rollout_digest", r"test.jsonl:3: 'test:chess_puzzles-\w+:2'"),
    (reward_edited, "record", r"test.jsonl:3: 'test:chess_puzzles-\w+:2': its reward"),
    (tokens_edited, "record", r"test.jsonl:3: .*prompt_tokens"),
    (no_time_that_can_be, "rollout", r"test.jsonl:3: .*>= 0.0.*env_seconds"),
    (endless_time, "rollout", r"test.jsonl:3: .*<= 1000000000.0.*env_seconds"),
    (a_part_longer_than_the_whole, "rollout", r"test.jsonl:3: .*50 s in its environment, 5 s in all"),
    (unknown_field_of_a_rollout, "rollout", r"test.jsonl:3: .*bonus"),
    (not_a_number, "rollout", r"test.jsonl:3: is no rollout"),
    (more_than_right, "rollout", r"test.jsonl:3: .*<= 1.0"),
    (groups_of_another_example, "record", r"test.jsonl:3: .*its groups are not those of its example"),
    (more_metrics_than_any, "rollout", r"test.jsonl:3: .*metrics"),
    (a_metric_with_an_endless_name, "rollout", r"test.jsonl:3: .*metrics"),
    (reward_twice, "rollout", r"test.jsonl:3: has the name 'reward' twice in one object"),
    (text_of_a_call_twice, "rollout", r"test.jsonl:3: has the name 'text' twice in one object"),
    (sample_with_a_name_twice, "rollout", r"runs/1/samples.jsonl:4: has the name 'domain' twice"),
    (matrix_with_a_name_twice, "crossplay", r"crossplay.json: has the name 'mean' twice"),
    (nested_without_end, "rollout", r"test.jsonl:3: is no rollout"),
    (last_line_cut, "line", r"test.jsonl:768: the line is cut off"),
    (record_reward_edited, "record", r"test.jsonl:\d+: .*its record has"),
    (record_tokens_edited, "totals", r"runs/1/charged.jsonl:7: its sampled_tokens"),
    (record_of_another_split, "split", r"runs/1/charged.jsonl:7: .*not in the split"),
    (record_dropped, "totals", r"runs/1/charged.jsonl:7: its key"),
    (record_added, "no_charge", r"runs/1/charged.jsonl:259"),
    (played_by_another_agent, "other_agent", r"runs/0/charged.jsonl:9: .*weights_id"),
    (event_removed, "sequence", r"runs/1/ledger.jsonl:20: event 21 stands where 20 should"),
    (events_reordered, "sequence", r"runs/1/ledger.jsonl:20"),
    (ledger_ends_early, "ledger_head", r"runs/1/ledger.jsonl:"),
    (charge_edited, "hash", r"runs/1/ledger.jsonl:4"),
    (settlement_removed_and_rechained, "totals", r"runs/1/charged.jsonl:2: its key"),
    (charge_edited_and_rechained, "totals", r"runs/1/charged.jsonl:2: its sampled_tokens"),
    (event_with_a_name_twice, "event", r"runs/1/ledger.jsonl:4: .*more than one way"),
    (charge_with_a_name_twice, "event", r"runs/1/ledger.jsonl:4: .*more than one way"),
    (record_with_a_name_twice, "record", r"runs/1/charged.jsonl:7: .*more than one way"),
    (reservation_twice, "duplicate", r"runs/1/ledger.jsonl:\d+: .*is reserved twice"),
    (negative_charge, "event", r"runs/1/ledger.jsonl:4: .*seconds"),
    (infinite_charge, "event", r"runs/1/ledger.jsonl:4: "),
    (rollout_not_counted, "charge", r"runs/1/ledger.jsonl:4: .*charges 0 rollouts with 1 calls"),
    (counted_as_test, "split", r"runs/1/charged.jsonl:2: .*split that test rollouts are of"),
    (counted_as_a_failure, "totals", r"runs/1/charged.jsonl:2: its key"),
    (settled_twice, "duplicate", r"runs/1/ledger.jsonl:6: .*settled twice"),
    (ended_without_a_beginning, "attempt", r"runs/1/ledger.jsonl:3: .*never reserved"),
    (an_attempt_skipped, "attempt", r"runs/1/ledger.jsonl:3: .*predecessor is not there"),
    (
        repeats_what_was_never_settled,
        "attempt",
        r"runs/1/ledger.jsonl:\d+: 'weight:never:0' repeats what was never settled",
    ),
    (sample_missing, "sample", r"runs/1/samples.jsonl:4: .*where the digests choose"),
    (sample_replaced, "record", r"runs/1/samples.jsonl:4: .*seconds"),
    (harness_changed, "harness", r"harnesses/\w+.py: its text has another hash"),
    (harness_removed, "harness", r"is not in the bundle|is not there"),
    (settings_edited, "settings", r"runs/0/run.toml: .*settings"),
    (a_run_twice, "same_run", r"runs/2/ledger.jsonl:1: .*runs/1"),
    (the_beginning_of_a_run_as_another_one, "no_charge|same_run", r"runs/2/"),
    (crossplay_without_a_score, "crossplay", "score of each of 2 weights"),
    (crossplay_better_than_all, "crossplay", "crossplay.json: is no cross-play matrix"),
    (another_file, "unknown_file", r"runs/0/notes.txt"),
    (a_link, "not_a_file", r"runs/0/run.toml"),
    (a_linked_folder, "not_a_file", r"runs/2"),
]


@pytest.mark.parametrize(("tamper", "code", "said"), SEALED, ids=lambda v: getattr(v, "__name__", ""))
def test_a_tampering_is_refused_though_the_digests_fit(
    tamper: Callable[[Forger], None], code: str, said: str, chess: Path, tmp_path: Path
) -> None:
    forger = Forger(chess, tmp_path / "forged")
    tamper(forger)
    if tamper not in (a_link, a_linked_folder):
        forger.seal()
    found = refusals(verify(forger.folder, level=1))
    assert found
    assert re.fullmatch(code, found[-1].code), found
    assert found[-1].level == 1
    assert re.search(said, f"{found[-1].place}: {found[-1].message}"), found[-1]


@pytest.mark.parametrize("tamper", [text_changed, charge_edited, record_tokens_edited, sample_missing])
def test_without_the_digests_the_file_and_the_record_are_both_named(
    tamper: Callable[[Forger], None], chess: Path, tmp_path: Path
) -> None:
    forger = Forger(chess, tmp_path / "forged")
    tamper(forger)
    found = refusals(verify(forger.folder, level=1))
    assert found[0].code == "digest"
    assert len(found) == 2
    assert ":" in found[1].place


def test_a_manifest_with_a_name_twice(chess: Path, tmp_path: Path) -> None:
    """Not sealed: a forger's tool would read it, and drop one of the two."""
    forger = Forger(chess, tmp_path / "forged")
    path = forger.folder / "manifest.json"
    path.write_text(path.read_text().replace('"agent":', '"agent": "Another one", "agent":', 1))
    (found,) = refusals(verify(forger.folder, level=1))
    assert (found.code, found.place) == ("manifest", "manifest.json")
    assert "has the name 'agent' twice in one object" in found.message


def test_seven_samples_of_one_example_though_nothing_else_shows_it(plain: Path, tmp_path: Path) -> None:
    forger = Forger(plain, tmp_path / "forged")
    key = json.loads(forger.lines(TEST)[7])["key"]
    forger.write(TEST, drop(forger.lines(TEST), 8))
    for name in (LEDGER, CHARGED):
        forger.write(name, [line for line in forger.lines(name) if json.loads(line)["key"] != key])
    forger.rechain()
    forger.seal()
    (found,) = refusals(verify(forger.folder, level=1))
    first = re.escape(load_examples("chess_puzzles", "mini", "test").ids[0])
    assert found.code == "incomplete"
    assert re.fullmatch(rf"1 test rollouts were never charged, sample 7 of example '{first}' the first",
                        found.message)  # fmt: skip


# --- what only replaying shows: everything well-formed, all digests and the score made to fit -----------


def right_though_it_was_not(row: dict[str, Any]) -> None:
    row["verdict"] |= {"reward": 1.0, "reason": "solved", "standard": 1.0, "paper": 1.0}
    row["stop_condition"] = "solved"


def another_move(row: dict[str, Any]) -> None:
    row["segments"][0]["text"] = "a1a2"


def another_action(row: dict[str, Any]) -> None:
    row["steps"][0]["action"] += " "


def another_prompt(row: dict[str, Any]) -> None:
    message = row["segments"][0]["messages"][1]
    message["content"] = message["content"].replace("winning", "Winning")


def another_observation(row: dict[str, Any]) -> None:
    row["steps"][0]["observation"] += "!"


def another_seed(row: dict[str, Any]) -> None:
    row["segments"][0]["seed"] += 1


def another_metric(row: dict[str, Any]) -> None:
    row["metrics"]["legal_rate"] = 0.5


def another_opening(row: dict[str, Any]) -> None:
    row["opening"] += "?"


def another_final_text(row: dict[str, Any]) -> None:
    row["segments"][0]["reply"] = "h7h8"


def thinking_as_final_text(row: dict[str, Any]) -> None:
    """What the model only thought is shown to the harness, and played."""
    segment = row["segments"][0]
    segment["text"] = f"<think>h7h8 it is</think>{segment['text']}"
    segment["reply"] = "h7h8 it is"


def reasoning_that_was_not_sampled(row: dict[str, Any]) -> None:
    row["segments"][0]["reasoning"] = "the answer is h7h8"


def a_tool_call_that_no_such_model_makes(row: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": '{"move": "h7h8"}'}}
    row["segments"][0]["tool_calls"] = [call]


REPLAYED: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (right_though_it_was_not, "its verdict is|it ends|stop_condition"),
    (another_move, "step 1: its action differs|the model is asked again"),
    (another_action, "step 1: its action differs"),
    (another_prompt, r"call 1: message 2 \(user\): its content differs at character"),
    (another_observation, "step 1: its observation differs"),
    (another_seed, "call 1: its seed is"),
    (another_metric, "its metrics are"),
    (another_opening, "its opening differs"),
    (another_final_text, "call 1: its final text 'h7h8' is not what the sampled text says"),
    (thinking_as_final_text, "call 1: its final text 'h7h8 it is' is not"),
    (reasoning_that_was_not_sampled, "call 1: its reasoning 'the answer is h7h8' does not stand"),
    (a_tool_call_that_no_such_model_makes, "call 1: 1 tool calls are recorded, by a backend that gives none"),
]


@pytest.fixture(scope="module")
def replayed(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, list[int]]:
    """(report, numbers of the lines) of a bundle with each of `REPLAYED` in a rollout of its own."""
    forger = Forger(plain, tmp_path_factory.mktemp("replayed") / "forged")
    rows = [json.loads(line) for line in forger.lines(TEST)]
    wrong = [n for n, row in enumerate(rows, 1) if row["stop_condition"] == "wrong_move"][: len(REPLAYED)]
    for number, (change, _) in zip(wrong, REPLAYED, strict=True):
        forger.replace_row(number, change)
    forger.claim_what_follows()
    return verify(forger.folder, level=2), wrong


@pytest.mark.parametrize("number", range(len(REPLAYED)), ids=[change.__name__ for change, _ in REPLAYED])
def test_a_rollout_that_did_not_happen_so_is_refused_by_its_replay(
    number: int, replayed: tuple[Report, list[int]]
) -> None:
    report, wrong = replayed
    assert report.level == 1
    found = refusals(report)
    assert [(one.code, one.place) for one in found] == [("replay", f"{TEST}:{line}") for line in wrong]
    assert re.search(REPLAYED[number][1], found[number].message), found[number]


def test_a_python_result_that_the_program_does_not_give(maths: Path, tmp_path: Path) -> None:
    forger = Forger(maths, tmp_path / "forged")
    number, row = next(
        (n, json.loads(line)) for n, line in enumerate(forger.lines(TEST), 1) if b"print(6 * 7)" in line
    )
    assert row["steps"][0]["observation"] == "42\n"

    def change(row: dict[str, Any]) -> None:
        row["steps"][0]["observation"] = "43\n"
        row["segments"][1]["messages"][-1]["content"] = "43\n"

    forger.replace_row(number, change)
    found = refusals(verify(forger.folder, level=2))
    assert (found[0].place, found[0].code) == (f"{TEST}:{number}", "replay")
    assert "Python call 1" in found[0].message


HOSTILE = {
    "exits": (
        "import os\nclass Harness(BaseHarness):\n    def messages(self, view):\n        os._exit(0)",
        "replay",
    ),
    "no_class": ("harness = 1", "harness"),
    "syntax": ("class Harness(:", "harness"),
    "hangs": (
        "class Harness(BaseHarness):\n    def messages(self, view):\n        while True:\n            pass",
        "time",
    ),
    "other_prompt": ("class Harness(BaseHarness):\n    SYSTEM_PROMPT = 'Play e2e4.'", "replay"),
    "plays_itself": (
        "class Harness(BaseHarness):\n    def read(self, reply, view):\n        return Act('e2e4')",
        "replay",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_harness_put_there_afterwards_is_refused_and_ends(name: str, plain: Path, tmp_path: Path) -> None:
    source, code = HOSTILE[name]
    forger = Forger(plain, tmp_path / "forged")
    old = json.loads((forger.folder / "manifest.json").read_text())["harness_id"]
    swap_harness(forger, old, f"from whale_bench.harness import Act, BaseHarness\n{source}\n")
    report = verify(forger.folder, level=2, seconds=6.0)
    assert report.level == 1
    assert code in {finding.code for finding in refusals(report)}, report.findings
    assert len(refusals(report)) <= 40


def test_a_machine_without_walls_gives_no_verdict(
    chess: Path, maths: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither for a harness nor for programs; level 1 needs no walls."""
    monkeypatch.setattr(Sandbox, "missing", staticmethod(lambda _hello: "open: files"))
    assert verify(chess, level=1).level == 1
    for bundle, what in ((chess, "a harness file"), (maths, "model-written Python")):
        with pytest.raises(CannotVerifyError, match=f"{what} would not be confined here"):
            verify(bundle, level=2)
    monkeypatch.setattr(sys, "argv", ["whale-leaderboard", "verify", str(chess), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (CANNOT_VERIFY, "")
    assert "cannot verify here: a harness file would not be confined" in said.err


def test_a_machine_without_the_data_gives_no_verdict(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise DataError("no such file")

    monkeypatch.setattr(runs, "load_examples", lost)
    runs.split_ids.cache_clear()
    with pytest.raises(CannotVerifyError, match="chess_puzzles/mini/test is not on this machine"):
        verify(plain, level=1)


def test_a_harness_that_knows_the_test_is_refused(plain: Path, tmp_path: Path) -> None:
    row = json.loads((plain / TEST).read_bytes().splitlines()[40])
    board = re.findall(r"FEN: (\S+)", row["opening"])[0]
    for number, known in enumerate((row["example_id"], board)):
        line = f"KNOWN = {{{known!r}: 'e2e4'}}"
        forger = Forger(plain, tmp_path / f"forged{number}")
        old = json.loads((forger.folder / "manifest.json").read_text())["harness_id"]
        swap_harness(forger, old, f"{HARNESS}\n{line}\n")
        codes = {finding.code for finding in refusals(verify(forger.folder, level=2))}
        assert "example_text" in codes


def test_rollouts_of_two_examples_exchanged_with_all_their_names(plain: Path, tmp_path: Path) -> None:
    """Text, digests and keys all fit; the prompts and seeds are the other example's."""
    forger = Forger(plain, tmp_path / "forged")
    lines = [json.loads(line) for line in forger.lines(TEST)]
    one, other = lines[0], lines[8]
    for a, b, number in ((one, other, 1), (other, one, 9)):
        names = {name: a[name] for name in ("key", "example_id", "sample", "groups")}
        new = b | names | {name: a.get(name, 0.0) for name in ("seconds", "env_seconds")}
        forger.replace_row(number, setting(**new))
    forger.claim_what_follows()
    found = refusals(verify(forger.folder, level=2))
    assert found, "an exchange went through"
    assert found[0].place in (f"{TEST}:1", TEST, "test.jsonl:1")


HINT = """\
import re

from whale_bench.harness import BaseHarness


class Harness(BaseHarness):
    TABLE = {table!r}

    def messages(self, view):
        told = super().messages(view)
        board = re.search(r"FEN: (\\S+)", told[-1]["content"])
        hint = self.TABLE.get(sum(map(ord, board[1])) if board else 0)
        if hint is None:
            return told
        move = "".join(map(chr, hint))
        return [*told[:-1], told[-1] | {{"content": told[-1]["content"] + f"\\n[{{move}}]"}}]
"""


def test_an_encoded_table_that_tells_the_model_wakes_the_parrots(made: Path, tmp_path: Path) -> None:
    """No text, no answer stands in it, and every rollout replays: what it does shows it."""
    from board_fakes import ABOUT, Honest, a_move, evaluated
    from whale_leaderboard.pack import pack

    from whale_envs import load_examples, make_env

    examples = load_examples("chess_puzzles", "mini", "test")
    env = make_env("chess_puzzles", examples=examples)
    table = {}
    for example in examples:
        opening = env.reset(options={"example_id": example.id})[0]
        board = re.findall(r"FEN: (\S+)", opening)[0]
        table[sum(map(ord, board))] = tuple(map(ord, example.gold[0]))
    (tmp_path / "hint.py").write_text(HINT.format(table=table))
    run = evaluated(tmp_path / "run", "chess_puzzles", Honest(a_move), harness=str(tmp_path / "hint.py"))
    pack(run, tmp_path / "bundle", ABOUT)
    found = refusals(verify(tmp_path / "bundle", level=2))
    assert [finding.code for finding in found] == ["parrot"], found
    assert "tells the model what to say" in found[0].message
