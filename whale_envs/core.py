"""The contract of an environment, in one sitting.

    env = gymnasium.make("whale_envs:whale/ChessPuzzles-v0", tier="mini", split="dev")
    observation, info = env.reset(seed=0)                     # or options={"example_id": …}
    observation, reward, terminated, truncated, info = env.step("e2e4")

One episode is one `Example`. Observation and action are text. An action is either a tool call, a
JSON object `{"tool": name, "arguments": {…}}`, or the final response, which is read as the model
wrote it (`parse_action`). An action that cannot be used never raises: it is answered by an
observation and a typed `info["event"]`. Misuse by the caller raises (`whale_envs.errors`).

`info` holds at every step `example_id`, `turn` (actions taken), `event` and `feedback` (what became
of the last action, as a word and as a sentence) and the domain's counters; at the end also whatever
counters depend on the gold answer, and
`stop_condition`, `correct` and `verdict`. Before the end nothing in it depends on the gold answer
beyond what the observation says. Numbers are `InfoInt`/`InfoFloat`, which vectorised environments
keep as objects: an absent value reads None there, never 0.

Gold answers sit in `Example.gold`, on the caller's side; they are in no observation.

Not covered here: which examples exist (`whale_envs.suite`), and how a model is asked
(`whale_bench`).
"""

import abc
import asyncio
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

import gymnasium
import msgspec

from whale_envs.errors import DataError, EpisodeError, UnknownNameError, UsageError
from whale_envs.seeding import derive_seed
from whale_envs.spaces import UnicodeText

SPLITS = ("weight", "harness", "dev", "test")
"""Training of weights, search of harnesses, selection, and the final score. Mutually disjoint."""

PROFILES = ("standard", "paper")
"""How a verdict is reached: as a careful grader would, or exactly as published (arXiv 2609.00196)."""

Profile = Literal["standard", "paper"]


class InfoInt(int):
    """An integer in `info`; batched as an object, so that absent is None and not 0."""


class InfoFloat(float):
    """A float in `info`; batched as an object, so that absent is None and not 0.0."""


def content_id(domain: str, *parts: str) -> str:
    """The stable key of an example: its domain and 16 hex digits of its content's SHA-256."""
    return f"{domain}-{hashlib.sha256(chr(31).join(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One problem. Domains add their public fields; `gold` and `source` never leave the host."""

    id: str
    """Content hash, see `content_id`."""
    groups: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs to report by, e.g. ("rating_band", "1200-1399"); a name may recur."""
    gold: Any = field(repr=False)
    """What the verifier compares with; its type is the domain's."""
    source: str = field(default="", repr=False)
    """Where the row comes from, for people; may identify the answer, so never shown to a model."""


ExampleT = TypeVar("ExampleT", bound=Example)


class ExampleSet(Sequence[ExampleT], Generic[ExampleT]):
    """A fixed, ordered list of examples with distinct ids."""

    def __init__(self, examples: Iterable[ExampleT], *, name: str) -> None:
        self.name = name
        self._examples = tuple(examples)
        self._index = {e.id: i for i, e in enumerate(self._examples)}
        for i, example in enumerate(self._examples):
            if self._index[example.id] != i:
                raise DataError(f"example {example.id!r} stands twice in {name}")

    def by_id(self, example_id: object) -> ExampleT:
        """The example of that id.

        Raises:
            UnknownNameError: the id is not in this set.
        """
        index = self._index.get(example_id) if isinstance(example_id, str) else None
        if index is None:
            raise UnknownNameError(f"example id in {self.name}", example_id, self._index, most=3)
        return self._examples[index]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._index)

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, index: int) -> ExampleT: ...
    @overload
    def __getitem__(self, index: slice) -> "ExampleSet[ExampleT]": ...
    def __getitem__(self, index: int | slice) -> "ExampleT | ExampleSet[ExampleT]":
        if isinstance(index, slice):
            return ExampleSet(self._examples[index], name=self.name)
        return self._examples[index]

    def __repr__(self) -> str:
        return f"ExampleSet({self.name!r}, {len(self)} examples)"


class Verdict(msgspec.Struct, frozen=True):
    """A verifier's judgement of one finished episode."""

    reward: float
    """In [0, 1]: the verdict of the profile in force."""
    reason: str
    """Why, as one typed word, e.g. "solved" or "wrong_move"."""
    answer: str | None = None
    """What was read as the agent's answer, None where none was found."""
    format_ok: bool = False
    """Whether the answer came in a form that the domain can read."""
    standard: float | None = None
    """Reward under the standard profile; None where this episode cannot tell (diverged)."""
    paper: float | None = None
    """Reward under the paper profile; None where this episode cannot tell (diverged)."""

    @property
    def correct(self) -> bool:
        return self.reward > 0.5

    @property
    def diverged(self) -> bool:
        """True where the other profile would have gone another way than this episode did."""
        return self.standard is None or self.paper is None


