"""The page in a real browser: keys, filters, themes, widths, hostile text, accessibility, no requests."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page
from view_fakes import HOSTILE

from whale_bench.view.index import Query, RunIndex
from whale_bench.view.page import write_report


@pytest.fixture(scope="module")
def reports(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Address of each domain's page."""
    folder = tmp_path_factory.mktemp("reports")
    return {
        run.name: write_report(run, folder / f"{run.name}.html").path.as_uri()
        for run in sorted(runs.iterdir())
    }


class Watched:
    """A page and all that it must not do."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.set_default_timeout(30_000)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))

    def open(self, url: str) -> Page:
        self.page.goto(url)
        self.page.wait_for_selector("h1")
        return self.page


@pytest.fixture
def watched(browser: Browser) -> Iterator[Any]:
    """Makes watched pages; at the end none has asked the network for anything or complained."""
    made: list[Watched] = []

    def make(*, width: int = 1280, height: int = 900, scheme: Any = "light", **options: Any) -> Watched:
        viewport: Any = {"width": width, "height": height}
        made.append(Watched(browser.new_page(viewport=viewport, color_scheme=scheme, **options)))
        return made[-1]

    yield make
    for watch in made:
        watch.page.close()
        assert watch.complaints == []
        assert [url for url in watch.requests if not url.startswith(("file:", "data:"))] == []


def turn_of(runs: Path, domain: str, key: str, words: str) -> int:
    """The turn in which the model says `words`."""
    with RunIndex.open(runs / domain, cached=False) as index:
        rollout = index.rollout(key)
    assert rollout is not None
    return next(number for number, segment in enumerate(rollout.segments) if words in segment.text)


def key_of(runs: Path, domain: str, **query: Any) -> str:
    with RunIndex.open(runs / domain, cached=False) as index:
        return index.rows(Query(**query)).rows[0].key


def replay_url(reports: dict[str, str], domain: str, key: str, step: int = 1, beside: str = "") -> str:
    tail = f"&with={quote(beside)}" if beside else ""
    return f"{reports[domain]}#rollout={quote(key)}&step={step}{tail}"


def overflow(page: Page) -> int:
    return int(page.evaluate("document.scrollingElement.scrollWidth - innerWidth"))


def audit(page: Page) -> list[str]:
    """Findings of axe that are serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{finding['id']}: {[node['target'] for node in finding['nodes']][:3]}"
        for finding in found
        if finding["impact"] in ("serious", "critical")
    ]


def count(page: Page) -> int:
    return page.locator("table.list tbody tr").count()


# --- the run ------------------------------------------------------------------------------------------


def test_the_run_shows_both_scores_with_intervals(watched: Any, reports: dict[str, str]) -> None:
    page = watched().open(reports["chess_puzzles"])
    scores = page.locator(".score")
    assert scores.count() == 2
    assert "standard profile" in scores.nth(0).inner_text()
    assert "paper profile" in scores.nth(1).inner_text()
    for number in range(2):
        label = scores.nth(number).locator("[role=img]").get_attribute("aria-label")
        assert label is not None
        assert "95% interval" in label
    text = page.inner_text("main")
    assert "sha256:" in text
    assert "missing rollouts" in text
    assert "rating band: " in page.text_content("main")


def test_filters_narrow_the_table_and_can_be_cleared(
    watched: Any, reports: dict[str, str], runs: Path
) -> None:
    page = watched().open(reports["math_python"])
    with RunIndex.open(runs / "math_python", cached=False) as index:
        totals = {
            outcome: index.rows(Query(outcome=outcome)).total  # type: ignore[arg-type]
            for outcome in ("", "solved", "failed", "truncated")
        }
        hard = index.rows(Query(group="band=hard")).total
        wrong = index.rows(Query(stop="wrong_answer")).total
    assert 0 < totals["truncated"] < totals["failed"]
    status = page.locator(".found")
    for outcome in ("solved", "truncated", "failed", ""):
        page.get_by_label("Outcome").select_option(outcome)
        status.get_by_text(f"{totals[outcome]} rollouts").wait_for()
        assert count(page) == totals[outcome]
    page.get_by_label("Ended by").select_option("wrong_answer")
    status.get_by_text(f"{wrong} rollouts").wait_for()
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Group", exact=True).select_option("band=hard")
    status.get_by_text(f"{hard} rollouts").wait_for()
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Search text").fill("NO SUCH TEXT")
    status.get_by_text("No rollouts").wait_for()
    page.get_by_role("button", name="Clear filters").click()
    status.get_by_text(f"{totals['']} rollouts").wait_for()
    page.get_by_label("Rows").select_option("example")
    status.get_by_text("8 examples").wait_for()
    page.locator("table.list tbody button").first.click()
    status.get_by_text("4 rollouts of example").wait_for()


