"""The two clocks: what the store knew, and what was true; both compared in the browser alone."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.explorer.looking import ExplorerBrowser, settled

ALL_IN_SIGHT = """async () => {
  const {canvas: {shown}} = await import('/explorer/panel/canvas.js');
  return shown.scene.nodes.every(({node}) => shown.shows(node, 0));
}"""


def test_looking_back_asks_the_server_for_nothing_and_forbids_writing(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any&node=emma")
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("button", name="Edit")).to_be_visible()
    page.keyboard.press("t")
    slider = page.get_by_role("slider", name="What we knew")
    expect(slider).to_have_attribute("aria-valuetext", "now")
    page.get_by_role("listbox").focus()
    before = len(looking.requests)
    slider.evaluate(
        "each => { for (const at of [4, 3, 4, 3, 2]) {"
        " each.value = at; each.dispatchEvent(new Event('input', {bubbles: true})); } }"
    )
    expect(page.get_by_text("The store as of commit 2")).to_be_visible()
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    drawn = [url for url in looking.requests[before:] if url.endswith("/graph")]
    assert len(drawn) <= 2, "only what is gone by now is looked for and asked for, once the hand rests"
    page.keyboard.press("]")
    expect(page.get_by_text("The store as of commit 3")).to_be_visible()
    page.keyboard.press("[")
    expect(details).to_contain_text("A novel of youthful pride")
    expect(details.get_by_role("button", name="Edit")).to_be_hidden()
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
    compared.get_by_role("button", name="Stop comparing").click()
    expect(compared).to_be_hidden()


def test_history_shows_diffs_compares_any_two_and_reverts(looking: ExplorerBrowser, books: str) -> None:
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
    page.reload()
    settled(page)
    expect(details).to_contain_text("3, written by commit 6")
