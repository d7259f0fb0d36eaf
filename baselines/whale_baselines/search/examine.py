"""Whether the harness that a rule would accept earned its score, measured before it is adopted.

    examiner = Examiner(task, archive.secret)
    finding = await examiner.finding("h3/harness.py", source, rollouts)     # "" where nothing was found

`EXAMINATIONS` are made in their order, up to the first finding:

* Parrots, models that copy what they are shown, may not do better under it than under h0 (Chess Puzzles
  and Math): such a harness tells the model what to say.
* What it points to may not follow from the board, on any of the examples (Chess Puzzles): such a harness
  plays, or has a table of a part of them.
* Its own recorded rollouts, judged by the answers of other examples, may not be right more often than
  chance explains: such responses say several answers, or the answer leaks.
* In its recorded rollouts an example's answer may not stand in what was sent to the model, before anything
  had shown it, more often than the answers of other examples do (in every domain).
* The calls of its recorded rollouts, made again in another order and fresh processes, must get the answers
  that they got: other answers come from what it kept from earlier rollouts, or from outside.

They cost nothing in rollouts. Parrots are no target agent, as the scripted replies of `check_harness` are
not, and the recorded rollouts were charged when they were played.

Whatever is drawn, above all the examples that parrots play, is drawn by a seed that nobody knew who wrote the
harness: a hash of its source and of a secret of the run, which stands beside the archive's log.

Not covered: what `canaries.py` does not hear and `replaying.py` does not see.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from whale_baselines.search.sources import source_id
from whale_bench.engine import Task
from whale_bench.harness.canaries import parrot_canary, parrot_hits, permuted_gold
from whale_bench.harness.host import load_harness, load_harness_source
from whale_bench.harness.other_boards import other_boards
from whale_bench.harness.parrots import PARROTS
from whale_bench.harness.replaying import replay_calls
from whale_bench.harness.whispers import whispered_gold
from whale_bench.records import Rollout
from whale_envs import ExampleSet
from whale_envs.errors import HarnessFileError
from whale_envs.seeding import derive_rng, derive_seed

EXAMPLES = 64
"""Most examples that the parrots play, drawn by seed from all that candidates are scored on."""

SECONDS = 900.0
"""Wall time of an examination, hundreds of times what one takes; a harness that needs more hangs."""


class Chosen(NamedTuple):
    """What is examined."""

    name: str
    """As findings call its file."""
    source: str
    rollouts: Sequence[Rollout]
    """All that it was scored by."""
    task: Task
    seed: int
    shown: ExampleSet[Any]
    """Those of the task's examples that parrots play."""
    reference: Mapping[str, frozenset[str]]
    """What parrots do under h0; empty in a domain without parrots."""


Examination: TypeAlias = Callable[[Chosen], Awaitable[str]]


async def _parrots(chosen: Chosen) -> str:
    found = await parrot_canary(
        chosen.source,
        chosen.task.domain,
        chosen.shown,
        name=chosen.name,
        seed=chosen.seed,
        reference=chosen.reference,
    )
    return found.message if found else ""


async def _boards(chosen: Chosen) -> str:
    task = chosen.task
    if task.domain != "chess_puzzles":
        return ""
    async with load_harness_source(task.domain, chosen.source, chosen.name) as harness:
        found = await other_boards(harness, task.examples, seed=chosen.seed)
    return found.message if found else ""


async def _shuffled_answers(chosen: Chosen) -> str:
    task = chosen.task
    found = await asyncio.to_thread(
        permuted_gold,
        chosen.rollouts,
        list(task.examples),
        name=chosen.name,
        profile=task.profile,
        seed=chosen.seed,
    )
    return found.message if found else ""


async def _whispers(chosen: Chosen) -> str:
    found = await asyncio.to_thread(
        whispered_gold,
        chosen.rollouts,
        chosen.task.examples,
        name=chosen.name,
        source=chosen.source,
    )
    return found.message if found else ""


async def _same_calls(chosen: Chosen) -> str:
    task = chosen.task
    found = await replay_calls(
        chosen.source,
        task.domain,
        chosen.rollouts,
        name=chosen.name,
        token_budget=task.token_budget,
        seed=chosen.seed,
    )
    return found.message if found else ""


EXAMINATIONS: tuple[Examination, ...] = (
    _parrots,
    _boards,
    _shuffled_answers,
    _whispers,
    _same_calls,
)


@dataclass(slots=True)
class Examiner:
    """Of one search, for h0 is played by the parrots once."""

    task: Task
    secret: str
    _played: set[str] = field(default_factory=set)
    """Ids of the examples that parrots have played under h0."""
    _hits: dict[str, frozenset[str]] = field(default_factory=dict)
    """By parrot, those on which it was right."""

    def seed_of(self, source: str) -> int:
        """Of this harness's examination, in [0, 2**63)."""
        return derive_seed("examination", 0, self.secret, source_id(source))

    async def finding(self, name: str, source: str, rollouts: Sequence[Rollout]) -> str:
        """Why a harness cannot be accepted; empty where nothing speaks against it.

        Args:
            name: as the finding calls its file.
            source: of the harness.
            rollouts: all that it was scored by.

        Raises:
            InfrastructureError: the examination could not be made.
        """
        seed = self.seed_of(source)
        shown = drawn(self.task.examples, seed)
        reference = await self._under_h0(shown)
        chosen = Chosen(name, source, rollouts, self.task, seed, shown, reference)
        try:
            async with asyncio.timeout(SECONDS):
                for examination in EXAMINATIONS:
                    if finding := await examination(chosen):
                        return finding
        except HarnessFileError as error:  # it was loaded before
            return f"{name}:1: is not the same each time that it is loaded: {error}"
        except TimeoutError:
            return f"{name}:1: its examination was not over after {SECONDS:g} s"
        return ""

    async def _under_h0(self, shown: ExampleSet[Any]) -> Mapping[str, frozenset[str]]:
        domain = self.task.domain
        if domain not in PARROTS:
            return {}
        fresh = [example for example in shown if example.id not in self._played]
        hits = await parrot_hits(load_harness(domain), domain, fresh) if fresh else {}
        for parrot, right in hits.items():
            self._hits[parrot] = self._hits.get(parrot, frozenset()) | right
        self._played.update(example.id for example in fresh)
        return {parrot: right & set(shown.ids) for parrot, right in self._hits.items()}


def drawn(examples: ExampleSet[Any], seed: int) -> ExampleSet[Any]:
    """Those that the parrots play, in their order."""
    rng = derive_rng("examination", seed)
    numbers = sorted(rng.sample(range(len(examples)), min(EXAMPLES, len(examples))))
    return ExampleSet((examples[number] for number in numbers), name=examples.name)
