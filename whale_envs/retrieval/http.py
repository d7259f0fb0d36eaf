"""The `http` retriever: a client for servers that speak Search-R1's `/retrieve`, ours or another's.

    async with HttpRetriever("http://10.0.0.5:8765") as retriever:
        (hits,) = await retriever.search(["who painted the night watch"], k=3)

Failed requests are tried again: no connection, a socket closed half-way, 408, 425, 429, 5xx, silence. An
answer that is no answer (HTML, another shape, too many passages, no number for a score) is asked for once
more. Then InfrastructureError says what came back last. Any other status is misuse: UsageError.

`retriever_id` is "remote:URL", and "remote:URL#ID" where the server tells its own id at `/info`, so that
runs against two servers of one index can be compared. That id is the server's word.

Both shapes of an answer are read, with scores and without; without, 1/rank stands for the score. A document
with `contents` only is split into title and text at its first line, and one without id gets a hash of its
contents for an id.

Not covered: cutting passages on the server; the environment cuts what it shows.
"""

import asyncio
import base64
import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from whale_envs.bodies import read_at_most
from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.retrieval.base import Hit, Passage, check_k, clean_query, split_contents

if TYPE_CHECKING:
    import aiohttp

TIMEOUT_S = 30.0
"""Longest wait for one answer, as the published tool has it."""

MAX_QUERIES = 128
"""Most queries of one request, so that it stays below a megabyte."""

MAX_HITS = 10_000
"""Most passages asked for in one request, k times queries."""

MAX_ANSWER = 64 * 2**20
"""Most bytes of an answer, decompressed."""

TRIES = 4
GARBAGE_TRIES = 2
CONCURRENT = 256

_FIRST_PAUSE_S = 0.25
_MOST_PAUSE_S = 30.0
_INFO_TIMEOUT_S = 5.0
_RETRIED = (408, 425, 429)


class _Document(msgspec.Struct):
    """A passage as servers give it; other fields are ignored."""

    id: str | int | None = None
    contents: str | None = None
    title: str | None = None
    text: str | None = None


class _Item(_Document):
    """A hit: a document in a wrapper with its score, or a document."""

    document: _Document | None = None
    score: float | None = None


class _Answer(msgspec.Struct):
    result: list[list[_Item]]


class _Info(msgspec.Struct):
    retriever_id: str = ""


class _Reply(NamedTuple):
    """What came back: status 0 where nothing did, and then why."""

    status: int
    body: bytes = b""
    trouble: str = ""
    wait_s: float | None = None
    garbage: bool = False


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_info = msgspec.json.Decoder(_Info).decode