def test_a_column_sorts_both_ways_and_says_so(watched: Any, reports: dict[str, str]) -> None:
    page = watched().open(reports["chess_puzzles"])

    def turns() -> list[int]:
        cells = page.locator("table.list tbody tr td:nth-child(4)").all_inner_texts()
        return [int(cell) for cell in cells]

    button = page.get_by_role("button", name="Turns")
    button.focus()
    page.keyboard.press("Enter")
    page.locator('th[aria-sort="ascending"]').wait_for()
    assert turns() == sorted(turns())
    assert page.evaluate("document.activeElement.dataset.focus") == "sort-turns"
    page.keyboard.press("Enter")
    page.locator('th[aria-sort="descending"]').wait_for()
    assert turns() == sorted(turns(), reverse=True)


def test_the_table_leads_to_a_replay_and_back_to_where_one_was(watched: Any, reports: dict[str, str]) -> None:
    page = watched().open(reports["search_qa"])
    link = page.locator("a.task").nth(2)
    address = link.get_attribute("href")
    link.focus()
    page.keyboard.press("Enter")
    page.locator(".replay").wait_for()
    page.keyboard.press("Escape")
    page.locator(".filters").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('href')") == address


# --- replays ------------------------------------------------------------------------------------------


def test_arrow_keys_step_and_the_address_follows(watched: Any, reports: dict[str, str], runs: Path) -> None:
    key = key_of(runs, "chess_puzzles", outcome="solved", text="is forcing")
    first = 3 * turn_of(runs, "chess_puzzles", key, "is forcing") + 1
    page = watched().open(replay_url(reports, "chess_puzzles", key, first))
    current = page.locator('[aria-current="step"]')
    assert "harness" in current.inner_text()
    alts = [page.locator("svg.board").get_attribute("aria-label")]
    page.keyboard.press("ArrowRight")
    assert "model" in current.inner_text()
    assert f"step={first + 1}" in page.url
    live = page.locator("#step-live")
    assert live.inner_text().startswith(f"Step {first + 1} of")
    assert live.get_attribute("aria-live") == "polite"
    page.keyboard.press("ArrowRight")
    alts.append(page.locator("svg.board").get_attribute("aria-label"))
    assert alts[0] != alts[1]
    assert "last move" in str(alts[1])
    assert page.locator("svg.board use").count() > 2
    assert page.locator("svg.board .last").count() == 2
    page.keyboard.press("ArrowLeft")
    assert f"step={first + 1}" in page.url
    page.reload()
    page.locator(".replay").wait_for()
    assert "model" in current.inner_text()
    page.get_by_role("button", name="Last").click()
    assert "verdict" in current.inner_text()
    assert "solved" in current.inner_text()


def test_play_steps_by_itself_and_pauses(watched: Any, reports: dict[str, str], runs: Path) -> None:
    key = key_of(runs, "chess_puzzles", sort="turns", desc=True)
    page = watched(reduced_motion="reduce").open(replay_url(reports, "chess_puzzles", key))
    page.get_by_role("button", name="Play").click()
    page.get_by_text("step 2 of").first.wait_for()
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Play").count() == 1


