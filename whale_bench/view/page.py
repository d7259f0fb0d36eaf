"""One HTML page that needs nothing else: styles, scripts and data inlined, no request to anywhere.

    write_report(Path("runs/demo"), Path("runs/demo/report.html"))

The page's parts are in `static/`; modules are joined in the order of their imports. Data of a run goes in
as gzip in base64, so no text of a rollout can be markup, and it only ever becomes text nodes
(`static/dom.js`). A content security policy allows the page's own script and style, by their hashes, and
nothing else: no other script, no image, no font, no connection.

A run of more than `MOST` rollouts has that many in its page, see `data.choose`; of these, one whose replays
take more than `MOST_BYTES` has the first that fit, by the same hash.

Not covered: browsers before 2024, which lack `light-dark()`; `server.py` for runs that are large.
"""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.view.board import pieces
from whale_bench.view.data import choose, rank
from whale_bench.view.index import MOST_ROWS, DamagedRolloutError, Progress, Query, RunIndex
from whale_bench.view.replay import replay_of
from whale_envs import __version__
from whale_envs.errors import UsageError

MOST = 2_000
"""Most rollouts whose content one page holds."""

MOST_BYTES = 50_000_000
"""Most bytes of JSON that their replays take, before compression: a browser holds all of it."""

MODULES = (
    "dom.js", "python.js", "board.js", "blocks.js", "charts.js", "source.js", "overview.js", "table.js",
    "reading.js", "replay.js", "theme.js", "app.js",
)  # fmt: skip
"""In the order in which they need one another."""

_FULL = (
    "This page holds {shown:,} of {of:,} rollouts, as many as go into {mb} MB, by a hash of their keys. "
    "Scores, distributions and groups are of all rollouts; table and filters are of those held. "
    "whale-bench view --serve shows all."
)

_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const |class |function |async )", re.MULTILINE)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


class Shell(NamedTuple):
    """A page and the policy it is under."""

    html: str
    policy: str


class Written(NamedTuple):
    """What `write_report` made."""

    path: Path
    size: int
    """Bytes."""
    shown: int
    of: int
    """Rollouts in the page, and in the run."""


def write_report(folder: Path, out: Path, *, most: int = MOST, progress: Progress | None = None) -> Written:
    """Writes a run's page, whole or not at all.

    Raises:
        UsageError: the folder is no run, or the page cannot be written.
    """
    with RunIndex.open(folder, cached=False, progress=progress) as index:
        keys = choose(index.outcomes(), most)
        total = index.rows(Query(limit=0)).total
        data, shown = _data(index, keys, total)
        title = f"{index.store.settings['model']} on {index.store.settings['domain']}"
    page = shell({"source": "embedded"}, title=title, data=data).html.encode()
    write_page(page, out)
    return Written(out, len(page), shown, total)


def write_page(page: bytes, out: Path) -> None:
    """Writes a page, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = out.with_name(f".{out.name}.half-written")
    try:
        temporary.write_bytes(page)
        temporary.replace(out)
    except OSError as error:
        raise UsageError(f"{out}: the page cannot be written: {error}") from error


def shell(config: Mapping[str, Any], *, title: str, data: bytes = b"", connect: str = "'none'") -> Shell:
    """The page around its data.

    Args:
        config: what `static/app.js` reads: the kind of source.
        title: of the document, before its script runs.
        data: what an embedded source reads, as JSON.
        connect: where the page may ask for data, as a policy says it.
    """
    style, script = _style(), _script()
    policy = policy_of(script, style, connect)
    parts = {
        "csp": html.escape(policy, quote=False),
        "title": html.escape(title),
        "style": style,
        "footer": f"whale-envs {html.escape(__version__)}",
        "pieces": pieces(),
        "config": msgspec.json.encode(config).decode().replace("<", "\\u003c"),
        "data": base64.b64encode(gzip.compress(data, 6, mtime=0)).decode() if data else "",
        "script": script,
    }
    template = static_text("page.html")
    return Shell(_PLACE.sub(lambda place: parts[place[1]], template), policy)


def _data(index: RunIndex, keys: set[str], total: int) -> tuple[bytes, int]:
    """What an embedded source reads, and how many rollouts it has."""
    found, offset = [], 0
    while page := index.rows(Query(offset=offset, limit=MOST_ROWS)).rows:
        found += [row for row in page if row.key in keys]
        offset += len(page)
    replays: dict[str, msgspec.Raw] = {}
    left, damaged, full = MOST_BYTES, 0, False
    for row in sorted(found, key=lambda row: rank(row.key)):
        try:
            rollout = index.rollout(row.key)
        except DamagedRolloutError:  # one line costs nobody the page
            damaged += 1
            continue
        if rollout is None:
            raise UsageError(f"{index.store.folder}: rollout {row.key!r} is gone")
        replay = msgspec.json.encode(replay_of(rollout))
        left -= len(replay)
        if full := left < 0:
            break
        replays[row.key] = msgspec.Raw(replay)
    rows, overview = [row for row in found if row.key in replays], index.overview
    sample = {"shown": len(rows), "of": total - damaged}
    data = {
        "overview": msgspec.structs.replace(overview, damaged=overview.damaged + damaged),
        "sample": sample | ({"note": _FULL.format(**sample, mb=MOST_BYTES // 10**6)} if full else {}),
        "rows": rows,
        "replays": [replays[row.key] for row in rows],
    }
    return msgspec.json.encode(data), len(rows)


@cache
def _style() -> str:
    return f"\n{static_text('style.css')}"


@cache
def _script() -> str:
    """All modules as one, which is why no two of them may use one name at their top."""
    joined = "\n".join(_EXPORT.sub("", _IMPORT.sub("", static_text(name))) for name in MODULES)
    if "</script" in joined.lower() or "<!--" in joined:
        raise AssertionError("a script that ends itself")
    return f"\n{joined}"


def static_text(name: str) -> str:
    """A file of `static/`."""
    return (files("whale_bench.view") / "static" / name).read_text(encoding="utf-8")


def policy_of(script: str, style: str, connect: str = "'none'") -> str:
    """The content security policy of a page with one script and one style: nothing else may run or load."""
    return (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def source_hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
