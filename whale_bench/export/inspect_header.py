"""What an inspect_ai log says of the whole run: settings, scores, usage, what is missing.

    totals = read_totals(store)
    results(store.settings, totals)["scores"]

Not covered: the samples, see `inspect.py`.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from whale_bench.ledger import Ledger
from whale_bench.models.base import SAMPLING
from whale_bench.statistics import mean_at_k
from whale_bench.store import RunStore
from whale_envs.core import PROFILES
from whale_envs.errors import UsageError


@dataclass(slots=True)
class Totals:
    """What one pass over the run gathers; rewards are kept, rollouts are not."""

    model: str
    eval_id: str
    expected: int
    started: str
    """ISO time of the ledger's first event, or of run.toml's last change where there is none."""
    ended: str
    finished: int = 0
    rewards: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By profile and example, of the rollouts that can tell."""
    tokens: tuple[int, int] | None = (0, 0)
    """Prompt and sampled; None where one rollout does not say."""

    @property
    def missing(self) -> int:
        return self.expected - self.finished


def read_totals(store: RunStore) -> Totals:
    """Reads the run once."""
    settings = store.settings
    totals = Totals(
        settings["model"],
        settings["settings_id"].removeprefix("sha256:")[:22],
        settings["n"] * settings["k"],
        *_times(store),
        rewards={profile: defaultdict(list) for profile in PROFILES},
    )
    for row in store.rollouts():  # whole, as the samples are: a line that is damaged anywhere is missing
        totals.finished += 1
        for profile in PROFILES:
            reward = getattr(row.verdict, profile)
            if reward is not None:
                totals.rewards[profile][row.example_id].append(reward)
        if totals.tokens is None or row.prompt_tokens is None or row.sampled_tokens is None:
            totals.tokens = None
        else:
            totals.tokens = (totals.tokens[0] + row.prompt_tokens, totals.tokens[1] + row.sampled_tokens)
    return totals


def _times(store: RunStore) -> tuple[str, str]:
    first = last = (store.folder / "run.toml").stat().st_mtime
    try:
        ledger = Ledger(store.folder / "ledger.sqlite", readonly=True)
    except UsageError:  # the log is worth having without its clock
        return _iso(first), _iso(last)
    with closing(ledger):
        for event in ledger.events():
            first, last = (event.at if event.seq == 1 else first), event.at
    return _iso(first), _iso(last)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def spec(settings: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """inspect_ai's EvalSpec."""
    task = settings["env_id"]
    return {
        "eval_id": totals.eval_id,
        "run_id": totals.eval_id,
        "task_id": totals.eval_id,
        "created": totals.started,
        "task": task,
        "task_version": int(task.rpartition("-v")[2]) if task.rpartition("-v")[2].isdecimal() else 0,
        "task_args": {name: settings[name] for name in ("domain", "tier", "split", "profile")},
        "solver": "harness",
        "dataset": {
            "name": f"{settings['domain']}/{settings['tier']}/{settings['split']}",
            "samples": settings["n"],
            "shuffled": False,
        },
        "model": totals.model,
        "model_generate_config": sampling_of(settings),
        "config": {"epochs": settings["k"], "epochs_reducer": ["mean"]},
        "packages": {"whale-envs": settings["versions"]["whale-envs"]},
        "scorers": [{"name": profile} for profile in _profiles(settings)],
        "metadata": {
            "run": dict(settings),
            "missing_rollouts": totals.missing,
            "gold": "not in this log; target is empty",
        },
    }


def sampling_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """inspect_ai's GenerateConfig; an own agent has none."""
    found = {name: settings[name] for name in SAMPLING if name in settings}
    if kwargs := found.pop("chat_template_kwargs", None):
        found["extra_body"] = {"chat_template_kwargs": kwargs}  # where it has what its own fields do not
    return found


def results(settings: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """inspect_ai's EvalResults: mean@k where it can be told, the profile in force first."""
    scores = []
    for profile in _profiles(settings):
        rewards = list(totals.rewards[profile].values())
        told = sum(map(len, rewards))
        metrics: dict[str, Any] = {}
        if told == totals.expected:
            score = mean_at_k(rewards)
            values = {"mean": score.mean, "stderr": score.stderr, "low": score.low, "high": score.high}
            metrics = {name: {"name": name, "value": value} for name, value in values.items()}
        scores.append(
            {
                "name": profile,
                "scorer": profile,
                "reducer": "mean",
                "scored_samples": told,
                "unscored_samples": totals.expected - told,
                "metrics": metrics,
            }
        )
    return {
        "total_samples": totals.expected,
        "completed_samples": totals.finished,
        "logged_samples": totals.finished,
        "scores": scores,
    }


def stats(settings: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """inspect_ai's EvalStats."""
    found: dict[str, Any] = {"started_at": totals.started, "completed_at": totals.ended}
    if totals.tokens is not None:
        prompt, sampled = totals.tokens
        usage = {"input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled}
        found["model_usage"] = {settings["model"]: usage}
    return found


def error_of(totals: Totals) -> dict[str, str]:
    """inspect_ai's EvalError of an incomplete run."""
    message = (
        f"{totals.missing} of {totals.expected} rollouts are missing (a server or worker failed, the run "
        "was interrupted, or a line is damaged); they are neither scored nor logged, so there is no mean"
    )
    return {"message": message, "traceback": "", "traceback_ansi": ""}


def _profiles(settings: Mapping[str, Any]) -> list[str]:
    return sorted(PROFILES, key=lambda profile: profile != settings["profile"])
