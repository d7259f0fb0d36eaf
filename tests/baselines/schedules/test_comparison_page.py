"""The page of a comparison in a real browser: it draws what was measured, and nothing from elsewhere."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import async_playwright
from runs import SMALL, recipe_in
from typer.testing import CliRunner
from whale_baselines.chart import Curve, chart, mean_curve, ticks
from whale_baselines.cli import app
from whale_baselines.curves import CurvePoint, budget_curve
from whale_baselines.history import History
from whale_baselines.run_recipe import run_recipe
from whale_baselines.simulated.opening import simulated_operators

from whale_bench.statistics import Score

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
            await page.click("summary")
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


def curve(*points):
    return Curve(0, 0, [CurvePoint(at, Score(mean, 0.0, mean, mean)) for at, mean in points])


def test_the_mean_of_seeds_is_where_all_have_a_score_and_never_early():
    one, other = curve((10, 0.2), (30, 0.4)), curve((20, 0.6), (25, 0.8), (40, 1.0))
    assert mean_curve([one, other]) == [(20, 0.4), (25, 0.5), (30, pytest.approx(0.6))]
    assert mean_curve([one, curve()]) == []
    drawn = chart([one, other], ["whale"])
    assert (drawn.count("curve s0 seed"), drawn.count("curve s0 mean")) == (2, 1)
    assert chart([one], ["whale"]).count("<polyline") == 1


@given(st.integers(1, 10**9))
def test_ticks_are_round_numbers_within_the_axis(most):
    found = ticks(most)
    assert found[0] == 0
    assert found[-1] <= most
    assert len(found) <= 10
    assert most < 10 or len(found) >= 3
    assert all(str(tick).strip("0")[1:] in ("", "5") or len(str(tick).rstrip("0")) <= 2 for tick in found)
