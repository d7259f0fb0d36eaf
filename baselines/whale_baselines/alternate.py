"""The one loop of every method: ask the schedule, make the move, write it down, evaluate where it is due.

    await alternate(trainer, search, schedule, ledger, evaluator=evaluator, history=history, h0=h0)

The two operators are black boxes behind `WeightOperator` and `HarnessOperator`. Weight-only,
harness-only, FST, WHALE, adaptive WHALE and stagewise are this loop with another schedule or another
operator; nothing in here knows their names.

The hand-off is checked at every move: training has to have begun from the weights, and under the
harness, that the history names, and a search has to have scored under those weights. A run killed at
any instant goes on with the same call: a move is asked for by its number, and an operator that has made
it already says what it came to. Scores on `dev` choose among agents afterwards, those on `test` never
choose anything, and the schedule sees neither.

Not covered: what the operators do, and reading the outcome, see `curves.py`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from whale_baselines.history import Harness, History, Made, Pair, Point
from whale_baselines.schedule import Entry, Move, Schedule
from whale_baselines.settings import AFTER_PHASES, Every
from whale_bench.ledger import Ledger
from whale_bench.statistics import Difference, Score
from whale_envs.errors import UsageError


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """What a training step came to."""

    began_with: str
    """`weights_id` that its rollouts were sampled from."""
    weights_id: str
    """After it; the backend serves these."""
    harness_id: str
    """That its rollouts ran under."""
    reward: float
    """Mean over its rollouts."""
    rollouts: int
    metrics: dict[str, Any] = {}


class Iterated(msgspec.Struct, frozen=True, kw_only=True):
    """What a search iteration came to."""

    weights_id: str
    """That its rollouts were sampled from."""
    accepted: Harness
    """The best of the phase so far, which may be the incoming one."""
    score: float
    """Of the accepted one on the harness split: the archive's best."""
    rollouts: int
    metrics: dict[str, Any] = {}


class WeightOperator(Protocol):
    """Trains. Its memory is on the disk: steps are numbered over the whole run."""

    async def begin(self, harness: Harness) -> None:
        """From here on rollouts run under `harness`; called when a phase begins or is gone on with."""
        ...

    async def step(self, number: int) -> Stepped:
        """Step `number` of the run, from 1; where it is finished already, what it came to."""
        ...

    def join(self) -> None:
        """Waits until the steps are on the disk, whole; called when a phase ends, and however a run does."""
        ...


class HarnessOperator(Protocol):
    """Searches. Its memory is on the disk: phases are numbered over the run, iterations in a phase."""

    async def begin(self, phase: int, incoming: Harness, weights_id: str) -> None:
        """Phase `phase`, from 1, under frozen weights; called again when it is gone on with."""
        ...

    async def iterate(self, number: int) -> Iterated:
        """Iteration `number` of the phase, from 1; where it is finished already, what it came to.

        The first one evaluates the incoming harness and proposes nothing.
        """
        ...


class Evaluation(NamedTuple):
    """What an evaluation came to."""

    score: Score
    rollouts: int
    """Charged for it."""
    rise: Difference | None = None
    """Since the agent that the run began with, on the same examples and seeds; None where it was not told."""
    metrics: Mapping[str, float] = {}
    """Means of the behaviour metrics."""


class Evaluator(Protocol):
    """Evaluates an agent, with the ledger's purpose `dev` or `test`."""

    async def evaluate(self, pair: Pair, harness: Harness, split: str) -> Evaluation:
        """On a split; where it has been done before, what it came to.

        Raises:
            InfrastructureError: those weights are not there any more.
        """
        ...


Report = Callable[[Made | Point], None]


async def alternate(
    trainer: WeightOperator | None,
    search: HarnessOperator | None,
    schedule: Schedule,
    ledger: Ledger,
    *,
    evaluator: Evaluator,
    history: History,
    every: Every = AFTER_PHASES,
    report: Report | None = None,
) -> None:
    """Moves until the schedule has none; from wherever the history stands.

    Args:
        trainer: None for a schedule that never trains.
        search: None for one that never searches.
        schedule: says what is next.
        ledger: of the run; operators and evaluator charge, the loop reads.
        evaluator: of the agent as it stands.
        history: begun, with the first harness kept.
        every: where to evaluate.
        report: called with each record as it is written.

    Raises:
        UsageError: an operator worked on other weights or another harness than the history names, or
            one that the schedule asks for is missing.
        InfrastructureError: something is down; the run can be gone on with.
    """
    run = _Run(trainer, search, ledger, evaluator, history, report or (lambda _record: None))
    try:
        while True:
            move = schedule.next(history.moves)
            if due_after(history.moves, move, every):
                for split in ("dev", "test") if every.test == "points" else ("dev",):
                    await run.evaluate(history.pair, split)
            if move is None:
                break
            await run.make(move)
        if every.test == "end" and (best := selected_on_dev(history)) is not None:
            await run.evaluate(Pair(best.weights_id, best.harness_id), "test", moves=best.moves)
    finally:
        if trainer is not None:
            trainer.join()


