"""Steps of rejection-sampling fine-tuning: draw, play, admit, train, save, hand over.

    phase = Phase(recipe, ids, player, trainer, checkpoints, backend, Path("runs/weight/metrics.jsonl"))
    await phase.begin(base)                             # a new run, or the newest checkpoint of an old one
    for _ in range(7):
        metrics = await phase.step()
    phase.join()                                        # the last checkpoint is whole

Strictly on-policy: every rollout of a step is sampled from the weights that the step trains, and the
next one begins only when the backend serves what the checkpoint holds, by `weights_id` (of a server
elsewhere, by what it claims once its fingerprint was compared).

A step is finished when its weights are handed over and it has its line. A kill before that loses no
rollout: those that are recorded are used when the step is done again, so that equal records give equal
weights. The first checkpoint is a copy of the base folder and has its `weights_id`; so has that of a step
without updates the one before it.

Where the trainer allows it (`overlaps`), a step returns when its weights are written and handed over;
optimizer and state follow while the next one samples, and nothing is trained before they are on the disk
(`join`). A kill in between leaves a step with its line of metrics and its charge, but no whole checkpoint, as
if a disk had damaged it.

A backend on the device that trains gives its memory up while an update is made (`handover.py`).

Where the newest checkpoint is damaged or not whole, the run goes on from the one before: a finished step is
made anew from its recorded rollouts, on as many threads as the first time. Where its weights are whole, only
optimizer and state are taken from that; else it has to come out with the same weights, bit by bit.

`metrics.jsonl` has a line for each finished step. Rollouts are verified while others are sampled, so "sample"
has those seconds, too; `verify_seconds` is their sum over the rollouts, tools included. To wait for the
checkpoint of the step before is in "save" of the step that waits; the wait after the last step is in none.

Not covered: when a phase ends, see the schedule; several machines; serving by a server whose weights
cannot be replaced.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from whale_baselines.checkpoint import Checkpoint, Checkpoints, Fill, TrainingState, copy_model
from whale_baselines.handover import check_takes_weights, hand_over, make_room, recall
from whale_baselines.json_lines import append_line
from whale_baselines.play import Plays
from whale_baselines.recipe import Recipe
from whale_baselines.sampler import SamplerState, draw
from whale_baselines.sequences import Admitted, admit
from whale_baselines.step_lines import advance, line_of, lines_after, mend
from whale_baselines.trainer import METRICS, STATE, Trainer, Update
from whale_baselines.training_charges import repeat, reserve, settle, settle_earlier
from whale_bench.ledger import Ledger
from whale_bench.models.base import Reloadable, names_weights
from whale_bench.models.folder import hash_folder
from whale_bench.records import Rollout
from whale_envs.errors import UsageError

SERVED = "served.json"
"""What a `Remembering` backend needs for its next check, see `handover.py`."""


@dataclass(slots=True)
class Phase:
    """The weight operator on a run's folder."""

    recipe: Recipe
    ids: Sequence[str]
    """Of the examples to train on."""
    player: Plays
    trainer: Trainer
    checkpoints: Checkpoints
    backend: Reloadable
    metrics: Path
    ledger: Ledger | None = None
    """Where each step is charged, see `training_charges.py`; None charges nothing."""
    _now: Checkpoint | None = field(default=None, init=False)
    _saving: Future[None] | None = field(default=None, init=False)
    """What is still being written of the newest checkpoint."""

    @property
    def now(self) -> Checkpoint:
        """The newest checkpoint; what the backend serves. Its weights are there, the rest after `join`."""
        if self._now is None:
            raise UsageError("a phase has no checkpoint before `begin`")
        return self._now

    async def begin(self, base: Path) -> Checkpoint:
        """Goes on from the newest checkpoint, or makes the first one from `base`.

        Raises:
            UsageError: the backend takes no weights, the disk is too small, or the checkpoint is damaged,
                of another base or another recipe.
        """
        check_takes_weights(self.backend)
        found = self.checkpoints.newest_whole()
        self.checkpoints.check_space(self.trainer.checkpoint_bytes)
        if found is None:
            if hash_folder(base) != self.trainer.base_id:
                raise UsageError(f"{base} is not what the trainer was made from, {self.trainer.base_id}")
            state = TrainingState(
                base_id=self.trainer.base_id,
                recipe_id=self.recipe.recipe_id,
                sampler=SamplerState(seed=self.recipe.seed),
            )
            self._now = self._save(state, base, changed=False, line=None)
        else:
            self._check_same(found)
            self.trainer.restore(found.folder)
            self._now = found
            for line in lines_after(self.metrics, found.state.step):
                await self._redo(line)
        mend(self.metrics, self.now)
        if self.ledger is not None:
            settle_earlier(self.ledger, *self.now)
        recall(self.backend, self._served)
        await self._hand_over()
        return self.now

    async def step(self) -> dict[str, Any]:
        """One step; its line of metrics.

        Raises:
            UsageError: no rollout was accepted, or no gradient finite, for too long; or a rollout is of
                other weights, or has no ids.
            InfrastructureError: rollouts are missing, the checkpoint cannot be written, or the backend
                does not serve it.
        """
        recipe, (folder, state) = self.recipe, self.now
        watch = _Watch()
        batch, sampler = draw(self.ids, state.sampler, recipe.prompts)
        rollouts = await self.player.play(batch)
        watch.lap("sample")
        _check_on_policy(rollouts, state)
        admitted = admit(rollouts)
        watch.lap("admit")
        self.join()
        watch.lap("save")
        attempt = reserve(self.ledger, state.step + 1) if self.ledger is not None else 0
        if admitted.rows:
            await make_room(self.backend)
            watch.lap("sync")
        after, update, line = self._update(rollouts, admitted, sampler)
        watch.lap("train")
        line |= {
            "seconds": watch.seconds,
            "accelerators": self.trainer.accelerators,
            "threads": self.trainer.threads,
        }
        self._now = self._start(after, folder, changed=update.updates > 0, line=line)
        if self.ledger is not None:
            settle(self.ledger, attempt, line)
        watch.lap("save")
        await self._hand_over()
        watch.lap("sync")
        line |= {"weights_id": self.now.state.weights_id}
        append_line(self.metrics, line)
        if 0 < recipe.most_empty <= after.empty_in_a_row:
            raise UsageError(
                f"no rollout was accepted in {after.empty_in_a_row} steps in a row "
                f"({after.rollouts} rollouts so far) under harness {rollouts[0].harness_id}: there is "
                f"nothing to learn from. Of the last ones {_reasons(rollouts)}. Try another harness, model "
                "or easier examples; the run can be resumed"
            )
        return line

    def join(self) -> None:
        """Waits until the newest checkpoint is whole.

        Raises:
            InfrastructureError: it cannot be written; every further call says so, too.
        """
        if self._saving is not None:
            self._saving.result()
            self._saving = None

    def _update(
        self,
        rollouts: Sequence[Rollout],
        admitted: Admitted,
        sampler: SamplerState,
        threads: int | None = None,
    ) -> tuple[TrainingState, Update, dict[str, Any]]:
        """Trains; the state after the step, what it did, and the step's line of metrics."""
        state = self.now.state
        update = self.trainer.update(admitted.rows, step=state.step, threads=threads)
        reward = sum(one.verdict.reward for one in rollouts) / len(rollouts)
        rewards = (*state.rewards, reward)[-self.recipe.window :]
        after = advance(state, admitted, update, sampler, rewards)
        return after, update, line_of(after, admitted, update, reward)

    async def _redo(self, line: dict[str, Any]) -> None:
        """Makes a finished step anew, whose checkpoint is damaged or gone.

        Raises:
            UsageError: its rollouts are not all there, or it comes out with other weights; says what to do.
        """
        folder, state = self.now
        batch, sampler = draw(self.ids, state.sampler, self.recipe.prompts)
        rollouts = self.player.recorded(batch)
        if rollouts is None or line["step"] != state.step + 1:
            problem = f"the checkpoint of step {line['step']} is damaged or gone, and so are rollouts of it"
            raise UsageError(self.checkpoints.way_out(problem))
        _check_on_policy(rollouts, state)
        await make_room(self.backend)
        after, update, made = self._update(rollouts, admit(rollouts), sampler, line.get("threads"))
        kept = {name: line[name] for name in ("seconds", "accelerators", "threads") if name in line}
        changed, expected = update.updates > 0, line["weights_id"]
        written = self.checkpoints.folder(after)
        whole = changed and written.is_dir() and hash_folder(written) == expected
        # Other hardware makes other bits, and everything after this step was played with these.
        if whole and self.trainer.take_weights(written):
            folder, changed = written, False
        self._now = self._save(after, folder, changed=changed, line=made | kept, expected=expected)
        if self.ledger is not None:
            repeat(self.ledger, line)

    def _save(
        self,
        state: TrainingState,
        source: Path,
        *,
        changed: bool,
        line: dict[str, Any] | None,
        expected: str | None = None,
    ) -> Checkpoint:
        """The checkpoint of a step, whole."""
        beside = self._beside(line)

        def fill(folder: Path) -> None:
            self._write_model(folder, source, changed=changed)
            beside(folder)

        return self.checkpoints.save(state, fill, expected=expected)

    def _start(
        self, state: TrainingState, source: Path, *, changed: bool, line: dict[str, Any]
    ) -> Checkpoint:
        """The checkpoint of a step, whole after `join`."""
        if not self.trainer.overlaps:
            return self._save(state, source, changed=changed, line=line)
        model = partial(self._write_model, source=source, changed=changed)
        checkpoint, self._saving = self.checkpoints.start(state, model, self._beside(line))
        return checkpoint

    def _write_model(self, folder: Path, source: Path, *, changed: bool) -> None:
        """Unchanged weights are copied as they are from `source`."""
        if changed:
            self.trainer.write_weights(folder)
        else:
            copy_model(source, folder)

    def _beside(self, line: dict[str, Any] | None) -> Fill:
        """Writes what is in a checkpoint besides the model, the line as it is now."""
        text = None if line is None else msgspec.json.encode(line) + b"\n"

        def fill(folder: Path) -> None:
            self.trainer.write_state(folder)
            if text is not None:
                (folder / STATE / METRICS).write_bytes(text)

        return fill

    async def _hand_over(self) -> None:
        await hand_over(self.backend, self.now, self._served)

    @property
    def _served(self) -> Path:
        return self.metrics.with_name(SERVED)

    def _check_same(self, found: Checkpoint) -> None:
        ours = {"base_id": self.trainer.base_id, "recipe_id": self.recipe.recipe_id}
        for name, value in ours.items():
            if getattr(found.state, name) != value:
                raise UsageError(
                    f"{found.folder} cannot be gone on from: its {name} is {getattr(found.state, name)!r}, "
                    f"now it is {value!r}"
                )


@dataclass(slots=True)
class _Watch:
    """Seconds by part."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


def _check_on_policy(rollouts: Sequence[Rollout], state: TrainingState) -> None:
    for one in rollouts:
        if not names_weights(one.weights_id, state.weights_id):
            raise UsageError(
                f"rollout {one.key} was sampled from {one.weights_id}, and the weights to train are "
                f"{state.weights_id}: a step learns from its own weights' rollouts only"
            )


def _reasons(rollouts: Sequence[Rollout]) -> str:
    found = [one.stop_condition for one in rollouts]
    often = sorted(set(found), key=lambda reason: (-found.count(reason), reason))[:3]
    return ", ".join(f"{found.count(reason)} ended as {reason!r}" for reason in often)
