"""Speed and memory of packing and verifying submissions.

    python benchmarks/leaderboard.py [--rollouts 1000000]
    python benchmarks/leaderboard.py --site [--entries 200]

Audit and level 1: a bundle with that many charged rollouts (real ones of the scripted random model, their
records over and over under keys of their own; ledger chained and sample drawn anew), in a process of its own,
whose peak memory is shown beside that of a bundle with a hundredth. Level 2: the 768 test rollouts of chess
mini, under h0 and under a file in a process of its own; the model's replies are the recorded ones. The site:
that many entries in two tracks, each an archive of 768 chess rollouts with its report beside it, a fifth of
them with a curve; then each kind of page in headless Chromium from disk, until its table sorts. The machine's
load is shown, for other processes share it.
"""

import argparse
import asyncio
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ABOUT = {"agent": "a", "authors": ("b",), "licence": "CC0-1.0", "hardware": "c"}


def make(folder: Path) -> None:
    """A bundle of a test run, and of a small run that was spent on it."""
    from whale_leaderboard.layout import About
    from whale_leaderboard.pack import pack

    from whale_bench import EvalPlan, evaluate

    plan = EvalPlan(domain="chess_puzzles", model="scripted/random")
    asyncio.run(evaluate(plan, folder / "test"))
    asyncio.run(evaluate(replace(plan, split="weight", n=16), folder / "spent"))
    pack(folder / "test", folder / "bundle", About(**ABOUT), spent=[folder / "spent"])


def grow(bundle: Path, run: Path, rollouts: int) -> None:
    """Makes a packed run one of so many charged rollouts, as `pack` would a run of that size."""
    from msgspec import json as fast
    from msgspec.structs import replace
    from whale_leaderboard.accounting import budget_of
    from whale_leaderboard.layout import Charged, File, Manifest
    from whale_leaderboard.rows import charged_of, digest_of
    from whale_leaderboard.sampling import Sample, commitment

    from whale_bench.evaluation import charge_of
    from whale_bench.ledger import Event
    from whale_bench.store import RunStore, outcome_of

    manifest = fast.decode((bundle / "manifest.json").read_bytes(), type=Manifest)
    events, head = manifest.runs[1].events, manifest.runs[1].head
    ledger, charged, samples = (bundle / f"runs/1/{name}.jsonl" for name in ("ledger", "charged", "samples"))
    keys = [fast.decode(line)["key"] for line in charged.read_bytes().splitlines()]
    played = {row.key: row for row in RunStore.open(run).rollouts()}
    known = [played[key] for key in keys[: len(played)]]
    charges = [charge_of(outcome_of(row)) for row in known]
    encode, had = fast.Encoder().encode, len(keys)
    at = fast.decode(ledger.read_bytes().splitlines()[-1])["at"]

    def row_of(number: int) -> bytes:
        row = known[number % len(known)]
        if number < len(known):
            return encode(row)
        return encode(replace(row, key=f"weight:{row.example_id}:{number}", sample=number))

    with ledger.open("ab") as log, charged.open("ab") as records:
        for number in range(had, rollouts):
            line, charge = row_of(number), charges[number % len(known)]
            row = known[number % len(known)]
            key = f"weight:{row.example_id}:{number}"
            record = replace(charged_of(row, "weight", digest_of(line)), key=key, sample=number)
            records.write(encode(record) + b"\n")
            keys.append(key)
            for kind, said in (("reserve", ""), ("settle", encode(charge).decode())):
                events, at = events + 1, at + charge.seconds
                event = Event(events, kind, key, 1, "weight", at, said, head, "")
                head = hashlib.sha256(encode(tuple(event[:-1]))).hexdigest()
                log.write(encode(event._replace(hash=head)._asdict()) + b"\n")
    digests = [_file(path)[1] for path in (ledger, charged)]
    sample = Sample((manifest.weights_id, manifest.harness_id), lambda: commitment(*digests))
    for line in charged.read_bytes().splitlines():
        sample.offer(fast.decode(line, type=Charged))
    lines = (row_of(number) for number in map(keys.index, sample.chosen()))
    samples.write_bytes(b"".join(line + b"\n" for line in lines))
    claim, added = manifest.claim, rollouts - had
    claim = replace(
        claim, charged=claim.charged + added, paper=claim.paper + added, executed=claim.executed + added
    )
    size = {path.relative_to(bundle).as_posix(): File(bytes=n, sha256=digest)
            for path in (ledger, charged, samples) for n, digest in [_file(path)]}  # fmt: skip
    manifest = replace(
        manifest,
        claim=claim,
        track=replace(manifest.track, budget=budget_of(claim.charged, metered=True)),
        runs=(manifest.runs[0], replace(manifest.runs[1], events=events, records=len(keys), head=head)),
        files=manifest.files | size,
    )
    (bundle / "manifest.json").write_bytes(encode(manifest))


