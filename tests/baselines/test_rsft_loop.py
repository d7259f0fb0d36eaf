"""Steps on recorded rollouts: kills at any point, empty steps, hand-over, metrics."""

import asyncio
import dataclasses
import json
import os
import random
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
import torch
from rollouts_of_ids import rollout_of, segment
from tiny_model import write_folder
from whale_baselines import checkpoint, disk, rsft, rsft_loop
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.json_lines import read_lines
from whale_baselines.play import keys_of
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase
from whale_baselines.training_charges import charge_of_step

from whale_bench.ledger import Charge, Ledger
from whale_bench.models.folder import hash_folder
from whale_envs.errors import InfrastructureError, UsageError

RECIPE = Recipe(prompts=3, samples=2, minibatch=2, lr=1e-3, precision="float32", seed=5)


def changed(**fields):
    return dataclasses.replace(RECIPE, **fields)


KILLS = min(int(os.environ.get("WHALE_KILLS", "10")), 40)
"""`make kills` asks for 20."""
IDS = tuple(f"e{i}" for i in range(4))


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("loop") / "base")


class Served:
    """A backend that knows what it serves and samples nothing."""

    name = "fake/served"

    def __init__(self, folder):
        self.weights_id = hash_folder(folder)
        self.reloads = []

    async def reload(self, folder):
        self.reloads.append(Path(folder).name)
        self.weights_id = hash_folder(Path(folder))
        return self.weights_id


class Recorded:
    """Rollouts that follow from their key alone; those of the steps in `barren` fail."""

    def __init__(self, backend, barren=()):
        self.backend = backend
        self.barren = barren
        self.batches = []

    async def play(self, batch):
        step = len(self.batches)
        self.batches.append(batch)
        return [self.record(key, step) for key in keys_of(batch, RECIPE.samples)]

    def record(self, key, step):
        rng = random.Random(key)
        prompt = tuple(rng.randrange(3, 250) for _ in range(rng.randrange(3, 20)))
        sampled = (*(rng.randrange(3, 250) for _ in range(rng.randrange(2, 9))), 2)
        good = step not in self.barren and rng.random() < 0.8
        return rollout_of(
            segment(prompt, sampled), key=key, reward=float(good), weights_id=self.backend.weights_id
        )


def phase_of(base, root, *, barren=(), recipe=RECIPE, backend=None):
    root.mkdir(exist_ok=True)
    backend = backend or Served(base)
    return Phase(
        recipe,
        IDS,
        Recorded(backend, barren),
        RsftTrainer(base, recipe),
        Checkpoints(root / "checkpoints", recipe.keep_last),
        backend,
        root / "metrics.jsonl",
        Ledger(root / "ledger.sqlite"),
    )


def go(phase, base, until):
    """Begins or goes on, until so many steps are finished; the metrics of those that this launch did."""

    async def run():
        await phase.begin(base)
        return [await phase.step() for _ in range(until - phase.now.state.step)]

    try:
        return asyncio.run(run())
    finally:
        try:
            phase.join()
        finally:
            phase.ledger.close()


def files_of(folder):
    """All bytes of a checkpoint but the metrics, which hold seconds."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "metrics.json"
    }


def charged_of(root):
    """What each step was charged, by its key; everything but seconds."""
    with Ledger(root / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert not ledger.open_reservations()
        settled = [event for event in ledger.events() if event.kind == "settle"]
    assert {event.purpose for event in settled} == {"weight"}
    charges = {event.key: msgspec.json.decode(event.charge, type=Charge) for event in settled}
    assert len(charges) == len(settled)
    return {key: (c.optimizer_steps, c.trained_tokens, c.rollouts) for key, c in charges.items()}


def steps_of(root):
    return [line["step"] for line in read_lines(root / "metrics.jsonl")]


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    """Checkpoints and charges of an uninterrupted run of three steps; the second accepts nothing."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("whole")
    go(phase_of(base, root, barren={1}), base, 3)
    folders = Checkpoints(root / "checkpoints", 2).folders()
    return {folder.name: files_of(folder) for folder in folders}, charged_of(root)


