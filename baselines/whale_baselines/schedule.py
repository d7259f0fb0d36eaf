"""Schedules: pure functions of history to the next move: a training step, a search iteration, or none.

    schedule = fixed(steps=44, iterations=6, total_steps=296)   # WHALE (0.6, 6) on SearchQA
    schedule.next(())                                           # Move("train", cycle=1, number=1)
    schedule.next(history)                                      # None when the run is over

Every method of the paper is one `Schedule`: when a weight phase is over, when a search phase is, and how
many steps there are in all. A phase is a run of moves of one kind in one cycle. Nothing is remembered
outside the history, so a run goes on from any prefix of it.

The edge rules are the paper's by default: the weight phase comes first, no search follows the last one,
iteration 1 of a search phase is the evaluation of the incoming harness, and only a strictly better
signal counts as progress.

Not covered: who makes the moves (`alternate.py`), and how a recipe says all this (`settings.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple, Protocol

import msgspec

from whale_envs.errors import UsageError

Kind = Literal["train", "search"]
KINDS: tuple[Kind, ...] = ("train", "search")
ROUNDINGS = ("nearest", "ceil")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A move that was made: what a schedule may know of it."""

    kind: Kind
    cycle: int
    """From 1."""
    number: int
    """Within its phase, from 1."""
    signal: float
    """Of training: mean reward of the step. Of search: the archive's best score so far in its phase."""
    rollouts: int = 0
    """What the move was charged."""


class Move(NamedTuple):
    """What to do next."""

    kind: Kind
    cycle: int
    number: int


class PhaseRule(Protocol):
    """When a phase is over, by its signals so far (one for each move, at least one)."""

    def over(self, signals: Sequence[float]) -> bool: ...

    def left(self, signals: Sequence[float]) -> int | None:
        """Moves until it ends if nothing improves any more; None where only the total ends it."""
        ...


