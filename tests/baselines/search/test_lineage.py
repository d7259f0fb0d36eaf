"""The page of a search in a real browser: both themes, narrow, hostile text, no requests, axe."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.async_api import async_playwright
from search_fakes import BROKEN, Obedient, Scripted, search, told
from typer.testing import CliRunner
from whale_baselines.cli import app
from whale_baselines.search.lineage import write_lineage
from whale_baselines.search.proposal import Proposal

from whale_envs.errors import UsageError

HOSTILE = (
    "</span><script>window.pwned = 1</script><img src=x onerror=alert(1)> '\" \u202eevil\u202c \u200b "
    + "x" * 400
)


async def make_run(folder):
    _, first = await search(
        folder,
        Scripted(
            [
                told(0.6, "a"),
                told(0.2, "b"),
                Proposal(source=told(0.5, "c"), hypothesis=HOSTILE, components=("x",)),
            ],
            [told(0.7, "d", f"\n\n# {HOSTILE}\n"), BROKEN],
        ),
        3,
    )
    weights = Obedient(weights_id="scripted:others")
    await search(
        folder, Scripted([told(0.95, "e")]), 2, incoming=first.source, phase=2, backend=weights
    )  # fmt: skip


async def test_the_page_shows_the_search_in_both_themes(tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("this test needs Chromium: apt-get install chromium")
    await make_run(tmp_path / "run")
    page_file = write_lineage(tmp_path / "run", tmp_path / "lineage.html")
    shots = Path(os.environ.get("WHALE_SCREENSHOTS") or tmp_path)
    complaints, requests = [], []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 320)):
            page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("request", lambda request: requests.append(request.url))
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            await page.goto(page_file.as_uri())
            text = await page.inner_text("main")
            assert "Phase 2" in text
            assert "U+202E" in text
            assert "syntax error" in text
            await page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
            assert await page.evaluate("window.pwned") is None
            assert await page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
            await page.evaluate(AXE)
            assert await page.evaluate(AXE_RUN) == []
            await page.screenshot(path=shots / f"lineage-{scheme}-{width}.png", full_page=True)
            if width == 320:
                await page.select_option("#theme", "dark")
                assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
                await page.reload()
                await page.keyboard.press("Tab")
                assert await page.evaluate("document.activeElement.className") == "skip"
                await page.locator(".tree a", has_text="h1").first.focus()
                await page.keyboard.press("Enter")
                assert page.url.endswith("#h1")
                assert "Gained on h0" in await page.inner_text("#h1")
                await page.locator("#h1 summary").focus()
                await page.keyboard.press("Enter")
                assert "SKILL 0.6" in await page.inner_text("#h1 .add")
            await page.close()
        await browser.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def axe_source():
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


AXE = axe_source()
AXE_RUN = """async () => {
  const found = await window.axe.run();
  return found.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id);
}"""


def test_a_folder_without_a_search_is_refused(tmp_path):
    found = CliRunner().invoke(app, ["lineage", str(tmp_path)])
    assert isinstance(found.exception, UsageError)
    assert "no run folder" in str(found.exception)
