"""Serves any retriever by the protocol of Search-R1's retrieval server, so that machines share an index.

    await serve(retriever, port=8765)          # until SIGTERM or Ctrl-C; `whale-bench serve-retriever`

    async with RetrieverServer(retriever) as server:
        server.url                             # "http://127.0.0.1:" and a free port

    POST /retrieve  {"queries": [str], "topk": int | null, "return_scores": bool,
                     "max_doc_tokens": int | null, "tokenizer_name": str | null}
        → {"result": [[{"document": {"id", "contents", "title", "text"}, "score": float}]]}
          and without scores {"result": [[{"id", "contents", "title", "text"}]]}
    GET /health  → {"status": "ok"}
    GET /info    → {"name", "retriever_id", "passages", "default_topk", "max_topk", "queries", "searches"}

Concurrent requests are joined (`coalesce`). The retriever runs in a thread with an event loop of its own:
one that computes for long stalls no connection. One that can give way between queries (`search_between`, of
bm25) runs on the loop of the connections. Errors are {"error": sentence}: 400 and 422 for a bad
request, 413 for a body that is too large, 503 where the retriever failed.

`max_doc_tokens` counts words as `cut.cut_words` does; a tokenizer other than "words" is refused then.
Lone surrogates in a passage cannot be sent: U+FFFD stands for them.

Not covered: TLS and authentication. Beyond one machine put it in a private network or behind a proxy.
"""

import asyncio
import functools
import json
import signal
import sys
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from whale_envs.errors import UsageError, WhaleError
from whale_envs.retrieval.base import MAX_K, Hit, Passage, Retriever
from whale_envs.retrieval.coalesce import MAX_HITS, Coalescer
from whale_envs.retrieval.cut import cut_words
from whale_envs.retrieval.listener import Answer, Ask, Later, Listener

DEFAULT_K = 3
"""Passages per query where a request does not say, as the published server has it."""

MAX_QUERIES = 4_096
"""Most queries of one request."""

MAX_BODY = 8 * 2**20
"""Most bytes of a request."""

GRACE_S = 20.0
"""How long a stop waits for the requests in flight, in seconds."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")


class _Request(msgspec.Struct):
    queries: list[str]
    topk: int | None = None
    return_scores: bool = False
    max_doc_tokens: int | None = None
    tokenizer_name: str | None = None


_decoder = msgspec.json.Decoder(_Request)


class _RefusedError(WhaleError):
    """A request that gets an error for its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


class _Query(NamedTuple):
    queries: list[str]
    k: int
    scores: bool
    most_words: int | None


class RetrieverServer:
    """Serves while it is open; opens and closes the retriever, in a thread of its own.

    Args:
        retriever: not open yet.
        host: address to listen at; the default is reached from this machine only.
        port: 0 takes a free one, see `url`.
        passages: how many the corpus has, for `/info`; None if that is not known.
    """

    def __init__(
        self, retriever: Retriever, host: str = "127.0.0.1", port: int = 0, *, passages: int | None = None
    ) -> None:
        if type(port) is not int or not 0 <= port <= 65_535:
            raise UsageError(f"a port is an integer from 0 to 65535, got {port!r}")
        self._retriever, self._host, self._port, self._passages = retriever, host, port, passages
        self._apart = _Apart()
        self._coalescer = Coalescer(self._search)
        self._listener = Listener(self._handle, _refusal, MAX_BODY)

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        """Opens the retriever, then listens.

        Raises:
            UsageError: the address cannot be had, or the retriever cannot be opened.
        """
        self._apart.start()
        try:
            await self._apart.call(self._retriever.__aenter__())
        except BaseException:
            await self._apart.stop()
            raise
        try:
            self._port = await self._listener.start(self._host, self._port)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stops listening, answers what is in flight, closes the retriever."""
        try:
            await self._listener.stop(GRACE_S)
        finally:
            try:
                await self._apart.call(self._retriever.__aexit__(None, None, None))
            finally:
                await self._apart.stop()

    def _search(self, queries: list[str], k: int) -> Awaitable[list[list[Hit]]]:
        between = getattr(self._retriever, "search_between", None)
        if between is not None:
            found: Awaitable[list[list[Hit]]] = between(queries, k)
            return found
        return self._apart.call(self._retriever.search(queries, k))

    def _handle(self, request: Ask) -> Answer | Later:
        try:
            return self._route(request)
        except _RefusedError as refused:
            return _refusal(refused.status, refused.message)

    def _route(self, request: Ask) -> Answer | Later:
        path = request.path
        wanted = {"/retrieve": "POST", "/health": "GET", "/info": "GET"}.get(path)
        if wanted is None:
            raise _RefusedError(404, "there are POST /retrieve, GET /health and GET /info here")
        if request.method != wanted:
            raise _RefusedError(405, f"{path} takes {wanted} only")
        if path != "/retrieve":
            return Answer(200, _encode({"status": "ok"} if path == "/health" else self._info()))
        ask = _read(request.body)
        found = self._coalescer.submit(ask.queries, ask.k)
        return Later(found, functools.partial(_answer_with, ask))

    def _info(self) -> dict[str, Any]:
        return {
            "name": self._retriever.name,
            "retriever_id": self._retriever.retriever_id,
            "passages": self._passages,
            "default_topk": DEFAULT_K,
            "max_topk": MAX_K,
            "queries": self._coalescer.queries,
            "searches": self._coalescer.searches,
        }


async def serve(
    retriever: Retriever, host: str = "127.0.0.1", port: int = 0, *, passages: int | None = None
) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes what is in flight and returns; a second signal kills.

    Says on stderr where it listens; with port 0 the address stands alone on a line of stdout too.

    Raises:
        UsageError: the address cannot be had, or the retriever cannot be opened.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop.set()

    async with RetrieverServer(retriever, host, port, passages=passages) as server:
        for number in signals:
            loop.add_signal_handler(number, on_signal)
        size = "" if passages is None else f", {passages:,} passages"
        _say(f"serving {retriever.name} ({retriever.retriever_id}{size}) at {server.url}; Ctrl-C stops it")
        if host not in _LOOPBACK:
            _say("whoever can reach this address can use it: there is no authentication")
        if not port:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
        try:
            await stop.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
        _say("stopping: finishing what is in flight")


class _Apart:
    """A thread with an event loop, in which coroutines run that may block."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="retriever", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def call(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Future[_T]":
        assert self._loop is not None
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._done.set)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._done.wait()