def test_two_rollouts_of_an_example_stand_side_by_side(
    watched: Any, reports: dict[str, str], runs: Path, shots: Path
) -> None:
    key = key_of(runs, "chess_puzzles", sort="turns", desc=True)
    page = watched(width=1500).open(replay_url(reports, "chess_puzzles", key, 2))
    page.get_by_label("Side by side with").select_option(index=1)
    page.locator(".lanes.two").wait_for()
    boxes = [page.locator(".lane").nth(number).bounding_box() for number in range(2)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] < boxes[1]["x"]
    page.keyboard.press("ArrowRight")
    assert page.locator('[aria-current="step"]').count() == 2
    assert "with=" in page.url
    assert "step=3" in page.url
    assert audit(page) == []
    assert overflow(page) <= 0
    page.screenshot(path=shots / "side-by-side.png", full_page=True)


def test_programs_and_passages_are_set_as_such(watched: Any, reports: dict[str, str], runs: Path) -> None:
    key = key_of(runs, "math_python", sort="turns", desc=True)
    page = watched().open(replay_url(reports, "math_python", key, 3))
    current = page.locator('[aria-current="step"]')
    assert current.locator(".python .py-keyword").first.inner_text() == "def"
    assert '"""Ways to pay `total`; <b>not</b> markup."""' in current.locator(".python").inner_text()
    assert "ways: 22" in current.locator(".output").inner_text()
    key = key_of(runs, "search_qa", sort="turns", desc=True)
    page = watched().open(replay_url(reports, "search_qa", key, 3))
    current = page.locator('[aria-current="step"]')
    assert current.locator(".query").count() == 1
    assert current.locator(".passage .block-title").first.inner_text()


def test_reasoning_stands_apart_from_what_was_said(watched: Any, reports: dict[str, str], runs: Path) -> None:
    key = key_of(runs, "chess_puzzles", text="is forcing", outcome="solved")
    turn = turn_of(runs, "chess_puzzles", key, "is forcing")
    page = watched().open(replay_url(reports, "chess_puzzles", key, 3 * turn + 2))
    current = page.locator('[aria-current="step"]')
    assert "Other moves lose time." in current.locator(".reasoning").inner_text()
    assert current.locator(".text").inner_text().startswith("<move>")


@pytest.mark.parametrize("domain", ["chess_puzzles", "math_python", "search_qa"])
def test_hostile_text_is_only_ever_text(
    watched: Any, reports: dict[str, str], runs: Path, domain: str
) -> None:
    key = key_of(runs, domain, text="pwned")
    watch = watched()
    page = watch.open(replay_url(reports, domain, key))
    page.get_by_role("button", name="Open all").click()
    shown = page.locator(".frame").all_inner_texts()
    plain = HOSTILE.replace("\u202e", "U+202E").replace("\u202c", "U+202C")
    plain = plain.replace("\u0007", "U+0007").replace("\u200b", "U+200B")
    assert any(plain[:60] in text and plain[-40:] in text for text in shown)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    for hidden in "\u202e\u202c\u0007\u200b":
        assert hidden not in page.evaluate("document.getElementById('main').outerHTML")
        assert hidden not in page.title()


def test_a_wrong_address_says_so(watched: Any, reports: dict[str, str]) -> None:
    page = watched().open(f"{reports['math_python']}#rollout=%3Cb%3Eno&step=x")
    assert "holds no rollout <b>no" in page.locator("[role=alert]").inner_text()
    assert audit(page) == []


def test_an_incomplete_run_says_what_is_missing_above_its_score(
    watched: Any, runs: Path, tmp_path: Path, shots: Path
) -> None:
    run = shutil.copytree(runs / "math_python", tmp_path / "run")
    part = run / "rollouts-0000.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:20]) + b"{broken\n")
    page = watched().open(write_report(run, tmp_path / "page.html").path.as_uri())
    note = page.locator("#missing-note")
    assert "12 rollouts missing" in note.inner_text()
    note.locator("summary").click()
    with RunIndex.open(run, cached=False) as index:
        known = index.overview.missing_keys  # of an example that no rollout has begun, nobody knows the id
    assert note.locator("code").all_inner_texts() == known
    assert len(known) >= 4
    assert "1 line could not be read" in page.locator(".notices").inner_text()
    boxes = [page.locator(name).first.bounding_box() for name in (".notices", ".score")]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] < boxes[1]["y"]
    assert audit(page) == []
    page.screenshot(path=shots / "incomplete.png", full_page=True)


