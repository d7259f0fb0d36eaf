"""What is trained on, in all three domains, against the backend's own log of what it was asked and said."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tiny_model import write_folder
from whale_baselines.sequences import IGNORED, admit, is_accepted, to_row

from whale_bench.engine import Agent, Task, rollout
from whale_bench.evaluation import EvalPlan, open_resources
from whale_bench.harness.host import InProcessHarness, shipped_harnesses
from whale_bench.models.base import Generation, Usage
from whale_bench.models.chat_template import load_tokenizer
from whale_bench.models.folder import FolderBackend, hash_folder
from whale_bench.records import training_sequences
from whale_envs import DOMAINS, load_examples

SEARCHES = Path(__file__).parents[2] / "examples" / "two_searches.py"
CALLS = {
    "math_python": "Let me see.\n```python\nprint(12345 * 3)\n```",
    "search_qa": "I look. <search>capital of France</search>",
}
"""What is said in a first turn, so that a tool answers."""
END = 2


class Speaker(FolderBackend):
    """Says a tool call first and the gold action then, in ids that its tokenizer would not choose."""

    fixture = True

    def __init__(self, folder, domain):
        super().__init__("fake/speaker", hash_folder(folder), load_tokenizer(folder), 100_000, 400)
        self.domain = domain
        self.log = []
        """(prompt ids, sampled ids) of every call."""

    async def generate(self, request):
        text = request.host.oracle_action()
        if self.domain in CALLS and not self.log:
            text = CALLS[self.domain]
        ids = (*(id_ for character in text for id_ in self.encode(character)), END)
        self.log.append((request.prompt_ids, ids))
        usage = Usage(len(request.prompt_ids), len(ids))
        return Generation(text=text, prompt_ids=request.prompt_ids, sampled_ids=ids, usage=usage)

    async def _sample(self, job):
        raise NotImplementedError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("masks") / "base")


def slow_rows(log):
    """[(id, sampled?)] of each row, by walking over every token of every call."""
    rows = []
    for prompt, sampled in log:
        row = rows[-1] if rows else []
        if not row or len(prompt) < len(row) or any(prompt[i] != row[i][0] for i in range(len(row))):
            row = []
            rows.append(row)
        row.extend((token, False) for token in prompt[len(row) :])
        row.extend((token, True) for token in sampled)
    return rows


async def play(folder, domain, count=4):
    """(record, the backend's log) of some rollouts."""
    source = SEARCHES.read_text() if domain == "search_qa" else shipped_harnesses()[domain]
    found = []
    async with AsyncExitStack() as stack:
        resources = await open_resources(EvalPlan(domain=domain, model="scripted/oracle"), stack)
        harness = await stack.enter_async_context(InProcessHarness(source, domain))
        examples = load_examples(domain, "mini", "weight")[:count]
        task = Task(domain, examples, token_budget=100_000, resources=resources)
        for example in examples:
            backend = Speaker(folder, domain)
            key = f"weight:{example.id}:0"
            record = await rollout(task, Agent(backend, harness), example, sample=0, seed=1, key=key)
            found.append((record, backend.log))
    return found


@pytest.mark.parametrize("domain", DOMAINS)
async def test_labels_are_exactly_what_the_backend_said_where_it_said_it(folder, domain):
    played = await play(folder, domain)
    assert any(len(log) > 1 for _, log in played)
    for record, log in played:
        rows = [to_row(sequence) for sequence in training_sequences(record)]
        assert [list(zip(row.ids, row.labels, strict=True)) for row in rows] == [
            [(token, token if sampled else IGNORED) for token, sampled in row] for row in slow_rows(log)
        ]
        said = [token for _, sampled in log for token in sampled]
        assert [label for row in rows for label in row.labels if label != IGNORED] == said
        assert said.count(END) == len(log)  # every end of a turn is trained on
    admitted = admit([record for record, _ in played])
    good = [log for record, log in played if is_accepted(record)]
    assert good
    assert admitted.tokens == admitted.sampled == sum(len(sampled) for log in good for _, sampled in log)


@pytest.mark.parametrize("domain", CALLS)
async def test_what_a_tool_answers_is_in_the_context_and_no_label(folder, domain):
    (record, log), *_ = await play(folder, domain, count=1)
    tokenizer = load_tokenizer(folder)
    sequences = training_sequences(record)
    assert len(sequences) == 1 < len(log)  # one row: the second prompt goes on with the first reply
    row = to_row(sequences[0])
    shown = tokenizer.decode([i for i, label in zip(row.ids, row.labels, strict=True) if label == IGNORED])
    trained = tokenizer.decode([label for label in row.labels if label != IGNORED])
    assert {"math_python": "37035", "search_qa": "Paris"}[domain] in shown
    assert CALLS[domain] in trained
    assert CALLS[domain] not in shown
