"""The two clocks: what the store knew, and what was true; both compared in the browser alone."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import expect

from tests.explorer.looking import ExplorerBrowser, held, settled
from tests.explorer.stores import inject, node
from tests.server.http.serving import accepted

LOWEST_NODE = """async () => {
    const { canvas } = await import("/explorer/panel/canvas.js");
    const { visible } = await import("/explorer/state.js");
    for (const _ of [1, 2, 3]) await new Promise(requestAnimationFrame);
    const places = [...visible.value.nodes.values()].map((node) => canvas.shown.screen(node)[1]);
    return canvas.shown.element.getBoundingClientRect().top + Math.max(...places);
}"""

ALL_IN_SIGHT = """async () => {
  const {canvas: {shown}} = await import('/explorer/panel/canvas.js');
  return shown.scene.nodes.every(({node}) => shown.shows(node, 0));
}"""


def test_looking_back_asks_the_server_for_nothing_and_forbids_writing(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?valid_at=any&node=emma")
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("button", name="Edit")).to_be_visible()
    page.keyboard.press("t")
    slider = page.get_by_role("slider", name="What we knew")
    expect(slider).to_have_attribute("aria-valuetext", "now")
    page.get_by_role("listbox").focus()
    card = page.locator("#clocks").bounding_box()
    assert card is not None
    assert page.evaluate(LOWEST_NODE) < card["y"], "the control lies below the nodes, not on them"
    before = len(looking.requests)
    with held(page, "**/changes?*"):
        slider.evaluate(
            "each => { for (const at of [4, 3, 4, 3, 2]) {"
            " each.value = at; each.dispatchEvent(new Event('input', {bubbles: true})); } }"
        )
        expect(page.get_by_text("The store as of commit 2, about")).to_be_visible()
    [commit] = accepted(http.get(f"{api}/changes", params={"since": 1, "limit": 1}))["changes"]
    written = page.evaluate(
        "time => new Date(time).toLocaleString('en-GB', {dateStyle: 'medium', timeStyle: 'medium'})", commit["time"]
    )
    expect(page.get_by_text(f"The store as of commit 2, {written}")).to_be_visible()
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    drawn = [url for url in looking.requests[before:] if url.endswith("/graph")]
    assert len(drawn) <= 2, "only what is gone by now is looked for and asked for, once the hand rests"
    page.keyboard.press("]")
    expect(page.get_by_text("The store as of commit 3")).to_be_visible()
    page.keyboard.press("[")
    expect(details).to_contain_text("A novel of youthful pride")
    expect(details.get_by_role("button", name="Edit")).to_be_hidden()
    views = page.get_by_role("navigation", name="Views")
    for view in ("Changes", "Statistics", "Settings"):
        views.get_by_role("button", name=view).click()
        expect(page.get_by_text(f"{view} show the present, not commit 2")).to_be_visible()
    views.get_by_role("button", name="Cypher").click()
    expect(page.get_by_text("Statements read the present, not commit 2.")).to_be_visible()
    page.evaluate("async () => (await import('/explorer/panel/canvas.js')).canvas.fit()")
    page.get_by_role("button", name="Back to now").click()
    expect(page.get_by_role("listbox", name="Graph of 7 nodes")).to_be_visible()
    assert page.evaluate(ALL_IN_SIGHT)
    expect(details).to_contain_text("A comedy of manners")


def test_what_was_true_at_a_time(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books)
    expect(page.get_by_role("listbox", name="Graph of 5 nodes")).to_be_visible()
    page.get_by_role("button", name="Now", exact=True).click()
    page.get_by_label("What was true").select_option("at any time")
    expect(page.get_by_role("listbox", name="Graph of 7 nodes")).to_be_visible()
    page.get_by_label("What was true").first.select_option("on a date")
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    page.get_by_role("slider", name="What was true").press("End")
    expect(page.get_by_role("listbox", name="Graph of 5 nodes")).to_be_visible()
    expect(page).to_have_url(re.compile("valid_at=188"))
    page.get_by_label("Date and time").fill("1800-01-01T00:00:00")
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    expect(page.get_by_role("button", name="true on 1 Jan 1800")).to_be_visible()


def test_two_commits_side_by_side(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    page.keyboard.press("t")
    page.get_by_role("button", name="Compare").click()
    compared = page.get_by_role("region", name="Compare")
    compared.get_by_role("slider", name="From").fill("2")
    expect(compared).to_contain_text("New: 2 nodes, 4 edges.")
    expect(compared).to_contain_text("Changed: 1 node, 0 edges.")
    expect(compared).to_contain_text("Deleted: 1 node, 1 edge.")
    expect(compared.get_by_role("row", name="deleted An unfinished novel")).to_be_visible()
    views = page.get_by_role("navigation", name="Views")
    views.get_by_role("button", name="Statistics").click()
    expect(page.get_by_text("Statistics show the present. The graph compares commit 2 with commit 5.")).to_be_visible()
    views.get_by_role("button", name="Graph").click()
    compared.get_by_role("button", name="Stop comparing").click()
    expect(compared).to_be_hidden()


def test_history_shows_diffs_compares_any_two_and_reverts(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?node=emma")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("heading", name="History").click()
    expect(details.get_by_role("deletion")).to_have_text("A novel of youthful pride")
    expect(details.get_by_role("insertion")).to_have_text("A comedy of manners")
    details.get_by_role("checkbox", name="Compare version 1").check()
    details.get_by_role("checkbox", name="Compare version 2").check()
    expect(details.get_by_role("region", name="Compare")).to_contain_text("From version 1 to 2:")
    details.get_by_role("button", name="Revert to this").click()
    window = page.get_by_role("dialog", name="Revert to version 1")
    expect(window.get_by_role("insertion")).to_have_text("A novel of youthful pride")
    window.get_by_role("button", name="Revert").click()
    expect(details.get_by_role("heading", name="A novel of youthful pride")).to_be_visible()
    expect(details).to_contain_text("3, written by commit 6")
    inject(http, api, node("emma", "book", summary="Emma", tags=["novel", "comedy"]))
    page.reload()
    settled(page)
    expect(details).to_contain_text("4, written by commit 7")
    details.get_by_role("heading", name="History").click()
    expect(details.locator(".diff").first).to_contain_text("Title: Emma")
    expect(details.locator(".diff").first).to_contain_text("Tags: genre:novel novel, comedy")