def test_a_server_gives_the_same_page_its_data(browser: Browser, runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "whale_bench.cli", "view", str(runs), "--serve", "--no-open"]
    environment = {**os.environ, "WHALE_CACHE": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        watch = Watched(browser.new_page())
        page = watch.open(url)
        link = page.get_by_role("link", name="math_python")
        link.wait_for()
        assert audit(page) == []
        link.click()
        page.locator("a.task").first.wait_for()
        page.get_by_label("Outcome").select_option("failed")
        page.locator(".found").get_by_text(re.compile(r"^\d+ rollouts$")).wait_for()
        page.locator("a.task").first.click()
        page.locator(".replay").wait_for()
        page.keyboard.press("ArrowRight")
        assert "step=2" in page.url
        page.reload()
        page.locator(".replay").wait_for()
        page.get_by_role("link", name="All rollouts").click()
        page.locator(".filters").wait_for()
        page.close()
        server.terminate()
    assert watch.complaints == []
    assert all(asked.startswith((url, "data:")) for asked in watch.requests)


# --- themes, widths, accessibility --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_pass_an_accessibility_audit(
    watched: Any, reports: dict[str, str], runs: Path, shots: Path, scheme: str
) -> None:
    page = watched(scheme=scheme).open(reports["search_qa"])
    assert audit(page) == []
    page.screenshot(path=shots / f"run-{scheme}.png", full_page=True)
    for domain in ("chess_puzzles", "math_python" if scheme == "dark" else "search_qa"):
        key = key_of(runs, domain, sort="turns", desc=True)
        page.goto(replay_url(reports, domain, key, 3))
        page.locator(".replay").wait_for()
        assert audit(page) == []
        page.screenshot(path=shots / f"{domain}-{scheme}.png")


def test_the_theme_can_be_chosen(watched: Any, reports: dict[str, str]) -> None:
    page = watched(scheme="light").open(reports["search_qa"])

    def lightness() -> int:
        return int(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))

    assert lightness() > 200
    page.get_by_label("Theme").select_option("dark")
    assert lightness() < 60
    page.reload()
    page.wait_for_selector("h1")
    assert lightness() < 60
    page.get_by_label("Theme").select_option("")
    assert lightness() > 200


@pytest.mark.parametrize(("width", "name"), [(320, "narrow"), (768, "middle"), (2200, "wide")])
def test_nothing_runs_over_the_edge(
    watched: Any, reports: dict[str, str], runs: Path, shots: Path, width: int, name: str
) -> None:
    page = watched(width=width, height=800).open(reports["chess_puzzles"])
    for summary in page.locator("main summary").all():
        summary.click()
    assert overflow(page) <= 0
    if width == 320:
        assert audit(page) == []
    page.screenshot(path=shots / f"run-{name}.png", full_page=True)
    for domain in ("chess_puzzles", "math_python", "search_qa"):
        key = key_of(runs, domain, sort="turns", desc=True)
        page.goto(replay_url(reports, domain, key, 3, beside=f"{key.rpartition(':')[0]}:0"))
        page.locator(".replay").wait_for()
        page.get_by_role("button", name="Open all").click()
        assert overflow(page) <= 0
    page.screenshot(path=shots / f"replay-{name}.png")


def test_the_first_tab_skips_to_the_content(watched: Any, reports: dict[str, str]) -> None:
    page = watched().open(reports["math_python"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    for landmark in ("banner", "main", "contentinfo", "search"):
        assert page.get_by_role(landmark).count() == 1


def test_print_shows_every_step(watched: Any, reports: dict[str, str], runs: Path) -> None:
    page = watched().open(replay_url(reports, "math_python", key_of(runs, "math_python")))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.frame:not([open])").count() == 0
    page.emulate_media(media="print")
    assert not page.locator(".toolbar").is_visible()
