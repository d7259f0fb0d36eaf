"""The site in a real browser: sorting, filtering, keys, themes, widths, hostile entries, no requests."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from board_fakes import ABOUT, HARNESS, Honest, a_move, evaluated
from playwright.sync_api import Browser, Page
from whale_leaderboard.curve import Curve, Point
from whale_leaderboard.pack import pack
from whale_leaderboard.results import read
from whale_leaderboard.site import reading
from whale_leaderboard.site.build import build
from whale_leaderboard.site.chart import Series, draw
from whale_leaderboard.site.feeds import check_url, write_feeds
from whale_leaderboard.site.serve import SiteServer
from whale_leaderboard.site.templates import Pages

from whale_bench.models.base import Request
from whale_bench.statistics import mean_at_k
from whale_envs import UsageError

EVIL = (
    "</title></script></style>--><img src=x onerror='window.pwned=1'><script>window.pwned=1</script>{{ 7*7 }}"
)
TURNED = "a\u202eb\u200bc\u0007d"


def evil_reply(request: Request) -> str:
    return f"{a_move(request)}\n{EVIL}{TURNED}"


@pytest.fixture(scope="module")
def shelf(made: Path, chess: Path, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three entries of one domain, verified: one with a curve, a fixture, and one that attacks the site."""
    folder = tmp_path_factory.mktemp("shelf")
    shutil.copytree(chess, folder / "with-a-curve")
    shutil.copytree(plain, folder / "a-fixture")
    harness = made / "evil.py"
    harness.write_text(f"# {EVIL}\n{HARNESS}")
    run = evaluated(made / "evil", "chess_puzzles", Honest(evil_reply), harness=str(harness))
    about = msgspec.structs.replace(
        ABOUT,
        agent=f"{EVIL[:90]}{TURNED}",
        authors=(EVIL[:90],),
        description=EVIL,
        recipe=EVIL,
        links=("https://example.org/?q=javascript:alert(1)&x=1",),
        parameters=2e9,
    )
    pack(run, folder / "evil.tar.gz", about)
    for one in read(folder):
        (folder / f"{one.name}.report.json").write_bytes(msgspec.json.encode(one.report))
    return folder


