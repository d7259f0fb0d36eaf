"""Checks a harness file against the contract, without a real model.

    findings = asyncio.run(check_harness("mine.py"))

A finding is one line with file and line. Checked: the file loads and its constants have the right
types; what it imports and reaches for; its options exist in the environment and lie within its bounds;
a few rollouts of each domain in which a scripted model replies with an ordinary action, a call of the
tool, nothing, and nonsense run without a fault; nothing but `view.state` of what a hook is given is
changed; the same calls get the same answers when made twice, and when made in another order in another
process; what it acts with stands in the reply; in Chess Puzzles it does not go by the pieces on the board; no
text or answer of a mini example to score stands in the file; on request, that it differs from a parent in
its prompts only.

Not covered: harnesses that behave differently only later in a rollout (`replaying.py`), and hints in the
prompt or a choice among sampled answers, which take rollouts to find (`canaries.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from whale_bench.harness.answers import holds_answers
from whale_bench.harness.dry_run import Exchange, check_provenance, check_rollouts, line_of, replay
from whale_bench.harness.findings import Finding
from whale_bench.harness.host import HarnessHost, ProcessHarness, read_source
from whale_bench.harness.other_boards import other_boards
from whale_bench.harness.prompt_only import prompt_only
from whale_bench.harness.reach import reaches
from whale_envs import DOMAINS, load_examples
from whale_envs.core import Example
from whale_envs.errors import HarnessFileError

__all__ = ["Exchange", "Finding", "check_harness", "check_rollouts", "check_source", "fitting_domains"]

_BOARDS = 24
"""Puzzles of the mini tier, of no scored split, on which a harness must not go by the board."""

SCORED = ("harness", "dev", "test")
"""Splits whose answers no harness may hold; worked examples come from "weight"."""


async def check_harness(
    path: str | Path,
    domains: tuple[str, ...] | None = None,
    *,
    prompt_only_of: str | None = None,
    scored: Sequence[Example] | None = None,
    unsafe: bool = False,
) -> list[Finding]:
    """Findings about a harness file; none means that the contract holds as far as this looks.

    Args:
        path: the file.
        domains: where to try it; None tries it wherever the environment has all of its ENV_OPTIONS,
            and if there is no such environment, everywhere.
        prompt_only_of: the source of a parent, from which it may differ in its prompts only.
        scored: whose answers and texts it may not hold; None is those of the mini tier. Whoever writes
            harnesses for a score must not learn by asking which texts are scored: give them ().
        unsafe: run it even where it cannot be confined.

    Raises:
        UsageError: it would not be confined here, and `unsafe` is not given.
        ValueError: the parent cannot be read.
    """
    try:
        source = read_source(Path(path))
    except HarnessFileError as error:
        return [Finding("", _placed(str(error), str(path)))]
    return await check_source(
        source, str(path), domains, prompt_only_of=prompt_only_of, scored=scored, unsafe=unsafe
    )


async def check_source(
    source: str,
    name: str,
    domains: tuple[str, ...] | None = None,
    *,
    prompt_only_of: str | None = None,
    scored: Sequence[Example] | None = None,
    unsafe: bool = False,
) -> list[Finding]:
    """As `check_harness`, of a text; `name` is what findings call its file."""
    findings = [Finding("", f"{name}:{line}: {what}") for line, what in reaches(source)]
    if prompt_only_of is not None and (difference := prompt_only(source, prompt_only_of)) is not None:
        findings.append(Finding("", f"{name}:{difference.line}: {difference.message}"))
    hosts = [ProcessHarness(name, source=source, unsafe=unsafe, strict=strict) for strict in (True, False)]
    try:
        async with hosts[0] as harness, hosts[1] as other:
            tried = domains or fitting_domains(harness)
            findings += _out_of_bounds(harness, tried, anywhere=domains is not None)
            for domain in tried:
                findings += _answers(source, name, domain, scored)
                try:
                    exchanges = await check_rollouts(harness, domain)
                    check_provenance(harness, exchanges)
                    await replay(other, domain, exchanges)
                    if domain == "chess_puzzles":
                        puzzles = load_examples(domain, "mini", "weight")[:_BOARDS]
                        findings += filter(None, [await other_boards(harness, puzzles)])
                except HarnessFileError as error:
                    findings.append(Finding(domain, _placed(str(error), name)))
    except HarnessFileError as error:
        return [Finding("", _placed(str(error), name))]
    return list(dict.fromkeys(findings))


def fitting_domains(harness: HarnessHost) -> tuple[str, ...]:
    """The domains whose environment has all of the harness's options, else all domains."""
    options = harness.settings.env_options.keys()
    fitting = tuple(name for name, d in DOMAINS.items() if options <= d.module.ENV.BOUNDS.keys())
    return fitting or tuple(DOMAINS)


def _out_of_bounds(harness: HarnessHost, domains: tuple[str, ...], *, anywhere: bool) -> list[Finding]:
    """Options that the host would hold within bounds: in any of the domains, or else in all of them."""
    settings = harness.settings
    asked = {**settings.env_options, **({"max_turns": settings.max_turns} if settings.max_turns else {})}
    findings = []
    for name, value in asked.items():
        bounds: Mapping[str, tuple[int, int]] = {
            domain: DOMAINS[domain].module.ENV.BOUNDS[name]
            for domain in domains
            if name in DOMAINS[domain].module.ENV.BOUNDS
        }
        outside = [domain for domain, (low, high) in bounds.items() if not low <= value <= high]
        if outside and (anywhere or len(outside) == len(bounds)):
            constant = "MAX_TURNS" if name == "max_turns" else "ENV_OPTIONS"
            low, high = bounds[outside[0]]
            place = f"{harness.name}:{line_of(harness.source, constant)}"
            findings.append(Finding(outside[0], f"{place}: {name} is {value}, outside {low} to {high}"))
    if settings.max_tokens is not None and settings.max_tokens < 1:
        place = f"{harness.name}:{line_of(harness.source, 'MAX_TOKENS')}"
        findings.append(Finding("", f"{place}: MAX_TOKENS is {settings.max_tokens}, below 1"))
    return findings


def _answers(source: str, name: str, domain: str, scored: Sequence[Example] | None) -> list[Finding]:
    examples = scored
    if examples is None:
        examples = [example for split in SCORED for example in load_examples(domain, "mini", split)]
    return [
        finding._replace(message=f"{name}:{finding.message}") for finding in holds_answers(source, examples)
    ]


def _placed(message: str, name: str) -> str:
    """With a line, also where only the file is known."""
    if Finding("", message).file == name:
        return message
    return f"{name}:1: {message.removeprefix(f'{name}: ')}"
