"""The process that owns the Java machine; run as a script, never imported by the host.

    python lucene_child.py serve HOST_PID         # `lucene_process` speaks with it over its pipes
    python lucene_child.py exec HOST_PID java …   # becomes that program, tied to the host's life

`serve` reads one JSON object a line: first its settings, then queries `{"n": number, "q": [query, …],
"k": k}`. It writes one a line: first `{"ok": …}` or `{"error": [class, message]}`, then for each number
`{"n": …, "lists": [[[id, score, stored text or null], …], …]}` or `{"n": …, "error": [class, message]}`.
Requests that are waiting are searched together, `threads` at a time.

It ends with its standard input, with its host however that ends, and when the heap is full. It is a
session of its own, so that a Ctrl-C on the terminal is the host's to handle.

Not covered: anything of this project; only the standard library, pyjnius and Pyserini's `pyclass` are
imported here.
"""

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

MOST_AT_ONCE = 64
"""Queries searched by one call of Lucene; others that wait are not delayed by more than that."""

_PR_SET_PDEATHSIG = 1
_Request = dict[str, Any]


def tie_to(host: int) -> None:
    """Ends this process when the host's thread that started it ends, or at once if it has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != host:
        os._exit(1)


def serve(host: int) -> None:
    """Answers until there is nothing left to read."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever Java prints must not meet our answers
    requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
    settings = json.loads(sys.stdin.buffer.readline() or b"{}")
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    try:
        searcher, hello = _open(settings)
    except BaseException as error:  # noqa: BLE001 - told to the host, whatever it is
        _say(out, {"error": _describe(error)})
        return
    _say(out, {"ok": hello})
    while True:
        batch = _next(requests, host)
        if batch:
            _answer(searcher, batch, settings["threads"], out)


def _open(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Starts Java, before anything of Pyserini could with options of its own; opens the index."""
    import jnius_config

    jnius_config.set_classpath(settings["jar"])
    # -Xrs: signals stay Python's. Serial: faster here than G1, with less memory.
    jnius_config.set_options(
        f"-Xmx{settings['heap_mb']}m",
        "-Xrs",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
    )
    import jnius  # noqa: F401 - this starts Java
    from pyserini.pyclass import autoclass

    logs = autoclass("java.util.logging.LogManager").getLogManager()
    logs.reset()
    searcher = autoclass("io.anserini.search.SimpleSearcher")(settings["index"])
    searcher.set_bm25(settings["k1"], settings["b"])
    documents = searcher.get_total_num_docs()
    first = searcher.doc(0) if documents else None
    if documents and first is None:
        raise CorruptIndexError("its first passage cannot be read")
    stored = first is None or _stored(first) is not None
    version = autoclass("org.apache.lucene.util.Version").LATEST.toString()
    return searcher, {"documents": documents, "stored": stored, "lucene": version, "pid": os.getpid()}


class CorruptIndexError(Exception):
    """Lucene opens the index, and has not what it should hold."""


def _read(requests: "queue.SimpleQueue[_Request]") -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)


def _next(requests: "queue.SimpleQueue[_Request]", host: int) -> list[_Request]:
    """The requests that wait, the first of them awaited; empty after a while without any."""
    try:
        batch = [requests.get(timeout=5.0)]
    except queue.Empty:
        if os.getppid() != host:
            os._exit(0)
        return []
    count = len(batch[0]["q"])
    with contextlib.suppress(queue.Empty):
        while count < MOST_AT_ONCE:
            batch.append(requests.get_nowait())
            count += len(batch[-1]["q"])
    return batch


def _answer(searcher: Any, batch: list[_Request], threads: int, out: Any) -> None:
    for k in sorted({request["k"] for request in batch}):
        group = [request for request in batch if request["k"] == k]
        try:
            lists = _search(searcher, [query for request in group for query in request["q"]], k, threads)
        except Exception as error:  # noqa: BLE001 - told to the host
            if len(group) > 1:  # one of them is at fault, the others are not
                for request in group:
                    _answer(searcher, [request], threads, out)
            else:
                _say(out, {"n": group[0]["n"], "error": _describe(error)})
            continue
        at = 0
        for request in group:
            end = at + len(request["q"])
            _say(out, {"n": request["n"], "lists": lists[at:end]})
            at = end


def _search(searcher: Any, queries: list[str], k: int, threads: int) -> list[list[Any]]:
    from pyserini.pyclass import JArrayList

    if len(queries) == 1:
        return [_hits(searcher.search(queries[0], k))]
    texts, names = JArrayList(), JArrayList()
    for number, query in enumerate(queries):
        texts.add(query)
        names.add(str(number))
    found = searcher.batch_search(texts, names, k, threads)
    return [_hits(found.get(str(number))) for number in range(len(queries))]


def _hits(found: Any) -> list[Any]:
    return [(hit.docid, hit.score, _stored(hit.lucene_document)) for hit in found or ()]


def _stored(document: Any) -> str | None:
    text: str | None = document.get("raw")
    return document.get("contents") if text is None else text


def _say(out: Any, message: dict[str, Any]) -> None:
    out.write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _describe(error: BaseException) -> list[str]:
    """Class and message; of a Java exception, Java's."""
    name = getattr(error, "classname", None) or type(error).__name__
    return [name, getattr(error, "innermessage", None) or str(error)]


def main(arguments: list[str]) -> None:
    mode, host, *rest = arguments
    tie_to(int(host))
    if mode == "exec":
        os.execv(rest[0], rest)  # noqa: S606
    serve(int(host))


if __name__ == "__main__":
    main(sys.argv[1:])
