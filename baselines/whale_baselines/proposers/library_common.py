"""Mechanisms that every domain admits, made for each with its own words.

Not covered: what only one domain has, see `library_math.py`, `library_search.py`, `library_chess.py`.
"""

from collections.abc import Callable
from typing import Any

from whale_baselines.proposers.draft import Draft
from whale_baselines.proposers.mechanism import KEYS, Mechanism, Params

EXAMPLES_WEIGHT = 12
"""Of worked examples, which are known to matter most for small models."""


def prompts(system: tuple[str, ...], user: tuple[str, ...]) -> list[Mechanism]:
    """Other words for the two prompts; these are all that a prompt-only search can change."""

    def write_system(draft: Draft, params: Params) -> None:
        draft.system = system[params["variant"]]

    def write_user(draft: Draft, params: Params) -> None:
        draft.user = user[params["variant"]]

    return [
        Mechanism(
            name="system_prompt",
            summary="System prompt in other words (variant {variant}).",
            why="A role and a rule that are said plainly may be kept better.",
            write=write_system,
            choices={"variant": tuple(range(len(system)))},
        ),
        Mechanism(
            name="user_prompt",
            summary="User prompt in other words (variant {variant}).",
            why="The instruction that stands last before the reply weighs most.",
            write=write_user,
            choices={"variant": tuple(range(len(user)))},
        ),
    ]


def examples(forms: dict[str, str]) -> Mechanism:
    """Worked examples as turns of the chat, which no prompt text can express.

    Args:
        forms: how an answer is said, by name, with `{answer}` where it stands.
    """

    def write(draft: Draft, params: Params) -> None:
        draft.examples = tuple(draft.pool[key] for key in params[KEYS])
        draft.answer_form = forms[params["form"]]
        if params["instructions"] == "none":
            draft.system, draft.user = "", "{observation}"

    return Mechanism(
        name="worked_examples",
        summary="Shows {keys} worked examples as turns (answers {form}, instructions: {instructions}).",
        why="A model that does not keep a form when it is told to does so when it has seen it.",
        write=write,
        choices={"form": tuple(forms), "instructions": ("none", "h0")},
        examples=True,
        weight=EXAMPLES_WEIGHT,
    )


def turn_budget(turns: tuple[int, ...]) -> Mechanism:
    def write(draft: Draft, params: Params) -> None:
        draft.max_turns = params["turns"]

    return Mechanism(
        name="turn_budget",
        summary="At most {turns} turns.",
        why="The task may need more turns than h0 has, or lose itself in those that it has.",
        write=write,
        choices={"turns": turns},
    )


def token_cap(tokens: tuple[int, ...]) -> Mechanism:
    def write(draft: Draft, params: Params) -> None:
        draft.max_tokens = params["tokens"]

    return Mechanism(
        name="token_cap",
        summary="At most {tokens} sampled tokens a turn.",
        why="A short answer comes at once or not at all, and what follows it can only spoil it.",
        write=write,
        choices={"tokens": tokens},
    )


def compact_history(keep: tuple[int, ...], why: str) -> Mechanism:
    def write(draft: Draft, params: Params) -> None:
        draft.keep = params["keep"]

    return Mechanism(
        name="compact_history",
        summary="Shows only the latest turns (keep {keep}).",
        why=why,
        write=write,
        choices={"keep": keep},
    )


def state_line(statements: list[str], words: str, what: str) -> Mechanism:
    """A line at the end of the chat, between turns.

    Args:
        statements: set the names that `words` uses, over `view`; `left` is there already.
        words: the line, as an f-string's inside.
        what: the line says.
    """

    def write(draft: Draft, params: Params) -> None:  # noqa: ARG001 - it has none
        lines = [*statements, "left = view.max_turns - len(view.turns)"]
        lines.append(f'chat[-1]["content"] += f"\\n\\n{words} Turns left: {{left}}."')
        draft.tail += ["if view.turns:", *("    " + line for line in lines)]

    return Mechanism(
        name="state_line",
        summary=f"A line between turns that says {what}.",
        why="A model that sees what is done and what is left need not reconstruct it from the chat.",
        write=write,
    )


def stop_repeats() -> Mechanism:
    def write(draft: Draft, params: Params) -> None:  # noqa: ARG001
        draft.stop.append("repeats(view)")
        draft.helpers.append(
            "def repeats(view: View) -> bool:\n"
            '    """Whether the last two replies were the same and led nowhere."""\n'
            "    latest = view.turns[-2:]\n"
            '    fruitless = all(turn.event != "ok" for turn in latest)\n'
            "    return len(latest) == 2 and fruitless and latest[0].reply.text == latest[1].reply.text"
        )

    return Mechanism(
        name="stop_repeats",
        summary="Stops when the model says the same twice to no effect.",
        why="A model that repeats itself goes on doing so; its turns are spent for nothing.",
        write=write,
    )


def worded(
    name: str, summary: str, why: str, wordings: tuple[str, ...], write: Callable[[Draft, str], None]
) -> Mechanism:
    """A mechanism whose one parameter is which of some wordings it uses."""

    def add(draft: Draft, params: Params) -> None:
        write(draft, wordings[params["wording"]])

    return Mechanism(
        name=name,
        summary=summary + " (wording {wording}).",
        why=why,
        write=add,
        choices={"wording": tuple(range(len(wordings)))},
    )


def plain(
    name: str, summary: str, why: str, write: Callable[[Draft, Params], None], **choices: tuple[Any, ...]
) -> Mechanism:
    """A mechanism with plain parameters."""
    return Mechanism(name=name, summary=summary, why=why, write=write, choices=choices)
