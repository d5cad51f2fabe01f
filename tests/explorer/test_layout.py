"""Layout of the page: command bar, canvas, side panel, drawer; and all views behind a proxy and in a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect

from tests.cli.running import serving
from tests.cluster.nodes import serving_nodes
from tests.cluster.servers import free_ports, nats_servers
from tests.deploy.test_proxies import NGINX, nginx_command, running
from tests.explorer.looking import ExplorerBrowser, settled
from tests.explorer.stores import library

MIN_CANVAS_SHARE = 0.6
BELOW_A_PATH = """
server {{
    listen 127.0.0.1:{port};
    location /graphs/ {{
        proxy_pass {url}/;
        proxy_set_header Host $http_host;
        proxy_http_version 1.1;
        proxy_buffering off;
    }}
}}
"""
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
    completions = page.get_by_role("listbox", name="Completions")
    expect(completions).to_have_attribute("style", re.compile("top: "))
    offered = box(completions)
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
    # Two keys within one frame.
    rendered = grip.evaluate(
        """async (grip) => {
            for (let key = 0; key < 2; key++) {
                grip.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
                for (let turn = 0; turn < 9; turn++) await null;
            }
            return grip.parentElement.getBoundingClientRect().height;
        }"""
    )
    smaller = box(drawer)["height"]
    assert rendered == smaller == before - 72
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


@contextmanager
def server_below_a_path(folder: Path) -> Generator[list[str]]:
    """Run a server behind nginx, which serves it below a path."""
    with serving(folder / "data", "--indexes", "words") as server:
        [port] = free_ports(1)
        (folder / "kgserve.conf").write_text(BELOW_A_PATH.format(port=port, url=server.url))
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
        with running(nginx_command(folder), folder, ("127.0.0.1", port)):
            yield [f"http://127.0.0.1:{port}/graphs"]


@contextmanager
def cluster_of_two(folder: Path) -> Generator[list[str]]:
    """Run two nodes of a cluster."""
    with nats_servers(folder / "nats") as servers, serving_nodes(servers, folder, 2) as nodes:
        yield [node.url for node in nodes]


@pytest.mark.parametrize("serve", [server_below_a_path, cluster_of_two])
def test_all_views_work_below_a_path_and_at_a_node_that_does_not_own_the_store(
    browser: Browser, tmp_path: Path, serve: Callable[[Path], AbstractContextManager[list[str]]]
) -> None:
    with serve(tmp_path) as urls:
        looking = ExplorerBrowser(browser, urls[0])
        page = looking.at()
        page.get_by_role("button", name="Load an example").click()
        page.get_by_role("button", name="Skip the tour").click()
        settled(page)
        looking.close()
        looking = ExplorerBrowser(browser, urls[-1])
        page = looking.graph("example")
        expect(page.get_by_text("● live")).to_be_visible()
        use_all_views(page)
        looking.close()


def use_all_views(page: Page) -> None:
    """Create a node and an edge, run a statement, forget a memory, and look at the other views."""
    page.keyboard.press("n")
    form = page.get_by_role("dialog", name="New node")
    form.get_by_label("Type").fill("person")
    form.get_by_label("Title").fill("Nina")
    form.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Created: Nina", exact=True)).to_be_visible()
    page.get_by_role("region", name="Details").get_by_role("button", name="New edge").click()
    form = page.get_by_role("dialog", name="New edge")
    form.get_by_label("Relation").fill("MEMBER_OF")
    form.get_by_label("To", exact=False).first.fill("Booking team")
    form.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Created: Nina MEMBER_OF Booking team")).to_be_visible()
    page.get_by_role("button", name="Cypher", exact=True).click()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("tabpanel", name="Table").get_by_role("row").nth(1)).to_be_visible()
    views = page.get_by_role("navigation", name="Views")
    views.get_by_role("button", name="Memories").click()
    memory = page.get_by_role("row", name="Luis Ortega is on call in odd weeks")
    memory.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog", name="Forget").get_by_role("button", name="Forget").click()
    expect(memory).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(memory).to_be_visible()
    memory.get_by_role("button", name="Luis Ortega", exact=True).click()
    expect(page.get_by_role("region", name="Relations of Luis Ortega")).to_contain_text("Login")
    views.get_by_role("button", name="Changes").click()
    expect(page.get_by_role("region", name="Written to the store")).to_contain_text("1 new edge")
    views.get_by_role("button", name="Statistics").click()
    expect(page.get_by_role("region", name="Last writes")).to_contain_text("1 new edge")
