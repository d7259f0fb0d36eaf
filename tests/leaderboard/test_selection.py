"""Dev scores and the curve they make: a slow recount, and what may not change them."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from whale_leaderboard.curve import Curve, Point
from whale_leaderboard.layout import Charged
from whale_leaderboard.selection import DevScores

EXAMPLES = ("d0", "d1", "d2")
SPLITS = {"dev": EXAMPLES}


class Settled(NamedTuple):
    at: float
    purpose: str
    agent: str
    example: str
    reward: float


rollouts = st.lists(
    st.builds(
        Settled,
        st.integers(0, 4).map(float),  # many at once, and clocks that go back
        st.sampled_from(("dev", "dev", "dev", "weight", "test")),
        st.sampled_from("ab"),
        st.sampled_from(EXAMPLES),
        st.sampled_from((0.0, 1.0)),
    ),
    max_size=24,
)
ledgers = st.lists(rollouts, max_size=3).map(lambda runs: {f"head{n}": run for n, run in enumerate(runs)})


def scored(runs: dict[str, list[Settled]]) -> DevScores:
    dev = DevScores(SPLITS)
    for head, run in runs.items():
        dev.begin(head)
        for one in run:
            dev.add(_record(one), one.at)
    return dev


def _record(one: Settled) -> Charged:
    return Charged(
        key="k", purpose=one.purpose, example_id=one.example, sample=0, weights_id=one.agent, harness_id="h",
        prompt_tokens=0, sampled_tokens=0, model_calls=0, reward=one.reward, reason="r", digest="0" * 64,
    )  # fmt: skip


def merged(runs: dict[str, list[Settled]]) -> list[Settled]:
    """All charged rollouts in the order of their settlements, as docs/budget.md says it."""
    stamped = []
    for head, run in runs.items():
        for number, one in enumerate(run):
            latest = max(other.at for other in run[: number + 1] if other.purpose != "test" or other is one)
            if one.purpose != "test":
                stamped.append((latest, head, number, one))
    return [one for *_, one in sorted(stamped, key=lambda row: row[:3])]


def rounds(history: list[Settled], agent: str) -> list[float]:
    """Scores of an agent's passes after so much history, the slow way: every example's n-th reward."""
    by_example = {id_: [o.reward for o in history if (o.purpose, o.agent, o.example) == ("dev", agent, id_)]
                  for id_ in EXAMPLES}  # fmt: skip
    if not any(by_example.values()):
        return []
    whole = max(1, min(map(len, by_example.values())))
    firsts = [[rewards[n] if n < len(rewards) else 0.0 for rewards in by_example.values()]
              for n in range(whole)]  # fmt: skip
    return [sum(map(sum, firsts[: n + 1])) / (len(EXAMPLES) * (n + 1)) for n in range(whole)]


def seen(history: list[Settled], agent: str) -> int:
    """How many dev examples an agent has had."""
    return len({one.example for one in history if (one.purpose, one.agent) == ("dev", agent)})


@settings(max_examples=120)
@given(ledgers)
def test_the_curve_is_that_of_a_slow_recount(runs: dict[str, list[Settled]]) -> None:
    history, dev = merged(runs), scored(runs)
    curve = Curve(dev.points())
    for spent in range(len(history) + 1):
        best = None
        for agent in "ab":
            now, final = rounds(history[:spent], agent), rounds(history, agent)
            if not now or seen(history[:spent], agent) < seen(history, agent):
                continue  # a first pass that still goes on is known at its end
            worth = max(min(final[number:]) for number in range(len(now)))
            best = worth if best is None else max(best, worth)
        assert curve.score_at(spent) == best
    finals = {agent: rounds(history, agent) for agent in "ab"}
    for agent, final in finals.items():
        others = [scores[-1] for scores in finals.values() if scores]
        chosen = "dev" if final and final[-1] >= max(others) else "none"
        assert dev.selection(agent, "h", len(history)) == (chosen if history else "fixed")


@settings(max_examples=40)
@given(ledgers, st.randoms(use_true_random=False))
def test_the_order_in_which_runs_are_given_changes_nothing(runs: dict[str, list[Settled]], draw) -> None:  # type: ignore[no-untyped-def]
    names = list(runs)
    draw.shuffle(names)
    assert scored({name: runs[name] for name in names}).points() == scored(runs).points()


def test_one_rollout_more_or_less_does_not_make_a_score_vanish() -> None:
    whole = [Settled(float(n), "dev", "a", id_, 1.0) for n, id_ in enumerate(EXAMPLES)]
    assert scored({"r": whole}).points() == (Point(3, 1.0, "a", "h"),)
    more = [*whole, Settled(9.0, "dev", "a", "d0", 0.0)]
    assert scored({"r": more}).points() == (Point(3, 1.0, "a", "h"),)
    assert scored({"r": whole[:-1]}).points() == (Point(2, 2 / 3, "a", "h"),)


def test_an_example_that_is_solved_many_times_is_one_example() -> None:
    easy = [Settled(float(n), "dev", "a", "d0", 1.0) for n in range(30)]
    hard = [Settled(50.0 + n, "dev", "b", id_, 0.5) for n, id_ in enumerate(EXAMPLES)]
    dev = scored({"r": [*easy, *hard]})
    assert dev.points() == (Point(1, 1 / 3, "a", "h"), Point(33, 0.5, "b", "h"))
    assert (dev.selection("b", "h", 33), dev.selection("a", "h", 33)) == ("dev", "none")


def test_what_a_second_pass_takes_back_was_never_on_the_curve() -> None:
    lucky = [Settled(float(n), "dev", "a", id_, 1.0) for n, id_ in enumerate(EXAMPLES)]
    again = [Settled(10.0 + n, "dev", "a", id_, 0.0) for n, id_ in enumerate(EXAMPLES)]
    assert scored({"r": lucky + again}).points() == (Point(3, 0.5, "a", "h"),)
