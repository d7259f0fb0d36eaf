"""`whale/SearchQA-v0`: open-domain questions, a search tool, a short answer in tags.

Description: the agent may search a corpus of passages, and ends the episode with a response whose last
`<answer>…</answer>` holds a short answer.

Action Space: `UnicodeText`. A call of the tool, {"tool": "search", "arguments": {"query": …}}; anything
else is the final response.

Observation Space: `UnicodeText`. At first the question; after a call a JSON object whose `result` holds
numbered passages, or in brackets why there are none.

Starting State: a question of the split.

Reward: 1 if the tagged answer is one of the reference answers, or, where the environment has a judge,
if the judge says so; else 0.

Episode End: terminated by the final response, with the verdict's reason ("correct", "wrong_answer",
"no_answer"); truncated as "max_turns" by a call on the last turn.

Information: beside the common keys, `tool_calls`, `tool_errors` (calls that could not be made) and
`searches` (queries that were run); at the end also `format_ok`, `exact_match`, `token_f1`,
`retrieval_accuracy` (1 where a passage that was shown held a reference answer) and, only where that is 1,
`extraction_accuracy` (whether the response was right): its mean is over the rollouts that had
retrieved the answer. Neither is there for a question to be answered by yes or no. With a judge:
`judge_calls`, `judge_fallback`, `judge_prompt_tokens` and `judge_sampled_tokens`.

Arguments: tier, split, profile, max_turns (2, at most 16); topk (1, at most 10), passages per search;
max_doc_tokens (200, at most 1,024), length of a passage by `retrieval.cut`; closed_book (0), 1 runs
no search; retriever, what searches, else the embedded ranker over the tier's corpus; judge.

Version History: v0, first version.

Not covered: several queries in one call, other tools.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol

from whale_envs.core import ExampleSet, TextEnv, ToolCall, Transition, Verdict, parse_action
from whale_envs.retrieval.base import Passage, Retriever
from whale_envs.search_qa.examples import SearchQuestion, load_examples
from whale_envs.search_qa.normalise import stands_in
from whale_envs.search_qa.passages import TITLE_CHARS, show, shown
from whale_envs.search_qa.tools import BOUNDS, NO_RESULTS, read_call, result_text
from whale_envs.search_qa.verifier import CLOSE, OPEN, f1, verify

ENV_ID = "whale/SearchQA-v0"

CLOSED_BOOK = "[there is no search in this run: answer from memory]"


class Judgement(NamedTuple):
    """What a judge said of an answer, and what that cost."""

    correct: bool | None
    """None where the judge gave no verdict; exact match then stands."""
    calls: int = 0
    """Requests to the judge's model; 0 where the verdict was known already."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0


class Judge(Protocol):
    """Says whether an answer means one of the reference answers."""

    async def judge(self, question: str, golds: Sequence[str], answer: str) -> Judgement:
        """The judgement; never raises for what the judge's model does."""