@dataclass(frozen=True, slots=True)
class Length:
    """So many moves."""

    moves: int

    def __post_init__(self) -> None:
        _at_least_one("the length of a phase", self.moves)

    def over(self, signals: Sequence[float]) -> bool:
        return len(signals) >= self.moves

    def left(self, signals: Sequence[float]) -> int:
        return max(0, self.moves - len(signals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Over after at least `least` moves when `patience` of them in a row were no better than the best."""

    least: int
    """Fewest moves. The paper's weight phase goes past its burn-in, so this is burn-in + 1."""
    patience: int
    window: int = 1
    """Moves that the sliding mean of the signal is over; fewer at the start."""
    most: int | None = None
    """Most moves of the phase."""
    strict: bool = True
    """Whether an equal signal is no progress."""
    perfect: float | None = None
    """A signal that ends the phase at once, whatever `least` says."""

    def __post_init__(self) -> None:
        for name in ("least", "patience", "window"):
            _at_least_one(f"{name} of a phase", getattr(self, name))
        if self.most is not None and self.most < self.least:
            raise UsageError(f"a phase of at least {self.least} moves cannot have at most {self.most}")

    def over(self, signals: Sequence[float]) -> bool:
        count = len(signals)
        if self.perfect is not None and signals[-1] >= self.perfect:
            return True
        if self.most is not None and count >= self.most:
            return True
        return count >= self.least and count - self.best(signals) >= self.patience

    def left(self, signals: Sequence[float]) -> int:
        count = len(signals)
        if self.over(signals):
            return 0
        until = max(self.least - count, self.patience - (count - self.best(signals)))
        return until if self.most is None else min(until, self.most - count)

    def best(self, signals: Sequence[float]) -> int:
        """The move, from 1, whose sliding mean was the best one; of equal ones the first if `strict`."""
        best, at = -math.inf, 0
        for number in range(1, len(signals) + 1):
            recent = signals[max(0, number - self.window) : number]
            mean = math.fsum(recent) / len(recent)
            if mean > best or (not self.strict and mean == best):
                best, at = mean, number
        return at


class Budget(NamedTuple):
    """Most rollouts of both operators, and what each move takes."""

    rollouts: int
    step: int
    incoming: int
    """Of iteration 1 of a search phase."""
    iteration: int
    """Of any other, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Phases in turn until `total_steps` are trained."""

    train: PhaseRule | None
    """None trains never."""
    search: PhaseRule | None
    """None searches never."""
    total_steps: int
    first: Kind = "train"
    """The phase that a cycle begins with."""
    search_after_last: bool = False
    """Whether a search phase follows the last weight phase."""
    budget: Budget | None = None
    """A search phase opens only where a proposal can be scored in it, and where the next search move does not
    fit, training takes what is left. So methods of one budget end within a move of each other."""

    def __post_init__(self) -> None:
        if self.first not in KINDS:
            raise UsageError(f"the first phase is {' or '.join(KINDS)}, got {self.first!r}")
        if (self.train is None) != (self.total_steps == 0) or self.total_steps < 0:
            raise UsageError(f"{self.total_steps} steps in all do not go with a weight phase {self.train}")
        if self.train is None and self.search is None:
            raise UsageError("a schedule trains or searches; this one does neither")

    def next(self, history: Sequence[Entry]) -> Move | None:
        """The next move; None where the run is over. Pure."""
        move = self._turn(history)
        if move is None or self.budget is None:
            return move
        left = self.budget.rollouts - sum(entry.rollouts for entry in history)
        fitting = (m for m in (move, self._training_instead(move, history)) if m and self._takes(m) <= left)
        return next(fitting, None)

    def rule(self, kind: Kind) -> PhaseRule | None:
        """When a phase of that kind is over."""
        return self.train if kind == "train" else self.search

    def _turn(self, history: Sequence[Entry]) -> Move | None:
        steps = sum(entry.kind == "train" for entry in history)
        if not history:
            opening = self._opens(self.first, steps) or self._opens(_other(self.first), steps)
            return Move(opening, 1, 1) if opening else None
        last = history[-1]
        if not self._over(current_phase(history), steps):
            return Move(last.kind, last.cycle, last.number + 1)
        # The other phase is next; where there is none, another one of the same kind.
        following = self._opens(_other(last.kind), steps)
        if following is None and last.kind == "train":
            following = self._opens("train", steps)
        if following is None:
            return None
        return Move(following, last.cycle + (following in (self.first, last.kind)), 1)

    def _training_instead(self, move: Move, history: Sequence[Entry]) -> Move | None:
        """The step that may be made where a search move cannot."""
        steps = sum(entry.kind == "train" for entry in history)
        if move.kind == "train" or self.train is None or steps >= self.total_steps:
            return None
        if not history:
            return Move("train", 1, 1)
        last = history[-1]
        if last.kind == "train":
            return Move("train", last.cycle, last.number + 1)
        return Move("train", last.cycle + (self.first == "train"), 1)

    def _takes(self, move: Move) -> int:
        """Rollouts that have to be left for a move to be worth making."""
        assert self.budget is not None, "asked only where there is one"
        if move.kind == "train":
            return self.budget.step
        alone = isinstance(self.search, Length) and self.search.moves == 1
        if move.number == 1:
            return self.budget.incoming + (0 if alone else self.budget.iteration)
        return self.budget.iteration

    def _opens(self, kind: Kind, steps: int) -> Kind | None:
        """`kind`, if a phase of it may begin after so many steps."""
        if kind == "train":
            return kind if steps < self.total_steps else None
        # Only a phase after the last step is in question; one before the first never is.
        allowed = steps < self.total_steps or self.search_after_last or steps == 0
        return kind if self.search is not None and allowed else None

    def _over(self, phase: Sequence[Entry], steps: int) -> bool:
        kind = phase[-1].kind
        rule = self.rule(kind)
        return rule is None or (kind == "train" and steps >= self.total_steps) or rule.over(signals_of(phase))


def current_phase(history: Sequence[Entry]) -> Sequence[Entry]:
    """The entries of the phase that the last move was in."""
    return history[len(history) - history[-1].number :] if history else ()


def signals_of(phase: Sequence[Entry]) -> list[float]:
    return [entry.signal for entry in phase]


def fixed(*, steps: int, iterations: int, total_steps: int, search_after_last: bool = False) -> Schedule:
    """WHALE (E, I): `steps` of training, `iterations` of search, in turn."""
    return Schedule(
        train=Length(steps),
        search=Length(iterations),
        total_steps=total_steps,
        search_after_last=search_after_last,
    )


def adaptive(*, train: Patience, search: Patience, total_steps: int) -> Schedule:
    """Adaptive WHALE: either phase goes on while its own signal improves."""
    return Schedule(train=train, search=search, total_steps=total_steps)


def stagewise(*, total_steps: int, iterations: int) -> Schedule:
    """All training under h0, then all search under what came of it."""
    return fixed(steps=total_steps, iterations=iterations, total_steps=total_steps, search_after_last=True)


def weight_only(*, total_steps: int) -> Schedule:
    return Schedule(train=Length(total_steps), search=None, total_steps=total_steps)


def harness_only(*, iterations: int) -> Schedule:
    return Schedule(train=None, search=Length(iterations), total_steps=0, first="search")


def steps_per_epoch(examples: int, prompts: int) -> int:
    """Whole batches in one pass, as the paper counts them.

    Raises:
        UsageError: there is not one.
    """
    if examples < prompts:
        raise UsageError(f"{examples} examples do not make a batch of {prompts}")
    return examples // prompts


def steps_of(epochs: float, per_epoch: int, rounding: str = "nearest") -> int:
    """Steps of so many epochs, at least one.

    The published launchers have 44 for 0.6 of 74 and 38 for 0.6 of 64, which is the nearest whole number;
    the helper that comes with them takes the next larger one, and would have 45 and 39.
    """
    if rounding not in ROUNDINGS:
        raise UsageError(f"rounding is {' or '.join(ROUNDINGS)}, got {rounding!r}")
    if not 0 < epochs < 1e6:
        raise UsageError(f"epochs must be more than 0, got {epochs}")
    exact = Fraction(str(epochs)) * per_epoch  # 0.6 is six tenths here, not the float beside it
    return max(1, math.ceil(exact) if rounding == "ceil" else math.floor(exact + Fraction(1, 2)))


def _other(kind: Kind) -> Kind:
    return "search" if kind == "train" else "train"


def _at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{what} must be at least 1, got {value}")
