"""Canvas, table, panel, search: finding a fact and what surrounds it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
from playwright.sync_api import Response, expect

from tests.explorer.looking import ExplorerBrowser, drawn, faults, held, settled, with_axe
from tests.explorer.stores import chain, edge, inject, library

MIDDLE_OF_EDGE = """async type => {
  const {canvas: {shown: {renderer, scene, element}}} = await import('/explorer/panel/canvas.js');
  const {from, to} = scene.edges.find((edge) => edge.type === type);
  const [one, other, box] = [renderer.at(from), renderer.at(to), element.getBoundingClientRect()];
  return [box.left + (one.x + other.x) / 2, box.top + (one.y + other.y) / 2];
}"""


def test_a_small_store_is_shown_whole_and_named(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    expect(page.get_by_role("listbox", name="Graph of 7 nodes")).to_be_visible()
    assert drawn(page) == 7
    types = page.get_by_role("region", name="Types")
    types.get_by_role("heading", name="Types").click()
    expect(types.get_by_role("checkbox", name="book")).to_be_checked()
    expect(types).to_contain_text("The store contains 7 nodes and 7 edges.")
    types.get_by_role("checkbox", name="book").uncheck()
    expect(page.get_by_role("listbox", name="Graph of 4 nodes")).to_be_visible()
    types.get_by_role("button", name="Colour and shape of place").click()
    choice = types.get_by_role("group", name="Colour and shape of place")
    choice.get_by_role("button", name="violet").click()
    choice.get_by_role("button", name="triangle").click()
    expect(page).to_have_url(re.compile(r"looks=place\.5t"))
    again = looking.graph(books, f"?{page.url.split('?')[1]}")
    types = again.get_by_role("region", name="Types")
    types.get_by_role("heading", name="Types").click()
    types.get_by_role("button", name="Colour and shape of place").click()
    expect(types.get_by_role("button", name="violet")).to_have_attribute("aria-pressed", "true")
    types.get_by_role("button", name="Reset").click()
    expect(again).not_to_have_url(re.compile("looks="))


def test_search_says_why_and_leads_to_a_node_with_its_edges(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search or run")).to_be_focused()
    page.keyboard.type("sea")
    page.keyboard.press("Enter")
    page.get_by_label("Search mode").select_option("keyword")
    hit = page.get_by_role("region", name="Results").get_by_role("button", name="A second chance by the sea")
    expect(hit).to_contain_text("words")
    hit.click()
    details = page.get_by_role("region", name="Details")
    expect(details).to_contain_text("persuasion")
    expect(details.get_by_text("× 0.5")).to_be_visible()
    details.get_by_role("button", name="Jane Austen", exact=True).click()
    expect(details.get_by_role("heading", name="Jane Austen")).to_be_visible()
    expect(details).to_contain_text("16 Dec 1775")
    expect(details.get_by_text("1775", exact=True)).to_be_visible()


def test_search_finds_the_word_that_is_being_typed(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    bar = page.get_by_role("combobox", name="Search or run")
    bar.fill("novel")
    bar.press("Enter")
    page.get_by_label("Search mode").select_option("keyword")
    results = page.get_by_role("region", name="Results")
    bar.fill("")
    bar.press_sequentially("cha")
    expect(page.get_by_role("option", name="A second chance by the sea")).to_be_visible()
    bar.press_sequentially(" ")
    expect(results.get_by_role("heading", name="No results")).to_be_visible()


def test_search_says_that_no_word_was_found(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    page.get_by_role("combobox", name="Search or run").fill("海边")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Results")).to_contain_text("No word of the query was found; nearest by")


def test_an_edge_is_opened_from_a_list_and_on_the_canvas(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    since = {"attributes": {"source": "letters"}, "valid_from": "1815-12-23T00:00:00Z"}
    inject(http, api, edge("austen", "WROTE", "emma", **since))
    page = looking.graph(books, "?valid_at=any&node=emma", context=with_axe(looking.context()))
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Details of the edge WROTE with Jane Austen").click()
    expect(details.get_by_role("heading", name="WROTE")).to_be_visible()
    expect(details).to_contain_text("Jane Austen → A comedy of manners")
    expect(details).to_contain_text(re.compile("23 Dec 1815.*no end"))
    expect(details).to_contain_text("letters")
    assert not faults(page)
    details.get_by_role("button", name="Retire").click()
    expect(details).not_to_contain_text("no end")
    details.get_by_role("button", name="A comedy of manners").click()
    expect(details.get_by_role("heading", name="A comedy of manners")).to_be_visible()
    x, y = page.evaluate(MIDDLE_OF_EDGE, "LIES_IN")
    page.mouse.click(x, y)
    expect(details).to_contain_text("A village near London → A country")
    page.mouse.click(x, y + 40)
    expect(details.get_by_role("heading", name="A comedy of manners")).to_be_visible()


def test_expanding_brings_neighbours_and_expanding_again_takes_them_back(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?ids=emma&valid_at=any")
    assert drawn(page) == 1
    page.locator("#graph").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("listbox", name="Graph of 3 nodes")).to_be_visible()
    settled(page)
    expect(page).to_have_url(re.compile("highbury"))
    page.get_by_role("region", name="Details").get_by_role("button", name="Collapse").click()
    expect(page.get_by_role("listbox", name="Graph of 1 node")).to_be_visible()


def test_the_table_shows_the_same_sorts_and_expands(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?view=table&valid_at=any&ids=emma,austen")
    table = page.get_by_role("region", name="Table of the graph")
    expect(table.get_by_role("row")).to_have_count(3)
    table.get_by_role("button", name="Label").click()
    expect(table.get_by_role("columnheader", name="Label")).to_have_attribute("aria-sort", "ascending")
    expect(table.get_by_role("rowheader").first).to_have_text("A comedy of manners")
    table.get_by_role("button", name="Expand Jane Austen").click()
    expect(table.get_by_role("row")).to_have_count(4)
    table.get_by_role("button", name="Collapse Jane Austen").click()
    expect(table.get_by_role("row")).to_have_count(3)


def test_a_long_table_makes_the_rows_in_sight_and_keys_reach_all(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    chain(http, api, 1_000)
    ids = ",".join(f"n{number:05}" for number in range(1_000))
    page = looking.graph(store, f"?view=table&ids={ids}", context=with_axe(looking.context()))
    table = page.get_by_role("region", name="Table of the graph")
    expect(table.get_by_role("table")).to_have_attribute("aria-rowcount", "1001")
    table.get_by_role("button", name="Label").click()
    first = table.get_by_role("button", name="n00000", exact=True)
    assert not faults(page)
    first.focus()
    assert table.locator("tbody tr[data-row]").count() < 80
    page.keyboard.press("ArrowDown")
    expect(table.get_by_role("button", name="n00001", exact=True)).to_be_focused()
    page.keyboard.press("End")
    expect(table.get_by_role("button", name="n00999", exact=True)).to_be_focused()
    expect(table.get_by_role("button", name="n00990", exact=True)).to_be_visible()
    assert table.locator("tbody tr[data-row]").count() < 80
    table.evaluate("each => { each.scrollTop = 0 }")
    expect(first).to_be_in_viewport()
    expect(table.get_by_role("button", name="n00999", exact=True)).to_be_focused()
    page.keyboard.press("Home")
    expect(first).to_be_focused()


def test_the_way_between_two_nodes(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?view=table&valid_at=any")
    page.get_by_role("checkbox", name="Select Jane Austen").check()
    page.get_by_role("checkbox", name="Select A country").check()
    page.get_by_role("button", name="Path between the two").click()
    page.get_by_role("button", name="Graph", exact=True).click()
    expect(page.get_by_text("A path of 2 steps")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("A path of")).to_be_hidden()


def test_the_address_holds_the_whole_view(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?ids=emma,austen&as_of=2&node=emma&valid_at=any")
    expect(page.get_by_role("region", name="Details")).to_contain_text("A novel of youthful pride")
    expect(page.get_by_text("The store as of commit 2")).to_be_visible()
    expect(page).to_have_url(re.compile("valid_at=any&node=emma$"))
    again = looking.at(page.url.split("/", 3)[3])
    settled(again)
    expect(again).to_have_url(page.url)
    expect(again.get_by_role("region", name="Details")).to_contain_text("A novel of youthful pride")
    edge = "%5B%22emma%22%2C%22SET_IN%22%2C%22highbury%22%5D"
    again.evaluate("address => { location.hash = address }", f"#/{books}?compare=2-5&edge={edge}&hide_type=author")
    expect(again.get_by_role("region", name="Compare")).to_contain_text("Deleted: 1 node, 0 edges.")
    again.get_by_role("tab", name="Details").click()
    expect(again.get_by_role("region", name="Details").get_by_role("heading")).to_contain_text("SET_IN")
    assert drawn(again) == 6, "authors are hidden"
    again.evaluate("address => { location.hash = address }", f"#/{books}?node=nowhere")
    expect(again.get_by_role("alert")).to_contain_text("Not in this store: nowhere")
    assert drawn(again) == 5, "the canvas is drawn again"


def is_of_chosen_nodes(response: Response) -> bool:
    """Return whether a response adds nodes to the canvas that are gone by now."""
    return response.url.endswith("/graph") and '"ids"' in (response.request.post_data or "")


def test_back_goes_one_step_back_within_a_store(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books)
    now = datetime.now(UTC)

    def wait(minutes: int) -> None:
        """Let the page's clock go on: steps at once become one."""
        page.clock.set_fixed_time(now + timedelta(minutes=minutes))

    page.locator("#graph").focus()
    wait(1)
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("node="))
    before = page.evaluate("history.length")
    wait(2)
    page.get_by_role("button", name="Changes").click()
    expect(page).to_have_url(re.compile("view=live"))
    wait(3)
    page.get_by_role("button", name="Graph", exact=True).click()
    expect(page).not_to_have_url(re.compile("view=live"))
    page.keyboard.press("t")
    wait(4)
    with page.expect_response(is_of_chosen_nodes):
        page.get_by_role("slider", name="What we knew").evaluate(
            "each => { for (const at of [4, 3, 4, 3, 2]) {"
            " each.value = at; each.dispatchEvent(new Event('input', {bubbles: true})); } }"
        )
    expect(page).to_have_url(re.compile("as_of=2"))
    page.get_by_role("combobox", name="Search or run").press_sequentially("novel")
    expect(page).to_have_url(re.compile("q=novel"))
    assert page.evaluate("history.length") == before + 3, "neither typing nor dragging fills the history"
    asked = len(looking.requests)
    page.go_back()
    expect(page).not_to_have_url(re.compile("as_of=2"))
    expect(page.get_by_role("region", name="Details").get_by_role("button", name="Edit")).to_be_visible()
    assert not [url for url in looking.requests[asked:] if url.endswith("/graph")], "the canvas is kept"
    page.go_back()
    expect(page.get_by_role("region", name="Written to the store")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("region", name="Details").get_by_role("button", name="Edit")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("Select a node to see its details.")).to_be_visible()


