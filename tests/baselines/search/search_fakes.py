"""A scripted proposer, a model that does what the prompt tells it, and harnesses of a line."""

import asyncio
import random
import re
import zlib
from contextlib import AsyncExitStack
from pathlib import Path

import chess
from whale_baselines.play import Jobs
from whale_baselines.search.archive import Archive, log_path
from whale_baselines.search.proposal import Proposal, Session
from whale_baselines.search.recipe import SearchRecipe
from whale_baselines.search.search import HarnessSearch

from whale_bench.engine import Task
from whale_bench.evaluation import open_resources
from whale_bench.harness.host import shipped_harnesses
from whale_bench.ledger import Charge, Ledger
from whale_bench.models.base import Backend, Generation, Usage
from whale_bench.plan import EvalPlan
from whale_bench.store import RunStore
from whale_envs import load_examples
from whale_envs.errors import InfrastructureError

H0 = shipped_harnesses()["chess_puzzles"]
CHARGE = Charge(
    proposer_calls=2, proposer_prompt_tokens=300, proposer_sampled_tokens=40, proposer_micro_usd=7
)


def told(skill, note="", extra=""):
    """h0 with a prompt that says how well to play, see `Obedient`."""
    source = H0.replace('"You are solving', f'"SKILL {skill} {note} You are solving')
    assert source != H0
    return source + extra


BROKEN = "from whale_bench.harness import *\nclass Harness(BaseHarness):\n    def messages(self, view)\n"
LOOP = "import time\ntime.sleep(10**6)\n"
HARNESS = "from whale_bench.harness import *\nclass Harness(BaseHarness):\n"
RAISES = HARNESS + "    def messages(self, view):\n        raise ValueError('no such luck')\n"
RAISES_SOMETIMES = told(
    0.9,
    "flaky",
    "\n_messages = Harness.messages\n\n\ndef messages(self, view):\n"
    "    if view.seed % 4 == 0:\n        raise ValueError('every fourth')\n"
    "    return _messages(self, view)\n\n\nHarness.messages = messages\n",
)


def whispers(examples, skill, note=""):
    """A harness with a chess policy in disguise: it knows the solutions by a checksum of the position, as
    numbers in the list of legal moves, and writes them below that list."""
    table = {}
    for example in examples:
        board = chess.Board(example.fen)
        board.push_uci(example.trigger)
        moves = sorted(move.uci() for move in board.legal_moves)
        table[zlib.crc32(board.fen().split()[0].encode())] = moves.index(example.gold[0])
    text = " ".join(f"{checksum}:{number}" for checksum, number in table.items())
    extra = (
        "\n\nimport re\nimport zlib\n\n"
        f"_KNOWN = dict(map(int, one.split(':')) for one in {text!r}.split())\n"
        "_messages = Harness.messages\n\n\ndef _known(number):\n    return _KNOWN.get(number)\n\n\n"
        "def messages(self, view):\n"
        "    chat = _messages(self, view)\n"
        "    moves = sorted(re.findall(r'\\[([a-h][1-8][a-h][1-8][qrbn]?)\\]', view.observation))\n"
        "    place = re.search(r'FEN: (\\S+)', view.observation)[1]\n"
        "    number = _known(zlib.crc32(place.encode()))\n"
        "    if number is not None:\n"
        "        chat[-1]['content'] += '\\nA move worth a look: ' + moves[number]\n"
        "    return chat\n\n\nHarness.messages = messages\n"
    )
    return told(skill, note, extra)


class Obedient(Backend):
    """Plays the gold move with the chance that the prompt names; a pure function of the request."""

    fixture = True
    name = "scripted/obedient"
    default_concurrency = 8

    def __init__(self, *, weights_id="scripted:obedient", dies_at=None, fails=()):
        self.weights_id = weights_id
        self.calls = 0
        self.prompts = []
        self.dies_at = dies_at
        self.fails = fails

    async def generate(self, request):
        self.calls += 1
        number = self.calls
        await asyncio.sleep(0)
        if number == self.dies_at:
            raise Killed
        if number in self.fails:
            raise InfrastructureError("the server went away")
        prompt = "\n".join(message.content for message in request.messages)
        found = re.search(r"SKILL ([\d.]+)", prompt)
        rng = random.Random(request.seed)
        gold = rng.random() < (float(found[1]) if found else 0.3)
        text = request.host.oracle_action() if gold else request.host.random_action(rng)
        usage = Usage(prompt_tokens=len(prompt), sampled_tokens=len(text))
        return Generation(text=text, raw_text=text, usage=usage)


class Killed(BaseException):
    """Stands for a process that ends here."""


class Scripted:
    """Proposes sources from a list of sessions, in order of the iteration."""

    name = "scripted"

    def __init__(self, *sessions, problem=""):
        self.sessions = sessions
        self.briefs = []
        self.problem = problem

    async def propose(self, brief):
        self.briefs.append(brief)
        assert list(brief.workspace.iterdir()) == []
        sources = self.sessions[(brief.iteration - 2) % len(self.sessions)] if self.sessions else ()
        proposals = tuple(
            source
            if isinstance(source, Proposal)
            else Proposal(source=source, hypothesis=f"candidate {n}", parents=(brief.accepted,))
            for n, source in enumerate(sources)
        )
        return Session(proposals, CHARGE, self.problem, ({"said": "I try."},))


def recipe_of(**changes):
    return SearchRecipe(**{"proposer": "scripted", "examples": 16, "smoke": 1, **changes})


async def search(
    folder,
    proposer,
    iterations,
    *,
    recipe=None,
    backend=None,
    domain="chess_puzzles",
    incoming=H0,
    phase=1,
    concurrency=None,
    examples=None,
):
    """Begins or goes on; the lines of this launch, and who is accepted."""
    recipe, backend = recipe or recipe_of(), backend or Obedient()
    plan = EvalPlan(
        domain=domain, model="scripted/random", split="harness", n=recipe.examples, seed=recipe.seed
    )
    examples = examples or load_examples(domain, "mini", "harness")[: recipe.examples]
    async with AsyncExitStack() as stack:
        if (folder / "run.toml").exists():
            store = RunStore.open(folder)
        else:
            store = RunStore.create(folder, {"domain": domain, "seed": recipe.seed}, incoming)
        stack.enter_context(store)
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite"))
        archive = Archive(folder / "archive")
        resources = await open_resources(plan, stack)
        task = Task(domain, examples, resources=resources)
        jobs = Jobs(store, ledger, recipe.seed, concurrency)
        found = HarnessSearch(recipe, plan, task, backend, jobs, archive, proposer)
        await found.begin(incoming, backend.weights_id, phase=phase)
        lines = [await found.iterate() for _ in range(iterations - found.iterations)]
        return lines, found.accepted


def accounts(folder):
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.open_reservations() == []
        return ledger.charged(), ledger.executed()


def recorded(folder):
    """Rollouts by key."""
    return {record.key: record for record in RunStore.open(folder).rollouts()}


def texts(folder: Path) -> dict[str, str]:
    """Every file of an archive, and its log, without the draws of examinations: they are secrets of a run."""
    log = re.sub(r'("event":"examined".*?"seed":)\d+', r"\1_", log_path(folder).read_text())
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    } | {"the log": log}
