"""Agents of a few lines, in processes of their own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # bench_fakes and chat_server


@pytest.fixture
def python_agent(tmp_path: Path) -> Callable[..., str]:
    """Writes a Python file; returns the name of the agent in it."""

    def write(source: str, name: str = "act", file: str = "mine.py") -> str:
        (tmp_path / file).write_text(source)
        return f"agent:{tmp_path / file}:{name}"

    return write


@pytest.fixture
def lines_agent(tmp_path: Path) -> Callable[..., str]:
    """Writes a program that says hello and runs `body` for each message `m`; returns the agent's name."""

    def write(body: str, *, hello: str = '"version": 1', top: str = "") -> str:
        lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
        (tmp_path / "mine.py").write_text(
            "import json, os, signal, sys\n"
            "def say(**fields):\n    print(json.dumps(fields), flush=True)\n"
            f'{top}\nprint(json.dumps({{"type": "hello", {hello}}}), flush=True)\n'
            f"for line in sys.stdin:\n    m = json.loads(line)\n{lines}\n"
        )
        return f"process:{sys.executable} {tmp_path / 'mine.py'}"

    return write
