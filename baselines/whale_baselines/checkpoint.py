"""Checkpoints: ordinary Hugging Face folders with the trainer's state inside, whole or passed over.

    checkpoints = Checkpoints(Path("runs/weight/checkpoints"), keep_last=2)
    checkpoint = checkpoints.save(state, fill)          # `fill` writes model and trainer into the folder
    checkpoint, rest = checkpoints.start(state, model, beside)      # `beside` and the disk are waited for in
    rest.result()                                                   # another thread
    checkpoint = checkpoints.latest()                   # checked against its hash; None where there is none

    step-000012/
        config.json, model.safetensors, tokenizer.json, chat_template.jinja, …
        trainer/state.json      step, position of the sampler, counters, weights_id
        trainer/…               what the trainer itself needs

        trainer/sha256.json     of the files in trainer/

A checkpoint is written beside its place, synchronised, and renamed; or the model first and `trainer/` into it
as the last thing, so that the model can be served meanwhile (`start`). Without `trainer/` it is not whole.
Whenever the process dies, what it was writing or deleting is swept away by the next save, and no older
checkpoint has gone for one that is not whole. `newest_whole` is the newest one whose files are what was
written, be it a kill or a disk that is to blame for the others, and `rsft_loop.py` makes the steps after it
anew. `weights_id` is that of any backend which serves the folder: the state is no part of it.

Not covered: two processes that write to one place; the lock of the run's folder is for that.
"""

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from whale_baselines import disk
from whale_baselines.sampler import SamplerState
from whale_baselines.trainer import METRICS, STATE
from whale_bench.models.folder import HASHED, hash_folder
from whale_envs.errors import UsageError
from whale_envs.paths import hash_file

_HALF = ".half-written-"
_GONE = ".deleted-"
_NAME = "step-"
_DIGESTS = "sha256.json"


