"""The tools of a proposing model reach the archive and the slots, and nothing else (O-39)."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proposer_fakes import harness, make_brief
from whale_baselines.proposers.tools import TOOLS
from whale_baselines.proposers.workspace import RESULT_BYTES, SOURCE_BYTES, Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(make_brief(tmp_path))


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """All that is under a folder, links as links."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = (
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder"
        )
    return found


def write(path: str, source: str = "", **more: Any) -> dict[str, Any]:
    return {"path": path, "source": source or harness(1), "hypothesis": "h", "changes": "c", **more}


OUTSIDE = [
    "../scores.json",
    "../../scores.json",
    "workspace/../archive/h0.py",
    "workspace/../../scores.json",
    "/etc/passwd",
    "~/x",
    "archive/h0.py",
    "archive/new.py",
    "workspace/slot_4.py",
    "workspace/notes.md",
    "workspace/sub/slot_1.py",
    "workspace",
    "workspace/",
    "",
    ".",
    "workspace/slot_1.py\0",
    "workspace//slot_1.py/..",
    "scores.json",
]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_a_write_outside_the_slots_is_refused_and_changes_nothing(tmp_path: Path, path: str) -> None:
    (tmp_path / "scores.json").write_text("{}")
    space = Workspace(make_brief(tmp_path))
    before = snapshot(tmp_path)
    assert (await space.call("write", write(path))).startswith("[")
    assert snapshot(tmp_path) == before
    assert space.proposals() == ()
    assert space.log[-1]["refused"]


@settings(max_examples=60)
@given(
    parts=st.lists(
        st.sampled_from(
            ["..", ".", "archive", "workspace", "slot_1.py", "h0.py", "/", "~", "\0", "link", "é"]
        ),
        max_size=5,
    )
)
async def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("space")
    (folder / "secret").write_text("the answer is 7")
    brief = make_brief(folder)
    (brief.archive / "link").symlink_to(folder)
    (brief.workspace / "link").symlink_to("../secret")
    space, path = Workspace(brief), "/".join(parts)
    for tool, arguments in (
        ("list", {"path": path}),
        ("read", {"path": path}),
        ("search", {"path": path, "text": "answer"}),
    ):
        assert "the answer" not in await space.call(tool, arguments)
        assert "secret" not in await space.call(tool, arguments) or "secret" in path
    await space.call("write", write(path))
    assert (folder / "secret").read_text() == "the answer is 7"
    assert {path.name for path in folder.iterdir()} == {"secret", "archive", "workspace"}


async def test_links_lead_nowhere(tmp_path: Path) -> None:
    brief = make_brief(tmp_path)
    (tmp_path / "secret").write_text("the answer is 7")
    (brief.archive / "inner").mkdir()
    for name, target in {
        "file": "../secret",
        "folder": "..",
        "loop": "loop",
        "inner/deep": "../../secret",
    }.items():
        (brief.archive / name).symlink_to(target)
    (brief.workspace / "slot_1.py").symlink_to(tmp_path / "secret")
    os.mkfifo(brief.archive / "pipe")
    space = Workspace(brief)
    for path in (
        "archive/file",
        "archive/folder/secret",
        "archive/loop",
        "archive/inner/deep",
        "archive/pipe",
        "workspace/slot_1.py",
    ):
        assert (await space.call("read", {"path": path})).startswith("["), path
    assert await space.call("search", {"text": "answer is 7"}) == "[nothing found]"
    assert "secret" not in await space.call("list", {"path": "archive"})
    assert (await space.call("write", write("workspace/slot_1.py"))).startswith("wrote")
    assert (tmp_path / "secret").read_text() == "the answer is 7"
    assert (brief.workspace / "slot_1.py").read_text() == harness(1)
    assert not (brief.workspace / "slot_1.py").is_symlink()


async def test_reading_lists_reads_parts_and_searches(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "archive" / "log.txt").write_text("".join(f"line {n}\n" for n in range(1, 1001)))
    assert await space.call("list", {}) == "archive/\nworkspace/"
    assert "h0.py  " in await space.call("list", {"path": "archive"})
    assert await space.call("list", {"path": "workspace"}) == "[empty]"
    assert await space.call("read", {"path": "archive/log.txt", "first_line": 999}) == "line 999\nline 1000"
    assert await space.call("read", {"path": "archive/log.txt", "lines": 1}) == "line 1\n[more from line 2]"
    assert await space.call("search", {"text": "LINE 77"}) == "\n".join(
        ["archive/log.txt:77: line 77", *(f"archive/log.txt:{n}: line {n}" for n in range(770, 780))]
    )
    assert (await space.call("search", {"text": "line"})).endswith("[stopped here; search a smaller part]")
    assert space.outside == 0