class Killed(BaseException):
    """Ends the process as far as the code under test can tell: nothing of it catches or cleans up."""


class Clock:
    """Counts instants over all threads, and kills at one of them: from then on no thread does anything."""

    def __init__(self, fatal=None):
        self.count = 0
        self.fatal = fatal
        self._lock = threading.Lock()

    def before(self, function):
        def counted(*args, **kwargs):
            with self._lock:
                self.count += 1
                if self.fatal is not None and self.count >= self.fatal:
                    raise Killed
            return function(*args, **kwargs)

        return counted


class Reaper(Clock):
    """Counts everything that is written, sampled or handed over, and kills at one of these instants."""

    def __init__(self, patch, fatal=None):
        super().__init__(fatal)
        patch.setattr(disk, "synchronise_one", self.before(disk.synchronise_one))
        patch.setattr(checkpoint, "copy_model", self.before(checkpoint.copy_model))
        patch.setattr(rsft_loop, "copy_model", self.before(rsft_loop.copy_model))
        patch.setattr(rsft, "write_model", self.before(rsft.write_model))
        patch.setattr(rsft_loop, "append_line", self.before(rsft_loop.append_line))
        patch.setattr(Ledger, "_append", self.before(Ledger._append))
        patch.setattr(rsft, "write_optimizer", self.before(rsft.write_optimizer))
        patch.setattr(shutil, "rmtree", self.before(shutil.rmtree))
        patch.setattr(Path, "replace", self.before(Path.replace))
        patch.setattr(Path, "rename", self.before(Path.rename))
        patch.setattr(RsftTrainer, "update", self.before(RsftTrainer.update))
        patch.setattr(Recorded, "play", self.before(Recorded.play))
        patch.setattr(Served, "reload", self.before(Served.reload))


def instants(base, root):
    with pytest.MonkeyPatch.context() as patch:
        reaper = Reaper(patch)
        go(phase_of(base, root, barren={1}), base, 3)
    return reaper.count


def test_a_kill_at_any_instant_and_a_resume_give_the_same_bits(base, whole, tmp_path):
    total = instants(base, tmp_path / "count")
    assert total > 40
    rng = random.Random(3)
    for part in range(KILLS):  # one in each part of a run, so that no kind of instant is left out for long
        fatal = rng.randint(total * part // KILLS + 1, total * (part + 1) // KILLS)
        root, kept = tmp_path / str(fatal), {}
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, fatal)
            with pytest.raises(Killed):
                launch(base, root, kept, 3, barren={1})
        found = Checkpoints(root / "checkpoints", 2).newest_whole()
        done = max(0 if found is None else found.state.step, *steps_of(root), 0)
        resumed, _ = launch(base, root, kept, 3, barren={1 - done})  # its list of batches begins anew
        folders = Checkpoints(root / "checkpoints", 2).folders()
        assert {folder.name: files_of(folder) for folder in folders[-2:]} == whole[0], fatal
        assert charged_of(root) == whole[1], fatal
        assert steps_of(root) == [1, 2, 3], fatal
        assert resumed.backend.weights_id == resumed.now.state.weights_id


def test_two_kills_one_after_the_other_change_nothing_either(base, whole, tmp_path):
    for fatal in (9, 14):
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, fatal)
            with pytest.raises(Killed):
                go(phase_of(base, tmp_path), base, 1)
    go(phase_of(base, tmp_path), base, 1)
    go(phase_of(base, tmp_path, barren={0}), base, 2)
    go(phase_of(base, tmp_path), base, 3)
    folders = Checkpoints(tmp_path / "checkpoints", 2).folders()
    assert {folder.name: files_of(folder) for folder in folders} == whole[0]
    assert charged_of(tmp_path) == whole[1]


