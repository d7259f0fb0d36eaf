"""Archives and folders as hostile as they come: bounded, and nothing outside is touched."""

import gzip
import io
import random
import resource
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whale_leaderboard.archive import open_bundle, write_archive
from whale_leaderboard.report import Refusal
from whale_leaderboard.verify import verify

from whale_envs import UsageError

MB = 2**20


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as out:
        for info, content in members:
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, **fields: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def refusal(path: Path, most_bytes: int = 100 * MB) -> tuple[str, str]:
    with pytest.raises(Refusal) as caught, open_bundle(path, most_bytes=most_bytes):
        pass
    return caught.value.finding.code, caught.value.finding.place


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (info("../manifest.json"), "unknown_file"),
        (info("/etc/passwd"), "unknown_file"),
        (info("runs/0/../../../etc/passwd"), "unknown_file"),
        (info("runs/0/run.toml", tarfile.SYMTYPE, linkname="/etc/passwd"), "not_a_file"),
        (info("manifest.json", tarfile.LNKTYPE, linkname="/etc/passwd"), "not_a_file"),
        (info("manifest.json", tarfile.CHRTYPE), "not_a_file"),
        (info("manifest.json", tarfile.FIFOTYPE), "not_a_file"),
        (info("runs", tarfile.DIRTYPE), "not_a_file"),
        (info("runs/100/run.toml"), "unknown_file"),
        (info("harnesses/mine.py"), "unknown_file"),
        (info("manifest.json\n"), "unknown_file"),
        (info("./test.jsonl"), "unknown_file"),
        (info("TEST.jsonl"), "unknown_file"),
        (info("test.JSONL"), "unknown_file"),
        (info("runs/../test.jsonl"), "unknown_file"),
        (info("runs//0/run.toml"), "unknown_file"),
        (info("runs/00/run.toml"), "unknown_file"),
        (info(f"harnesses/{'A' * 64}.py"), "unknown_file"),
        (info("test.jsonl "), "unknown_file"),
        (info("t\u0435st.jsonl"), "unknown_file"),
    ],
    ids=lambda v: getattr(v, "name", v),
)
def test_only_regular_files_of_known_names(member: tarfile.TarInfo, code: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "bad.tar.gz", (info("test.jsonl"), b""), (member, b""))
    assert refusal(path) == (code, member.name.replace("\n", "\\n"))


def test_a_name_twice(tmp_path: Path) -> None:
    path = archive(tmp_path / "bad.tar.gz", (info("test.jsonl"), b"a\n"), (info("test.jsonl"), b"b\n"))
    assert refusal(path) == ("duplicate_file", "test.jsonl")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.tar.gz", (info("test.jsonl"), b"\0" * (200 * MB)))
    assert path.stat().st_size < 2 * MB
    assert refusal(path) == ("too_large", "test.jsonl")


def test_a_claim_of_ten_gigabytes_is_refused_at_its_header(tmp_path: Path) -> None:
    header = info("test.jsonl")
    header.size = 10 * 2**30
    (tmp_path / "claim.tar.gz").write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)))
    assert refusal(tmp_path / "claim.tar.gz") == ("too_large", "test.jsonl")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_header_that_asks_for_a_gigabyte_gets_no_memory(kind: bytes, tmp_path: Path) -> None:
    header = info("x", kind)
    header.size = 2**30
    path = tmp_path / "header.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(256):
            out.write(b"\0" * MB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refusal(path, most_bytes=2**40)[0] == "archive"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_headers_without_end_are_no_recursion_without_end(tmp_path: Path) -> None:
    header = info("x", tarfile.XHDTYPE)
    header.size = 0
    data = header.tobuf(tarfile.USTAR_FORMAT) * 5_000
    (tmp_path / "deep.tar.gz").write_bytes(gzip.compress(data))
    assert refusal(tmp_path / "deep.tar.gz")[0] == "archive"


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "no.tar.gz").write_bytes(b"hello")
    assert refusal(tmp_path / "no.tar.gz")[0] == "archive"
    with pytest.raises(UsageError, match="not there"), open_bundle(tmp_path / "nothing"):
        pass
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="a link"), open_bundle(tmp_path / "link"):
        pass


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    write_archive(plain, tmp_path / "good.tar.gz")
    assert verify(tmp_path / "good.tar.gz", level=1).level == 1
    refusal(archive(tmp_path / "bad.tar.gz", (info("test.jsonl"), b""), (info("x"), b"")))
    assert not list(scratch.iterdir())


def test_a_file_that_grew_a_special_neighbour(plain: Path, tmp_path: Path) -> None:
    import os
    import shutil

    shutil.copytree(plain, tmp_path / "fifo")
    (tmp_path / "fifo" / "manifest.json").unlink()
    os.mkfifo(tmp_path / "fifo" / "manifest.json")
    assert refusal(tmp_path / "fifo") == ("not_a_file", "manifest.json")


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_damage_anywhere_in_an_archive_is_a_finding_or_harmless(seed: int, shelf: Path) -> None:
    draw = random.Random(seed)
    data = bytearray((shelf / "good.tar.gz").read_bytes())
    for _ in range(draw.randrange(1, 4)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if draw.random() < 0.3:
        del data[draw.randrange(len(data)) :]
    (shelf / "damaged.tar.gz").write_bytes(data)
    report = verify(shelf / "damaged.tar.gz", level=1)
    assert report.level == 0 or report.passed


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_changed_byte_in_a_file_is_always_refused(seed: int, shelf: Path) -> None:
    draw = random.Random(seed)
    path = draw.choice(sorted(p for p in (shelf / "folder").rglob("*") if p.is_file()))
    data = path.read_bytes()
    at = draw.randrange(len(data))
    path.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
    try:
        report = verify(shelf / "folder", level=1)
        assert path.name == "manifest.json" or not report.passed
    finally:
        path.write_bytes(data)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, plain: Path) -> Path:
    import shutil

    made = tmp_path_factory.mktemp("shelf")
    write_archive(plain, made / "good.tar.gz")
    shutil.copytree(plain, made / "folder")
    return made
