"""Pages in a real browser: headless Chromium, driven by Selenium.

Without Chromium the tests marked `browser` are left out and the closing lines say so, and how to get it;
with HESSIANLENS_BROWSER=required, as in continuous integration, they fail instead.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
HOW = "apt-get install chromium chromium-driver (or Chrome and chromedriver on the PATH)"
REQUIRED = os.environ.get("HESSIANLENS_BROWSER") == "required"

#: The smallest text of figures, in CSS pixels as it is shown: every drawn letter of the inline pictures, an index set
#: smaller than its letter too, and turned text; what is folded away is not shown.
SMALLEST_FIGURE_TEXT = """
return Math.min(...Array.from(document.querySelectorAll("svg text, svg tspan"))
  .filter(text => !text.children.length && text.textContent.trim() && text.checkVisibility())
  .map(text => [parseFloat(getComputedStyle(text).fontSize), text.getScreenCTM()])
  .map(([size, shown]) => size * Math.hypot(shown.a, shown.b)))
"""


class Page:
    """One page at a time in one browser."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1440, height: int = 900, dark: bool = False, fragment: str = "") -> Page:
        """Show a file at a width in CSS pixels, light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get("about:blank")
        self.driver.get(Path(path).resolve().as_uri() + fragment)
        return self

    def run(self, script: str, *arguments: object):
        return self.driver.execute_script(script, *arguments)

    def console_errors(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    def outside_requests(self) -> list[str]:
        """Addresses asked for since the page was opened, but files and data inside the page."""
        events = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        asked = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))]

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return self.run("return document.documentElement.scrollWidth - window.innerWidth")

    def smallest_figure_text(self) -> float:
        return self.run(SMALLEST_FIGURE_TEXT)

    def picture(self, path: Path) -> Path:
        """The whole page, from top to bottom, as a PNG file."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        asked = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"]))
        return path


@pytest.fixture(scope="session")
def _driver() -> Iterator[object]:
    if not (CHROMIUM and DRIVER):
        if REQUIRED:
            pytest.fail(f"no Chromium, and HESSIANLENS_BROWSER=required: {HOW}")
        pytest.skip("no Chromium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(_driver) -> Page:
    """A page in a real browser; mark the test `browser`."""
    return Page(_driver)


def pytest_terminal_summary(terminalreporter) -> None:
    left_out = [report for report in terminalreporter.stats.get("skipped", []) if "no Chromium" in str(report.longrepr)]
    if left_out:
        terminalreporter.write_line(f"{len(left_out)} page tests left out, there is no Chromium: {HOW}", yellow=True)