class HttpRetriever:
    """Asks a server; open it with `async with`, in one event loop at a time.

    Args:
        url: of the server, with or without `/retrieve`; a user and password in it are sent, never shown.
        timeout_s: longest wait for one answer.
        sleep: waits between tries, in seconds.
    """

    name = "http"

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        parts = _checked(url)
        user, _, host = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=host, path=parts.path.rstrip("/").removesuffix("/retrieve")).geturl()
        self._secrets = _secrets(user)
        self._timeout_s, self._sleep = timeout_s, sleep
        self._server_id = ""
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def retriever_id(self) -> str:
        """What ranks: "remote:URL", and "#" with the server's own id once it is open and has been told."""
        return f"remote:{self.url}#{self._server_id}" if self._server_id else f"remote:{self.url}"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`; a query that `clean_query` leaves empty gets no hits and is not sent.

        Raises:
            UsageError: k is out of range, the retriever is not open here, or the server refused.
            InfrastructureError: the server failed or answered garbage, after retries.
        """
        check_k(k)
        if isinstance(queries, str):
            raise UsageError(f"queries are a list of strings, got the string {queries[:80]!r}")
        if self._session is None or self._loop is not asyncio.get_running_loop():
            raise UsageError("an HttpRetriever is used inside `async with retriever:`, in one event loop")
        asked = {i: clean for i, query in enumerate(queries) if (clean := clean_query(query))}
        texts = list(asked.values())
        most = max(1, min(MAX_QUERIES, MAX_HITS // k))
        found: list[list[Hit]] = []
        for start in range(0, len(texts), most):
            found += await self._retrieve(texts[start : start + most], k)
        hits: list[list[Hit]] = [[] for _ in queries]
        for i, these in zip(asked, found, strict=True):
            hits[i] = these
        return hits

    async def __aenter__(self) -> Self:
        """Opens connections and asks for `/info`, which a server need not have.

        Raises:
            UsageError: it is open already, or the address cannot be used.
            InfrastructureError: nothing answers at the address, after retries.
        """
        import aiohttp

        if self._session is not None:
            raise UsageError("this HttpRetriever is open already")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._secrets:
            headers["Authorization"] = f"Basic {self._secrets[0]}"
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the slots bound it, outside the time limit
            headers=headers,
            timeout=aiohttp.ClientTimeout(self._timeout_s, sock_connect=10),
        )
        try:
            self._server_id = await self._info()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
        self._session = self._loop = None

    async def _info(self) -> str:
        """The server's id; "" where it tells none that fits into ours."""
        for attempt in range(TRIES):
            if attempt:
                await self._sleep(_pause(attempt))
            reply = await self._send("GET", "/info", None)
            if reply.status == 0 and not reply.garbage:
                continue
            try:
                told = _decode_info(reply.body).retriever_id if reply.status == 200 else ""
            except (ValueError, RecursionError):  # not ours, then
                told = ""
            return told if len(told) <= 500 and told.isprintable() and " " not in told else ""
        raise InfrastructureError(f"{self.url} could not be reached in {TRIES} tries; last: {reply.trouble}")

    async def _retrieve(self, queries: list[str], k: int) -> list[list[Hit]]:
        body = msgspec.json.encode({"queries": queries, "topk": k, "return_scores": True})
        attempt = garbage = 0
        trouble, wait_s = "", None
        while attempt < TRIES and garbage < GARBAGE_TRIES:
            if attempt:
                await self._sleep(_pause(attempt) if wait_s is None else min(wait_s, _MOST_PAUSE_S))
            attempt += 1
            reply = await self._send("POST", "/retrieve", body)
            wait_s, trouble = reply.wait_s, reply.trouble
            if reply.status == 200 and not reply.garbage:
                try:
                    return _hits(reply.body, len(queries), k)
                except (ValueError, RecursionError) as error:
                    reply = reply._replace(garbage=True)
                    trouble = f"not an answer of a retrieval server ({error}): {self._quote(reply.body)}"
            elif 300 <= reply.status < 500 and reply.status not in _RETRIED:
                raise UsageError(f"{self.url}/retrieve refused the request: {trouble}")
            garbage += reply.garbage
        raise InfrastructureError(f"{self.url}/retrieve failed {attempt} times; last: {trouble}")

    async def _send(self, method: str, path: str, body: bytes | None) -> _Reply:
        import aiohttp

        assert self._session is not None
        try:
            async with (
                self._slots,
                # A redirected POST would become a GET.
                self._session.request(method, self.url + path, data=body, allow_redirects=False) as response,
            ):
                data = await read_at_most(response.content, MAX_ANSWER, response.content_length)
                if data is None:
                    trouble = f"HTTP {response.status} with more than {MAX_ANSWER >> 20} MB"
                    return _Reply(response.status, trouble=trouble, garbage=True)
                if response.status == 200:
                    return _Reply(200, data)
                moved = response.headers.get("Location")
                trouble = f"HTTP {response.status}: " + (
                    f"moved to {_shown(moved)}" if moved else self._quote(data)
                )
                return _Reply(response.status, data, trouble, _seconds(response.headers.get("Retry-After")))
        except aiohttp.InvalidURL as error:
            raise UsageError(f"the retrieval server's address cannot be used: {self.url!r}") from error
        except TimeoutError:
            return _Reply(0, trouble=f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _Reply(0, trouble=f"{type(error).__name__}: {self._quote(str(error).encode())}")

    def _quote(self, body: bytes) -> str:
        """The beginning of an answer, on one line and without our password."""
        text = " ".join(body[:2_000].decode("utf-8", "replace").split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return repr(text[:200]) if text else "nothing"


def _hits(body: bytes, queries: int, k: int) -> list[list[Hit]]:
    """The hits in an answer.

    Raises:
        ValueError: it is none (msgspec's errors are of this kind).
    """
    result = _decode_answer(body).result
    if len(result) != queries:
        raise ValueError(f"{len(result)} lists for {queries} queries")
    if any(len(items) > k for items in result):
        raise ValueError(f"more than {k} passages for a query")
    return [[_hit(item, rank) for rank, item in enumerate(items, 1)] for items in result]


def _hit(item: _Item, rank: int) -> Hit:
    if item.document is None:
        return Hit(_passage(item), 1.0 / rank if item.score is None else item.score)
    if item.score is None or not isfinite(item.score):
        raise ValueError("a document without a score")
    return Hit(_passage(item.document), item.score)


def _passage(document: _Document) -> Passage:
    title, text = document.title or "", document.text
    if text is None:
        if document.contents is None:
            raise ValueError("a document without text")
        title, text = split_contents(document.contents)
    passage_id = document.id
    if passage_id is None:
        whole = document.contents if document.contents is not None else f"{title}\n{text}"
        passage_id = f"sha256:{hashlib.sha256(whole.encode()).hexdigest()[:16]}"
    return Passage(str(passage_id), title, text)


def _checked(url: object) -> SplitResult:
    """The parts of a server's address."""
    why = "must be like http://HOST:PORT"
    if not isinstance(url, str):
        raise UsageError(f"the retrieval server's address must be a string, got {url!r}")
    if url.isprintable() and " " not in url:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https"):
                why = "must begin with http:// or https://"
            elif parts.query or parts.fragment or "?" in url or "#" in url:
                why = "may have no ? and no #"
            elif parts.hostname and parts.port != 0:
                return parts
        except ValueError as error:
            why = f"must be like http://HOST:PORT ({_shown(str(error))})"
    raise UsageError(f"the retrieval server's address {why}, got {_shown(url)!r}")


def _shown(url: str) -> str:
    """An address without what may be secret in it: all that stands before an @ or after a ? or #."""
    _, at, host = url[:500].rpartition("@")
    return re.split("[?#]", f"…@{host}" if at else host)[0]


def _secrets(user: str) -> tuple[str, ...]:
    """What is sent for "user:password", and the password; nothing where there is no user."""
    if not user:
        return ()
    name, _, password = user.partition(":")
    plain = unquote(password)
    token = base64.b64encode(f"{unquote(name)}:{plain}".encode()).decode()
    return (token, *(s for s in (plain, password) if s))


def _seconds(header: str | None) -> float | None:
    """A Retry-After in seconds; None where there is none, or a date."""
    try:
        seconds = float(header) if header is not None else -1.0
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def _pause(attempt: int) -> float:
    """Seconds before a repetition: doubling, with jitter so that many clients do not come back at once."""
    return _FIRST_PAUSE_S * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)
