"""Small runs of the three domains whose rollouts think, call tools, fail, and try to break a page."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from whale_bench import EvalPlan, Generation, Request, evaluate
from whale_bench.models import Backend
from whale_bench.models.base import Usage
from whale_bench.models.scripted import ScriptedModel

HOSTILE = (
    "</script><script>window.pwned = 1</script><img src=x onerror=alert(1)> <!-- {{script}} "
    "'\"><svg onload=alert(2)> \u202eevil\u202c \u0007bell \u200b zero &lt;b&gt; [x](javascript:alert(3))"
)

CODE = '''def count(total, coins):
    """Ways to pay `total`; <b>not</b> markup."""
    ways = [1] + [0] * total  # one way to pay nothing
    for coin in coins:
        for value in range(coin, total + 1):
            ways[value] += ways[value - coin]
    return ways[total]


print("ways:", count(65, [2, 9, 13, 20]), 3.5e-2)'''


def chess(request: Request) -> str:
    rng = Random(request.seed)
    move = request.host.oracle_action() if rng.random() < 0.8 else request.host.random_action(rng)
    if rng.random() < 0.1:
        return f"I cannot see a move. {HOSTILE}"
    return f"<think>{move} is forcing.\nOther moves lose time.</think><move>{move}</move>"


def math(request: Request) -> str | Generation:
    rng = Random(request.seed)
    if len(request.messages) == 1 and rng.random() < 0.7:
        return f"<think>Count, then check.</think>I will run this:\n```python\n{CODE}\n```\n"
    answer = request.host.oracle_action() if rng.random() < 0.7 else r"\boxed{7}"
    return f"{HOSTILE if rng.random() < 0.2 else 'So'} the answer is {answer}."


def search(request: Request) -> str:
    rng = Random(request.seed)
    if len(request.messages) == 2 and rng.random() < 0.8:
        return (
            f"<search>{request.host.random_action(rng)[8:-9]} {request.messages[-1].content[10:60]}</search>"
        )
    return request.host.oracle_action() if rng.random() < 0.7 else f"<answer>{HOSTILE}</answer>"


BUDGETS = {"math_python": 66}
"""Words that a rollout may say: of Math's, those that call the tool and then say much are cut."""

REPLIES = {"chess_puzzles": chess, "math_python": math, "search_qa": search}


class Counted(ScriptedModel):
    """Replies that have a size."""

    async def generate(self, request: Request) -> Generation:
        said = await super().generate(request)
        words = sum(len(message.content.split()) for message in request.messages)
        return Generation(text=said.text, raw_text=said.raw_text, usage=Usage(words, len(said.text.split())))


def make_run(domain: str, folder: Path, *, n: int = 8, k: int = 4, backend: Backend | None = None) -> Path:
    """A finished run of a scripted model."""
    model: Any = backend or Counted(REPLIES[domain])
    plan = EvalPlan(domain=domain, model="scripted/thinker", n=n, k=k, token_budget=BUDGETS.get(domain))
    asyncio.run(evaluate(plan, folder, backend=model))
    return folder
