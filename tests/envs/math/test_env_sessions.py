"""With keep_state an episode has one session, which ends with the episode however that ends."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from whale_envs.errors import InfrastructureError
from whale_envs.math_python import env as module
from whale_envs.math_python import verifier
from whale_envs.math_python.env import MathPythonEnv
from whale_envs.math_python.tools import call_text
from whale_envs.sandbox import Sandbox

from ..sandbox.test_sandbox_hostile import only_spares_are_left  # noqa: TID252 - a neighbour


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One for all: each test shows that none of its sessions is left in it."""
    made = Sandbox()
    yield made
    made.close()


def close(env: MathPythonEnv) -> None:
    env.close()


def truncate(env: MathPythonEnv) -> None:
    env.truncate("response_budget")


def reset(env: MathPythonEnv) -> None:
    env.reset()


def answer(env: MathPythonEnv) -> None:
    assert env.step(env.oracle_action())[2]


def run_out_of_turns(env: MathPythonEnv) -> None:
    while not env.step(call_text("print(x)"))[3]:
        pass


@pytest.mark.parametrize("end", [close, truncate, reset, answer, run_out_of_turns])
def test_a_session_ends_with_its_episode(end, sandbox: Sandbox) -> None:
    env = MathPythonEnv(keep_state=1, max_turns=4, interpreter=sandbox)
    env.reset(seed=3)
    assert env.step(call_text("x = 41"))[4]["event"] == "ok"
    assert env.step(call_text("print(x + 1)"))[0] == "42\n"
    assert len(sandbox._sessions) == 1
    end(env)
    assert not sandbox._sessions
    asyncio.run(only_spares_are_left(sandbox))
    env.reset(seed=4)
    assert "NameError" in env.step(call_text("print(x)"))[0]
    env.close()
    env.close()
    asyncio.run(only_spares_are_left(sandbox))


def test_an_episode_without_state_has_no_session(sandbox: Sandbox) -> None:
    with_state: list[str | None] = []

    class Recorder:
        async def run(self, code, *, session=None, timeout_s=0.0):
            with_state.append(session)
            return await sandbox.run(code, session=session)

        def forget_session(self, session):
            raise AssertionError(session)

    env = MathPythonEnv(interpreter=Recorder())
    env.reset(seed=3)
    env.step(call_text("x = 1"))
    env.close()
    assert with_state == [None]


def test_many_episodes_in_threads_leave_no_session(sandbox: Sandbox) -> None:
    texts: list[str] = []

    def episode(number: int) -> None:
        env = MathPythonEnv(keep_state=1, interpreter=sandbox)
        env.reset(seed=number)
        env.step(call_text(f"x = {number}"))
        texts.append(env.step(call_text("print(x)"))[0])

    threads = [threading.Thread(target=episode, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == [f"{i}\n" for i in range(6)]
    assert not sandbox._sessions
    asyncio.run(only_spares_are_left(sandbox))


@pytest.mark.parametrize(("failures", "reward"), [(2, 1.0), (3, None)])
async def test_a_verifier_that_failed_is_asked_again_before_the_rollout_is_lost(
    monkeypatch: pytest.MonkeyPatch, failures: int, reward: float | None
) -> None:
    asked = 0

    async def averify(problem, text, *, profile):
        nonlocal asked
        asked += 1
        verdict = await verifier.averify(problem, text, profile=profile)
        return verifier._verdict("", text, "", "verifier_error", profile) if asked <= failures else verdict

    monkeypatch.setattr(module, "averify", averify)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.001, 0.001))
    env = MathPythonEnv(interpreter=Sandbox())
    env.reset()
    if reward is None:
        with pytest.raises(InfrastructureError):
            await env.astep(env.oracle_action())
    else:
        assert (await env.astep(env.oracle_action()))[1] == reward
    assert asked == 3
    env.close()
