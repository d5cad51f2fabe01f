"""Takes the pictures of docs/explorer.md and of the README: `make pictures`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import httpx

from tests.explorer.looking import ExplorerBrowser, browsing, settled
from tests.explorer.stores import edge, inject, node
from tests.project.reading import TOP
from tests.server.http.serving import accepted, serving

DOCS = TOP / "docs"
SIZE = {"width": 1200, "height": 720}
NOVELS = {
    "Jane Austen": (1775, 1817, ["Emma", "Persuasion", "Mansfield Park", "Northanger Abbey"]),
    "George Eliot": (1819, 1880, ["Middlemarch", "Silas Marner", "The Mill on the Floss"]),
    "Charles Dickens": (1812, 1870, ["Bleak House", "Hard Times", "Great Expectations", "Little Dorrit"]),
    "Anne Brontë": (1820, 1849, ["Agnes Grey", "The Tenant of Wildfell Hall"]),
}
PLACES = ("London", "Bath", "Highbury", "Yorkshire", "Hampshire")


def fill(http: httpx.Client, api: str) -> None:
    """Writers and their novels, a commit for each; one has been corrected, one is gone."""
    inject(http, api, *[node(place, "place", f"{place}, where novels are set") for place in PLACES])
    number = 0
    for writer, (born, died, novels) in NOVELS.items():
        validity = {"valid_from": f"{born}-01-01T00:00:00Z", "valid_to": f"{died}-12-31T00:00:00Z"}
        inject(http, api, node(writer, "writer", f"{writer}, {born} to {died}", summary=writer, **validity))
        for novel in novels:
            number += 1
            rows = [node(novel, "novel", f"{novel}, a novel", summary=novel, tags=["genre:novel"])]
            rows += [edge(writer, "WROTE", novel), edge(novel, "SET_IN", PLACES[number % len(PLACES)])]
            inject(http, api, *rows, edge(novel, "SET_IN", PLACES[number * 3 % len(PLACES)], weight=0.5))
    inject(http, api, node("Emma", "novel", "Emma, a comedy of manners in four volumes"))
    accepted(http.delete(f"{api}/nodes/Hard%20Times"))


def main() -> None:
    """Take them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "data") as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
        browsing() as browser,
    ):
        accepted(http.put("/api/memory/novels", json={"indexes": "words"}), 201)  # as with a model, there is no warning
        fill(http, "/api/memory/novels")
        looking = ExplorerBrowser(browser, server.url)
        page = looking.at("#/novels?valid_at=any&node=Emma", viewport=SIZE)
        settled(page)
        page.get_by_role("heading", name="History").click()
        page.get_by_role("deletion").first.wait_for()
        page.screenshot(path=DOCS / "explorer.png")
        page = looking.at("#/novels?valid_at=any", viewport=SIZE, color_scheme="dark")
        settled(page)
        page.keyboard.press("t")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("region", name="Compare").get_by_role("slider", name="From").fill("14")
        page.get_by_text("Deleted: 1 node").wait_for()
        settled(page)
        page.screenshot(path=DOCS / "explorer-compare.png")
        page = looking.at("#/novels?valid_at=any", viewport=SIZE)
        settled(page)
        page.get_by_role("combobox", name="Search or run").fill("a comedy of manners")
        page.keyboard.press("Enter")
        page.get_by_text("words 1.00").first.wait_for()
        settled(page)
        page.screenshot(path=DOCS / "explorer-search.png")
        page = looking.at("#/novels?valid_at=any", viewport=SIZE)
        settled(page)
        page.get_by_role("button", name="Statistics").click()
        page.get_by_role("table", name="Types").wait_for()
        page.screenshot(path=DOCS / "explorer-statistics.png")
        looking.close()


if __name__ == "__main__":
    main()
