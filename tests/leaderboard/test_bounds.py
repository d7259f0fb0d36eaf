"""What a bundle's author chooses bounds neither the memory nor the time of its verification."""

import json
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from board_fakes import Forger
from hypothesis import given, settings
from hypothesis import strategies as st
from whale_leaderboard.archive import open_bundle
from whale_leaderboard.layout import MOST_HARNESS, MOST_ROLLOUT
from whale_leaderboard.rows import MOST_WEIGHT, _weight, read_rollout
from whale_leaderboard.suspicions import suspicions
from whale_leaderboard.textdiff import first_difference, unified
from whale_leaderboard.verify import verify
from whale_leaderboard.wellformed import check

MB = 2**20
FILLS = (
    b"{},",
    b"[],",
    b"[[]],",
    b"1000,",
    b"0.5,",
    b'"ab",',
    b'"",',
    b'{"a":1},',
    b'{"abcd":{}},',
    b"null,",
)


def peak(function: Any, *args: Any) -> int:
    """Most bytes that a call had at once."""
    tracemalloc.start()
    try:
        function(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fill", FILLS)
def test_a_line_takes_no_more_memory_than_it_is_weighed_with(fill: bytes) -> None:
    line = b'{"tools":[' + fill * (MB // 8 // len(fill)) + b"0]}"
    assert peak(msgspec.json.decode, line) <= _weight(line)


@pytest.mark.parametrize("fill", FILLS[:3])
def test_a_line_that_grows_when_it_is_decoded_is_refused_before(fill: bytes) -> None:
    line = b'{"segments":[' + fill * ((MOST_ROLLOUT - 100) // len(fill)) + b"0]}"

    def read() -> None:
        with pytest.raises(ValueError, match="bytes of memory"):
            read_rollout(line)

    assert peak(read) < MB


def test_the_longest_line_of_plain_text_is_light() -> None:
    text = "A move of the knight, said the model; and so on. " * (MOST_ROLLOUT // 50)
    assert _weight(json.dumps({"text": text}).encode()) < MOST_WEIGHT


def test_test_rollouts_beyond_those_of_a_submission_stop_at_the_first(plain: Path, tmp_path: Path) -> None:
    forger = Forger(plain, tmp_path / "x")
    events, records = forger.lines("runs/0/ledger.jsonl"), forger.lines("runs/0/charged.jsonl")
    key = json.loads(records[-1])["key"]
    pair = [event for event in events if json.loads(event)["key"] == key]
    for number in range(2_000):
        new = f"{key}{number}"
        events += [msgspec.json.encode(json.loads(event) | {"key": new}) for event in pair]
        records.append(msgspec.json.encode(json.loads(records[767]) | {"key": new}))
    forger.write("runs/0/ledger.jsonl", events)
    forger.write("runs/0/charged.jsonl", records)
    forger.rechain()
    forger.seal()
    found = [f for f in verify(forger.folder, level=1).findings if f.refuses]
    assert [(f.code, f.place) for f in found] == [("completeness", "runs/0/charged.jsonl:769")]


def test_a_harness_that_nothing_was_played_with_is_refused(plain: Path, tmp_path: Path) -> None:
    import hashlib

    forger = Forger(plain, tmp_path / "x")
    source = b"x = 1\n" * 1_000
    name = f"harnesses/{hashlib.sha256(source).hexdigest()}.py"
    (forger.folder / name).write_bytes(source)
    forger.seal()
    found = [f for f in verify(forger.folder, level=1).findings if f.refuses]
    assert [(f.code, f.place) for f in found] == [("harness", name)]


def test_reading_harnesses_ends_with_the_time_limit(plain: Path) -> None:
    with open_bundle(plain) as bundle:
        found = list(suspicions(check(bundle, []), seconds=-1.0))
    assert [(f.code, f.refuses) for f in found] == [("time", True)]


def patched(old: str, diff: list[str]) -> list[str]:
    """What a unified diff makes of a text."""
    lines, made, at = old.splitlines(), [], 0
    for line in diff[2:]:
        if place := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            start = int(place[1]) - (place[2] != "0")
            made += lines[at:start]
            at = start
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert lines[at] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            at += 1
    return made + lines[at:]


@settings(max_examples=150)
@given(
    a=st.lists(st.sampled_from("abc"), max_size=14),
    b=st.lists(st.sampled_from("abc"), max_size=14),
    ends=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    context=st.integers(0, 3),
)
def test_a_diff_makes_the_new_text_of_the_old(
    a: list[str], b: list[str], ends: tuple[int, int], context: int
) -> None:
    head, tail = ["h"] * ends[0], ["t"] * ends[1]
    old, new = ("\n".join([*head, *middle, *tail]) for middle in (a, b))
    diff = unified(old, new, "old", "new", context=context)
    assert diff is not None
    assert patched(old, diff) == new.splitlines()
    assert bool(diff) == (old.splitlines() != new.splitlines())


@pytest.mark.parametrize("kinds", [1, 2, 150, 1_000, 20_000])
def test_no_two_texts_take_a_diff_long(kinds: int) -> None:
    lines = [f"{number * 7919 % kinds}" for number in range(MOST_HARNESS // 7)]
    old, new = "\n".join(lines), "\n".join(["new", *lines[::-1], "end"])
    began = time.process_time()
    diff = unified(old, new, "old", "new")
    assert time.process_time() - began < 30.0
    if diff is None:
        assert "differ from line 1 on" in first_difference(old, new)
    else:
        assert patched(old, diff) == new.splitlines()
