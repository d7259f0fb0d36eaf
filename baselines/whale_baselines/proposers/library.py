"""The library of mechanisms by domain, and the files that plans are written to.

    source = write("math_python", {"first_box": {}}, pool={})
    read_plan(source, "math_python", pool={})                  # {"first_box": {}}

The empty plan is h0: the same messages, the same decisions.

Not covered: which plan to try next, see `mutate.py`.
"""

from collections.abc import Mapping
from functools import cache

from whale_baselines.proposers import library_chess, library_math, library_search
from whale_baselines.proposers.mechanism import Mechanism, Plan, header_of, plan_in
from whale_baselines.proposers.skeletons import finish, start
from whale_baselines.proposers.worked import WorkedExample
from whale_envs.errors import UnknownNameError

_LIBRARIES = {
    "math_python": library_math.mechanisms,
    "search_qa": library_search.mechanisms,
    "chess_puzzles": library_chess.mechanisms,
}


@cache
def library(domain: str) -> Mapping[str, Mechanism]:
    """The domain's mechanisms by name, in the order in which they are written.

    Raises:
        UnknownNameError: there are none for that domain.
    """
    if domain not in _LIBRARIES:
        raise UnknownNameError("environment with mechanisms", domain, _LIBRARIES)
    return {mechanism.name: mechanism for mechanism in _LIBRARIES[domain]()}


def write(domain: str, plan: Plan, pool: Mapping[str, WorkedExample]) -> str:
    """The harness file of a plan.

    Args:
        domain: of the environment.
        plan: mechanisms of the domain, with parameters that they admit.
        pool: worked examples by key.
    """
    draft = start(domain)
    draft.pool = pool
    for name, mechanism in library(domain).items():
        if name in plan:
            mechanism.write(draft, plan[name])
            draft.notes.append(mechanism.say(plan[name]))
    return finish(draft, domain, header_of(plan))


def read_plan(source: str, domain: str, pool: Mapping[str, WorkedExample]) -> Plan:
    """The plan that a file was written to; the empty one where it was not written here."""
    found = plan_in(source)
    mechanisms = library(domain)
    if not isinstance(found, dict):
        return {}
    known = all(name in mechanisms and mechanisms[name].admits(found[name], pool) for name in found)
    return found if known else {}
