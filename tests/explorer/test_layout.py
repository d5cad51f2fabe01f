"""Layout of the page: command bar, canvas, side panel, drawer; and the page below the path of a proxy."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import FloatRect, Locator, expect

from tests.explorer.looking import ExplorerBrowser, settled
from tests.explorer.stores import library

MIN_CANVAS_SHARE = 0.6
SCALE = "async () => (await import('/explorer/panel/canvas.js')).canvas.shown.view.scale"


def box(element: Locator) -> FloatRect:
    """Return the place and size of a visible element in pixels."""
    found = element.bounding_box()
    assert found is not None
    return found


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768)])
def test_the_canvas_keeps_most_of_the_window_and_covers_nothing(
    looking: ExplorerBrowser, books: str, width: int, height: int
) -> None:
    page = looking.graph(books, "?node=emma", viewport={"width": width, "height": height})
    canvas, side = page.locator("canvas"), page.get_by_role("complementary", name="Side panel")
    sizes = [box(canvas)]
    page.keyboard.press("c")
    drawer = page.get_by_role("region", name="Cypher")
    drawer.get_by_role("button", name="Run").click()
    drawer.get_by_role("row").nth(2).wait_for()
    sizes.append(box(canvas))
    assert box(canvas)["y"] + box(canvas)["height"] <= box(drawer)["y"] + 1
    editor = drawer.get_by_role("textbox", name="Statement")
    editor.press("End")
    editor.press_sequentially("\nMAT")
    offered = box(page.get_by_role("listbox", name="Completions"))
    assert offered["y"] + offered["height"] <= box(editor)["y"] + box(editor)["height"], "it opens above the line"
    editor.press("Escape")
    page.get_by_role("button", name="Close the side panel").click()
    expect(side).to_be_hidden()
    sizes.append(box(canvas))
    page.get_by_role("button", name="Side panel").click()
    expect(side).to_be_visible()
    for size in sizes:
        assert size["width"] * size["height"] >= MIN_CANVAS_SHARE * width * height
    page.get_by_role("button", name="Settings").click()
    expect(drawer).to_be_hidden()
    expect(side).to_be_hidden()
    page.get_by_role("button", name="Graph", exact=True).click()
    expect(drawer).to_be_visible()
    settled(page)
    assert page.evaluate(SCALE) > 0.5, "the graph still fills the canvas"


def test_the_drawer_remembers_its_height(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books)
    page.keyboard.press("c")
    drawer = page.get_by_role("region", name="Cypher")
    grip = drawer.get_by_role("separator", name="Height of the Cypher drawer")
    before = box(drawer)["height"]
    grip.press("ArrowDown")
    grip.press("ArrowDown")
    smaller = box(drawer)["height"]
    assert smaller == before - 48
    page.reload()
    settled(page)
    page.keyboard.press("c")
    expect(drawer.get_by_role("textbox", name="Statement")).to_be_visible()
    assert box(drawer)["height"] == smaller


def test_the_command_bar_jumps_asks_and_acts(
    looking: ExplorerBrowser, http: httpx.Client, books: str, store: str
) -> None:
    other = f"{store}-other"
    library(http, f"/api/memory/{other}")
    page = looking.graph(books, "?valid_at=any")
    bar = page.get_by_role("combobox", name="Search or run a command")
    commands = page.get_by_role("listbox", name="Commands")
    page.keyboard.press("Control+k")
    expect(bar).to_be_focused()
    expect(commands.get_by_role("option", name="Go to Statistics")).to_be_visible()
    page.keyboard.type("sea")
    commands.get_by_role("option", name="A second chance by the sea").click()
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("heading", name="A second chance by the sea")).to_be_visible()
    bar.fill("compare two")
    bar.press("ArrowUp")
    bar.press("Enter")
    expect(page.get_by_role("region", name="Compare")).to_be_visible()
    bar.fill("MATCH (n:author) RETURN n.id ORDER BY n.id")
    bar.press("Enter")
    expect(page.get_by_role("tabpanel", name="Table")).to_contain_text("austen")
    bar.fill("statist")
    commands.get_by_role("option", name="Go to Statistics").click()
    expect(page.get_by_role("region", name="Statistics")).to_be_visible()
    bar.fill(other)
    commands.get_by_role("option", name=other, exact=True).click()
    expect(page.get_by_label("Store", exact=True)).to_have_value(other)


def test_the_page_works_below_a_path(looking: ExplorerBrowser, books: str) -> None:
    context = looking.context()
    context.route(
        f"{looking.url}/graphs/**",
        lambda route: route.continue_(url=route.request.url.replace("/graphs/", "/", 1)),
    )
    page = looking.at(f"graphs/#/{books}?node=emma", context)
    settled(page)
    expect(page.get_by_role("region", name="Details")).to_contain_text("A comedy of manners")
    expect(page.get_by_text("● live")).to_be_visible()
    assert all(url.startswith((f"{looking.url}/graphs/", "blob:")) for url in looking.requests)