def _file(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def child(bundle: Path) -> None:
    """Level 1 of a bundle; prints seconds, CPU seconds and peak MB."""
    from whale_leaderboard.archive import open_bundle
    from whale_leaderboard.wellformed import check

    began, cpu = time.perf_counter(), time.process_time()
    with open_bundle(bundle) as opened:
        entry = check(opened, [])
    # Not ru_maxrss, which a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps([entry.account.charged + entry.account.test, seconds, cpu, peak]))


def level_1(rollouts: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(folder)
        for count in (rollouts // 100, rollouts):  # the second one is grown from the first
            began = time.process_time()
            grow(folder / "bundle", folder / "spent", count)
            print(f"a bundle of {count:,} charged rollouts: made in {time.process_time() - began:.0f} s CPU")
            command = [sys.executable, __file__, "--child", str(folder / "bundle")]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            total, seconds, cpu, peak = json.loads(done.stdout)
            print(
                f"audit and level 1: {total:,} rollouts in {seconds:.1f} s ({cpu:.1f} s CPU), "
                f"{total / seconds:,.0f}/s, {total / cpu:,.0f}/s of CPU, peak {peak:.0f} MB",
                flush=True,
            )


def level_2() -> None:
    from whale_leaderboard.archive import open_bundle
    from whale_leaderboard.layout import About
    from whale_leaderboard.pack import pack
    from whale_leaderboard.replay import replay
    from whale_leaderboard.wellformed import check

    from whale_bench import EvalPlan, evaluate
    from whale_bench.harness.host import shipped_harnesses

    for where, addition in (("h0 in this process", ""), ("a file in a process of its own", "\n# mine\n")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "mine.py").write_text(shipped_harnesses()["chess_puzzles"] + addition)
            plan = EvalPlan(
                domain="chess_puzzles", model="scripted/noisy-oracle:0.5", harness=str(folder / "mine.py")
            )
            asyncio.run(evaluate(plan, folder / "test"))
            pack(folder / "test", folder / "bundle", About(**ABOUT))
            with open_bundle(folder / "bundle") as bundle:
                entry = check(bundle, [])
                began, used = time.perf_counter(), _cpu()
                done = asyncio.run(replay(entry, seconds=600.0))
            seconds, used = time.perf_counter() - began, _cpu() - used
            assert not done.findings
            count = done.replay.replayed
            print(
                f"level 2, {where}: {count} chess rollouts in {seconds:.2f} s ({used:.2f} s CPU), "
                f"{count / seconds:,.0f}/s"
            )


def site(entries: int) -> None:
    """Builds a site of so many entries, and opens its pages."""
    from msgspec import json as fast
    from msgspec.structs import replace
    from whale_leaderboard.archive import write_archive
    from whale_leaderboard.curve import Point
    from whale_leaderboard.layout import About, Manifest
    from whale_leaderboard.pack import pack
    from whale_leaderboard.site.build import build
    from whale_leaderboard.verify import verify

    from whale_bench import EvalPlan, evaluate
    from whale_envs.seeding import derive_rng

    with tempfile.TemporaryDirectory() as scratch:
        folder, shelf = Path(scratch), Path(scratch) / "shelf"
        shelf.mkdir()
        asyncio.run(
            evaluate(EvalPlan(domain="chess_puzzles", model="scripted/noisy-oracle:0.5"), folder / "run")
        )
        pack(folder / "run", folder / "bundle", About(**ABOUT))
        report = verify(folder / "bundle", level=1)
        path = folder / "bundle" / "manifest.json"
        plain = fast.decode(path.read_bytes(), type=Manifest)
        for number in range(entries):
            rng = derive_rng("site", number)
            about = replace(plain.about, agent=f"entry {number}", parameters=(1e9, 4e9)[number % 2])
            track = replace(plain.track, size=("1B", "5B")[number % 2])
            manifest = replace(
                plain, about=about, track=track, fixture=False, model="local/model", weights_id="sha256:0"
            )
            path.write_bytes(fast.encode(manifest))
            write_archive(folder / "bundle", shelf / f"entry-{number:03}.tar.gz")
            curve = tuple(Point(300 * n, rng.random()) for n in range(1, 11)) if number % 5 == 0 else ()
            means = tuple(rng.randint(0, 8) / 8 for _ in report.means)
            made = replace(report, manifest=manifest, track=track, curve=curve, means=means,
                           bundle=hashlib.sha256(path.read_bytes()).hexdigest())  # fmt: skip
            (shelf / f"entry-{number:03}.report.json").write_bytes(fast.encode(made))
        began, used = time.perf_counter(), _cpu()
        build(shelf, folder / "site")
        seconds, used = time.perf_counter() - began, _cpu() - used
        size = sum(p.stat().st_size for p in (folder / "site").rglob("*") if p.is_file())
        print(f"site of {entries} entries: {seconds:.1f} s ({used:.1f} s CPU), {size / 1e6:.0f} MB")
        _open_pages(folder / "site")


WATCH = """(() => {
  const look = () => {
    const found = document.querySelector(READY);
    if (!found) return setTimeout(look, 2);
    if (found.matches("button.sort")) {
      found.click();
      if (!document.querySelector("th[aria-sort]")) throw new Error("did not sort");
    }
    requestAnimationFrame(() => setTimeout(() => { window.usable = performance.now(); }));
  };
  look();
})()"""
"""In a page: notes when it can be used, after its navigation began; a table, when it is drawn sorted."""


def _open_pages(site: Path) -> None:
    """Opens pages from disk, each five times in a context of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, ready in (
            ("index.html", "#board button.sort:not([disabled])"),
            ("chess_puzzles.html", "table button.sort:not([disabled])"),
            ("entries/entry-000.html", "#curve-figure .budget:not([hidden])"),
            ("replays/entry-000.html", "a.task"),
        ):
            walls, threads = [], []
            for _ in range(5):
                page = browser.new_page()
                session = page.context.new_cdp_session(page)
                session.send("Performance.enable", {"timeDomain": "threadTicks"})
                page.add_init_script(WATCH.replace("READY", json.dumps(ready)))
                page.goto((site / name).as_uri())
                while (usable := page.evaluate("window.usable")) is None:  # waiting in the page needs eval
                    page.wait_for_timeout(20)
                walls.append(usable)
                spent = session.send("Performance.getMetrics")["metrics"]
                threads.append(1e3 * next(one["value"] for one in spent if one["name"] == "TaskDuration"))
                page.close()
            wall, thread = statistics.median(walls), statistics.median(threads)
            print(f"  {name}: can be used after {wall:.0f} ms ({min(walls):.0f} to {max(walls):.0f}), "
                  f"{thread:.0f} ms CPU of its thread")  # fmt: skip
        browser.close()


def _cpu() -> float:
    """Seconds of this process and of its children that have ended."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--site", action="store_true")
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if args.site:
        site(args.entries)
        return
    level_2()
    level_1(args.rollouts)


if __name__ == "__main__":
    main()
