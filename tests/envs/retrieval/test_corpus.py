"""Reading a corpus: the rows that are right, and what is said of those that are not."""

import gzip
from pathlib import Path

import pytest

from whale_envs.errors import DataError
from whale_envs.retrieval.base import Passage
from whale_envs.retrieval.corpus import read_corpus


def written(folder: Path, *lines: str, name: str = "corpus.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), newline="")
    return path


def test_both_kinds_of_row_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"id": "a", "contents": "Title\\nText"}',
        "",
        '{"id": 7, "title": "T", "text": "x\\u2028y", "topic": 3}',
        '{"id": "b", "title": "T", "text": "x", "description": "D"}',
    )
    expected = [Passage("a", "Title", "Text"), Passage("7", "T", "x\u2028y"), Passage("b", "T", "D\nx")]
    assert list(read_corpus(path)) == expected


def test_a_gzipped_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(b'{"id": "a", "contents": "x"}\n'))
    assert [p.id for p in read_corpus(path)] == ["a"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "truncated"),
        ("[1]", "object"),
        ('{"contents": "x"}', "`id`"),
        ('{"id": null, "contents": "x"}', "id"),
        ('{"id": "", "contents": "x"}', "the id is empty"),
        ('{"id": "first", "contents": "x"}', "'first' was used before"),
        ('{"id": "b", "contents": "  "}', "'b' is empty"),
        ('{"id": "b", "title": "T"}', "'b' is empty"),
        ('{"id": "b", "contents": 3}', "contents"),
        ('{"id": "b", "contents": "x", "text": "y"}', "one or the other"),
        ('{"id": "b", "contents": "\\ud800 and more"}', "surrogate"),
    ],
)
def test_a_wrong_row_is_named_with_file_and_line(tmp_path: Path, line: str, found: str) -> None:
    path = written(tmp_path, '{"id": "first", "contents": "x"}', "", line)
    with pytest.raises(DataError, match=found) as raised:
        list(read_corpus(path))
    assert f"{path}, line 3: " in str(raised.value)


def test_text_that_is_not_utf8_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "a", "contents": "\xff"}')
    with pytest.raises(DataError, match="line 1"):
        list(read_corpus(path))


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match="holds no passages"):
        list(read_corpus(path))


def test_missing_and_truncated_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        list(read_corpus(tmp_path / "none.jsonl"))
    packed = gzip.compress(b"".join(b'{"id": %d, "contents": "words %d"}\n' % (n, n * n) for n in range(999)))
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(packed[:-40])
    with pytest.raises(DataError, match="cannot be read after line"):
        list(read_corpus(path))
    path.write_bytes(packed[:100] + bytes(50) + packed[150:])
    with pytest.raises(DataError, match="line"):
        list(read_corpus(path))
