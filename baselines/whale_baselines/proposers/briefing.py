"""What a proposing model is told: the standing instructions, and the state of the search.

    system, opening = instructions(brief), situation(brief)

The instructions are the texts in `instructions/`, and the contract of a harness as its module says it.

Not covered: how an archive is laid out, which its own README says.
"""

from importlib.resources import files

from whale_baselines.search.proposal import Brief, Known
from whale_envs.errors import UnknownNameError

MOST_KNOWN = 40
"""Latest harnesses that are listed; the archive holds all of them."""


def instructions(brief: Brief) -> str:
    """The system prompt.

    Raises:
        UnknownNameError: there are no instructions for the domain.
    """
    folder = files("whale_baselines.proposers") / "instructions"
    domain = folder / f"{brief.domain}.md"
    if not domain.is_file():
        valid = [e.name[:-3] for e in folder.iterdir() if e.name not in ("common.md", "prompt_only.md")]
        raise UnknownNameError("environment with instructions", brief.domain, sorted(valid))
    contract = (files("whale_bench.harness") / "base.py").read_text(encoding="utf-8")
    parts = [(folder / "common.md").read_text(encoding="utf-8"), f"```python\n{contract}```\n"]
    parts.append(domain.read_text(encoding="utf-8"))
    if brief.prompt_only:
        parts.append((folder / "prompt_only.md").read_text(encoding="utf-8"))
    return "\n".join(parts)


def situation(brief: Brief) -> str:
    """The first message of a session."""
    by_id = {known.harness_id: known for known in brief.known}

    def name(harness_id: str) -> str:
        return by_id[harness_id].name if harness_id in by_id else harness_id

    slots = ", ".join(f"workspace/slot_{number}.py" for number in range(1, brief.slots + 1))
    latest = brief.known[-MOST_KNOWN:]
    left_out = len(brief.known) - len(latest)
    return "\n".join(
        [
            f"Environment {brief.domain}, search phase {brief.phase}, iteration {brief.iteration}.",
            f"Base harness of this phase: {name(brief.base)}. Accepted so far: {name(brief.accepted)}.",
            f"Frontier (score up, turns down): {', '.join(map(name, brief.frontier)) or 'none'}.",
            f"Slots: {slots}.",
            "",
            "Harnesses of the archive, oldest first"
            + (f" ({left_out} older ones left out):" if left_out else ":"),
            *map(_line, latest),
            "",
            "The folder archive/ holds their sources, scores and trajectories; begin with `list`.",
        ]
    )


def _line(known: Known) -> str:
    score = "no score" if known.score is None else f"score {known.score:.4f}"
    turns = "" if known.turns is None else f", {known.turns:.2f} turns"
    tags = f", {'+'.join(known.components)}" if known.components else ""
    why = f" ({known.reason[:200]})" if known.reason else ""
    return f"* {known.name}: iteration {known.iteration}, {known.status}, {score}{turns}{tags}{why}"
