"""What an evaluation is asked to do (`EvalPlan`), and how that stands in run.toml and comes back.

    settings = resolve(plan, task, agent)      # the plan with hashes, versions and the server's address
    plan = plan_of(settings, folder)           # and back, for a resume

Not covered: writing run.toml and telling whether it was edited, see `store.py`.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import msgspec

from whale_bench.agents.host import OwnAgent
from whale_bench.agents.names import is_own_agent
from whale_bench.engine import Agent, Task
from whale_bench.models.anthropic_api import ANTHROPIC_URL
from whale_bench.models.base import SAMPLING, Sampling
from whale_bench.models.registry import LOADED, TEMPLATED
from whale_envs import PROFILES, UnknownNameError, UsageError, __version__, get_domain
from whale_envs.core import Profile

OPENAI_URL = "https://api.openai.com/v1"
"""Where openai/NAME goes without --base-url and OPENAI_BASE_URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What to evaluate; the resolved form stands in run.toml."""

    domain: str
    model: str
    tier: str = "mini"
    split: str = "test"
    profile: Profile = "standard"
    n: int | None = None
    """Examples, the first of the split; None for all."""
    k: int = 8
    """Rollouts per example."""
    families: tuple[str, ...] | None = None
    """Only the examples of these families, in the split's order; None for all. `n` counts what is left."""
    seed: int = 0
    concurrency: int | None = None
    """Rollouts in flight; None for what suits the backend."""
    harness: str | None = None
    """A harness file; None for h0."""
    base_url: str | tuple[str, ...] | None = None
    """Server of openai/NAME, or several, or of anthropic/NAME; None for OPENAI_BASE_URL or
    ANTHROPIC_BASE_URL. Of an own agent, what its model calls go to."""
    tokenizer: str | None = None
    """Folder with the tokenizer of openai/NAME, to send prompts as token ids; None sends messages."""
    agent_seconds: float | None = None
    """Longest that an own agent may take for an action, and, where it is above 60, to start; None for 300."""
    max_tokens: int | None = None
    """Most sampled tokens per turn."""
    token_budget: int | None = None
    """Most sampled tokens per rollout; None for the published budget."""
    python_url: str | None = None
    """SandboxFusion server for the Python tool; None for a confined interpreter on this machine."""
    unsafe_python: bool = False
    """Run model-written code even where this machine cannot confine it."""
    retriever: str | None = None
    """What searches, see `whale_envs.search_qa.retrievers`; None for bm25."""
    index: str | None = None
    """Folder or name of the index to search; None for the tier's corpus."""
    retriever_url: str | None = None
    """Retrieval server of the retriever http."""
    closed_book: bool | None = None
    """Run no search: what the model knows by itself."""
    judge: str | None = None
    """Model that judges short answers, as KIND/NAME; None for exact match."""
    judge_url: str | None = None
    """Server of the judge openai/NAME; None for OPENAI_BASE_URL."""
    directory: str | None = None
    """Where relative paths in `model` and `judge` begin; None for the working directory."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    """Switches of the model's chat template by name, such as enable_thinking; of openai/NAME the server's."""

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise UnknownNameError("profile", self.profile, PROFILES)
        check_types(self)
        for name in ("n", "k", "concurrency", "max_tokens", "token_budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if self.families is not None and len(set(self.families)) != max(1, len(self.families)):
            raise UsageError(f"families must name some, each once, got {list(self.families)}")
        self._check_own()
        for name, low, high in (("temperature", 0.0, 100.0), ("top_p", 1e-6, 1.0), ("top_k", 0, 2**31)):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be from {low:g} to {high:g}, got {getattr(self, name)}")

        if self.chat_template_kwargs and not self.model.startswith(TEMPLATED):
            raise UsageError(
                f"--chat-template-kwargs goes with {', '.join(f'{kind}NAME' for kind in TEMPLATED)}, "
                f"got {self.model!r}"
            )

    def sampling(self) -> Sampling:
        """What every request of the agent asks for."""
        kwargs = tuple(sorted((self.chat_template_kwargs or {}).items()))
        return Sampling(self.temperature, self.top_p, self.top_k, kwargs)

    def _check_own(self) -> None:
        """An own agent has no harness beside it and samples by itself; others have no `agent_seconds`."""
        seconds = self.agent_seconds
        if seconds is not None and not 0 < seconds < 1e6:
            raise UsageError(f"agent_seconds must be more than 0 and less than 1e6, got {seconds}")
        if not is_own_agent(self.model):
            if seconds is not None:
                raise UsageError(f"--agent-seconds goes with an own agent, got {self.model!r}")
            return
        theirs = ("harness", "max_tokens", "token_budget", *SAMPLING)
        for field in fields(self):
            if field.name in theirs and getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise UsageError(
                    f"{self.model!r} is a whole agent, to which {option} means nothing: leave it out"
                )


def check_types(settings: Any, of: str = "") -> None:
    """Whether each field of a dataclass holds what its type says.

    Args:
        settings: an instance.
        of: what it is settings of, as " of a recipe".

    Raises:
        UsageError: names the first field that does not.
    """
    for name, kind in get_type_hints(type(settings)).items():
        try:
            msgspec.convert(getattr(settings, name), kind)
        except msgspec.ValidationError as error:
            raise UsageError(f"{name}{of} cannot be {getattr(settings, name)!r}: {error}") from error


def resolve(plan: EvalPlan, task: Task, agent: Agent | OwnAgent) -> dict[str, Any]:
    """The plan with hashes, versions and the server's address, without what is unset."""
    ids = hashlib.sha256("\n".join(task.examples.ids).encode()).hexdigest()
    settings = asdict(plan) | {
        "n": len(task.examples),
        "base_url": server_address(plan.model, plan.base_url),
        "retriever_url": plan.retriever_url and _without_user(plan.retriever_url),
        "python_url": plan.python_url and _without_user(plan.python_url),
        "judge_url": server_address(plan.judge, plan.judge_url),
        "harness": _absolute(plan.harness),
        "index": _absolute(plan.index),
        "directory": _directory(plan),
        "tokenizer": _absolute(plan.tokenizer),
        "tokenizer_id": getattr(getattr(agent, "backend", None), "tokenizer_id", None),
        "env_id": get_domain(plan.domain).env_id,
        "fixture": agent.fixture,
        "weights_id": agent.weights_id,
        "harness_id": agent.harness_id,
        "agent_id": agent.harness_id if isinstance(agent, OwnAgent) else None,
        "env_options": agent.env_options(plan.domain) if isinstance(agent, OwnAgent) else None,
        "examples_id": f"sha256:{ids}",
        "retriever_id": getattr(task.resources.get("retriever"), "retriever_id", None),
        "versions": {"whale-envs": __version__, "python": platform.python_version()},
    }
    if isinstance(agent, OwnAgent):
        settings |= dict.fromkeys(SAMPLING)
    return {name: value for name, value in settings.items() if value is not None}