class TrainingState(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase needs to go on, besides weights and optimizer. Equal runs have equal states."""

    base_id: str
    """`weights_id` of the folder that training began with."""
    recipe_id: str
    sampler: SamplerState
    step: int = 0
    """Steps that are finished."""
    weights_id: str = ""
    """Of the folder that this stands in; set when it is saved."""
    rollouts: int = 0
    updates: int = 0
    skipped: int = 0
    """Updates left out for a gradient that was not finite."""
    trained_tokens: int = 0
    empty: int = 0
    """Steps without an accepted rollout."""
    empty_in_a_row: int = 0
    rewards: tuple[float, ...] = ()
    """Mean reward of each of the last steps, oldest first."""


class Checkpoint(NamedTuple):
    """A checkpoint, whole but for what `Checkpoints.start` has not written yet."""

    folder: Path
    state: TrainingState


Fill = Callable[[Path], None]
"""Writes files into the folder that it is given."""


class Checkpoints:
    """The checkpoints in one folder, of which the newest `keep_last` are kept."""

    def __init__(self, root: Path, keep_last: int) -> None:
        self.root = root
        self.keep_last = keep_last
        self._damaged: dict[str, str] = {}
        """By name of its folder, what is wrong with each that `newest_whole` passed over."""

    def save(self, state: TrainingState, fill: Fill, *, expected: str | None = None) -> Checkpoint:
        """Writes the checkpoint of a finished step, and deletes those that are too old.

        Args:
            state: with `step`; its `weights_id` is set here.
            fill: writes the model and the trainer's files into the folder that it is given.
            expected: `weights_id` that it has to have.

        Raises:
            UsageError: there is one of this step already that is whole, or the weights are not the expected
                ones; nothing was changed then.
            InfrastructureError: it cannot be written; the earlier ones are as they were.
        """
        place, half = self._places(state)
        with disk.writing(place, half):
            self._sweep()
            (half / STATE).mkdir(parents=True)
            fill(half)
            weights_id, digests = _hashes(half)
            state = msgspec.structs.replace(state, weights_id=weights_id)
            if expected not in (None, state.weights_id):
                shutil.rmtree(half)
                raise UsageError(self.way_out(f"step {state.step}, made anew from its recorded rollouts, has "
                                              f"weights {state.weights_id}, and the run had {expected}: this "
                                              "machine does not repeat a step to the bit"))  # fmt: skip
            _seal(half / STATE, state, digests)
            disk.synchronise(half)
            self._put(half, place)
            disk.synchronise_one(self.root)
        self._prune()
        return Checkpoint(place, state)

    def start(self, state: TrainingState, model: Fill, beside: Fill) -> tuple[Checkpoint, Future[None]]:
        """As `save`, but returns when the model is at its place; a thread does the rest.

        Args:
            state: as in `save`.
            model: writes the model.
            beside: writes the trainer's files, from what must not change before the thread has ended.

        Returns:
            The checkpoint, whose model may be served, and the thread's end: its `result` raises the errors of
            `save`. The next save has to wait for it.
        """
        place, half = self._places(state)
        with disk.writing(place, half):
            self._sweep()
            half.mkdir(parents=True)
            model(half)
            state = msgspec.structs.replace(state, weights_id=hash_folder(half))
            self._put(half, place)
        thread = ThreadPoolExecutor(1, "checkpoint")
        ended = thread.submit(self._complete, place, state, beside)
        thread.shutdown(wait=False)
        return Checkpoint(place, state), ended

    def _complete(self, place: Path, state: TrainingState, beside: Fill) -> None:
        half = self.root / f"{_HALF}{STATE}-{place.name}"
        with disk.writing(place, half):
            (half / STATE).mkdir(parents=True)
            beside(half)
            _seal(half / STATE, state, _digests(half / STATE))
            disk.synchronise(half)
            disk.synchronise(place)
            disk.synchronise_one(self.root)
            (half / STATE).replace(place / STATE)  # from here on it is whole
            disk.synchronise_one(place)
            half.rmdir()
        self._prune()

    def _places(self, state: TrainingState) -> tuple[Path, Path]:
        """Where a checkpoint belongs, and where it is written."""
        place = self.root / f"{_NAME}{state.step:06d}"
        if place.exists() and place.name not in self._damaged:
            raise UsageError(f"{place} is there already; a finished step is not written twice")
        return place, self.root / f"{_HALF}{place.name}"

    def _put(self, half: Path, place: Path) -> None:
        if place.exists():  # the damaged one
            place.rename(self.root / f"{_GONE}{place.name}")
            del self._damaged[place.name]
        half.replace(place)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, checked.

        Raises:
            UsageError: it is damaged, or another program's; says what to do.
        """
        found = self.newest_whole()
        if self._damaged:
            raise UsageError(self.way_out(next(iter(self._damaged.values()))))
        return found

    def newest_whole(self) -> Checkpoint | None:
        """The newest checkpoint whose files are those that were written; None where there is none at all.

        Raises:
            UsageError: all of them are damaged, or another program's; says what to do.
        """
        self._damaged, found = {}, None
        for folder in reversed(self.folders()):
            try:
                found = _read(folder)
                break
            except UsageError as error:
                self._damaged[folder.name] = str(error)
        if found is None and self._damaged:
            raise UsageError(self.way_out(next(iter(self._damaged.values()))))
        return found

    def way_out(self, problem: str) -> str:
        """A problem that no resume mends, with what can be done."""
        whole = [folder.name for folder in self.folders() if folder.name not in self._damaged]
        kept = f"; {whole[-1]} in {self.root} is whole, and weights to begin with" if whole else ""
        return f"{problem}; the run cannot go on from it: begin a new one{kept}"

    def folders(self) -> list[Path]:
        """The folders of all checkpoints, oldest first."""
        return sorted(path for path in self.root.glob(f"{_NAME}*") if path.is_dir())

    def check_space(self, size: int) -> None:
        """Whether there is room for the checkpoints to come, `size` bytes each.

        Raises:
            UsageError: there is not.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        needed = size * max(
            1, self.keep_last + 1 - len(self.folders())
        )  # the newest beside those it replaces
        if free < needed:
            raise UsageError(
                f"{self.root} has {free / 1e9:.2f} GB free, and {self.keep_last} checkpoints and the one "
                f"that is being written need {needed / 1e9:.2f} GB: free some, or keep fewer (keep_last)"
            )

    def _prune(self) -> None:
        for folder in self.folders()[: -self.keep_last]:
            doomed = folder.rename(folder.with_name(f"{_GONE}{folder.name}"))  # half of one is never seen
            shutil.rmtree(doomed, ignore_errors=True)

    def _sweep(self) -> None:
        for kind in (_HALF, _GONE):
            for path in self.root.glob(f"{kind}*"):
                shutil.rmtree(path)


def copy_model(source: Path, folder: Path) -> None:
    """Copies the files of a model folder that decide its answers: the copy has the same `weights_id`."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in HASHED:
            shutil.copyfile(path, folder / path.name)


def _read(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, checked against its hashes."""
    path = folder / STATE / "state.json"
    try:
        state = msgspec.json.decode(path.read_bytes(), type=TrainingState)
        (found, beside), written = _hashes(folder), folder / STATE / _DIGESTS
        digests = beside  # what an earlier version wrote has none
        if written.exists():
            digests = msgspec.json.decode(written.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{folder} is damaged: {error}") from error
    if found != state.weights_id:
        raise UsageError(f"{folder} is damaged: its files hash to {found}, written was {state.weights_id}")
    for name in sorted(digests.keys() | beside.keys()):
        if digests.get(name) != beside.get(name):
            raise UsageError(f"{folder} is damaged: {STATE}/{name} is not what was written")
    return Checkpoint(folder, state)


def _hashes(folder: Path) -> tuple[str, dict[str, str]]:
    """`weights_id` of a folder, and SHA-256 of the trainer's files in it; both at once, on two cores."""
    with ThreadPoolExecutor(1) as other:
        beside = other.submit(_digests, folder / STATE)
        return hash_folder(folder), beside.result()


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by name, but of the digests, and of the metrics, in which equal runs differ."""
    names = sorted({path.name for path in folder.iterdir()} - {_DIGESTS, METRICS})
    return {name: hash_file(folder / name) for name in names}


def _seal(beside: Path, state: TrainingState, digests: dict[str, str]) -> None:
    """Writes the state and the digests to the trainer's files."""
    text = msgspec.json.format(msgspec.json.encode(state), indent=2)
    (beside / "state.json").write_bytes(text + b"\n")
    digests = digests | {"state.json": hash_file(beside / "state.json")}
    (beside / _DIGESTS).write_bytes(msgspec.json.encode(digests, order="sorted") + b"\n")