def due_after(entries: Sequence[Entry], upcoming: Move | None, every: Every) -> bool:
    """Whether the agent is to be evaluated between these moves and the upcoming one."""
    if not entries or upcoming is None:
        return True
    last = entries[-1]
    if (upcoming.kind, upcoming.cycle) != (last.kind, last.cycle):
        return True
    if last.kind == "search":
        return bool(every.iterations) and last.number % every.iterations == 0
    return bool(every.steps) and _steps(entries) % every.steps == 0


def selected_on_dev(history: History) -> Point | None:
    """The evaluation with the best score on dev, of equal ones the first."""
    points = [point for point in history.points if point.split == "dev"]
    return max(points, key=lambda point: point.score.mean, default=None)


@dataclass(slots=True)
class _Run:
    """What the loop's steps share."""

    trainer: WeightOperator | None
    search: HarnessOperator | None
    ledger: Ledger
    evaluator: Evaluator
    history: History
    report: Report
    _open: tuple[str, int] | None = field(default=None, init=False)
    """Kind and cycle of the phase that this launch has begun or gone on with."""

    async def make(self, move: Move) -> None:
        """One move, made or found, checked and written down."""
        began = time.perf_counter()
        made = await (self._step(move) if move.kind == "train" else self._iterate(move))
        self._open = (move.kind, move.cycle)
        made = msgspec.structs.replace(made, seconds=time.perf_counter() - began)
        self.history.add(made)
        self.report(made)

    async def _step(self, move: Move) -> Made:
        before, number = self.history.pair, _steps(self.history.moves) + 1
        if self.trainer is None:
            raise UsageError("the schedule trains, and there is no weight operator")
        if self._open != (move.kind, move.cycle):
            await self.trainer.begin(self.history.harness(before.harness_id))
        done = await self.trainer.step(number)
        _check_hand_off(f"step {number} began from weights", done.began_with, before.weights_id)
        _check_hand_off(f"step {number} ran under harness", done.harness_id, before.harness_id)
        return _made(move, done.reward, done, done.weights_id, before.harness_id)

    async def _iterate(self, move: Move) -> Made:
        before, phase = self.history.pair, _search_phase(self.history, move)
        if self.search is None:
            raise UsageError("the schedule searches, and there is no harness operator")
        if self._open != (move.kind, move.cycle):
            if self.trainer is not None:
                self.trainer.join()
            incoming = self.history.harness(_incoming(self.history, move))
            await self.search.begin(phase, incoming, before.weights_id)
        done = await self.search.iterate(move.number)
        what = f"iteration {move.number} of search phase {phase}"
        _check_hand_off(f"{what} scored under weights", done.weights_id, before.weights_id)
        if move.number == 1:
            _check_hand_off(f"{what} evaluated harness", done.accepted.harness_id, before.harness_id)
        self.history.keep_harness(done.accepted)
        return _made(move, done.score, done, before.weights_id, done.accepted.harness_id)

    async def evaluate(self, pair: Pair, split: str, *, moves: int | None = None) -> None:
        """Evaluates, unless it is recorded; the same agent is never evaluated twice on a split."""
        moves = len(self.history.moves) if moves is None else moves
        earlier = [
            p for p in self.history.points if p.split == split and Pair(p.weights_id, p.harness_id) == pair
        ]
        if any(point.moves == moves for point in earlier):
            return
        if earlier:
            found = Evaluation(earlier[0].score, 0, earlier[0].rise, earlier[0].metrics)
        else:
            harness = self.history.harness(pair.harness_id)
            found = await self.evaluator.evaluate(pair, harness, split)
        charged = {purpose: charge.rollouts for purpose, charge in sorted(self.ledger.charged().items())}
        point = Point(
            moves=moves,
            split=split,
            weights_id=pair.weights_id,
            harness_id=pair.harness_id,
            score=found.score,
            rollouts=found.rollouts,
            charged=charged,
            rise=found.rise,
            metrics=dict(found.metrics),
        )
        self.history.add(point)
        self.report(point)


def _made(move: Move, signal: float, done: Stepped | Iterated, weights_id: str, harness_id: str) -> Made:
    return Made(
        kind=move.kind,
        cycle=move.cycle,
        number=move.number,
        signal=signal,
        rollouts=done.rollouts,
        weights_id=weights_id,
        harness_id=harness_id,
        metrics=done.metrics,
    )


def _check_hand_off(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise UsageError(f"{what} {found}, and the history goes on from {expected}")


def _steps(entries: Sequence[Entry]) -> int:
    return sum(entry.kind == "train" for entry in entries)


def _search_phase(history: History, move: Move) -> int:
    """The number of the search phase that a move is in."""
    return len({made.cycle for made in history.moves if made.kind == "search"} | {move.cycle})


def _incoming(history: History, move: Move) -> str:
    """The harness that the phase of a search move began with."""
    earlier = history.moves[: len(history.moves) - (move.number - 1)]
    return earlier[-1].harness_id if earlier else history.start.harness_id