def server_address(model: str | None, url: str | tuple[str, ...] | None) -> str | list[str] | None:
    """The address(es) of a model's server as they may be written down: without user name and password.

    Args:
        model: as a plan names it; None, or one that no server answers for, has no server.
        url: as the plan gives it; None for OPENAI_BASE_URL or ANTHROPIC_BASE_URL; an own agent then has
            none.
    """
    places = {
        "openai": ("OPENAI_BASE_URL", OPENAI_URL),
        "anthropic": ("ANTHROPIC_BASE_URL", ANTHROPIC_URL),
    }
    if model is not None and is_own_agent(model) and not url:
        return None
    kind, slash, _ = (model or "").partition("/")
    if not url and (not slash or kind not in places):
        return None
    variable, default = places.get(kind, ("", ""))
    given = [url] if isinstance(url, str) else list(url or ())
    found = [_without_user(one) for one in given or [os.environ.get(variable) or default]]
    return found[0] if len(found) == 1 else found


def _absolute(index: str | None) -> str | None:
    """A folder as it is found from anywhere; the name of a prebuilt index as it is."""
    return str(Path(index).resolve()) if index is not None and Path(index).exists() else index


def _directory(plan: EvalPlan) -> str | None:
    """Where a resume from anywhere looks for the model and the judge, if these are named by paths."""
    here = Path(plan.directory or ".").resolve()
    named = [plan.model, plan.judge or ""]
    rests = [name.partition("/")[2] for name in named if name.startswith(LOADED)]
    if is_own_agent(plan.model) or any((here / rest).is_dir() for rest in rests):
        return str(here)
    return None


def _without_user(url: str) -> str:
    parts = urlsplit(url.rstrip("/"))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def plan_of(settings: Mapping[str, Any], folder: Path) -> EvalPlan:
    """The plan in a run folder's settings; its harness is the folder's copy, where there is one.

    Raises:
        UsageError: a setting is missing or cannot be; names run.toml.
    """
    known = {field.name: field.default for field in fields(EvalPlan)}
    unsaid = SAMPLING if is_own_agent(str(settings.get("model"))) else ()
    needed = {name for name, default in known.items() if default is not None}.difference(unsaid)
    if lost := sorted(needed - settings.keys()):
        raise UsageError(f"{folder / 'run.toml'} lacks {', '.join(map(repr, lost))}")
    plan = {name: settings[name] for name in known if name in settings}
    for name in ("base_url", "families"):
        if isinstance(plan.get(name), list):
            plan[name] = tuple(plan[name])
    if "directory" in plan and not Path(str(plan["directory"])).is_dir():
        del plan["directory"]  # the run is from another machine
    if "harness" in plan and (folder / "harness.py").is_file():
        plan["harness"] = str(folder / "harness.py")
    try:
        return EvalPlan(**plan)
    except UsageError as error:
        raise UsageError(f"{folder / 'run.toml'}: {error}") from error


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    """Whether a run may go on.

    Raises:
        UsageError: what would run now differs from what ran.
    """
    for name in (
        "env_id",
        "examples_id",
        "weights_id",
        "agent_id",
        "harness_id",
        "fixture",
        "retriever_id",
        "tokenizer_id",
    ):
        was, now = old.get(name), new.get(name)
        if was == now or (name == "retriever_id" and same_retriever(was, now)):
            continue
        unsaid = ""
        if name == "retriever_id" and _served(was)[0] and _served(now)[0] and not _served(now)[1]:
            unsaid = "; a server at another address has to say at /info what it serves"
        raise UsageError(f"{folder} cannot be resumed: its {name} is {was!r}, now it is {now!r}{unsaid}")


def same_retriever(a: str | None, b: str | None) -> bool:
    """Whether two `retriever_id` are of one retriever: what is searched counts, not where.

    >>> same_retriever("remote:http://old#sha256:e0", "remote:http://new#sha256:e0")
    True
    >>> same_retriever("remote:http://old#sha256:e0", "sha256:e0")
    True
    >>> same_retriever("remote:http://old", "remote:http://new")
    False
    """
    return a == b or _searched(a) == _searched(b)


def _searched(retriever_id: str | None) -> str | None:
    """What a server says that it serves; of one that does not say, its address."""
    is_server, said = _served(retriever_id)
    return said if is_server and said else retriever_id


def _served(retriever_id: str | None) -> tuple[bool, str]:
    """Whether a server searches, and what it says that it serves."""
    address, _, said = (retriever_id or "").partition("#")
    return address.startswith("remote:"), said