def test_adapters_resume_to_the_same_bits_too(base, tmp_path):
    recipe = changed(lora_rank=4)
    go(phase_of(base, tmp_path / "whole", recipe=recipe), base, 2)
    go(phase_of(base, tmp_path / "parts", recipe=recipe), base, 1)
    go(phase_of(base, tmp_path / "parts", recipe=recipe), base, 2)
    whole, parts = (files_of(tmp_path / name / "checkpoints" / "step-000002") for name in ("whole", "parts"))
    assert whole == parts
    assert "trainer/adapter.safetensors" in whole


def test_the_first_checkpoint_is_the_base_and_the_backend_follows_every_update(base, tmp_path):
    phase = phase_of(base, tmp_path, barren={1})
    lines = go(phase, base, 3)
    ids = [hash_folder(base), *(line["weights_id"] for line in lines)]
    assert ids[1] == ids[2]  # nothing was accepted
    assert len(set(ids)) == 3
    assert phase.backend.reloads == ["step-000001", "step-000003"]
    assert hash_folder(phase.now.folder) == phase.backend.weights_id == ids[-1]


def test_a_step_that_accepts_nothing_counts_and_leaves_weights_and_optimizer_alone(base, tmp_path):
    phase = phase_of(base, tmp_path, barren={1}, recipe=changed(keep_last=3))
    _, line, _ = go(phase, base, 3)
    assert (line["accepted"], line["updates"], line["loss"], line["empty"]) == (0, 0, None, True)
    assert line["total"]["rollouts"] == 12
    first, second = (files_of(tmp_path / "checkpoints" / f"step-00000{n}") for n in (1, 2))
    assert {name for name in first if first[name] != second[name]} == {
        "trainer/state.json",
        "trainer/sha256.json",
    }


def test_no_example_returns_within_an_epoch_over_phases(base, tmp_path):
    batches = []
    for until in (1, 2, 4):
        phase = phase_of(base, tmp_path)
        go(phase, base, until)
        batches += phase.player.batches
    drawn = [one for batch in batches for one in batch]
    assert len(set(drawn)) == len(drawn) == 12
    assert sorted(one.example_id for one in drawn) == sorted(IDS * 3)