class ToolCall(msgspec.Struct, frozen=True):
    tool: str
    arguments: dict[str, Any]


class FinalResponse(msgspec.Struct, frozen=True):
    text: str


def parse_action(action: str) -> ToolCall | FinalResponse:
    """Reads action text. Total: whatever is not a well-formed tool call is the final response.

    >>> parse_action('{"tool": "search", "arguments": {"query": "Oslo"}}')
    ToolCall(tool='search', arguments={'query': 'Oslo'})
    >>> parse_action("{Oslo}")
    FinalResponse(text='{Oslo}')
    """
    stripped = action.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            return FinalResponse(action)
        if isinstance(value, dict) and value.keys() == {"tool", "arguments"}:
            tool, arguments = value["tool"], value["arguments"]
            if isinstance(tool, str) and isinstance(arguments, dict):
                return ToolCall(tool, arguments)
    return FinalResponse(action)


class Transition(msgspec.Struct, frozen=True):
    """What one action did, as the domain reports it to the base class."""

    observation: str
    event: str
    """Typed word for the action's fate: "ok", or why not."""
    feedback: str
    """One sentence to the agent on the action's fate."""
    ended: str = ""
    """The stop condition where the task's own rules end the episode here, else empty."""


class TextEnv(gymnasium.Env[str, str], abc.ABC):
    """Base of the environments: episode bookkeeping here, the task in six small methods.

    A domain implements `_load`, `_begin`, `_advance`, `_judge` and `_counters`, and for the scripted
    models `oracle_action` and `random_action`.

    Args:
        tier: which data, see `whale_envs.suite`.
        split: one of `SPLITS`.
        profile: one of `PROFILES`; decides transitions and `Verdict.reward`.
        max_turns: actions before the episode is truncated; None is the published default.
        examples: serve these instead of a tier's split.
        budgets: the domain's integer options, each within `BOUNDS`.

    Raises:
        UsageError: an option is unknown or out of bounds.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium has it
    domain: ClassVar[str]
    BOUNDS: ClassVar[Mapping[str, tuple[int, int]]]
    """Inclusive bounds of each integer option, `max_turns` among them; a host clamps to these."""
    DEFAULTS: ClassVar[Mapping[str, int]]
    """The published value of each option in BOUNDS."""
    OBSERVATION_CHARS: ClassVar[int] = 16_384
    suspends: ClassVar[bool] = True
    """Whether the core may wait on an event loop; `step` is much cheaper where it never does."""

    def __init__(
        self,
        *,
        tier: str = "mini",
        split: str = "test",
        profile: Profile = "standard",
        max_turns: int | None = None,
        examples: Sequence[Any] | None = None,
        render_mode: str | None = None,
        **budgets: int,
    ) -> None:
        if profile not in PROFILES:
            raise UnknownNameError("profile", profile, PROFILES)
        if render_mode not in (None, "ansi"):
            raise UnknownNameError("render mode", render_mode, ["ansi"])
        if examples is None:
            examples = self._load(tier, split)
        elif not isinstance(examples, ExampleSet):
            examples = ExampleSet(examples, name="the given examples")
        if not len(examples):
            raise DataError(f"no examples in {getattr(examples, 'name', 'the given examples')}")
        self.examples: ExampleSet[Any] = examples
        self.profile: Profile = profile
        self.render_mode = render_mode
        asked = {**budgets, **({} if max_turns is None else {"max_turns": max_turns})}
        self.options = {**self.DEFAULTS, **{k: self._bounded(k, v) for k, v in asked.items()}}
        self.observation_space = UnicodeText(self.OBSERVATION_CHARS)
        self.action_space = UnicodeText()
        self._seed: int | None = None
        self._episode = 0
        self._example: Any = None
        self._turn = 0
        self._observation = ""
        self._verdict: Verdict | None = None

    # --- the task, implemented by each domain ------------------------------------------------

    @classmethod
    @abc.abstractmethod
    def _load(cls, tier: str, split: str) -> ExampleSet[Any]:
        """The examples of a tier's split."""

    @abc.abstractmethod
    def _begin(self, example: Any) -> str:
        """Sets the episode's state and returns the first observation."""

    @abc.abstractmethod
    async def _advance(self, action: str) -> Transition:
        """Applies one action."""

    @abc.abstractmethod
    def _judge(self, stop_condition: str) -> Verdict:
        """The verdict on the episode as it stands; pure."""

    @abc.abstractmethod
    def _counters(self) -> dict[str, float]:
        """The domain's behaviour metrics so far; nothing the agent may not know."""

    @abc.abstractmethod
    def oracle_action(self) -> str:
        """The gold action here. For fixtures on the caller's side; never offered to an agent."""

    @abc.abstractmethod
    def random_action(self, rng: Random) -> str:
        """A random well-formed action here, without use of the gold answer."""

    # --- Gymnasium ---------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode on `options["example_id"]`, or on an example drawn by seed.

        Raises:
            UnknownNameError: an option other than "example_id", or an id that is not served here.
        """
        options = dict(options or {})
        example_id = options.pop("example_id", None)
        if options:
            raise UnknownNameError("reset option", next(iter(options)), ["example_id"])
        example = None if example_id is None else self.examples.by_id(example_id)
        super().reset(seed=seed)  # after the checks: a refused reset changes nothing
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed is None:
            self._seed = secrets.randbits(62)
        if example is None:
            draw = derive_seed(f"env/{self.domain}", self._seed, self._episode)
            example = self.examples[draw % len(self.examples)]
        self._example = example
        self._episode += 1
        self._turn = 0
        self._verdict = None
        self._observation = self._begin(self._example)
        return self._observation, self._info("start", "")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs `astep` to completion, inside a running event loop or outside one."""
        if self.suspends:
            return _background.run(self.astep(action))
        core = self.astep(action)
        try:
            core.send(None)
        except StopIteration as done:
            result: tuple[str, float, bool, bool, dict[str, Any]] = done.value
            return result
        core.close()
        raise AssertionError(f"{type(self).__name__} says that it never suspends, but it did")

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gymnasium's five for one action.

        Raises:
            EpisodeError: no episode is running.
            UsageError: the action is not a string.
        """
        if self._example is None:
            raise EpisodeError("step was called before reset")
        if self._verdict is not None:
            raise EpisodeError(f"step was called after the end ({self._verdict.reason}); call reset first")
        if not isinstance(action, str):
            raise UsageError(f"an action is a string, got {type(action).__name__}: {action!r:.80}")
        done = await self._advance(action)
        self._turn += 1
        self._observation = done.observation
        terminated = bool(done.ended)
        truncated = not terminated and self._turn >= self.options["max_turns"]
        if terminated or truncated:
            self._verdict = self._judge(done.ended or "max_turns")
        reward = self._verdict.reward if self._verdict else 0.0
        return self._observation, reward, terminated, truncated, self._info(done.event, done.feedback)

    def truncate(self, stop_condition: str) -> Verdict:
        """Ends the episode from outside (token budget, harness stop) and returns its verdict.

        Raises:
            EpisodeError: no episode is running.
        """
        if self._example is None or self._verdict is not None:
            raise EpisodeError(f"truncate({stop_condition!r}) was called outside an episode")
        self._verdict = self._judge(stop_condition)
        return self._verdict

    def counters(self) -> dict[str, float]:
        """The domain's behaviour metrics of the episode so far.

        Raises:
            EpisodeError: there was no reset yet.
        """
        if self._example is None:
            raise EpisodeError("counters was called before reset")
        return {"turns": self._turn, **self._counters()}

    def render(self) -> Any:
        return self._observation if self.render_mode == "ansi" else None

    @property
    def max_turns(self) -> int:
        return self.options["max_turns"]

    # --- private -----------------------------------------------------------------------------

    def _bounded(self, name: str, value: int) -> int:
        if name not in self.BOUNDS:
            raise UnknownNameError(f"option of {self.domain}", name, sorted(self.BOUNDS))
        low, high = self.BOUNDS[name]
        if type(value) is not int or not low <= value <= high:
            raise UsageError(f"{name} must be an integer from {low} to {high}, got {value!r}")
        return value

    def _info(self, event: str, feedback: str) -> dict[str, Any]:
        info: dict[str, Any] = {
            "example_id": self._example.id,
            "turn": InfoInt(self._turn),
            "event": event,
            "feedback": feedback,
        }
        for name, value in self._counters().items():
            info[name] = InfoInt(value) if isinstance(value, int) else InfoFloat(value)
        if self._verdict is not None:
            info["stop_condition"] = self._verdict.reason
            info["correct"] = InfoInt(self._verdict.correct)
            info["verdict"] = self._verdict
        return info


_T = TypeVar("_T")


class _BackgroundLoop:
    """One event loop on a daemon thread, for synchronous callers of a core that may wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parents: list[asyncio.AbstractEventLoop | None] = []
        """Loops of the processes this one was forked from: to close one would disturb its owner."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def run(self, core: Coroutine[Any, Any, _T]) -> _T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True, name="whale-envs").start()
            loop = self._loop
        done = asyncio.run_coroutine_threadsafe(core, loop)
        try:
            return done.result()
        except BaseException:  # an interrupt of the waiting thread, too, ends the core
            done.cancel()
            raise

    def _forget(self) -> None:
        """In a forked child, where the thread does not run and the lock may be held for ever."""
        self._parents.append(self._loop)
        self._lock, self._loop = threading.Lock(), None


_background = _BackgroundLoop()
