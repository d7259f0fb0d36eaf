"""The simulated weight operator, harness operator and evaluator, with their memory in a run's folder.

    trainer = SimulatedTrainer(world, folder, ledger, prompts=256, samples=8, seed=0)
    await trainer.begin(harness_of(source_of(world.harness)))
    await trainer.step(1)

Every draw comes from a seed hashed from what is being made, so a step or an iteration that is made
again after a kill comes out the same.

Not covered: the model behind them, see `world.py`.
"""

import ast
import hashlib
from pathlib import Path

import msgspec
import numpy as np

from whale_baselines.alternate import Evaluation, Iterated, Stepped
from whale_baselines.history import Harness, Pair, harness_of
from whale_baselines.simulated.booking import Book
from whale_baselines.simulated.world import Harness as Mechanisms
from whale_baselines.simulated.world import Weights, World, propose, score, train, truth
from whale_bench.ledger import Ledger
from whale_bench.statistics import Score, score_of
from whale_envs.errors import DataError, InfrastructureError
from whale_envs.seeding import derive_seed

FOLDER = "simulated"
"""Of a run's folder."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `steps.jsonl`."""

    key: str
    rollouts: int
    began_with: str
    weights_id: str
    harness_id: str
    reward: float
    general: float
    skills: tuple[float, ...]


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `iterations.jsonl`."""

    key: str
    rollouts: int
    weights_id: str
    accepted: str
    """Source of the best so far in the phase."""
    score: float
    scores: tuple[float, ...]
    """Of this iteration's candidates, or of the incoming harness."""


class EvaluationLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `evaluations.jsonl`."""

    key: str
    rollouts: int
    score: Score
    truth: float
    """What infinitely many rollouts would score: only a simulation can say."""


class SimulatedTrainer:
    """Implements `WeightOperator`."""

    def __init__(
        self, world: World, folder: Path, ledger: Ledger, *, prompts: int, samples: int, seed: int
    ) -> None:
        self.world, self.prompts, self.samples, self.seed = world, prompts, samples, seed
        self._book = Book(ledger, _file(folder, "steps"), Step, "weight")
        self._by_id = {weights_id_of(world.weights): world.weights}
        self._by_id |= {step.weights_id: Weights(step.general, step.skills) for step in self._book.records()}
        self._harness: Harness | None = None

    async def begin(self, harness: Harness) -> None:
        self._harness = harness

    def join(self) -> None:
        """Nothing of it is written later."""

    async def step(self, number: int) -> Stepped:
        harness = self._harness
        assert harness is not None, "a phase begins before its first step"
        began = self._weights(number - 1)
        rollouts = self.prompts * self.samples

        def make() -> Step:
            rng = rng_of("step", self.seed, number)
            weights, reward = train(
                self.world, began, read_source(harness), rng, prompts=self.prompts, samples=self.samples
            )
            return Step(
                key=f"weight:step:{number}",
                rollouts=rollouts,
                began_with=weights_id_of(began),
                weights_id=weights_id_of(weights),
                harness_id=harness.harness_id,
                reward=reward,
                general=weights.general,
                skills=weights.skills,
            )

        step = self._book.once(f"weight:step:{number}", rollouts, make)
        self._by_id[step.weights_id] = Weights(step.general, step.skills)
        return Stepped(
            began_with=step.began_with,
            weights_id=step.weights_id,
            harness_id=step.harness_id,
            reward=step.reward,
            rollouts=step.rollouts,
        )

    def weights(self, weights_id: str) -> Weights:
        """Those of that id.

        Raises:
            InfrastructureError: no step has made them.
        """
        if weights_id not in self._by_id:
            raise InfrastructureError(f"no simulated step has made weights {weights_id}")
        return self._by_id[weights_id]

    def _weights(self, number: int) -> Weights:
        """Those after step `number`."""
        if number == 0:
            return self.world.weights
        step = self._book.get(f"weight:step:{number}")
        if step is None:
            raise InfrastructureError(f"step {number} has not been made, so the next one cannot be")
        return Weights(step.general, step.skills)


class SimulatedSearch:
    """Implements `HarnessOperator`: candidates of the best harness so far, scored once each."""

    def __init__(
        self,
        world: World,
        folder: Path,
        ledger: Ledger,
        trainer: SimulatedTrainer,
        *,
        candidates: int,
        samples: int,
        seed: int,
    ) -> None:
        self.world, self.trainer = world, trainer
        self.candidates, self.samples, self.seed = candidates, samples, seed
        self._book = Book(ledger, _file(folder, "iterations"), Iteration, "harness")
        self._phase, self._weights_id = 0, ""
        self._incoming: Harness | None = None

    async def begin(self, phase: int, incoming: Harness, weights_id: str) -> None:
        self._phase, self._incoming, self._weights_id = phase, incoming, weights_id

    async def iterate(self, number: int) -> Iterated:
        key = self._key(number)
        proposed = 1 if number == 1 else self.candidates
        rollouts = proposed * self.samples * len(self.world.difficulty["harness"])
        done = self._book.once(key, rollouts, lambda: self._make(key, number, rollouts))
        return Iterated(
            weights_id=done.weights_id,
            accepted=harness_of(done.accepted),
            score=done.score,
            rollouts=done.rollouts,
            metrics={"scores": done.scores},
        )

    def _make(self, key: str, number: int, rollouts: int) -> Iteration:
        assert self._incoming is not None, "a phase begins before its first iteration"
        weights = self.trainer.weights(self._weights_id)
        rng = rng_of("iteration", self.seed, self._phase, number)
        if number == 1:
            best, top, candidates = self._incoming.source, -1.0, [read_source(self._incoming)]
        else:
            before = self._book.get(self._key(number - 1))
            if before is None:
                raise InfrastructureError(f"iteration {number - 1} has not been made, so {number} cannot be")
            best, top = before.accepted, before.score
            candidates = [propose(read_source(harness_of(best)), rng) for _ in range(self.candidates)]
        scores = tuple(
            float(score(self.world, weights, one, rng, split="harness", samples=self.samples).mean())
            for one in candidates
        )
        for candidate, value in zip(candidates, scores, strict=True):
            if value > top:
                best, top = source_of(candidate), value
        return Iteration(
            key=key,
            rollouts=rollouts,
            weights_id=self._weights_id,
            accepted=best,
            score=top,
            scores=scores,
        )

    def _key(self, number: int) -> str:
        return f"harness:phase:{self._phase}:iteration:{number}"


class SimulatedEvaluator:
    """Implements `Evaluator`."""

    def __init__(
        self,
        world: World,
        folder: Path,
        ledger: Ledger,
        trainer: SimulatedTrainer,
        *,
        samples: int,
        seed: int,
    ) -> None:
        self.world, self.trainer, self.samples, self.seed = world, trainer, samples, seed
        self._books = {
            split: Book(ledger, _file(folder, f"evaluations-{split}"), EvaluationLine, split)
            for split in ("dev", "test")
        }

    async def evaluate(self, pair: Pair, harness: Harness, split: str) -> Evaluation:
        key = _evaluation(split, pair)
        rollouts = self.samples * len(self.world.difficulty[split])

        def make() -> EvaluationLine:
            weights, mechanisms = self.trainer.weights(pair.weights_id), read_source(harness)
            return EvaluationLine(
                key=key,
                rollouts=rollouts,
                score=evaluated(
                    self.world, weights, mechanisms, pair, split, samples=self.samples, seed=self.seed
                ),
                truth=truth(self.world, weights, mechanisms, split),
            )

        done = self._books[split].once(key, rollouts, make)
        return Evaluation(done.score, done.rollouts)


def evaluated(
    world: World, weights: Weights, harness: Mechanisms, pair: Pair, split: str, *, samples: int, seed: int
) -> Score:
    """The score of an agent on a split, from the draws that belong to this agent. Pure."""
    rng = rng_of(_evaluation(split, pair), seed)
    return score_of(score(world, weights, harness, rng, split=split, samples=samples).tolist())


def _evaluation(split: str, pair: Pair) -> str:
    return f"{split}:{pair.weights_id}:{pair.harness_id}"


def weights_id_of(weights: Weights) -> str:
    """Marked, so that no reader takes it for a model's."""
    return "simulated:" + hashlib.sha256(msgspec.json.encode(weights)).hexdigest()


def source_of(harness: Mechanisms) -> str:
    """A simulated harness as a file; numbers as they are, so that reading gives the same."""
    return (
        '"""A simulated harness: no agent runs it."""\n\n'
        f"MECHANISMS = {harness.mechanisms!r}\nDEFECTS = {harness.defects!r}\n"
    )


def read_source(harness: Harness) -> Mechanisms:
    """The harness of a file that `source_of` made.

    Raises:
        DataError: it is none.
    """
    values = {}
    try:
        for line in ast.parse(harness.source).body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                values[line.targets[0].id] = ast.literal_eval(line.value)
        return Mechanisms(tuple(values["MECHANISMS"]), float(values["DEFECTS"]))
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{harness.harness_id} is no simulated harness: {error}") from error


def rng_of(what: str, seed: int, *index: int) -> np.random.Generator:
    """The stream of one thing that is made."""
    return np.random.default_rng(derive_seed(f"simulated/{what}", seed, *index))


def _file(folder: Path, name: str) -> Path:
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    return place / f"{name}.jsonl"
