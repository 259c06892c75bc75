"""A real browser and the pages it shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.report import Report, write_html

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium from the system; nothing is downloaded."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Chromium with chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    profile = tmp_path_factory.mktemp("chromium")
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1400,4000")  # charts are drawn when they scroll into view
    options.add_argument(f"--user-data-dir={profile}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    found = webdriver.Chrome(options=options, service=service)
    yield found
    found.quit()


class Page:
    """A page in the browser, with the charts of its window drawn."""

    def __init__(self, chromium: Any, path: Path, address: str = "") -> None:
        self.browser = chromium
        chromium.get_log("browser")  # drop the messages of earlier pages
        chromium.get("about:blank")  # another part of one page would not be loaded anew
        chromium.get(f"{path.as_uri()}{address}")
        self.wait("return document.body.dataset.ready === 'yes'")
        self.wait(
            """return [...document.querySelectorAll('.chart:not([data-drawn])')]
               .every((one) => !one.offsetParent || one.getBoundingClientRect().y > innerHeight)"""
        )

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: object) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 30).until(lambda _: self.run(script, *arguments), script)

    def find(self, selector: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements("css selector", selector)
        return found

    def choose(self, name: str, text: str) -> None:
        """Choose an entry of the filter ``name`` as a user would."""
        from selenium.webdriver.support.ui import Select

        Select(self.find(f"#filters [name={name}]")[0]).select_by_visible_text(text)

    def column(self, title: str, table: str = "#measurements") -> list[str]:
        """Texts of the cells below a table's heading."""
        return [cell.text for cell in self.find(f"{table} tbody [data-title='{title}']")]

    def points(self, kind: str) -> int:
        """Number of kernels that the charts ``kind`` show."""
        return len(self.find(f".workload:not([hidden]) .{kind} svg .mark"))

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, by its name, as someone without a pointer would."""
        from selenium.webdriver import ActionChains, Keys

        for _ in range(times):
            ActionChains(self.browser).send_keys(getattr(Keys, key)).perform()

    def resize(self, width: int, *, dark: bool = False) -> None:
        """Show the page ``width`` pixels wide, as on a phone, or in the dark style."""
        command = self.browser.execute_cdp_cmd
        size = {"width": width, "height": 4000, "deviceScaleFactor": 1, "mobile": width < 700}
        command("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        command("Emulation.setEmulatedMedia", {"features": scheme})

    @property
    def complaints(self) -> list[str]:
        """The browser console's messages, including scripts blocked by the policy."""
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Write the page of a report, and open it."""

    def make(
        report: Report, baseline: Report | None = None, address: str = "", **beside: Any
    ) -> Page:
        path = tmp_path / "page.html"
        write_html(report, path, baseline, **beside)
        return Page(chromium, path, address)

    yield make
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
