"""A retriever in process against the same one behind the server, in the same run.

    python benchmarks/retrieval_http.py --windows     # bm25 over 100,000 windows of the embedded passages
    python benchmarks/retrieval_http.py               # a stand-in: 0.7 ms of numpy a query
    python benchmarks/retrieval_http.py --retriever package.module:make    # gives a Retriever, not open

64 clients, each waiting for its answer before it asks again, k = 3. In process: 64 tasks that call
`search`. Through the server: a server process and a process that makes the load over raw sockets, which
checks only the status. The ways are measured in turns and medians given, so that a busy machine slows all.
CPU is the server process's, per query, as the kernel counts it; "over" is what it spends beyond the
ranker in process. `--fixed-ms` adds a cost per search, as a GPU has, to the stand-in.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np

from whale_envs.retrieval import Hit, Passage
from whale_envs.retrieval.server import serve

CLIENTS = 64
K = 3
PASSAGES = 100_000
TERMS = 90
TEXT = "the river runs past a small town whose bridge was built in 1883 by an engineer from Leeds " * 6


class StandIn:
    """Adds up postings in numpy, as a BM25 ranker does; 90 lists of 2,000 take about 0.7 ms of CPU."""

    name = "stand-in"
    retriever_id = "sha256:0"

    def __init__(self, terms, fixed_ms):
        rng = np.random.default_rng(0)
        self.fixed_s = fixed_ms / 1e3
        self.rows = np.sort(rng.choice(PASSAGES, 2_000, replace=False))
        self.weights = rng.random(2_000)
        self.scores = np.zeros(PASSAGES)
        self.passages = [Passage(str(i), f"Title {i}", TEXT) for i in range(1_000)]
        self.terms = terms

    def rank(self, query, k):
        for _ in range(self.terms):
            self.scores[self.rows] += self.weights
        first = hash(query) % 900
        return [Hit(self.passages[first + i], 9.0 - i) for i in range(k)]

    async def search(self, queries, k):
        if self.fixed_s:
            end = time.thread_time() + self.fixed_s
            while time.thread_time() < end:
                self.rank("", k)
        return [self.rank(query, k) for query in queries]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        pass


def windows():
    """The ranker of `--windows`; its index is built once, into the cache."""
    from itertools import islice

    import retrieval

    from whale_envs.paths import cache_dir
    from whale_envs.retrieval.index_build import build_index
    from whale_envs.search_qa.retrievers import open_retriever

    folder = cache_dir() / "benchmarks" / "retrieval" / "windows-http"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        rows = islice(retrieval.windows(), PASSAGES)
        build_index((Passage(row["id"], "", row["contents"]) for row in rows), folder)
    return open_retriever("bm25", index=str(folder))


def made(options):
    if options.windows:
        return windows()
    if not options.retriever:
        return StandIn(options.terms, options.fixed_ms)
    module, _, name = options.retriever.partition(":")
    return getattr(importlib.import_module(module), name)()


def questions(options):
    if options.windows:
        import retrieval

        return retrieval.embedded_questions()
    if not options.queries:
        return [f"who built the bridge number {i} in the town" for i in range(1_000)]
    return [line for line in Path(options.queries).read_text().splitlines() if line]


def cpu_s(process):
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def in_process(options, queries):
    """(queries a second, CPU seconds a query), 64 tasks."""
    done, began, cpu = 0, time.perf_counter(), time.process_time()

    async def client(number):
        nonlocal done
        turn = number
        while time.perf_counter() - began < options.seconds:
            await retriever.search([queries[turn % len(queries)]], K)
            turn += CLIENTS
            done += 1
            await asyncio.sleep(0)

    async with made(options) as retriever:
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        return done / (time.perf_counter() - began), (time.process_time() - cpu) / done


class Load(asyncio.Protocol):
    """One client: sends a request, reads the answer, sends the next."""

    def __init__(self, requests, latencies):
        self.requests, self.latencies = requests, latencies
        self.turn, self.needed, self.stopped = 0, 0, False
        self.data = bytearray()
        self.finished = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.ask()

    def ask(self):
        if self.stopped:
            self.transport.close()
            self.finished.set_result(None)
            return
        self.began = time.perf_counter()
        self.transport.write(self.requests[self.turn % len(self.requests)])
        self.turn += 1

    def data_received(self, data):
        self.data += data
        if not self.needed:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.data[:end]).lower()
            assert head.startswith(b"http/1.1 200"), bytes(self.data[:300])
            self.needed = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self.data) >= self.needed:
            self.data.clear()
            self.needed = 0
            self.latencies.append(time.perf_counter() - self.began)
            self.ask()


async def load(port, clients, per_request, seconds, queries):
    """Prints requests, seconds and the median and 99th percentile of the latencies."""
    loop, latencies, all_of_them = asyncio.get_running_loop(), [], []
    for number in range(clients):
        requests = []
        for turn in range(50):
            start = (number * 50 + turn) * per_request
            some = [queries[(start + i) % len(queries)] for i in range(per_request)]
            body = json.dumps({"queries": some, "topk": K, "return_scores": True}).encode()
            head = f"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            requests.append(head.encode() + body)
        all_of_them.append(requests)
    began = time.perf_counter()
    protocols = [
        (await loop.create_connection(lambda r=r: Load(r, latencies), "127.0.0.1", port))[1]
        for r in all_of_them
    ]
    await asyncio.sleep(seconds)
    for protocol in protocols:
        protocol.stopped = True
    await asyncio.gather(*(protocol.finished for protocol in protocols))
    took = time.perf_counter() - began
    latencies.sort()
    print(
        json.dumps([len(latencies), took, latencies[len(latencies) // 2], latencies[-len(latencies) // 100]])
    )


def me(options, *more):
    same = [f"--seconds={options.seconds}", f"--fixed-ms={options.fixed_ms}", f"--terms={options.terms}"]
    same += [f"--retriever={options.retriever}"] if options.retriever else []
    same += ["--windows"] if options.windows else []
    same += [f"--queries={options.queries}"] if options.queries else []
    return [sys.executable, __file__, *same, *more]


def through_server(options, clients, per_request):
    """(queries a second, server CPU seconds a query, queries a search, median and p99 latency in seconds)."""
    with subprocess.Popen(
        me(options, "--role=server"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            url = server.stdout.readline().strip()
            before = cpu_s(server.pid)
            command = me(options, f"--role=load,{url.rpartition(':')[2]},{clients},{per_request}")
            requests, took, median, late = json.loads(subprocess.check_output(command))
            used = cpu_s(server.pid) - before
            with urllib.request.urlopen(f"{url}/info") as answer:
                info = json.load(answer)
        finally:
            server.terminate()
    done = requests * per_request
    return done / took, used / done, info["queries"] / info["searches"], median, late


def main(options):
    queries = questions(options)
    alone, served = [], {(CLIENTS, 1): [], (CLIENTS, 32): [], (1, 1): []}
    for _ in range(options.rounds):
        alone.append(asyncio.run(in_process(options, queries)))
        for way, results in served.items():
            results.append(through_server(options, *way))
    rate, cpu = (statistics.median(column) for column in zip(*alone, strict=True))
    print(f"in process, {CLIENTS} tasks: {rate:.0f} queries/s, {cpu * 1e3:.2f} ms CPU a query")
    for (clients, per_request), results in served.items():
        there, used, joined, median, late = (
            statistics.median(column) for column in zip(*results, strict=True)
        )
        share = statistics.median(r[0] / a[0] for r, a in zip(results, alone, strict=True))
        print(
            f"through the server, {clients} clients x {per_request} queries a request: {there:.0f} "
            f"queries/s, {share:.0%} of in process;\n    server {used * 1e3:.2f} ms CPU a query "
            f"({(used - cpu) * 1e6:+.0f} µs over); {joined:.0f} queries a search; "
            f"latency {median * 1e3:.1f} ms, p99 {late * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--retriever", help="module:function that makes one; the stand-in by default")
    parser.add_argument("--windows", action="store_true", help="bm25 over windows, and embedded questions")
    parser.add_argument("--queries", help="file with a query a line")
    parser.add_argument(
        "--terms", type=int, default=TERMS, help="work of the stand-in; 0 shows the server alone"
    )
    parser.add_argument("--fixed-ms", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", default="main", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    role, *rest = chosen.role.split(",")
    if role == "main":
        main(chosen)
    elif role == "server":
        asyncio.run(serve(made(chosen)))
    else:
        asyncio.run(load(*map(int, rest), chosen.seconds, questions(chosen)))