@pytest.fixture(scope="module")
def site(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    build(shelf, folder)
    return folder


@pytest.fixture
def opened(browser: Browser, site: Path) -> Iterator[Any]:
    """Opens pages of the site; at the end none has asked the network for anything or complained."""
    pages: list[Page] = []
    requests: list[str] = []
    complaints: list[str] = []

    def open_(name: str, *, width: int = 1280, scheme: Any = "light", **options: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        page.set_default_timeout(30_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((site / name).as_uri())
        page.wait_for_selector("h1")
        pages.append(page)
        return page

    yield open_
    for page in pages:
        assert page.evaluate("window.pwned") is None
        page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def audit(page: Page) -> list[str]:
    """Findings of axe that are serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{finding['id']}: {[node['target'] for node in finding['nodes']][:3]}"
        for finding in Axe().run(page).response["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


def shown(page: Page, column: int) -> list[str]:
    return page.locator(f"#board tbody tr:not([hidden]) > *:nth-child({column})").all_inner_texts()


def test_equal_submissions_give_equal_bytes_and_a_site_is_replaced(
    shelf: Path, site: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(site, again)
    (again / "left-over.html").write_text("old")
    (again / "index.html").unlink()
    build(shelf, again)
    files = {p.relative_to(site): p.read_bytes() for p in site.rglob("*") if p.is_file()}
    assert {p.relative_to(again): p.read_bytes() for p in again.rglob("*") if p.is_file()} == files
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again"]


def test_pages_read_by_several_processes_are_the_same_bytes(
    shelf: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WORTH", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    build(shelf, tmp_path / "site")
    files = {p.relative_to(site): p.read_bytes() for p in site.rglob("*") if p.is_file()}
    again = tmp_path / "site"
    assert {p.relative_to(again): p.read_bytes() for p in again.rglob("*") if p.is_file()} == files
    name = shelf / "a-fixture" / "test.jsonl"
    found = read(shelf)
    text = name.read_bytes()
    name.write_bytes(text.replace(b"FEN", b"NEF", 1))
    try:
        monkeypatch.setattr(reading, "_free", lambda *_: iter(()))  # all are left to the other process
        with (
            reading.reading(found, tmp_path) as ready,
            pytest.raises(UsageError, match=r"\[digest\] test.jsonl"),
        ):
            next(ready)
    finally:
        name.write_bytes(text)


def test_a_folder_that_is_no_site_is_left_alone(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="no site"):
        build(shelf, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_bundle_that_was_changed_after_its_report_stops_the_build(shelf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    shutil.copytree(shelf / "a-fixture", folder / "x")
    shutil.copy(shelf / "a-fixture.report.json", folder / "x.report.json")
    text = (folder / "x" / "test.jsonl").read_bytes()
    (folder / "x" / "test.jsonl").write_bytes(text.replace(b"FEN", b"NEF", 1))
    with pytest.raises(UsageError, match=r"\[digest\] test.jsonl"):
        build(folder, tmp_path / "site")


def test_the_table_sorts_by_keyboard_and_says_so(opened: Any) -> None:
    page = opened("index.html")
    button = page.get_by_role("button", name="mean@8")
    button.focus()
    page.keyboard.press("Enter")
    page.locator('#board th[aria-sort="descending"]').wait_for()
    scores = [float(cell) for cell in shown(page, 4)]
    assert scores == sorted(scores, reverse=True)
    page.keyboard.press("Enter")
    page.locator('#board th[aria-sort="ascending"]').wait_for()
    assert [float(cell) for cell in shown(page, 4)] == sorted(scores)
    page.get_by_role("button", name="Rank").click()
    ranks = shown(page, 3)
    assert ranks[0].startswith("1")
    assert ranks[-1].startswith("not ranked")


def test_filters_narrow_the_table_and_can_be_cleared(opened: Any) -> None:
    page = opened("index.html")
    everything = page.locator("#found").inner_text()
    page.get_by_label("Kind").select_option("reported")
    assert all("2609.00196" in cell for cell in shown(page, 1))
    assert all("reported, not verified" in cell for cell in shown(page, 10))
    page.get_by_label("Domain").select_option("math_python")
    assert len(shown(page, 1)) == 10
    page.get_by_role("button", name="Clear filters").click()
    page.locator("#found").get_by_text(everything).wait_for()
    page.get_by_label("Search text").fill("no such text")
    assert page.locator("#found").inner_text().startswith("0 of")
    page.get_by_label("Search text").fill("oracle")
    page.get_by_label("Kind").select_option("reference")
    assert page.locator("#found").inner_text().startswith("0 of")
    page.get_by_label("Search text").fill("")
    assert len(shown(page, 1)) == 1


def test_every_method_is_read_at_one_budget_by_keys(opened: Any) -> None:
    page = opened("chess_puzzles.html")
    figure = page.locator("figure[data-most]", has=page.locator("tr[data-points*=',']")).first
    points = json.loads(figure.locator("tr[data-points*=',']").first.get_attribute("data-points"))
    now = figure.locator("tr[data-points*=','] .now").first
    slider = figure.locator("input[type=range]")
    slider.focus()
    page.keyboard.press("Home")
    assert now.inner_text() == "none yet"
    page.keyboard.press("End")
    assert now.inner_text() == f"{points[-1][1]:.4f}"
    steps = 0
    while now.inner_text() == f"{points[-1][1]:.4f}" and steps < 12:
        page.keyboard.press("PageDown")
        steps += 1
    assert int(slider.input_value()) < points[-1][0]
    assert slider.get_attribute("aria-valuetext") == figure.locator("output").inner_text()
    figure.locator("svg.chart").hover(position={"x": 700, "y": 100})
    assert int(slider.input_value()) > points[-1][0]


def test_an_entry_leads_to_its_replays_and_back(opened: Any) -> None:
    page = opened("index.html")
    page.get_by_role("link", name="An agent", exact=True).nth(1).focus()
    links = page.locator("#board tbody a").all()
    assert len(links) == 3
    page = opened("entries/with-a-curve.html")
    text = page.inner_text("main")
    assert "258" in page.locator("#ledger + dl").inner_text()
    assert "Diff to h0" in text
    assert page.locator(".diff .added", has_text="Play the best move.").count() == 1
    assert page.locator("#curve-figure svg.chart circle").count() >= 2
    matrix = page.locator("table.heat tbody")
    assert matrix.locator("td").all_inner_texts()[1].startswith("0.2500")
    assert matrix.locator("td.own").count() == 2
    assert "Reported by the authors' run, not verified" in text
    page.get_by_role("link", name="Replays of").focus()
    page.keyboard.press("Enter")
    page.locator("a.task").first.wait_for()
    note = page.locator("#sample-note").inner_text()
    assert "smallest hashes" in note
    page.locator("a.task").first.click()
    page.locator(".replay").wait_for()
    page.get_by_label("Side by side with").select_option(index=1)
    page.locator(".lanes.two").wait_for()
    page.keyboard.press("ArrowRight")
    assert page.locator('[aria-current="step"]').count() == 2
    page.get_by_role("link", name="‹ the entry").click()
    page.locator("#ledger").wait_for()


def test_what_an_entry_says_is_only_ever_text(opened: Any, site: Path) -> None:
    for name in ("index.html", "chess_puzzles.html", "entries/evil.html"):
        page = opened(name)
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        assert EVIL[:60] in page.inner_text("main")
        assert "a‹U+202E›b‹U+200B›c‹U+0007›d" in page.inner_text("main")
        assert not re.search("[\u202e\u200b\u0007]", (site / name).read_text())
        policy = page.locator("meta[http-equiv]").get_attribute("content")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    page = opened("entries/evil.html")
    link = page.locator("main ul a[rel]")
    assert link.get_attribute("href").startswith("https://example.org/")
    assert {"nofollow", "noopener", "noreferrer"} <= set(link.get_attribute("rel").split())
    page = opened("replays/evil.html")
    page.locator("a.task").first.click()
    page.locator(".replay").wait_for()
    page.get_by_role("button", name="Open all").click()
    assert page.locator("img").count() == 0


def test_no_other_script_can_run(browser: Browser, site: Path) -> None:
    for name in ("index.html", "entries/evil.html", "replays/evil.html"):
        page = browser.new_page()
        refused: list[str] = []
        page.on("console", lambda message, refused=refused: refused.append(message.text))
        page.goto((site / name).as_uri())
        page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; "
            "document.body.append(s); }"
        )
        assert page.evaluate("window.pwned") is None
        assert any("Content Security Policy" in text for text in refused)
        page.close()


@pytest.mark.parametrize(("scheme", "width"), [(s, w) for s in ("light", "dark") for w in (1280, 320)])
def test_pages_pass_an_audit_and_nothing_runs_over_the_edge(
    opened: Any, shots: Path, scheme: str, width: int
) -> None:
    for name in ("index.html", "chess_puzzles.html", "entries/with-a-curve.html", "rules.html"):
        page = opened(name, scheme=scheme, width=width)
        assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0, name
        if width == 1280 and (name != "rules.html" or scheme == "light"):
            assert audit(page) == [], name
        page.screenshot(path=shots / f"{Path(name).stem}-{scheme}-{width}.png", full_page=True)


def test_without_a_script_the_page_can_be_read(opened: Any) -> None:
    page = opened("chess_puzzles.html", java_script_enabled=False)
    assert page.locator("svg.chart").first.is_visible()
    assert not page.locator("form.filters").first.is_visible()
    assert not page.locator("input[type=range]").first.is_visible()
    assert page.locator("tbody tr").count() > 4


def test_print_has_all_and_no_controls(opened: Any) -> None:
    page = opened("entries/with-a-curve.html")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main details:not([open])").count() == 0
    page.emulate_media(media="print")
    assert not page.locator(".nav").is_visible()
    assert not page.locator(".budget").first.is_visible()


def test_feeds_are_what_they_say(site: Path) -> None:
    root = ET.fromstring((site / "feed.xml").read_text())
    atom = "{http://www.w3.org/2005/Atom}"
    entries = root.findall(f"{atom}entry")
    feed = json.loads((site / "feed.json").read_text())
    assert len(entries) == len(feed["items"]) == 3
    assert [e.findtext(f"{atom}id") for e in entries] == [item["id"] for item in feed["items"]]
    for entry, item in zip(entries, feed["items"], strict=True):
        assert (site / item["url"]).is_file()
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.findtext(f"{atom}updated") or "")
    assert [item["date_published"] for item in feed["items"]] == sorted(
        (item["date_published"] for item in feed["items"]), reverse=True
    )
    results = json.loads((site / "results.json").read_text())
    assert all((site / entry["page"]).is_file() for entry in results["entries"].values())


def test_with_an_address_the_feeds_links_are_whole(site: Path, shelf: Path, tmp_path: Path) -> None:
    found = read(shelf)
    dates = {one.name: "2026-01-01T00:00:00Z" for one in found}
    write_feeds(tmp_path, Pages(), found, dates, check_url("https://example.org/a/board"))
    feed = json.loads((tmp_path / "feed.json").read_text())
    root = ET.fromstring((tmp_path / "feed.xml").read_text())
    links = [link.attrib["href"] for link in root.iter("{http://www.w3.org/2005/Atom}link")]
    links += [feed["home_page_url"], *(item["url"] for item in feed["items"])]
    for link in [*links, feed["feed_url"]]:
        assert link.startswith("https://example.org/a/board/"), link
        name = link.removeprefix("https://example.org/a/board/")
        assert (site / name).is_file(), link
    assert "feed_url" not in json.loads((site / "feed.json").read_text())


@pytest.mark.parametrize(
    "url",
    [
        "board", "ftp://x/y", "https://", "https://:80/", "http://[x", "javascript:1",
        "https://x/y?z=1", "https://x/?", "https://x/y?", "https://x?/", "https://x/y#", "https://x/#y", "https://x/y#/",
        "https://x/index.html", "https://x/y/feed.XML", "https://x/a b", "https://x/a\n", "https://x\\y",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_site(url: str) -> None:
    with pytest.raises(UsageError, match="address"):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["https://x", "https://x/", "https://x//", "http://x:80/a.b", "HTTPS://x/y.z/"]
)
def test_an_address_ends_with_one_slash(url: str) -> None:
    made = check_url(url)
    assert made == f"{url.rstrip('/')}/"
    assert check_url(made) == made


def test_the_server_gives_the_site_to_this_machine_alone(site: Path, tmp_path: Path) -> None:
    (site.parent / "secret.txt").write_text("secret")
    command = [sys.executable, "-m", "whale_leaderboard.cli", "serve", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/", timeout=20) as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert b"All entries" in answer.read()
        for path, host, status in (
            ("/entries/evil.html", None, 200),
            ("/../secret.txt", None, 404),
            ("/%2e%2e/secret.txt", None, 404),
            ("/entries", None, 403),
            ("/", "evil.example", 421),
        ):
            request = urllib.request.Request(f"{url}{path}", headers={"Host": host} if host else {})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    got = answer.status
            except urllib.error.HTTPError as error:
                got = error.code
                error.close()
            assert got == status, path
        server.terminate()
        assert server.wait(20) == 0
    with pytest.raises(UsageError, match="no site"):
        SiteServer(tmp_path)


def test_a_figure_never_draws_a_score_before_it_was_measured() -> None:
    score = mean_at_k([[1.0, 0.0]] * 4)
    curve = Curve([Point(2_000, 0.1), Point(4_000, 0.3), Point(3_000, 0.05)])
    drawn = draw([Series("<a> & b", curve, 5_000, score)], "T")
    path = re.search(r'<path d="(M[^"]*)"', drawn.svg)[1]
    assert re.fullmatch(r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+)*H[\d.]+", path)
    x = [float(value) for value in re.findall(r"[MH]([\d.]+)", path)]
    assert x == sorted(x)
    at = drawn.left + drawn.width * 2_000 / drawn.most
    assert abs(x[0] - at) < 0.1
    assert "<a>" not in drawn.svg
    assert drawn.svg.count("<circle") == 3
