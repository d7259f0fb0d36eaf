"""The tables of a recipe that are no operator's: [schedule], [dev], [filter], [estimate].

    schedule_of(ScheduleSettings(kind="fixed", epochs=0.6, iterations=6, total_epochs=4.0), 74)

Each table is a frozen dataclass whose defaults are the paper's; its fields are the valid keys. What a
field needs of another one is checked where it is used.

Not covered: files, names and inheritance (`recipes.py`); the fields of [agent], [recipe] and [search],
which evaluation, trainer and search have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec

from whale_baselines.schedule import (
    Budget,
    Kind,
    Length,
    Patience,
    PhaseRule,
    Schedule,
    steps_of,
)
from whale_envs.errors import UnknownNameError, UsageError

ScheduleKind = Literal["fixed", "adaptive", "stagewise", "weight_only", "harness_only"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """[schedule]: when a phase is over, and when the run is."""

    kind: ScheduleKind = "fixed"
    total_epochs: float | None = None
    """Weight budget of the run."""
    epochs: float | None = None
    """fixed: of a weight phase; the paper's E."""
    iterations: int | None = None
    """fixed, stagewise, harness_only: of a search phase; the paper's I."""
    steps_per_epoch: int | None = None
    """None: whole batches in the examples."""
    rounding: Literal["nearest", "ceil"] = "nearest"
    """Of fractions of an epoch to steps."""
    first: Literal["weight", "harness"] = "weight"
    """The phase that a cycle begins with."""
    search_after_last: bool = False
    """Whether a search phase follows the last weight phase."""
    incoming_counts: bool = True
    """Whether iteration 1 is the evaluation of the incoming harness, or that comes on top."""
    strict: bool = True
    """adaptive: whether an equal signal is no progress."""
    window_epochs: float | None = None
    """adaptive: sliding window over the training signal."""
    burn_in_epochs: float | None = None
    """adaptive: a weight phase goes past it."""
    patience_epochs: float | None = None
    """adaptive: without progress, after which a weight phase ends."""
    most_epochs: float | None = None
    """adaptive: cap of a weight phase; None: only the total."""
    least_iterations: int | None = None
    """adaptive: of a search phase."""
    patience_iterations: int | None = None
    """adaptive: without progress, after which a search phase ends."""
    most_iterations: int | None = None
    """adaptive: cap of a search phase."""
    perfect_stops: bool = False
    """adaptive: whether a score of 1 ends a search phase at once (the release's Chess does)."""
    budget: int | None = None
    """Most rollouts of training and search together; None: what the phases take."""


TEST_SAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DevSettings:
    """[dev]: where agents are evaluated, besides at the start and after each phase."""

    every_steps: int = 7
    """0: nowhere else."""
    every_iterations: int = 0
    samples: int = 8
    """Of each example of dev; on test it is always mean@8, the protocol's measure."""
    test: Literal["points", "end", "none"] = "points"
    """`points` shows the paper's "best on test" too; `end` tests only what dev selects."""
    keep: Literal["selected", "points"] = "selected"
    """Whose weights stay on the disk: of the best on dev so far, or of every evaluated agent."""

    def every(self) -> "Every":
        """As the loop takes it."""
        return Every(self.every_steps, self.every_iterations, self.test)


class Every(NamedTuple):
    """Where evaluations are due, besides before the first move and after each phase; 0 is nowhere else."""

    steps: int = 0
    iterations: int = 0
    test: Literal["points", "end", "none"] = "points"
    """Whether `test` is evaluated at each point too, only for what dev selects, or not at all."""


