r"""`whale/MathPython-v0`: competition problems with a Python interpreter and a boxed answer.

Description: the agent may run Python programs, and ends the episode with a response whose last
`\boxed{…}` holds the answer.

Action Space: `UnicodeText`. A call of the tool, {"tool": "code_interpreter", "arguments": {"code":
…}}; anything else is the final response.

Observation Space: `UnicodeText`. At first the problem; after a call what the program printed, at most
4,096 characters, or in brackets why there was no call to make.

Starting State: a problem of the split.

Reward: 1 if the boxed answer is right, else 0.

Episode End: terminated by the final response, with the verdict's reason ("correct", "wrong_answer",
"no_answer", "too_complex"); truncated as "max_turns" by a tool call on the last turn.

Information: beside the common keys, `tool_calls`, `tool_errors` (calls that could not be made, failed
or were ended) and `format_ok` (1 once a boxed answer was given).

Arguments: tier, split, profile, max_turns (2, at most 16); keep_state (0), 1 keeps variables between
the calls of an episode; interpreter, what runs the programs (`tools.open_interpreter`), else one that
this process shares.

Version History: v0, first version.

Not covered: problems with figures, proofs.
"""

import asyncio
import secrets
from random import Random
from typing import Any, ClassVar

from whale_envs.core import ExampleSet, TextEnv, ToolCall, Transition, Verdict, parse_action
from whale_envs.math_python.examples import MathProblem, load_examples
from whale_envs.math_python.tools import TIMEOUT_S, Interpreter, read_call
from whale_envs.math_python.verifier import averify, raise_for_error

ENV_ID = "whale/MathPython-v0"

RETRY_SECONDS = (1.0, 4.0)
"""Pauses before a response is verified again after the verifier's helper failed."""


class MathPythonEnv(TextEnv):
    """See the module's docstring."""

    domain = "math_python"
    DEFAULTS: ClassVar = {"max_turns": 2, "keep_state": 0}
    BOUNDS: ClassVar = {"max_turns": (1, 16), "keep_state": (0, 1)}

    def __init__(self, *, interpreter: Interpreter | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._interpreter = interpreter
        self._tool_calls = self._tool_errors = 0
        self._final: Verdict | None = None
        self._session: str | None = None

    @classmethod
    def _load(cls, tier: str, split: str) -> ExampleSet[MathProblem]:
        return load_examples(tier, split)

    def _begin(self, example: MathProblem) -> str:
        self._tool_calls = self._tool_errors = 0
        self._final = None
        self._forget()
        self._session = secrets.token_hex(16) if self.options["keep_state"] else None
        return example.problem

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done = await super().astep(action)
        if done[2] or done[3]:
            self._forget()
        return done

    def truncate(self, stop_condition: str) -> Verdict:
        verdict = super().truncate(stop_condition)
        self._forget()
        return verdict

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        """Ends the interpreter's session of this episode."""
        session, self._session = self._session, None
        if session is not None and self._interpreter is not None:
            self._interpreter.forget_session(session)

    async def _advance(self, action: str) -> Transition:
        call = parse_action(action)
        if isinstance(call, ToolCall):
            return await self._call(call)
        self._final = await self._verified(call.text)
        return Transition("", "answered", "The answer was taken.", self._final.reason)

    async def _verified(self, text: str) -> Verdict:
        """The verdict; asked for again, later, where the helper failed: a crowd may have been at it."""
        for pause in RETRY_SECONDS:
            verdict = await averify(self._example, text, profile=self.profile)
            if verdict.reason != "verifier_error":
                return verdict
            await asyncio.sleep(pause)
        return raise_for_error(await averify(self._example, text, profile=self.profile))

    async def _call(self, call: ToolCall) -> Transition:
        self._tool_calls += 1
        code, problem = read_call(call)
        if problem:
            self._tool_errors += 1
            return Transition(problem, "bad_call", problem)
        if self._interpreter is None:
            from whale_envs.sandbox import shared

            self._interpreter = shared()
        result = await self._interpreter.run(code, session=self._session, timeout_s=TIMEOUT_S)
        self._tool_errors += not result.ok
        event = "ok" if result.ok else "error" if result.status == "finished" else result.status
        said = "The program ran." if result.ok else f"The program did not run well: {event}."
        return Transition(result.text, event, said)

    def _judge(self, stop_condition: str) -> Verdict:
        return self._final or Verdict(reward=0.0, reason=stop_condition, standard=0.0, paper=0.0)

    def _counters(self) -> dict[str, float]:
        return {
            "tool_calls": self._tool_calls,
            "tool_errors": self._tool_errors,
            "format_ok": int(self._final is not None and self._final.format_ok),
        }

    def oracle_action(self) -> str:
        return rf"\boxed{{{self._example.gold}}}"

    def random_action(self, rng: Random) -> str:
        return rf"\boxed{{{rng.randrange(1000)}}}"
