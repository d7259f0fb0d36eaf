"""The loop: hand-offs, resuming, evaluation points; with the simulated operators, which are whole ones."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
from bench_fakes import settled
from runs import SMALL, harness_files, recipe_in, run, timeless
from whale_baselines.alternate import alternate, due_after
from whale_baselines.history import FILE, History, Made, Pair, harness_of
from whale_baselines.schedule import Entry, Move, weight_only
from whale_baselines.settings import Every
from whale_baselines.simulated.opening import Simulation

from whale_bench.ledger import Ledger
from whale_bench.store import RunStore
from whale_envs.errors import DataError, InfrastructureError, UsageError


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return recipe_in(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(small, folder)
    return folder


def moves(folder):
    return [(m.kind, m.cycle, m.number) for m in History(folder, readonly=True).moves]


def test_a_run_makes_the_schedules_moves_and_the_ledger_agrees_with_an_independent_count(small, whole):
    made = History(whole, readonly=True).moves
    steps = [m for m in made if m.kind == "train"]
    searches = [m for m in made if m.kind == "search"]
    assert [m.number for m in steps] == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert [m.number for m in searches] == [1, 2, 3, 1, 2, 3]
    with Ledger(whole / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        charged = {purpose: charge.rollouts for purpose, charge in ledger.charged().items()}
    assert charged["weight"] == 10 * 8 * 4
    assert charged["harness"] == 2 * (256 + 2 * 768)
    points = History(whole, readonly=True).points
    for split in ("dev", "test"):
        assert charged[split] == sum(point.rollouts for point in points if point.split == split)
    assert points[-1].charged == charged


class StopError(Exception):
    """Ends a launch, as a kill would, but in process."""


def test_a_run_goes_on_from_every_record_to_the_same_end(small, whole, tmp_path):
    records = len(timeless(whole)) - 1  # the first line is not reported
    for stop_at in range(1, records + 1, 3):
        folder, left = tmp_path / str(stop_at), [stop_at]

        def report(record, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise StopError

        with pytest.raises(StopError):
            run(small, folder, report)
        run(small, folder)
        assert timeless(folder) == timeless(whole)
        assert settled(folder) == settled(whole)
        assert harness_files(folder) == harness_files(whole)


def test_launches_of_one_record_each_end_where_one_launch_does(small, whole, tmp_path):
    folder = tmp_path / "run"

    def report(record):
        raise StopError

    for _ in range(1_000):
        try:
            run(small, folder, report)
        except StopError:
            continue
        break
    assert timeless(folder) == timeless(whole)
    assert settled(folder) == settled(whole)


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_on_either_side_of_any_ledger_write_loses_and_doubles_nothing(
    small, whole, tmp_path, monkeypatch, after
):
    write = Ledger._append
    for stop_at in range(1, 60, 5):
        folder, left = tmp_path / str(stop_at), [stop_at]

        def dies(ledger, *event, left=left):
            left[0] -= 1
            if left[0] == 0 and not after:
                raise StopError
            write(ledger, *event)
            if left[0] == 0:
                raise StopError

        monkeypatch.setattr(Ledger, "_append", dies)
        with pytest.raises(StopError):
            run(small, folder)
        monkeypatch.setattr(Ledger, "_append", write)
        run(small, folder)
        assert timeless(folder) == timeless(whole)
        assert settled(folder) == settled(whole)
        with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
            assert ledger.open_reservations() == []


def test_a_finished_run_is_left_as_it_is(small, whole):
    before = (whole / FILE).read_bytes()
    run(small, whole)
    assert (whole / FILE).read_bytes() == before


def test_a_line_cut_by_a_kill_is_made_again_and_other_damage_is_refused(small, whole, tmp_path):
    folder = tmp_path / "cut"
    run(small, folder)
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[:-25])
    run(small, folder)
    assert timeless(folder) == timeless(whole)
    lines = data.splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join([*lines[:3], lines[3][:-9] + b"\n", *lines[4:]]))
    with pytest.raises(DataError, match=r"history.jsonl:4: cannot be read"):
        run(small, folder)
    (folder / FILE).write_bytes(b"".join(lines[1:]))
    with pytest.raises(DataError, match="does not begin as a history does"):
        run(small, folder)


def test_a_folder_of_other_settings_is_refused(small, whole, tmp_path):
    with pytest.raises(UsageError, match="with other settings than"):
        run(replace(small, search=replace(small.search, slots=2)), whole)
    with pytest.raises(UsageError, match="with other settings than"):
        run(small.with_seed(1), whole)


def test_an_edited_harness_is_refused(small, tmp_path):
    folder = tmp_path / "run"
    run(small, folder)
    for path in (folder / "harnesses").iterdir():
        path.write_text(path.read_text() + "# better\n")
    lines = (folder / FILE).read_text().splitlines()
    (folder / FILE).write_text("\n".join(lines[:4]) + "\n")
    with pytest.raises(DataError, match="was edited"):
        run(small, folder)


def tampered(part, **changes):
    """The simulated operators, of which one lies about `part`."""

    class Tampered(Simulation):
        async def operators(self, store, ledger, progress):
            operators = await super().operators(store, ledger)
            operator = getattr(operators, part)
            name = "step" if part == "trainer" else "iterate"
            true = getattr(operator, name)

            async def lie(number):
                return msgspec.structs.replace(await true(number), **changes)

            setattr(operator, name, lie)
            return operators

    @asynccontextmanager
    async def opened(recipe):
        yield Tampered(recipe)

    return opened


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("trainer", {"began_with": "sha256:other"}, "step 1 began from weights sha256:other"),
        ("trainer", {"harness_id": "sha256:other"}, "step 1 ran under harness sha256:other"),
        ("search", {"weights_id": "sha256:other"}, "iteration 1 of search phase 1 scored under weights"),
        ("search", {"accepted": harness_of("other")}, "iteration 1 of search phase 1 evaluated harness"),
    ],
)
def test_a_phase_on_other_weights_or_another_harness_stops_the_run(small, tmp_path, part, changes, message):
    with pytest.raises(UsageError, match=message):
        run(small, tmp_path / "run", operators=tampered(part, **changes))
    made = History(tmp_path / "run", readonly=True).moves
    assert all(m.kind == "train" for m in made)  # nothing of the lie is in the history
    assert len(made) == (0 if part == "trainer" else 4)


def test_weights_that_were_replaced_between_two_steps_stop_the_run(small, tmp_path):
    folder = tmp_path / "run"

    def report(record):
        if isinstance(record, Made) and record.number == 3:
            raise StopError

    with pytest.raises(StopError):
        run(small, folder, report)
    steps = folder / "simulated" / "steps.jsonl"
    lines = [json.loads(line) for line in steps.read_text().splitlines()]
    lines[-1]["general"] += 0.1
    steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match="step 4 began from weights simulated:"):
        run(small, folder)


def test_a_schedule_without_its_operator_is_refused(small, tmp_path):
    async def go():
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            history = History(tmp_path)
            opened = await Simulation(small).operators(RunStore(tmp_path, {}), ledger)
            history.begin(Pair(opened.weights_id, opened.h0.harness_id), "recipe")
            history.keep_harness(opened.h0)
            schedule = weight_only(total_steps=2)
            await alternate(None, None, schedule, ledger, evaluator=opened.evaluator, history=history)

    with pytest.raises(UsageError, match="the schedule trains, and there is no weight operator"):
        asyncio.run(go())


def test_the_moves_do_not_depend_on_where_and_on_what_agents_are_evaluated(small, whole, tmp_path):
    for number, dev in enumerate(
        (
            replace(small.dev, every_steps=0, test="none"),
            replace(small.dev, every_iterations=1, samples=5, test="end"),
        )
    ):
        folder = tmp_path / str(number)
        run(replace(small, dev=dev), folder)
        ids = [(m.weights_id, m.harness_id, m.signal) for m in History(folder, readonly=True).moves]
        assert ids == [(m.weights_id, m.harness_id, m.signal) for m in History(whole, readonly=True).moves]


def test_test_is_evaluated_where_the_recipe_says_and_an_agent_never_twice(small, tmp_path):
    counts = {}
    for test in ("points", "end", "none"):
        run(replace(small, dev=replace(small.dev, test=test)), tmp_path / test)
        points = History(tmp_path / test, readonly=True).points
        counts[test] = sum(point.split == "test" for point in points)
        for split in ("dev", "test"):
            paid = [Pair(p.weights_id, p.harness_id) for p in points if p.split == split and p.rollouts]
            assert len(paid) == len(set(paid))
    assert counts["none"] == 0
    assert counts["end"] == 1
    assert counts["points"] == sum(
        p.split == "dev" for p in History(tmp_path / "points", readonly=True).points
    )


def test_points_are_due_at_the_start_after_each_phase_and_every_so_many_moves():
    def entry(kind, cycle, number):
        return Entry(kind=kind, cycle=cycle, number=number, signal=0.5)

    every = Every(steps=3, iterations=2)
    steps = [entry("train", 1, n) for n in range(1, 5)]
    assert due_after([], Move("train", 1, 1), every)
    assert [due_after(steps[:n], Move("train", 1, n + 1), every) for n in range(1, 5)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert due_after(steps, Move("search", 1, 1), every)
    assert due_after(steps, None, every)
    searched = [*steps, entry("search", 1, 1), entry("search", 1, 2)]
    assert not due_after(searched[:-1], Move("search", 1, 2), every)
    assert due_after(searched, Move("search", 1, 3), every)
    assert not due_after(searched, Move("search", 1, 3), Every())


def test_weights_that_nobody_made_cannot_be_evaluated(small, tmp_path):
    async def go():
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            opened = await Simulation(small).operators(RunStore(tmp_path, {}), ledger)
            nobody = Pair("simulated:none", opened.h0.harness_id)
            await opened.evaluator.evaluate(nobody, opened.h0, "dev")

    with pytest.raises(InfrastructureError, match="has made weights simulated:none"):
        asyncio.run(go())


def test_the_recipe_of_these_tests_is_what_they_say(small):
    assert "total_epochs = 0.01" in SMALL
    assert small.plan_schedule().total_steps == 10
