"""The real weight operator in the loop: real updates of a tiny model on recorded rollouts."""

import asyncio
import threading
from contextlib import nullcontext

import pytest
import torch
from test_rsft_loop import phase_of
from tiny_model import write_folder
from whale_baselines import rsft
from whale_baselines.alternate import Evaluation, Iterated, alternate
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.history import History, Made, Pair, harness_of
from whale_baselines.json_lines import read_lines
from whale_baselines.rsft_loop import Phase
from whale_baselines.run_command import line_of
from whale_baselines.schedule import fixed
from whale_baselines.weight_operator import open_weight_operator

from whale_bench.ledger import Ledger
from whale_bench.models.folder import hash_folder
from whale_bench.statistics import score_of
from whale_envs.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_thread")

H0 = harness_of("# the first one")
SCHEDULE = fixed(steps=2, iterations=2, total_steps=4)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("operator") / "base")


class OneBetter:
    """Accepts, in iteration 2 of each phase, the incoming harness with a line more."""

    async def begin(self, phase, incoming, weights_id):
        self.phase, self.incoming, self.weights_id = phase, incoming, weights_id

    async def iterate(self, number):
        more = harness_of(f"{self.incoming.source}\n# phase {self.phase}")
        accepted = self.incoming if number == 1 else more
        return Iterated(weights_id=self.weights_id, accepted=accepted, score=number / 10, rollouts=4)


class Evaluated:
    async def evaluate(self, pair, harness, split):
        assert harness.harness_id == pair.harness_id
        return Evaluation(score_of([0.25, 0.75]), 2)


def go(base, root, report=None):
    root.mkdir(exist_ok=True)
    used = []

    async def run():
        async def use_harness(harness):
            used.append(harness)

        phase = phase_of(base, root)
        trainer = await open_weight_operator(phase, base, use_harness)
        with Ledger(root / "ledger.sqlite") as ledger:
            history = History(root)
            history.begin(Pair(trainer.base_id, H0.harness_id), "recipe")
            history.keep_harness(H0)
            await alternate(
                trainer, OneBetter(), SCHEDULE, ledger, evaluator=Evaluated(), history=history, report=report
            )
        assert phase.backend.weights_id == history.pair.weights_id

    asyncio.run(run())
    return used


def moves(root):
    made = History(root, readonly=True).moves
    return [(m.kind, m.number, m.signal, m.weights_id, m.harness_id) for m in made]


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    torch.set_num_threads(1)  # with more, sums come out otherwise
    root = tmp_path_factory.mktemp("whole") / "run"
    used = go(base, root)
    return moves(root), used, History(root, readonly=True).moves, read_lines(root / "metrics.jsonl")


def test_weights_and_harness_are_handed_over_in_turn(base, whole):
    made, used, *_ = whole
    assert [kind for kind, *_ in made] == ["train"] * 2 + ["search"] * 2 + ["train"] * 2
    assert [harness.source for harness in used] == ["# the first one", "# the first one\n# phase 1"]
    assert made[3][4] == used[1].harness_id == made[5][4]
    assert len({weights for *_, weights, _ in made}) == 4  # each step made others, the search none
    assert hash_folder(base) not in {weights for *_, weights, _ in made}


def test_every_number_of_a_step_is_in_the_history_and_on_the_console(whole):
    """What the history has is what loggers are handed."""
    _, _, made, lines = whole
    steps = [move for move in made if move.kind == "train"]
    assert [step.metrics["step"] for step in steps] == [1, 2, 3, 4]
    for step, line in zip(steps, lines, strict=True):
        fields = {"weights_id": step.weights_id, "reward": step.signal, "rollouts": step.rollouts}
        assert step.metrics | fields == line
        shown = line_of(step)
        for name in ("reward_window", "padding"):
            assert f"{line[name]:.1%}" in shown
        assert f"{line['accepted_examples']} examples" in shown
        assert f"gradient norm {line['grad_norm']:.2f}" in shown
        assert f"{line['changed_bf16']:.2%} of bfloat16" in shown


class DiesError(Exception):
    """As a kill, between the operator's last write and the history's."""


@pytest.mark.parametrize("kill_at", [1, 6])
def test_a_step_that_the_history_does_not_know_of_is_told_and_not_made_again(
    base, whole, tmp_path, monkeypatch, kill_at
):
    root, add = tmp_path / "run", History.add

    def dies(history, record):
        if isinstance(record, Made) and len(history.moves) == kill_at - 1:
            raise DiesError
        add(history, record)

    monkeypatch.setattr(History, "add", dies)
    with pytest.raises(DiesError):
        go(base, root)
    assert len(moves(root)) == kill_at - 1
    monkeypatch.setattr(History, "add", add)
    go(base, root)
    assert moves(root) == whole[0]


@pytest.mark.parametrize("kill_at", [None, 6])
def test_checkpoints_are_whole_when_a_search_begins_and_however_a_run_ends(
    base, tmp_path, monkeypatch, kill_at
):
    """Their last files are held back here until somebody waits for them."""
    gate, write, join = threading.Semaphore(0), rsft.write_optimizer, Phase.join
    begin, add, whole = OneBetter.begin, History.add, []

    def newest():
        return Checkpoints(tmp_path / "run" / "checkpoints", 2).latest().state.step

    def held_back(state, path):
        if threading.current_thread() is not threading.main_thread():
            assert gate.acquire(timeout=60)
        write(state, path)

    def let_go(phase):
        if phase._saving is not None:
            gate.release()
        join(phase)

    async def begins(search, *args):
        whole.append(newest())
        await begin(search, *args)

    def dies(history, record):
        if isinstance(record, Made) and len(history.moves) + 1 == kill_at:
            raise DiesError
        add(history, record)

    monkeypatch.setattr(rsft, "write_optimizer", held_back)
    monkeypatch.setattr(Phase, "join", let_go)
    monkeypatch.setattr(OneBetter, "begin", begins)
    monkeypatch.setattr(History, "add", dies)
    with nullcontext() if kill_at is None else pytest.raises(DiesError):
        go(base, tmp_path / "run")
    assert whole == [2]
    assert newest() == 4


def test_a_step_that_the_checkpoints_are_not_near_to_is_refused(base, tmp_path):
    async def ask_for_step_two():
        operator = await open_weight_operator(phase_of(base, tmp_path), base, None)
        await operator.step(2)

    with pytest.raises(UsageError, match="step 2 is next, and the newest checkpoint is of step 0"):
        asyncio.run(ask_for_step_two())
