r"""Prompt-only candidates: one edit of a parent's two prompts, put into the base's file.

    source, change, tags = edited_prompts(rng, base, parent, "math_python", pool)

The edits: other words for one of the prompts, and a worked example in the text in front of the
question. Text that an earlier edit put there is recognised by its marks and replaced.

Not covered: examples as turns of the chat, which prompts cannot express.
"""

from collections.abc import Mapping
from random import Random

from whale_baselines.proposers import library_chess, library_math, library_search
from whale_baselines.proposers.prompts import prompts_of, with_prompts
from whale_baselines.proposers.worked import WorkedExample

_WORDS = {
    "math_python": (library_math.SYSTEM, library_math.USER),
    "search_qa": (library_search.SYSTEM, library_search.USER),
    "chess_puzzles": (library_chess.SYSTEM, library_chess.USER),
}
_ANSWER = {"chess_puzzles": "<move>{answer}</move>"}

BEGIN, END = "Solved before:\n", "\n\nTo solve now:\n"
"""Marks of the examples in a prompt."""


def edited_prompts(
    rng: Random, base: str, parent: str, domain: str, pool: Mapping[str, WorkedExample]
) -> tuple[str, str, tuple[str, ...]]:
    """(source, what is different, tags) of one edit.

    Args:
        rng: of the session.
        base: the file whose tree must stay.
        parent: whose prompts are edited.
        domain: whose words are used.
        pool: worked examples by key.
    """
    prompts = {**prompts_of(base), **prompts_of(parent)}
    edits = [name for name in prompts if name in prompts_of(base)]
    if pool and "USER_PROMPT" in edits:
        edits += ["examples", "examples"]
    if not edits:
        return base, "nothing: the base has no prompt that can be edited", ()
    edit = rng.choice(edits)
    if edit == "SYSTEM_PROMPT":
        prompts[edit] = rng.choice(_WORDS[domain][0])
    elif edit == "USER_PROMPT":
        examples, _ = _parted(prompts[edit])
        prompts[edit] = examples + rng.choice(_WORDS[domain][1])
    else:
        examples, rest = _parted(prompts["USER_PROMPT"])
        if examples and rng.random() < 0.25:
            examples = ""
        else:
            some = rng.sample(sorted(pool), rng.randint(1, min(3, len(pool))))
            examples = BEGIN + "\n\n".join(_example(pool[key], domain) for key in some) + END
        prompts["USER_PROMPT"] = examples + (rest if rng.random() < 0.5 else "{observation}")
    tag = "examples_in_text" if edit == "examples" else edit.lower()
    return with_prompts(base, prompts), f"other words: {tag}", (tag,)


def _parted(prompt: str) -> tuple[str, str]:
    """(examples, the rest) of a user prompt."""
    begun, end, rest = prompt.partition(END)
    return (begun + end, rest) if end and begun.startswith(BEGIN) else ("", prompt)


def _example(one: WorkedExample, domain: str) -> str:
    answer = _ANSWER.get(domain, "{answer}").replace("{answer}", one.answer)
    text = f"{one.question}\n{answer}"
    return text.replace("{observation}", "")  # it would be filled in with the question