def test_what_is_too_much_is_said_with_filters_and_never_hangs(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    chain(http, api, 5_100)
    page = looking.graph(store)
    assert 0 < drawn(page) <= 300
    types = page.get_by_role("region", name="Types")
    types.get_by_role("heading", name="Types").click()
    expect(types).to_contain_text("5,100 nodes exceed the limit of 5,000 on the canvas")
    before = drawn(page)
    shown = page.get_by_text(f"{before} of 5,100 nodes")
    [over, under] = [types.bounding_box(), shown.bounding_box()]
    assert over
    assert under
    assert over["y"] + over["height"] < under["y"], "the open list covers nothing below"
    types.get_by_role("button", name="Show more").click()
    expect(page.get_by_role("listbox", name=f"Graph of {before} nodes")).to_be_hidden()
    settled(page)
    assert before < drawn(page) <= 5_000
    again = looking.graph(store, "?more=1&node=n03333")
    assert drawn(again) == drawn(page) + 1, "the address holds how much is shown, and brings its node"
    expect(again.get_by_role("region", name="Details").get_by_role("heading").first).to_have_text("n03333")


def test_what_was_taken_back_does_not_come_back_with_a_late_answer(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?view=table&valid_at=any&ids=emma,austen")
    rows = page.get_by_role("region", name="Table of the graph").get_by_role("row")
    expect(rows).to_have_count(3)
    with held(page, "**/graph", '"ids"') as late:
        page.get_by_role("button", name="Expand Jane Austen").click()
        expect(rows).to_have_count(4)
        expect(page.locator(".busy")).to_be_attached()
        page.get_by_role("button", name="Collapse Jane Austen").click()
        expect(rows).to_have_count(3)
    assert late
    expect(page.locator(".busy")).not_to_be_attached()
    assert rows.count() == 3


def test_a_late_answer_of_another_store_is_left_out(
    looking: ExplorerBrowser, books: str, http: httpx.Client, store: str
) -> None:
    other = f"{store}-other"
    library(http, f"/api/memory/{other}")
    page = looking.graph(books, "?view=table&valid_at=any&ids=emma,austen")
    table = page.get_by_role("region", name="Table of the graph")
    expect(table.get_by_role("row")).to_have_count(3)
    with held(page, "**/graph", '"around"') as late:
        page.get_by_role("button", name="Expand Jane Austen").click()
        expect(page.locator(".busy")).to_be_attached()
        page.evaluate("address => { location.hash = address }", f"#/{other}?view=table&valid_at=any&ids=emma")
        expect(table.get_by_role("row")).to_have_count(2)
    assert late
    expect(page.locator(".busy")).not_to_be_attached()
    assert table.get_by_role("row").count() == 2
