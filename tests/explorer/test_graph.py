"""Canvas, table, panel, search: finding a fact and what surrounds it."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import expect

from tests.explorer.looking import ExplorerBrowser, drawn, faults, held, settled, with_axe
from tests.explorer.stores import chain, library


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


def test_expanding_brings_neighbours_and_expanding_again_takes_them_back(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?ids=emma&valid_at=any")
    assert drawn(page) == 1
    page.locator("#graph").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("listbox", name="Graph of 3 nodes")).to_be_visible()
    settled(page)
    assert "highbury" in page.url
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
    again = looking.at(page.url.split("/", 3)[3])
    settled(again)
    assert again.url == page.url
    expect(again.get_by_role("region", name="Details")).to_contain_text("A novel of youthful pride")


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
    types.get_by_role("button", name="Show more").click()
    expect(page.get_by_role("listbox", name=f"Graph of {before} nodes")).to_be_hidden()
    settled(page)
    assert before < drawn(page) <= 5_000


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
