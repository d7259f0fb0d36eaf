"""Writes the feeds: every entry as Atom and as JSON feed, the latest first.

    write_feeds(folder, pages, submissions, dates, url="https://example.org/board/")

With the address of the site every link is whole. Without one links are relative to the feed's own address,
as Atom allows; a reader that does not resolve them has the ids.

Not covered: what an entry's page says.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whale_bench.view.hidden import plain
from whale_envs import UsageError
from whale_leaderboard.results import Submission, page_of
from whale_leaderboard.site.templates import Pages

ATOM, JSON = "feed.xml", "feed.json"


def check_url(url: str) -> str:
    """The address of a site's folder, with one slash at its end; empty where there is none.

    >>> check_url("https://example.org/board"), check_url("https://example.org/board/"), check_url("")
    ('https://example.org/board/', 'https://example.org/board/', '')

    Raises:
        UsageError: it is no address of a folder on the web.
    """
    if not url:
        return ""
    if not _is_folder(url):
        raise UsageError(
            f"the site's address is that of a folder, http(s)://HOST/FOLDER without page, ? or #, got {url!r}"
        )
    return f"{url.rstrip('/')}/"


def write_feeds(
    folder: Path, pages: Pages, submissions: Sequence[Submission], dates: Mapping[str, str], url: str = ""
) -> None:
    """Writes both feeds into a site's folder.

    Args:
        folder: of the site.
        pages: templates.
        submissions: every one, verified.
        dates: of each by name, as feeds write times; that of its test run's last event.
        url: address of the site, see `check_url`.
    """
    latest = sorted(submissions, key=lambda one: (dates[one.name], one.name), reverse=True)
    items = [_item(one, dates[one.name], url) for one in latest]
    updated = max(dates.values(), default="1970-01-01T00:00:00Z")
    atom = pages.render(ATOM, items=items, updated=updated, url=url)
    (folder / ATOM).write_text(atom, encoding="utf-8", newline="\n")
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "title": "whale-leaderboard",
        **({"home_page_url": f"{url}index.html", "feed_url": f"{url}{JSON}"} if url else {}),
        "items": items,
    }
    text = json.dumps(feed, indent=1, ensure_ascii=False)
    (folder / JSON).write_text(f"{text}\n", encoding="utf-8", newline="\n")


def _is_folder(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    # An empty query or fragment counts, too: what is added after its mark would be no part of the path.
    whole = not any(mark in url for mark in "?#\\") and url.isprintable() and " " not in url
    page = parts.path.rpartition("/")[2].casefold().endswith((".html", ".htm", ".xml", ".json"))
    return parts.scheme in ("http", "https") and bool(parts.hostname) and whole and not page


def _item(one: Submission, date: str, url: str) -> dict[str, Any]:
    """An item of the JSON feed, of which the Atom entry says the same."""
    report = one.report
    assert report.manifest is not None
    assert report.score is not None
    assert report.track is not None
    track, score = report.track, report.score
    return {
        "id": f"urn:sha256:{report.bundle}",
        "url": f"{url}{page_of(one.name)}",
        "title": plain(report.manifest.about.agent),
        "content_text": f"{track.domain}, {track.tier}, size {track.size}, budget {track.budget}: "
        f"mean@8 {score.mean:.4f} (95% {score.low:.4f} to {score.high:.4f}), {report.badge}",
        "date_published": date,
        "authors": [{"name": plain(author)} for author in report.manifest.about.authors],
    }