AFTER_PHASES = Every()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """[filter]: which examples, and how many of each split (the first ones); None is all."""

    weight: int | None = None
    harness: int | None = None
    dev: int | None = None
    test: int | None = None
    groups: Mapping[str, tuple[str, ...]] | None = None
    """Group name, as the examples have it, to the values that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings:
    """[estimate]: rates that a plan multiplies with; unset ones are told as unknown."""

    device: Literal["GPU", "CPU"] = "GPU"
    device_seconds: float | None = None
    """For each rollout, training included, times the number of devices."""
    usd_per_session: float | None = None
    """Of the proposer; 0 where nobody is asked."""


_NEEDS: Mapping[ScheduleKind, tuple[str, ...]] = {
    "fixed": ("total_epochs", "epochs", "iterations"),
    "adaptive": (
        "total_epochs",
        "window_epochs",
        "burn_in_epochs",
        "patience_epochs",
        "least_iterations",
        "patience_iterations",
        "most_iterations",
    ),
    "stagewise": ("total_epochs", "iterations"),
    "weight_only": ("total_epochs",),
    "harness_only": ("iterations",),
}
"""Fields without which a kind means nothing."""

_OF_ALL = {
    "kind", "total_epochs", "steps_per_epoch", "rounding", "first", "search_after_last", "incoming_counts",
    "budget",
}  # fmt: skip
_OF_ADAPTIVE = {"strict", "most_epochs", "perfect_stops"}


def table(kind: type[T], values: Mapping[str, Any], name: str) -> T:
    """A table of a recipe.

    Raises:
        UsageError: there is no such key, or it cannot have that value.
    """
    hints = get_type_hints(kind)
    if unknown := next((key for key in values if key not in hints), None):
        raise UnknownNameError(f"key of [{name}]", unknown, sorted(hints), most=30)
    given = {}
    for key, value in values.items():
        try:
            given[key] = msgspec.convert(value, hints[key])
        except msgspec.ValidationError as error:
            raise UsageError(f"[{name}] {key} cannot be {value!r}: {error}") from error
        if type(value) in (int, float) and not 0 <= value < 1e9:
            raise UsageError(f"[{name}] {key} must be from 0 to 1e9, got {value}")
    return kind(**given)


def schedule_of(
    settings: ScheduleSettings, steps_per_epoch: int, costs: tuple[int, int, int] = (0, 0, 0)
) -> Schedule:
    """The schedule that a table says.

    Args:
        settings: the table.
        steps_per_epoch: of the weight split, where the table does not say.
        costs: rollouts of a step, an incoming evaluation and another iteration, for the budget.

    Raises:
        UsageError: a field that the kind needs is missing, one that means nothing to it is there, or a
            value cannot be.
    """
    _check_fields(settings)
    first: Kind = "train" if settings.first == "weight" else "search"
    budget = None if settings.budget is None else Budget(settings.budget, *costs)
    if settings.kind == "harness_only":
        return Schedule(train=None, search=_search(settings), total_steps=0, first="search", budget=budget)
    per_epoch = settings.steps_per_epoch or steps_per_epoch
    assert settings.total_epochs is not None, "checked above"
    total = steps_of(settings.total_epochs, per_epoch, settings.rounding)
    return Schedule(
        train=_train(settings, per_epoch, total),
        search=None if settings.kind == "weight_only" else _search(settings),
        total_steps=total,
        first=first,
        search_after_last=settings.search_after_last or settings.kind == "stagewise",
        budget=budget,
    )


def _train(settings: ScheduleSettings, per_epoch: int, total: int) -> PhaseRule:
    def steps(epochs: float | None) -> int:
        assert epochs is not None, "checked before"
        return steps_of(epochs, per_epoch, settings.rounding)

    if settings.kind == "fixed":
        return Length(steps(settings.epochs))
    if settings.kind != "adaptive":
        return Length(total)
    return Patience(
        least=steps(settings.burn_in_epochs) + 1,
        patience=steps(settings.patience_epochs),
        window=steps(settings.window_epochs),
        most=None if settings.most_epochs is None else steps(settings.most_epochs),
        strict=settings.strict,
    )


def _search(settings: ScheduleSettings) -> PhaseRule:
    more = 0 if settings.incoming_counts else 1
    if settings.kind != "adaptive":
        assert settings.iterations is not None, "checked before"
        return Length(settings.iterations + more)
    least, most = settings.least_iterations, settings.most_iterations
    assert least is not None, "checked before"
    assert most is not None, "checked before"
    assert settings.patience_iterations is not None, "checked before"
    return Patience(
        least=least + more,
        patience=settings.patience_iterations,
        most=most + more,
        strict=settings.strict,
        perfect=1.0 if settings.perfect_stops else None,
    )


def _check_fields(settings: ScheduleSettings) -> None:
    needs = _NEEDS[settings.kind]
    if lacking := [name for name in needs if getattr(settings, name) is None]:
        raise UsageError(f"[schedule] of kind {settings.kind!r} lacks {', '.join(lacking)}")
    allowed = _OF_ALL | set(needs) | (_OF_ADAPTIVE if settings.kind == "adaptive" else set())
    for field in fields(settings):
        if field.name not in allowed and getattr(settings, field.name) != field.default:
            raise UsageError(
                f"[schedule] {field.name} means nothing to kind {settings.kind!r}; it has "
                f"{', '.join(sorted(allowed))}"
            )