def test_the_metrics_of_a_step(base, tmp_path):
    first, second = go(phase_of(base, tmp_path), base, 2)
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1]) == second
    assert first["rollouts"] == 6
    assert first["acceptance"] == first["accepted"] / 6 == first["reward"]
    assert second["reward_window"] == pytest.approx((first["reward"] + second["reward"]) / 2)
    assert first["updates"] == -(-first["accepted"] // 2)
    assert first["trained_tokens"] == first["accepted_tokens"] > 0
    assert 0 < first["changed_bf16"] < 1
    assert first["padding"] < 0.05
    assert set(first["seconds"]) == {"sample", "admit", "train", "save", "sync"}
    assert second["total"]["rollouts"] == 12


def test_a_phase_whose_rollouts_never_verify_stops_early_and_says_why(base, tmp_path):
    phase = phase_of(base, tmp_path, barren={0, 1, 2})
    with pytest.raises(
        UsageError, match=r"no rollout was accepted in 3 steps in a row \(18 rollouts.*harness h.*"
    ):
        go(phase, base, 5)
    assert phase.now.state.weights_id == hash_folder(base)
    assert steps_of(tmp_path) == [1, 2, 3]


def test_rollouts_of_other_weights_are_refused(base, tmp_path):
    phase = phase_of(base, tmp_path)
    phase.player.backend = Served(base)  # left behind after the first step
    with pytest.raises(UsageError, match="a step learns from its own weights' rollouts only"):
        go(phase, base, 2)
    assert phase.now.state.step == 1


def test_a_backend_that_serves_something_else_stops_the_run(base, tmp_path):
    class Lies(Served):
        async def reload(self, folder):
            return hash_folder(Path(folder))

    phase = phase_of(base, tmp_path, backend=Lies(base))
    with pytest.raises(
        InfrastructureError, match=r"the backend serves sha256:.* after it was given .*step-000001"
    ):
        go(phase, base, 1)
    assert phase.now.state.step == 1  # and a resume begins with the hand-over


class Remembers(Served):
    """Remembers what it was given last, and is told what an earlier one did."""

    told = None

    def remembered(self):
        return json.dumps(self.reloads).encode()

    def remember(self, told):
        self.told = msgspec.json.decode(told, type=list[str])


def test_a_resumed_run_gives_the_backend_back_what_it_remembered(base, tmp_path):
    first = phase_of(base, tmp_path, backend=Remembers(base))
    go(first, base, 2)
    assert first.backend.told is None
    resumed = phase_of(base, tmp_path, backend=Remembers(base))
    go(resumed, base, 3)
    assert resumed.backend.told == ["step-000001", "step-000002"]
    assert resumed.backend.reloads == ["step-000002", "step-000003"]  # told before the first hand-over
    (tmp_path / "served.json").write_text("{")
    with pytest.raises(UsageError, match=r"served.json: cannot be read"):
        go(phase_of(base, tmp_path, backend=Remembers(base)), base, 4)


class Rests(Served):
    """Has to be asleep for each update, as if it shared the trainer's device; tells what became of it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.resting = False
        self.told = []

    async def rest(self):
        self.resting = True
        self.told.append("rest")

    async def reload(self, folder):
        self.told.append(f"reload {Path(folder).name}")
        self.resting = False
        return await super().reload(folder)


class Plays(Recorded):
    async def play(self, batch):
        assert not self.backend.resting
        return await super().play(batch)


def resting_phase(base, root, monkeypatch, **more):
    backend = Rests(base)
    phase = phase_of(base, root, backend=backend, **more)
    phase.player = Plays(backend, phase.player.barren)
    update = RsftTrainer.update

    def watched(self, rows, **named):
        assert backend.resting == bool(rows)
        backend.told.append("update")
        return update(self, rows, **named)

    monkeypatch.setattr(RsftTrainer, "update", watched)
    return phase


def test_a_backend_on_the_trainers_device_rests_for_each_update_and_then_serves_the_checkpoint(
    base, tmp_path, monkeypatch
):
    phase = resting_phase(base, tmp_path, monkeypatch, barren={1})
    lines = go(phase, base, 3)
    assert phase.backend.told == [
        *("rest", "update", "reload step-000001"),
        "update",  # of a step that accepted nothing: nothing changes, nobody needs the room
        *("rest", "update", "reload step-000003"),
    ]
    assert phase.backend.weights_id == lines[-1]["weights_id"]
    assert set(lines[1]["seconds"]) == set(lines[0]["seconds"])


def test_a_backend_that_rested_for_an_update_that_was_skipped_is_woken_all_the_same(
    base, tmp_path, monkeypatch
):
    phase = resting_phase(base, tmp_path, monkeypatch, recipe=changed(most_skipped=99))
    monkeypatch.setattr(RsftTrainer, "_gradient", lambda *_, **__: (0.0, float("inf")))
    (line,) = go(phase, base, 1)
    assert (line["updates"], line["weights_id"]) == (0, hash_folder(base))
    assert phase.backend.told == ["rest", "update", "reload step-000001"]
    assert not phase.backend.resting


def test_a_step_made_anew_has_the_device_for_itself_too(base, tmp_path, monkeypatch):
    first = phase_of(base, tmp_path)
    go(first, base, 2)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000002")
    phase = resting_phase(base, tmp_path, monkeypatch)
    records = [first.player.record(key, 1) for key in keys_of(first.player.batches[1], RECIPE.samples)]
    step = Checkpoints(tmp_path / "checkpoints", 2).latest().state.weights_id
    records = [msgspec.structs.replace(one, weights_id=step) for one in records]
    phase.player.recorded = lambda batch: records
    go(phase, base, 2)
    assert phase.backend.told == ["rest", "update", "reload step-000002"]


def test_a_backend_that_takes_no_weights_is_refused(base, tmp_path):
    class Fixed:
        name = "openai/fixed"

    phase = phase_of(base, tmp_path)
    phase.backend = Fixed()
    with pytest.raises(UsageError, match="'openai/fixed' cannot take new weights"):
        go(phase, base, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_another_recipe_or_base_is_refused(base, tmp_path):
    go(phase_of(base, tmp_path), base, 1)
    with pytest.raises(UsageError, match="its recipe_id is"):
        go(phase_of(base, tmp_path, recipe=changed(lr=1e-4)), base, 2)
    go(phase_of(base, tmp_path, recipe=changed(keep_last=1)), base, 2)  # decides no weight
    other = write_folder(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match="its base_id is"):
        go(phase_of(other, tmp_path), other, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "chat_template.jinja").unlink(), "has no chat template"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "cannot load the model"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (
            lambda folder: (folder / "config.json").write_text(
                (folder / "config.json")
                .read_text()
                .replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
            ),
            "missing keys model.layers.2",
        ),
    ],
)
def test_a_base_that_cannot_be_trained_is_refused_at_once(base, tmp_path, damage, message):
    folder = shutil.copytree(base, tmp_path / "bad")
    damage(folder)
    with pytest.raises(UsageError, match=message):
        RsftTrainer(folder, RECIPE)


def test_a_checkpoint_of_another_architecture_is_refused(base, tmp_path):
    trainer = RsftTrainer(base, RECIPE)
    trainer.write_weights(tmp_path)
    trainer.write_state(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(UsageError, match="another architecture: intermediate_size is 64, trained is 128"):
        trainer.restore(tmp_path)


def test_the_state_is_readable_by_people(base, tmp_path):
    go(phase_of(base, tmp_path), base, 1)
    state = json.loads((tmp_path / "checkpoints" / "step-000001" / "trainer" / "state.json").read_text())
    assert (state["step"], state["sampler"]["position"]) == (1, 3)
    assert msgspec.convert(state, checkpoint.TrainingState).weights_id.startswith("sha256:")


def test_a_step_is_charged_with_its_updates_tokens_and_seconds_and_no_rollouts(base, tmp_path):
    phase = phase_of(base, tmp_path, barren={1})
    lines = go(phase, base, 2)
    assert charged_of(tmp_path) == {
        "train:1": (lines[0]["updates"], lines[0]["trained_tokens"], 0),
        "train:2": (0, 0, 0),
    }
    assert lines[0]["updates"] > 0
    with Ledger(tmp_path / "ledger.sqlite", readonly=True) as ledger:
        seconds = ledger.charged()["weight"].seconds
    assert seconds == pytest.approx(sum(line["seconds"]["train"] for line in lines))


def test_seconds_of_accelerators_count_each_of_them():
    line = {"updates": 2, "trained_tokens": 5, "accelerators": 4, "seconds": {"sample": 10.0, "train": 2.0}}
    charge = charge_of_step(line)
    assert (charge.seconds, charge.device_seconds, charge.rollouts) == (2.0, 48.0, 0)


def test_an_update_that_a_kill_cut_short_is_executed_and_not_charged(base, tmp_path, monkeypatch):
    def killed(*_args, **_kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RsftTrainer, "update", killed)
        with pytest.raises(Killed):
            go(phase_of(base, tmp_path), base, 1)
    go(phase_of(base, tmp_path), base, 1)
    with Ledger(tmp_path / "ledger.sqlite", readonly=True) as ledger:
        ends = [(e.kind, e.key, e.attempt) for e in ledger.events() if e.kind != "reserve"]
        assert ledger.executed()["weight"].rollouts == 0
    assert ends == [("interrupted", "train:1", 1), ("settle", "train:1", 2)]


class Kept(Recorded):
    """Remembers what it played over launches, as a run's folder does."""

    def __init__(self, backend, kept, barren=()):
        super().__init__(backend, barren)
        self.kept = kept

    async def play(self, batch):
        self.kept.update({one.key: one for one in await super().play(batch)} | self.kept)
        return self.recorded(batch)

    def recorded(self, batch):
        keys = list(keys_of(batch, RECIPE.samples))
        return [self.kept[key] for key in keys] if self.kept.keys() >= set(keys) else None


def launch(base, root, kept, until, recipe=RECIPE, barren=()):
    phase = phase_of(base, root, recipe=recipe)
    phase.player = Kept(phase.backend, kept, barren)
    lines = go(phase, base, until)
    return phase, lines


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a bit of the weights": lambda folder: flip(folder / "model.safetensors"),
    "half of the moments": lambda folder: cut(folder / "trainer" / "optimizer.safetensors"),
    "the trainer's counters": lambda folder: (folder / "trainer" / "rsft.json").unlink(),
    "half of the state": lambda folder: cut(folder / "trainer" / "state.json"),
    "all of it": shutil.rmtree,
}


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A run of three steps with updates, and its rollouts."""
    torch.set_num_threads(1)
    root, kept = tmp_path_factory.mktemp("trained") / "run", {}
    launch(base, root, kept, 3)
    return root, kept


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_step_whose_checkpoint_is_damaged_is_made_anew_to_the_bit(base, trained, tmp_path, damage):
    """And the next step is what it would have been; what was charged stays, the work counts as executed."""
    root, kept = tmp_path / "run", dict(trained[1])
    shutil.copytree(trained[0], root)
    newest = root / "checkpoints" / "step-000003"
    before, charged, steps = files_of(newest), charged_of(root), steps_of(root)
    DAMAGES[damage](newest)
    phase, lines = launch(base, root, kept, 3)
    assert lines == []
    assert files_of(newest) == before
    assert (charged_of(root), steps_of(root)) == (charged, steps)
    assert phase.backend.weights_id == phase.now.state.weights_id
    with Ledger(root / "ledger.sqlite", readonly=True) as ledger:
        assert [event.key for event in ledger.events() if event.kind == "repeated"] == ["train:3"]
    assert Checkpoints(root / "checkpoints", 2).latest() == phase.now


def test_where_a_step_cannot_be_made_anew_the_way_out_is_told_and_nothing_changes(base, trained, tmp_path):
    root, kept = tmp_path / "run", dict(trained[1])
    shutil.copytree(trained[0], root)
    flip(root / "checkpoints" / "step-000003" / "model.safetensors")
    lost = next(key for key in reversed(kept))
    with pytest.raises(
        UsageError, match=r"step 3 is damaged or gone, and so are .*begin a new one; step-000002"
    ):
        launch(base, root, {key: one for key, one in kept.items() if key != lost}, 3)
    key = next(key for key, one in reversed(kept.items()) if one.verdict.reward)
    other = {**kept, key: rollout_of(segment((5, 6), (7, 2)), key=key, weights_id=kept[key].weights_id)}
    for _ in range(2):  # and again, as nothing was changed
        with pytest.raises(
            UsageError, match=r"does not repeat a step to the bit; .* step-000002 in .* is whole"
        ):
            launch(base, root, other, 3)
    phase, _ = launch(base, root, kept, 3)
    assert phase.now.state.step == 3


def test_a_finished_step_is_never_forgotten_for_want_of_an_older_checkpoint(base, tmp_path):
    kept, recipe = {}, changed(keep_last=1)
    launch(base, tmp_path / "run", kept, 2, recipe)
    flip(tmp_path / "run" / "checkpoints" / "step-000002" / "model.safetensors")
    with pytest.raises(UsageError, match=r"step-000002 is damaged: .*: begin a new one"):
        launch(base, tmp_path / "run", kept, 2, recipe)