async def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    brief = make_brief(tmp_path)
    (brief.archive / "wide").write_text("x" * 10 * RESULT_BYTES)
    (brief.archive / "bytes").write_bytes(bytes(range(256)) * 10)
    space = Workspace(brief, tool_bytes=2 * RESULT_BYTES)
    assert len(await space.call("read", {"path": "archive/wide"})) < RESULT_BYTES + 100
    assert not (await space.call("read", {"path": "archive/bytes"})).startswith("[")
    assert "read all that it may" in await space.call("read", {"path": "archive/wide"})
    assert (await space.call("write", write("workspace/slot_1.py"))).startswith("wrote")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", {"command": "ls"}),
        ("", {}),
        ("read", {}),
        ("read", {"path": 7}),
        ("read", {"path": "archive/h0.py", "mode": "w"}),
        ("read", {"path": "archive/h0.py", "lines": 0}),
        ("read", {"path": "archive/h0.py", "lines": True}),
        ("read", {"path": "archive"}),
        ("read", {"path": "archive/none"}),
        ("read", "{"),
        ("read", "[]"),
        ("read", None),
        ("read", "[" * 100_000),
        ("search", {"text": ""}),
        ("search", {"text": ["a"]}),
        ("list", {"path": "archive/h0.py"}),
        ("write", {"path": "workspace/slot_1.py"}),
        ("write", write("workspace/slot_1.py", " ")),
        ("write", write("workspace/slot_1.py", "x" * (SOURCE_BYTES + 1))),
        ("write", write("workspace/slot_1.py", "'\ud800'")),
        ("write", {**write("workspace/slot_1.py"), "source": 1}),
        ("run_check", {"path": "workspace/slot_1.py"}),
        ("run_check", {"path": "archive/h0.py"}),
    ],
)
async def test_a_call_that_makes_no_sense_is_answered(space: Workspace, name: str, arguments: Any) -> None:
    assert (await space.call(name, arguments)).startswith("[")
    assert space.log[-1]["refused"]
    assert space.proposals() == ()


async def test_a_second_write_replaces_and_the_same_text_is_written_once(
    space: Workspace, tmp_path: Path
) -> None:
    assert (await space.call("write", write("workspace/slot_1.py", harness(1)))).startswith("wrote")
    assert (await space.call("write", write("slot_1.py", harness(2)))).startswith("replaced")
    assert "stands in workspace/slot_1.py" in await space.call(
        "write", write("workspace/slot_2.py", harness(2))
    )
    known = (tmp_path / "archive" / "h0.py").read_text()
    assert "this is h0 of the archive" in await space.call("write", write("workspace/slot_2.py", known))
    [one] = space.proposals()
    assert one.source == harness(2)
    assert space.empty == ["workspace/slot_2.py", "workspace/slot_3.py"]


async def test_what_stands_with_a_candidate_is_made_sense_of(space: Workspace) -> None:
    odd = write(
        "workspace/slot_2.py", parents=["h0", "nobody", 3], components="one", hypothesis=["no", "text"]
    )
    await space.call("write", odd)
    await space.call("write", write("workspace/slot_1.py", harness(2), components=["a", "b\ud800"]))
    first, second = space.proposals()
    assert (second.parents, second.components, second.hypothesis) == (("id-h0",), ("one",), "")
    assert first.parents == ("id-h0",)
    assert first.components == ("a", "b?")


async def test_run_check_says_what_is_wrong_with_a_candidate(tmp_path: Path) -> None:
    space = Workspace(make_brief(tmp_path, prompt_only=True))
    await space.call(
        "write", write("workspace/slot_1.py", harness(1).replace("MAX_TURNS = 1", "MAX_TURNS = 'x'"))
    )
    found = await space.call("run_check", {"path": "workspace/slot_1.py"})
    assert found.startswith("slot_1.py:1: not in the parent: ")
    assert "slot_1.py:" in found
    assert str(tmp_path) not in found
    space = Workspace(make_brief(tmp_path))
    await space.call("write", write("workspace/slot_1.py"))
    (tmp_path / "workspace" / "slot_1.py").write_text("broken(")
    assert await space.call("run_check", {"path": "workspace/slot_1.py"}) == "no findings"


def test_the_tools_have_schemas() -> None:
    for tool in TOOLS:
        function = tool.schema["function"]
        assert set(function["parameters"]["required"]) <= function["parameters"]["properties"].keys()
