"""One page about a search: the tree of candidates, what each changed, its interval, examples that flipped.

    write_lineage(Path("runs/search"), Path("runs/search/lineage.html"))

The page asks nobody for anything: its style (that of `whale-bench view`, with a little more) and its one
script, which chooses the theme, are inlined and allowed by their hashes, nothing else is. All texts of
candidates are escaped, and characters that are invisible or turn the direction of text are shown by name.

Not covered: the rollouts themselves, see `whale-bench view` and the archive's folder; comparing two runs.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from whale_baselines.page import document, static, text
from whale_baselines.play import twelve
from whale_baselines.search.archive import Candidate, Samples, State, read_archive
from whale_baselines.search.log import ScoreKey
from whale_bench.store import RunStore
from whale_bench.view.page import write_page

MOST_NUMBERS = 60
"""Most examples of one kind of flip that are named."""

MOST_LINES = 400
"""Most lines of a difference that are shown."""


def write_lineage(folder: Path, out: Path) -> Path:
    """Writes the page of a search run, whole or not at all; returns where.

    Raises:
        UsageError: the folder is no run of a search, or the page cannot be written.
    """
    settings = RunStore.open(folder).settings
    state = read_archive(folder / "archive")
    title = f"{settings.get('model', 'a model')} on {settings.get('domain', 'a domain')}"
    write_page(lineage_page(state, title, folder.resolve().name).encode(), out)
    return out


def lineage_page(state: State, title: str, where: str) -> str:
    """The page."""
    style = static("whale_baselines.search", "lineage.css")
    return document(f"Lineage: {title}", where, "\n".join(_body(state, title)), style=style)


def _body(state: State, title: str) -> Iterator[str]:
    yield f'<div class="heading"><h1>Lineage: {text(title)}</h1>'
    count = len(state.candidates)
    yield (
        f'<p class="lead">{count} harness{"" if count == 1 else "es"}, {len(state.phases)} '
        f"phase{'' if len(state.phases) == 1 else 's'}, {sum(state.spent.values())} rollouts</p></div>"
    )
    for phase in state.phases:
        yield from _phase(state, phase)
    yield "<h2>Tree</h2>"
    yield '<p class="note">A score is under the weights of the last phase that scored the harness.</p>'
    yield from _tree(state)
    yield "<h2>Harnesses</h2>"
    for one in state.candidates.values():
        yield from _candidate(state, one)


def _phase(state: State, phase: int) -> Iterator[str]:
    begun = state.phases[phase]
    yield f"<h2>Phase {phase}</h2>"
    yield (
        f'<p class="note">Weights {twelve(begun.key.weights_id)}, rule {text(begun.rule)}'
        f"{', prompts only' if begun.prompt_only else ''}. {text(begun.key.conditions)}.</p>"
    )
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Iterations"><table>'
    yield (
        '<thead><tr><th scope="col">Iteration</th><th scope="col">Accepted</th><th scope="col">Success</th>'
        '<th scope="col">Turns</th><th scope="col">Candidates</th>'
        '<th scope="col" class="number">Rollouts</th></tr></thead><tbody>'
    )
    for (number, iteration), end in state.ended.items():
        if number != phase:
            continue
        best = state.candidates[end.accepted]
        names = state.proposed.get((phase, iteration), [])
        yield (
            f'<tr><th scope="row">{iteration}</th><td>{_link(best.name)}</td>'
            f"<td>{_score(best.samples.get(begun.key))}</td><td>{_turns(best.samples.get(begun.key))}</td>"
            f"<td>{', '.join(map(_link, names))}</td>"
            f'<td class="number">{state.spent[number, iteration]:,}</td></tr>'
        )
    yield "</tbody></table></div>"


def _tree(state: State) -> Iterator[str]:
    """Nested lists, without recursion: a chain of candidates may be long."""
    children: dict[str, list[str]] = {}
    for one in state.candidates.values():
        parent = _parent(state, one)
        children.setdefault(parent.name if parent else "", []).append(one.name)
    yield '<ul class="tree">'
    pending: list[str | None] = [*reversed(children.get("", []))]
    while pending:
        name = pending.pop()
        if name is None:
            yield "</ul></li>"
            continue
        yield f"<li>{_node(state, state.candidates[name])}"
        if below := children.get(name):
            yield "<ul>"
            pending += [None, *reversed(below)]
        else:
            yield "</li>"
    yield "</ul>"


def _node(state: State, one: Candidate) -> str:
    found = one.samples.get(_key(state, one))
    why = one.reason or one.proposal.hypothesis
    return (
        f'<div class="node">{_link(one.name)} {_pill(state, one)}{_interval(found)}'
        f'<span>{_score(found)}</span><span class="why">{text(why[:200])}</span></div>'
    )


def _candidate(state: State, one: Candidate) -> Iterator[str]:
    key, parent = _key(state, one), _parent(state, one)
    found = one.samples.get(key)
    yield f'<section class="candidate" id="{one.name}" aria-labelledby="{one.name}-name">'
    yield f'<h3 id="{one.name}-name">{one.name} {_pill(state, one)}</h3>'
    facts = {
        "Proposed in": f"phase {one.phase}, iteration {one.iteration}",
        "Parents": ", ".join(_known_parents(state, one)) or "none",
        "Success": _score(found),
        "Turns": _turns(found),
        "Rollouts": f"{one.rollouts:,}",
        "harness_id": one.harness_id[:19],
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items() if value)
    yield f'<dl class="facts">{rows}</dl>'
    for label, said in (
        ("Hypothesis", one.proposal.hypothesis),
        ("Changes", one.proposal.changes),
        ("Mechanisms", ", ".join(one.proposal.components)),
        ("Refused", one.reason),
    ):
        if said:
            yield f"<p><strong>{label}.</strong> {text(said[:2000])}</p>"
    if parent is not None:
        shared = [both for both in one.samples if both in parent.samples]
        if shared:
            flips = state.flips(parent, one, shared[-1])
            yield f"<p><strong>Gained on {parent.name}.</strong> {_numbers(flips.gained)}</p>"
            yield f"<p><strong>Lost.</strong> {_numbers(flips.lost)}</p>"
        yield _difference(parent, one)
    yield "</section>"


def _difference(parent: Candidate, one: Candidate) -> str:
    lines = list(
        difflib.unified_diff(
            parent.source.splitlines(), one.source.splitlines(), parent.name, one.name, lineterm="", n=2
        )
    )
    kinds = {"+": "add", "-": "del", "@": "at"}
    counts = [sum(line.startswith(mark) for line in lines[2:]) for mark in "+-"]
    shown = "".join(
        f'<span class="{kinds.get(line[:1], "")}">{text(line[:500])}</span>' for line in lines[2:MOST_LINES]
    )
    more = f"<p>{len(lines) - MOST_LINES} more lines</p>" if len(lines) > MOST_LINES else ""
    return (
        f"<details><summary>Difference from {parent.name}: {counts[0]} lines added, {counts[1]} taken away"
        f'</summary><pre class="diff" tabindex="0" role="region" aria-label="Difference of {one.name}">'
        f"{shown}</pre>{more}</details>"
    )


def _key(state: State, one: Candidate) -> ScoreKey:
    """What its newest score is of; its own phase's, where it has none."""
    return next(reversed(one.samples), state.phases[one.phase].key)


