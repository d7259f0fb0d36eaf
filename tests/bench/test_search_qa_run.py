"""SearchQA through whole runs: what stands in run.toml and the ledger, judges, closed book, servers."""

import asyncio
import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from bench_fakes import run
from chat_server import serve

from whale_bench import EvalPlan
from whale_bench.evaluation import evaluate
from whale_bench.ledger import Ledger
from whale_bench.models.base import Request
from whale_bench.models.scripted import ScriptedModel
from whale_bench.plan import check_same
from whale_bench.store import ADDRESSES, RunStore
from whale_envs import InfrastructureError, UsageError, load_examples
from whale_envs.retrieval import Hit, http
from whale_envs.retrieval.server import RetrieverServer
from whale_envs.search_qa.retrievers import open_retriever

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def index_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(index_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all these tests: the index is built once."""
    monkeypatch.setenv("WHALE_CACHE", str(index_cache))


def plan(**changes: Any) -> EvalPlan:
    return EvalPlan(**{"domain": "search_qa", "model": "scripted/oracle", "n": 6, "k": 2, **changes})


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "run.toml").read_text())


def searching(answer: str = "unknown") -> ScriptedModel:
    """Searches for the question, then answers."""

    def reply(request: Request) -> str:
        said = [message.content for message in request.messages if message.role == "user"]
        question = said[0].removeprefix("Question: ").partition("\n")[0]
        return f"<search>{question}</search>" if len(said) == 1 else f"<answer>{answer}</answer>"

    return ScriptedModel(reply)


@pytest.mark.parametrize("tier", ["mini", "factbook"])
def test_the_oracle_answers_everything_under_both_profiles(tier: str, tmp_path: Path) -> None:
    summary = run(plan(tier=tier, n=None, k=1), tmp_path / "run")
    assert summary.score is not None
    assert summary.other_score is not None
    assert (summary.score.mean, summary.other_score.mean) == (1.0, 1.0)
    assert {group.lower_bound for group in summary.groups["kind"].values()} == {1.0}


def test_what_searched_stands_in_run_toml_and_is_checked_on_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(plan(), folder)
    found = settings(folder)
    assert found["retriever_id"].startswith("sha256:")
    assert "retriever" not in found
    assert run(None, folder).complete


def test_retrieval_and_extraction_are_in_the_summary(tmp_path: Path) -> None:
    summary = run(plan(n=40, k=1), tmp_path / "run", backend=searching())
    assert 0.2 < summary.metrics["retrieval_accuracy"] < 0.8
    assert summary.metrics["extraction_accuracy"] == 0.0
    assert summary.metrics["searches"] == 1.0


@pytest.mark.parametrize("name", ["pyserini"])
def test_another_retriever_plays_the_same_examples_with_the_same_outcome(name: str, tmp_path: Path) -> None:
    runs = {}
    for retriever in (None, name):
        folder = tmp_path / str(retriever)
        summary = run(plan(n=40, k=1, retriever=retriever), folder, backend=searching())
        lines = [json.loads(line) for line in (folder / "rollouts-0000.jsonl").read_text().splitlines()]
        runs[retriever] = {line["key"]: line["steps"] for line in lines}
        assert summary.complete
    assert settings(tmp_path / "None")["examples_id"] == settings(tmp_path / name)["examples_id"]
    assert settings(tmp_path / "None")["retriever_id"] != settings(tmp_path / name)["retriever_id"]
    assert runs[None] == runs[name]


def test_a_closed_book_run_searches_nothing_and_says_so(tmp_path: Path) -> None:
    summary = run(plan(closed_book=True), tmp_path / "run", backend=searching())
    assert settings(tmp_path / "run")["closed_book"] is True
    assert "retriever_id" not in settings(tmp_path / "run")
    assert summary.metrics["searches"] == 0.0
    assert "retrieval_accuracy" not in summary.metrics


def test_a_judge_that_is_nowhere_is_named_after_its_own_option(tmp_path: Path) -> None:
    judged = plan(judge="openai/judge", judge_url="http://127.0.0.1:1/v1")
    with pytest.raises(InfrastructureError, match="is --judge-url right"):
        run(judged, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"retriever": "bm52"}, "unknown retriever 'bm52'; did you mean 'bm25'"),
        ({"retriever": "http"}, "takes --retriever-url"),
        ({"retriever_url": "http://127.0.0.1:1"}, "goes with --retriever http, not with bm25"),
        ({"closed_book": True, "retriever": "bm25"}, "searches nothing: leave out --retriever"),
        (
            {"tier": "factbook", "retriever": "dense"},
            "index build factbook FOLDER --retriever dense",
        ),
        ({"index": "/nowhere"}, "/nowhere"),
        ({"judge_url": "http://127.0.0.1:1"}, "--judge-url is the server of --judge"),
        ({"judge": "scripted/oracle"}, "needs a model of its own"),
        (
            {"python_url": "http://127.0.0.1:1"},
            "has no tool code_interpreter: leave out --python-url",
        ),
        (
            {"domain": "chess_puzzles", "retriever": "bm25"},
            "chess_puzzles has no tool search: leave",
        ),
        ({"domain": "math_python", "judge": "openai/x"}, "math_python has no tool search: leave out --judge"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        run(plan(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_retrieval_server_that_cannot_be_reached_stops_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE_S", 0.001)
    with pytest.raises(InfrastructureError, match="could not be reached"):
        run(plan(retriever="http", retriever_url="http://127.0.0.1:9"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("body", [b"<html>busy</html>", b'{"result": []}', b'{"result": [[{"score": "x"}]]}'])
async def test_a_retrieval_server_that_answers_garbage_leaves_rollouts_missing(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE_S", 0.001)

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=body, status=200 if request.path == "/retrieve" else 404)

    server = RawTestServer(answer)
    async with server:
        down = plan(retriever="http", retriever_url=str(server.make_url("/")), n=2, k=1)
        summary = await evaluate(down, tmp_path / "run", backend=searching())
    assert (summary.complete, summary.score, summary.rollouts, len(summary.missing)) == (False, None, 0, 2)
    assert len(summary.problems) == 1


async def test_a_served_retriever_gives_what_the_embedded_one_gives(tmp_path: Path) -> None:
    steps = []
    async with RetrieverServer(open_retriever("bm25")) as server:
        for changes in ({}, {"retriever": "http", "retriever_url": server.url}):
            folder = tmp_path / f"run-{len(steps)}"
            await evaluate(plan(n=20, k=1, **changes), folder, backend=searching())
            lines = [json.loads(line) for line in (folder / "rollouts-0000.jsonl").read_text().splitlines()]
            steps.append({line["key"]: line["steps"] for line in lines})
    assert steps[0] == steps[1]
    assert settings(folder)["retriever_id"].startswith("remote:http://127.0.0.1:")


class Served:
    """Finds nothing, and says that it is of this index."""

    name = "served"

    def __init__(self, index: str) -> None:
        self.retriever_id = index

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[] for _ in queries]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


@pytest.mark.parametrize(
    ("began", "now", "same"),
    [
        ("sha256:e0", "sha256:e0", True),
        ("sha256:e0", "sha256:e1", False),
        ("sha256:e0", "", False),
        ("", "sha256:e0", False),
        ("", "", False),
    ],
)
async def test_a_resume_goes_to_another_server_of_the_same_index_only(
    began: str, now: str, same: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    async with RetrieverServer(Served(began)) as first:
        asked = plan(retriever="http", retriever_url=first.url, n=2, k=2)
        await evaluate(asked, folder, backend=searching())
    part = folder / "rollouts-0000.jsonl"
    part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:2]))
    before = (folder / "run.toml").read_bytes()
    async with RetrieverServer(Served(now)) as second:
        resumed = evaluate(None, folder, backend=searching(), retriever_url=second.url)
        if same:
            assert (await resumed).complete
            assert settings(folder)["retriever_url"] == second.url
            assert (await evaluate(None, folder, backend=searching())).complete  # from the folder alone
        else:
            said = "has to say at /info what it serves" if not now else "its retriever_id is"
            with pytest.raises(UsageError, match=said):
                await resumed
            assert (folder / "run.toml").read_bytes() == before


async def test_the_judge_and_the_interpreter_may_move(tmp_path: Path) -> None:
    def moved(**now: str) -> None:
        folder = tmp_path / "-".join(now)
        store = RunStore.open(folder)
        new = store.settings | now
        check_same(store.settings, new, folder)
        store.write_addresses(new)
        assert RunStore.open(folder).settings == new | {"settings_id": store.settings["settings_id"]}

    for name in ADDRESSES:
        RunStore.create(tmp_path / name, {name: "http://old"}, None)
        moved(**{name: "http://new"})


async def test_a_judge_decides_and_what_it_cost_is_in_the_ledger(tmp_path: Path) -> None:
    gold = {e.question: e.gold for e in load_examples("search_qa", "mini", "test")[:6]}

    def verdict(payload: dict[str, Any], _: int) -> str:
        fields = json.loads(payload["messages"][1]["content"])
        assert tuple(fields["reference_answers"]) == gold[fields["question"]]
        return "CORRECT" if fields["answer"] == "unknown" else "INCORRECT"

    async with serve(verdict) as server:
        judged = plan(judge="openai/judge", judge_url=server.url)
        summary = await evaluate(judged, tmp_path / "run", backend=searching())
    assert summary.score is not None
    assert (summary.score.mean, summary.metrics["exact_match"], summary.judge) == (1.0, 0.0, "openai/judge")
    assert len(server.requests) == 6  # the second sample's answer is known
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        charge = ledger.charged()["test"]
    assert (charge.judge_calls, charge.judge_prompt_tokens, charge.judge_sampled_tokens) == (6, 60, 12)
    assert charge.model_calls == 24


# --- commands -------------------------------------------------------------------------------------

CORPUS = [{"id": f"p{n}", "contents": f"Place {n}\nThe lake of place {n} is blue."} for n in range(30)]
CLI = [sys.executable, "-m", "whale_bench.cli"]


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_an_index_is_built_served_and_searched(tmp_path: Path) -> None:
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    for kind in ("bm25", "pyserini"):
        done = command("index", "build", "passages.jsonl", kind, "--retriever", kind, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{kind}: {kind} index of passages.jsonl\n"), done.stderr
        again = command("index", "build", "passages.jsonl", kind, "--retriever", kind, cwd=tmp_path)
        assert again.returncode == 2
        assert again.stderr.startswith(f"whale-bench: {kind}")
    server = subprocess.Popen(
        [*CLI, "serve-retriever", "--index", "bm25", "--port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    retrievers = {
        "bm25": open_retriever("bm25", index=str(tmp_path / "bm25")),
        "pyserini": open_retriever("pyserini", index=str(tmp_path / "pyserini")),
        "http": open_retriever("http", url=url),
    }

    async def found(retriever: Any) -> list[str]:
        async with retriever:
            (hits,) = await retriever.search(["lake of place 17"], 3)
        return [hit.passage.id for hit in hits]

    ids = {name: asyncio.run(found(retriever)) for name, retriever in retrievers.items()}
    assert ids["bm25"] == ids["pyserini"] == ids["http"]
    assert ids["bm25"][0] == "p17"
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "nowhere.jsonl", "x"], "unknown corpus, or JSONL file, 'nowhere.jsonl'"),
        (["build", "wiki-mini", "x", "--retriever", "bm52"], "unknown retriever with an index 'bm52'"),
        (["build", "wiki-mini", "x", "--encoder", "e5"], "--encoder goes with --retriever dense"),
        (["build", "wiki-mini", "x", "--retriever", "dense"], "--encoder goes with --retriever dense"),
    ],
)
def test_an_index_that_cannot_be_built_is_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    done = command("index", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert not (tmp_path / "x").exists()
