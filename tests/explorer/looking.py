"""A real browser in front of the real server. Whatever goes wrong in the page fails the test that looks at it."""

from __future__ import annotations

import gzip
import logging
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from tests.programs import program

log = logging.getLogger(__name__)

AXE = Path(__file__).parent / "vendor" / "axe.min.js.gz"
PATIENCE = 30_000
BROWSERS = ("chromium-headless-shell", "chromium")
"""The first needs two thirds of the other's processor time: it is the same without windows of its own."""
_REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (\d{3})")


@contextmanager
def browsing() -> Generator[Browser]:
    """One browser. Skips if none is installed; fails where one is required."""
    chromium = program(next(filter(which, BROWSERS), BROWSERS[0]), "BROWSER_TESTS")
    # Chromium's sandbox refuses to run as root, as tests in containers do.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        try:
            yield browser
        finally:
            browser.close()


class ExplorerBrowser:
    """Pages of one server, and what went wrong in them."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.url = url
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.refusals: set[int] = set()
        """Statuses that this test expects: browsers count each of them as an error."""
        self.cut_off = False
        """True if this test cuts the connection to the server, which browsers report as an error, too."""

    def context(self, **options: Any) -> BrowserContext:
        """Another person's browser, so to say; axe is at hand in its pages."""
        made = self._browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options)
        made.set_default_timeout(PATIENCE)
        made.on("page", self._watch)
        self._contexts.append(made)
        return made

    def at(self, fragment: str = "", context: BrowserContext | None = None, **options: Any) -> Page:
        """A page at an address."""
        page = (context or self.context(**options)).new_page()
        page.goto(f"{self.url}/{fragment}")
        return page

    def graph(self, store: str, fragment: str = "", **options: Any) -> Page:
        """A page that shows a store, settled."""
        page = self.at(f"#/{store}{fragment}", **options)
        if "view=" not in fragment:
            settled(page)
        return page

    def close(self) -> None:
        """Close all, and say what went wrong."""
        for context in self._contexts:
            context.close()
        assert not self.wrong, "\n".join(self.wrong)

    def _watch(self, page: Page) -> None:
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self._note(f"{error} {error.stack}"))
        page.on("request", self._asked)

    def _heard(self, said: ConsoleMessage) -> None:
        refused = _REFUSED.match(said.text)
        if self.cut_off and "net::ERR_" in said.text:
            return
        if said.type in {"error", "warning"} and not (refused and int(refused[1]) in self.refusals):
            self._note(f"{said.type}: {said.text} {said.location}")

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith((self.url, "data:", f"blob:{self.url}")):
            self._note(f"asked another server: {request.url}")

    def _note(self, fault: str) -> None:
        log.error(fault)  # for a test that fails before `close`
        self.wrong.append(fault)


def settled(page: Page) -> None:
    """Wait until the graph is drawn and has come to rest."""
    page.locator('.canvas[data-settled="true"] canvas[data-drawn]').wait_for()


def drawn(page: Page) -> int:
    """Return the number of nodes that are drawn."""
    return int(page.locator("canvas").get_attribute("data-drawn") or 0)


def with_axe(context: BrowserContext) -> BrowserContext:
    """axe in every page of it, without bending the page's policy."""
    context.add_init_script(gzip.decompress(AXE.read_bytes()).decode())
    return context


def faults(page: Page, *rules: str) -> list[str]:
    """Return the violations that axe finds, by rule and place; limited to the named rules, if any."""
    levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    wanted = {"runOnly": {"type": "rule", "values": list(rules)} if rules else levels}
    found = page.evaluate("async wanted => (await axe.run(wanted)).violations", wanted)
    return [
        f"{each['id']}: {node['target']} {node['failureSummary'][:300]}" for each in found for node in each["nodes"]
    ]


@contextmanager
def held(asking: Page | BrowserContext, address: str, word: str = "") -> Generator[list[Route]]:
    """Hold back what is asked of an address, with this word in it, until the end of the block."""
    routes: list[Route] = []
    holding = True

    def hold(route: Route) -> None:
        if holding and word in (route.request.post_data or ""):
            routes.append(route)
        else:
            route.continue_()

    asking.route(address, hold)
    yield routes
    holding = False
    for route in routes:
        route.continue_()
