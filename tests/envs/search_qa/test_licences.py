"""The licences of the data: named in the wheel's metadata, in NOTICE, in the docs and beside the data."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from whale_envs.search_qa.examples import FOLDERS, data_folder, embedded_rows

ROOT = Path(__file__).parents[3]
LICENCES = {
    "wikipedia": ("CC-BY-SA-4.0", "CC BY-SA 4.0", "Wikipedia's"),
    "natural_questions": ("CC-BY-SA-3.0", "CC BY-SA 3.0", "Natural Questions"),
    "factbook": ("CC0-1.0", "public domain", "World Factbook"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_names_every_licence_and_holds_every_notice(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    metadata = message_from_string(wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    expression = metadata["License-Expression"].split(" AND ")
    assert expression == ["Apache-2.0", "CC0-1.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0"]
    for folder, (identifier, _, _) in LICENCES.items():
        notice = f"whale_envs/data/search_qa/{folder}/LICENSE.md"
        assert identifier in expression
        assert notice in metadata.get_all("License-File", [])
        assert any(name.endswith(f".dist-info/licenses/{notice}") for name in names)
        assert {notice, notice.replace("LICENSE.md", "questions.jsonl")} <= set(names)
    assert "whale_envs/data/search_qa/wikipedia/passages.jsonl.gz" in names
    assert not [name for name in names if "drafts" in name]


def test_the_data_is_small_enough_to_ship(wheel: zipfile.ZipFile) -> None:
    sizes = [i.compress_size for i in wheel.infolist() if i.filename.startswith("whale_envs/data/search_qa/")]
    assert sum(sizes) < 3_000_000


@pytest.mark.parametrize("folder", [folder for folders in FOLDERS.values() for folder in folders])
def test_the_notice_beside_the_data_says_what_it_is(folder: str) -> None:
    identifier, words, source = LICENCES[folder]
    text = (data_folder(folder) / "LICENSE.md").read_text()
    for said in (identifier, words.split()[-1], source, "Source:", "Changes:", "creativecommons.org"):
        assert said in text, said
    page = (ROOT / "docs" / "search_qa_data.md").read_text()
    start = f"| `{folder}` |"
    row = next(line for line in page.splitlines() if line.startswith(start) and "questions" in line)
    assert words in row
    assert f"{len(embedded_rows(folder)):,} questions" in row
    notice = (ROOT / "NOTICE").read_text()
    entry = notice[notice.index(f"whale_envs/data/search_qa/{folder}/") :].split("\n\n")[0]
    assert f"{len(embedded_rows(folder)):,} questions" in " ".join(entry.split())


def test_the_configuration_without_sharealike_has_none() -> None:
    assert FOLDERS["factbook"] == ("factbook",)
    text = (data_folder("factbook") / "LICENSE.md").read_text()
    assert "ShareAlike" not in text
    assert "BY-SA" not in text


def test_the_metadata_that_is_installed_from_is_the_wheels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", part) for part in project["license"].split(" AND "))
    assert "whale_envs/data/search_qa/*/LICENSE.md" in project["license-files"]
