"""Judges the tagged answer of a final response under both profiles at once.

    >>> from whale_envs.search_qa.examples import load_examples
    >>> question = load_examples("mini", "dev")[0]
    >>> verify(question, f"It says so: <answer>{question.gold[0].upper()}</answer>").reward
    1.0

Only what the model wrote as its final response is read: never a prompt, a passage or thinking.

* `standard`: the last complete pair of answer tags outside thinking, innermost where pairs are nested;
  compared as `normalise.exact_match` says.
* `paper`: the published rule (reference §4.1): the last closing tag, the nearest opening tag before it,
  exact match after the published normalisation. (The paper scores with an LLM judge; that is
  `judge.py`, and replaces the reward under either profile where a run has one.)

Reasons: "correct", "wrong_answer", "no_answer" (no complete pair of tags, or nothing in it).

Not covered: judging by a model (`judge.py`), answers without tags.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from whale_envs.core import Profile, Verdict
from whale_envs.search_qa.normalise import exact_match, token_f1
from whale_envs.text import strip_thinking

OPEN, CLOSE = "<answer>", "</answer>"
_TAG = re.compile(r"<\s{0,4}(?P<close>/?)\s{0,4}answer\s{0,4}>", re.IGNORECASE)


class Answerable(Protocol):
    """What the verifier needs of an example."""

    @property
    def gold(self) -> Sequence[str]:
        """The reference answers, at least one, none empty."""


def verify(question: Answerable, response: str, *, profile: Profile = "standard") -> Verdict:
    """The verdict on a final response. Total, and linear in the response."""
    answers = {"standard": read_answer(response), "paper": paper_answer(response)}
    rewards = {name: _reward(question, answer, name) for name, answer in answers.items()}
    answer, reward = answers[profile], rewards[profile]
    given = answer is not None and bool(answer.strip())
    return Verdict(
        reward=reward,
        reason=("correct" if reward else "wrong_answer") if given else "no_answer",
        answer=answer,
        format_ok=given,
        standard=rewards["standard"],
        paper=rewards["paper"],
    )


def read_answer(response: str) -> str | None:
    """The text between the last complete pair of answer tags, or None.

    >>> read_answer("<answer>Rome</answer> no, <Answer> Paris </Answer> <answer>")
    'Paris'
    """
    found, start = None, None
    text = strip_thinking(response)
    for tag in _TAG.finditer(text):
        if not tag["close"]:
            start = tag.end()
        elif start is not None:
            found, start = text[start : tag.start()].strip(), None
    return found


def paper_answer(response: str) -> str | None:
    """What the published rule reads: between the last closing tag and the nearest opening one before."""
    end = response.rfind(CLOSE)
    start = response.rfind(OPEN, 0, max(end, 0))
    return None if end < 0 or start < 0 else response[start + len(OPEN) : end].strip()


def f1(question: Answerable, response: str) -> float:
    """Token F1 of the tagged answer, in [0, 1]; 0 without one."""
    answer = read_answer(response)
    return token_f1(question.gold, answer) if answer else 0.0


def _reward(question: Answerable, answer: str | None, profile: str) -> float:
    rule: Profile = "paper" if profile == "paper" else "standard"
    return float(answer is not None and exact_match(question.gold, answer, rule))
