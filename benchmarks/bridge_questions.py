"""Do bridge questions need a second search? Scripted agents with one query and with two, every question.

    python benchmarks/bridge_questions.py                 # mini and factbook, all splits

Four agents play each question through the rollout engine and never answer; what counts is whether a
passage that was shown held a reference answer (`retrieval_accuracy`):

    one           searches for the question itself, as h0 does: one passage of at most 200 words
    one, top 3    the same with three whole passages
    two, top 3    searches for the question, then for the first name in the passages that the question
                  does not have: no use is made of the reference answer
    told, top 3   its second query is the title of the last passage that the question needs and the
                  question's words: about the most that a second query can do

Not covered: models; whether what was found is understood.
"""

import argparse
import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial

from rich.console import Console
from rich.table import Table

from whale_bench.engine import Agent, Task, rollout
from whale_bench.harness.host import InProcessHarness
from whale_bench.models.base import Request
from whale_bench.models.scripted import ScriptedModel
from whale_envs import SPLITS, ExampleSet, load_examples
from whale_envs.search_qa.corpora import load_corpus
from whale_envs.search_qa.examples import CORPUS_OF_TIER
from whale_envs.search_qa.retrievers import shared_retriever

NAME = re.compile(r"\b[A-Z][\w'’-]*(?:\s+(?:(?:of|the|de|van|von|da|di)\s+)*[A-Z][\w'’-]*)*")
HARNESS = """
import json
from whale_bench.harness import Act, BaseHarness

class Harness(BaseHarness):
    MAX_TURNS = {turns}
    ENV_OPTIONS = {{"topk": {topk}, "max_doc_tokens": {words}}}

    def read(self, reply, view):
        if len(view.turns) + 1 >= view.max_turns:
            return Act(reply.text)
        return Act(json.dumps({{"tool": "search", "arguments": {{"query": reply.text}}}}))
"""


def unseen_name(question: str, result: str) -> str:
    """The first name in the passages that the question does not have."""
    asked = question.lower()
    names = (name for line in result.split("\n") for name in NAME.findall(line))
    return next((name for name in names if name != "Document" and name.lower() not in asked), "")


async def accuracy(tier: str, topk: int, second: Callable[[str, str], str] | None) -> dict[str, float]:
    """Retrieval accuracy by kind of question."""
    everything = [example for split in SPLITS for example in load_examples("search_qa", tier, split)]
    examples = ExampleSet(everything, name=f"search_qa/{tier}")
    source = HARNESS.format(turns=3 if second else 2, topk=topk, words=200 if topk == 1 else 1_024)
    harness = InProcessHarness(source, "scripted queries")

    def reply(request: Request) -> str:
        said = [message.content for message in request.messages if message.role == "user"]
        if len(said) == 1:
            return said[0]
        if len(said) == 2 and second:
            return second(said[0], json.loads(said[1])["result"]) or said[0]
        return "<answer>unknown</answer>"

    agent = Agent(ScriptedModel(reply), harness)
    task = Task("search_qa", examples, resources={"retriever": shared_retriever(tier)})
    found: dict[str, list[float]] = defaultdict(list)
    for example in examples:
        record = await rollout(task, agent, example, sample=0, seed=0, key=example.id)
        for name, value in example.groups:
            if name == "kind":
                found[value].append(record.metrics["retrieval_accuracy"])
    return {f"{kind} ({len(values)})": sum(values) / len(values) for kind, values in sorted(found.items())}


def _told(last: Mapping[str, str], question: str, _: str) -> str:
    return f"{last[question]} {question}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", action="append", choices=[*CORPUS_OF_TIER])
    for tier in parser.parse_args().tier or ["mini", "factbook"]:
        titles = {p.id: p.title for p in load_corpus(CORPUS_OF_TIER[tier])}
        asked = [e for split in SPLITS for e in load_examples("search_qa", tier, split)]
        last = {e.question: titles[e.support[-1]] for e in asked}
        agents = {
            "one": (1, None),
            "one, top 3": (3, None),
            "two, top 3": (3, unseen_name),
            "told, top 3": (3, partial(_told, last)),
        }
        rows = {name: asyncio.run(accuracy(tier, *settings)) for name, settings in agents.items()}
        table = Table(title=f"retrieval accuracy, {tier}")
        for column in ("kind (questions)", *rows):
            table.add_column(column)
        for kind in rows["one"]:
            table.add_row(kind, *(f"{row[kind]:.3f}" for row in rows.values()))
        Console().print(table)


if __name__ == "__main__":
    main()
