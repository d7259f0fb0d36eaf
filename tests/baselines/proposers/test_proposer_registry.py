"""Proposers by name; recorded sessions; Claude Code's confinement, with a fake of its SDK."""

import importlib.util
import re
import sys
import types
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from proposer_fakes import harness, make_brief
from whale_baselines.proposers.claude_code import BUILT_IN, ClaudeCode
from whale_baselines.proposers.library import library
from whale_baselines.proposers.mutate import Mutate
from whale_baselines.proposers.registry import PROPOSERS, open_proposer
from whale_baselines.proposers.replay import Replay, record_session

from whale_bench.ledger import Charge
from whale_envs.errors import UnknownNameError, UsageError

ROOT = Path(__file__).resolve().parents[3]


def test_a_proposer_is_found_by_name() -> None:
    assert open_proposer("mutate", examples=[("2+2?", "\\boxed{4}")]).name == "mutate"
    with pytest.raises(UnknownNameError, match=r"mutat.*did you mean 'mutate'.*anthropic.*replay"):
        open_proposer("mutat")
    with pytest.raises(UsageError, match="no setting 'model'; valid: none"):
        open_proposer("mutate", model="m")
    with pytest.raises(UsageError, match="needs path"):
        open_proposer("replay")


async def test_a_recorded_session_is_replayed_at_no_cost(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    brief = make_brief(tmp_path)
    session = await Mutate().propose(brief)
    record_session(path, brief, session)
    path.write_bytes(path.read_bytes() + b'{"domain": "math_pyt')  # a killed process
    again = await open_proposer("replay", path=str(path)).propose(brief)
    assert (again.proposals, again.transcript, again.charge) == (
        session.proposals,
        session.transcript,
        Charge(),
    )
    missing = await Replay(path).propose(make_brief(tmp_path, iteration=9))
    assert missing.proposals == ()
    assert "no session for phase 1, iteration 9" in missing.problem


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Replay(tmp_path / "none")
    (tmp_path / "odd.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(UsageError, match=r"odd\.jsonl:1"):
        Replay(tmp_path / "odd.jsonl")


@pytest.mark.skipif(importlib.util.find_spec("claude_agent_sdk") is not None, reason="the SDK is installed")
def test_without_its_sdk_claude_code_says_what_to_install() -> None:
    with pytest.raises(UsageError, match="pip install claude-agent-sdk"):
        open_proposer("claude-code")


# --- a fake of the SDK: it stands for the command line, and shows only what we allow and refuse ---------


@dataclass
class FakeOptions:
    """Takes what `ClaudeAgentOptions` of claude-agent-sdk 0.2.189 takes, as far as we use it."""

    system_prompt: Any = None
    model: Any = None
    effort: Any = None
    max_turns: Any = None
    cwd: Any = None
    tools: Any = None
    allowed_tools: list[str] = field(default_factory=list)
    disallowed_tools: list[str] = field(default_factory=list)
    mcp_servers: dict[str, Any] = field(default_factory=dict)
    strict_mcp_config: bool = False
    permission_mode: Any = None
    setting_sources: Any = None
    skills: Any = None
    hooks: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResultMessage:
    subtype: str = "success"
    is_error: bool = False
    num_turns: int = 4
    total_cost_usd: float | None = 0.25
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"input_tokens": 1, "cache_read_input_tokens": 20, "output_tokens": 3}
    )


