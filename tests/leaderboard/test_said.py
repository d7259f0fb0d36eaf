"""What verification prints is one short line of visible text for each finding, whatever a bundle holds."""

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from board_fakes import Forger
from hypothesis import given, settings
from hypothesis import strategies as st
from whale_leaderboard.cli import main
from whale_leaderboard.report import MOST_SAID, Finding, Refusal, Report
from whale_leaderboard.verify import verify

from whale_bench.view.hidden import HIDDEN, is_visible, plain

STATIC = Path(__file__).resolve().parent.parent.parent / "whale_bench" / "view" / "static"
EVIL = "\x1b]0;owned\x07\x1b[2J\n::error::owned\r\n\u202e\u2028\x85\t\udce9" + "x" * 2_000

texts = (
    st.text(max_size=40) | st.text("\x1b\n\r\t\u202e\u2028\x85\u2800\ud800:a", max_size=40) | st.just(EVIL)
)


@settings(max_examples=40)
@given(texts, texts)
def test_a_finding_is_one_short_line_that_can_be_written(place: str, message: str) -> None:
    found = Finding(level=1, code="line", place=place, message=message, refuses=True)
    for said in (found.place, found.message):
        assert len(said) <= MOST_SAID
        assert not HIDDEN.search(said)
        assert len(said.splitlines()) <= 1
        assert "\t" not in said
    str(found).encode()
    assert msgspec.json.decode(msgspec.json.encode(found), type=Finding) == found  # and it stays as it is
    refusal = Refusal(1, "line", place, message)
    assert (refusal.finding, str(refusal)) == (found, found.message)


def test_what_is_short_and_visible_is_said_as_it_is() -> None:
    said = "its prompt differs at character 3: 'Ω, עברית' here"
    assert Finding(level=1, code="x", place="test.jsonl:3", message=said, refuses=True).message == said


def named_on_disk(folder: Path, name: bytes) -> None:
    (folder / os.fsdecode(name)).touch()


def packed(folder: Path, name: str) -> Path:
    """A .tar.gz whose first member has this name."""
    path = folder.with_name("evil.tar.gz")
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def listed(folder: Path, name: str) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    path.write_text(json.dumps(manifest))


def with_a_field(folder: Path, name: str) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {name: 1}))


EVIL_NAME = EVIL[:40]
WRITTEN = EVIL_NAME.replace("\udce9", "")
"""What JSON can hold of it."""
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file name that is not UTF-8": (lambda f: named_on_disk(f, b"caf\xe9\xff"), "unknown_file"),
    "a file name of escapes": (lambda f: named_on_disk(f, b"\x1b[31m\n::error::owned"), "unknown_file"),
    "a link of escapes": (lambda f: (f / "\x1b[2J\udcff").symlink_to("/etc"), "not_a_file"),
    "a member that is not UTF-8": (lambda f: packed(f, "caf\udce9"), "unknown_file"),
    "a member of escapes": (lambda f: packed(f, EVIL_NAME), "unknown_file"),
    "a member with a long name": (lambda f: packed(f, "x" * 5_000), "unknown_file"),
    "a listed name of escapes": (lambda f: listed(f, WRITTEN), "missing_file"),
    "a listed name without end": (lambda f: listed(f, "x" * 100_000), "missing_file"),
    "a field of escapes": (lambda f: with_a_field(f, WRITTEN), "manifest"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_command_refuses_names_and_prints_nothing_that_they_order(
    name: str,
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, code = CASES[name]
    forger = Forger(plain, tmp_path / "forged")
    made = change(forger.folder)
    bundle = made if isinstance(made, Path) else forger.folder
    for words in ([], ["--json"], ["--out", str(tmp_path / "report.json")]):
        command = ["whale-leaderboard", "verify", str(bundle), "--level", "1", *words]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr().out
        assert ended.value.code == 1
        assert not HIDDEN.search(out)
        assert not any(line.startswith("::") for line in out.splitlines())
        assert max(map(len, out.splitlines())) < 2 * MOST_SAID + 100
    (found,) = verify(bundle, level=1).findings
    assert found.code == code
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    assert report.findings == (found,)


def test_a_report_as_json_says_the_same_without_a_hidden_character(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal takes orders from more characters than JSON escapes."""
    name = "a\x9b31m\u202e\U000e0041\x1bb"
    forger = Forger(plain, tmp_path / "forged")
    forger.manifest(lambda m: m["about"].update(agent=name))
    command = ["whale-leaderboard", "verify", str(forger.folder), "--level", "1", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert not HIDDEN.search(out)
    assert msgspec.json.decode(out, type=Report) == verify(forger.folder, level=1)
    assert json.loads(out)["manifest"]["about"]["agent"] == name


def test_the_page_and_the_program_spell_out_the_same_characters() -> None:
    """But surrogates and the two that are none, which no text of a browser's has."""
    script = (STATIC / "dom.js").read_text()
    ranges = script.partition("const HIDDEN =")[2].partition("/[")[2].partition("]/gu")[0].replace("]|[", "")
    of_page = re.compile(f"[{re.sub(r'u{([0-9a-f]+)}', lambda code: 'U' + code[1].zfill(8), ranges)}]")
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0xFFFE), *range(0x10000, 0x110000))))
    assert of_page.findall(every) == HIDDEN.findall(every)
    for char in "\u200b\u200c\u200d\u034f\u115f\u1160\u3164\u2800\ufe00\ufe0f\U000e0100\U000e01ef\u202e":
        assert plain(char) == f"‹U+{ord(char):04X}›"
        assert not is_visible(f" {char}\n")