def _parent(state: State, one: Candidate) -> Candidate | None:
    """The first of its parents that the archive holds and that is older."""
    for parent in one.proposal.parents:
        found = state.by_id(parent)
        if found is not None and int(found.name[1:]) < int(one.name[1:]):
            return found
    return None


def _known_parents(state: State, one: Candidate) -> list[str]:
    found = [(parent, state.by_id(parent)) for parent in one.proposal.parents]
    return [_link(known.name) if known else text(parent[:19]) for parent, known in found]


def _pill(state: State, one: Candidate) -> str:
    accepted = [phase for phase in state.phases if state.accepted(phase) is one]
    kind = "good" if accepted else "bad" if one.status not in ("scored", "duplicate", "") else ""
    word = "accepted" if accepted else one.status.replace("_", " ") or "open"
    return f'<span class="pill {kind}">{text(word)}</span>'


def _interval(found: Samples | None) -> str:
    if found is None:
        return ""
    score = found.score
    low, mean, high = (round(100 * value, 2) for value in (score.low, score.mean, score.high))
    return (
        f'<svg class="span" role="img" viewBox="0 0 100 10" preserveAspectRatio="none" aria-label="'
        f'{score.mean:.1%}, 95% interval {score.low:.1%} to {score.high:.1%}">'
        '<rect class="track" x="0" y="4.5" width="100" height="1"/>'
        f'<rect class="range" x="{low}" y="3" width="{max(0.5, high - low)}" height="4"/>'
        f'<rect class="point" x="{max(0.0, mean - 1)}" y="0" width="2" height="10"/></svg>'
    )


def _score(found: Samples | None) -> str:
    if found is None:
        return ""
    score, samples = found.score, len(found.rewards)
    often = f", {samples} samples" if samples > 1 else ""
    return f"{score.mean:.1%} [{score.low:.1%}, {score.high:.1%}]{often}"


def _turns(found: Samples | None) -> str:
    return f"{found.mean_turns:.2f}" if found else ""


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_NUMBERS]))
    more = f" and {len(numbers) - MOST_NUMBERS} more" if len(numbers) > MOST_NUMBERS else ""
    return f"{len(numbers)} examples{': ' if numbers else ''}{shown}{more}"


def _link(name: str) -> str:
    return f'<a href="#{name}">{name}</a>'
