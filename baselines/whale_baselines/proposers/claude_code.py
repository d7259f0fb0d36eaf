"""`claude-code`: the Claude Code command line as proposer, through `claude-agent-sdk` (0.2.189 or later).

    proposer = ClaudeCode({"model": "claude-opus-4-7", "effort": "max"})

It gets the tools of `Workspace` and no other: the built-in ones (shell, files, web, agents) are switched
off, forbidden by name, and refused by a hook that is asked before every call, whatever its settings say.
Settings, plugins, skills and servers of the user's are not loaded, and it runs in the session's workspace.

Money is what the command line says it cost.

Not covered: a sandbox around the process itself, which is Anthropic's program and is trusted as such.
"""

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from whale_baselines.proposers.briefing import instructions, situation
from whale_baselines.proposers.models import AnthropicSettings, settings_of
from whale_baselines.proposers.tools import TOOLS, Tool
from whale_baselines.proposers.workspace import Workspace
from whale_baselines.search.proposal import Brief, Session
from whale_bench.ledger import Charge
from whale_envs.errors import UsageError

SERVER = "harness"
"""Name of our tools' server, as the command line shows it."""

BUILT_IN = (
    *(
        "Agent",
        "Task",
        "Bash",
        "BashOutput",
        "KillShell",
        "Read",
        "Write",
        "Edit",
        "MultiEdit",
        "NotebookEdit",
    ),
    *("Glob", "Grep", "LS", "WebFetch", "WebSearch", "Skill", "SlashCommand", "TodoWrite", "ExitPlanMode"),
)
"""Tools of the command line's own, forbidden by name besides being switched off."""


class ClaudeCode:
    """See the module's docstring.

    Args:
        settings: of `AnthropicSettings`, without `base_url`.

    Raises:
        UsageError: the SDK is not installed, or a setting is unknown or cannot be.
    """

    name = "claude-code"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings_of(AnthropicSettings, self.name, settings)
        if self._settings.base_url is not None:
            raise UsageError(
                "the proposer claude-code has no base_url; the command line decides where it asks"
            )
        if importlib.util.find_spec("claude_agent_sdk") is None:
            raise UsageError("claude_agent_sdk is missing: pip install claude-agent-sdk")

    async def propose(self, brief: Brief) -> Session:
        sdk = importlib.import_module("claude_agent_sdk")
        space = Workspace(brief, tool_bytes=self._settings.tool_bytes)
        began, log, problems = time.perf_counter(), list[dict[str, Any]](), list[str]()
        options = self.options(sdk, brief, space, log)
        usage: dict[str, Any] | None = None
        money: float | None = None
        turns = 0
        try:
            async with asyncio.timeout(self._settings.seconds):
                async for message in sdk.query(prompt=situation(brief), options=options):
                    log.append(
                        {"event": "message", "kind": type(message).__name__, "text": str(message)[:4000]}
                    )
                    if type(message).__name__ == "ResultMessage":
                        usage, money, turns = message.usage, message.total_cost_usd, message.num_turns
                        if message.is_error:
                            problems.append(f"the command line failed: {message.subtype}")
        except TimeoutError:
            problems.append(f"ended after {self._settings.seconds:g} s")
        except Exception as error:  # noqa: BLE001 - the SDK raises plain ones; slots that are written count
            problems.append(f"the command line failed: {type(error).__name__}: {error}"[:400])
        if space.empty:
            written = len(space.slots) - len(space.empty)
            problems.append(f"{written} of {len(space.slots)} slots were written")
        if space.outside:
            problems.append(f"{space.outside} calls that lead outside of the slots and folders were refused")
        charge = _charge(usage, money, turns, time.perf_counter() - began)
        return Session(space.proposals(), charge, "; ".join(problems), transcript=(*log, *space.log))

    def options(self, sdk: Any, brief: Brief, space: Workspace, log: list[dict[str, Any]]) -> Any:
        """The SDK's options of a session: what it may use is all in here."""
        allowed = [f"mcp__{SERVER}__{tool.name}" for tool in TOOLS]

        async def before(call: dict[str, Any], call_id: str | None, context: Any) -> dict[str, Any]:  # noqa: ARG001
            name = str(call.get("tool_name"))
            if name in allowed:
                return {}
            space.outside += 1
            log.append({"event": "tool", "tool": name[:80], "refused": "not among the tools", "bytes": 0})
            said = {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": f"only {', '.join(allowed)} may be used",
            }
            return {"hookSpecificOutput": said}

        made = [
            sdk.tool(tool.name, tool.description, tool.parameters)(_handler(space, tool)) for tool in TOOLS
        ]
        return sdk.ClaudeAgentOptions(
            system_prompt=instructions(brief),
            model=self._settings.model,
            effort=self._settings.effort or None,
            max_turns=self._settings.turns,
            cwd=str(brief.workspace),
            tools=[],
            allowed_tools=allowed,
            disallowed_tools=list(BUILT_IN),
            mcp_servers={SERVER: sdk.create_sdk_mcp_server(SERVER, tools=made)},
            strict_mcp_config=True,
            permission_mode="dontAsk",
            setting_sources=[],
            skills=[],
            hooks={"PreToolUse": [sdk.HookMatcher(hooks=[before], on_failure="block")]},
        )


def _handler(space: Workspace, tool: Tool) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": await space.call(tool.name, arguments)}]}

    return handle


def _charge(usage: dict[str, Any] | None, money: float | None, turns: int, seconds: float) -> Charge:
    """What the command line says that it used; unmetered and unpriced where it says nothing."""
    told = usage or {}
    prompt = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return Charge(
        seconds=seconds,
        proposer_calls=turns,
        proposer_prompt_tokens=sum(int(told.get(name) or 0) for name in prompt),
        proposer_sampled_tokens=int(told.get("output_tokens") or 0),
        proposer_micro_usd=0 if money is None else round(money * 1_000_000),
        unpriced=money is None,
        unmetered_tokens=usage is None,
    )