class FakeSdk(types.ModuleType):
    """Calls tools as the command line would: the hook first, then the tool if it may."""

    class ClaudeSDKError(Exception):
        pass

    def __init__(self, calls: list[tuple[str, dict[str, Any]]], end: Any) -> None:
        super().__init__("claude_agent_sdk")
        self.__spec__ = importlib.util.spec_from_loader("claude_agent_sdk", None)
        self.calls, self.end, self.refused = calls, end, list[str]()
        self.options: Any = None

    ClaudeAgentOptions = FakeOptions

    @staticmethod
    def HookMatcher(hooks: list[Any], on_failure: str) -> list[Any]:  # noqa: N802
        assert on_failure == "block"
        return hooks

    @staticmethod
    def tool(name: str, description: str, schema: Any) -> Any:
        return lambda handler: (name, handler)

    @staticmethod
    def create_sdk_mcp_server(name: str, tools: list[Any]) -> dict[str, Any]:
        return {f"mcp__{name}__{tool}": handler for tool, handler in tools}

    async def query(self, *, prompt: str, options: FakeOptions) -> AsyncIterator[Any]:
        self.options = options
        [[hook]] = options.hooks["PreToolUse"]
        for name, arguments in self.calls:
            said = await hook({"tool_name": name, "tool_input": arguments}, "id", {})
            if said.get("hookSpecificOutput", {}).get("permissionDecision") == "deny":
                self.refused.append(name)
            else:
                yield await options.mcp_servers["harness"][name](arguments)
        if isinstance(self.end, Exception):
            raise self.end
        yield self.end


def written(number: int, path: str = "") -> tuple[str, dict[str, Any]]:
    path = path or f"workspace/slot_{number}.py"
    return "mcp__harness__write", {"path": path, "source": harness(number), "hypothesis": "h", "changes": "c"}


async def run_fake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[Any], end: Any
) -> tuple[Any, FakeSdk]:
    sdk = FakeSdk(calls, end)
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", sdk)
    return await ClaudeCode({"model": "claude-opus-4-7"}).propose(make_brief(tmp_path)), sdk


async def test_with_a_fake_sdk_claude_code_may_use_our_tools_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forbidden = [
        (name, {"command": "cat /etc/passwd"}) for name in (*BUILT_IN, "mcp__other__write", "SomethingNew")
    ]
    calls = [*forbidden, written(1), written(2, "../../scores.json"), written(2), written(3)]
    session, sdk = await run_fake(monkeypatch, tmp_path, calls, ResultMessage())
    assert [one.source for one in session.proposals] == [harness(1), harness(2), harness(3)]
    assert sdk.refused == [name for name, _ in forbidden]
    assert f"{len(forbidden) + 1} calls that lead outside" in session.problem
    assert sdk.options.tools == []
    assert sdk.options.setting_sources == []
    assert sdk.options.strict_mcp_config
    assert sdk.options.permission_mode == "dontAsk"
    assert set(sdk.options.disallowed_tools) == set(BUILT_IN)
    assert sdk.options.allowed_tools == [
        f"mcp__harness__{n}" for n in ("list", "read", "search", "write", "run_check")
    ]
    assert sdk.options.cwd == str(tmp_path / "workspace")
    charge = session.charge
    assert (charge.proposer_prompt_tokens, charge.proposer_sampled_tokens, charge.proposer_micro_usd) == (
        21,
        3,
        250_000,
    )


async def test_with_a_fake_sdk_a_command_line_that_fails_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session, _ = await run_fake(
        monkeypatch, tmp_path, [written(1)], FakeSdk.ClaudeSDKError("the process ended")
    )
    assert [one.source for one in session.proposals] == [harness(1)]
    assert "the process ended" in session.problem
    assert "1 of 3 slots" in session.problem
    assert session.charge.unpriced
    assert session.charge.unmetered_tokens
    session, _ = await run_fake(
        monkeypatch, tmp_path, [], ResultMessage("error_max_turns", True, total_cost_usd=None)
    )
    assert "error_max_turns" in session.problem
    assert session.charge.unpriced


def test_every_mechanism_and_proposer_is_documented() -> None:
    page = (ROOT / "docs" / "proposers.md").read_text()
    for domain in ("math_python", "search_qa", "chess_puzzles"):
        section = re.split(r"(?m)^##", page.partition(f"### `{domain}`\n")[2])[0]
        rows = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", section)
        assert rows == [(one.name, one.summary) for one in library(domain).values()]
    for name, line in PROPOSERS.items():
        assert f"| `{name}` | {line} |" in page