def _refusal(status: int, message: str) -> Answer:
    return Answer(status, _encode({"error": message}))


def _read(body: bytes) -> _Query:
    """A request, checked."""
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        raise _RefusedError(422, f"not a request for passages: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _RefusedError(400, f"the body must be JSON in UTF-8: {error}") from error
    if len(request.queries) > MAX_QUERIES:
        raise _RefusedError(400, f"at most {MAX_QUERIES} queries a request, got {len(request.queries)}")
    k = DEFAULT_K if request.topk is None else request.topk
    if not 1 <= k <= MAX_K:
        raise _RefusedError(400, f"topk must be from 1 to {MAX_K}, got {_short(k)}")
    if len(request.queries) * k > MAX_HITS:
        raise _RefusedError(
            400, f"queries times topk must be at most {MAX_HITS}, got {len(request.queries)} times {k}"
        )
    most = request.max_doc_tokens
    if most is not None:
        if most < 1:
            raise _RefusedError(400, f"max_doc_tokens must be 1 or more, got {_short(most)}")
        if request.tokenizer_name not in (None, "words"):
            raise _RefusedError(
                400, f'max_doc_tokens counts "words" only, got tokenizer_name {request.tokenizer_name[:80]!r}'
            )
    return _Query(request.queries, k, request.return_scores, most)


def _decode(body: bytes) -> _Request:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # msgspec takes no lone surrogates, which a model's query may hold; retrievers blank them.
        return msgspec.convert(json.loads(body.decode()), _Request)


def _answer_with(ask: _Query, found: "asyncio.Future[list[list[Hit]]]") -> Answer:
    error = found.exception()
    if error is not None:
        return _refusal(503, f"the retriever failed: {str(error)[:500]}")
    return Answer(200, _encode_hits(found.result(), ask))


def _encode_hits(found: list[list[Hit]], ask: _Query) -> bytes:
    most = ask.most_words
    if ask.scores:
        result: list[Any] = [
            [{"document": _document(hit.passage, most), "score": hit.score} for hit in hits] for hits in found
        ]
    else:
        result = [[_document(hit.passage, most) for hit in hits] for hits in found]
    try:
        return _encode({"result": result})
    except UnicodeEncodeError:
        text = json.dumps({"result": result}, ensure_ascii=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _document(passage: Passage, most_words: int | None) -> dict[str, str]:
    title, text, contents = passage.title, passage.text, passage.contents
    if most_words is not None:
        contents = cut_words(contents, most_words)
        kept = len(contents) - len(title) - 1 if title else len(contents)
        title, text = title[: len(contents)], text[: max(0, kept)]
    return {"id": passage.id, "contents": contents, "title": title, "text": text}


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**18 else "a huge number"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