class SearchQAEnv(TextEnv):
    """See the module's docstring."""

    domain = "search_qa"
    OBSERVATION_CHARS = 262_144
    DEFAULTS: ClassVar = {"max_turns": 2, "topk": 1, "max_doc_tokens": 200, "closed_book": 0}
    BOUNDS: ClassVar = {"max_turns": (1, 16), **BOUNDS, "closed_book": (0, 1)}

    def __init__(
        self,
        *,
        retriever: Retriever | None = None,
        judge: Judge | None = None,
        tier: str = "mini",
        **options: Any,
    ) -> None:
        super().__init__(tier=tier, **options)
        self._tier = tier
        self._retriever = retriever
        self._judge_model = judge
        self._clear()

    @classmethod
    def _load(cls, tier: str, split: str) -> ExampleSet[SearchQuestion]:
        return load_examples(tier, split)

    def _clear(self) -> None:
        self._tool_calls = self._tool_errors = self._searches = 0
        self._shown: list[str] = []
        self._final: Verdict | None = None
        self._response = ""
        self._judgement: Judgement | None = None
        self._outcome: dict[str, float] | None = None
        """What `_measure` found at the end; asked for more than once."""

    def _begin(self, example: SearchQuestion) -> str:
        self._clear()
        return example.question

    async def _advance(self, action: str) -> Transition:
        call = parse_action(action)
        if isinstance(call, ToolCall):
            return await self._call(call)
        verdict = verify(self._example, call.text, profile=self.profile)
        self._response = call.text
        if self._judge_model is not None and verdict.format_ok:
            verdict = await self._judged(verdict, self._judge_model)
        self._final = verdict
        return Transition("", "answered", "The answer was taken.", verdict.reason)

    async def _call(self, call: ToolCall) -> Transition:
        self._tool_calls += 1
        search = read_call(call, topk=self.options["topk"], max_doc_tokens=self.options["max_doc_tokens"])
        if isinstance(search, str):
            self._tool_errors += 1
            return Transition(result_text(search), "bad_call", search)
        if self.options["closed_book"]:
            return Transition(result_text(CLOSED_BOOK), "closed_book", CLOSED_BOOK)
        if self._retriever is None:
            from whale_envs.search_qa.retrievers import shared_retriever

            self._retriever = shared_retriever(self._tier)
        (hits,) = await self._retriever.search([search.query], search.topk)
        self._searches += 1
        if not hits:
            return Transition(result_text(NO_RESULTS), "no_results", "The search found nothing.")
        passages = [hit.passage for hit in hits[: search.topk]]
        self._shown += [_text(passage, search.max_doc_tokens) for passage in passages]
        text = result_text(show(passages, max_tokens=search.max_doc_tokens))
        return Transition(text, "ok", f"The search found {len(passages)} passages.")

    async def _judged(self, verdict: Verdict, judge: Judge) -> Verdict:
        """The verdict with the judge's word for the reward; as it was where the judge gave none."""
        assert verdict.answer is not None
        said = self._judgement = await judge.judge(self._example.question, self._example.gold, verdict.answer)
        if said.correct is None:
            return verdict
        return Verdict(
            reward=float(said.correct),
            reason="correct" if said.correct else "wrong_answer",
            answer=verdict.answer,
            format_ok=True,
            standard=verdict.standard,
            paper=verdict.paper,
        )

    def _judge(self, stop_condition: str) -> Verdict:
        return self._final or Verdict(reward=0.0, reason=stop_condition, standard=0.0, paper=0.0)

    def _counters(self) -> dict[str, float]:
        counters: dict[str, float] = {
            "tool_calls": self._tool_calls,
            "tool_errors": self._tool_errors,
            "searches": self._searches,
        }
        if self._verdict is None:  # what follows depends on the reference answers
            return counters
        if self._outcome is None:
            self._outcome = self._measure(self._verdict)
        return counters | self._outcome

    def _measure(self, verdict: Verdict) -> dict[str, float]:
        """The metrics that depend on the reference answers."""
        final = self._final
        exact = final and (final.standard if self.profile == "standard" else final.paper)
        found: dict[str, float] = {
            "format_ok": int(final is not None and final.format_ok),
            "exact_match": int(bool(exact)),
            "token_f1": float(f1(self._example, self._response)),
        }
        if not self.options["closed_book"] and not _yes_or_no(self._example.gold):
            retrieved = any(stands_in(self._example.gold, text) for text in self._shown)
            found["retrieval_accuracy"] = int(retrieved)
            if retrieved:
                found["extraction_accuracy"] = int(verdict.correct)
        if self._judgement is not None:
            found |= {
                "judge_calls": self._judgement.calls,
                "judge_fallback": int(self._judgement.correct is None),
                "judge_prompt_tokens": self._judgement.prompt_tokens,
                "judge_sampled_tokens": self._judgement.sampled_tokens,
            }
        return found

    def oracle_action(self) -> str:
        return f"{OPEN}{self._example.gold[0]}{CLOSE}"

    def random_action(self, rng: Random) -> str:
        return f"{OPEN}{rng.choice(self._example.question.split() or ['?'])}{CLOSE}"


def _text(passage: Passage, max_tokens: int) -> str:
    """What a model was shown of a passage, as plain text."""
    return f"{passage.title[:TITLE_CHARS]}\n{shown(passage, max_tokens)}"


def _yes_or_no(golds: Sequence[str]) -> bool:
    """Whether the words of the answer say nothing about where it was found."""
    return all(gold.strip().casefold() in ("yes", "no") for gold in golds)
