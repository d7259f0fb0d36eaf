"""Text of results: cut between characters, never too long, always saying what happened."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.sandbox import STATUSES, TEXT_CHARS, RunResult
from whale_envs.sandbox.results import cut, stream_text
from whale_envs.sandbox.warm.wire import STREAM, Kept

texts = st.text(alphabet="aé中🦈\n", max_size=300)


@given(texts, st.integers(60, 200), st.integers(0, 10**6))
def test_a_cut_is_short_and_counts_what_is_missing(text: str, most: int, left_out: int) -> None:
    short = cut(text, most, left_out=left_out)
    assert len(short) <= most
    if len(text) <= most:
        assert short == text
        return
    before, rest = short.split("\n… [")
    number, after = rest.split(" characters left out] …\n")
    assert text.startswith(before)
    assert text.endswith(after)
    assert len(before) + len(after) + int(number.replace(",", "")) == len(text) + left_out


@given(st.lists(texts.map(str.encode), max_size=20), st.integers(1, 40))
def test_a_kept_stream_is_whole_or_cut_between_characters(chunks: list[bytes], half: int) -> None:
    kept = Kept(half)
    for chunk in chunks:
        kept.add(chunk)
    packed, whole = kept.pack(), b"".join(chunks)
    head, characters, dropped, tail = STREAM.unpack_from(packed)
    front, back = packed[STREAM.size : STREAM.size + head], packed[STREAM.size + head :]
    assert len(back) == tail
    assert len(front) <= half
    assert len(back) <= 2 * half
    assert whole.startswith(front)
    assert whole.endswith(back)
    assert len(front) + dropped + len(back) == len(whole) == kept.total
    if dropped:
        assert len(front.decode()) + characters + len(back.decode()) == len(whole.decode())
    text, missing = stream_text(front, characters, dropped, back)
    assert missing == 0 or dropped
    assert text.encode().decode() == text


@given(st.binary(max_size=400), st.integers(1, 50))
def test_a_kept_stream_takes_any_bytes(data: bytes, half: int) -> None:
    kept = Kept(half)
    for at in range(0, len(data), 7):
        kept.add(data[at : at + 7])
    packed = kept.pack()
    head, characters, dropped, _ = STREAM.unpack_from(packed)
    body = packed[STREAM.size :]
    stream_text(body[:head], characters, dropped, body[head:])[0].encode()


@given(texts, texts, st.sampled_from(STATUSES), st.integers(0, 10**9), st.booleans())
def test_every_result_reads_as_text_and_goes_through_json(
    out: str, err: str, status: str, left_out: int, lost: bool
) -> None:
    result = RunResult(
        status=status, stdout=out * 20, stderr=err * 20, left_out=left_out, session_lost=lost, limit="5 s"
    )
    assert 0 < len(result.text) <= TEXT_CHARS
    assert msgspec.json.decode(msgspec.json.encode(result), type=RunResult) == result


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RunResult(status="finished"), "(finished; nothing was printed)"),
        (RunResult(status="finished", stdout="a\n", stderr="b\n"), "a\nb\n"),
        (
            RunResult(status="timed_out", limit="5 s"),
            "(stopped at the time limit of 5 s; nothing was printed)",
        ),
        (RunResult(status="crashed", signal=11, stdout="x"), "x\n(ended by signal 11)"),
        (
            RunResult(status="output_limit", limit="4 MB", stdout="x"),
            "x\n(stopped for printing more than 4 MB)",
        ),
    ],
)
def test_fixed_texts(result: RunResult, text: str) -> None:
    assert result.text == text
