"""What a recipe will take, told before anything is spent.

    plan = plan_of(load_recipe("paper/search_qa/whale"))
    plan.most.cycles, plan.most.steps               # 7, 296
    plan.most.harness_paper, plan.most.harness      # 27648, 24576

The schedule itself is run, on made-up signals. For a schedule of fixed lengths they do not matter; for an
adaptive one, training that always improves beside search that never does gives the least search, and the
other way round the most.

Two countings of search: the *paper's* bills the evaluation of an incoming harness like any iteration, at
`candidates` times its rollouts; what is *executed* evaluates one harness there. Tokens are bounds: the
token budget of every rollout. GPU-hours and money are the recipe's rates times what they are rates of,
and unknown where it has none.

Not covered: prompt tokens, more samples that the `paired` rule asks for, and rollouts that are repeated.
"""

import msgspec

from whale_baselines.alternate import due_after
from whale_baselines.recipes import RunRecipe
from whale_baselines.schedule import Entry, Kind
from whale_baselines.settings import TEST_SAMPLES
from whale_envs import get_domain


class PhasePlan(msgspec.Struct, frozen=True):
    """One phase."""

    kind: Kind
    cycle: int
    moves: int
    """Steps, or iterations with the incoming harness's."""


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a whole run."""

    cycles: int
    phases: tuple[PhasePlan, ...]
    steps: int
    iterations: int
    """Incoming evaluations included."""
    sessions: int
    """Iterations in which the proposer is asked."""
    points: int
    """Evaluations of the agent."""
    weight: int
    """Rollouts of training."""
    harness_paper: int
    """Rollouts of search as the paper bills them."""
    harness: int
    """Rollouts of search that are run, where every candidate can be scored."""
    smoke: int
    """Rollouts that try candidates before they are scored, at most."""
    dev: int
    test: int

    @property
    def budget_paper(self) -> int:
        """Rollouts of training and search, as the paper bills them."""
        return self.weight + self.harness_paper

    @property
    def budget(self) -> int:
        """Rollouts of training and search that are run."""
        return self.weight + self.harness

    @property
    def rollouts(self) -> int:
        """All that are run."""
        return self.budget + self.smoke + self.dev + self.test


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recipe takes."""

    recipe: str
    domain: str
    simulated: bool
    per_step: int
    """Rollouts."""
    per_iteration: int
    """Rollouts of an iteration with candidates, and of every iteration as the paper bills it."""
    per_incoming: int
    """Rollouts of an incoming evaluation, executed."""
    token_budget: int | None
    """Most sampled tokens of a rollout; None for a simulation."""
    device: str
    device_seconds: float | None
    usd_per_session: float | None
    least: Extent
    most: Extent

    def tokens(self, extent: Extent) -> int | None:
        """Most sampled tokens of a run."""
        return None if self.token_budget is None else self.token_budget * extent.rollouts

    def hours(self, extent: Extent) -> float | None:
        """Device-hours of a run; None where no rate is known."""
        return None if self.device_seconds is None else self.device_seconds * extent.rollouts / 3600

    def usd(self, extent: Extent) -> float | None:
        """Money for the proposer; None where no rate is known."""
        return None if self.usd_per_session is None else self.usd_per_session * extent.sessions


def plan_of(recipe: RunRecipe) -> Plan:
    """The plan of a recipe. Loads no data and no model."""
    budget = None
    if not recipe.simulated:
        budget = recipe.agent.get("token_budget") or get_domain(recipe.domain).token_budget
    return Plan(
        recipe=recipe.name,
        domain=recipe.domain,
        simulated=recipe.simulated,
        per_step=per_step(recipe),
        per_iteration=recipe.search.slots * per_incoming(recipe),
        per_incoming=per_incoming(recipe),
        token_budget=budget,
        device=recipe.estimate.device,
        device_seconds=recipe.estimate.device_seconds,
        usd_per_session=recipe.estimate.usd_per_session,
        least=_extent(recipe, improves="train"),
        most=_extent(recipe, improves="search"),
    )


def per_step(recipe: RunRecipe) -> int:
    return recipe.recipe.prompts * recipe.recipe.samples


def per_incoming(recipe: RunRecipe) -> int:
    return recipe.search.examples


def _extent(recipe: RunRecipe, *, improves: Kind) -> Extent:
    """The run in which the signal of one kind of move always improves, and that of the other never."""
    schedule, entries, points = recipe.plan_schedule(), list[Entry](), 1
    every = recipe.dev.every()
    incoming, step = per_incoming(recipe), per_step(recipe)
    iteration = incoming * recipe.search.slots
    smoke = recipe.search.slots * recipe.search.smoke
    while (move := schedule.next(entries)) is not None:
        cost = step if move.kind == "train" else incoming if move.number == 1 else iteration + smoke
        # Never a perfect score: a phase that ends at one would not be the longest.
        signal = 1.0 - 1.0 / (2.0 + len(entries)) if move.kind == improves else 0.0
        entry = Entry(**move._asdict(), signal=signal, rollouts=cost)
        entries.append(entry)
        points += due_after(entries, schedule.next(entries), every)
    phases = _phases(entries)
    searches = [phase.moves for phase in phases if phase.kind == "search"]
    sessions = sum(searches) - len(searches)
    tested = {"points": points, "end": 1, "none": 0}[recipe.dev.test]
    sizes = {split: recipe.examples(split) for split in ("dev", "test")}
    return Extent(
        cycles=max((phase.cycle for phase in phases), default=0),
        phases=phases,
        steps=sum(entry.kind == "train" for entry in entries),
        iterations=sum(searches),
        sessions=sessions,
        points=points,
        weight=sum(entry.rollouts for entry in entries if entry.kind == "train"),
        harness_paper=sum(searches) * iteration,
        harness=len(searches) * incoming + sessions * iteration,
        smoke=sessions * smoke,
        dev=points * recipe.dev.samples * sizes["dev"],
        test=tested * TEST_SAMPLES * sizes["test"],
    )


def _phases(entries: list[Entry]) -> tuple[PhasePlan, ...]:
    ends = [
        entry
        for entry, following in zip(entries, [*entries[1:], None], strict=True)
        if following is None or following.number == 1
    ]
    return tuple(PhasePlan(entry.kind, entry.cycle, entry.number) for entry in ends)


def with_rates(plan: Plan, *, device_seconds: float | None, usd_per_session: float | None) -> Plan:
    """The plan with rates of one's own in place of the recipe's."""
    if device_seconds is not None:
        plan = msgspec.structs.replace(plan, device_seconds=device_seconds)
    if usd_per_session is not None:
        plan = msgspec.structs.replace(plan, usd_per_session=usd_per_session)
    return plan
