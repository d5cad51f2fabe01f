"""Live updates of the page; one event stream for all tabs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
from playwright.sync_api import expect

from tests.explorer.looking import ExplorerBrowser, settled
from tests.explorer.stores import edge, inject, node


def test_what_changes_is_updated_and_what_is_new_is_offered(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?node=emma")
    expect(page.get_by_text("● live")).to_be_visible()
    inject(http, api, node("emma", "book", "Changed elsewhere"))
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("heading", name="Changed elsewhere")).to_be_visible()
    inject(http, api, node("lady-susan", "book", "Letters"), edge("lady-susan", "SET_IN", "england"))
    expect(page.get_by_text("1 new node")).to_be_visible()
    expect(page.get_by_role("listbox", name="Graph of 5 nodes")).to_be_visible()
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    page.get_by_role("button", name="Changes").click()
    changes = page.get_by_role("region", name="Changes")
    written = changes.get_by_role("region", name="Written to the store")
    expect(written.get_by_role("row", name="1 new node, 1 new edge")).to_contain_text("Letters")
    last_week = (datetime.now(UTC) - timedelta(days=6)).isoformat()
    inject(
        http, api, node("sanditon-2", "book", "A finished novel", valid_to=last_week, valid_from="2020-01-01T00:00:00Z")
    )
    for _ in range(2):
        inject(http, api, edge("emma", "SET_IN", "highbury", valid_from=last_week))
    expect(written.get_by_role("row", name="1 edge unchanged")).to_be_visible()
    expect(written.get_by_role("row", name="1 edge changed")).to_contain_text("Changed elsewhere SET_IN A village near")
    expect(written.get_by_role("row", name="1 node deleted, 1 edge deleted")).to_contain_text("An unfinished novel")
    facts = changes.get_by_role("region", name="Became valid or ended")
    expect(facts.get_by_role("row", name="became valid Changed elsewhere SET_IN")).to_be_visible()
    page.evaluate("async () => (await import('/explorer/load.js')).put(['sanditon-2'])")
    expect(page.get_by_role("button", name="Show", exact=True)).to_have_count(0)
    expect(facts.get_by_role("row", name="ended A finished novel")).to_be_visible()
    changes.get_by_label("Period").select_option("last 24 hours")
    expect(changes).to_contain_text("No node or edge on the canvas became valid or ended")
    changes.get_by_text("Events since this page was opened").click()
    expect(changes).to_contain_text("node created")
    changes.get_by_role("checkbox", name="Follow changes").uncheck()
    expect(page.get_by_text("○ not live").first).to_be_visible()


def test_seven_tabs_share_one_stream(looking: ExplorerBrowser, http: httpx.Client, books: str, api: str) -> None:
    context = looking.context()
    pages = [looking.at(f"#/{books}?ids=emma&node=emma", context) for _ in range(7)]
    for page in pages:
        settled(page)
        expect(page.get_by_text("● live")).to_be_visible()
    assert sum(url.endswith("/api/events") for url in looking.requests) == 1
    inject(http, api, node("emma", "book", "For all to see"))
    for page in pages:
        expect(page.get_by_role("heading", name="For all to see")).to_be_visible()
    pages[0].close()
    inject(http, api, node("emma", "book", "After the first has gone"))
    for page in pages[1:]:
        expect(page.get_by_role("heading", name="After the first has gone")).to_be_visible()


def test_a_store_that_is_dropped_while_it_is_open_says_so(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?node=emma")
    expect(page.get_by_text("● live")).to_be_visible()
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_visible()
    looking.refusals.add(404)
    http.delete(api, params={"confirm": books}).raise_for_status()
    expect(page.get_by_role("alert")).to_contain_text(f"The store {books} was deleted while it was open")
    expect(page.get_by_role("button", name="Delete", exact=True)).to_have_count(0)
    expect(page.get_by_text("● live")).to_have_count(0)
    inject(http, api, node("emma", "book", "Made again"))
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("listbox", name="Graph of 1 node")).to_be_visible()
    page.get_by_role("link", name="kgserve").click()
    expect(page.get_by_role("heading", name="Stores")).to_be_visible()


def test_a_search_without_a_server_fails_and_can_be_repeated(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    inject(http, api, node("persuasion", "book", "A novel about a second chance"))
    page = looking.graph(books)
    # A panel whose module is still on its way could not be shown without the server.
    expect(page.get_by_role("status").filter(has_text="Loading")).to_have_count(0)
    looking.cut_off = True
    page.context.set_offline(True)
    page.get_by_role("combobox", name="Search or run").fill("second chance")
    page.keyboard.press("Enter")
    results = page.get_by_role("region", name="Results")
    expect(results.get_by_role("heading", name="The search failed")).to_be_visible()
    expect(results.get_by_role("alert")).to_contain_text("The server cannot be reached")
    expect(page.get_by_text("No results")).to_have_count(0)
    page.context.set_offline(False)
    results.get_by_role("button", name="Search again").click()
    expect(results.get_by_role("heading", name="result")).to_be_visible()
    expect(results.get_by_role("alert")).to_have_count(0)
