"""States of the explorer that pictures are taken of and that axe looks at."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import httpx
from playwright.sync_api import BrowserContext, Page, ViewportSize, expect

from tests.explorer.looking import ExplorerBrowser, settled
from tests.explorer.stores import edge, inject, node
from tests.server.http.serving import accepted

SIZE: ViewportSize = {"width": 1440, "height": 900}
SIZES: tuple[ViewportSize, ...] = (SIZE, {"width": 1024, "height": 768}, {"width": 390, "height": 844})
CROWD = 5_000
NOVELS = {
    "Jane Austen": (1775, 1817, ["Emma", "Persuasion", "Mansfield Park", "Northanger Abbey"]),
    "George Eliot": (1819, 1880, ["Middlemarch", "Silas Marner", "The Mill on the Floss"]),
    "Charles Dickens": (1812, 1870, ["Bleak House", "Hard Times", "Great Expectations", "Little Dorrit"]),
    "Anne Brontë": (1820, 1849, ["Agnes Grey", "The Tenant of Wildfell Hall"]),
}
PLACES = ("London", "Bath", "Highbury", "Yorkshire", "Hampshire")
KINDS = {"person": 10, "household": 4, "shop": 2, "street": 1, "school": 1}
"""Types of the nodes of a town, with how many there are of each."""
NAMES = ("Ash", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Larch", "Maple", "Oak", "Pine", "Rowan", "Willow")


def write_novels(http: httpx.Client, api: str) -> None:
    """Write writers and their novels, a commit for each; one has been corrected, one is gone."""
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


def write_town(http: httpx.Client, api: str, size: int) -> None:
    """Write a connected graph in which few nodes have many neighbours and most have few."""
    chance = random.Random(size)
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=size)
    nodes = [node(f"n{at}", kind, summary=f"{chance.choice(NAMES)} {kind} {at}") for at, kind in enumerate(kinds)]
    known = [0]  # An id is here once for each of its edges, so that hubs grow.
    edges = []
    for at in range(1, size):
        for target in {chance.choice(known), *([chance.randrange(at)] if chance.random() < 0.3 else [])}:
            edges.append(edge(f"n{at}", chance.choice(("KNOWS", "LIVES_AT", "VISITS")), f"n{target}"))
            known += [at, target]
    inject(http, api, *nodes, *edges)


def visit_states(looking: ExplorerBrowser, http: httpx.Client, context: BrowserContext) -> Iterator[tuple[str, Page]]:
    """Yield the name of each state with a page that shows it, on a server without stores."""
    page = looking.at(context=context)
    page.get_by_role("button", name="Load an example").wait_for()
    yield "empty", page
    page.get_by_role("button", name="Load an example").click()
    page.get_by_role("button", name="Skip the tour").click()
    settled(page)
    yield "sample", page
    yield from _visit_sample(page)
    for store, write in {"novels": write_novels, "town": write_town, "city": write_town}.items():
        accepted(http.put(f"/api/memory/{store}", json={"indexes": "words"}), 201)
        sizes = {"town": [300], "city": [CROWD]}
        write(http, f"/api/memory/{store}", *sizes.get(store, []))
    page.goto(f"{looking.url}/#/novels?valid_at=any")
    settled(page)
    page.keyboard.press("t")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("region", name="Compare").get_by_role("slider", name="From").fill("14")
    page.get_by_text("Deleted: 1 node").wait_for()
    settled(page)
    yield "compare", page
    page.goto(f"{looking.url}/#/town")
    page.get_by_role("listbox", name="Graph of 300 nodes").wait_for()
    settled(page)
    yield "300-nodes", page
    page.goto(f"{looking.url}/#/city")
    show_crowd(page)
    yield "5000-nodes", page
    page.goto(f"{looking.url}/#/nowhere")
    page.get_by_role("alert").wait_for()
    yield "error", page


def show_crowd(page: Page) -> None:
    """Enlarge the overview of the city until it holds as many nodes as the canvas may."""
    settled(page)
    page.get_by_text("Types", exact=True).click()
    more = page.get_by_role("region", name="Types").get_by_role("button", name="Show more")
    graph = page.locator("#graph")
    while more.is_visible():
        before = graph.get_attribute("aria-label") or ""
        more.click()
        expect(graph).not_to_have_attribute("aria-label", re.compile(f"^({before}|Graph of 0 nodes)$"))
        settled(page)
    expect(graph).to_have_attribute("aria-label", f"Graph of {CROWD:,} nodes")
    page.get_by_text("Types", exact=True).click()


def _visit_sample(page: Page) -> Iterator[tuple[str, Page]]:
    """Yield the states of the sample."""
    page.keyboard.press("Control+k")
    page.keyboard.type("database")
    page.get_by_role("option", name="Database application").click()
    details = page.get_by_role("region", name="Details")
    details.get_by_role("heading", name="History").click()
    page.get_by_role("deletion").first.wait_for()
    settled(page)
    yield "history", page
    page.get_by_role("button", name="Cypher", exact=True).click()
    page.get_by_role("button", name="Run").click()
    page.get_by_role("tabpanel", name="Table").wait_for()
    settled(page)
    yield "cypher", page
    page.get_by_role("button", name="Close Cypher").click()
    views = page.get_by_role("navigation", name="Views")
    views.get_by_role("button", name="Memories").click()
    page.get_by_role("region", name="List of memories").get_by_role("row").nth(1).wait_for()
    yield "memories", page
    page.get_by_role("tab", name="Entities").click()
    page.get_by_role("region", name="List of entities").get_by_role("button", name="Luis Ortega").click()
    page.get_by_role("region", name="Memories about Luis Ortega").wait_for()
    yield "entity", page
    views.get_by_role("button", name="Changes").click()
    page.get_by_role("region", name="Written to the store").wait_for()
    yield "changes", page
    views.get_by_role("button", name="Statistics").click()
    page.get_by_role("region", name="Last writes").wait_for()
    page.get_by_role("table", name="Requests since the start").wait_for()
    yield "statistics", page
    views.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Save").wait_for()
    yield "settings", page
