"""Takes the pictures of docs/explorer.md and of the README, and of all states of the page: `make pictures`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import httpx

from tests.explorer.looking import ExplorerBrowser, browsing, settled
from tests.explorer.states import SIZE, SIZES, visit_states, write_novels
from tests.project.reading import TOP
from tests.server.http.serving import accepted, serving

DOCS = TOP / "docs"
STATES = TOP / "build" / "screenshots"
DOCUMENTED_SIZE = {"width": 1200, "height": 720}


def take_documented(looking: ExplorerBrowser, http: httpx.Client) -> None:
    """Take the pictures of the documentation."""
    accepted(http.put("/api/memory/novels", json={"indexes": "words"}), 201)  # as with a model, there is no warning
    write_novels(http, "/api/memory/novels")
    page = looking.at("#/novels?valid_at=any&node=Emma", viewport=DOCUMENTED_SIZE)
    settled(page)
    page.get_by_role("heading", name="History").click()
    page.get_by_role("deletion").first.wait_for()
    page.screenshot(path=DOCS / "explorer.png")
    page = looking.at("#/novels?valid_at=any", viewport=DOCUMENTED_SIZE, color_scheme="dark")
    settled(page)
    page.keyboard.press("t")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("region", name="Compare").get_by_role("slider", name="From").fill("14")
    page.get_by_text("Deleted: 1 node").wait_for()
    settled(page)
    page.screenshot(path=DOCS / "explorer-compare.png")
    page = looking.at("#/novels?valid_at=any", viewport=DOCUMENTED_SIZE)
    settled(page)
    page.get_by_role("combobox", name="Search or run").fill("a comedy of manners")
    page.keyboard.press("Enter")
    page.get_by_text("words 1.00").first.wait_for()
    settled(page)
    page.screenshot(path=DOCS / "explorer-search.png")
    page = looking.at("#/novels?valid_at=any", viewport=DOCUMENTED_SIZE)
    settled(page)
    page.get_by_role("button", name="Statistics").click()
    page.get_by_role("region", name="Types and their relations").wait_for()
    page.get_by_text("up to date").wait_for()
    page.screenshot(path=DOCS / "explorer-statistics.png")


def take_states(looking: ExplorerBrowser, http: httpx.Client, folder: Path) -> None:
    """Take a picture of every state in every width and theme."""
    folder.mkdir(parents=True, exist_ok=True)
    looking.refusals = {404}
    context = looking.context(viewport=SIZE, reduced_motion="reduce")  # Colours change at once.
    for state, page in visit_states(looking, http, context):
        for size in SIZES:
            page.set_viewport_size(size)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(300)  # The canvas is drawn sharp once it rests.
                page.screenshot(path=folder / f"{state}-{size['width']}-{scheme}.png")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(SIZE)


def main(folder: Path) -> None:
    """Take them, each set in front of a server of its own."""
    with browsing() as browser:
        for take in (take_documented, lambda looking, http: take_states(looking, http, folder)):
            with (
                tempfile.TemporaryDirectory() as data,
                serving(Path(data) / "data") as server,
                httpx.Client(base_url=server.url, timeout=60) as http,
            ):
                looking = ExplorerBrowser(browser, server.url)
                take(looking, http)
                looking.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else STATES)
