"""The page of a comparison in a real browser: it draws what was measured, and nothing from elsewhere."""

import re
import shutil
from pathlib import Path

import pytest
from playwright.async_api import async_playwright
from runs import SMALL, recipe_in
from typer.testing import CliRunner
from whale_baselines.cli import app
from whale_baselines.curves import budget_curve
from whale_baselines.history import History
from whale_baselines.run_recipe import run_recipe
from whale_baselines.simulated.opening import simulated_operators

AXE_RUN = """async () => {
  const found = await window.axe.run();
  return found.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id);
}"""


async def test_the_page_draws_every_evaluation_and_can_be_read_by_all(tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("this test needs Chromium: apt-get install chromium")
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    for name, text in {
        "whale<b>.toml": SMALL,
        "short.toml": SMALL.replace("iterations = 3", "iterations = 2"),
    }.items():
        recipe = recipe_in(tmp_path / "recipes", text, name)
        await run_recipe(recipe, tmp_path / "runs" / name[0], operators=simulated_operators)
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "runs"), "--page", str(out)])
    assert done.exit_code == 0, done.exception
    requests = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, width in (("light", 1200), ("dark", 320)):
            page = await browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
            page.on("request", lambda request: requests.append(request.url))
            await page.goto(out.as_uri())
            curves = await page.eval_on_selector_all(
                "polyline", "found => found.map(f => f.getAttribute('points'))"
            )
            told = await page.inner_text("main")
            assert await page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
            await page.evaluate(axe)
            assert await page.evaluate(AXE_RUN) == []
            await page.close()
        await browser.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert "whale<b>.toml" in told
    for curve, folder in zip(curves, sorted((tmp_path / "runs").iterdir()), strict=True):
        points = budget_curve(History(folder, readonly=True), "dev")
        drawn = [float(corner.split(",")[1]) for corner in curve.split()]
        assert len(drawn) == 2 * len(points) - 1
        heights = drawn[::2]  # a higher score is drawn higher, which is a smaller number
        means = [point.score.mean for point in points]
        by_score = sorted(range(len(means)), key=lambda n: means[n])
        assert sorted(heights, reverse=True) == [heights[n] for n in by_score]
        for point in points:
            assert re.search(rf"{point.rollouts:,}\s+{point.score.mean:.1%}", told)
